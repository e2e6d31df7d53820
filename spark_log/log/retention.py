"""Retention: the oldest segments of a partition go, whole ones from the start. And delete_records, which says up to
where.

    log_start_offset <= end_offset of every segment row       once a transaction of these has gone over the partition

One transaction moves the log start offset and takes the rows of the segments below it, with their blobs; their files
are retired. So an election of a replica that lacks records below the log start (its log end offset may lie there) finds
no segment that names them, and who catches up goes over them as over blobs. Read plans that were made before still have
their files for file.delete.delay.ms; the inline ones travel with them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy import bindparam

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.lease import Guard, nobody_forbids
from spark_log.cluster.partition_rows import CHUNK, Key, lock_partitions, save_partitions
from spark_log.cluster.replication import PartitionState
from spark_log.cluster.retired_files import insert_retired, retired_rows
from spark_log.cluster.topics import Topic, find_topic, find_topics
from spark_log.config import TopicConfig
from spark_log.errors import (
    CorruptRecordError,
    MetadataConflictError,
    OffsetOutOfRangeError,
    PolicyViolationError,
    UnknownTopicOrPartitionError,
    UnsafePathError,
)
from spark_log.failpoints import failpoint
from spark_log.ids import TopicPartition
from spark_log.log.delta import try_publish
from spark_log.log.rewriting import Segment
from spark_log.metadata import tables as t
from spark_log.metadata.prepared import Prepared
from spark_log.metadata.store import Attempt, StoreClock

SEGMENTS_MAX = 1_000
"""Segments that one transaction drops, about: on SQLite appends wait for it, some tens of milliseconds."""
_PARTITIONS_MAX = 100

_P, _S = t.partition.c, t.segment.c

# The rule -----------------------------------------------------------------------------------------------------------


def new_log_start(
    segments: Sequence[Segment],
    config: TopicConfig,
    log_start: int,
    high_watermark: int,
    total_bytes: int,
    now_ms: int,
) -> int:
    """Up to which offset the log goes, by Kafka's rules; `log_start` if nothing does.

    `segments` are the partition's first ones by offset, `total_bytes` is of all its segments. Whole segments below the
    high watermark go, from the start, up to the first that stays: one is too old by its largest timestamp, or without
    it the log would still have retention.bytes, or it lies below the log start already.
    """
    left = total_bytes
    for segment in segments:
        too_old = config.deletes and config.retention_ms >= 0 and now_ms - time_of(segment) > config.retention_ms
        too_much = config.deletes and config.retention_bytes >= 0 and left - segment.bytes >= config.retention_bytes
        below = segment.end_offset <= log_start
        if segment.end_offset > high_watermark or not (too_old or too_much or below):
            break
        left -= segment.bytes
        log_start = max(log_start, segment.end_offset)
    return log_start


def time_of(segment: Segment) -> int:
    """The largest timestamp, in ms; of a segment that has none (compaction took its records) when it was appended."""
    return segment.max_timestamp_ms if segment.max_timestamp_ms >= 0 else segment.appended_ms


# The transactions ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Dropped:
    """What has left the log. `segments`: files (of one replica) and blobs. `failed`: partitions that could not."""

    partitions: frozenset[int] = frozenset()
    segments: int = 0
    bytes: int = 0
    records: int = 0
    failed: Mapping[int, Exception] = field(default_factory=dict)

    def __add__(self, other: "Dropped") -> "Dropped":
        return Dropped(
            self.partitions | other.partitions,
            self.segments + other.segments,
            self.bytes + other.bytes,
            self.records + other.records,
            {**self.failed, **other.failed},
        )


def apply_retention(cluster: Cluster, topic: Topic, guard: Guard = nobody_forbids) -> Dropped:
    """Drop what retention.ms and retention.bytes do not keep, and what lies below the log start; then publish.

    In short transactions. What the metadata of a partition makes impossible is in `failed`, and keeps no other from it.
    """
    dropped = Dropped()
    due = cluster.store.read(lambda connection: _due(connection, topic, cluster.store.clock(connection)))
    for first in range(0, len(due), _PARTITIONS_MAX):
        dropped += _drop(cluster, topic, due[first : first + _PARTITIONS_MAX], guard)
    if dropped.partitions:
        try_publish(cluster, [topic])
    return dropped


def _drop(cluster: Cluster, topic: Topic, numbers: Sequence[int], guard: Guard) -> Dropped:
    dropped = Dropped()
    while numbers:
        try:
            more, numbers = cluster.store.transact(lambda c, _, n=numbers: _drop_some(c, cluster, topic, n, guard))  # type: ignore[misc]
        except (UnsafePathError, CorruptRecordError, MetadataConflictError) as error:
            if len(numbers) == 1:
                return dropped + Dropped(failed={numbers[0]: error})
            for number in numbers:
                dropped += _drop(cluster, topic, [number], guard)
            return dropped
        failpoint("retention.committed")
        dropped += more
    return dropped


def _drop_some(
    connection: sa.Connection, cluster: Cluster, topic: Topic, numbers: Sequence[int], guard: Guard
) -> tuple[Dropped, list[int]]:
    """What went, and the partitions of which more may have to go."""
    guard(connection)
    now = cluster.store.clock(connection)
    before = lock_partitions(connection, [(topic.topic_id, number) for number in numbers])
    known = find_topics(connection, [topic.name]).get(topic.name)  # as it is configured by now
    if known is None or known.topic_id != topic.topic_id:
        return Dropped(), []
    segments_max = SEGMENTS_MAX // len(numbers)
    gone: dict[Key, list[Segment]] = {}
    low: dict[Key, int] = {}
    unfinished = []
    for key, state in before.items():
        here = {"topic_id": key[0], "partition": key[1]}
        first = [Segment(*row) for row in _FIRST.rows(connection, {**here, "segments_max": segments_max})]
        [(total_bytes,)] = _TOTAL.rows(connection, here) if known.config.retention_bytes >= 0 else [(0,)]
        start, end = state.log_start_offset, state.high_watermark
        low[key] = new_log_start(first, known.config, start, end, total_bytes, now.wall_ms)
        gone[key] = [segment for segment in first if segment.end_offset <= low[key]]
        if len(gone[key]) == segments_max:
            unfinished.append(key[1])
    dropped = _move_log_start(connection, known, before, low, gone, now)
    failpoint("retention.decided")
    return dropped, unfinished


def delete_records(cluster: Cluster, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Move log start offsets up to the given offsets (-1: the high watermark), as Kafka's deleteRecords.

    Returns the new log start offset of each partition; an offset below the current one changes nothing. Raises
    OffsetOutOfRangeError above the high watermark, PolicyViolationError for a topic whose cleanup.policy has no delete,
    UnknownTopicOrPartitionError; then nothing is deleted.
    """

    def delete(connection: sa.Connection, _attempt: Attempt) -> tuple[dict[TopicPartition, int], list[Topic]]:
        topics = {name: find_topic(connection, name) for name in sorted({tp.topic for tp in before})}
        keys = {tp: (int(topics[tp.topic].topic_id), tp.partition) for tp in before}
        states = lock_partitions(connection, list(keys.values()))
        low: dict[Key, int] = {}
        for tp, key in keys.items():
            if key not in states:
                raise UnknownTopicOrPartitionError(f"partition {tp[0]}-{tp[1]}: unknown topic or partition")
            if not topics[tp.topic].config.deletes:
                raise PolicyViolationError(f"topic {tp.topic!r}: its cleanup.policy does not let records be deleted")
            low[key] = _wanted_log_start(tp, before[tp], states[key])
        changed = []
        for topic in topics.values():
            mine = {key: low[key] for key in low if key[0] == topic.topic_id}
            gone = {key: _segments_below(connection, key, start) for key, start in mine.items()}
            if _move_log_start(connection, topic, states, mine, gone, cluster.store.clock(connection)).partitions:
                changed.append(topic)
        failpoint("retention.decided")
        return {tp: low[key] for tp, key in keys.items()}, changed

    starts, changed = cluster.store.transact(delete)
    failpoint("retention.committed")
    try_publish(cluster, changed)
    return starts


