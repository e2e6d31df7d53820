"""Deletes the oldest segments of a partition, always whole segments from the start. `delete_records` deletes the
records below a given offset.

    log_start_offset <= end_offset of every segment row       once one of these transactions has run on the partition

One transaction moves the log start offset and deletes the rows of the segments below it, with their blobs; it retires
their files. So after the election of a replica that lacks records below the log start (its log end offset may lie
there), no segment names these records, and a replica that catches up skips them as it skips blobs. The files of earlier
read plans stay for file.delete.delay.ms; the bytes of inline segments are in the plan itself.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any

import sqlalchemy as sa
from sqlalchemy import bindparam

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.each_store import in_stores_of
from spark_log.cluster.lease import Fence, unfenced
from spark_log.cluster.names import validate_user_topic
from spark_log.cluster.topics import Topic, find_topic, find_topics, topics_of_ids
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
from spark_log.log.partitions.partition_rows import (
    Key,
    lock_partitions,
    read_partition,
    read_partitions,
    save_partitions,
    topic_here,
)
from spark_log.log.partitions.replication_rules import PartitionState
from spark_log.log.partitions.retired_files import insert_retired, retired_rows
from spark_log.log.segments.segment_rows import delete_blobs, delete_segments_below
from spark_log.maintenance.removal.retention_rules import Reason, leaving, time_of
from spark_log.maintenance.rewrite.rewrite_plan import Segment
from spark_log.metadata import tables as t
from spark_log.metadata.prepared import Prepared
from spark_log.metadata.sql_columns import PARTITION, SEGMENT
from spark_log.metadata.store_clock import StoreClock
from spark_log.tables.publication import try_publish

SEGMENTS_MAX = 1_000
"""Approximate maximum of segments per transaction. On SQLite, appends wait some tens of milliseconds for it."""
_PARTITIONS_MAX = 100


# The transactions ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Dropped:
    """Segments that were dropped from the log: files (of one replica) and blobs. `failed` are the partitions that
    failed. `file_bytes` is the part of `bytes` in files, which stay on disk for file.delete.delay.ms.

    `why` has for each reason the time of the newest dropped record, in ms.
    """

    partitions: frozenset[int] = frozenset()
    segments: int = 0
    bytes: int = 0
    records: int = 0
    failed: Mapping[int, Exception] = field(default_factory=dict)
    why: Mapping[str, int] = field(default_factory=dict)
    file_bytes: int = 0

    def __add__(self, other: "Dropped") -> "Dropped":
        return Dropped(
            self.partitions | other.partitions,
            self.segments + other.segments,
            self.bytes + other.bytes,
            self.records + other.records,
            {**self.failed, **other.failed},
            _newest([*self.why.items(), *other.why.items()]),
            self.file_bytes + other.file_bytes,
        )


def _newest(times: Sequence[tuple[str, int]]) -> dict[str, int]:
    """Return the largest time of each reason."""
    newest: dict[str, int] = {}
    for reason, time_ms in times:
        newest[reason] = max(time_ms, newest.get(reason, time_ms))
    return newest


def _reasons(topic: Topic, gone: Sequence[tuple[Segment, Reason]]) -> dict[str, int]:
    return _newest([(reason.describe(topic.config), time_of(segment)) for segment, reason in gone])


def plan_retention(cluster: Cluster, topic: Topic) -> Dropped:
    """Return the segments that `apply_retention` would drop now. Changes nothing."""

    def plan(connection: sa.Connection, number: int) -> Dropped:
        state = read_partition(connection, (topic.topic_id, number))
        if state is None:
            return Dropped()
        now_ms = cluster.store.clock(connection).wall_ms
        gone = list(next_to_delete(connection, topic, number, state.log_start_offset, state.high_watermark, now_ms))
        return replace(_of(number, [segment for segment, _ in gone]), why=_reasons(topic, gone)) if gone else Dropped()

    dropped = Dropped()
    for number in cluster.store.read(lambda connection: _due(connection, topic, cluster.store.clock(connection))):
        dropped += cluster.store.read(lambda connection, number=number: plan(connection, number))  # type: ignore[misc]
    return dropped


def next_to_delete(
    connection: sa.Connection,
    topic: Topic,
    number: int,
    log_start: int,
    end_offset: int,
    now_ms: int,
    page: int = SEGMENTS_MAX,
) -> Iterator[tuple[Segment, Reason]]:
    """Yield the segments of a partition that retention drops below `end_offset`, by offset. It reads `page` of them at
    a time.
    """
    here = {"topic_id": topic.topic_id, "partition": number}
    [(total_bytes,)] = _TOTAL.rows(connection, here) if topic.config.retention_bytes >= 0 else [(0,)]
    start = 0
    while True:
        rows = _FIRST.rows(connection, {**here, "start": start, "segments_max": page})
        gone = leaving([Segment(*row) for row in rows], topic.config, log_start, end_offset, total_bytes or 0, now_ms)
        yield from gone
        if len(gone) < page:
            break
        start, total_bytes = gone[-1][0].end_offset, total_bytes - sum(segment.bytes for segment, _ in gone)


def apply_retention(cluster: Cluster, topic: Topic, fence: Fence = unfenced) -> Dropped:
    """Drop the segments that retention.ms and retention.bytes do not keep or that lie below the log start; then
    publish.

    It runs in short transactions. A partition whose metadata makes this impossible is in `failed`; it does not stop the
    others.
    """
    dropped = Dropped()
    due = cluster.store.read(lambda connection: _due(connection, topic, cluster.store.clock(connection)))
    for first in range(0, len(due), _PARTITIONS_MAX):
        dropped += _drop(cluster, topic, due[first : first + _PARTITIONS_MAX], fence)
    if dropped.partitions:
        try_publish(cluster, [topic])
    return dropped


def _drop(cluster: Cluster, topic: Topic, numbers: Sequence[int], fence: Fence) -> Dropped:
    dropped = Dropped()
    while numbers:
        try:
            more, numbers = cluster.store.transact(partial(_drop_some, cluster, topic, numbers), fence=fence)
        except (UnsafePathError, CorruptRecordError, MetadataConflictError) as error:
            if len(numbers) == 1:
                return dropped + Dropped(failed={numbers[0]: error})
            for number in numbers:
                dropped += _drop(cluster, topic, [number], fence)
            return dropped
        failpoint("retention.committed")
        dropped += more
    return dropped


def _drop_some(
    cluster: Cluster, topic: Topic, numbers: Sequence[int], connection: sa.Connection
) -> tuple[Dropped, list[int]]:
    """Return the dropped segments, and the partitions that may have more segments to drop."""
    now = cluster.store.clock(connection)
    before = lock_partitions(connection, [(topic.topic_id, number) for number in numbers])
    current = find_topics(connection, [topic.name]).get(topic.name)  # with its current config
    if current is None or current.topic_id != topic.topic_id:
        return Dropped(), []
    segments_max = SEGMENTS_MAX // len(numbers)
    gone: dict[Key, list[Segment]] = {}
    low: dict[Key, int] = {}
    unfinished = []
    why: list[tuple[str, int]] = []
    for key, state in before.items():
        start, end = state.log_start_offset, state.high_watermark
        found = next_to_delete(connection, current, key[1], start, end, now.wall_ms, segments_max)
        first = list(islice(found, segments_max))
        gone[key] = [segment for segment, _ in first]
        low[key] = max([start, *(segment.end_offset for segment in gone[key])])
        why += _reasons(current, first).items()
        if len(first) == segments_max:
            unfinished.append(key[1])
    dropped = replace(_move_log_start(connection, current, before, low, gone, now), why=_newest(why))
    failpoint("retention.decided")
    return dropped, unfinished


def delete_records(cluster: Cluster, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Move log start offsets up to the given offsets (-1 means the high watermark), as Kafka's deleteRecords.

    Returns the new log start offset of each partition; an offset below the current one changes nothing. Raises
    OffsetOutOfRangeError above the high watermark, PolicyViolationError for an internal topic or a topic whose
    cleanup.policy has no delete, and UnknownTopicOrPartitionError; then nothing is deleted in the store of the topic,
    unless the topic or its high watermark changes, or the store fails, meanwhile.
    """
    return in_stores_of(cluster, before, _delete_records)


