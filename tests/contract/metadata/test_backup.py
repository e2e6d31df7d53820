"""A drill: write, back up while a producer writes, write on, lose everything, restore elsewhere, verify, and go on.

Nothing that was acknowledged before the backup is lost, and readers that have read more are told what is gone.
"""

import json
import shutil
import sqlite3
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest
import sqlalchemy as sa
from kafka.structs import OffsetAndMetadata, TopicPartition
from typer.testing import CliRunner

from spark_log import Consumer, Producer
from spark_log.cli.main import app
from spark_log.cluster.brokers import add_broker
from spark_log.cluster.cluster import Cluster
from spark_log.errors import DataLossError, LogTruncationError, UnknownTopicOrPartitionError
from spark_log.facts.topics import describe_topics
from spark_log.maintenance import run_tasks
from spark_log.maintenance.client_log import ClientLog
from spark_log.maintenance.coordinator.coordinator import Coordinator
from spark_log.metadata.sql_columns import PRODUCER
from spark_log.tables.publication import publish
from tests.support.data_source import StreamQuery
from tests.support.postgres import PostgresServer
from tests.support.records import LARGE, read_all
from tests.support.replicas import topic_on
from tests.support.topics import find, make
from tests.support.waiting import LIMIT_S, Worker, wait_until

pytestmark = pytest.mark.delta


CONFIGS = {
    "inline_max_bytes": "2000",
    "delta_max_lag_ms": "-1",
    "cleanup_policy": "compact",
    "min_cleanable_dirty_ratio": "0",
    "retention_ms": "-1",
    "table_formats": "delta,iceberg",
    "table_current": "delta",
}
"""Small batches stay inline, LARGE ones are files; tables are published on request."""


class SqliteBackup:
    """A backup by SQLite's online backup."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.address = str(folder / "cluster")
        self.log_dir = folder / "cluster" / "broker-1"
        self.restored_log_dir = folder / "restored" / "broker-1"

    def begin(self) -> None:
        """There is nothing to do before the backup."""

    def back_up(self) -> None:
        source, copy = f"file:{self.address}/metadata.sqlite?mode=ro", self._folder / "metadata.sqlite"
        with closing(sqlite3.connect(source, uri=True)) as live, closing(sqlite3.connect(copy)) as target:
            live.backup(target)

    def lose(self) -> None:
        shutil.rmtree(self.address)

    def restore(self) -> str:
        """Restore the store, not the log dirs, into another folder, and return its address."""
        restored = self._folder / "restored"
        shutil.copy(self._folder / "metadata.sqlite", restored / "metadata.sqlite")
        return str(restored)

    def remove(self) -> None:
        """The test's folder is removed by pytest."""


class PostgresBackup:
    """A base backup and the archived write-ahead log, restored on another server to a point in time."""

    def __init__(self, folder: Path) -> None:
        self.log_dir = folder / "log-dir"
        self.restored_log_dir = folder / "restored-log-dir"
        self._server = PostgresServer()
        self._server.start(**self._server.archive_settings())
        self.address = self._server.create_prepared_database()
        self._restored: PostgresServer | None = None

    def begin(self) -> None:
        self._base = self._server.base_backup()

    def back_up(self) -> None:
        self._until = self._server.archive_until_now()

    def lose(self) -> None:
        self._server.lose()

    def restore(self) -> str:
        self._restored = PostgresServer(base_backup=self._base)
        self._restored.recover(self._server.archive, self._until)
        return self._restored.url(self.address.rpartition("/")[2])

    def remove(self) -> None:
        for server in (self._server, self._restored):
            if server is not None:
                server.kill()
                server.remove()


@pytest.fixture(params=["sqlite", "postgres"])
def backup(request, tmp_path):
    backup = (SqliteBackup if request.param == "sqlite" else PostgresBackup)(tmp_path)
    yield backup
    backup.remove()


def send(producer, topic, acked, *values):
    """Send records, and add (partition, offset) -> value of those that are acknowledged."""
    futures = {value: producer.send(topic, value.encode(), value[:12].encode()) for value in values}
    producer.flush()
    for value, future in futures.items():
        done = future.get(LIMIT_S)
        acked[done.partition, done.offset] = value


class LiveWriter(Worker):
    """A producer that writes in a thread until `finish`."""

    def __init__(self, address, acked):
        self._address, self._acked = address, acked
        super().__init__(self._write)

    def _write(self, stop):
        with Producer(cluster=self._address) as producer:
            number = 0
            while not stop.is_set():
                send(producer, "t", self._acked, f"live-{number}", f"live-{number}-{LARGE if number % 5 == 0 else ''}")
                number += 1


def copy_live(source, target):
    """Copy a log dir in which files are written meanwhile, as `cp -r` does: temporary files may vanish."""
    try:
        shutil.copytree(source, target)
    except shutil.Error as error:
        assert all("No such file" in reason for _, _, reason in error.args[0]), error


