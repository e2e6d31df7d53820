"""Writes a segment file: a Parquet file of SEGMENT_SCHEMA, in whole row groups, with checksums.

A file has row groups of ROW_GROUP_RECORDS records (fewer where they would exceed ROW_GROUP_BYTES), a page index and a
footer. Every page has a CRC-32, and the footer has its own digest (segment_footer.py). offset_delta is delta-encoded
and has statistics, as timestamp has. key, value and headers have none, because statistics would copy whole values into
the footer. Each column has a field id (columns/field_paths.py).

The files of a topic with typed columns (`columns/`) end with two more columns for its keys, key_record_error and
key_record, and two for its values, record_error and record. This module decodes them from key and value when it writes
a row group, unless the records already have them. Their leaves have statistics (leaf_statistics.py).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_log.errors import InvalidConfigurationError, InvalidRecordError, MessageSizeTooLargeError
from spark_log.log.columns.field_paths import with_ids
from spark_log.log.columns.key_and_value import PARTS, RECORDS, TYPED
from spark_log.log.columns.resets import schemas
from spark_log.log.columns.topic_columns import TopicColumns, decoded, slices
from spark_log.log.records import segment_footer
from spark_log.log.records.arrow_numpy import from_numpy, to_numpy
from spark_log.log.records.hashed_stream import HashedStream, Sink
from spark_log.log.records.leaf_statistics import file_statistics, has_statistics, leaves
from spark_log.log.records.record_limits import RECORD_BYTES_MAX
from spark_log.log.records.schema import (
    MICROSECONDS_PER_MILLISECOND,
    RECORD_SCHEMA,
    SEGMENT_SCHEMA,
    leaf_paths,
    segment_schema,
)

ROW_GROUP_RECORDS = 65_536
ROW_GROUP_BYTES = 64 * 1024 * 1024
"""Arrow bytes at which a row group is closed early. Only a row group of a single large record exceeds it."""

_CODECS = {"zstd": 1, "snappy": None, "lz4": None, "gzip": 6, "none": None}
"""Default level of each compression.type, None for a codec without levels. A core writes 2.3 million records of 100
bytes per second with zstd level 1, and 0.94 million with level 3.
"""

NO_TIMESTAMP_MS = -1
"""Smallest and largest timestamp of a segment without records, as in Kafka (RecordBatch.NO_TIMESTAMP)."""


@dataclass(frozen=True)
class SegmentFacts:
    """The metadata of a segment file or an inline blob."""

    record_count: int
    bytes: int
    min_timestamp_ms: int
    max_timestamp_ms: int
    codec: str
    checksum: str
    """xxh3_128 of all bytes, in hex."""
    columns_version: int | None = None
    """Version of the definition that the typed columns were decoded with, None without typed columns."""
    stats: str | None = None
    """Statistics of the typed columns (`leaf_statistics.file_statistics`)."""


class SegmentWriter:
    """Writes one segment file to `sink`. The caller syncs, closes and names the file.

    Rows are buffered until they fill a row group. The buffer has at most ROW_GROUP_BYTES, or one larger record, plus
    the rows of one call of `write`.
    """

    def __init__(
        self, sink: Sink, codec: str = "zstd", level: int | None = None, columns: TopicColumns | None = None
    ) -> None:
        self.codec = codec_name(codec)
        self._columns = columns
        self._schema = segment_schema(None if columns is None else columns.fields)
        typed = [] if columns is None else [leaf for field in columns.fields for leaf in leaf_paths(field)]
        compression_level = codec_level(self.codec, level)
        self.record_count = 0
        self._next_delta = 0
        self._min_us: int | None = None
        self._max_us: int | None = None
        self._waiting: list[pa.Table] = []
        self._waiting_rows = 0
        self._waiting_bytes = 0
        self._stream = HashedStream(sink)
        self._parquet = pq.ParquetWriter(
            pa.PythonFile(self._stream, mode="w"),
            with_ids(self._schema, {} if columns is None else columns.ids),
            compression=self.codec,
            compression_level=compression_level,
            use_dictionary=typed or False,
            column_encoding={"offset_delta": "DELTA_BINARY_PACKED"},
            write_statistics=["offset_delta", "timestamp", *_with_statistics(columns)],
            write_page_index=True,
            write_page_checksum=True,
            store_schema=False,
        )
        self._parquet.add_key_value_metadata({segment_footer.DIGEST_KEY: segment_footer.PLACEHOLDER.decode()})

    @property
    def bytes_written(self) -> int:
        """Bytes passed to the sink so far, without the buffered rows."""
        return self._stream.bytes_written

    @property
    def bytes_waiting(self) -> int:
        """Arrow bytes of the buffered rows."""
        return self._waiting_bytes

    def write(self, records: pa.Table, offset_deltas: pa.Array | pa.ChunkedArray | None = None) -> None:
        """Append records of RECORD_SCHEMA, optionally followed by this writer's typed columns, which are then not
        decoded again.

        The records get consecutive offset deltas after the last one, or `offset_deltas` (compaction). Raises
        InvalidRecordError for another schema, a null timestamp, deltas that do not strictly increase or do not fit into
        int32; MessageSizeTooLargeError for a record of more than RECORD_BYTES_MAX.
        """
        typed = list(self._schema)[len(SEGMENT_SCHEMA) :] if _is_typed(records.schema) else []
        expected = pa.schema([*RECORD_SCHEMA, *typed])
        if not records.schema.equals(expected):
            raise InvalidRecordError(f"records: expected columns {expected}, got {records.schema}")
        if records.num_rows == 0:
            return
        timestamps = records.column("timestamp")
        if timestamps.null_count:
            raise InvalidRecordError(f"timestamp: null in {timestamps.null_count} records")
        deltas = self._deltas(records.num_rows, offset_deltas)
        rows = pa.table(
            [
                from_numpy(deltas),
                timestamps,
                *(records.column(name) for name in ("key", "value", "headers", *(field.name for field in typed))),
            ],
            schema=pa.schema([*SEGMENT_SCHEMA, *typed]),
        )
        pieces = list(_pieces(rows))
        extent = pc.min_max(timestamps.cast(pa.int64()))
        low, high = extent["min"].as_py(), extent["max"].as_py()
        self._min_us = low if self._min_us is None else min(low, self._min_us)
        self._max_us = high if self._max_us is None else max(high, self._max_us)
        self._next_delta = int(deltas[-1]) + 1
        self.record_count += records.num_rows
        for piece in pieces:
            self._gather(piece)

    def own_rows(self) -> None:
        """Copy the buffered rows so that their source batches can be freed."""
        self._waiting = [own(tables) for tables in _of_one_schema(self._waiting)]

    def close(self) -> SegmentFacts:
        """Write the buffered rows and the footer, and return the file's metadata. The sink stays open."""
        self.flush_rows()
        self._stream.hold()
        self._parquet.close()
        self._stream.release()
        self._stream.detach()
        columns = self._columns
        return SegmentFacts(
            record_count=self.record_count,
            bytes=self.bytes_written,
            min_timestamp_ms=_milliseconds(self._min_us),
            max_timestamp_ms=_milliseconds(self._max_us),
            codec=self.codec,
            checksum=self._stream.checksum(),
            columns_version=None if columns is None else columns.version,
            stats=None if columns is None else file_statistics(self._parquet.writer.metadata, columns.fields),
        )

    def abort(self) -> None:
        """Abandon the file: write nothing more to the sink, so that the file has no footer and is no segment.

        Call it when `write` or the sink has failed: a writer that is only garbage collected still writes to the sink.
        """
        self._waiting = []
        self._stream.hold()
        self._parquet.close()
        self._stream.detach()

    def _deltas(
        self, count: int, given: pa.Array | pa.ChunkedArray | None
    ) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        if given is None:
            deltas = np.arange(self._next_delta, self._next_delta + count, dtype=np.int64)
        else:
            deltas = (np.asarray(given) if given.null_count else to_numpy(given)).astype(np.int64, casting="safe")
            if len(deltas) != count:
                raise InvalidRecordError(f"offset_delta: {len(deltas)} values for {count} records")
            if deltas[0] < self._next_delta or (np.diff(deltas) <= 0).any():
                raise InvalidRecordError(f"offset_delta: values must strictly increase from {self._next_delta} on")
        if deltas[-1] > np.iinfo(np.int32).max:
            raise InvalidRecordError(f"offset_delta: {deltas[-1]} does not fit into int32; close the segment earlier")
        return deltas.astype(np.int32)

    def _gather(self, piece: pa.Table) -> None:
        if self._waiting_bytes + piece.nbytes > ROW_GROUP_BYTES:
            self.flush_rows()
        while piece.num_rows:
            head = piece.slice(0, ROW_GROUP_RECORDS - self._waiting_rows)
            self._waiting.append(head)
            self._waiting_rows += head.num_rows
            self._waiting_bytes += head.nbytes
            piece = piece.slice(head.num_rows)
            if self._waiting_rows == ROW_GROUP_RECORDS:
                self.flush_rows()

    def flush_rows(self) -> None:
        """Write the buffered rows as a row group, however small, to free their memory."""
        if self._waiting:
            # Parquet encodes chunk by chunk: many small ones cost more than the copy into one.
            parts = [pa.concat_tables(tables).combine_chunks() for tables in _of_one_schema(self._waiting)]
            for group in parts if self._columns is None else _row_groups(parts, self._columns):
                self._parquet.write_table(group, row_group_size=ROW_GROUP_RECORDS)
        self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0


