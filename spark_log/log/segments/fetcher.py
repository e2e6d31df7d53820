"""Reads slices from log dirs, on executors and in consumers, without the metadata store."""

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from spark_log import clock
from spark_log.cluster.files.disk_calls import DiskCalls, Use
from spark_log.cluster.log_dir import LogDir, open_log_dir, segment_path
from spark_log.errors import (
    CorruptRecordError,
    LogDirMismatchError,
    SparkLogError,
    StorageUnavailableError,
    UnsafePathError,
    redact,
)
from spark_log.ids import LogDirId
from spark_log.log.records import inline, segment_open, segment_read
from spark_log.log.records.read_shape import ReadShape
from spark_log.log.records.schema import TimestampType
from spark_log.log.segments.field_filters import group_excluded
from spark_log.log.segments.segment_copy import SegmentFile, repair
from spark_log.log.segments.slices import FieldFilter, LogDirs, Slice, TimestampBounds
from spark_log.log.segments.typed_columns import has_present_columns, read_with_columns, wants_columns

logger = logging.getLogger(__name__)

T = TypeVar("T")

_ALL_TIMES = TimestampBounds()
_SMALL_BYTES = 1 << 20
BAD_REPLICA = (CorruptRecordError, StorageUnavailableError, LogDirMismatchError, UnsafePathError)
"""Errors after which another replica is tried: missing or damaged bytes, or a log dir that is unavailable, swapped, or
replaced by a symbolic link."""

_AWAY_S = 30.0
"""After this time, `renewal_due` asks for another attempt to open the log dirs that could not be opened."""


