"""The column types of a Protobuf message.

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

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from pyspark.sql import types as st

from spark_log.errors import InvalidOptionError
from spark_log.log.columns.protobuf.messages import below, is_map, is_timestamp

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
    """The message as a struct. InvalidOptionError names a field that cannot be a column."""
    place = f"field {path}: " if path else ""
    if message.full_name in within:
        raise InvalidOptionError(f"{place}a message that contains itself, {message.full_name}, cannot be a column")
    if not message.fields:
        raise InvalidOptionError(f"{place}a message without fields, {message.full_name}, cannot be a column")
    within = (*within, message.full_name)
    return st.StructType([st.StructField(each.name, _field(each, path, within)) for each in message.fields])


def _field(field: FieldDescriptor, path: str, within: tuple[str, ...]) -> st.DataType:
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
