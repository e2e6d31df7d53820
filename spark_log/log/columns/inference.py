"""Infers the columns for a sample of JSON values.

    true, false      BOOLEAN
    numbers          BIGINT if all are whole and have 64 bits, DOUBLE if one has a point or an exponent
    strings          TIMESTAMP if all are ISO 8601 times with seconds and a zone, DATE if all are dates such as
                     2026-11-22, TIMESTAMP if there are both, STRING otherwise
    objects          STRUCT of all their fields, in the order of their first appearance; MAP<STRING, ...> if there are
                     more than 200 names
    arrays           ARRAY
    several of these, and whole numbers of more than 64 bits      STRING, which holds any value's JSON text

Fields that are always null, empty objects and empty arrays are left out, and can be added when their type is known.
Fields whose name no column can have are left out too (see column_limits.py); of names that differ in case only, the
first one stays. Objects and arrays that are nested too deeply for columns become STRING.
"""

import datetime
import re
from typing import Any

import msgspec
import pyarrow as pa

from spark_log.errors import InvalidSchemaError
from spark_log.log.columns.column_limits import MAX_DEPTH, checked, is_column_name
from spark_log.log.columns.json.field_by_field import BadRecordError, check_text
from spark_log.log.columns.types import list_of

MAX_STRUCT = 200
"""The most names of an object that becomes a struct. The names of objects with more names are data."""

_SCALARS = {
    "boolean": pa.bool_(),
    "long": pa.int64(),
    "double": pa.float64(),
    "timestamp": pa.timestamp("us", "UTC"),
    "date": pa.date32(),
    "text": pa.string(),
}
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIME_AND_ZONE = re.compile(
    r"[T ]([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]+)?(Z|[+-]([01][0-9]|2[0-3]):?[0-5][0-9])"
)
_YEARS = range(2, 9999)  # any zone leaves the time within the years 1 to 9999


def infer_json(values: pa.BinaryArray) -> pa.StructType:
    """Return the columns for the values that are JSON objects, ignoring all other values.

    Raises InvalidSchemaError if they have no field that can be a column.
    """
    seen = _Seen()
    for value in values.to_pylist():
        if value is not None:
            try:
                check_text(value)
                record = msgspec.json.decode(value)
            except (BadRecordError, RecursionError, ValueError):
                continue
            if isinstance(record, dict):
                seen.add(record)
    fields = seen.struct(1)
    if fields is None:
        raise InvalidSchemaError("schema: the sample has no JSON object with a field that can be a column")
    return checked(fields)


class _Seen:
    """The values seen at one place of the records."""

    def __init__(self) -> None:
        self._kinds: set[str] = set()
        self._fields: dict[str, _Seen] = {}
        self._items: _Seen | None = None

    def add(self, value: Any) -> None:
        match value:
            case None:
                pass
            case bool():
                self._kinds.add("boolean")
            case int():
                self._kinds.add("long" if -(2**63) <= value < 2**63 else "text")
            case float():
                self._kinds.add("double")
            case str():
                if "text" not in self._kinds:
                    self._kinds.add(_kind_of_text(value))
            case list():
                self._kinds.add("array")
                self._items = self._items or _Seen()
                for item in value:
                    self._items.add(item)
            case dict():
                self._kinds.add("object")
                for name, item in value.items():
                    self._fields.setdefault(name, _Seen()).add(item)

    def include(self, other: "_Seen") -> None:
        self._kinds |= other._kinds
        for name, seen in other._fields.items():
            self._fields.setdefault(name, _Seen()).include(seen)
        if other._items:
            self._items = self._items or _Seen()
            self._items.include(other._items)

    def type(self, depth: int) -> pa.DataType | None:
        """Return the type of the values, None if all are null or empty. `depth` is the depth of a nested type."""
        if self._kinds <= {"array", "object"} and len(self._kinds) < 2:
            return self._nested(depth)
        for wider, kinds in (("double", {"long", "double"}), ("timestamp", {"date", "timestamp"})):
            if self._kinds == kinds:
                return _SCALARS[wider]
        return _SCALARS.get(next(iter(self._kinds))) if len(self._kinds) == 1 else pa.string()

    def _nested(self, depth: int) -> pa.DataType | None:
        if depth > MAX_DEPTH:
            return pa.string() if self._kinds else None
        if self._items:
            item = self._items.type(depth + 1)
            return item and list_of(item)
        if len(self._fields) <= MAX_STRUCT:
            return self.struct(depth)
        values = _Seen()
        for seen in self._fields.values():
            values.include(seen)
        value = values.type(depth + 1)
        return value and pa.map_(pa.string(), value)

    def struct(self, depth: int) -> pa.StructType | None:
        """Return the struct of the fields, None if no field can be a column."""
        fields, names = [], set[str]()
        for name, seen in self._fields.items():
            kind = seen.type(depth + 1)
            if kind is not None and is_column_name(name) and name.lower() not in names:
                names.add(name.lower())
                fields.append(pa.field(name, kind))
        return pa.struct(fields) if fields else None


def _kind_of_text(value: str) -> str:
    if not _DATE.match(value):
        return "text"
    try:
        date = datetime.date.fromisoformat(value[:10])
    except ValueError:
        return "text"
    if date.year not in _YEARS:
        return "text"
    if len(value) == 10:
        return "date"
    return "timestamp" if _TIME_AND_ZONE.fullmatch(value, 10) else "text"