class Fetcher:
    """Reads slices from the log dirs of a plan. Each log dir is opened once and checked against its id in the metadata.

    If a replica is bad, the slice is read from the next one, and the bad replica is repaired afterwards. Not
    thread-safe.
    """

    def __init__(self, log_dirs: LogDirs, look_up: Callable[[], LogDirs] | None = None) -> None:
        """`look_up` is the argument of `renew`."""
        self.passed_over = 0
        """Number of bad replicas for which a read took another replica."""
        self.repaired = 0
        """Number of bad replicas that were repaired."""
        self._infos = log_dirs
        self._look_up = look_up
        self._open: dict[LogDirId, LogDir] = {}
        self._away: set[LogDirId] = set()
        """Log dirs that could not be opened. They are tried after all others."""
        self._unrepairable: set[LogDirId] = set()
        """Log dirs in which a repair failed. No other repair is tried there."""
        self._away_since_s: float | None = None

    def renewal_due(self, slices: Iterable[Slice]) -> bool:
        """Return whether to call `renew`, because a slice is in an unknown log dir or an unavailable log dir may have
        become available.
        """
        if self._away_since_s is not None and clock.monotonic_s() - self._away_since_s >= _AWAY_S:
            return True
        return not {log_dir_id for piece in slices for log_dir_id in piece.log_dir_ids} <= self._infos.keys()

    def renew(self, look_up: Callable[[], LogDirs]) -> None:
        """From now on use the log dirs that `look_up` returns, and try the failed ones again. `look_up` is called again
        when no replica of a segment can be read, because a log dir may have been replaced by an empty one meanwhile.
        """
        self._look_up = look_up
        self._use(look_up())

    def _use(self, log_dirs: LogDirs) -> None:
        self._infos = log_dirs
        self._open.clear()
        self._away.clear()
        self._unrepairable.clear()
        self._away_since_s = None

    def read(
        self,
        slices: Iterable[Slice],
        schema: pa.Schema,
        times: TimestampBounds = _ALL_TIMES,
        filters: Sequence[FieldFilter] = (),
    ) -> Iterator[pa.RecordBatch]:
        """Yield batches of `schema` (a result of `read_schema`), in the order of the slices. A row group is skipped if
        its statistics prove that none of its records is within `times`, or that none passes the filters.

        Raises the error of `all_replicas_bad_error` if no replica of a segment is good; InvalidOptionError if the topic
        does not have the typed columns of `schema`.
        """
        for piece in slices:
            read = partial(self._read_stored, times=times, filters=filters if has_present_columns(piece) else ())
            yield from read_with_columns(read, piece, schema) if wants_columns(schema) else read(piece, schema)

    def _read_stored(
        self, piece: Slice, schema: pa.Schema, times: TimestampBounds, filters: Sequence[FieldFilter]
    ) -> Iterator[pa.RecordBatch]:
        return _read_inline(piece, schema) if piece.data is not None else self._read_file(piece, schema, times, filters)

    def first_offset_at_or_after(self, piece: Slice, timestamp_ms: int) -> int | None:
        """Return the offset of the slice's first record with timestamp >= `timestamp_ms`, None if there is none."""
        if piece.data is not None:
            wanted = pa.schema([("offset", pa.int64()), ("timestamp", pa.timestamp("us", "UTC"))])
            for batch in _read_inline(piece, wanted):
                micros = batch.column("timestamp").cast(pa.int64()).to_numpy()
                hits = (micros >= timestamp_ms * 1000).nonzero()[0]
                if len(hits):
                    return int(batch.column("offset")[int(hits[0])].as_py())
            return None

        def search(parquet: pq.ParquetFile, location: str) -> Iterator[int | None]:
            yield segment_read.first_offset_at_or_after(parquet, piece.base_offset, timestamp_ms, piece.start, location)

        (offset,) = self._read_with_failover(piece, search)
        return offset if offset is not None and offset < piece.end else None

    def _read_file(
        self, piece: Slice, schema: pa.Schema, times: TimestampBounds, filters: Sequence[FieldFilter]
    ) -> Iterator[pa.RecordBatch]:
        shape = _shape(piece, schema)
        skip = partial(group_excluded, filters, piece.columns.fields) if filters and piece.columns else None

        def decode(parquet: pq.ParquetFile, location: str) -> Iterator[pa.RecordBatch]:
            return segment_read.read_slice(
                parquet, shape, start=piece.start, end=piece.end, min_timestamp_ms=times.min_ms,
                max_timestamp_ms=times.max_ms, path=location, skip=skip,
            )  # fmt: skip

        return self._read_with_failover(piece, decode)

    def _read_with_failover(self, piece: Slice, read: Callable[[pq.ParquetFile, str], Iterator[T]]) -> Iterator[T]:
        """Yield the results of `read` on the segment, each once and in order, even if some replicas are bad.

        Replicas have equal bytes, so `read` yields the same results on each of them. The next replica continues after
        the last result that was yielded.
        """
        yielded = 0
        while True:
            bad: dict[LogDirId, SparkLogError] = {}
            for log_dir_id in sorted(piece.log_dir_ids, key=self._away.__contains__):
                try:
                    log_dir = self._log_dir(log_dir_id)
                    items = _items(piece, log_dir, read, yielded)
                    for item in self._in_time(items, log_dir_id) if log_dir.local else items:
                        yielded += 1
                        held = [item]
                        del item  # so that, while this generator is suspended, only the caller keeps the batch
                        yield held.pop()
                except BAD_REPLICA as error:
                    bad[log_dir_id] = error
                else:
                    self.passed_over += len(bad)
                    for bad_id, why in bad.items():
                        self._repair_replica(piece, bad_id, why, self._open[log_dir_id])
                    return
            if not self._log_dirs_changed():
                raise all_replicas_bad_error(piece, list(bad.values()))

    def _in_time(self, items: Iterator[T], log_dir_id: LogDirId) -> Iterator[T]:
        """Yield the items, which a thread reads (DiskCalls). Raises StorageUnavailableError if the disk or mount hangs,
        as another replica may answer.
        """
        calls = DiskCalls(self._infos[log_dir_id].uri, Use.READS)
        ended = False
        while not ended:
            try:
                held, ended = calls.run(partial(_some, items))
            except StorageUnavailableError as error:
                if calls.refused:
                    self._open.pop(log_dir_id, None)  # no repair is tried there
                    self._note_away(log_dir_id, str(error))
                raise
            while held:  # so that, while this generator is suspended, only the caller keeps the batch
                yield held.pop(0)

    def _log_dirs_changed(self) -> bool:
        """Look the log dirs up again. If they differ, use them and return True."""
        if self._look_up is None:
            return False
        try:
            infos = self._look_up()
        except SparkLogError as error:
            logger.warning("log dirs cannot be looked up again: %s", redact(str(error)))
            return False
        if infos == self._infos:
            return False
        self._use(infos)
        return True

    def _log_dir(self, log_dir_id: LogDirId) -> LogDir:
        if log_dir_id not in self._open:
            self._open[log_dir_id] = self._verified(log_dir_id)
        return self._open[log_dir_id]

    def _verified(self, log_dir_id: LogDirId) -> LogDir:
        try:
            if log_dir_id not in self._infos:
                raise LogDirMismatchError(f"log dir {log_dir_id} was added or removed while the read was planned")
            return open_log_dir(self._infos[log_dir_id])
        except BAD_REPLICA as error:
            self._open.pop(log_dir_id, None)
            self._note_away(log_dir_id, str(error))
            raise

    def _note_away(self, log_dir_id: LogDirId, why: str) -> None:
        if log_dir_id not in self._away:
            logger.warning("log dir %s is unavailable, no replica in it is read: %s", log_dir_id, redact(why))
            self._away.add(log_dir_id)
        self._away_since_s = self._away_since_s or clock.monotonic_s()

    def _repair_replica(self, piece: Slice, bad_id: LogDirId, why: SparkLogError, good: LogDir) -> None:
        """Repair the bad replica from the good one that was read, unless its log dir is unavailable."""
        if bad_id not in self._open or bad_id in self._unrepairable:
            return
        with contextlib.suppress(*BAD_REPLICA):
            target = self._open[bad_id] = self._verified(bad_id)  # verified again: another disk may be mounted by now
            path = _path(piece)
            whole = repair(target, good, SegmentFile(path, piece.size, piece.checksum))
            self.repaired += whole
            if not whole:
                self._unrepairable.add(bad_id)
            logger.warning(
                "%s-%s: segment %s was bad and %s %s: %s",
                piece.topic, piece.partition, piece.name, "is repaired from" if whole else "was read from",
                good.location(path), redact(str(why)),
            )  # fmt: skip


