"""Reads records from an opened segment file. Decodes only the requested row groups and columns."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_log.errors import CorruptRecordError
from spark_log.log.columns.field_paths import without_ids
from spark_log.log.records.read_shape import BATCH_RECORDS, ReadShape
from spark_log.log.records.schema import MICROSECONDS_PER_MILLISECOND
from spark_log.log.records.segment_open import corrupt_on_bad_bytes

_OFFSET_DELTA, _TIMESTAMP = 0, 1
_HEADER_LEAVES = (4, 5)
"""Parquet numbers the leaves: offset_delta, timestamp, key, value, header keys, header values."""


class _RowGroup(NamedTuple):
    """A row group's place in the segment, from its statistics: first_delta <= offset_delta <= last_delta."""

    number: int
    rows: int
    first_delta: int
    last_delta: int
    min_timestamp_ms: int
    max_timestamp_ms: int

    @property
    def dense(self) -> bool:
        """Whether the deltas have no gap. They strictly increase, so a span as long as the row count proves it, and
        the column of deltas need not be decoded.
        """
        return self.last_delta - self.first_delta + 1 == self.rows


def read_slice(
    parquet_file: pq.ParquetFile,
    shape: ReadShape,
    *,
    start: int = 0,
    end: int = 2**63 - 1,
    min_timestamp_ms: int | None = None,
    max_timestamp_ms: int | None = None,
    path: str = "segment",
    skip: Callable[[pq.RowGroupMetaData], bool] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the records with start <= offset < end, in order, in batches of `shape` with at most BATCH_RECORDS rows.

    `parquet_file` comes from open_segment. Row groups for which `skip` returns True are skipped, and so are those
    without a timestamp in [min_timestamp_ms, max_timestamp_ms). Rows outside of these bounds in other row groups are
    not filtered out.

    Raises CorruptRecordError or StorageUnavailableError, which name `path`, before it yields any row of a row group
    that is damaged or cannot be read.
    """
    base_offset = shape.base_offset
    for group in _row_groups(parquet_file, path):
        if base_offset + group.last_delta < start or base_offset + group.first_delta >= end:
            continue
        if min_timestamp_ms is not None and group.max_timestamp_ms < min_timestamp_ms:
            continue
        if max_timestamp_ms is not None and group.min_timestamp_ms >= max_timestamp_ms:
            continue
        if skip is not None and skip(parquet_file.metadata.row_group(group.number)):
            continue
        names = shape.parquet_columns if group.dense else ["offset_delta", *shape.parquet_columns]
        rows = _decode(parquet_file, group, names, path)
        deltas = group.first_delta if group.dense else _deltas(rows, group, path)
        first, last = _range(group, deltas, start - base_offset, end - base_offset)
        starts = range(first, last, BATCH_RECORDS)
        batches = [shape.batch(rows, deltas, begin, min(begin + BATCH_RECORDS, last)) for begin in starts]
        del rows, deltas  # a reader that pauses between two batches holds only what it was given
        while batches:
            yield batches.pop(0)


def first_offset_at_or_after(
    parquet_file: pq.ParquetFile, base_offset: int, timestamp_ms: int, at_least_offset: int = 0, path: str = "segment"
) -> int | None:
    """Return the lowest offset >= at_least_offset whose timestamp is >= timestamp_ms, or None, as Kafka's
    offsetsForTimes does.

    Decodes the timestamps of the first row group that may have the offset, and those of the next only if that has none.
    """
    for group in _row_groups(parquet_file, path):
        if base_offset + group.last_delta < at_least_offset or group.max_timestamp_ms < timestamp_ms:
            continue
        names = ["timestamp"] if group.dense else ["offset_delta", "timestamp"]
        rows = _decode(parquet_file, group, names, path)
        if group.dense:
            deltas = np.arange(group.first_delta, group.last_delta + 1)
        else:
            deltas = _deltas(rows, group, path).astype(np.int64)
        micros = rows.column("timestamp").cast(pa.int64()).to_numpy(zero_copy_only=False)
        found = (micros >= timestamp_ms * MICROSECONDS_PER_MILLISECOND) & (base_offset + deltas >= at_least_offset)
        if found.any():
            return base_offset + int(deltas[np.argmax(found)])
    return None


def _row_groups(parquet_file: pq.ParquetFile, path: str) -> Iterator[_RowGroup]:
    metadata = parquet_file.metadata
    next_delta = 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        if group.num_rows == 0:
            continue
        deltas = group.column(_OFFSET_DELTA).statistics
        times = group.column(_TIMESTAMP).statistics
        if deltas is None or times is None or not deltas.has_min_max or not times.has_min_max:
            raise CorruptRecordError(f"{path}: row group {number} has no statistics of offset_delta and timestamp")
        first, last = deltas.min, deltas.max
        if first < next_delta or last - first + 1 < group.num_rows:
            raise CorruptRecordError(f"{path}: row group {number} has {group.num_rows} offset deltas {first} to {last}")
        next_delta = last + 1
        low = times.min_raw // MICROSECONDS_PER_MILLISECOND
        high = times.max_raw // MICROSECONDS_PER_MILLISECOND
        yield _RowGroup(number, group.num_rows, first, last, low, high)


def _decode(parquet_file: pq.ParquetFile, group: _RowGroup, names: list[str], path: str) -> pa.RecordBatch:
    """Return a row group as a whole, so that no row of it is used before all its pages have been verified."""
    with corrupt_on_bad_bytes(path):
        if not names:
            return pa.RecordBatch.from_arrays([], schema=pa.schema([]))
        batches = list(
            parquet_file.iter_batches(
                batch_size=group.rows, row_groups=[group.number], columns=names, use_threads=False
            )
        )
    if len(batches) != 1 or batches[0].num_rows != group.rows:
        rows = sum(batch.num_rows for batch in batches)
        raise CorruptRecordError(f"{path}: row group {group.number} has {rows} records, expected {group.rows}")
    rows_read = pa.RecordBatch.from_arrays(batches[0].columns, schema=without_ids(batches[0].schema))
    if "headers" in names:
        _check_headers(parquet_file, group, rows_read.column("headers"), path)
    return rows_read


def _check_headers(parquet_file: pq.ParquetFile, group: _RowGroup, headers: pa.Array, path: str) -> None:
    """Raise CorruptRecordError if the number of header slots is not the one in the footer.

    A page header has no checksum. A value count that is too low there would drop headers from the last records; in the
    other columns it would make the row count wrong. A list takes one slot for each item, or one slot if it has none.
    """
    if headers.null_count == group.rows:
        slots = group.rows
    else:
        slots = int(np.maximum(pc.fill_null(pc.list_value_length(headers), 0), 1).sum())
    metadata = parquet_file.metadata.row_group(group.number)
    for leaf in _HEADER_LEAVES:
        if metadata.column(leaf).num_values != slots:
            raise CorruptRecordError(
                f"{path}: row group {group.number} has {slots} header slots, its footer says "
                f"{metadata.column(leaf).num_values}"
            )


def _deltas(rows: pa.RecordBatch, group: _RowGroup, path: str) -> npt.NDArray[np.int32]:
    column = rows.column("offset_delta")
    deltas = column.to_numpy(zero_copy_only=False)
    if (
        column.null_count
        or (np.diff(deltas) <= 0).any()
        or (deltas[0], deltas[-1]) != (group.first_delta, group.last_delta)
    ):
        raise CorruptRecordError(f"{path}: offset deltas of row group {group.number} are not what its statistics say")
    return np.asarray(deltas, np.int32)


def _range(group: _RowGroup, deltas: int | npt.NDArray[np.int32], start: int, end: int) -> tuple[int, int]:
    """Return the first row and the row after the last one of the group with start <= offset_delta < end."""
    if isinstance(deltas, int):
        return max(0, start - deltas), min(group.rows, end - deltas)
    return int(np.searchsorted(deltas, start)), int(np.searchsorted(deltas, end))
