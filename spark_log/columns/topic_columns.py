"""The typed columns of a topic: how they follow from its configs, and their text in the metadata store. Pure."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import pyarrow as pa

from spark_log.columns import types
from spark_log.columns.checks import walk
from spark_log.columns.decoding import ColumnsDefinition, schema_fields
from spark_log.columns.resets import columns_after
from spark_log.errors import IncompatibleSchemaError, InvalidConfigurationError, InvalidSchemaError


@dataclass(frozen=True)
class SubjectSchemas:
    """The schemas of a subject of a schema registry, as source texts.

    `schema`: the version that the topic has. `by_id`: all versions of the subject. `follows`: whether the fields of all
    versions become columns, not only those of `schema`.
    """

    schema: str
    by_id: Mapping[int, str]
    follows: bool


def define(
    format_: str,
    schema: str,
    framing: str,
    selected: str,
    current: str | None,
    subject: SubjectSchemas | None = None,
    *,
    reset: bool = False,
) -> str:
    """The typed columns (text for the store) of a topic with these configs: value.format, value.schema, value.framing,
    value.columns. `current` is the text so far. `subject`: the schemas to which a value.schema of a registry refers.

    A column is never removed, and never changes its type; with `reset`, a field that does not fit its column gets
    another one. The version grows if any value could be decoded in another way than before. Versions of the subject
    that do not fit the columns are left out. Raises InvalidConfigurationError, IncompatibleSchemaError.
    """
    before = from_text(current) if current is not None else None
    if subject is None and format_ in ("avro", "protobuf") and framing == "confluent":
        raise InvalidConfigurationError(
            "value.framing=confluent: each value has the id of its schema, so value.schema has to name the subject of a"
            " schema registry: registry:SUBJECT; value.framing=none takes values of one schema"
        )
    if format_ == "bytes":
        assert before is not None, "a topic that never had columns has no definition"
        return to_text(replace(before, format="bytes", schemas_by_id={}))
    source = schema if subject is None else subject.schema
    fields = _selected(_fields(format_, source), selected)
    after = ColumnsDefinition(before.version if before else 1, format_, framing, source, fields)
    if before is not None:
        columns = columns_after(before, fields, reset=reset)
        previous = before if columns.replaced != before.replaced else before.previous
        after = replace(after, **columns._asdict(), previous=previous)
    known: dict[int, str] = {}
    if subject is not None:  # the ids that were known stay: the topic has records with them
        known = {**(before.schemas_by_id if before and before.format == format_ else {}), **subject.by_id}
    by_id: dict[int, str] = {}
    for number, text in sorted(known.items(), reverse=True):
        try:
            own = _version_fields(format_, text)
            both = after.fields if _has_all(after, own) else columns_after(after, own).fields
        except (IncompatibleSchemaError, InvalidSchemaError):
            continue
        by_id[number] = text
        if subject is not None and subject.follows and selected == "all":
            after = replace(after, fields=both)
    after = replace(after, schemas_by_id=by_id if framing == "confluent" else {})
    if before is not None and after != before:
        after = replace(after, version=before.version + 1)
    return to_text(after)


_version_fields = lru_cache(maxsize=1024)(schema_fields)
"""The versions of a subject are read again for each new one."""


def _has_all(definition: ColumnsDefinition, fields: pa.StructType) -> bool:
    """Whether each field is a column already; a subject may have hundreds of versions, most of which add nothing."""
    if definition.renamed or definition.replaced:
        return False
    kinds = {field.name: field.type for field in definition.fields}
    return all(kinds.get(field.name) == field.type for field in fields)


def to_text(definition: ColumnsDefinition) -> str:
    """Inverse of `from_text`; equal definitions have equal texts."""
    return json.dumps(_as_json(definition), sort_keys=True)


def _as_json(definition: ColumnsDefinition) -> dict[str, Any]:
    previous = definition.previous and _as_json(definition.previous)
    return {**vars(definition), "fields": json.loads(types.to_json(definition.fields)), "previous": previous}


def from_text(text: str) -> ColumnsDefinition:
    """The definition in column topic.value_columns."""
    return _of_json(json.loads(text))


def _of_json(values: dict[str, Any]) -> ColumnsDefinition:
    previous = values["previous"]
    parts = {
        "fields": types.from_json(json.dumps(values["fields"])),
        "schemas_by_id": {int(number): text for number, text in values["schemas_by_id"].items()},
        "replaced": tuple(values["replaced"]),
        "previous": previous and _of_json(previous),
    }
    return ColumnsDefinition(**{**values, **parts})


def column_paths(fields: pa.StructType) -> list[str]:
    """The dotted paths of all fields, at any depth, in order."""
    return [".".join(path) for path, _, _ in walk(fields) if path]


def contains(whole: pa.DataType, part: pa.DataType) -> bool:
    """Whether each field of `part`, at any depth, is in `whole`."""
    if pa.types.is_struct(part):
        return bool(pa.types.is_struct(whole)) and all(
            whole.get_field_index(field.name) >= 0 and contains(whole.field(field.name).type, field.type)
            for field in part
        )
    if pa.types.is_list(part) or pa.types.is_map(part):
        inner = "value_type" if pa.types.is_list(part) else "item_type"
        return whole.id == part.id and contains(getattr(whole, inner), getattr(part, inner))
    return True


def _fields(format_: str, schema: str) -> pa.StructType:
    if not schema:
        raise InvalidConfigurationError(f"value.format={format_} needs value.schema")
    return schema_fields(format_, schema)


def _selected(fields: pa.StructType, selected: str) -> pa.StructType:
    """The fields that value.columns names, in the order of the schema; a nested field by its dotted path."""
    if selected == "all":
        return fields
    paths = [tuple(path.strip().split(".")) for path in selected.split(",")]
    for path in paths:
        if not has_path(fields, path):
            raise InvalidConfigurationError(f"value.columns: value.schema has no field {'.'.join(path)!r}")
    return part_on_paths(fields, paths)


def has_path(fields: pa.DataType, path: tuple[str, ...]) -> bool:
    """Whether there is a field on this path. Arrays are passed through."""
    here = fields
    for name in path:
        while pa.types.is_list(here):
            here = here.value_type
        if not pa.types.is_struct(here) or here.get_field_index(name) < 0:
            return False
        here = here.field(name).type
    return True


def part_on_paths(kind: pa.DataType, paths: list[tuple[str, ...]]) -> pa.DataType:
    """`kind` with the fields on one of the paths; an empty path takes all."""
    if () in paths:
        return kind
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(part_on_paths(kind.value_type, paths)))
    found = []
    for field in kind:
        below = [path[1:] for path in paths if path[0] == field.name]
        if below:
            found.append(field.with_type(part_on_paths(field.type, below)))
    return pa.struct(found)
