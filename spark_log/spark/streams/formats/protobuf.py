"""Converts Protobuf messages to columns and back, in Spark's Python workers. It needs no JAR: the descriptor set is
sent with the function, and each worker creates the message's class once. In columns to encode, fields may be missing or
have narrower types.

The column types of a message:

    double, float, bool, string, bytes      DOUBLE, FLOAT, BOOLEAN, STRING, BINARY
    int32, sint32, sfixed32                 INT
    int64, sint64, sfixed64                 BIGINT
    uint32, fixed32                         BIGINT, which holds every value
    uint64, fixed64                         DECIMAL(20,0), which holds every value
    enum                                    STRING: the value's name, or its number if it has no name
    google.protobuf.Timestamp               TIMESTAMP: nanoseconds are truncated to microseconds
    message, group                          STRUCT of its fields, with every field of a oneof
    repeated, map                           ARRAY, MAP: never null, empty if there are no elements

Fields with presence (`optional`, in a oneof, messages, all of proto2) are null when they are absent; other fields have
the default of their type. Not supported: a message that contains itself, such as google.protobuf.Struct, and a message
without fields. Extensions are unknown fields.
"""

import re
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import EncodeError
from google.protobuf.message_factory import GetMessageClass
from pyspark.sql import Column, DataFrame
from pyspark.sql import types as st
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import to_arrow_type

from spark_log.errors import InvalidOptionError, InvalidRecordError
from spark_log.log.columns.protobuf.columns import structs_of
from spark_log.log.columns.protobuf.messages import below, is_map, is_timestamp, message_class
from spark_log.spark.streams.formats.parsing import Parser
from spark_log.spark.streams.formats.struct_types import converted, fitted

_SCALARS: dict[int, st.DataType] = {
    FieldDescriptor.TYPE_DOUBLE: st.DoubleType(),
    FieldDescriptor.TYPE_FLOAT: st.FloatType(),
    FieldDescriptor.TYPE_BOOL: st.BooleanType(),
    FieldDescriptor.TYPE_STRING: st.StringType(),
    FieldDescriptor.TYPE_BYTES: st.BinaryType(),
    FieldDescriptor.TYPE_INT32: st.IntegerType(),
    FieldDescriptor.TYPE_SINT32: st.IntegerType(),
    FieldDescriptor.TYPE_SFIXED32: st.IntegerType(),
    FieldDescriptor.TYPE_INT64: st.LongType(),
    FieldDescriptor.TYPE_SINT64: st.LongType(),
    FieldDescriptor.TYPE_SFIXED64: st.LongType(),
    FieldDescriptor.TYPE_UINT32: st.LongType(),
    FieldDescriptor.TYPE_FIXED32: st.LongType(),
    FieldDescriptor.TYPE_UINT64: st.DecimalType(20, 0),
    FieldDescriptor.TYPE_FIXED64: st.DecimalType(20, 0),
    FieldDescriptor.TYPE_ENUM: st.StringType(),
}


def schema_of(message: Descriptor, path: str = "", within: tuple[str, ...] = ()) -> st.StructType:
    """Return the struct type of a message. Raises InvalidOptionError for a field that cannot be a column."""
    place = f"field {path}: " if path else ""
    if message.full_name in within:
        raise InvalidOptionError(f"{place}a message that contains itself, {message.full_name}, cannot be a column")
    if not message.fields:
        raise InvalidOptionError(f"{place}a message without fields, {message.full_name}, cannot be a column")
    within = (*within, message.full_name)
    return st.StructType([st.StructField(each.name, _column_type(each, path, within)) for each in message.fields])


def _column_type(field: FieldDescriptor, path: str, within: tuple[str, ...]) -> st.DataType:
    where = below(path, field)
    if is_map(field):
        key, value = (field.message_type.fields_by_name[part] for part in ("key", "value"))
        return st.MapType(_SCALARS[key.type], _single(value, where, within))
    single = _single(field, where, within)
    return st.ArrayType(single) if field.is_repeated else single


def _single(field: FieldDescriptor, path: str, within: tuple[str, ...]) -> st.DataType:
    if is_timestamp(field):
        return st.TimestampType()
    return _SCALARS.get(field.type) or schema_of(field.message_type, path, within)


