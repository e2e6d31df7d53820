"""Clusters of several embedded brokers, the state and invariants of their replicas, and unclean elections."""

import contextlib
import json
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.parse import unquote, urlsplit
from uuid import uuid4

import kafka
import sqlalchemy as sa
from deltalake import DeltaTable

from spark_log import Consumer
from spark_log.cluster.brokers import BrokerSession, add_broker
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.each_store import in_each_store
from spark_log.cluster.lease import unfenced
from spark_log.cluster.log_dir import LogDir
from spark_log.cluster.topics import Topic, find_topic
from spark_log.config.values import LEASE_MS_MAX
from spark_log.facts.topics import PartitionInfo, describe_topics
from spark_log.log.append.rules import Acks, Appended
from spark_log.log.log import Records
from spark_log.log.partitions.partition_rows import lock_partitions, save_partitions
from spark_log.log.partitions.replication_rules import Replica, fail_over, lose_files
from spark_log.log.records.schema import read_schema
from spark_log.log.segments.segment_copy import Pace, SegmentFile, copy_segment
from spark_log.maintenance.client_log import ClientLog
from spark_log.metadata import tables as t
from spark_log.metadata.sql_columns import SEGMENT
from spark_log.replication.controller import topic_copies
from spark_log.replication.controller.controller import elect_leaders, truncate_log
from spark_log.replication.controller.log_dir_inspection import inspect_log_dirs
from spark_log.replication.controller.topic_operations import create_topic, insert_topic
from spark_log.replication.replicas import catch_up
from spark_log.replication.replicas.catch_up import ReplicaCopy
from spark_log.tables.publication import publish
from tests.support.disk_faults import StoredFile, replicas_of
from tests.support.records import NOON_MS, ranges_of, table
from tests.support.stores import change, topics_view
from tests.support.table_checks import assert_delta_is_the_log, assert_replicas_are_whole
from tests.support.topics import append


def add_brokers(cluster: Cluster, folder: Path, *broker_ids: int, racks: dict[int, str] | None = None) -> None:
    """Add embedded brokers, each with one log dir `folder/broker-N`."""
    for broker_id in broker_ids:
        add_broker(cluster, broker_id, [str(folder / f"broker-{broker_id}")], (racks or {}).get(broker_id))


def topic_on(cluster: Cluster, name: str, assignments: Sequence[Sequence[int]], **configs: str) -> Topic:
    """A topic whose partition N has its replicas at `assignments[N]`. Configs have `_` for `.` in their names."""
    first = {info.broker_id: info.log_dir_id for info in reversed(cluster.log_dirs().values())}
    placement = [[(broker_id, first[broker_id]) for broker_id in replicas] for replicas in assignments]  # type: ignore[index]
    named = {key.replace("_", "."): value for key, value in configs.items()}
    if topics_view(cluster) is not cluster:
        with patch.object(topic_copies, "place_replicas", lambda *_: placement):
            return create_topic(cluster, name, len(assignments), len(assignments[0]), named)
    return cluster.store.transact(
        lambda connection: insert_topic(
            connection, name, placement, len(assignments[0]), named, cluster.store.clock(connection)
        )
    )


def assigned(cluster: Cluster, name: str) -> list[list[int]]:
    """AR of each partition."""
    [described] = describe_topics(cluster, [name])
    return [[replica.broker_id for replica in partition.replicas] for partition in described.partitions]


def folder_of(cluster: Cluster, broker_id: int) -> Path:
    """The log dir of a broker that has one."""
    [uri] = [info.uri for info in cluster.log_dirs().values() if info.broker_id == broker_id]
    return Path(unquote(urlsplit(uri).path))


def inspect_and_elect(cluster: Cluster) -> None:
    """One round of the controller in each store: it detects unavailable log dirs and elects leaders."""

    def detect(view: Cluster) -> None:
        inspect_log_dirs(view, unfenced)
        elect_leaders(view.store, unfenced)

    in_each_store(cluster, detect)


