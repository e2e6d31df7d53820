"""Checks the limits that each schema of columns must keep, so that every Delta reader can read the table.

A name must be unique within its struct without regard to case, and not empty. It has no whitespace, control character,
backslash or any of , ; { } ( ) = . ` " because a Delta table without column mapping, a dotted path or a quoted name
cannot have them.
"""

import re
from collections.abc import Iterator

import pyarrow as pa

from spark_log.errors import InvalidSchemaError

MAX_FIELDS = 10_000
"""Largest number of fields of a schema, including nested fields."""
MAX_DEPTH = 32
"""Largest number of levels of structs, arrays and maps of a schema, including the record itself."""
_PATH_CHARACTERS_MAX = 1_000
"""The largest length of a field's dotted path. Ids, readers and changes of columns store the path of each field, and
each path repeats the names above its field.
"""

_NOT_IN_NAMES = re.compile(r"[\s\x00-\x1f\x7f,;{}()=.`\"\\]")
_SCALARS = {pa.int64(), pa.float64(), pa.timestamp("us", "UTC"), pa.date32(), pa.bool_(), pa.binary(), pa.string()}


def checked(fields: pa.StructType) -> pa.StructType:
    """Return `fields`. Raise InvalidSchemaError if they exceed a limit, or have a name or type that is not allowed."""
    count = 0
    for path, kind, depth in walk(fields):
        count += pa.types.is_struct(kind) and kind.num_fields
        if depth > MAX_DEPTH:
            raise InvalidSchemaError(f"schema: {_place(path)}: nested deeper than {MAX_DEPTH} levels")
        check_count(count)
        if pa.types.is_struct(kind):
            _check_names(kind, path)
        elif pa.types.is_map(kind):
            if kind.key_type != pa.string():
                raise InvalidSchemaError(f"schema: {_place(path)}: the keys of a MAP have to be STRING")
        elif not (
            pa.types.is_list(kind) or pa.types.is_decimal128(kind) or kind in _SCALARS
        ):  # not `in` for a list, whose hash is that of its text
            raise InvalidSchemaError(f"schema: {_place(path)}: type {kind} cannot be a column")
    return fields


def check_count(fields: int) -> None:
    """Raise InvalidSchemaError for a number of fields above the limit."""
    if fields > MAX_FIELDS:
        raise InvalidSchemaError(f"schema: more than {MAX_FIELDS} fields")


def count_of(fields: pa.StructType) -> int:
    """Return the number of fields at any depth."""
    return sum(1 for _ in walk(fields))


def check_path(characters: int, path: str) -> None:
    """Raise InvalidSchemaError for a dotted path, or a full name, of more characters than the limit."""
    if characters > _PATH_CHARACTERS_MAX:
        raise InvalidSchemaError(
            f"schema: {path[:100]}...: the name with those above it has more than {_PATH_CHARACTERS_MAX:,} characters"
        )


def is_column_name(name: str) -> bool:
    return bool(name) and not _NOT_IN_NAMES.search(name)


def walk(fields: pa.StructType) -> Iterator[tuple[tuple[str, ...], pa.DataType, int]]:
    """Yield each type of the schema with its path and depth, beginning with the schema itself, parents before
    children.
    """
    stack: list[tuple[tuple[str, ...], pa.DataType, int]] = [((), fields, 1)]
    while stack:
        path, kind, depth = stack.pop()
        yield path, kind, depth
        if pa.types.is_struct(kind):
            children = [((*path, field.name), field.type) for field in kind]
        elif pa.types.is_list(kind):
            children = [((*path, "element"), kind.value_type)]
        elif pa.types.is_map(kind):
            children = [((*path, "value"), kind.item_type)]
        else:
            continue
        stack += [(below, child, depth + pa.types.is_nested(child)) for below, child in reversed(children)]


def _check_names(struct: pa.StructType, path: tuple[str, ...]) -> None:
    if not struct.num_fields:
        raise InvalidSchemaError(f"schema: {_place(path)}: a struct needs at least one field")
    seen: dict[str, str] = {}
    above = sum(len(name) + 1 for name in path)
    for field in struct:
        name = field.name
        check_path(above + len(name), name)
        if not is_column_name(name):
            raise InvalidSchemaError(
                f"schema: {_place(path)}: the name {name!r} is empty, or has whitespace or one of "
                ', ; { } ( ) = . ` " \\'
            )
        if other := seen.get(name.lower()):
            difference = "is there twice" if other == name else f"differs from {other!r} in case only"
            raise InvalidSchemaError(f"schema: {_place(path)}: the name {name!r} {difference}")
        seen[name.lower()] = name


def _place(path: tuple[str, ...]) -> str:
    return f"field {'.'.join(path)}" if path else "the record"
