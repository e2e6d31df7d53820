"""Checks and compares schemas of all types, and turns them into columns. Each type has its own module.

`canonical` decides which schemas are the same, and `problems` which are compatible.
"""

import hashlib
import json
from collections.abc import Sequence
from functools import lru_cache

from spark_log.config.values import can_be_stored
from spark_log.errors import InvalidSchemaError
from spark_log.registry.schemas import Reference, SchemaText

SCHEMA_CHARACTERS_MAX = 1 << 20
"""The longest schema. Confluent's registry stores schemas in records of at most 1 MiB."""


@lru_cache(maxsize=64)
def canonical(schema: SchemaText) -> str:
    """Return a text that is equal for equal schemas. Raises InvalidSchemaError if it is not a schema of its type."""
    if schema.type == "AVRO":
        from spark_log.registry.avro_schemas import parse

        parse(schema)
        return _sorted_json(schema.text)
    if schema.type == "JSON":
        from spark_log.registry.json_schemas import parse as parse_json

        parse_json(schema)
        return _sorted_json(schema.text)
    from spark_log.registry.protobuf_schemas import canonical as canonical_proto

    return canonical_proto(schema)


def schema_hash(schema: SchemaText, references: Sequence[Reference]) -> str:
    """Return the value of column schema.hash. Raises InvalidSchemaError if it is not a schema of its type."""
    if not schema.text.strip():
        raise InvalidSchemaError("Empty schema")
    if len(schema.text) > SCHEMA_CHARACTERS_MAX:
        raise InvalidSchemaError(f"a schema of more than {SCHEMA_CHARACTERS_MAX:,} characters")
    if not can_be_stored(schema.text):
        raise InvalidSchemaError("not a schema: the text has a character that is not Unicode text")
    parts = [schema.type, canonical(schema), sorted(references)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


@lru_cache(maxsize=256)
def problems(reader: SchemaText, writer: SchemaText) -> list[str]:
    """Return why consumers with the schema `reader` cannot read records of `writer`. Empty if they can."""
    if reader.type != writer.type:
        return [f"the schema type is {reader.type}, not {writer.type}"]
    if reader.type == "AVRO":
        from spark_log.registry.avro_schemas import problems as found
    elif reader.type == "JSON":
        from spark_log.registry.json_schemas import problems as found
    else:
        from spark_log.registry.protobuf_schemas import problems as found
    return found(reader, writer)


def column_source(schema: SchemaText, message: str = "") -> str:
    """Return the text from which `log.columns.decoding.schema_fields` makes columns: the schema with all its imports.

    `message` is the full name of a Protobuf message. If it is empty, the first one of the file is used.
    """
    if schema.type == "AVRO":
        from spark_log.registry.avro_schemas import column_source as source

        return source(schema)
    if schema.type == "JSON":
        from spark_log.registry.json_schemas import column_source as json_source

        return json_source(schema)
    from spark_log.registry.protobuf_schemas import column_source as proto_source

    return proto_source(schema, message)


def _sorted_json(text: str) -> str:
    return json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"))
