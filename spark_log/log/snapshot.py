"""One state of a whole topic: the Delta tables at the versions that equal the sealed segments, and the tail beside them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from spark_log.cluster.log_dir import LogDir
from spark_log.cluster.topics import Topic, find_topic
from spark_log.errors import StorageUnavailableError
from spark_log.ids import LogDirId, OffsetRange, TopicPartition
from spark_log.log import plan as planner
from spark_log.log.delta import publish, published_version
from spark_log.log.log import Log
from spark_log.log.slices import Slice
from spark_log.metadata import tables as t
from spark_log.records.schema import TimestampType

_ATTEMPTS = 20


@dataclass(frozen=True)
class SealedTable:
    """A Delta table at a version. `partitions`: those to take from it, None for all that it has.

    `append_time`: (partition, first base offset, last base offset) of the runs of segments with LogAppendTime.
    """

    location: str
    delta_version: int
    partitions: frozenset[int] | None
    append_time: Sequence[tuple[int, int, int]]


@dataclass(frozen=True)
class TopicSnapshot:
    """The records of `topic` at one instant: those of the tables from the log start offsets on, and those of the tail."""

    topic: Topic
    tables: Mapping[LogDirId, SealedTable]
    tail: Sequence[Slice]
    log_starts: Mapping[int, int]


def snapshot(log: Log, name: str) -> TopicSnapshot:
    """The topic now. Publishes first what the tables lack; UnknownTopicOrPartitionError without the topic."""
    for _ in range(_ATTEMPTS):
        with log.cluster.store.snapshot() as connection:
            topic = find_topic(connection, name)
            taken = _snapshot(connection, log, topic)
        if taken is not None:
            return taken
        publish(log.cluster, topic)
    raise StorageUnavailableError(f"topic {name}: its Delta tables cannot keep up with its appends; try again")


def _snapshot(connection: sa.Connection, log: Log, topic: Topic) -> TopicSnapshot | None:
    infos = log.cluster.log_dirs()
    tables: dict[LogDirId, SealedTable] = {}
    homes = _homes(connection, topic)
    append_time = _append_time(connection, topic)
    for log_dir_id, partitions in homes.items():
        version = published_version(connection, topic, infos[log_dir_id])
        if version is None:
            return None
        if version == 0:
            continue
        location = LogDir(infos[log_dir_id].uri).location(topic.folder)
        tables[log_dir_id] = SealedTable(
            location,
            version,
            frozenset(partitions) if len(homes) > 1 else None,
            [run for run in append_time if run[0] in partitions],
        )
    positions = planner.positions(connection, [topic])
    ranges = {tp: OffsetRange(start, end) for tp, (start, end) in _tails(connection, topic).items()}
    clipped = {
        tp: OffsetRange(max(start, positions[tp].log_start_offset), min(end, positions[tp].high_watermark))
        for tp, (start, end) in ranges.items()
    }
    slices = planner.plan(connection, {topic.name: topic}, clipped)
    tail = planner.with_inline_data(connection, [piece for piece in slices if piece.data is not None])
    starts = {tp.partition: start for tp, (start, _) in positions.items() if start > 0}
    return TopicSnapshot(topic, tables, tail, starts)


def _homes(connection: sa.Connection, topic: Topic) -> dict[LogDirId, set[int]]:
    """Which partitions to read from which log dir: the leader's, or else the first in-sync replica's."""
    p, r = t.partition.c, t.replica.c
    query = (
        sa.select(r.partition, r.log_dir_id)
        .join(t.partition, (p.topic_id == r.topic_id) & (p.partition == r.partition))
        .where(r.topic_id == topic.topic_id)
        .order_by(r.partition, (r.broker_id == p.leader).desc(), r.in_sync.desc(), r.preference)
    )
    homes: dict[LogDirId, set[int]] = {}
    seen: set[int] = set()
    for partition, log_dir_id in connection.execute(query):
        if partition not in seen:
            seen.add(partition)
            homes.setdefault(LogDirId(log_dir_id), set()).add(partition)
    return homes


def _tails(connection: sa.Connection, topic: Topic) -> dict[TopicPartition, OffsetRange]:
    """Per partition, the range from its first inline segment to the end of its last one."""
    s = t.segment.c
    query = (
        sa.select(s.partition, sa.func.min(s.base_offset), sa.func.max(s.end_offset))
        .where(s.topic_id == topic.topic_id, s.inline)
        .group_by(s.partition)
    )
    return {TopicPartition(topic.name, row[0]): OffsetRange(row[1], row[2]) for row in connection.execute(query)}


def _append_time(connection: sa.Connection, topic: Topic) -> list[tuple[int, int, int]]:
    """Runs of sealed segments with LogAppendTime. The type follows a config that hardly ever changes, so they are few."""
    s = t.segment.c
    kinds = sa.select(s.timestamp_type).distinct().where(s.topic_id == topic.topic_id, ~s.inline)
    found = set(connection.execute(kinds).scalars())
    if int(TimestampType.LOG_APPEND_TIME) not in found:
        return []
    query = sa.select(s.partition, s.base_offset, s.timestamp_type).where(s.topic_id == topic.topic_id, ~s.inline)
    runs: list[tuple[int, int, int]] = []
    going_on = False
    for partition, base_offset, kind in connection.execute(query.order_by(s.partition, s.base_offset)):
        is_append_time = kind == TimestampType.LOG_APPEND_TIME
        if is_append_time and going_on and runs[-1][0] == partition:
            runs[-1] = (partition, runs[-1][1], base_offset)
        elif is_append_time:
            runs.append((partition, base_offset, base_offset))
        going_on = is_append_time
    return runs
