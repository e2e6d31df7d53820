"""Reading slices: on executors, in consumers, wherever. Needs log dirs, not the metadata store."""

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from spark_log.cluster.log_dir import LogDir, open_log_dir, segment_path
from spark_log.errors import CorruptRecordError, LogDirMismatchError, StorageUnavailableError
from spark_log.ids import LogDirId
from spark_log.log.slices import LogDirs, Slice, TimestampBounds
from spark_log.records import inline, segment_file
from spark_log.records.schema import TimestampType

_ALL_TIMES = TimestampBounds()


class Fetcher:
    """Reads slices from the log dirs of a plan, each opened once and checked to be the one that the metadata means."""

    def __init__(self, log_dirs: LogDirs) -> None:
        self._infos = log_dirs
        self._open: dict[LogDirId, LogDir] = {}

    def read(
        self, slices: Iterable[Slice], schema: pa.Schema, times: TimestampBounds = _ALL_TIMES
    ) -> Iterator[pa.RecordBatch]:
        """Batches of `schema` (a result of `read_schema`), in the order of the slices.

        A replica whose bytes fail their checksum is passed over for the next one; CorruptRecordError if it was the
        last.
        """
        for piece in slices:
            if piece.data is not None:
                yield from _read_inline(piece, schema)
            else:
                yield from self._read_file(piece, schema, times)

    def first_offset_at_or_after(self, piece: Slice, timestamp_ms: int) -> int | None:
        """Offset of the slice's first record with timestamp >= the given one, None if it has none."""
        if piece.data is not None:
            wanted = pa.schema([("offset", pa.int64()), ("timestamp", pa.timestamp("us", "UTC"))])
            for batch in _read_inline(piece, wanted):
                micros = batch.column("timestamp").cast(pa.int64()).to_numpy()
                hits = (micros >= timestamp_ms * 1000).nonzero()[0]
                if len(hits):
                    return int(batch.column("offset")[int(hits[0])].as_py())
            return None
        for number, log_dir_id in enumerate(piece.log_dir_ids):
            try:
                parquet = self._open_segment(piece, log_dir_id)
                offset = segment_file.first_offset_at_or_after(
                    parquet, piece.base_offset, timestamp_ms, piece.start, piece.name
                )
                return offset if offset is not None and offset < piece.end else None
            except _TRY_NEXT:
                if number == len(piece.log_dir_ids) - 1:
                    raise
        raise _nobody_has(piece)

    def _read_file(self, piece: Slice, schema: pa.Schema, times: TimestampBounds) -> Iterator[pa.RecordBatch]:
        seen = 0  # replicas are equal to the byte: after a bad one, the next goes on behind the rows that were good
        for number, log_dir_id in enumerate(piece.log_dir_ids):
            skip = seen
            try:
                for batch in segment_file.read_slice(
                    self._open_segment(piece, log_dir_id),
                    topic=piece.topic,
                    partition=piece.partition,
                    base_offset=piece.base_offset,
                    start=piece.start,
                    end=piece.end,
                    timestamp_type=TimestampType(piece.timestamp_type),
                    schema=schema,
                    min_timestamp_ms=times.min_ms,
                    max_timestamp_ms=times.max_ms,
                    path=segment_path(piece.folder, piece.partition, piece.name),
                ):
                    if skip >= batch.num_rows:
                        skip -= batch.num_rows
                        continue
                    seen += batch.num_rows - skip
                    rest, skip = [batch.slice(skip)], 0
                    del batch  # a reader that pauses here holds only what it was given
                    yield rest.pop()
                return
            except _TRY_NEXT:
                if number == len(piece.log_dir_ids) - 1:
                    raise
        raise _nobody_has(piece)

    def _open_segment(self, piece: Slice, log_dir_id: LogDirId) -> pq.ParquetFile:
        if log_dir_id not in self._open:
            self._open[log_dir_id] = open_log_dir(self._infos[log_dir_id])
        log_dir = self._open[log_dir_id]
        path = segment_path(piece.folder, piece.partition, piece.name)
        expected = segment_file.ExpectedSegment(log_dir.location(path), piece.size, piece.record_count)
        return segment_file.open_segment(log_dir.open(path), expected)


_TRY_NEXT = (CorruptRecordError, StorageUnavailableError, LogDirMismatchError)


def _read_inline(piece: Slice, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    assert piece.data is not None
    return inline.slice_batches(
        inline.decode(piece.data, piece.checksum, piece.record_count),
        topic=piece.topic,
        partition=piece.partition,
        base_offset=piece.base_offset,
        start=piece.start,
        end=piece.end,
        timestamp_type=TimestampType(piece.timestamp_type),
        schema=schema,
    )


def _nobody_has(piece: Slice) -> CorruptRecordError:
    return CorruptRecordError(
        f"{piece.topic}-{piece.partition}: no replica has segment {piece.name} with offsets from {piece.base_offset}"
    )
