"""Reads the offsets and keys of segment files, and keeps those that were used last in memory."""

from collections import OrderedDict
from threading import Lock

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_log.cluster.log_dir import LogDir
from spark_log.log.columns.envelope import OP, has_op
from spark_log.log.columns.key_and_value import VALUE
from spark_log.log.columns.topic_columns import TopicColumns, decoded, slices
from spark_log.log.records.arrow_numpy import is_null, to_numpy
from spark_log.log.records.schema import TimestampType, read_schema
from spark_log.log.records.segment_file import ExpectedSegment, open_segment, read_slice
from spark_log.log.records.segment_open import corrupt_on_bad_bytes
from spark_log.tables.current.hidden_rows import Rows, concatenated

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


def read_rows(
    log_dir: LogDir, path: str, base_offset: int, size: int, record_count: int, columns: TopicColumns | None
) -> Rows:
    """Return the rows of a file, whose `path` is relative to the log dir. With the typed columns `columns`, an event of
    Debezium may be a deletion. Raises CorruptRecordError or StorageUnavailableError.
    """
    by_op = columns if columns is not None and has_op(columns.value) else None
    expected = ExpectedSegment(log_dir.location(path), size, record_count)
    name = expected.path if by_op is None else f"{expected.path} {by_op.version}"
    rows = _cache.get(name)
    if rows is None:
        rows = _read(log_dir, path, expected, base_offset, by_op)
        _cache.put(name, rows)
    return rows


def _read(
    log_dir: LogDir, path: str, expected: ExpectedSegment, base_offset: int, columns: TopicColumns | None
) -> Rows:
    with open_segment(log_dir.open(path), expected) as file:
        batches = read_slice(
            file,
            topic="",
            partition=0,
            base_offset=base_offset,
            start=base_offset,
            end=base_offset + 2**31,
            timestamp_type=TimestampType.CREATE_TIME,
            schema=read_schema(columns=["key", "value", "offset"]),
            path=expected.path,
        )
        stored = None if columns is None else _stored_ops(file, expected)
        parts: list[Rows] = []
        row = 0
        for batch in batches:
            deletions = is_null(batch.column("value"))
            if columns is not None:
                ops = _decoded_ops(batch, columns) if stored is None else stored[row : row + batch.num_rows]
                deletions |= np.asarray(pc.fill_null(pc.equal(ops, "d"), False))
            row += batch.num_rows
            parts.append(Rows(to_numpy(batch.column("offset")), batch.column("key").cast(pa.large_binary()), deletions))
        return concatenated(parts)


def _stored_ops(file: pq.ParquetFile, expected: ExpectedSegment) -> pa.StringArray | None:
    """Return the column of the ops, None if the file was written without it."""
    schema = file.schema_arrow
    if VALUE.record not in schema.names or schema.field(VALUE.record).type.get_field_index(OP) < 0:
        return None
    with corrupt_on_bad_bytes(expected.path):
        record = file.read(columns=[f"{VALUE.record}.{OP}"]).column(VALUE.record).combine_chunks()
        return pc.struct_field(record, OP)


def _decoded_ops(batch: pa.RecordBatch, columns: TopicColumns) -> pa.StringArray:
    parts = [
        pc.struct_field(decoded(part, columns, [VALUE.record])[VALUE.record], OP)
        for part in slices(batch, columns, [VALUE.record])
    ]
    return pa.concat_arrays([pa.array([], pa.string()), *parts])
