"""Defines the schema of a topic's Iceberg table, and its name mapping for files without field ids. Pure.

Types map one to one, and every field is optional. https://iceberg.apache.org/spec/#schemas-and-data-types
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from spark_log.log.columns.field_paths import BASE_IDS
from spark_log.log.columns.topic_columns import TopicColumns
from spark_log.log.records.schema import SEGMENT_SCHEMA

PARTITION_FIELDS = (("partition", 1000), ("base_offset", 1001))
"""The partition spec's fields, with their ids. Each is the identity of the column of its name, which no file has."""

PARTITION_SPEC = [
    {"source-id": BASE_IDS[name], "field-id": number, "name": name, "transform": "identity"}
    for name, number in PARTITION_FIELDS
]
_COLUMNS = pa.schema([("partition", pa.int32()), ("base_offset", pa.int64()), *SEGMENT_SCHEMA])
_PRIMITIVES = {
    pa.bool_(): "boolean",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float64(): "double",
    pa.date32(): "date",
    pa.timestamp("us", "UTC"): "timestamptz",
    pa.string(): "string",
    pa.binary(): "binary",
}


def iceberg_schema(columns: TopicColumns | None) -> dict[str, Any]:
    """Return the schema of the table of a topic with these typed columns, without a schema id."""
    typed: Iterable[pa.Field] = () if columns is None else columns.fields
    ids = {**BASE_IDS, **({} if columns is None else columns.ids)}
    return {"type": "struct", "fields": [_field(field, field.name, ids) for field in (*_COLUMNS, *typed)]}


def last_column_id(schema: Mapping[str, Any]) -> int:
    """Return the highest field id of a schema."""
    ids_in_schema = [0]

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            ids_in_schema.extend(each for name, each in value.items() if name == "id" or name.endswith("-id"))
            for each in value.values():
                walk(each)
        elif isinstance(value, list):
            for each in value:
                walk(each)

    walk(schema["fields"])
    return max(ids_in_schema)


def name_mapping(schema: Mapping[str, Any]) -> str:
    """Return the value of `schema.name-mapping.default`: readers find the columns of files without ids by name."""
    return json.dumps([_mapped(field["name"], field["id"], field["type"]) for field in schema["fields"]])


def _field(field: pa.Field, path: str, ids: Mapping[str, int]) -> dict[str, Any]:
    return {"id": ids[path], "name": field.name, "required": False, "type": _type(field.type, path, ids)}


def _type(kind: pa.DataType, path: str, ids: Mapping[str, int]) -> Any:
    if pa.types.is_struct(kind):
        return {"type": "struct", "fields": [_field(field, f"{path}.{field.name}", ids) for field in kind]}
    if pa.types.is_list(kind):
        inner = f"{path}.element"
        element = _type(kind.value_type, inner, ids)
        return {"type": "list", "element-id": ids[inner], "element-required": False, "element": element}
    if pa.types.is_map(kind):
        key, value = f"{path}.key", f"{path}.value"
        return {
            "type": "map",
            "key-id": ids[key],
            "key": _type(kind.key_type, key, ids),
            "value-id": ids[value],
            "value-required": False,
            "value": _type(kind.item_type, value, ids),
        }
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision}, {kind.scale})"
    return _PRIMITIVES[kind]


def _mapped(name: str, number: int, kind: Any) -> dict[str, Any]:
    mapped: dict[str, Any] = {"field-id": number, "names": [name]}
    if isinstance(kind, dict):
        if kind["type"] == "struct":
            inner = [_mapped(field["name"], field["id"], field["type"]) for field in kind["fields"]]
        elif kind["type"] == "list":
            inner = [_mapped("element", kind["element-id"], kind["element"])]
        else:
            inner = [_mapped(part, kind[f"{part}-id"], kind[part]) for part in ("key", "value")]
        mapped["fields"] = inner
    return mapped
