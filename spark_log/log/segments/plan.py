"""Plans reads: finds the segments that overlap ranges of offsets, in one snapshot of the metadata store."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from spark_log.cluster.names import CONSUMER_OFFSETS_TOPIC
from spark_log.cluster.topics import Topic
from spark_log.errors import UnknownTopicOrPartitionError
from spark_log.ids import LogDirId, OffsetRange, TopicId, TopicPartition
from spark_log.log.segments.replica_selector import Copies, Copy, distance, select_replicas
from spark_log.log.segments.slices import Positions, Slice, TimestampBounds
from spark_log.metadata import tables as t
from spark_log.metadata.prepared import Prepared, in_list
from spark_log.metadata.sql_columns import BLOB, BROKER, LOG_DIR, PARTITION, REPLICA, SEGMENT, TOPIC

_ALL_TIMES = TimestampBounds()


def positions(connection: sa.Connection, topics: Iterable[Topic]) -> dict[TopicPartition, Positions]:
    """Return the log start offset and high watermark of every partition of the topics, in order."""
    by_partition: dict[TopicPartition, Positions] = {}
    for topic in topics:
        query = (
            sa.select(PARTITION.partition, PARTITION.log_start_offset, PARTITION.high_watermark)
            .where(PARTITION.topic_id == topic.topic_id)
            .order_by(PARTITION.partition)
        )
        for partition, start, end in connection.execute(query):
            by_partition[TopicPartition(topic.name, partition)] = Positions(start, end)
    return by_partition


class PartitionSnapshot(NamedTuple):
    """The present positions of a partition, and the id of its topic, which changes if the topic is created again.

    A reader that caches records must discard them when `rewrites` has grown.
    """

    topic_id: TopicId
    positions: Positions
    leader_epoch: int
    rewrites: int = 0
    frozen: bool = False
    """Whether the topic is being moved, or has been moved to another store, which may have newer records."""

    @property
    def version(self) -> tuple[int, int]:
        """Grows with every change that may remove or replace records: an election, which may truncate, or a rewrite."""
        return self.leader_epoch, self.rewrites


_POSITIONS = (
    sa.select(
        TOPIC.name,
        PARTITION.partition,
        PARTITION.topic_id,
        PARTITION.log_start_offset,
        PARTITION.high_watermark,
        PARTITION.leader_epoch,
        PARTITION.rewrites,
        PARTITION.frozen,
    )
    .join(t.topic, TOPIC.topic_id == PARTITION.topic_id)
    .where(in_list(TOPIC.name, "names"))
)
_ALL_POSITIONS = Prepared(_POSITIONS)
_SOME_POSITIONS = Prepared(_POSITIONS.where(in_list(PARTITION.partition, "numbers")))
_REPLICAS = (
    sa.select(REPLICA.partition, REPLICA.log_dir_id, REPLICA.log_end_offset, REPLICA.in_sync)
    .where(REPLICA.topic_id == sa.bindparam("topic_id"))
    .order_by(REPLICA.partition, REPLICA.preference)
)
_SOME_REPLICAS = Prepared(_REPLICAS.where(in_list(REPLICA.partition, "numbers")))
_ALL_REPLICAS = Prepared(_REPLICAS)
_LOG_DIRS = Prepared(
    sa.select(LOG_DIR.log_dir_id, LOG_DIR.online, BROKER.rack).join(t.broker, BROKER.broker_id == LOG_DIR.broker_id)
)
_BLOBS = Prepared(sa.select(BLOB.name, BLOB.data).where(in_list(BLOB.name, "names")))


def find_positions(
    connection: sa.Connection, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, PartitionSnapshot]:
    """Return the present positions of the partitions that exist. Topic names must be legal.

    It runs only one statement, because consumers call it often.
    """
    parameters: dict[str, Any] = {"names": list({name for name, _ in partitions})}
    query = _ALL_POSITIONS
    if len(partitions) < 1_000:
        query, parameters["numbers"] = _SOME_POSITIONS, list({number for _, number in partitions})
    wanted = frozenset(partitions)
    positions_of = {
        TopicPartition(name, number): PartitionSnapshot(TopicId(topic_id), Positions(start, end), *numbers)
        for name, number, topic_id, start, end, *numbers in query.rows(connection, parameters)
    }
    return {topic_partition: here for topic_partition, here in positions_of.items() if topic_partition in wanted}


def plan(
    connection: sa.Connection,
    topics: Mapping[str, Topic],
    ranges: Mapping[TopicPartition, OffsetRange],
    times: TimestampBounds = _ALL_TIMES,
    segments_max: int | None = None,
    rack: str | None = None,
) -> list[Slice]:
    """Return the slices of the ranges, in the order of topic, partition and offset, without segments that have no
    record within `times`.

    Inline slices do not have their bytes yet (see `with_inline_data`), except those of `__consumer_offsets`. Ranges
    must lie between log start offset and high watermark. The work grows with the number of segments that overlap them.
    With `segments_max` the plan has at most this number of segments of each range, the first ones, except in
    `__consumer_offsets`. `rack` is the rack of the reader (see `replica_selector`).
    """
    slices: list[Slice] = []
    by_topic: dict[str, list[tuple[int, int, int]]] = {}
    for (name, partition), (start, end) in sorted(ranges.items()):
        if start < end:
            by_topic.setdefault(name, []).append((partition, start, end))
    for name, ranges_of_topic in by_topic.items():
        topic = topics[name]
        if name == CONSUMER_OFFSETS_TOPIC:
            from spark_log.log.segments import offset_commit_records

            slices += offset_commit_records.slices_of(connection, topic, ranges_of_topic)
            continue
        bounds = {partition: (start, end) for partition, start, end in ranges_of_topic}
        parameters: dict[str, Any] = {"topic_id": topic.topic_id, "ranges": json.dumps(ranges_of_topic)}
        query = _OVERLAPPING[connection.dialect.name]
        if segments_max is not None:
            query, parameters["segments_max"] = _FIRST_OVERLAPPING[connection.dialect.name], segments_max
        rows = query.rows(connection, parameters)
        files = {row[0] for row in rows if not row[_INLINE]}
        replicas = _replicas(connection, topic, sorted(files), rack) if files else {}
        slices += _slices(topic, rows, bounds, replicas, times)
    return slices


def inline_bytes(slices: Iterable[Slice]) -> dict[TopicPartition, int]:
    """Return the bytes of the inline segments of each partition that has any."""
    sizes: dict[TopicPartition, int] = {}
    for piece in slices:
        if piece.data is not None:
            sizes[piece.topic_partition] = sizes.get(piece.topic_partition, 0) + piece.size
    return sizes


def with_inline_data(connection: sa.Connection, slices: Sequence[Slice]) -> list[Slice]:
    """Return the slices with the bytes of the inline ones. `connection` must read the same snapshot as `plan`, because
    blobs may be deleted later.
    """
    names = [piece.name for piece in slices if piece.data == b""]
    data: dict[str, bytes] = dict(_BLOBS.rows(connection, {"names": names})) if names else {}
    return [piece._replace(data=data[piece.name]) if piece.data == b"" else piece for piece in slices]


def bounded(slices: list[Slice], partition_bytes: int, total_bytes: int) -> list[Slice]:
    """Return the first slices of each partition whose inline bytes stay within the limits. The first slice of each
    partition is always included, so that every partition makes progress. Files do not count, because they are read when
    their turn comes.
    """
    kept: list[Slice] = []
    by_partition: dict[TopicPartition, int] = {}
    total = 0
    full: set[TopicPartition] = set()
    for piece in slices:
        partition = piece.topic_partition
        if partition in full:
            continue
        size = piece.size if piece.data is not None else 0
        before = by_partition.get(partition)
        if before is not None and size and (before + size > partition_bytes or total + size > total_bytes):
            full.add(partition)
            continue
        by_partition[partition] = (before or 0) + size
        total += size
        kept.append(piece)
    return kept


class TimeLookup(NamedTuple):
    """The slices, in order, that may have a partition's first readable record with timestamp >= `timestamp_ms`.

    This record is nearly always in the first slice. The second slice is needed if the only such records of the first
    segment are before the log start offset.
    """

    timestamp_ms: int
    slices: list[Slice]


def plan_time_lookups(
    connection: sa.Connection, topic: Topic, timestamps_ms: Mapping[int, int], rack: str | None = None
) -> dict[TopicPartition, TimeLookup]:
    """Return for each partition the slices that may have its first readable record with timestamp >= the given one.

    Inline slices have their bytes, so that the store is not needed again. Raises UnknownTopicOrPartitionError for a
    partition that does not exist, or a topic that has been deleted since it was looked up.
    """
    lookups: dict[TopicPartition, TimeLookup] = {}
    limits = positions(connection, [topic])
    replicas = _replicas(connection, topic, list(timestamps_ms), rack)
    for partition, timestamp_ms in timestamps_ms.items():
        tp = TopicPartition(topic.name, partition)
        if tp not in limits:
            raise UnknownTopicOrPartitionError(f"partition {topic.name}-{partition}: unknown topic or partition")
        start, end = limits[tp]
        candidates = (
            sa.select(*_SEGMENT_COLUMNS)
            .where(SEGMENT.topic_id == topic.topic_id, SEGMENT.partition == partition)
            .where(SEGMENT.max_timestamp_ms >= timestamp_ms, SEGMENT.end_offset > start, SEGMENT.base_offset < end)
        )
        base = connection.execute(candidates.with_only_columns(sa.func.min(SEGMENT.base_offset))).scalar()
        rows = [] if base is None else connection.execute(
            candidates.where(SEGMENT.base_offset >= base).order_by(SEGMENT.base_offset).limit(2)
        ).all()  # fmt: skip
        slices = _slices(topic, rows, {partition: limits[tp]}, replicas)
        lookups[tp] = TimeLookup(timestamp_ms, with_inline_data(connection, slices))
    return lookups


_SEGMENT_COLUMNS = (
    SEGMENT.partition,
    SEGMENT.base_offset,
    SEGMENT.end_offset,
    SEGMENT.record_count,
    SEGMENT.bytes,
    SEGMENT.min_timestamp_ms,
    SEGMENT.max_timestamp_ms,
    SEGMENT.timestamp_type,
    SEGMENT.name,
    SEGMENT.checksum,
    SEGMENT.leader_epoch,
    SEGMENT.inline,
    SEGMENT.columns_version,
)
_INLINE = _SEGMENT_COLUMNS.index(SEGMENT.inline)


def _slices(
    topic: Topic,
    rows: Iterable[Sequence[Any]],
    bounds: Mapping[int, tuple[int, int]],
    replicas: Mapping[int, Copies],
    times: TimestampBounds = _ALL_TIMES,
) -> list[Slice]:
    """Return the slices of segments within the bounds of their partitions, without segments that have no record within
    `times`. `rows` have the _SEGMENT_COLUMNS.
    """
    folder, columns = topic.folder, topic.columns
    return [
        Slice(
            topic.name, folder, partition, base, max(base, bounds[partition][0]), min(end, bounds[partition][1]),
            count, size, type_, name, checksum, epoch,
            () if inline else select_replicas(replicas[partition], name, end), b"" if inline else None,
            columns, version,
        )
        for partition, base, end, count, size, low_ms, high_ms, type_, name, checksum, epoch, inline, version in rows
        if (times.min_ms is None or high_ms >= times.min_ms) and (times.max_ms is None or low_ms < times.max_ms)
    ]  # fmt: skip


# The ranges come as one JSON parameter, so that ten thousand partitions are one statement. Each range finds the
# segment that holds its start with one primary key lookup, and continues from there. CROSS JOIN forces this order on
# SQLite. On PostgreSQL, which cannot estimate the ranges and would scan the whole table, a LATERAL with OFFSET 0 does.
_RANGES = {
    "sqlite": """SELECT json_extract(value, '$[0]') AS number, json_extract(value, '$[1]') AS first_offset,
                        json_extract(value, '$[2]') AS last_offset FROM json_each(:ranges)""",
    "postgresql": """SELECT (value->>0)::integer AS number, (value->>1)::bigint AS first_offset,
                            (value->>2)::bigint AS last_offset FROM jsonb_array_elements(CAST(:ranges AS jsonb))""",
}
_SCAN = """SELECT * FROM segment WHERE segment.topic_id = :topic_id AND segment.partition = bounds.number
           AND segment.base_offset >= bounds.low AND segment.base_offset < bounds.last_offset"""
_JOIN = {
    "sqlite": f"segment {_SCAN.partition('segment ')[2]}",
    "postgresql": f"LATERAL ({_SCAN} OFFSET 0) AS segment",
}
_BOUNDS = """
    SELECT number, last_offset, coalesce(
        (SELECT max(base_offset) FROM segment
         WHERE topic_id = :topic_id AND partition = number AND base_offset <= first_offset), first_offset
    ) AS low FROM wanted
