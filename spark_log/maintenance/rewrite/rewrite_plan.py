"""Defines the plan of a rewriting: a run of a partition's segments, all data that is needed to replace them with one
file, and the rules that say which segments may be in one file.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import sqlalchemy as sa

from spark_log.cluster.topics import Topic
from spark_log.ids import LogDirId, OffsetRange, TopicPartition
from spark_log.log.partitions.partition_rows import read_partition
from spark_log.log.segments import plan as planner
from spark_log.log.segments.slices import Slice
from spark_log.metadata import tables as t
from spark_log.metadata.sql_columns import PARTITION, SEGMENT
from spark_log.tables.seen_offsets import listed_above_tail, overlaps

OFFSETS_MAX = 2**31 - 1
"""Maximum number of offsets in one file: offset_delta is an int32."""


@dataclass(frozen=True)
class Segment:
    """A segment of a partition, as its row describes it. It holds record_count of the offsets [base_offset,
    end_offset).
    """

    base_offset: int
    end_offset: int
    record_count: int
    bytes: int
    min_timestamp_ms: int
    max_timestamp_ms: int
    timestamp_type: int
    leader_epoch: int
    name: str
    checksum: str
    inline: bool
    appended_ms: int
    columns_version: int | None = None


_SEGMENT_COLUMNS = tuple(SEGMENT[name] for name in Segment.__dataclass_fields__)


def may_follow(first: Segment, last: Segment, following: Segment, seen: Collection[int] = ()) -> bool:
    """Whether a file with the segments from `first` to `last` may also include `following`: the offsets meet, the
    timestamp type is the same, and the span fits into an offset_delta.

    It may not if `following` begins at one of `seen` (`tables/seen_offsets.py`): a file with records on both sides of
    such an offset would hold both old and new records for a stream that reads the Delta table.
    """
    return (
        last.end_offset == following.base_offset
        and last.timestamp_type == following.timestamp_type
        and following.base_offset not in seen
        and following.end_offset - first.base_offset <= OFFSETS_MAX
    )


@dataclass(frozen=True)
class Rewriting:
    """The input of a rewriting: segments of a partition that one file is to replace, and all data that is needed to
    write it. It is sent to executors.

    The inputs' offsets meet, they have one timestamp type, and are all files or all inline. `log_dirs` are the ISR's,
    by broker, as of `partition_epoch`.
    """

    topic: Topic
    partition: int
    inputs: tuple[Segment, ...]
    slices: tuple[Slice, ...]
    log_dirs: Mapping[int, LogDirId]
    partition_epoch: int

    @property
    def base_offset(self) -> int:
        return self.inputs[0].base_offset

    @property
    def end_offset(self) -> int:
        return self.inputs[-1].end_offset


def segments(connection: sa.Connection, topic: Topic, partition: int, *, inline: bool) -> list[Segment]:
    """Return the partition's segments below the high watermark, by offset: its tail (`inline`), or its files."""
    query = (
        sa.select(*_SEGMENT_COLUMNS)
        .join(t.partition, (PARTITION.topic_id == SEGMENT.topic_id) & (PARTITION.partition == SEGMENT.partition))
        .where(
            SEGMENT.topic_id == topic.topic_id,
            SEGMENT.partition == partition,
            SEGMENT.end_offset <= PARTITION.high_watermark,
        )
        .where(SEGMENT.inline if inline else ~SEGMENT.inline)
        .order_by(SEGMENT.base_offset)
    )
    return [Segment(*row) for row in connection.execute(query)]


def files_below_tail(connection: sa.Connection, topic: Topic, partition: int) -> list[Segment]:
    """Return the files that may be rewritten: those below the inline tail, by offset. Delta tables list a file above
    it, but cannot tell later which of the records there they have shown (`publication_state.Cursor`): such a file is
    left out until the tail is sealed and published.
    """
    tail = segments(connection, topic, partition, inline=True)
    end = tail[0].base_offset if tail else None
    listed = listed_above_tail(connection, topic, partition)
    files = segments(connection, topic, partition, inline=False)
    files = [each for each in files if end is None or each.base_offset < end]
    return [each for each in files if not overlaps(each.base_offset, each.end_offset, listed)]


def plan_rewriting(
    connection: sa.Connection, topic: Topic, partition: int, inputs: Sequence[Segment]
) -> Rewriting | None:
    """Return the rewriting of these segments, in the snapshot that `connection` reads; None if the log has changed
    since.

    It contains the bytes of inline segments.
    """
    assert all(a.end_offset == b.base_offset for a, b in pairwise(inputs)), "offsets meet"
    assert len({(segment.timestamp_type, segment.inline) for segment in inputs}) == 1, "of one kind"
    state = read_partition(connection, (topic.topic_id, partition))
    if state is None:
        return None
    where = OffsetRange(inputs[0].base_offset, inputs[-1].end_offset)
    slices = planner.plan(connection, {topic.name: topic}, {TopicPartition(topic.name, partition): where})
    if [piece.name for piece in slices] != [segment.name for segment in inputs]:
        return None
    slices = planner.with_inline_data(connection, slices)
    log_dirs = {replica.broker_id: LogDirId(replica.log_dir_id) for replica in state.replicas if replica.in_sync}
    if not log_dirs:
        return None
    return Rewriting(topic, partition, tuple(inputs), tuple(slices), log_dirs, state.partition_epoch)
