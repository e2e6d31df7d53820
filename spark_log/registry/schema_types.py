"""What each type of schema can do: be checked, compared, and turned into columns.

`canonical` and `problems` are the rules of the registry; each type has a module.
"""

import hashlib
import json
from collections.abc import Sequence
from functools import lru_cache

from spark_log.config.values import can_be_stored
from spark_log.errors import InvalidSchemaError
from spark_log.registry.schemas import Reference, SchemaText

SCHEMA_CHARACTERS_MAX = 1 << 20
"""Confluent's registry keeps its schemas in records of at most 1 MiB."""


@lru_cache(maxsize=64)
def canonical(schema: SchemaText) -> str:
    """A text that is equal for schemas that are the same. InvalidSchemaError if it is not a schema of its type."""
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
    """Column schema.hash. InvalidSchemaError if it is not a schema of its type."""
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
    """Why consumers with the schema `reader` cannot read the records of `writer`; empty if they can."""
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
    """The text from which `log.columns.decoding.schema_fields` makes columns: the schema with all that it imports.

    `message`: full name of the Protobuf message; the first one of the file if it is empty.
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
