"""All maintenance at once, killed at each of its named points, beside a producer and every kind of reader.

A process repeats maintenance and is killed at one point after the other, while a producer appends, and a consumer
group, two streaming queries and a Delta stream read. None of them fails, and each reads the expected records: every
record once and in order, the last value of every key, and the unexpired records of the topic with retention.
"""

import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery

from spark_log import Consumer
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.topics import Topic
from spark_log.failpoints import POINTS
from spark_log.maintenance import run_tasks
from spark_log.maintenance.client_log import ClientLog
from spark_log.replication.controller.topic_operations import alter_configs, create_topic
from spark_log.tables.publication import delta_tables
from tests.support.child_programs import keyed_value
from tests.support.children import Child
from tests.support.records import ranges_of
from tests.support.table_checks import assert_delta_is_the_log
from tests.support.waiting import Worker, wait_until

KEYS = 40
MAINTENANCE_POINTS = [name for name in POINTS if name.partition(".")[0] in {"seal", "merge", "compact", "retention"}]
SMALL = {
    "inline.tail.bytes": "1500",
    "segment.bytes": "60000",
    "compression.type": "none",
    "min.cleanable.dirty.ratio": "0.001",
    "delete.retention.ms": "100",
}
CONFIGS = {
    "events": {"retention.ms": "-1"},
    "latest": {"cleanup.policy": "compact", "retention.ms": "-1"},
    "short": {"retention.bytes": "6000"},
}
PROGRAMS = "tests.support.child_programs"
Seen = list[tuple[int, int, int]]
"""(partition, offset, number), in the order in which a reader saw them."""


class GroupReader(Worker):
    """A consumer in a group that keeps all records it reads."""

    def __init__(self, address: str, topic: str, group: str) -> None:
        self.seen: Seen = []
        self._arguments = (address, topic, group)
        super().__init__(self._read)

    def _read(self, stop: threading.Event) -> None:
        address, topic, group = self._arguments
        with Consumer(
            topic, cluster=address, group_id=group, auto_offset_reset="earliest", session_timeout_ms=60_000
        ) as consumer:
            while not stop.is_set():
                for partition, records in consumer.poll(100).items():
                    self.seen += [(partition.partition, r.offset, number_of(r.value)) for r in records]


class StreamReader:
    """A streaming query that keeps the records of its batches."""

    def __init__(self, frame: DataFrame, checkpoint: Path) -> None:
        self.seen: Seen = []
        rows = frame.select("partition", "offset", F.substring_index(F.col("value").cast("string"), ".", 1).alias("n"))

        def take(batch: DataFrame, _number: int) -> None:
            self.seen += [(p, o, -1 if n is None else int(n)) for p, o, n in batch.collect()]

        writer = rows.writeStream.foreachBatch(take).option("checkpointLocation", str(checkpoint))
        writer = writer.trigger(processingTime="1 second")  # at full speed it would take the CPU time of the others
        self.query: StreamingQuery = writer.start()

    def end(self) -> None:
        """Stop the query after it has read all available records."""
        self.query.processAllAvailable()
        self.query.stop()
        if (error := self.query.exception()) is not None:
            raise error


def number_of(value: bytes | None) -> int:
    return -1 if value is None else int(value.partition(b".")[0])


def log_of(log: ClientLog, topic: Topic) -> Seen:
    rows: Seen = []
    for batch in log.read(ranges_of(log, topic)):
        columns = (batch.column(name).to_pylist() for name in ("partition", "offset", "value"))
        rows += [(partition, offset, number_of(value)) for partition, offset, value in zip(*columns, strict=True)]
    return rows


@pytest.fixture
def address(tmp_path: Path) -> str:
    """The address of the fixture `cluster`."""
    return str(tmp_path / "cluster")


@pytest.fixture
def topics(cluster: Cluster) -> dict[str, Topic]:
    made = {name: create_topic(cluster, name, 2, 1, {**SMALL, **configs}) for name, configs in CONFIGS.items()}
    return {name: topic for name, topic in made.items() if topic is not None}


@pytest.fixture
def producer(cluster: Cluster, address: str, topics: dict[str, Topic]) -> Iterator[Child]:
    process = Child(PROGRAMS, "keyed_producer", address, KEYS, *topics)
    yield process
    process.kill()


def acked(producer: Child, topic: str) -> Seen:
    return [(int(p), int(o), int(n)) for name, p, o, n in producer.said("acked") if name == topic]


def last_per_key(records: Seen) -> dict[int, tuple[int, int]]:
    """Key -> (offset, number) of its last record. A key is in one partition, so offsets order it."""
    last: dict[int, tuple[int, int]] = {}
    for _, offset, number in sorted(records):
        key = number % KEYS
        last[key] = max(last.get(key, (-1, -1)), (offset, number))
    return last