def _wanted_log_start(tp: TopicPartition, offset: int, state: PartitionState) -> int:
    wanted = state.high_watermark if offset == -1 else offset
    if isinstance(offset, bool) or not isinstance(offset, int) or not 0 <= wanted <= state.high_watermark:
        raise OffsetOutOfRangeError(
            f"before_offset: {offset!r} for {tp[0]}-{tp[1]} is not between 0 and the high watermark"
            f" {state.high_watermark}"
        )
    return max(wanted, state.log_start_offset)


def _move_log_start(
    connection: sa.Connection,
    topic: Topic,
    before: Mapping[Key, PartitionState],
    low: Mapping[Key, int],
    gone: Mapping[Key, Sequence[Segment]],
    now: StoreClock,
) -> Dropped:
    """Begin the logs at `low`, without `gone`: every segment that ends there or before."""
    after: dict[Key, PartitionState] = {}
    blobs: list[str] = []
    retired: list[dict[str, Any]] = []
    dropped = Dropped()
    for key, segments in gone.items():
        state = before[key]
        if low[key] == state.log_start_offset and not segments:
            continue
        inline = [segment for segment in segments if segment.inline]
        files = [segment.name for segment in segments if not segment.inline]
        blobs += [segment.name for segment in inline]
        after[key] = replace(
            state,
            log_start_offset=low[key],
            tail_bytes=state.tail_bytes - sum(segment.bytes for segment in inline),
            change=state.change + bool(files),
        )
        retired += retired_rows(topic, key[1], files, after[key].change, now)
        dropped += Dropped(
            frozenset([key[1]]),
            len(segments),
            sum(segment.bytes for segment in segments),
            sum(segment.record_count for segment in segments),
        )
    insert_retired(connection, retired)
    if dropped.segments:
        bounds = [{"topic_id": key[0], "partition": key[1], "low": low[key]} for key in after]
        _DELETE_BELOW.run(connection, bounds)
    for first in range(0, len(blobs), CHUNK):
        connection.execute(t.blob.delete().where(t.blob.c.name.in_(blobs[first : first + CHUNK])))
    save_partitions(connection, before, after)
    return dropped


