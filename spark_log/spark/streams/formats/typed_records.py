"""Encodes columns of a DataFrame to values and keys for topics with typed columns, in Spark."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql import types as st
from pyspark.sql.pandas.types import from_arrow_type

from spark_log.errors import InvalidConfigurationError, InvalidOptionError, needing
from spark_log.log.columns.avro.schema import AvroType, avro_type
from spark_log.log.columns.decoding import schema_fields
from spark_log.log.columns.evolution import evolve
from spark_log.log.columns.key_and_value import KEY, VALUE, TypedPart
from spark_log.log.columns.resets import present_fields
from spark_log.spark.streams.formats.codecs import Avro, Codec, Json, Protobuf, encoded, payload_of, record_columns
from spark_log.spark.streams.formats.json_text import TIMESTAMP_FORMAT
from spark_log.spark.streams.formats.parsing import needing_avro
from spark_log.spark.streams.formats.struct_types import converted, fitted

if TYPE_CHECKING:
    from spark_log.cluster.cluster import Cluster
    from spark_log.cluster.topics import Topic

_JSON_OPTIONS = {"timestampFormat": TIMESTAMP_FORMAT, "timeZone": "UTC"}

_PREFIX = "_spark_log_"
"""Prefix of the columns before they are encoded."""


def typed(
    frame: DataFrame,
    cluster: "str | Cluster",
    topic: str,
    *,
    value: str | Column | Sequence[str] | None = None,
    key: str | Column | Sequence[str] | None = None,
    headers: Mapping[str, str | Column] | None = None,
    timestamp: str | Column | None = None,
    partition: str | Column | None = None,
) -> DataFrame:
    """Return records for a topic with typed columns, like `encode`. `value` is encoded in the topic's value.format, and
    `key` in its key.format if it has one, so that they fit the topic's columns.

    `cluster` is an address or an open Cluster. The other arguments are those of `encode`. Columns are fields of
    value.schema by name, without regard to case; their types may be narrower (INT for BIGINT). A missing field is null.
    If the topic has key.format, `key` may be a struct or a list of columns, which are fields of key.schema in the same
    way. A column of text or bytes is the key as it is.

    Raises InvalidOptionError for a column that the schema lacks, or whose type does not fit. Raises
    InvalidConfigurationError for a topic without typed values, with framing or an envelope, or if a package is missing.
    """
    given = None if key is None else payload_of(frame, key)
    return typed_records(frame, _topic(cluster, topic), value, record_columns(given, headers, timestamp, partition))


def typed_records(
    frame: DataFrame, topic: "Topic", value: str | Column | Sequence[str] | None, others: Mapping[str, Column]
) -> DataFrame:
    """Do the same as `typed`, for an opened topic. `others` are the columns without value."""
    columns = {"value": payload_of(frame, value), **others}
    types = {field.name: field.dataType for field in frame.select(*_named(columns)).schema}
    plans = {"value": _plan(topic, VALUE)}
    if isinstance(types.get("key"), st.StructType):
        plans["key"] = _plan(topic, KEY)
    for name, plan in plans.items():
        given = types[name]
        if not isinstance(given, st.StructType):
            raise InvalidOptionError(f"{name}: expected a struct or names of columns, got {given.simpleString()}")
        columns[name] = converted(columns[name], given, fitted(given, plan.struct, name))
    rows = frame.select(*_named({_PREFIX + name: column for name, column in columns.items()}))
    made = {name: sf.col(_PREFIX + name) for name in columns}
    made |= {name: encoded(rows, made[name], plan.codec) for name, plan in plans.items()}
    with needing_avro(frame.sparkSession):
        return rows.select(*_named(made))


def _named(columns: Mapping[str, Column]) -> list[Column]:
    return [column.alias(name) for name, column in columns.items()]


class _Plan(NamedTuple):
    """How to encode keys or values: `codec` encodes structs of the type `struct`."""

    codec: Codec
    struct: st.StructType


def _plan(topic: "Topic", part: TypedPart) -> _Plan:
    """Return the encoding of a topic's keys or values. Raises InvalidConfigurationError if Spark cannot write them."""
    columns = None if topic.columns is None else topic.columns.of(part.source)
    if columns is None:
        raise InvalidConfigurationError(
            f"topic {topic.name!r} has no typed columns of its {part.source}s: set {part.source}.format and"
            f" {part.source}.schema"
        )
    if columns.framing != "none":
        raise InvalidConfigurationError(
            f"topic {topic.name!r} has {part.source}.framing={columns.framing}: make its {part.source}s with"
            " streams.encode, which takes a schema id"
        )
    if columns.envelope != "none":
        raise InvalidConfigurationError(
            f"topic {topic.name!r} has {part.source}.envelope={columns.envelope}: its {part.source}s are change events,"
            " which a connector writes"
        )
    if columns.format == "json":
        fields = evolve(present_fields(columns), schema_fields("json", columns.schema))
        return _Plan(Json(options=_JSON_OPTIONS), _spark_type(fields))
    if columns.format == "avro":
        kind = avro_type(columns.schema)
        return _Plan(Avro(columns.schema), _avro_struct(kind, part.source))
    with needing("Protobuf", "protobuf"):
        from spark_log.log.columns.protobuf.schema import message_of
        from spark_log.spark.streams.formats.protobuf import schema_of
    message, name, descriptor_set = message_of(columns.schema)
    return _Plan(Protobuf(name, descriptor_set), schema_of(message.DESCRIPTOR))


