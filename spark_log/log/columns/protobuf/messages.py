"""Finds messages and fields of Protobuf in a descriptor set."""

from typing import Any

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.message import DecodeError

from spark_log.errors import InvalidOptionError
from spark_log.remembered import Remembered

_TIMESTAMP = "google.protobuf.Timestamp"


def message_class(name: str, descriptor_set: bytes) -> Any:
    """Return the class of the message with this full name. Raise InvalidOptionError if the descriptor set is not valid
    or does not have the message.
    """
    return _classes(name, descriptor_set)


def _message_class(name: str, descriptor_set: bytes) -> Any:
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


_classes = Remembered(_message_class, lambda _class, _name, descriptor_set: 8 * len(descriptor_set), 64 << 20)


def is_map(field: FieldDescriptor) -> bool:
    return bool(field.message_type and field.message_type.GetOptions().map_entry)


def is_timestamp(field: FieldDescriptor) -> bool:
    return bool(field.message_type and field.message_type.full_name == _TIMESTAMP)


def below(path: str, field: FieldDescriptor) -> str:
    """Return the path of the field, such as `stops[].name` or `fares{}`."""
    own = "{}" if is_map(field) else "[]" if field.is_repeated else ""
    return f"{path}.{field.name}{own}".lstrip(".")


def type_name(field: FieldDescriptor) -> str:
    """Return the name of the field's type in a .proto file, such as sint32."""
    return str(FieldDescriptorProto.Type.Name(field.type)).removeprefix("TYPE_").lower()


def message_indexes(name: str, descriptor_set: bytes) -> bytes:
    """Return the bytes after the schema's id in Confluent's framing: the message's position in the schema's file as
    zigzag numbers, or one zero byte for the first message.
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
    """Return the zigzag varint of a number >= 0."""
    number *= 2
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])
