"""Divides the offsets that a batch reads into ranges, and distributes the ranges to tasks.

    start, latest -> rate_limit.should_delay -> rate_limit.rate_limit -> [start, end) -> split_ranges -> pack_tasks

Splitting has the semantics of Spark's KafkaOffsetRangeCalculator, but in exact integers instead of doubles. All
functions are pure, and run in linear time (or n log n) in the number of partitions.
"""

import heapq
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from spark_log.errors import InvalidOptionError
from spark_log.ids import OffsetRange, TopicPartition
from spark_log.spark.datasource.options.positions import show_all

TASK_OVERHEAD_RECORDS = 1_000
"""Cost of opening one more range in a task, in records. It is about 1 ms at a million records a second."""


class PartitionRange(NamedTuple):
    """Records of one topic-partition with start <= offset < end. Sorts by topic, partition, offset."""

    topic_partition: TopicPartition
    start: int
    end: int

    @property
    def size(self) -> int:
        """The number of offsets in the range. It is the number of records, or more after compaction."""
        return self.end - self.start


def check_resolved(
    start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]
) -> dict[TopicPartition, OffsetRange]:
    """Return a batch query's ranges. Raises InvalidOptionError for different partitions, or a start above its end."""
    if start.keys() != end.keys():
        raise InvalidOptionError(
            f"different topic partitions for starting offsets topics[{show_all(start)}] "
            f"and ending offsets topics[{show_all(end)}]"
        )
    for tp in sorted(tp for tp, offset in start.items() if offset > end[tp]):
        raise InvalidOptionError(
            f"The resolved start offset {start[tp]} is greater than the resolved end offset {end[tp]} "
            f"for topic {tp.topic} partition {tp.partition}. Start and end may be given in different ways (offset, "
            "timestamp, latest), or the start is beyond the end of the partition."
        )
    return {tp: OffsetRange(offset, end[tp]) for tp, offset in start.items()}


def split_ranges(
    ranges: Mapping[TopicPartition, OffsetRange],
    *,
    min_partitions: int | None = None,
    max_records_per_partition: int | None = None,
) -> list[PartitionRange]:
    """Return the ranges divided for parallelism, sorted, without empty ones. Pieces of a partition cover its range
    exactly.

    First, ranges are divided so that no piece is larger than `max_records_per_partition`. Then, if there are fewer
    pieces than `min_partitions`, large ones are divided further in proportion to their size; because of rounding the
    result may have slightly more or fewer pieces than `min_partitions`.
    """
    pieces = sorted(PartitionRange(tp, start, end) for tp, (start, end) in ranges.items() if start < end)
    if max_records_per_partition is not None:
        pieces = [part for piece in pieces for part in _cut(piece, -(-piece.size // max_records_per_partition))]
    if min_partitions is None or len(pieces) >= min_partitions or not pieces:
        return pieces
    total = sum(piece.size for piece in pieces)
    counts = [_part_count(piece.size, total, min_partitions) for piece in pieces]
    small = [piece.size for piece, count in zip(pieces, counts, strict=True) if count == 1]
    # Undivided pieces are subtracted from the sum, so that they do not take parts away from the large ones.
    large_total, large_parts = total - sum(small), max(min_partitions - len(small), 1)
    return [
        part
        for piece, count in zip(pieces, counts, strict=True)
        for part in _cut(piece, 1 if count == 1 else _part_count(piece.size, large_total, large_parts))
    ]


def pack_tasks(
    pieces: Iterable[PartitionRange], *, tasks_max: int, max_records_per_task: int | None = None
) -> list[tuple[PartitionRange, ...]]:
    """Return tasks of about equal work. Each of up to `tasks_max` pieces has its own task; more pieces share tasks.
    Within a task, offsets of a partition ascend.

    `max_records_per_task` (maxRecordsPerPartition) is kept even if it needs more than `tasks_max` tasks. The pieces,
    the largest one first, go to the task with the least work: the heaviest task then has at most 4/3 of the work of the
    best packing. Deterministic.
    """
    rest = sorted(pieces)
    if len(rest) <= tasks_max:
        return [(piece,) for piece in rest]
    tasks: list[list[PartitionRange]] = [[] for _ in range(tasks_max)]
    records = [0] * tasks_max
    queue = [(0, task) for task in range(tasks_max)]
    rest.sort(key=lambda piece: -piece.size)
    for piece in rest:
        work, task = queue[0]
        if max_records_per_task is not None and tasks[task] and records[task] + piece.size > max_records_per_task:
            heapq.heappush(queue, (piece.size + TASK_OVERHEAD_RECORDS, len(tasks)))
            tasks.append([piece])
            records.append(piece.size)
            continue
        heapq.heapreplace(queue, (work + piece.size + TASK_OVERHEAD_RECORDS, task))
        tasks[task].append(piece)
        records[task] += piece.size
    return [tuple(sorted(task)) for task in tasks]


def _part_count(size: int, total: int, parts: int) -> int:
    """Return size / total * parts, rounded half up, at least 1."""
    return max((2 * size * parts + total) // (2 * total), 1)


def _cut(piece: PartitionRange, parts: int) -> Sequence[PartitionRange]:
    """Return `parts` pieces, or one per record if there are fewer. The last ones take the remainder of the division."""
    if parts == 1:
        return (piece,)
    parts = min(parts, piece.size)
    least, rest = divmod(piece.size, parts)
    bounds = [piece.start + least * at + max(0, at - (parts - rest)) for at in range(parts + 1)]
    return [PartitionRange(piece.topic_partition, start, end) for start, end in pairwise(bounds)]
