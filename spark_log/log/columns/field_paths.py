"""Finds fields of a struct by their paths, at any depth, and gives them ids. Pure.

Parquet stores the ids of the columns of segment files, and Iceberg finds columns by them. The id of a path never
changes and is never given to another path: a column stays when its field is removed, and never changes its type. In
paths with ids, parts of lists and maps have Iceberg's names: `record.tags.element`, `record.m.value`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

import pyarrow as pa

from spark_log.log.columns.column_limits import walk

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


def column_paths(fields: pa.StructType) -> list[str]:
    """Return the dotted paths of all fields, at any depth, in order."""
    return [".".join(path) for path, _, _ in walk(fields) if path]


def contains(whole: pa.DataType, part: pa.DataType) -> bool:
    """Return whether each field of `part`, at any depth, is in `whole`. The types of leaves are not compared."""
    if pa.types.is_struct(part):
        return bool(pa.types.is_struct(whole)) and all(
            whole.get_field_index(field.name) >= 0 and contains(whole.field(field.name).type, field.type)
            for field in part
        )
    if pa.types.is_list(part) or pa.types.is_map(part):
        inner = "value_type" if pa.types.is_list(part) else "item_type"
        return whole.id == part.id and contains(getattr(whole, inner), getattr(part, inner))
    return True


def has_path(fields: pa.DataType, path: tuple[str, ...]) -> bool:
    """Return whether there is a field at this path. A path does not name the elements of arrays."""
    here = fields
    for name in path:
        while pa.types.is_list(here):
            here = here.value_type
        if not pa.types.is_struct(here) or here.get_field_index(name) < 0:
            return False
        here = here.field(name).type
    return True


def part_on_paths(kind: pa.DataType, paths: list[tuple[str, ...]]) -> pa.DataType:
    """Return `kind` with only the fields at the paths. An empty path stands for all fields."""
    if () in paths:
        return kind
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(part_on_paths(kind.value_type, paths)))
    below: dict[str, list[tuple[str, ...]]] = {}
    for name, *rest in paths:
        below.setdefault(name, []).append(tuple(rest))
    return pa.struct(
        [field.with_type(part_on_paths(field.type, below[field.name])) for field in kind if field.name in below]
    )


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
    """Return the schema without the metadata of its fields, which Spark and others would compare."""

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