def take_away(cluster: Cluster, broker_id: int) -> None:
    """Make the broker's log dir unavailable; the controller detects it and elects leaders."""
    folder = folder_of(cluster, broker_id)
    folder.rename(folder.with_name(f"{folder.name}-away"))
    inspect_and_elect(cluster)


def bring_back(cluster: Cluster, broker_id: int) -> None:
    """Restore the broker's log dir with all its files; the controller detects it."""
    folder = folder_of(cluster, broker_id)
    folder.with_name(f"{folder.name}-away").rename(folder)
    in_each_store(cluster, lambda view: inspect_log_dirs(view, unfenced))


@contextlib.contextmanager
def copied_segments() -> Iterator[list[str]]:
    """The paths of the segment files that replicas copy in this process during the block."""
    copied: list[str] = []

    def copy(sources: Iterable[LogDir], target: LogDir, file: SegmentFile, pace: Pace) -> None:
        copy_segment(sources, target, file, pace)
        copied.append(file.path)

    with patch.object(catch_up, "copy_segment", copy):
        yield copied


def truncate(cluster: Cluster, topic: str, to: int, partition: int = 0) -> None:
    """An unclean election: every log dir returns with only the records below `to`, which is a segment boundary."""
    store = topics_view(cluster).store

    def elect(connection: sa.Connection) -> None:
        found = find_topic(connection, topic)
        here = (
            (SEGMENT.topic_id == found.topic_id)
            & (SEGMENT.partition == partition)
            & (SEGMENT.base_offset < to)
            & (SEGMENT.end_offset > to)
        )
        assert connection.execute(sa.select(SEGMENT.base_offset).where(here)).first() is None, (
            f"{to}: inside of a segment"
        )
        key = (found.topic_id, partition)
        before = lock_partitions(connection, [key])
        state = before[key]
        for replica in state.replicas:
            state = lose_files(state, replica.broker_id, to)
        after, truncation = fail_over(state, {replica.log_dir_id for replica in state.replicas}, unclean=True)
        assert truncation is not None, "nothing was removed"
        now = store.clock(connection)
        after = truncate_log(connection, found, partition, truncation, state, after, now)
        save_partitions(connection, before, {key: after})

    store.transact(elect)


CONFIGS = {"inline.max.bytes": "1500", "delta.max.lag.ms": "-1"}
"""Values of `large` are written to files, short values into the tail, which only the tests seal."""


class Replicated:
    """A topic with replicas on brokers 1, 2 and 3; broker 1 leads every partition.

    Brokers 2 and 3 are served brokers without a process: they catch up when the test calls `catch_up`.
    """

    def __init__(self, cluster: Cluster, log: ClientLog, folder: Path, partitions: int = 1) -> None:
        add_brokers(cluster, folder, 2, 3)
        for broker in (2, 3):
            BrokerSession(cluster.store, broker, LEASE_MS_MAX).register()
        self.cluster, self.log, self.folder = cluster, log, folder
        self.topic = create_topic(cluster, "t", partitions, 3, CONFIGS)
        self.sql(t.partition.update().values(leader=1))
        self.sql(t.replica.update().where(t.replica.c.broker_id == 1).values(preference=-1))
        self.values: list[str] = []
        self.segments_copied = 0  # by the last call of `catch_up`

    def sql(self, *statements: sa.Executable) -> None:
        self.cluster.store.transact(lambda connection: [connection.execute(each) for each in statements])

    def append(self, *values: str, acks: Acks = 1, partition: int = 0) -> None:
        append(self.log, self.topic, *values, partition=partition, acks=acks)
        self.values += values

    def leave(self, *brokers: int) -> None:
        """Take the brokers out of the ISR, as after a long lag."""
        gone = t.replica.c.broker_id.in_(brokers)
        self.sql(
            t.replica.update().where(gone).values(in_sync=False),
            t.partition.update().values(partition_epoch=t.partition.c.partition_epoch + 1),
        )

    def catch_up(self, broker: int, partition: int = 0) -> Replica:
        with copied_segments() as copied:
            replica = catch_up.catch_up(self.cluster, self.topic, partition, broker)
        self.segments_copied = len(copied)
        return replica

    def copying(self, broker: int, **options: Any) -> ReplicaCopy:
        return ReplicaCopy(self.cluster, self.topic, 0, broker, **options)

    def partition(self, number: int = 0) -> PartitionInfo:
        [described] = describe_topics(self.cluster, ["t"])
        return described.partitions[number]

    def ends(self, number: int = 0) -> dict[int, int]:
        return {replica.broker_id: replica.log_end_offset for replica in self.partition(number).replicas}

    def isr(self) -> list[int]:
        return sorted(self.partition().isr)

    def files(self, broker: int) -> list[Path]:
        """Paths of the topic's files in the log dir of a broker, by offset; they need not exist."""
        [info] = [info for info in self.cluster.log_dirs().values() if info.broker_id == broker]
        query = sa.select(SEGMENT.name).where(~SEGMENT.inline).order_by(SEGMENT.base_offset)
        names = self.cluster.store.read(lambda connection: connection.execute(query).scalars().all())
        folder = Path(info.uri.removeprefix("file://"), self.topic.folder, "_segments", "0")
        return [folder / name for name in names]

    def embed(self) -> None:
        self.sql(t.broker.update().values(served=False, lease_until_ms=None, lease_clock_epoch=None))

    def is_whole(self) -> None:
        assert_replicas_are_whole(self.cluster)
        assert_delta_is_the_log(self.cluster)
        position = self.log.positions(self.topic)
        for tp, limits in position.items():
            assert limits.high_watermark == min(
                r.log_end_offset for r in self.partition(tp.partition).replicas if r.in_sync
            )


