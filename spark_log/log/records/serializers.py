"""Serializes and deserializes keys and values as Avro and Protobuf, with kafka-python's interface.

This needs spark-log's extra `avro` or `protobuf`. The bytes contain neither a schema nor a schema id: writer and reader
are given the schema. None stays None, which is a tombstone.
"""

import importlib
import io
import json
from typing import Any

from kafka.serializer import Deserializer, Serializer

from spark_log.errors import InvalidRecordError, install_extra

Headers = list[tuple[str, bytes]]


class AvroSerializer(Serializer):  # type: ignore[misc]  # kafka-python ships no types
    """Serializes values with an Avro schema, which is given as a Python object or as JSON text.

    Raises InvalidRecordError for a value that does not fit the schema; ImportError, which names the extra, if fastavro
    is missing.
    """

    def __init__(self, schema: Any) -> None:
        self._avro = _library("fastavro", "avro")
        self._schema = _avro_schema(self._avro, schema)

    def serialize(self, topic: str, headers: Headers, data: Any) -> bytes | None:
        if data is None:
            return None
        out = io.BytesIO()
        try:
            self._avro.schemaless_writer(out, self._schema, data, strict_allow_default=True)
        except (ValueError, TypeError, AttributeError, KeyError, OverflowError) as error:
            raise InvalidRecordError(
                f"topic {topic!r}: {type(data).__name__} does not fit the schema: {error}"
            ) from error
        return out.getvalue()


class AvroDeserializer(Deserializer):  # type: ignore[misc]
    """Deserializes bytes that were written with the Avro schema `schema`.

    `reader_schema` is the schema of the result, if it is another version. Raises like AvroSerializer.
    """

    def __init__(self, schema: Any, reader_schema: Any = None) -> None:
        self._avro = _library("fastavro", "avro")
        self._schema = _avro_schema(self._avro, schema)
        self._reader_schema = None if reader_schema is None else _avro_schema(self._avro, reader_schema)

    def deserialize(self, topic: str, headers: Headers, data: bytes | None) -> Any:
        if data is None:
            return None
        source = io.BytesIO(data)
        try:
            value = self._avro.schemaless_reader(source, self._schema, self._reader_schema)
        except (ValueError, TypeError, EOFError, IndexError, KeyError, self._avro.schema.SchemaParseException) as error:
            raise InvalidRecordError(f"topic {topic!r}: bytes that do not fit the schema: {error!r}") from error
        if source.tell() != len(data):
            left = len(data) - source.tell()
            raise InvalidRecordError(f"topic {topic!r}: {left} bytes follow the value that the schema describes")
        return value


class ProtobufSerializer(Serializer):  # type: ignore[misc]
    """Serializes messages of one generated class. Equal messages have equal bytes, so they can be keys.

    Raises InvalidRecordError for an object of another class; ImportError, which names the extra, if protobuf is
    missing.
    """

    def __init__(self, message: type[Any]) -> None:
        self._message = _message_class(message)

    def serialize(self, topic: str, headers: Headers, data: Any) -> bytes | None:
        if data is None:
            return None
        if not isinstance(data, self._message):
            raise InvalidRecordError(f"topic {topic!r}: expected a {self._message.__name__}, got {type(data).__name__}")
        encoded: bytes = data.SerializeToString(deterministic=True)
        return encoded


class ProtobufDeserializer(Deserializer):  # type: ignore[misc]
    """Deserializes messages of one generated class. Raises like ProtobufSerializer."""

    def __init__(self, message: type[Any]) -> None:
        self._message = _message_class(message)
        self._error = importlib.import_module("google.protobuf.message").DecodeError

    def deserialize(self, topic: str, headers: Headers, data: bytes | None) -> Any:
        if data is None:
            return None
        value = self._message()
        try:
            value.ParseFromString(data)
        except self._error as error:
            raise InvalidRecordError(f"topic {topic!r}: not a {self._message.__name__}: {error}") from error
        return value


def _library(name: str, extra: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(f"{name} is not installed: {install_extra(extra)}") from error


def _avro_schema(avro: Any, schema: Any) -> Any:
    if isinstance(schema, str) and schema.lstrip().startswith(("{", "[", '"')):
        schema = json.loads(schema)
    return avro.parse_schema(schema)


def _message_class(message: Any) -> type[Any]:
    base = _library("google.protobuf.message", "protobuf").Message
    if not isinstance(message, type) or not issubclass(message, base):
        raise TypeError(f"message: expected a generated Protobuf class, got {message!r}")
    return message