def _spark_type(fields: pa.StructType) -> st.StructType:
    found = from_arrow_type(fields)
    assert isinstance(found, st.StructType)
    return found


_AVRO_TYPES: dict[tuple[str, str], st.DataType] = {
    ("int", ""): st.IntegerType(),
    ("int", "date"): st.DateType(),
    ("long", ""): st.LongType(),
    ("long", "timestamp-millis"): st.TimestampType(),
    ("long", "timestamp-micros"): st.TimestampType(),
    ("float", ""): st.FloatType(),
    ("double", ""): st.DoubleType(),
    ("boolean", ""): st.BooleanType(),
    ("string", ""): st.StringType(),
    ("enum", ""): st.StringType(),
    ("bytes", ""): st.BinaryType(),
    ("fixed", ""): st.BinaryType(),
}


def _avro_struct(kind: AvroType, path: str) -> st.StructType:
    """Return the struct type for to_avro. Raises InvalidOptionError for a field of a type that Spark cannot write."""
    return st.StructType(
        [
            st.StructField(name, _avro_column(part, f"{path}.{name}"))
            for name, part in zip(kind.names, kind.parts, strict=True)
        ]
    )


def _avro_column(kind: AvroType, path: str) -> st.DataType:
    if kind.name == "record":
        return _avro_struct(kind, path)
    if kind.name == "array":
        return st.ArrayType(_avro_column(kind.parts[0], f"{path}[]"))
    if kind.name == "map":
        return st.MapType(st.StringType(), _avro_column(kind.parts[0], f"{path}{{}}"))
    if kind.name == "union":
        branches = [part for part in kind.parts if part.name != "null"]
        if len(branches) == 1:
            return _avro_column(branches[0], path)
    elif pa.types.is_decimal(kind.column):
        return from_arrow_type(kind.column)
    elif (kind.name, kind.logical) in _AVRO_TYPES:
        return _AVRO_TYPES[kind.name, kind.logical]
    raise InvalidOptionError(f"column {path}: Spark cannot write Avro's {kind.logical or kind.name}")


def _topic(cluster: "str | Cluster", name: str) -> "Topic":
    from spark_log.cluster.cluster import cluster_of
    from spark_log.cluster.topics import find_topic

    with cluster_of(cluster) as opened:
        return opened.store.read(lambda connection: find_topic(connection, name))