class ReplicatedTables:
    """A topic of files only on brokers 1 (the leader), 2 and 3; 2 and 3 catch up when the test calls `catch_up`."""

    def __init__(self, cluster: Cluster, log: ClientLog, folder: Path, partitions: int = 1, **configs: str) -> None:
        add_brokers(cluster, folder, 2, 3)
        for broker in (2, 3):
            BrokerSession(cluster.store, broker, LEASE_MS_MAX).register()
        self.cluster, self.log, self.folder = cluster, log, folder
        self.topic = create_topic(cluster, "t", partitions, 3, configs or {"inline.max.bytes": "0"})
        self.sql(t.partition.update().values(leader=1))

    def sql(self, *statements: sa.Executable) -> None:
        self.cluster.store.transact(lambda connection: [connection.execute(each) for each in statements])

    def append(self, *values: str, acks: Acks = "all", partition: int = 0) -> None:
        append(self.log, self.topic, *values, partition=partition, acks=acks)

    def leave(self, *brokers: int) -> None:
        gone = t.replica.c.broker_id.in_(brokers)
        epoch = t.partition.c.partition_epoch + 1
        self.sql(
            t.replica.update().where(gone).values(in_sync=False), t.partition.update().values(partition_epoch=epoch)
        )

    def fall(self, broker: int, end: int) -> None:
        """The replica's LEO is lowered, as when files of it are missing."""
        here = (t.replica.c.broker_id == broker) & (t.replica.c.log_end_offset > end)
        self.sql(
            t.replica.update().where(here).values(log_end_offset=end, in_sync=False),
            t.partition.update().values(
                change=t.partition.c.change + 1, partition_epoch=t.partition.c.partition_epoch + 1
            ),
        )

    def catch_up(self, broker: int, partition: int = 0) -> Replica:
        return catch_up.catch_up(self.cluster, self.topic, partition, broker)

    def publish(self) -> None:
        publish(self.cluster, self.topic)

    def location(self, broker: int) -> Path:
        [info] = [info for info in self.cluster.log_dirs().values() if info.broker_id == broker]
        return Path(info.uri.removeprefix("file://"), self.topic.folder)

    def delta(self, broker: int) -> DeltaTable:
        return DeltaTable(str(self.location(broker)))

    def records(self, broker: int) -> list[tuple[int, int, str]]:
        rows = self.delta(broker).to_pyarrow_table().to_pylist()
        return sorted((r["partition"], r["base_offset"] + r["offset_delta"], r["value"].decode()) for r in rows)

    def values(self, broker: int) -> str:
        return "".join(value for _, _, value in self.records(broker))

    def changes(self, broker: int, since: int = 0) -> list[tuple[int, bool]]:
        """(base offset, dataChange) of each file that was added from a version of the table on."""
        found = []
        for version in range(since, self.delta(broker).version() + 1):
            commit = self.location(broker) / "_delta_log" / f"{version:020d}.json"
            actions = [json.loads(line) for line in commit.read_text().splitlines()]
            assert not any(action["remove"]["dataChange"] for action in actions if "remove" in action)
            adds = [action["add"] for action in actions if "add" in action]
            found += [(int(add["partitionValues"]["base_offset"]), add["dataChange"]) for add in adds]
        return found

    def is_the_log(self, twice: Collection[int] = ()) -> None:
        assert_delta_is_the_log(self.cluster, twice)
        assert_replicas_are_whole(self.cluster)


