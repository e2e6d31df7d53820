"""Reads a topic for the command line, from a position to the current end, or continuously."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from kafka.structs import MemberState

from spark_log import clock
from spark_log.cluster.topics import Topic
from spark_log.errors import OffsetOutOfRangeError, UnknownTopicOrPartitionError
from spark_log.groups.group_operations import AtTime, Exactly, ResetTo, ShiftBy, parse_reset, reset_offset
from spark_log.ids import OffsetRange, TopicPartition
from spark_log.log.reader import LogReader
from spark_log.log.segments.slices import Positions

POLL_S = 1.0
"""The longest pause between two polls, because a notification of a change may be lost."""


def parse_position(text: str) -> ResetTo:
    """Parse option `--from`: earliest, latest, an offset, -10 (the last ten of each partition), a time such as
    2026-01-31T12:00:00Z (UTC without a zone), or @1769860800000. Raises ValueError, which says what is expected.
    """
    try:
        position = parse_reset(text)
    except ValueError:
        position = None
    if position is None or (isinstance(position, ShiftBy) and position.records >= 0):
        raise ValueError(
            f"expected earliest, latest, an offset, -N (the last N), a time as 2026-01-31T12:00:00Z, or @milliseconds;"
            f" got {text!r}"
        )
    return position


def _start_offset(position: ResetTo, partition: str, limits: Positions, at_time: int | None) -> int:
    """Return the first offset to read in `partition`, which has these limits.

    `at_time` is the first offset with the requested timestamp, or None if every record is older. Raises
    OffsetOutOfRangeError for an offset outside the limits.
    """
    low, high = limits.log_start_offset, limits.high_watermark
    if isinstance(position, Exactly) and not low <= position.offset <= high:
        raise OffsetOutOfRangeError(
            f"--from: {partition} has no offset {position.offset}: it starts at {low} and ends before {high}"
        )
    return reset_offset(position, limits, high, at_time)


@dataclass
class TopicReader:
    """Reads partitions of a topic from `next_offsets`, always below the high watermark."""

    log: LogReader
    topic: Topic
    partitions: Sequence[int] | None
    """The partitions to read. None means all partitions, including those that are added later."""
    next_offsets: dict[TopicPartition, int] = field(default_factory=dict)
    lost: dict[TopicPartition, int] = field(default_factory=dict)
    """The number of offsets that were deleted before they were read, by partition."""

    def seek(self, position: ResetTo) -> None:
        """Start at the position. Raises UnknownTopicOrPartitionError, OffsetOutOfRangeError."""
        limits = self._limits()
        times: Mapping[int, int | None] = {}
        if isinstance(position, AtTime):
            wanted = {tp.partition: position.timestamp_ms for tp in limits}
            times = self.log.offsets_for_times(self.topic, wanted)
        self.next_offsets = {
            tp: _start_offset(position, str(tp), limit, times.get(tp.partition)) for tp, limit in limits.items()
        }

    def read_available(self) -> Iterator[pa.RecordBatch]:
        """Yield the records below the current high watermark, by partition and offset.

        Raises UnknownTopicOrPartitionError or DataLossError if the topic has been deleted or created again.
        """
        limits = self._limits()
        ends = {tp: limit.high_watermark for tp, limit in limits.items()}
        while ranges := self._unread(limits, ends):
            try:
                for batch in self.log.read(ranges, topics={self.topic.name: self.topic}):
                    yield batch
                    last = batch.num_rows - 1
                    tp = TopicPartition(self.topic.name, batch.column("partition")[last].as_py())
                    self.next_offsets[tp] = batch.column("offset")[last].as_py() + 1
            except OffsetOutOfRangeError:
                limits = self._limits()  # retention has advanced the log start offset
                continue
            for tp, (_, end) in ranges.items():
                self.next_offsets[tp] = end  # compaction may have removed the last records of the range

    def _unread(
        self, limits: Mapping[TopicPartition, Positions], ends: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetRange]:
        """Return the ranges from the next offsets to the ends, within the limits. Count the lost offsets."""
        ranges: dict[TopicPartition, OffsetRange] = {}
        for tp, limit in limits.items():
            start = self.next_offsets.get(tp, limit.log_start_offset)  # a new partition is read from its start
            if start < limit.log_start_offset:
                self.lost[tp] = self.lost.get(tp, 0) + limit.log_start_offset - start
                self.next_offsets[tp] = start = limit.log_start_offset
            end = min(ends.get(tp, start), limit.high_watermark)
            if start < end:
                ranges[tp] = OffsetRange(start, end)
        return ranges

    def follow(self, idle_s: float | None) -> Iterator[pa.RecordBatch]:
        """Call `read_available` repeatedly. End after `idle_s` seconds without a record, or never if it is None."""
        quiet_since = clock.monotonic_s()
        while idle_s is None or clock.monotonic_s() - quiet_since < idle_s:
            seen = self.log.cluster.store.changes.current()
            for batch in self.read_available():
                yield batch
                quiet_since = clock.monotonic_s()
            self.log.cluster.store.changes.wait(seen, POLL_S if idle_s is None else min(POLL_S, idle_s))

    def _limits(self) -> dict[TopicPartition, Positions]:
        limits = self.log.positions(self.topic)
        if self.partitions is None:
            return limits
        chosen = [TopicPartition(self.topic.name, number) for number in self.partitions]
        for tp in chosen:
            if tp not in limits:
                raise UnknownTopicOrPartitionError(
                    f"partition {tp} does not exist: the topic has partitions 0 to {len(limits) - 1}"
                )
        return {tp: limits[tp] for tp in chosen}


def member_batches(consumer: Any, limit: int | None, follow: bool, idle_s: float | None) -> Iterator[pa.RecordBatch]:
    """Yield the batches that a member of a group reads. Commit those of a poll when the batch after them is requested.

    Without `follow`, end at the end offsets of the member's partitions, or at once if the group assigns it none.
    """
    left = limit
    quiet_since = clock.monotonic_s()
    while left is None or left > 0:
        polled = consumer.poll_arrow(timeout_ms=int(min(idle_s or 1, 1) * 1000), max_records=left)
        for table in polled.values():
            batches = table.to_batches() if isinstance(table, pa.Table) else [table]
            for batch in batches:
                left = None if left is None else left - batch.num_rows
                yield batch
        if polled:
            consumer.commit()
            quiet_since = clock.monotonic_s()
        elif follow and idle_s is not None and clock.monotonic_s() - quiet_since >= idle_s:
            return
        elif not follow and (consumer.assignment() or consumer.group_metadata().state == MemberState.STABLE):
            ends = consumer.end_offsets(sorted(consumer.assignment()))
            if all(consumer.position(tp) >= end for tp, end in ends.items()):
                return