def codec_name(compression_type: str) -> str:
    """Return the codec of a compression.type of Kafka. Raise InvalidConfigurationError for an unknown one."""
    name = "none" if compression_type == "uncompressed" else compression_type
    if name not in _CODECS:
        known = ", ".join([*_CODECS, "uncompressed"])
        raise InvalidConfigurationError(f"compression.type: expected one of {known}, got {compression_type!r}")
    return name


def codec_level(codec: str, level: int | None) -> int | None:
    """Return the level to compress with. A level for a codec without levels is ignored, as in Kafka."""
    default = _CODECS[codec]
    return default if default is None or level is None else level


def own(tables: Sequence[pa.Table]) -> pa.Table:
    """Return a copy of the rows of `tables`, which have one schema, in buffers that hold nothing else."""
    columns = zip(*(table.columns for table in tables), strict=True)
    whole = [pa.concat_arrays([chunk for part in parts for chunk in part.chunks]) for parts in columns]
    return pa.table(whole, schema=tables[0].schema)


def _pieces(rows: pa.Table) -> Iterator[pa.Table]:
    """Yield `rows` in order, in pieces of at most ROW_GROUP_BYTES or one record.

    Raises MessageSizeTooLargeError for a record of more than RECORD_BYTES_MAX.
    """
    size = rows.nbytes
    if size <= ROW_GROUP_BYTES:
        yield rows
    elif rows.num_rows == 1:
        size = rows.select(SEGMENT_SCHEMA.names).nbytes
        if size > RECORD_BYTES_MAX:
            raise MessageSizeTooLargeError(f"value: a record has {size} bytes, a segment takes {RECORD_BYTES_MAX}")
        yield rows
    else:
        half = rows.num_rows // 2
        yield from _pieces(rows.slice(0, half))
        yield from _pieces(rows.slice(half))