def _delete_records(cluster: Cluster, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Check all partitions, then delete in short transactions, as retention does."""
    topics, log_starts = cluster.store.read(partial(_checked, before=before))
    partitions = list(log_starts.items())
    changed: set[str] = set()
    try:
        for first in range(0, len(partitions), _PARTITIONS_MAX):
            unfinished = dict(partitions[first : first + _PARTITIONS_MAX])
            while unfinished:
                names, reached, unfinished = cluster.store.transact(partial(_delete_some, cluster, topics, unfinished))
                failpoint("retention.committed")
                changed |= names
                log_starts |= reached
    finally:
        try_publish(cluster, [topics[name] for name in sorted(changed)])
    return log_starts


def _checked(
    connection: sa.Connection, before: Mapping[TopicPartition, int]
) -> tuple[dict[str, Topic], dict[TopicPartition, int]]:
    """Return the topics, and the log start offsets to reach."""
    topics = {name: find_topic(connection, name) for name in sorted({tp.topic for tp in before})}
    states = {
        name: read_partitions(connection, topic.topic_id) if topic_here(connection, topic) is not None else {}
        for name, topic in topics.items()
    }
    log_starts: dict[TopicPartition, int] = {}
    for tp, offset in before.items():
        validate_user_topic(tp.topic, "delete records of")
        state = states[tp.topic].get((topics[tp.topic].topic_id, tp.partition))
        if state is None:
            raise UnknownTopicOrPartitionError(f"partition {tp}: unknown topic or partition")
        _check_policy(topics[tp.topic])
        log_starts[tp] = _wanted_log_start(tp, offset, state)
    return topics, log_starts


def _delete_some(
    cluster: Cluster,
    topics: Mapping[str, Topic],
    log_starts: Mapping[TopicPartition, int],
    connection: sa.Connection,
) -> tuple[set[str], dict[TopicPartition, int], dict[TopicPartition, int]]:
    """Return the names of topics that changed, the log start offsets to reach, and those that are not reached yet."""
    keys = {tp: (int(topics[tp.topic].topic_id), tp.partition) for tp in log_starts}
    states = lock_partitions(connection, list(keys.values()))
    here = topics_of_ids(connection, {key[0] for key in keys.values()})
    low: dict[Key, int] = {}
    for tp, key in keys.items():
        if key[0] not in here or key not in states:  # a position is never used for a new topic of the name
            raise UnknownTopicOrPartitionError(f"partition {tp}: its topic was deleted or moved while its records were")
        _check_policy(here[key[0]])
        low[key] = _wanted_log_start(tp, log_starts[tp], states[key])
    reached = {tp: low[key] for tp, key in keys.items()}
    segments_max = max(1, SEGMENTS_MAX // len(log_starts))
    gone = {key: _segments_below(connection, key, offset, segments_max) for key, offset in low.items()}
    unfinished = {tp: reached[tp] for tp, key in keys.items() if len(gone[key]) == segments_max}
    for tp in unfinished:
        low[keys[tp]] = max(states[keys[tp]].log_start_offset, gone[keys[tp]][-1].end_offset)
    changed, now = set(), cluster.store.clock(connection)
    for topic in here.values():
        mine = {key: gone[key] for key in gone if key[0] == topic.topic_id}
        if _move_log_start(connection, topic, states, low, mine, now).partitions:
            changed.add(topic.name)
    failpoint("retention.decided")
    return changed, reached, unfinished


def _check_policy(topic: Topic) -> None:
    if not topic.config.deletes:
        raise PolicyViolationError(f"topic {topic.name!r}: its cleanup.policy does not let records be deleted")


def _wanted_log_start(tp: TopicPartition, offset: int, state: PartitionState) -> int:
    wanted = state.high_watermark if offset == -1 else offset
    if isinstance(offset, bool) or not isinstance(offset, int) or not 0 <= wanted <= state.high_watermark:
        raise OffsetOutOfRangeError(
            f"before_offset: {offset!r} for {tp} is not between 0 and the high watermark {state.high_watermark}"
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
    """Set the log start offsets to `low`, and drop `gone`: every segment that ends there or before."""
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
        after[key] = state._replace(
            log_start_offset=low[key],
            tail_bytes=state.tail_bytes - sum(segment.bytes for segment in inline),
            change=state.change + bool(files),
        )
        retired += retired_rows(topic, key[1], files, after[key].change, now)
        dropped += _of(key[1], segments)
    insert_retired(connection, retired)
    if dropped.segments:
        bounds = [
            {"topic_id": key[0], "partition": key[1], "low": gone[key][-1].end_offset} for key in after if gone[key]
        ]
        delete_segments_below(connection, bounds)
    delete_blobs(connection, blobs)
    save_partitions(connection, before, after)
    return dropped


def _of(number: int, segments: Sequence[Segment]) -> Dropped:
    return Dropped(
        frozenset([number]),
        len(segments),
        sum(segment.bytes for segment in segments),
        sum(segment.record_count for segment in segments),
        file_bytes=sum(segment.bytes for segment in segments if not segment.inline),
    )


# The statements -----------------------------------------------------------------------------------------------------

_HERE = (SEGMENT.topic_id == bindparam("topic_id"), SEGMENT.partition == bindparam("partition"))
_BELOW = (*_HERE, SEGMENT.base_offset < bindparam("low"), SEGMENT.end_offset <= bindparam("low"))
_COLUMNS = tuple(SEGMENT[name] for name in Segment.__dataclass_fields__)
_FIRST = Prepared(
    sa.select(*_COLUMNS).where(*_HERE, SEGMENT.base_offset >= bindparam("start")).order_by(SEGMENT.base_offset)
    .limit(bindparam("segments_max")).offset(sa.literal_column("0"))  # without it SQLAlchemy adds its own parameter
)  # fmt: skip
_SEGMENTS_BELOW = Prepared(
    sa.select(*_COLUMNS).where(*_BELOW).order_by(SEGMENT.base_offset)
    .limit(bindparam("segments_max")).offset(sa.literal_column("0"))
)  # fmt: skip
_TOTAL = Prepared(sa.select(sa.cast(sa.func.sum(SEGMENT.bytes), sa.BigInteger)).where(*_HERE))


def _segments_below(connection: sa.Connection, key: Key, low: int, segments_max: int) -> list[Segment]:
    here = {"topic_id": key[0], "partition": key[1]}
    rows = _SEGMENTS_BELOW.rows(connection, {**here, "low": low, "segments_max": segments_max})
    return [Segment(*row) for row in rows]


def _due(connection: sa.Connection, topic: Topic, now: StoreClock) -> list[int]:
    """Return the partitions whose first segment is to be dropped, judged without the high watermark."""
    mine = (SEGMENT.topic_id == PARTITION.topic_id) & (SEGMENT.partition == PARTITION.partition)

    def of_first(column: sa.ColumnElement[int]) -> sa.ColumnElement[int]:
        return (
            sa.select(column)
            .where(mine)
            .order_by(SEGMENT.base_offset)
            .limit(1)
            .correlate(t.partition)
            .scalar_subquery()
        )

    config = topic.config
    reasons = [of_first(SEGMENT.end_offset) <= PARTITION.log_start_offset]
    if config.deletes and config.retention_ms >= 0:
        time = sa.case((SEGMENT.max_timestamp_ms >= 0, SEGMENT.max_timestamp_ms), else_=SEGMENT.appended_ms)
        reasons.append(of_first(time) < now.wall_ms - config.retention_ms)
    if config.deletes and config.retention_bytes >= 0:
        total = sa.select(sa.func.sum(SEGMENT.bytes)).where(mine).correlate(t.partition).scalar_subquery()
        reasons.append(total - of_first(SEGMENT.bytes) >= config.retention_bytes)
    query = (
        sa.select(PARTITION.partition)
        .where(PARTITION.topic_id == topic.topic_id, sa.or_(*reasons))
        .order_by(PARTITION.partition)
    )
    return list(connection.execute(query).scalars())
