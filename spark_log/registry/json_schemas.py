"""Parses and compares JSON Schemas, which are compatible if their columns are (`log.columns.evolution`)."""

import json
from typing import Any

from spark_log.errors import IncompatibleSchemaError, InvalidSchemaError
from spark_log.log.columns.evolution import evolve
from spark_log.log.columns.json.json_schema import json_schema_fields
from spark_log.registry.schemas import SchemaText


def parse(schema: SchemaText) -> Any:
    """Return the schema as a Python object. Raises InvalidSchemaError unless it is a JSON object or boolean."""
    try:
        parsed = json.loads(schema.text)
    except (RecursionError, ValueError) as error:
        raise InvalidSchemaError(f"not a JSON schema: {error}") from error
    if not isinstance(parsed, dict | bool):
        raise InvalidSchemaError("not a JSON schema: expected an object")
    return parsed


def column_source(schema: SchemaText, _message: str = "") -> str:
    """Return the text of the schema, with its imports in the object `$imports` by the names of the references."""
    parsed = parse(schema)
    if not schema.imports or not isinstance(parsed, dict):
        return schema.text
    imported = {name: parse(SchemaText("JSON", text)) for name, text in schema.imports}
    return json.dumps({**parsed, "$imports": imported})


def problems(reader: SchemaText, writer: SchemaText) -> list[str]:
    """Return the reasons why `reader` cannot read records of `writer`.

    If one of them has no columns, they are compatible only if they are equal.
    """
    try:
        evolve(json_schema_fields(column_source(reader)), json_schema_fields(column_source(writer)))
    except InvalidSchemaError as error:
        return [] if parse(reader) == parse(writer) else [str(error)]
    except IncompatibleSchemaError as error:
        return [str(error)]
    return []
