"""Converts schemas of columns between Spark's DDL, the JSON text that Delta and Spark store, and Arrow's struct type.

Each declared type (left) becomes the widest type of its family (right), so that no column ever has to be widened:

    TINYINT, SMALLINT, INT, BIGINT          BIGINT, int64
    FLOAT, DOUBLE                           DOUBLE, float64
    TIMESTAMP                               TIMESTAMP, timestamp[us, UTC]
    STRING, CHAR(n), VARCHAR(n)             STRING, string
    DECIMAL(p, s)                           as declared, decimal128(p, s); DECIMAL alone is DECIMAL(10, 0)
    DATE, BOOLEAN, BINARY                   date32, bool, binary
    STRUCT<a: T>, ARRAY<T>, MAP<STRING, T>  struct, list (its item is called `element`), map

TIMESTAMP_NTZ, TIME, INTERVAL, VARIANT, VOID and collations are refused: a Delta table of the basic protocol has no such
columns. Every field is nullable. NOT NULL and COMMENT are accepted and have no effect.
"""

import json
from typing import Any

import pyarrow as pa

from spark_log.errors import InvalidSchemaError
from spark_log.log.columns.column_limits import checked
from spark_log.log.columns.ddl import parsed

_DDL_NAMES = {
    pa.int64(): "BIGINT",
    pa.float64(): "DOUBLE",
    pa.timestamp("us", "UTC"): "TIMESTAMP",
    pa.date32(): "DATE",
    pa.bool_(): "BOOLEAN",
    pa.binary(): "BINARY",
    pa.string(): "STRING",
}
_JSON_NAMES = {kind: {"BIGINT": "long"}.get(name, name.lower()) for kind, name in _DDL_NAMES.items()}
_OF_JSON = {name: kind for kind, name in _JSON_NAMES.items()}

FIRST_TIMESTAMP, LAST_TIMESTAMP = -62_135_596_800_000_000, 253_402_300_799_999_999
"""Microseconds since 1970: the years 1 to 9999, which every reader supports."""
FIRST_DATE, LAST_DATE = -719_162, 2_932_896
"""Days since 1970."""


def parse_ddl(text: str) -> pa.StructType:
    """Return the struct of a DDL such as "item STRING, lines ARRAY<STRUCT<sku: STRING, n: INT>>".

    The rules are those of Spark's StructType.fromDDL: a keyword may be a name, and a name with other characters than
    letters, digits and _ needs backticks. Raises InvalidSchemaError, which names the position or the field.
    """
    return checked(parsed(text))


def to_ddl(fields: pa.StructType) -> str:
    """Return the canonical DDL of the fields: `parse_ddl(to_ddl(fields)) == fields`."""
    return ", ".join(f"{_quoted(field.name)} {type_ddl(field.type)}" for field in fields)


def type_ddl(kind: pa.DataType) -> str:
    """Return the type in DDL, such as ARRAY<BIGINT>."""
    if pa.types.is_struct(kind):
        return f"STRUCT<{', '.join(f'{_quoted(field.name)}: {type_ddl(field.type)}' for field in kind)}>"
    if pa.types.is_list(kind):
        return f"ARRAY<{type_ddl(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"MAP<STRING, {type_ddl(kind.item_type)}>"
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision}, {kind.scale})"
    return _DDL_NAMES[kind]


def type_name(kind: pa.DataType) -> str:
    """Return the type for a message, without the fields of a struct or the elements of an array or map."""
    return type_ddl(kind).partition("<")[0]


def _quoted(name: str) -> str:
    plain = name.isascii() and name.replace("_", "a").isalnum() and not name[0].isdigit()
    return name if plain else f"`{name}`"


def to_json(fields: pa.StructType) -> str:
    """Return the schema in the JSON of Delta's `schemaString` and Spark's `StructType.json()`."""
    return json.dumps(_json_type(fields), separators=(",", ":"), ensure_ascii=False)


def _json_type(kind: pa.DataType) -> Any:
    if pa.types.is_struct(kind):
        fields = [
            {"name": field.name, "type": _json_type(field.type), "nullable": True, "metadata": {}} for field in kind
        ]
        return {"type": "struct", "fields": fields}
    if pa.types.is_list(kind):
        return {"type": "array", "elementType": _json_type(kind.value_type), "containsNull": True}
    if pa.types.is_map(kind):
        item = _json_type(kind.item_type)
        return {"type": "map", "keyType": "string", "valueType": item, "valueContainsNull": True}
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    return _JSON_NAMES[kind]


def from_json(text: str) -> pa.StructType:
    """Return the struct of a text of `to_json`. Raise InvalidSchemaError for a text that is not a schema."""
    try:
        kind = _of_json(json.loads(text))
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise InvalidSchemaError(f"schema: not the JSON text of columns: {error}") from error
    if not pa.types.is_struct(kind):
        raise InvalidSchemaError("schema: the JSON text is not that of a struct")
    return kind


def _of_json(kind: Any) -> pa.DataType:
    if isinstance(kind, str):
        if kind.startswith("decimal("):
            precision, scale = kind[len("decimal(") : -1].split(",")
            return pa.decimal128(int(precision), int(scale))
        return _OF_JSON[kind]
    if kind["type"] == "struct":
        return pa.struct([pa.field(each["name"], _of_json(each["type"])) for each in kind["fields"]])
    if kind["type"] == "array":
        return list_of(_of_json(kind["elementType"]))
    if kind["type"] == "map" and kind["keyType"] == "string":
        return pa.map_(pa.string(), _of_json(kind["valueType"]))
    raise ValueError(f"type {kind['type']!r}")


def list_of(element: pa.DataType) -> pa.ListType:
    """Return the type of an array whose items are called `element`, as in Parquet, Spark and Delta."""
    return pa.list_(pa.field("element", element))