def _some(items: Iterator[T]) -> tuple[list[T], bool]:
    """Return the next item, or the next two if the first is small, and whether the iterator has ended. A call runs in
    another thread, and this way a file with one small item, the usual case, takes only one call.
    """
    some = list(islice(items, 1))
    if some and getattr(some[0], "nbytes", 0) >= _SMALL_BYTES:
        return some, False
    after = list(islice(items, 1)) if some else []
    return some + after, not after


def _items(
    piece: Slice, log_dir: LogDir, read: Callable[[pq.ParquetFile, str], Iterator[T]], first: int
) -> Iterator[T]:
    yield from islice(read(_open_segment(piece, log_dir), log_dir.location(_path(piece))), first, None)


def _open_segment(piece: Slice, log_dir: LogDir) -> pq.ParquetFile:
    path = _path(piece)
    expected = segment_open.ExpectedSegment(log_dir.location(path), piece.size, piece.record_count)
    return segment_open.open_segment(log_dir.open(path), expected)


def _path(piece: Slice) -> str:
    return segment_path(piece.folder, piece.partition, piece.name)


def _read_inline(piece: Slice, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    assert piece.data is not None
    records = inline.decode(piece.data, piece.checksum, piece.record_count)
    return inline.slice_batches(records, _shape(piece, schema), start=piece.start, end=piece.end)


def _shape(piece: Slice, schema: pa.Schema) -> ReadShape:
    return ReadShape(piece.topic, piece.partition, piece.base_offset, TimestampType(piece.timestamp_type), schema)


def all_replicas_bad_error(piece: Slice, errors: Sequence[SparkLogError]) -> SparkLogError:
    """Return the error of a read for which all replicas failed. It is the error of the replica if there is only one;
    otherwise StorageUnavailableError if one of the errors is retriable, else CorruptRecordError.
    """
    if len(errors) == 1:
        return errors[0]
    kind = StorageUnavailableError if any(error.retriable for error in errors) else CorruptRecordError
    return kind(
        f"{piece.topic}-{piece.partition}: no replica has segment {piece.name} with offsets from {piece.base_offset}"
        f" whole: {redact('; '.join(map(str, errors))) or 'all their log end offsets are below'}"
    )