SEGMENTS, RECORDS = 3, 100
RACKS = {2: "near", 3: "far"}
ROWS = read_schema(columns=["partition", "offset", "value"])


class ThreeReplicas:
    """Topic t: one partition, complete in the log dirs of brokers 1, 2 (rack near) and 3 (rack far)."""

    def __init__(self, address: str, uris: dict[int, str]) -> None:
        self.address = address
        self.uris = uris
        self.cluster = Cluster.init(address, log_dir=uris[1])
        for broker_id in (2, 3):
            add_broker(self.cluster, broker_id, [uris[broker_id]], RACKS[broker_id])
        self.log = ClientLog(self.cluster)
        self.topic = create_topic(self.cluster, "t", 1, 3, configs={"inline.max.bytes": "0"})
        self.expected: list[tuple[int, int, str]] = []
        for segment in range(SEGMENTS):
            numbers = range(segment * RECORDS, (segment + 1) * RECORDS)
            values = [f"{number}-{uuid4().hex}" for number in numbers]
            (outcome,) = self.log.append(self.topic, [Records(0, table(*values, timestamp_ms=NOON_MS + segment))])
            assert isinstance(outcome, Appended), outcome
            self.expected += [(0, number, value) for number, value in zip(numbers, values, strict=True)]

    def close(self) -> None:
        self.log.close()
        self.cluster.close()

    def replicas(self, rack: str | None = None) -> list[list[StoredFile]]:
        """The files of each segment, in reading order."""
        return replicas_of(self.cluster, self.log, self.topic, rack)

    def files(self, *broker_ids: int) -> list[StoredFile]:
        return [file for files in self.replicas() for file in files if file.broker_id in broker_ids]

    def put_last(self, broker_id: int) -> None:
        """Readers try this replica after the others: the metadata list it as out of sync."""
        change(self.cluster, t.replica.update().where(t.replica.c.broker_id == broker_id).values(in_sync=False))

    def assert_whole(self) -> None:
        for files in self.replicas():
            assert len(files) == 3 and files[0].read() is not None
            assert all(file.read() == files[0].read() for file in files)

    def read(self, rack: str | None = None) -> list[tuple[int, int, str]]:
        batches = self.log.read(ranges_of(self.log, self.topic), ROWS, rack)
        return [(r["partition"], r["offset"], r["value"].decode()) for batch in batches for r in batch.to_pylist()]

    def consume(self, rack: str = "") -> list[tuple[int, int, str]]:
        consumer = Consumer(cluster=self.address, auto_offset_reset="earliest", client_rack=rack)
        consumer.assign([kafka.TopicPartition("t", 0)])
        rows: list[tuple[int, int, str]] = []
        deadline = time.monotonic() + 60
        while len(rows) < len(self.expected):
            assert time.monotonic() < deadline, rows
            for records in consumer.poll(1_000).values():
                rows += [(record.partition, record.offset, record.value.decode()) for record in records]
        consumer.close()
        return rows
