"""Reads the offsets and keys of segment files, and keeps those that were used last in memory."""

from collections import OrderedDict
from dataclasses import replace
from threading import Lock

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_log.cluster.log_dir import LogDir
from spark_log.log.columns.envelope import OP
from spark_log.log.columns.key_and_value import VALUE
from spark_log.log.records.arrow_numpy import is_null, to_numpy
from spark_log.log.records.schema import TimestampType, read_schema
from spark_log.log.records.segment_file import ExpectedSegment, open_segment, read_slice
from spark_log.log.records.segment_open import corrupt_on_bad_bytes
from spark_log.tables.current.hidden_rows import Mask, Rows, concatenated

CACHE_BYTES = 256 * 2**20
"""The keys of all files that a process keeps in memory. Those of other files are read again when they are needed."""


class _Cache:
    """The rows of files by location, which never change. Thread-safe."""

    def __init__(self) -> None:
        self._rows: OrderedDict[str, Rows] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()

    def get(self, location: str) -> Rows | None:
        with self._lock:
            if location in self._rows:
                self._rows.move_to_end(location)
            return self._rows.get(location)

    def put(self, location: str, rows: Rows) -> None:
        with self._lock:
            if location not in self._rows:
                self._rows[location] = rows
                self._bytes += _bytes(rows)
            while self._bytes > CACHE_BYTES:
                self._bytes -= _bytes(self._rows.popitem(last=False)[1])


def _bytes(rows: Rows) -> int:
    return int(rows.keys.nbytes + rows.offsets.nbytes + rows.deletions.nbytes)


_cache = _Cache()


def read_rows(log_dir: LogDir, path: str, base_offset: int, size: int, record_count: int) -> Rows:
    """Return the rows of a file, whose `path` is relative to the log dir. Raises CorruptRecordError or
    StorageUnavailableError.
    """
    location = log_dir.location(path)
    rows = _cache.get(location)
    if rows is None:
        rows = _read(log_dir, path, location, base_offset, size, record_count)
        _cache.put(location, rows)
    return rows


def _read(log_dir: LogDir, path: str, location: str, base_offset: int, size: int, record_count: int) -> Rows:
    columns = read_schema(columns=["key", "value", "offset"])
    with open_segment(log_dir.open(path), ExpectedSegment(location, size, record_count)) as file:
        batches = read_slice(
            file,
            topic="",
            partition=0,
            base_offset=base_offset,
            start=base_offset,
            end=base_offset + 2**31,
            timestamp_type=TimestampType.CREATE_TIME,
            schema=columns,
            path=location,
        )
        rows = concatenated(
            [
                Rows(
                    to_numpy(batch.column("offset")),
                    batch.column("key").cast(pa.large_binary()),
                    is_null(batch.column("value")),
                )
                for batch in batches
            ]
        )
        return replace(rows, deletions=rows.deletions | _deletions_by_op(file, location, len(rows.offsets)))


def _deletions_by_op(file: pq.ParquetFile, location: str, rows: int) -> Mask:
    """Return which events of Debezium say that their row was deleted."""
    record = file.schema_arrow.field(VALUE.record).type if VALUE.record in file.schema_arrow.names else pa.struct([])
    if record.get_field_index(OP) < 0:
        return np.zeros(rows, bool)
    with corrupt_on_bad_bytes(location):
        ops = file.read(columns=[f"{VALUE.record}.{OP}"]).column(VALUE.record).combine_chunks().field(OP)
    return np.asarray(pc.fill_null(pc.equal(ops, "d"), False))
