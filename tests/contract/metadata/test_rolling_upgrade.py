"""Gateways, coordinators and producers of an older version run under load while those of a newer one are started beside
them: every acknowledged record is in the log, once.
"""

import json
from contextlib import ExitStack

import pytest
import sqlalchemy as sa

from tests.support.failover_load import Acknowledgements, KafkaProducer
from tests.support.server_processes import free_port
from tests.support.versions import earlier_version, next_version, previous_version, this_version
from tests.support.waiting import wait_until

MORE = 50
"""Acknowledgements of a client that show that it goes on."""

CREATE = """
import sys
from spark_log import Admin
from spark_log.cluster.cluster import Cluster
Cluster.init(sys.argv[1], log_dir=sys.argv[2] if "://" in sys.argv[1] else None).close()
with Admin(cluster=sys.argv[1]) as admin:
    admin.create_topics({name: {"num_partitions": 3} for name in ("t", "copy")})
"""

READ_ALL = """
import json, sys
from spark_log import Consumer
from kafka import TopicPartition
with Consumer(cluster=sys.argv[1], auto_offset_reset="earliest") as consumer:
    ends = consumer.end_offsets([TopicPartition("t", number) for number in range(3)])
    consumer.assign(list(ends))
    while any(consumer.position(partition) < end for partition, end in ends.items()):
        for records in consumer.poll(timeout_ms=1_000).values():
            for record in records:
                print(json.dumps([record.value.decode().rpartition("-")[0], record.partition, record.offset]))
"""


READ_IN_GROUP = """
import sys
from spark_log import Consumer
with Consumer("t", cluster=sys.argv[1], group_id="g", auto_offset_reset="earliest") as consumer:
    while True:
        for records in consumer.poll(timeout_ms=500).values():
            for record in records:
                print("read", record.partition, record.offset, flush=True)
"""


class GroupReader:
    """A member of a group, in a process of a version."""

    def __init__(self, process):
        self.process = process

    @property
    def places(self):
        lines = self.process.output.splitlines()
        return {
            tuple(map(int, line.split()[1:])) for line in lines if line.startswith("read ") and line.count(" ") == 2
        }

    def wait_for_more(self):
        count = len(self.places) + MORE
        wait_until(lambda: len(self.places) >= count, "records")


class Cluster:
    """Starts the processes of versions on one cluster."""

    def __init__(self, stack, folder, address):
        self._stack, self._folder, self.address = stack, folder, address

    def start(self, version, name, *command):
        process = version.start(self._folder / f"{name}.log", "-m", "spark_log", *command, "--cluster", self.address)
        return self._stack.enter_context(process)

    def gateway(self, version, port):
        return self.start(version, f"gateway-{port}", "gateway", "--listen", f"127.0.0.1:{port}")

    def producer(self, version, name):
        program = ("-m", "tests.support.child_programs", "numbered_producer")
        process = version.start(self._folder / f"{name}.log", *program, self.address, "t", name)
        return SteadyProducer(self._stack.enter_context(process), name)

    def group_reader(self, version, name):
        process = version.start(self._folder / f"{name}.log", "-c", READ_IN_GROUP, self.address)
        return GroupReader(self._stack.enter_context(process))

    def run(self, version, name, *arguments):
        return version.run(self._folder / f"{name}.log", *arguments)


class SteadyProducer:
    """A Producer of a version. `acknowledged` reads the output of its process."""

    def __init__(self, process, name):
        self._process, self.name = process, name

    @property
    def acknowledged(self):
        found = Acknowledgements()
        for line in self._process.output.splitlines():
            kind, number, *rest = line.split(" ", 3)
            if kind == "acked":
                found.add(int(number), *map(int, rest))
            elif kind == "failed":
                found.failed.append(line)
        return found

    def wait_for_more(self):
        count = len(self.acknowledged.places) + MORE
        wait_until(lambda: len(self.acknowledged.places) >= count, "acknowledgements")

    def finish(self):
        self._process.end_input()
        assert self._process.wait() == 0


def end_sessions(address):
    """As if the time of the sessions of the group's members was over: one whose version is refused cannot leave it."""
    engine = sa.create_engine(address)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE group_member SET until_ms = 0")
    engine.dispose()


CASES = [
    pytest.param(("previous", "sqlite"), id="previous-sqlite", marks=pytest.mark.long),
    pytest.param(("earlier", "postgres"), id="earlier-postgres", marks=pytest.mark.long),
    pytest.param(("next", "postgres"), id="next-postgres"),
    pytest.param(("next-additive", "sqlite"), id="next-additive-sqlite"),
]


@pytest.fixture(params=CASES)
def case(request, tmp_path):
    """An older and a newer version, and the address of the cluster."""
    name, store = request.param
    if name.startswith("next"):
        older, newer = this_version(), next_version(tmp_path, additive=name == "next-additive")
    else:
        older, newer = {"previous": previous_version, "earlier": earlier_version}[name](tmp_path), this_version()
        if older is None:
            pytest.skip("the checkout has no history: git archive cannot get the older version")
    if store == "sqlite":
        return older, newer, str(tmp_path / "cluster")
    return older, newer, request.getfixturevalue("postgres_server").create_database()


