"""Buffers records between the segments and the user, within limits in bytes.

A segment is opened once and each of its row groups is read once, even if several polls return its records: a stream
keeps its place. The buffered bytes are bounded in total and per partition, but one batch is always allowed if nothing
could be returned otherwise.
"""

from collections import OrderedDict, deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
from kafka.structs import TopicPartition

STREAMS_MAX = 256
"""Maximum number of partitions whose segments are open at a time. Each may hold a file open."""


class Fetched(NamedTuple):
    """Records of one partition that all have one leader epoch."""

    partition: TopicPartition
    batch: pa.RecordBatch
    leader_epoch: int


class Stream:
    """The records of one partition with next_offset <= offset < end, read batch by batch with their leader epochs.

    `leader_epoch` and `rewrites` are those of the partition when the read was planned.
    """

    def __init__(
        self,
        next_offset: int,
        end: int,
        leader_epoch: int,
        source: Iterator[tuple[pa.RecordBatch, int]],
        rewrites: int = 0,
    ) -> None:
        self.next_offset = next_offset
        """Offset of the last record taken, plus 1. It equals the consumer's position, unless that was moved."""
        self.end = end
        """End offset of the plan. The last offsets before it may have no records: compaction leaves gaps."""
        self.leader_epoch, self.rewrites = leader_epoch, rewrites
        self.held_bytes = 0
        self._source: Iterator[tuple[pa.RecordBatch, int]] | None = source
        self._batches: deque[tuple[pa.RecordBatch, int, int]] = deque()
        self._row = 0

    @property
    def has_rows(self) -> bool:
        return bool(self._batches)

    @property
    def ended(self) -> bool:
        """Whether all records have been read and taken."""
        return self._source is None and not self._batches

    def advance(self) -> bool:
        """Read one more batch; return False if there is none. Raises the errors of reading."""
        if self._source is None:
            return False
        read = next(self._source, None)
        if read is None:
            self._source = None
            return False
        batch, leader_epoch = read
        if batch.num_rows:
            size = batch.get_total_buffer_size()
            self._batches.append((batch, leader_epoch, size))
            self.held_bytes += size
        return True

    def take(self, rows_max: int | None) -> tuple[pa.RecordBatch, int, int] | None:
        """Return the next records of one batch, their leader epoch and size in bytes; None if no batch is buffered."""
        if not self._batches:
            return None
        batch, leader_epoch, size = self._batches[0]
        left = batch.num_rows - self._row
        rows = left if rows_max is None else min(left, rows_max)
        taken = batch if rows == batch.num_rows else batch.slice(self._row, rows)
        if rows == left:
            self._batches.popleft()
            self._row = 0
            self.held_bytes -= size
        else:
            self._row += rows
        self.next_offset = taken.column("offset")[rows - 1].as_py() + 1
        return taken, leader_epoch, size * rows // batch.num_rows


@dataclass(frozen=True)
class Limits:
    """Maximum bytes of records to buffer in total and per partition, and to return from one call."""

    total_bytes: int
    partition_bytes: int


class Buffers:
    """The streams of a consumer. Partitions take turns: after returning records, a partition moves to the end."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._streams: OrderedDict[TopicPartition, Stream] = OrderedDict()
        self._error: tuple[TopicPartition, int, Exception] | None = None
        """An error of reading that `take` will raise, with the position at which it is due."""

    def __contains__(self, partition: TopicPartition) -> bool:
        return partition in self._streams

    @property
    def held_bytes(self) -> int:
        return sum(stream.held_bytes for stream in self._streams.values())

    def room(self) -> int:
        """Return the number of partitions that may be planned now."""
        if self.held_bytes >= self._limits.total_bytes:
            return 0 if self._any_rows() else 1
        return STREAMS_MAX - sum(stream.has_rows for stream in self._streams.values())

    def add(self, partition: TopicPartition, stream: Stream) -> None:
        while len(self._streams) >= STREAMS_MAX:
            # no buffered record is lost: the unread rest of this stream is planned again
            idle = next((name for name, other in self._streams.items() if not other.has_rows), None)
            if idle is None:
                return
            del self._streams[idle]
        self._streams[partition] = stream

    def drop(self, partition: TopicPartition) -> None:
        """Drop the stream of a partition, and its error, if not raised yet."""
        self._streams.pop(partition, None)
        if self._error is not None and self._error[0] == partition:
            self._error = None

    def keep_only(self, partitions: Collection[TopicPartition]) -> None:
        for partition in [name for name in self._streams if name not in partitions]:
            del self._streams[partition]

    def items(self) -> list[tuple[TopicPartition, Stream]]:
        return list(self._streams.items())

    def settle(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, Stream]:
        """Drop the streams that ended, and those whose partition's position was moved.

        Return the ended streams whose plan has no records at its last offsets: their positions move to `end`.
        """
        if self._error is not None and positions.get(self._error[0]) != self._error[1]:
            self._error = None
        moved: dict[TopicPartition, Stream] = {}
        for partition, stream in list(self._streams.items()):
            position = positions.get(partition)
            if position is None:
                continue
            if position != stream.next_offset:
                del self._streams[partition]
            elif stream.ended:
                del self._streams[partition]
                if stream.end > position:
                    moved[partition] = stream
        return moved

    def take(self, partitions: Collection[TopicPartition], rows_max: int | None) -> list[Fetched]:
        """Return records of these partitions in round-robin order, and in offset order within a partition.

        An error of reading is raised at once if there are no records to return, otherwise by the next call. The
        failed stream is dropped, so that the partition is planned again.
        """
        if self._error is not None:
            (_, _, error), self._error = self._error, None
            raise error
        taken: list[Fetched] = []
        bytes_taken = 0
        turns = [name for name in self._streams if name in partitions]
        for partition in turns:
            stream = self._streams[partition]
            bytes_here = 0
            gave = False
            while rows_max is None or rows_max > 0:
                piece = stream.take(rows_max)
                if piece is not None:
                    batch, leader_epoch, size = piece
                    taken.append(Fetched(partition, batch, leader_epoch))
                    gave = True
                    bytes_here += size
                    bytes_taken += size
                    if rows_max is not None:
                        rows_max -= batch.num_rows
                    continue
                full = (
                    bytes_here + stream.held_bytes >= self._limits.partition_bytes
                    or bytes_taken + self.held_bytes >= self._limits.total_bytes
                )
                if full and (taken or any(self._streams[name].has_rows for name in turns)):
                    break
                try:
                    if not stream.advance():
                        break
                except Exception as error:
                    del self._streams[partition]
                    if not taken:
                        raise
                    self._error = partition, stream.next_offset, error
                    return taken
            if gave:
                self._streams.move_to_end(partition)
            if rows_max == 0:
                break
        return taken

    def _any_rows(self) -> bool:
        return any(stream.has_rows for stream in self._streams.values())