def consume(address, group):
    """Read to the end of the log as a member of the group, commit, and return the records."""
    with Consumer("t", cluster=address, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False) as one:
        records = []
        while not one.assignment() or any(
            one.position(p) < end for p, end in one.end_offsets(one.assignment()).items()
        ):
            records += [record for some in one.poll(timeout_ms=200).values() for record in some]
        one.commit()
        return records


def run(address, *arguments):
    return CliRunner().invoke(app, [*arguments, "--cluster", address])


def command(address, *arguments, code=0):
    """The JSON that a command prints."""
    done = run(address, *arguments, "--json")
    assert done.exit_code == code, done.output
    return json.loads(done.stdout)


def verify(address):
    files = command(address, "store", "verify-files", "--checksums")
    assert sum(each["files"] for each in files) > 0
    tables = command(address, "table", "verify", "t")
    assert sorted(table["target"] for table in tables) == ["current", "delta", "iceberg"]


def values_of(address):
    with Cluster.open(address) as cluster, closing(ClientLog(cluster)) as log:
        return {(partition, offset): value for partition, offset, value in read_all(log, find(cluster, "t"))}


def producer_id(address):
    """The largest producer id that was ever assigned, after the registration of another producer."""
    with Producer(cluster=address) as producer:
        producer.send("t", b"registered", b"registered").get(LIMIT_S)
    with Cluster.open(address) as cluster:
        return cluster.store.read(lambda c: c.execute(sa.select(sa.func.max(PRODUCER.producer_id))).scalar_one())


@pytest.mark.slow
def test_drill(backup, tmp_path):
    log_dir = None if isinstance(backup, SqliteBackup) else str(backup.log_dir)
    acked = {}
    with Cluster.init(backup.address, log_dir=log_dir) as cluster:
        topic = make(cluster, "t", 2, **CONFIGS)
        with Producer(cluster=backup.address) as producer:
            send(producer, "t", acked, *(f"before-{n}" for n in range(20)), *(f"{n}-{LARGE}" for n in range(4)))
        publish(cluster, topic)
        consume(backup.address, "g")
        backup.begin()
        transactional = Producer(cluster=backup.address, transactional_id="x")
        transactional.init_transactions()
        transactional.begin_transaction()
        transactional.send("t", b"committed", b"committed")
        transactional.commit_transaction()
        transactional.begin_transaction()
        transactional.send("t", b"open", b"open")
        transactional.flush()

        live_acked = {}
        writer = LiveWriter(backup.address, live_acked)
        while len(live_acked) < 4:
            writer.check()
        before = acked | dict(live_acked.copy())
        backup.back_up()
        list(run_tasks(cluster, ["seal", "merge", "compact", "delta"], now=True))
        copy_live(backup.log_dir, tmp_path / "files")
        writer.finish()

        with Producer(cluster=backup.address) as producer:
            send(producer, "t", acked, *(f"lost-{n}" for n in range(20)), *(f"lost-{n}-{LARGE}" for n in range(4)))
        transactional.commit_transaction()
        transactional.close()
        publish(cluster, topic)
        lost_topic = make(cluster, "later")
    consume(backup.address, "g")
    position = {}
    for record in consume(backup.address, "reader"):
        at = OffsetAndMetadata(record.offset + 1, "", record.leader_epoch)
        position[TopicPartition("t", record.partition)] = at
    with Cluster.open(backup.address) as cluster:
        query = StreamQuery(cluster)
    query.trigger()
    query.reader.stop()
    last_producer = producer_id(backup.address)
    backup.lose()

    shutil.copytree(tmp_path / "files", backup.restored_log_dir)
    address = backup.restore()
    if log_dir is not None:
        moved = run(address, "broker", "relocate", "--from", log_dir, "--to", str(backup.restored_log_dir))
        assert moved.exit_code == 0, moved.output
        assert "timeline" in command(address, "store", "status", code=1)["problem"]
    restored = values_of(address)
    ends = {number: max(offset for partition, offset in restored if partition == number) + 1 for number in (0, 1)}
    assert set(command(address, "store", "accept", "--yes")) == {"before", "now"}
    truncations = command(address, "partition", "truncations", "--topic", "t")
    assert {each["partition"]: each["start_offset"] for each in truncations} == ends
    assert "store accepted" in run(address, "partition", "truncations").output
    assert before.items() <= restored.items(), "nothing acknowledged before the backup is lost"
    assert "committed" in restored.values() and "open" not in restored.values()
    assert not any(value.startswith("lost") for value in restored.values())
    moved = run(address, "table", "verify", "t", "--target", "iceberg")
    assert moved.exit_code == 1 and "spark-log table rebuild TOPIC --target iceberg" in moved.output
    assert run(address, "table", "rebuild", "t", "--target", "iceberg", "--yes").exit_code == 0
    verify(address)

    with Producer(cluster=address, transactional_id="x") as again:
        again.init_transactions()
    assert producer_id(address) > last_producer, "no lost producer's id is assigned again"
    with Cluster.open(address) as cluster:
        with pytest.raises(UnknownTopicOrPartitionError):
            find(cluster, "later")
        assert make(cluster, "later").topic_id > lost_topic.topic_id
    new = {}
    with Producer(cluster=address) as producer:
        rounds = count()
        while not all((at.partition, each.offset) in new for at, each in position.items()):  # beyond the old positions
            number = next(rounds)
            send(producer, "t", new, *(f"new-{number}-{n}" for n in range(50)), f"new-{number}-{LARGE}")
    assert all(offset >= ends[partition] for partition, offset in new)
    read = {(record.partition, record.offset): record.value.decode() for record in consume(address, "g")}
    assert new.items() <= read.items(), "the group goes on"

    told(address, position, ends, new)
    query.restart(cluster=address)
    with pytest.raises(DataLossError, match="t-0"):
        query.trigger()
    query.restart(failOnDataLoss=False)
    query.trigger()
    query.reader.stop()
    with Cluster.open(address) as cluster:
        list(run_tasks(cluster, now=True))
    verify(address)
    assert new.items() <= values_of(address).items()