def in_order(seen: Seen) -> bool:
    """Offsets strictly increase in each partition: no record is repeated or reordered."""
    last: dict[int, int] = {}
    for partition, offset, _ in seen:
        if offset <= last.get(partition, -1):
            return False
        last[partition] = offset
    return True


@pytest.mark.slow
@pytest.mark.delta_jars
def test_producers_and_readers_are_unaffected_by_killed_maintenance(
    spark: SparkSession,
    cluster: Cluster,
    address: str,
    log: ClientLog,
    topics: dict[str, Topic],
    producer: Child,
    tmp_path: Path,
) -> None:
    wait_until(lambda: delta_files(cluster, topics["events"]) > 3, "files in the Delta table", 0.05)
    groups = [GroupReader(address, "events", "g") for _ in range(2)]
    tails = {name: GroupReader(address, name, f"tail-{name}") for name in ("latest", "short")}
    ours = spark.readStream.format("spark_log").option("cluster", address).option("startingOffsets", "earliest")
    streams = {name: StreamReader(ours.load(subscribe=name), tmp_path / name) for name in ("events", "latest")}
    [table] = delta_tables(cluster, topics["events"]).values()
    delta = spark.readStream.format("delta").load(table)
    delta = delta.withColumn("offset", F.col("base_offset") + F.col("offset_delta"))
    streams["delta"] = StreamReader(delta, tmp_path / "delta")

    for point in MAINTENANCE_POINTS:
        process = Child(PROGRAMS, "maintenance", address, failpoint=point)
        assert process.wait() == -signal.SIGKILL, f"{point}: {process.lines[-3:]}"
    process = Child(PROGRAMS, "maintenance", address)
    process.waits_for(lambda process: process.count("round") >= 3)
    process.end()

    producer.end()
    for name in topics:  # with the records in the tails
        alter_configs(cluster, name, {"segment.ms": "1"})
    for _ in range(2):
        list(run_tasks(cluster))
    now = {name: log_of(log, topic) for name, topic in topics.items()}
    sent = {name: acked(producer, name) for name in topics}

    assert sorted(now["events"]) == sorted(sent["events"]), "every record at the offset that was acknowledged"
    wait_until(lambda: sum(len(each.seen) for each in groups) >= len(sent["events"]), "the group", 0.05)
    for name, reader in tails.items():
        wait_until(lambda name=name, reader=reader: caught_up(reader.seen, now[name]), f"the end of {name}", 0.05)
    for reader in (*groups, *tails.values()):
        reader.finish()
    for stream in streams.values():
        stream.end()
    assert sorted(groups[0].seen + groups[1].seen) == sorted(sent["events"])
    assert sorted(streams["events"].seen) == sorted(sent["events"])
    assert in_order(streams["events"].seen)
    assert sorted(streams["delta"].seen) == sorted(sent["events"])

    with_tombstones = [(p, o, -1 if keyed_value("latest", n) is None else n) for p, o, n in sent["latest"]]
    assert set(now["latest"]) <= set(with_tombstones)
    last = last_per_key(sent["latest"])
    alive = {offset: number for offset, number in last.values() if keyed_value("latest", number) is not None}
    kept = {(offset, number) for _, offset, number in now["latest"] if number >= 0}
    assert kept == set(alive.items()), "the last value of every key at its offset, and no other"
    for seen in (streams["latest"].seen, tails["latest"].seen):
        assert in_order(seen)
        assert set(seen) <= set(with_tombstones)
        assert {(o, n) for _, o, n in seen} >= kept, "a reader that followed has seen the last values"

    assert in_order(tails["short"].seen)
    assert set(tails["short"].seen) <= set(sent["short"])
    first = {partition: min(o for p, o, _ in now["short"] if p == partition) for partition in (0, 1)}
    assert [each for each in sorted(sent["short"]) if each[1] >= first[each[0]]] == sorted(now["short"])
    assert len(now["short"]) < len(sent["short"]), "something has expired"
    assert_delta_is_the_log(cluster)


def caught_up(seen: Seen, now: Seen) -> bool:
    ends = {partition: offset for partition, offset, _ in now}
    return all(any(p == partition and o >= end for p, o, _ in reversed(seen)) for partition, end in ends.items())


def delta_files(cluster: Cluster, topic: Topic) -> int:
    tables = list(delta_tables(cluster, topic).values())
    return sum(len(list(Path(each, "_delta_log").glob("*.json"))) for each in tables if Path(each).exists())
