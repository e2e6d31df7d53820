"""Field ids of the columns of segment files. Parquet stores them, and Iceberg finds columns by them. Pure.

The id of a path never changes and is never given to another path: a column stays when its field is removed, and never
changes its type. Paths name the parts of lists and maps as Iceberg does: `record.tags.element`, `record.m.value`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

import pyarrow as pa

BASE_IDS = {
    path: number
    for number, path in enumerate(
        (
            "partition", "base_offset", "offset_delta", "timestamp", "key", "value",
            "headers", "headers.element", "headers.element.key", "headers.element.value",
            "key_record_error", "key_record", "record_error", "record",
        ),
        start=1,
    )
}  # fmt: skip
"""The ids of the columns that every topic may have. A file has no columns for its partition and base_offset."""

FIRST_TYPED_ID = 100
"""The first id of the fields within key_record and record."""

_KEY = b"PARQUET:field_id"
"""Arrow's name of the id in the metadata of a field."""


def numbered(fields: Iterable[pa.Field], ids: Mapping[str, int]) -> dict[str, int]:
    """Return the ids of all fields within the typed columns `fields`, by path. `ids` are those given before: they stay,
    and the other fields get the next ones, in the order of a file.
    """
    result = dict(ids)
    following = max(FIRST_TYPED_ID - 1, max(ids.values(), default=0)) + 1
    for field in fields:
        for path in _paths(field.name, field.type):
            if path not in BASE_IDS and path not in result:
                result[path] = following
                following += 1
    return result


def with_ids(schema: pa.Schema, ids: Mapping[str, int]) -> pa.Schema:
    """Return the schema of a segment file with the ids of all its fields. `ids` are those of `numbered`."""
    every = {**BASE_IDS, **ids}

    def identified(field: pa.Field, path: str) -> pa.Field:
        return field.with_type(_rebuilt(field.type, path, identified)).with_metadata({_KEY: str(every[path])})

    return pa.schema([identified(field, field.name) for field in schema])


def without_ids(schema: pa.Schema) -> pa.Schema:
    """Return the schema without the metadata of its fields. Spark and others compare it."""

    def plain(field: pa.Field, path: str) -> pa.Field:
        return field.with_type(_rebuilt(field.type, path, plain)).remove_metadata()

    return pa.schema([plain(field, field.name) for field in schema])


def _children(kind: pa.DataType) -> list[tuple[str, pa.Field]]:
    """Return the fields within a type, with their names in a path."""
    if pa.types.is_struct(kind):
        return [(field.name, field) for field in kind]
    if pa.types.is_list(kind):
        return [("element", kind.value_field)]
    if pa.types.is_map(kind):
        return [("key", kind.key_field), ("value", kind.item_field)]
    return []


def _paths(path: str, kind: pa.DataType) -> Iterator[str]:
    yield path
    for name, field in _children(kind):
        yield from _paths(f"{path}.{name}", field.type)


def _rebuilt(kind: pa.DataType, path: str, change: Callable[[pa.Field, str], pa.Field]) -> pa.DataType:
    """Return the type with each field within it changed."""
    inner = [change(field, f"{path}.{name}") for name, field in _children(kind)]
    if pa.types.is_struct(kind):
        return pa.struct(inner)
    if pa.types.is_list(kind):
        return pa.list_(*inner)
    return pa.map_(*inner) if pa.types.is_map(kind) else kind