def protobuf_parser(name: str, descriptor_set: bytes) -> Parser:
    """Return the parser of a message. Raises InvalidOptionError for an invalid descriptor, message or field."""
    schema = schema_of(message_class(name, descriptor_set).DESCRIPTOR)
    result = st.StructType().add("value", schema).add("error", st.StringType())
    arrow = to_arrow_type(result, timezone="UTC")

    def parsed(values: pa.Array) -> pa.Array:
        return structs_of(values, message_class(name, descriptor_set), arrow)

    # Declared as not deterministic: otherwise Spark pushes down a filter on `error` and parses everything twice.
    function = arrow_udf(parsed, result).asNondeterministic()  # type: ignore[call-overload]  # its overloads leave structs out
    return Parser(function, lambda _bare, parsed: parsed["error"])


def protobuf_payload(frame: DataFrame, payload: Column, name: str, descriptor_set: bytes) -> Column:
    """Return the encoded messages. Raises InvalidOptionError if the payload's columns do not fit the message."""
    schema = schema_of(message_class(name, descriptor_set).DESCRIPTOR)
    payload_type = frame.select(payload.alias("value")).schema["value"].dataType
    payload = converted(payload, payload_type, fitted(payload_type, schema, "value"))

    def encoded(values: pa.Array) -> pa.Array:
        messages = messages_of(values, message_class(name, descriptor_set).DESCRIPTOR)
        return pa.array([None if each is None else _bytes(each) for each in messages], pa.binary())

    function: Callable[[Column], Column] = arrow_udf(encoded, st.BinaryType())  # type: ignore[call-overload]
    return function(payload)


def messages_of(values: pa.Array, kind: Descriptor) -> list[Any]:
    """Convert an array of structs to messages, null to None. Raises InvalidRecordError for an invalid field value."""
    names = [each.name for each in values.type]
    columns = [
        _of_field(column, kind.fields_by_name[name]) for name, column in zip(names, values.flatten(), strict=True)
    ]
    make = GetMessageClass(kind)
    return [
        _made(make, dict(zip(names, row, strict=True))) if valid else None
        for valid, *row in zip(values.is_valid().to_pylist(), *columns, strict=True)
    ]


def _made(make: Any, fields: dict[str, Any]) -> Any:
    try:
        return make(**fields)
    except (ValueError, TypeError) as error:
        for name, value in fields.items():
            try:
                make(**{name: value})
            except (ValueError, TypeError) as found:
                raise InvalidRecordError(f"field {name} of {make.DESCRIPTOR.full_name}: {found}") from error
        raise


def _of_field(array: pa.Array, field: FieldDescriptor) -> list[Any]:
    if not field.is_repeated:
        return _of_values(array, field)
    if not is_map(field):
        return _lists(array, _of_values(array.flatten(), field), list)
    entries = pa.struct([pa.field("key", array.type.key_type, False), ("value", array.type.item_type)])
    array = array.cast(pa.list_(entries))
    key, value = (
        _of_values(column, field.message_type.fields_by_name[part])
        for part, column in zip(("key", "value"), array.flatten().flatten(), strict=True)
    )
    return _lists(array, zip(key, value, strict=True), dict)


def _lists(array: pa.ListArray, flat: Iterable[Any], make: Callable[[Iterable[Any]], Any]) -> list[Any]:
    """Split the flat values into the lists or maps of `array`."""
    values = iter(flat)
    return [
        None if length is None else make(islice(values, length)) for length in pc.list_value_length(array).to_pylist()
    ]


def _of_values(array: pa.Array, field: FieldDescriptor) -> list[Any]:
    if is_timestamp(field):
        make = GetMessageClass(field.message_type)
        micros = array.cast(pa.int64()).to_pylist()
        return [
            None if time_us is None else make(seconds=time_us // 1_000_000, nanos=time_us % 1_000_000 * 1000)
            for time_us in micros
        ]
    if field.message_type is not None:
        return messages_of(array, field.message_type)
    values: list[Any] = array.to_pylist()
    if field.enum_type is not None:
        return [_number(name, field.enum_type) for name in values]
    if pa.types.is_decimal(array.type):
        return [None if number is None else int(number) for number in values]
    return values


def _number(name: str | None, enum: EnumDescriptor) -> int | str | None:
    """Return the number of an enum's value. Without one, return the text unchanged, which the message refuses."""
    if name in enum.values_by_name:
        return int(enum.values_by_name[name].number)
    return int(name) if name is not None and not enum.is_closed and re.fullmatch("-?[0-9]+", name) else name


def _bytes(message: Any) -> bytes:
    try:
        encoded: bytes = message.SerializeToString(deterministic=True)
    except EncodeError as error:
        raise InvalidRecordError(str(error)) from error
    return encoded
