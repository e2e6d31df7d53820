"""Converts Protobuf messages to columns.

    double, float                                   DOUBLE
    int32, int64, uint32 and their other encodings  BIGINT
    uint64, fixed64                                 DECIMAL(20, 0), which holds every value
    bool, string, bytes                             BOOLEAN, STRING, BINARY
    enum                                            STRING: the value's name, or its number if it has no name
    google.protobuf.Timestamp                       TIMESTAMP; digits below microseconds are cut off
    message, group                                  STRUCT of its fields, with every field of a oneof
    repeated, map                                   ARRAY, MAP<STRING, ...>: never null, empty if there are no elements;
                                                    keys that are not strings as in Protobuf's JSON

Fields with presence (`optional`, in a oneof, messages, all of proto2) are null when they are absent; other fields have
the default of their type. Not supported: a message that contains itself, and a message without fields.
"""

import base64
import json
from typing import Any

import pyarrow as pa
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from spark_log.errors import InvalidOptionError, InvalidSchemaError
from spark_log.log.columns.column_limits import MAX_DEPTH, check_path, checked
from spark_log.log.columns.protobuf.messages import below, is_map, is_timestamp, message_class
from spark_log.log.columns.types import list_of

_SCALARS = {
    FieldDescriptor.TYPE_DOUBLE: pa.float64(),
    FieldDescriptor.TYPE_FLOAT: pa.float64(),
    FieldDescriptor.TYPE_BOOL: pa.bool_(),
    FieldDescriptor.TYPE_STRING: pa.string(),
    FieldDescriptor.TYPE_BYTES: pa.binary(),
    FieldDescriptor.TYPE_INT32: pa.int64(),
    FieldDescriptor.TYPE_SINT32: pa.int64(),
    FieldDescriptor.TYPE_SFIXED32: pa.int64(),
    FieldDescriptor.TYPE_INT64: pa.int64(),
    FieldDescriptor.TYPE_SINT64: pa.int64(),
    FieldDescriptor.TYPE_SFIXED64: pa.int64(),
    FieldDescriptor.TYPE_UINT32: pa.int64(),
    FieldDescriptor.TYPE_FIXED32: pa.int64(),
    FieldDescriptor.TYPE_UINT64: pa.decimal128(20, 0),
    FieldDescriptor.TYPE_FIXED64: pa.decimal128(20, 0),
    FieldDescriptor.TYPE_ENUM: pa.string(),
}


def protobuf_schema(message: str, descriptor_set: bytes) -> str:
    """Return the source text of a definition's schema, from the message's full name and the descriptor set that
    declares it (protoc --include_imports --descriptor_set_out).
    """
    return json.dumps({"message": message, "descriptor": base64.b64encode(descriptor_set).decode()})


def protobuf_schema_fields(schema: str) -> pa.StructType:
    """Return the columns of the message of a text of `protobuf_schema`. Raise InvalidSchemaError, which names the
    field, if a field cannot be a column.
    """
    return MessageColumns().fields(message_of(schema)[0].DESCRIPTOR)


def message_of(schema: str) -> tuple[Any, str, bytes]:
    """Return the message's class, its full name and the descriptor set, from a text of `protobuf_schema`. Raise
    InvalidSchemaError for another text.
    """
    try:
        parsed = json.loads(schema)
        name, descriptor_set = parsed["message"], base64.b64decode(parsed["descriptor"], validate=True)
        return message_class(name, descriptor_set), name, descriptor_set
    except InvalidOptionError as error:
        raise InvalidSchemaError(f"schema: {error}") from error
    except (KeyError, RecursionError, TypeError, ValueError) as error:
        raise InvalidSchemaError(f"schema: not a Protobuf message and its descriptor: {error!r}") from error


class MessageColumns:
    """Finds the columns of messages of one descriptor pool. Each message is converted once, because nested uses would
    multiply the work.
    """

    def __init__(self) -> None:
        self._known: dict[str, pa.StructType] = {}

    def fields(self, message: Descriptor) -> pa.StructType:
        """Return the columns of the message. Raises like `protobuf_schema_fields`."""
        return checked(self._struct(message, "", ()))

    def _struct(self, message: Descriptor, path: str, within: tuple[str, ...]) -> pa.StructType:
        for text in (path, message.full_name):  # each field and each use of the message copies the text
            check_path(len(text), text)
        place = f"field {path}" if path else "the record"
        if message.full_name in within:
            raise InvalidSchemaError(
                f"schema: {place}: a message that contains itself, {message.full_name}, cannot be a column"
            )
        if len(within) > MAX_DEPTH:
            raise InvalidSchemaError(f"schema: {place[:100]}: nested deeper than {MAX_DEPTH} levels")
        if message.full_name not in self._known:
            below_it = (*within, message.full_name)
            fields = [pa.field(each.name, self._field(each, below(path, each), below_it)) for each in message.fields]
            self._known[message.full_name] = pa.struct(fields)
        return self._known[message.full_name]

    def _field(self, field: FieldDescriptor, path: str, within: tuple[str, ...]) -> pa.DataType:
        if is_map(field):
            return pa.map_(pa.string(), self._single(field.message_type.fields_by_name["value"], path, within))
        single = self._single(field, path, within)
        return list_of(single) if field.is_repeated else single

    def _single(self, field: FieldDescriptor, path: str, within: tuple[str, ...]) -> pa.DataType:
        if is_timestamp(field):
            return pa.timestamp("us", "UTC")
        return _SCALARS.get(field.type) or self._struct(field.message_type, path, within)
