"""Finds fields of a struct by their paths, at any depth. Pure."""

import pyarrow as pa

from spark_log.log.columns.column_limits import walk


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
    found = []
    for field in kind:
        below = [path[1:] for path in paths if path[0] == field.name]
        if below:
            found.append(field.with_type(part_on_paths(field.type, below)))
    return pa.struct(found)
