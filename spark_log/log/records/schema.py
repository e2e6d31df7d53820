"""Defines the Arrow schemas of records: before they have offsets, in a segment, and as Spark's Kafka source shows them.

Every field is nullable and list items are called `element`, because Spark compares the Arrow schema of a Python data
source with its own, flags included (pyspark.sql.pandas.types.to_arrow_schema).
"""

from collections.abc import Sequence
from enum import IntEnum

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_log.errors import InvalidOptionError, InvalidRecordError, InvalidTimestampError
from spark_log.log.columns.key_and_value import TYPED

MICROSECONDS_PER_MILLISECOND = 1000
TIMESTAMP = pa.timestamp("us", "UTC")
HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
HEADERS = pa.list_(pa.field("element", HEADER))
DELIVER_AT = "spark-log.deliver-at"
"""Header with the time before which share groups do not deliver the record: decimal milliseconds since 1970."""
DEAD_LETTER_CAUSE = "spark-log.dlq.cause"
"""Header that says why a dead letter was written: rejected, delivery-count, missing, or failed (in a loop)."""

RECORD_SCHEMA = pa.schema(
    [("key", pa.binary()), ("value", pa.binary()), ("headers", HEADERS), ("timestamp", TIMESTAMP)]
)
"""The columns of a batch of records that have no offsets yet."""

SEGMENT_SCHEMA = pa.schema(
    [
        ("offset_delta", pa.int32()),
        ("timestamp", TIMESTAMP),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS),
    ]
)
"""The columns of a segment file. offset = base_offset + offset_delta; offset_delta >= 0 and strictly increasing."""


def segment_schema(typed: pa.StructType | None) -> pa.Schema:
    """Return the columns of a segment file that has the typed columns `typed` (`TopicColumns.fields`)."""
    return SEGMENT_SCHEMA if typed is None else pa.schema([*SEGMENT_SCHEMA, *typed])


def typed_fields(schema: pa.Schema) -> pa.StructType:
    """Return the typed columns of a schema, in the order that they have in a segment file."""
    names = schema.names
    return pa.struct([schema.field(name) for name in TYPED if name in names])


def leaf_paths(field: pa.Field) -> list[str]:
    """Return the Parquet path of each leaf of a field."""
    kind = field.type
    if pa.types.is_struct(kind):
        children = list(kind)
    elif pa.types.is_list(kind):
        children = [kind.value_field.with_name("list." + kind.value_field.name)]
    elif pa.types.is_map(kind):
        children = [kind.key_field.with_name("key_value.key"), kind.item_field.with_name("key_value.value")]
    else:
        return [field.name]
    return [f"{field.name}.{leaf}" for child in children for leaf in leaf_paths(child)]


_READ_SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", TIMESTAMP),
        ("timestampType", pa.int32()),
        ("headers", HEADERS),
    ]
)