def told(address, position, ends, new):
    """A reader whose position is in the lost part of the log is told where it diverges, or continues there."""
    assert all(each.offset > ends[partition.partition] for partition, each in position.items())
    for policy in ("none", "earliest"):
        with Consumer(cluster=address, auto_offset_reset=policy) as consumer:
            consumer.assign(list(position))
            for partition, each in position.items():
                consumer.seek(partition, each)
            if policy == "none":
                with pytest.raises(LogTruncationError) as caught:
                    consumer.poll(timeout_ms=60_000)
                for partition, at in caught.value.divergent_offsets.items():
                    assert at.offset == ends[partition.partition]
                continue
            seen = {}
            while not new.items() <= seen.items():
                for records in consumer.poll(timeout_ms=60_000).values():
                    seen |= {(record.partition, record.offset): record.value.decode() for record in records}
            assert min(offset - ends[partition] for partition, offset in seen) == 0


def test_one_log_dir_of_each_partition_is_enough(tmp_path):
    """An empty folder stands for the other one. Clients go on at once, and a coordinator copies the replicas to it."""
    backup, second = SqliteBackup(tmp_path), tmp_path / "second"
    acked, new = {}, {}
    with Cluster.init(backup.address) as cluster:
        add_broker(cluster, 2, [str(second)])
        topic_on(cluster, "t", [[2, 1], [1, 2]], inline_max_bytes="2000", retention_ms="-1")
        with Producer(cluster=backup.address) as producer:
            send(producer, "t", acked, *(f"{n}-{LARGE}" for n in range(8)))
    backup.back_up()
    copy_live(backup.log_dir, tmp_path / "files")
    backup.lose()
    shutil.rmtree(second)
    second.mkdir()
    shutil.copytree(tmp_path / "files", backup.restored_log_dir)
    address = backup.restore()
    command(address, "store", "accept", "--yes")
    assert values_of(address) == acked
    with Producer(cluster=address) as producer:
        send(producer, "t", new, *(f"new-{n}-{LARGE}" for n in range(8)))
    with Cluster.open(address) as cluster, Coordinator(cluster):
        wait_until(lambda: all(len(each.isr) == 2 for each in describe_topics(cluster, ["t"])[0].partitions))
    assert values_of(address) == acked | new
    assert sum(each["files"] for each in command(address, "store", "verify-files", "--checksums")) >= 4


def test_deleted_objects_of_a_versioned_bucket_are_made_current_again(s3_server, tmp_path):
    client, bucket, address = s3_server.client(), "versioned", str(tmp_path / "cluster")
    client.create_bucket(Bucket=bucket)
    client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    log_dir, acked = s3_server.uri("log").replace(s3_server.bucket, bucket), {}
    with Cluster.init(address, log_dir=log_dir) as cluster, Producer(cluster=address) as producer:
        make(cluster, "t", inline_max_bytes="2000", retention_ms="-1")
        send(producer, "t", acked, LARGE, f"again {LARGE}")
    names = [each["Key"] for each in client.list_objects_v2(Bucket=bucket)["Contents"]]
    segments = [name for name in names if name.endswith(".parquet") and "_segments/" in name]
    for name in segments:
        client.delete_object(Bucket=bucket, Key=name)
    [replica] = command(address, "store", "verify-files", code=1)
    assert [bad["problem"] for bad in replica["problems"]] == ["missing"] * len(segments) != []
    for marker in client.list_object_versions(Bucket=bucket)["DeleteMarkers"]:
        client.delete_object(Bucket=bucket, Key=marker["Key"], VersionId=marker["VersionId"])
    [replica] = command(address, "store", "verify-files", "--checksums")
    assert replica["files"] == len(segments) and values_of(address) == acked
