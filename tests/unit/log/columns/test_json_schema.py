"""JSON Schemas to columns."""

import json
from typing import Any

import pytest

from spark_log.errors import InvalidSchemaError
from spark_log.log.columns.decoding import schema_fields
from spark_log.log.columns.types import to_ddl


def columns(properties: Any, **more: Any) -> str:
    return to_ddl(schema_fields("json", json.dumps({"type": "object", "properties": properties, **more})))


DEFINITIONS = {
    "Line": {"type": "object", "properties": {"n": {"type": "integer"}}},
    "Tree": {"type": "object", "properties": {"n": {"type": "integer"}, "left": {"$ref": "#/$defs/Tree"}}},
}


@pytest.mark.parametrize(
    ("schema", "column"),
    [
        ({"type": "integer"}, "BIGINT"),
        ({"type": "number"}, "DOUBLE"),
        ({"type": "boolean"}, "BOOLEAN"),
        ({"type": "string"}, "STRING"),
        ({"type": ["null", "integer"]}, "BIGINT"),
        ({"oneOf": [{"type": "null"}, {"type": "integer"}]}, "BIGINT"),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, "STRING"),
        ({"type": ["string", "integer"]}, "STRING"),
        ({"type": "string", "format": "date-time"}, "TIMESTAMP"),
        ({"type": "string", "format": "date"}, "DATE"),
        ({"type": "string", "contentEncoding": "base64"}, "BINARY"),
        ({"enum": ["a", "b"]}, "STRING"),
        ({"type": "array", "items": {"type": "string"}}, "ARRAY<STRING>"),
        ({"type": "array"}, "STRING"),
        ({"type": "object"}, "STRING"),
        ({"type": "object", "additionalProperties": {"type": "number"}}, "MAP<STRING, DOUBLE>"),
        ({"type": "object", "additionalProperties": True}, "STRING"),
        ({"$ref": "#/$defs/Line"}, "STRUCT<n: BIGINT>"),
        ({"$ref": "#/$defs/Tree"}, "STRUCT<n: BIGINT, left: STRING>"),
        ({"allOf": [{"$ref": "#/$defs/Line"}, {"properties": {"m": {}}}]}, "STRUCT<n: BIGINT, m: STRING>"),
        ({"properties": {"a": {"type": "integer"}}}, "STRUCT<a: BIGINT>"),
        (True, "STRING"),
    ],
)  # fmt: skip
def test_each_kind_of_schema_has_a_type(schema: Any, column: str) -> None:
    assert columns({"f": schema}, **{"$defs": DEFINITIONS}) == f"f {column}"


def test_imported_schemas_are_found_by_their_names() -> None:
    imports = {"line.json": DEFINITIONS["Line"]}
    assert columns({"f": {"$ref": "line.json"}}, **{"$imports": imports}) == "f STRUCT<n: BIGINT>"
    assert columns({"f": {"$ref": "line.json#/properties/n"}}, **{"$imports": imports}) == "f BIGINT"


def test_references_of_an_imported_schema_are_to_its_own_parts() -> None:
    address = {
        "$id": "http://a/address",
        "type": "object",
        "properties": {
            "country": {"$ref": "#/definitions/country"},
            "city": {"$ref": "http://a/address#/definitions/city"},
            "part": {"$ref": "part.json"},
            "inner": {"$ref": "#/definitions/inner"},
        },
        "definitions": {
            "country": {"type": "string"},
            "city": {"type": "object", "properties": {"n": {}}},
            "inner": {"type": "object", "properties": {"a": {"$ref": "#/definitions/inner"}}},
        },
    }
    part = {"$ref": "#/definitions/country", "definitions": {"country": {"type": "boolean"}}}
    imports = {"$imports": {"address.json#": address, "part.json": part}}
    found = "country: STRING, city: STRUCT<n: STRING>, part: BOOLEAN, inner: STRUCT<a: STRING>"
    assert columns({"f": {"$ref": "address.json#"}}, **imports) == f"f STRUCT<{found}>"
    own = {"properties": {"own": {"$ref": "#/definitions/country"}}}
    definitions = {"country": {"type": "integer"}, "all": {"allOf": [{"$ref": "address.json#"}, own]}}
    merged = columns({"f": {"$ref": "#/definitions/all"}}, definitions=definitions, **imports)
    assert merged == f"f STRUCT<{found}, own: BIGINT>"
    with pytest.raises(InvalidSchemaError, match=r"'#/definitions/country': there is no such schema"):
        columns({"f": {"$ref": "#/definitions/country"}}, **imports)


@pytest.mark.parametrize(
    "text",
    [
        '{"type": "string"}',
        '{"type": "object"}',
        '{"type": "object", "properties": {"f": {"$ref": "#/$defs/X"}}}',
        '{"type": "object", "properties": {"f": {"$ref": "other.json"}}}',
        '{"type": "object", "properties": {"f": 1, "F": 2}}',
        '{"type": "object", "properties": [1]}',
        "{",
    ],
)
def test_a_schema_without_columns_is_refused(text: str) -> None:
    with pytest.raises(InvalidSchemaError):
        schema_fields("json", text)


def test_references_that_multiply_are_refused() -> None:
    twice = {f"L{n}": {"properties": {name: {"$ref": f"#/$defs/L{n + 1}"} for name in "ab"}} for n in range(40)}
    merged = {f"M{n}": {"allOf": [{"$ref": f"#/$defs/M{n + 1}"}] * 2} for n in range(40)}
    ends = {name: {"type": "string"} for name in ("L40", "M40")}
    for name in ("L0", "M0"):
        with pytest.raises(InvalidSchemaError, match="more than"):
            columns({"f": {"$ref": f"#/$defs/{name}"}}, **{"$defs": {**twice, **merged, **ends}})