@pytest.mark.slow
def test_versions_side_by_side(case, tmp_path):
    older, newer, address = case
    goes_on = older.revision >= newer.oldest
    if not goes_on and older.revision < 8:
        pytest.skip(f"a process of revision v{older.revision} is not refused, and must be stopped before the upgrade")
    with ExitStack() as stack:
        cluster = Cluster(stack, tmp_path, address)
        cluster.run(older, "create", "-c", CREATE, address, str(tmp_path / "log-dir"))
        ports = free_port(), free_port()
        old_gateway = cluster.gateway(older, ports[0])
        old_coordinator = cluster.start(older, "coordinator", "coordinator")
        old_producer = cluster.producer(older, "old")
        old_gateway.wait_for("listens on")
        old_coordinator.wait_for("is running")
        kafka = KafkaProducer(",".join(f"127.0.0.1:{port}" for port in ports), "kafka")
        stack.callback(kafka.finish)
        old_producer.wait_for_more()
        kafka.acknowledged.wait_for_more(MORE)
        old_reader = cluster.group_reader(older, "old-reader")
        old_reader.wait_for_more()

        new_gateway = cluster.gateway(newer, ports[1])  # upgrades the store
        new_gateway.wait_for("listens on")
        new_producer = cluster.producer(newer, "new")
        if goes_on:
            old_producer.wait_for_more()
            assert old_gateway.running and old_coordinator.running
            new_coordinator = cluster.start(newer, "new-coordinator", "coordinator")
            assert old_gateway.end() == old_coordinator.end() == 0
            new_coordinator.wait_for("is running")
            old_reader.wait_for_more()
        else:
            for process in (old_gateway, old_coordinator):
                assert process.wait() == 1
                assert "install the newer spark-log here" in process.output.splitlines()[-1]
            wait_until(lambda: old_producer.acknowledged.failed, "an error of the old producer")
            assert "UnsupportedVersionError" in old_producer.acknowledged.failed[0]
            assert old_reader.process.wait() == 1
            assert "install the newer spark-log here" in old_reader.process.output
            end_sessions(address)
        new_reader = cluster.group_reader(newer, "new-reader")
        new_reader.wait_for_more()
        new_producer.wait_for_more()
        kafka.acknowledged.wait_for_more(MORE)
        assert new_gateway.running
        for each in (old_producer, new_producer, kafka):
            each.finish()
        print("longest gap of the Kafka client:", kafka.acknowledged.gap_s(), "s")
        assert not kafka.acknowledged.failed and not new_producer.acknowledged.failed
        stored = {}
        for line in cluster.run(newer, "read", "-c", READ_ALL, address).splitlines():
            record, *place = json.loads(line)
            assert stored.setdefault(record, tuple(place)) == tuple(place), f"{record} is there twice"
        for client in (old_producer, new_producer, kafka):
            for number, place in client.acknowledged.places.items():
                assert stored[f"{client.name}-{number}"] == place
        wait_until(lambda: old_reader.places | new_reader.places >= {*stored.values()}, "the group's rest")


STREAM = """
import sys
from pyspark.sql import SparkSession
address, checkpoint, *once = sys.argv[1:]
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
source = spark.readStream.format("spark_log").option("cluster", address).option("subscribe", "t")
rows = source.option("startingOffsets", "earliest").option("maxRecordsPerTrigger", 40).load().select("key", "value")
sink = rows.writeStream.format("spark_log").option("cluster", address).option("topic", "copy")
sink = sink.option("checkpointLocation", checkpoint)
query = (sink.trigger(availableNow=True) if once else sink.trigger(processingTime="0 seconds")).start()
while not once and len(spark.read.format("spark_log").option("cluster", address).option("subscribe", "copy")
                       .load().take(1)) == 0:
    pass
print("has copied", flush=True)
query.awaitTermination()
"""


@pytest.mark.long
def test_a_stream_goes_on_with_a_newer_version(tmp_path):
    """A query of the previous version is killed; this version continues from its checkpoint."""
    older, newer, address = previous_version(tmp_path), this_version(), str(tmp_path / "cluster")
    if older is None:
        pytest.skip("the checkout has no history: git archive cannot get the older version")
    with ExitStack() as stack:
        cluster = Cluster(stack, tmp_path, address)
        cluster.run(older, "create", "-c", CREATE, address, str(tmp_path / "log-dir"))
        producer = cluster.producer(older, "old")
        producer.wait_for_more()
        stream = ("-c", STREAM, address, str(tmp_path / "checkpoint"))
        query = stack.enter_context(older.start(tmp_path / "stream.log", *stream))
        query.wait_for("has copied")
        query.kill()
        producer.wait_for_more()
        producer.finish()
        cluster.run(newer, "stream-2", *stream, "once")
        read, copied = (
            sorted(json.loads(line)[0] for line in cluster.run(newer, name, "-c", program, address).splitlines())
            for name, program in (("read", READ_ALL), ("read-copy", READ_ALL.replace('"t"', '"copy"')))
        )
        assert copied == read, "each record once"
        assert {f"old-{number}" for number in producer.acknowledged.places} <= set(read)
