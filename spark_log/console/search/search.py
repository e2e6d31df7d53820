"""Searches a topic for matching records, from a position forwards or backwards, within a budget.

A search has rounds. Each round reads a range of offsets of each partition with remaining offsets, and takes an equal
share of the wanted records from each. With conditions, only their columns are read first. Matching records are then
read with all columns. A search reads up to the high watermark (read_committed). Uses Arrow throughout.

The budget is checked after each step of at most STEP_RECORDS records. A search may exceed the budget by the data that
is decoded at once, which is a row group, and a backward search by the CHUNK_BYTES of files that are read at once.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
from starlette.exceptions import HTTPException

from spark_log import clock
from spark_log.cluster.topics import Topic
from spark_log.console.search.batch_columns import any_header
from spark_log.console.search.filter import Filter
from spark_log.console.search.position import Position
from spark_log.errors import OffsetOutOfRangeError
from spark_log.ids import OffsetRange, TopicPartition
from spark_log.log.columns.field_paths import part_on_paths
from spark_log.log.reader import LogReader
from spark_log.log.records.schema import read_schema
from spark_log.log.segments.fetcher import Fetcher
from spark_log.log.segments.file_pruning import without_excluded
from spark_log.log.segments.slices import Slice

_FORWARDS, _BACKWARDS = (1 << 16, 1 << 22), (1 << 12, 1 << 18)
"""The number of offsets of the first and of the largest round of a partition, in a search with conditions."""

STEP_RECORDS = 4_096
_STEP_BYTES = 4 << 20
CHUNK_BYTES = 16 << 20
_CHUNK_RECORDS = 4_096


@dataclass(frozen=True)
class Conditions:
    """The conditions of a search. A record matches if all are true.

    `key` is the exact bytes of the key. `header` is a name, and a value or None for any value.
    """

    key: bytes | None = None
    header: tuple[str, bytes | None] | None = None
    filter: Filter | None = None

    def __bool__(self) -> bool:
        return self != Conditions()

    @property
    def columns(self) -> frozenset[str]:
        own = frozenset(["key"] if self.key is not None else []) | frozenset(["headers"] if self.header else [])
        return own | (self.filter.columns if self.filter else frozenset())

    def mask(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        """Return whether each record of a batch with these columns matches."""
        found = pa.repeat(True, batch.num_rows)
        if self.key is not None:
            found = pc.fill_null(pc.equal(batch.column("key"), pa.scalar(self.key, pa.binary())), False)
        if self.header is not None:
            found = pc.and_(found, any_header(batch.column("headers"), *self.header))
        return found if self.filter is None else pc.and_(found, self.filter.mask(batch))


@dataclass
class Budget:
    """The limits of a search. The search stops when it reaches one. `stopped` returns whether it must stop at once, and
    is called often.
    """

    bytes_max: int
    seconds_max: float
    stopped: Callable[[], bool] = lambda: False
    used_bytes: int = 0
    started_s: float = field(default_factory=clock.monotonic_s)

    @property
    def spent(self) -> bool:
        return self.used_bytes >= self.bytes_max or self.seconds >= self.seconds_max or self.stopped()

    @property
    def seconds(self) -> float:
        return clock.monotonic_s() - self.started_s


class Search:
    """One search. Iterate `batches`, then read the other attributes.

    `position` is where the next search continues. `records` is the number of records that were examined. `matched` is
    the number of records that were returned. `complete` is whether all ranges have been read.
    """

    def __init__(
        self, log: LogReader, topic: Topic, position: Position, conditions: Conditions, count: int, budget: Budget
    ) -> None:
        self.position, self.budget = position, budget
        self.records = self.matched = 0
        self.complete = False
        self._log, self._topic, self._conditions, self._count = log, topic, conditions, count
        typed = topic.columns.fields if topic.columns is not None else None
        self._whole = read_schema(include_headers=True, typed=typed)
        self._narrow = _narrow_schema(conditions, typed)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the matching records with all columns, ordered by partition and offset within each round."""
        first, largest = _BACKWARDS if self.position.backwards else _FORWARDS
        size = self.position.window or (first if self._conditions else 1)
        while self.matched < self._count and not self.budget.spent:
            at = self._log.positions(self._topic)
            self.position.stay_within({tp.partition: limits for tp, limits in at.items()})
            left = self.position.unread()
            if not left:
                self.complete = True
                return
            if not self._conditions:
                left = sorted(sorted(left, key=self.position.gone)[: self._count - self.matched])
            share = -(-(self._count - self.matched) // len(left))
            length = max(size, share)
            if self.position.window is not None:
                length, share = size, min(size, share)
            try:
                yield from self._round({p: self.position.window_of(p, length) for p in left}, share)
            except OffsetOutOfRangeError:
                continue  # retention has advanced a log start offset meanwhile
            size = min(length * 4, largest)
        self.complete = not self.position.unread()

    def _round(self, ranges: dict[int, OffsetRange], share: int) -> Iterator[pa.RecordBatch]:
        name = self._topic.name
        wanted = {TopicPartition(name, partition): found for partition, found in ranges.items()}
        plan = self._log.plan(wanted, topics={name: self._topic})
        slices = plan.slices
        if self._conditions.filter is not None and self._conditions.filter.prunes:
            prunes, topics = self._conditions.filter.prunes, {name: self._topic}
            slices = self._log.cluster.of(self._topic).store.read(
                lambda connection: without_excluded(connection, topics, plan.slices, prunes)
            )
        fetcher = Fetcher(plan.log_dirs)
        by_partition: dict[int, list[Slice]] = {}
        for piece in slices:
            by_partition.setdefault(piece.partition, []).append(piece)
        for partition, window in ranges.items():
            pieces = by_partition.get(partition, [])
            part = min(share, self._count - self.matched)
            if self.budget.spent or part <= 0:
                return
            read = self._backwards if self.position.backwards else self._forwards
            for batch in read(fetcher, partition, window, pieces, part):
                self.matched += batch.num_rows
                held = [batch]
                del batch
                yield held.pop()

    def _forwards(
        self, fetcher: Fetcher, partition: int, window: OffsetRange, pieces: list[Slice], records_left: int
    ) -> Iterator[pa.RecordBatch]:
        for piece in pieces:
            for offsets, end in self._hits(fetcher, piece):
                for batch in self._whole_records(fetcher, [piece], OffsetRange(piece.start, piece.end), offsets):
                    held = [batch.slice(0, records_left)]
                    records_left -= held[0].num_rows
                    after = int(held[0].column("offset")[-1].as_py()) + 1
                    del batch  # while the next row group is decoded, only the caller may keep this one in memory
                    yield held.pop()
                    self.position.move(partition, after)
                    if records_left == 0 or self.budget.spent:
                        return
                self.position.move(partition, end)
                if self.budget.spent:
                    return
            self.position.move(partition, piece.end)
        self.position.move(partition, window.end)

    def _backwards(
        self, fetcher: Fetcher, partition: int, window: OffsetRange, pieces: list[Slice], limit: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield the last `limit` records of the window, beginning with their last chunk."""
        last: pa.Array | None = None
        if self._conditions:
            last = pa.array([], pa.int64())
            for piece in pieces:
                for offsets, _ in self._hits(fetcher, piece):
                    last = pa.concat_arrays([last, offsets])[-limit:]
                    if self.budget.spent and window.size > 1:  # the next search has a smaller window, which fits
                        self.position.window = max(1, window.size // 8)
                        return
            # with fewer hits than the limit, the whole window has been read
            start = int(last[0].as_py()) if len(last) == limit else window.start
        else:
            start = max(window.start, window.end - limit)
        for here, offsets in _chunks(pieces, OffsetRange(start, window.end), last):
            yield from self._whole_records(fetcher, pieces, here, offsets)
            self.position.move(partition, here.start)
            if self.budget.spent:
                return
        self.position.move(partition, start)

    def _hits(self, fetcher: Fetcher, piece: Slice) -> Iterator[tuple[pa.Array | None, int]]:
        """Yield the offsets of matching records of each batch of a slice, and the offset after the examined records.

        Without conditions, yield None for the whole slice, and read nothing.
        """
        if not self._conditions:
            yield None, piece.end
            return
        prunes = self._conditions.filter.prunes if self._conditions.filter else ()
        for batch in fetcher.read([piece], self._narrow, filters=prunes):
            matching = []
            for step in _steps(batch):
                self.budget.used_bytes += step.nbytes
                self.records += step.num_rows
                offsets = step.column("offset")
                matching.append(offsets.filter(self._conditions.mask(step)))
                if self.budget.spent:
                    break
            end = int(offsets[-1].as_py()) + 1
            del batch, step, offsets  # not kept while the next row group is decoded
            yield pa.concat_arrays(matching), end

    def _whole_records(
        self, fetcher: Fetcher, pieces: list[Slice], window: OffsetRange, offsets: pa.Array | None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records of the window with all columns, in steps. With `offsets`, yield only the records at these
        offsets.
        """
        start, end = window
        if offsets is not None:
            if not len(offsets):
                return
            start, end = int(offsets[0].as_py()), int(offsets[-1].as_py()) + 1
        inside = [piece for piece in pieces if piece.start < end and piece.end > start]
        cut = [piece._replace(start=max(piece.start, start), end=min(piece.end, end)) for piece in inside]
        for batch in fetcher.read(cut, self._whole):
            self.budget.used_bytes += batch.nbytes
            if offsets is None:
                self.records += batch.num_rows
            else:
                wanted = pc.is_in(batch.column("offset"), offsets)
                if not pc.all(wanted).as_py():
                    batch = batch.filter(wanted)
            steps = _steps(batch)
            del batch
            yield from steps


class RunningSearches:
    """The running searches, by name. A new search of a name stops the previous one. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[str, threading.Event] = {}

    @property
    def count(self) -> int:
        """The number of names with a running search."""
        with self._lock:
            return len(self._running)

    @contextmanager
    def of(self, name: str, most: int | None = None) -> Iterator[Callable[[], bool]]:
        """Begin a search. Yields a function that returns whether a later search has begun and this one must stop.

        `most` is the maximum number of names with a running search. Raises HTTPException 503 if it is reached.
        """
        superseded = threading.Event()
        with self._lock:
            if most is not None and len(self._running.keys() - {name}) >= most:
                raise HTTPException(503, f"There are {most} searches at the moment: try again later.")
            if name in self._running:
                self._running[name].set()
            self._running[name] = superseded
        try:
            yield superseded.is_set
        finally:
            with self._lock:
                if self._running.get(name) is superseded:
                    del self._running[name]


def _steps(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield the batch in slices, so that little time passes and little memory is used until the budget is checked
    again.
    """
    size = max(1, min(STEP_RECORDS, batch.num_rows * _STEP_BYTES // max(1, batch.nbytes)))
    for first in range(0, batch.num_rows, size):
        yield batch.slice(first, size)


def _chunks(
    pieces: list[Slice], window: OffsetRange, offsets: pa.Array | None
) -> Iterator[tuple[OffsetRange, pa.Array | None]]:
    """Yield the window in ranges, from its end to its start, each with its part of the offsets.

    A range has about CHUNK_BYTES in files, because a backward search cannot stop within a range.
    """
    stored, records = sum(piece.size for piece in pieces), sum(piece.record_count for piece in pieces)
    size = max(1, min(_CHUNK_RECORDS, CHUNK_BYTES * records // max(1, stored)))
    if offsets is None:
        for end in range(window.end, window.start, -size):
            yield OffsetRange(max(window.start, end - size), end), None
        return
    for last in range(len(offsets), 0, -size):
        part = offsets[max(0, last - size) : last]
        yield OffsetRange(int(part[0].as_py()), int(part[-1].as_py()) + 1), part


def _narrow_schema(conditions: Conditions, typed: pa.StructType | None) -> pa.Schema:
    """Return the schema with the columns that the conditions need."""
    paths = conditions.filter.typed if conditions.filter else frozenset()
    fields = typed and part_on_paths(typed, list(paths)) if paths else None
    names = [*({"offset"} | conditions.columns), *(path[0] for path in paths)]
    return read_schema(include_headers=True, columns=list(dict.fromkeys(names)), typed=fields)