"""
_FIRST_BOUNDS = f"""
    SELECT number, low, coalesce(
        (SELECT base_offset FROM segment
         WHERE topic_id = :topic_id AND partition = number AND base_offset >= low AND base_offset < last_offset
         ORDER BY base_offset LIMIT 1 OFFSET :segments_max), last_offset
    ) AS last_offset FROM ({_BOUNDS}) AS whole
"""


def _overlapping(dialect: str, bounds: str) -> Prepared:
    return Prepared(
        sa.text(
            f"""
        WITH wanted AS ({_RANGES[dialect]}),
        bounds AS MATERIALIZED ({bounds})
        SELECT {", ".join(f"segment.{column.name}" for column in _SEGMENT_COLUMNS)}
        FROM bounds CROSS JOIN {_JOIN[dialect]}
        ORDER BY segment.partition, segment.base_offset
        """
        )
    )


_OVERLAPPING = {dialect: _overlapping(dialect, _BOUNDS) for dialect in _RANGES}
_FIRST_OVERLAPPING = {dialect: _overlapping(dialect, _FIRST_BOUNDS) for dialect in _RANGES}


def _replicas(
    connection: sa.Connection, topic: Topic, partitions: Sequence[int], rack: str | None
) -> dict[int, Copies]:
    """Return the replicas of each partition. The few log dirs are read once instead of joined to every replica."""
    log_dirs = {
        log_dir_id: [
            Copy(LogDirId(log_dir_id), distance(online=online, same_rack=rack in (None, its_rack), in_sync=in_sync))
            for in_sync in (False, True)
        ]
        for log_dir_id, online, its_rack in _LOG_DIRS.rows(connection, {})
    }
    if len(partitions) < 1_000:
        rows = _SOME_REPLICAS.rows(connection, {"topic_id": topic.topic_id, "numbers": list(partitions)})
    else:
        rows = _ALL_REPLICAS.rows(connection, {"topic_id": topic.topic_id})
    copies: dict[int, list[Copy]] = {}
    ends: dict[int, list[int]] = {}
    for partition, log_dir_id, log_end_offset, in_sync in rows:
        copies.setdefault(partition, []).append(log_dirs[log_dir_id][in_sync])
        ends.setdefault(partition, []).append(log_end_offset)
    return {number: Copies(tuple(copies[number]), tuple(ends[number]), min(ends[number])) for number in copies}
