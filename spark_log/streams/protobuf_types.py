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

from functools import lru_cache
from typing import Any

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.message import DecodeError
from pyspark.sql import types as st

from spark_log.errors import InvalidOptionError

_TIMESTAMP = "google.protobuf.Timestamp"
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


@lru_cache(maxsize=64)
def message_class(name: str, descriptor_set: bytes) -> Any:
    """The class of the message with this full name, created once per process. InvalidOptionError if there is none."""
    pool = descriptor_pool.DescriptorPool()
    try:
        for file in FileDescriptorSet.FromString(descriptor_set).file:
            pool.Add(file)
    except (DecodeError, TypeError) as error:
        raise InvalidOptionError(
            f"descriptor: not a descriptor set (protoc --include_imports --descriptor_set_out): {error}"
        ) from error
    try:
        return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
    except KeyError as error:
        raise InvalidOptionError(f"message {name!r}: not in the descriptor") from error


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


def is_map(field: FieldDescriptor) -> bool:
    return bool(field.message_type and field.message_type.GetOptions().map_entry)


def is_timestamp(field: FieldDescriptor) -> bool:
    return bool(field.message_type and field.message_type.full_name == _TIMESTAMP)


def below(path: str, field: FieldDescriptor) -> str:
    """The path of the field: `stops[].name`, `fares{}`."""
    own = "{}" if is_map(field) else "[]" if field.is_repeated else ""
    return f"{path}.{field.name}{own}".lstrip(".")


def type_name(field: FieldDescriptor) -> str:
    """The type's name in a .proto file: sint32."""
    return str(FieldDescriptorProto.Type.Name(field.type)).removeprefix("TYPE_").lower()


def message_indexes(name: str, descriptor_set: bytes) -> bytes:
    """The bytes after the schema's id in Confluent's framing: the message's position in the schema's file as zigzag
    numbers, one zero byte for the first message.
    """
    message = message_class(name, descriptor_set).DESCRIPTOR
    file = FileDescriptorProto()
    message.file.CopyToProto(file)
    place: list[int] = []
    while message is not None:
        outer = message.containing_type
        siblings = file.message_type if outer is None else outer.nested_types
        place.insert(0, [each.name for each in siblings].index(message.name))
        message = outer
    return b"\0" if place == [0] else b"".join(_zigzag(number) for number in (len(place), *place))


def _zigzag(number: int) -> bytes:
    """Varint of a number >= 0, zigzag encoded."""
    number *= 2
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])
