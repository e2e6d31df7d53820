"""Checks and compares schemas of all types, and turns them into columns. Each type has its own module, `*_schemas`.

`canonical` decides which schemas are the same, and `problems` which are compatible.
"""

import hashlib
import json
from collections.abc import Sequence
from functools import lru_cache
from importlib import import_module
from subprocess import SubprocessError
from typing import Any

from spark_log.config.values import can_be_stored
from spark_log.errors import InvalidSchemaError
from spark_log.registry.schemas import Reference, SchemaText, check_type
from spark_log.remembered import Remembered

SCHEMA_CHARACTERS_MAX = 1 << 20
"""The maximum length of a schema. Confluent's registry stores schemas in records of at most 1 MiB."""


_PROBLEMS_MAX, _PROBLEM_CHARACTERS_MAX = 100, 2_000
"""The maximum number of cached reasons why two schemas are not compatible, and the maximum length of each."""


class CacheKey:
    """A schema as an argument of a cached function. The cache keeps only its digest: texts may have many MiB."""

    def __init__(self, schema: SchemaText) -> None:
        self.digest = _digest(schema)
        self._schema: SchemaText | None = schema

    @property
    def schema(self) -> SchemaText:
        """Return the schema. The cached function must be running."""
        assert self._schema is not None
        return self._schema

    def forget_text(self) -> None:
        self._schema = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CacheKey) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)


def _digest(schema: SchemaText) -> bytes:
    digest = hashlib.sha256()
    for part in (schema.type, schema.text, *(part for each in schema.imports for part in each)):
        data = part.encode(errors="surrogatepass")
        digest.update(len(data).to_bytes(8, "big"))
        digest.update(data)
    return digest.digest()


def _module(type_: str) -> Any:
    """Return the module of this type, imported on first use, because the module may need a package that is missing.

    Raises InvalidSchemaError for another type, which an external registry may have.
    """
    return import_module(f"spark_log.registry.{check_type(type_).lower()}_schemas")


def canonical(schema: SchemaText) -> str:
    """Return a text that is equal for equal schemas. Raises InvalidSchemaError if it is not a valid schema."""
    module = _module(schema.type)
    if schema.type == "PROTOBUF":
        return str(module.canonical(schema))
    module.parse(schema)
    return json.dumps(json.loads(schema.text), sort_keys=True, separators=(",", ":"))


def schema_hash(schema: SchemaText, references: Sequence[Reference]) -> str:
    """Return the value of column schema.hash. Raises InvalidSchemaError if the schema is not valid or too long."""
    if not schema.text.strip():
        raise InvalidSchemaError("Empty schema")
    if len(schema.text) > SCHEMA_CHARACTERS_MAX:
        raise InvalidSchemaError(f"a schema of more than {SCHEMA_CHARACTERS_MAX:,} characters")
    if not can_be_stored(schema.text):
        raise InvalidSchemaError("not a schema: the text has a character that is not Unicode text")
    key = CacheKey(schema)
    try:
        return _hash(key, tuple(sorted(references)))
    finally:
        key.forget_text()


@lru_cache(maxsize=256)
def _hash(key: CacheKey, references: tuple[Reference, ...]) -> str:
    parts = [key.schema.type, canonical(key.schema), references]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def problems(reader: SchemaText, writer: SchemaText) -> list[str]:
    """Return the reasons why consumers with the schema `reader` cannot read records of `writer`; empty if they can.

    Raises InvalidSchemaError if a schema is not valid, or the comparison takes too long.
    """
    keys = CacheKey(reader), CacheKey(writer)
    try:
        return _problems(*keys)
    finally:
        for each in keys:
            each.forget_text()


@lru_cache(maxsize=256)
def _problems(reader_key: CacheKey, writer_key: CacheKey) -> list[str]:
    reader, writer = reader_key.schema, writer_key.schema
    if reader.type != writer.type:
        return [f"the schema type is {reader.type}, not {writer.type}"]
    found = _module(reader.type).problems(reader, writer)
    return [each[:_PROBLEM_CHARACTERS_MAX] for each in found[:_PROBLEMS_MAX]]


def column_source(schema: SchemaText, message: str = "") -> str:
    """Return the text from which `log.columns.decoding.schema_fields` makes columns: the schema with all its imports.

    `message` is the full name of a Protobuf message. If it is empty, the first one of the file is used. Raises
    InvalidSchemaError.
    """
    key = CacheKey(schema)
    try:
        text, error = _column_source(key, message)
    finally:
        key.forget_text()
    if error:
        raise InvalidSchemaError(error)
    return text


def _source_or_error(key: CacheKey, message: str) -> tuple[str, str]:
    schema = key.schema
    try:
        return _module(schema.type).column_source(schema, message), ""
    except InvalidSchemaError as error:
        if isinstance(error.__cause__, SubprocessError):  # protoc failed, and may succeed the next time
            raise
        return "", str(error)


_column_source = Remembered(
    _source_or_error, lambda found, _key, message: 200 + len(found[0]) + len(found[1]) + len(message), 64 << 20
)
"""Remembered, because transactions ask for the texts of all versions of a subject: other writers must not wait while
each is compiled.
"""