def _of_one_schema(tables: Sequence[pa.Table]) -> list[list[pa.Table]]:
    """Return the tables in order, with consecutive tables of the same columns grouped together."""
    return [list(same) for _, same in groupby(tables, key=lambda table: table.schema.names)]


def _is_typed(schema: pa.Schema) -> bool:
    return any(name in TYPED for name in schema.names)


def _row_groups(parts: Sequence[pa.Table], columns: TopicColumns) -> Iterator[pa.Table]:
    """Yield the rows of the parts with their typed columns. Rows that may decode to many values are decoded in small
    slices, so that memory is bounded.
    """
    waiting: list[pa.Table] = []
    size = 0
    for part in parts:
        for rows in [part] if _is_typed(part.schema) else slices(part, columns, TYPED):
            typed = _typed(rows, columns)
            record_bytes = max(typed.column(name).nbytes for name in typed.schema.names if name in RECORDS)
            if waiting and size + record_bytes > ROW_GROUP_BYTES:
                yield from _groups(pa.concat_tables(waiting).combine_chunks())
                waiting, size = [], 0
            waiting.append(typed)
            size += record_bytes
    yield from _groups(pa.concat_tables(waiting).combine_chunks())


def _typed(rows: pa.Table, columns: TopicColumns) -> pa.Table:
    """Return `rows` with their typed columns, which are decoded if `rows` does not have them."""
    if _is_typed(rows.schema):
        return rows
    fields = columns.fields
    found = decoded(rows, columns, fields.names)
    return pa.table([*rows.columns, *(found[name] for name in fields.names)], pa.schema([*rows.schema, *fields]))


def _groups(rows: pa.Table) -> Iterator[pa.Table]:
    """Yield `rows` in pieces in which each struct of typed columns takes at most ROW_GROUP_BYTES. A struct may be
    several times as large as the bytes that it was decoded from. A single struct that takes more becomes null, with
    the reason in the error column.
    """
    sizes = {name: rows.column(name).nbytes for name in rows.schema.names if name in RECORDS}
    size = max(sizes.values())
    if size <= ROW_GROUP_BYTES:
        yield rows
    elif rows.num_rows > 1:
        half = rows.num_rows // 2
        yield from _groups(rows.slice(0, half))
        yield from _groups(rows.slice(half))
    else:
        for part in PARTS:
            if (size := sizes.get(part.record, 0)) > ROW_GROUP_BYTES:
                reason = f"the columns of the {part.source} take {size} bytes, at most {ROW_GROUP_BYTES} are allowed"
                place = rows.schema.get_field_index(part.error)
                error, record = rows.schema.field(place), rows.schema.field(part.record)
                rows = rows.set_column(place, error, pa.array([reason]))
                rows = rows.set_column(place + 1, record, pa.nulls(1, record.type))
        yield rows


def _with_statistics(columns: TopicColumns | None) -> list[str]:
    """Return the Parquet paths of the leaves of typed columns that get statistics. Doubles get them only if all their
    schemas are JSON, which has no NaN.
    """
    if columns is None:
        return []
    with_nan = {part.record for part, each in columns.parts if any(one.format != "json" for one in schemas(each))}
    return [
        ".".join(leaf.path)
        for leaf in leaves(columns.fields)
        if has_statistics(leaf.kind, may_be_nan=leaf.path[0] in with_nan)
    ]


def _milliseconds(micros: int | None) -> int:
    return NO_TIMESTAMP_MS if micros is None else micros // MICROSECONDS_PER_MILLISECOND