class TimestampType(IntEnum):
    """Kafka's TimestampType, with its numbers."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


def read_schema(
    include_headers: bool = False, columns: Sequence[str] | None = None, typed: pa.StructType | None = None
) -> pa.Schema:
    """Return the schema that readers see, in the order of Spark's Kafka source: key, value, topic, partition, offset,
    timestamp, timestampType, then headers if `include_headers` is set, then the topic's typed columns in `typed`.

    With `columns`, the schema has only these columns, in the same order. Raises InvalidOptionError if `columns` is
    empty, has a name twice, or has a name that is not in the schema.
    """
    fields = [field for field in _READ_SCHEMA if include_headers or field.name != "headers"]
    if typed is not None:
        by_name = {field.name: field for field in typed}
        fields += [by_name[name] for name in TYPED if name in by_name]
    if columns is None:
        return pa.schema(fields)
    names = [field.name for field in fields]
    for name in columns:
        if name not in names:
            hint = " (it needs includeHeaders=true)" if name == "headers" else ""
            raise InvalidOptionError(f"columns: unknown column {name!r}{hint}; known are {', '.join(names)}")
    if not columns or len(set(columns)) != len(columns):
        raise InvalidOptionError(f"columns: expected distinct names out of {', '.join(names)}, got {list(columns)}")
    return pa.schema([field for field in fields if field.name in columns])


def normalise(records: pa.RecordBatch | pa.Table, *, timestamp_ms: int | None = None) -> pa.Table:
    """Return `records` as a table of RECORD_SCHEMA, without columns of other names.

    Strings become bytes (UTF-8); large, view, dictionary and fixed-size variants become the plain types; an empty
    header list becomes null, as in Kafka, where a record without headers has no list. Absent columns are null; only
    `value` is required. If `timestamp_ms` is given, it replaces absent and null timestamps.

    Raises InvalidRecordError, which names the field and its type, for a column that is missing, duplicated or of an
    unsupported type; InvalidTimestampError for a timestamp that does not fit into int64 microseconds.
    """
    table = pa.Table.from_batches([records]) if isinstance(records, pa.RecordBatch) else records
    if not table.schema.equals(RECORD_SCHEMA):
        table = pa.table([_column(table, field) for field in RECORD_SCHEMA], schema=RECORD_SCHEMA)
    headers = table.column("headers")
    if headers.null_count < len(headers):
        table = table.set_column(2, RECORD_SCHEMA.field("headers"), _without_empty_lists(headers))
    if timestamp_ms is not None and table.column("timestamp").null_count:
        instant = pa.scalar(timestamp_ms * MICROSECONDS_PER_MILLISECOND, pa.int64()).cast(TIMESTAMP)
        table = table.set_column(3, RECORD_SCHEMA.field("timestamp"), table.column("timestamp").fill_null(instant))
    return table


def stamp(records: pa.Table, timestamp_ms: int) -> pa.Table:
    """Return `records` (RECORD_SCHEMA) with every timestamp replaced by `timestamp_ms`, as LogAppendTime requires."""
    instant = pa.scalar(timestamp_ms * MICROSECONDS_PER_MILLISECOND, pa.int64()).cast(TIMESTAMP)
    return records.set_column(3, RECORD_SCHEMA.field("timestamp"), pa.repeat(instant, records.num_rows))


def _column(table: pa.Table, field: pa.Field) -> pa.ChunkedArray:
    places = table.schema.get_all_field_indices(field.name)
    if len(places) > 1:
        raise InvalidRecordError(f"{field.name}: there are {len(places)} columns of this name")
    if not places:
        if field.name == "value":
            raise InvalidRecordError(f"{field.name}: required column not found; there are {table.schema.names}")
        return pa.chunked_array([pa.nulls(table.num_rows, field.type)])
    column = table.column(places[0])
    source = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if not _castable(source, field):
        raise InvalidRecordError(f"{field.name}: unsupported type {column.type}, expected {_expected(field)}")
    if source == field.type and column.type == source:
        return column
    try:
        # Nanoseconds are cut to microseconds; a coarser unit may not fit and is then an error instead of a wrong time.
        finer = pa.types.is_timestamp(source) and source.unit == "ns"
        return column.cast(field.type, safe=not finer)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        kind = InvalidTimestampError if field.name == "timestamp" else InvalidRecordError
        raise kind(f"{field.name}: a value of type {column.type} cannot become {field.type}: {error}") from error


def _castable(source: pa.DataType, field: pa.Field) -> bool:
    if pa.types.is_null(source):
        return True
    if field.name == "timestamp":
        # A timestamp without a time zone does not name an instant.
        return bool(pa.types.is_timestamp(source)) and source.tz is not None
    if field.name != "headers":
        return _is_bytes(source)
    is_list = pa.types.is_list(source) or pa.types.is_large_list(source) or pa.types.is_fixed_size_list(source)
    if not is_list or not pa.types.is_struct(source.value_type):
        return False
    parts = [source.value_type.field(i) for i in range(source.value_type.num_fields)]
    return [part.name for part in parts] == ["key", "value"] and all(
        _is_bytes(part.type) or pa.types.is_null(part.type) for part in parts
    )


def _is_bytes(kind: pa.DataType) -> bool:
    tests = (
        pa.types.is_binary,
        pa.types.is_string,
        pa.types.is_large_binary,
        pa.types.is_large_string,
        pa.types.is_binary_view,
        pa.types.is_string_view,
        pa.types.is_fixed_size_binary,
    )
    return any(test(kind) for test in tests)


def _expected(field: pa.Field) -> str:
    if field.name == "timestamp":
        return "a timestamp with a time zone"
    return "array<struct<key:string,value:binary>>" if field.name == "headers" else "string or binary"


def _without_empty_lists(headers: pa.ChunkedArray) -> pa.ChunkedArray:
    if not pc.any(pc.equal(pc.list_value_length(headers), 0)).as_py():
        return headers
    chunks = []
    for chunk in headers.chunks:
        lengths = np.asarray(pc.fill_null(pc.list_value_length(chunk), 0))
        # flatten() gives the items of this slice only, so that offsets start at 0 and may carry a mask.
        offsets = pa.array(np.concatenate(([0], np.cumsum(lengths))), pa.int32())
        empty = pa.array(lengths == 0, pa.bool_())
        chunks.append(pa.ListArray.from_arrays(offsets, chunk.flatten(), type=HEADERS, mask=empty))
    return pa.chunked_array(chunks, HEADERS)
