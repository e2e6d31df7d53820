"""Searches of a topic: the records that match, from a position forwards or backwards, within a budget.

A search goes in rounds. Each round reads a range of offsets of each partition that has some left, and takes an equal
share of the wanted records of each. First only the columns of the conditions are read; where records match, these are
read whole. Readers see records up to the high watermark, which is read_committed. Arrow throughout.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from spark_log import clock
from spark_log.cluster.topics import Topic
from spark_log.columns.field_paths import part_on_paths
from spark_log.console.search.batch_columns import any_header
from spark_log.console.search.filter import Filter
from spark_log.console.search.position import Position
from spark_log.errors import OffsetOutOfRangeError
from spark_log.ids import OffsetRange, TopicPartition
from spark_log.log.reader import LogReader
from spark_log.records.schema import read_schema
from spark_log.segments.fetcher import Fetcher
from spark_log.segments.file_pruning import without_excluded
from spark_log.segments.slices import Slice

_FORWARDS, _BACKWARDS = (1 << 16, 1 << 22), (1 << 12, 1 << 18)
"""With conditions: offsets of the first and of the largest round of a partition."""


@dataclass(frozen=True)
class Conditions:
    """A record matches if all are true. `key`: exact bytes. `header`: its name, and its value unless that is None."""

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
        """Whether each record of a batch with these columns matches."""
        found = pa.repeat(True, batch.num_rows)
        if self.key is not None:
            found = pc.fill_null(pc.equal(batch.column("key"), pa.scalar(self.key, pa.binary())), False)
        if self.header is not None:
            found = pc.and_(found, any_header(batch.column("headers"), *self.header))
        return found if self.filter is None else pc.and_(found, self.filter.mask(batch))


@dataclass
class Budget:
    """What a search may use; then it stops where it is. `stopped`: whether it is to stop at once, asked often."""

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
    """One search. Iterate `batches`, then read the other attributes; `position` is where the next search continues.

    `records`: how many it has looked at. `matched`: how many it has given. `complete`: whether all ranges are done.
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
        """The matching records with all columns, by partition and offset within each round."""
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
                left = left[: self._count - self.matched]
            share = -(-(self._count - self.matched) // len(left))
            length = max(size, share)
            if self.position.window is not None:
                length, share = size, min(size, share)
            try:
                yield from self._round({p: self.position.window_of(p, length) for p in left}, share)
            except OffsetOutOfRangeError:
                continue  # retention has moved a log start offset meanwhile
            size = min(length * 4, largest)
        self.complete = not self.position.unread()

    def _round(self, ranges: dict[int, OffsetRange], share: int) -> Iterator[pa.RecordBatch]:
        name = self._topic.name
        wanted = {TopicPartition(name, partition): found for partition, found in ranges.items()}
        plan = self._log.plan(wanted, topics={name: self._topic})
        slices = plan.slices
        if self._conditions.filter is not None and self._conditions.filter.prunes:
            prunes, topics = self._conditions.filter.prunes, {name: self._topic}
            slices = self._log.cluster.store.read(
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
                yield batch

    def _forwards(
        self, fetcher: Fetcher, partition: int, window: OffsetRange, pieces: list[Slice], wanted: int
    ) -> Iterator[pa.RecordBatch]:
        for piece in pieces:
            for offsets, end in self._hits(fetcher, piece):
                taken = offsets[:wanted]
                yield from self._fetched(fetcher, [piece], taken)
                wanted -= len(taken)
                full = wanted == 0
                self.position.move(partition, int(taken[-1].as_py()) + 1 if full else end)
                if full or self.budget.spent:
                    return
            self.position.move(partition, piece.end)
        self.position.move(partition, window.end)

    def _backwards(
        self, fetcher: Fetcher, partition: int, window: OffsetRange, pieces: list[Slice], wanted: int
    ) -> Iterator[pa.RecordBatch]:
        last = pa.array([], pa.int64())
        for piece in pieces:
            for offsets, _ in self._hits(fetcher, piece):
                last = pa.concat_arrays([last, offsets])[-wanted:]
                if self.budget.spent and window.size > 1:  # continued with a smaller window, so that one fits a budget
                    self.position.window = max(1, window.size // 8)
                    return
        # with fewer hits than wanted, all below the last of them has been read
        full = len(last) == wanted
        yield from self._fetched(fetcher, pieces, last)
        self.position.move(partition, int(last[0].as_py()) if full else window.start)

    def _hits(self, fetcher: Fetcher, piece: Slice) -> Iterator[tuple[pa.Array, int]]:
        """Offsets of matching records of each batch of a slice, and the offset after the batch."""
        prunes = self._conditions.filter.prunes if self._conditions.filter else ()
        for batch in fetcher.read([piece], self._narrow, filters=prunes):
            self.budget.used_bytes += batch.nbytes
            self.records += batch.num_rows
            offsets = batch.column("offset")
            found = offsets.filter(self._conditions.mask(batch)) if self._conditions else offsets
            del batch  # not kept while the next row group is decoded
            yield found, int(offsets[-1].as_py()) + 1

    def _fetched(self, fetcher: Fetcher, pieces: list[Slice], offsets: pa.Array) -> Iterator[pa.RecordBatch]:
        """These records, whole."""
        if not len(offsets):
            return
        start, end = int(offsets[0].as_py()), int(offsets[-1].as_py()) + 1
        inside = [piece for piece in pieces if piece.start < end and piece.end > start]
        cut = [piece._replace(start=max(piece.start, start), end=min(piece.end, end)) for piece in inside]
        for batch in fetcher.read(cut, self._whole):
            self.budget.used_bytes += batch.nbytes
            wanted = pc.is_in(batch.column("offset"), offsets)
            if not pc.all(wanted).as_py():
                batch = batch.filter(wanted)
            held = [batch]
            del batch
            if held[0].num_rows:
                yield held.pop()


def _narrow_schema(conditions: Conditions, typed: pa.StructType | None) -> pa.Schema:
    """The columns that the conditions need."""
    paths = conditions.filter.typed if conditions.filter else frozenset()
    fields = typed and part_on_paths(typed, list(paths)) if paths else None
    names = [*({"offset"} | conditions.columns), *(path[0] for path in paths)]
    return read_schema(include_headers=True, columns=list(dict.fromkeys(names)), typed=fields)
