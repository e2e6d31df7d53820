"""Converts Avro schemas to columns.

    int, long; float, double; boolean; string; bytes, fixed     BIGINT, DOUBLE, BOOLEAN, STRING, BINARY
    enum; uuid of a string                                      STRING
    decimal(p, s); date                                         DECIMAL(p, s), DATE
    timestamp-millis, -micros, -nanos, local or not             TIMESTAMP; digits below microseconds are cut off, and a
                                                                local time is taken as UTC
    time-millis, time-micros; duration                          BIGINT, BINARY: the stored numbers and bytes
    record, array, map                                          STRUCT, ARRAY, MAP<STRING, ...>
    union                                                       the type of its branches other than null

These are refused: a type that contains itself, a union of several families of types, a field that is always null, an
array or map of nulls, and an array of values that take no bytes, because it could have any length.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from spark_log.errors import InvalidSchemaError
from spark_log.log.columns.column_limits import MAX_DEPTH, MAX_FIELDS, check_count, check_path, checked
from spark_log.log.columns.types import list_of, type_name

_TYPES_MAX = 16 * MAX_FIELDS
"""Limit of the types that are read, branches of unions included, because each of them needs a reader."""

_PRIMITIVES = {
    "null": None,
    "int": pa.int64(),
    "long": pa.int64(),
    "float": pa.float64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "bytes": pa.binary(),
}
_LOGICAL = {
    ("int", "date"): pa.date32(),
    **{
        ("long", f"{local}timestamp-{unit}"): pa.timestamp("us", "UTC")
        for local in ("", "local-")
        for unit in ("millis", "micros", "nanos")
    },
}


@dataclass(frozen=True)
class AvroType:
    """A type of an Avro schema with its references resolved.

    `name` is a primitive type, record, enum, array, map, fixed or union. `column` is the type of its column, None for
    null. `parts` are the fields of a record, the branches of a union, or the items of an array or map. `names` are the
    names of the fields. `min_bytes` is the smallest size of a value.
    """

    name: str
    column: pa.DataType | None
    logical: str = ""
    parts: tuple["AvroType", ...] = ()
    names: tuple[str, ...] = ()
    symbols: tuple[str, ...] = ()
    size: int = 0
    scale: int = 0
    min_bytes: int = 1

    @cached_property
    def symbol_texts(self) -> pa.StringArray:
        """The symbols of an enum and a null. All uses of the enum share them."""
        return pa.array([*self.symbols, None], pa.string())


def avro_schema_fields(schema: str) -> pa.StructType:
    """Return the columns of an Avro record, given as the JSON text of its schema. Raise InvalidSchemaError, which names
    the field, if a field cannot be a column.
    """
    return checked(avro_type(schema).column)


def avro_type(schema: str) -> AvroType:
    """Return the record that the JSON text declares. Raise InvalidSchemaError if it declares none."""
    try:
        parsed = json.loads(schema)
        kind = _Reader().read(parsed, "", ())
    except (ArithmeticError, AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise InvalidSchemaError(f"schema: not an Avro schema: {error!r}") from error
    if kind.name != "record":
        raise InvalidSchemaError(f"schema: expected an Avro record, got {kind.name}")
    return kind


class _Reader:
    """Resolves the references of a schema. It counts the fields and types that are read, and those of a named type
    again at each reference: types that refer to each other would otherwise multiply without a limit.
    """

    def __init__(self) -> None:
        self._named: dict[str, tuple[AvroType, int, int] | None] = {}
        """The named types, with the numbers of their fields and types. None marks a type that is being read."""
        self._fields = self._types = 0

    def read(self, schema: Any, namespace: str, path: tuple[str, ...]) -> AvroType:
        self._count(types=1)
        if len(path) > 2 * MAX_DEPTH:
            raise InvalidSchemaError(f"schema: field {'.'.join(path)[:100]}: nested deeper than {MAX_DEPTH} levels")
        if isinstance(schema, list):
            return _union([self.read(branch, namespace, path) for branch in schema], path)
        if isinstance(schema, str):
            return self._by_name(schema, namespace, path)
        name, logical = schema["type"], schema.get("logicalType", "")
        if name in ("record", "error", "enum", "fixed"):
            return self._declared(schema, name, namespace, path)
        if name in ("array", "map"):
            item = self.read(schema["items" if name == "array" else "values"], namespace, (*path, "[]"))
            if item.column is None or (name == "array" and not item.min_bytes):
                raise InvalidSchemaError(
                    f"schema: {_place(path)}: an {name} of values without bytes cannot be a column"
                )
            column = list_of(item.column) if name == "array" else pa.map_(pa.string(), item.column)
            return AvroType(name, column, parts=(item,))
        if name == "bytes" and logical == "decimal" and (decimal := _decimal(schema)):
            return AvroType(name, decimal, logical, scale=decimal.scale)
        if (name, logical) in _LOGICAL:
            return AvroType(name, _LOGICAL[name, logical], logical)
        return self.read(name, namespace, path)

    def _by_name(self, name: str, namespace: str, path: tuple[str, ...]) -> AvroType:
        if name in _PRIMITIVES:
            return AvroType(name, _PRIMITIVES[name], min_bytes=int(name != "null"))
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        if full not in self._named:
            raise InvalidSchemaError(f"schema: {_place(path)}: unknown Avro type {name!r}")
        known = self._named[full]
        if known is None:
            raise InvalidSchemaError(f"schema: {_place(path)}: a type that contains itself, {full}, cannot be a column")
        kind, fields, types = known
        self._count(fields, types)
        return kind

    def _count(self, fields: int = 0, types: int = 0) -> None:
        self._fields += fields
        self._types += types
        check_count(self._fields)
        if self._types > _TYPES_MAX:
            raise InvalidSchemaError(f"schema: more than {_TYPES_MAX} types, those of references included")

    def _declared(self, schema: Any, name: str, namespace: str, path: tuple[str, ...]) -> AvroType:
        own = schema["name"]
        namespace = own.rpartition(".")[0] if "." in own else schema.get("namespace", namespace)
        full = own if "." in own or not namespace else f"{namespace}.{own}"
        check_path(len(full), full)  # each use of a name within a namespace makes the full name
        self._named[full], before = None, (self._fields, self._types)
        if name == "enum":
            kind = AvroType(name, pa.string(), symbols=tuple(schema["symbols"]))
        elif name == "fixed":
            size, logical = int(schema["size"]), schema.get("logicalType", "")
            if not 0 <= size < 2**31:
                raise InvalidSchemaError(f"schema: {_place(path)}: a fixed of {size} bytes")
            decimal = _decimal(schema) if logical == "decimal" else None
            kind = AvroType(
                name, decimal or pa.binary(), size=size, scale=decimal.scale if decimal else 0, min_bytes=size
            )
        else:
            kind = self._record(schema["fields"], namespace, path)
        self._named[full] = kind, self._fields - before[0], self._types - before[1]
        return kind

    def _record(self, fields: Sequence[Any], namespace: str, path: tuple[str, ...]) -> AvroType:
        self._count(len(fields))
        names = tuple(field["name"] for field in fields)
        parts = tuple(self.read(field["type"], namespace, (*path, field["name"])) for field in fields)
        for name, part in zip(names, parts, strict=True):
            if part.column is None:
                raise InvalidSchemaError(f"schema: field {'.'.join((*path, name))}: always null, cannot be a column")
        column = pa.struct([pa.field(name, part.column) for name, part in zip(names, parts, strict=True)])
        return AvroType("record", column, parts=parts, names=names, min_bytes=sum(part.min_bytes for part in parts))


def _union(branches: list[AvroType], path: tuple[str, ...]) -> AvroType:
    columns = [branch.column for branch in branches if branch.column is not None]
    if any(column != columns[0] for column in columns):
        names = ", ".join(type_name(column) for column in columns)
        raise InvalidSchemaError(f"schema: {_place(path)}: a union of {names} cannot be a column")
    return AvroType("union", columns[0] if columns else None, parts=tuple(branches))


def _decimal(schema: Any) -> pa.Decimal128Type | None:
    """Return the type of a decimal, None if it is not valid: Avro's specification ignores the logical type then."""
    try:
        precision, scale = int(schema["precision"]), int(schema.get("scale", 0))
    except (KeyError, OverflowError, TypeError, ValueError):  # 1e999 is infinite
        return None
    return pa.decimal128(precision, scale) if 1 <= precision <= 38 and 0 <= scale <= precision else None


def _place(path: tuple[str, ...]) -> str:
    return f"field {'.'.join(path)}".replace(".[]", "[]") if path else "the record"