# The statements -----------------------------------------------------------------------------------------------------

_HERE = (_S.topic_id == bindparam("topic_id"), _S.partition == bindparam("partition"))
_BELOW = (*_HERE, _S.base_offset < bindparam("low"), _S.end_offset <= bindparam("low"))
_COLUMNS = tuple(_S[name] for name in Segment.__dataclass_fields__)
_FIRST = Prepared(
    sa.select(*_COLUMNS).where(*_HERE).order_by(_S.base_offset)
    .limit(bindparam("segments_max")).offset(sa.literal_column("0"))  # or SQLAlchemy adds a parameter of its own
)  # fmt: skip
_SEGMENTS_BELOW = Prepared(sa.select(*_COLUMNS).where(*_BELOW).order_by(_S.base_offset))
_DELETE_BELOW = Prepared(t.segment.delete().where(*_BELOW))
_TOTAL = Prepared(sa.select(sa.cast(sa.func.sum(_S.bytes), sa.BigInteger)).where(*_HERE))


def _segments_below(connection: sa.Connection, key: Key, low: int) -> list[Segment]:
    rows = _SEGMENTS_BELOW.rows(connection, {"topic_id": key[0], "partition": key[1], "low": low})
    return [Segment(*row) for row in rows]


def _due(connection: sa.Connection, topic: Topic, now: StoreClock) -> list[int]:
    """The partitions whose first segment is to go, as far as can be told without the high watermark."""
    mine = (_S.topic_id == _P.topic_id) & (_S.partition == _P.partition)

    def of_first(column: sa.ColumnElement[int]) -> sa.ColumnElement[int]:
        return sa.select(column).where(mine).order_by(_S.base_offset).limit(1).correlate(t.partition).scalar_subquery()

    config = topic.config
    reasons = [of_first(_S.end_offset) <= _P.log_start_offset]
    if config.deletes and config.retention_ms >= 0:
        time = sa.case((_S.max_timestamp_ms >= 0, _S.max_timestamp_ms), else_=_S.appended_ms)
        reasons.append(of_first(time) < now.wall_ms - config.retention_ms)
    if config.deletes and config.retention_bytes >= 0:
        total = sa.select(sa.func.sum(_S.bytes)).where(mine).correlate(t.partition).scalar_subquery()
        reasons.append(total - of_first(_S.bytes) >= config.retention_bytes)
    query = sa.select(_P.partition).where(_P.topic_id == topic.topic_id, sa.or_(*reasons)).order_by(_P.partition)
    return list(connection.execute(query).scalars())
