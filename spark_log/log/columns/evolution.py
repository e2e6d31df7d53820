"""Evolves columns additively: a new field becomes a new column, and the column of a removed field stays."""

import pyarrow as pa

from spark_log.errors import IncompatibleSchemaError, InvalidSchemaError
from spark_log.log.columns.column_limits import checked
from spark_log.log.columns.types import list_of, type_name


def evolve(current: pa.StructType, new: pa.StructType) -> pa.StructType:
    """Return the columns that can store the records of both schemas: in each struct the current columns in their order,
    including those of removed fields, then the new ones.

    Raises IncompatibleSchemaError, which names every refused path and the reason: another type, a name that differs
    from a column's name in case only, a DECIMAL that does not fit the column, or an exceeded limit. A DECIMAL that fits
    keeps the column's type.
    """
    change = _Change()
    fields = change.struct(current, new, ())
    if change.refused:
        raise IncompatibleSchemaError("schema: " + "; ".join(change.refused))
    try:
        checked(fields)
    except InvalidSchemaError as error:
        raise IncompatibleSchemaError(f"{error}, with the columns that the topic has already") from error
    return fields


class _Change:
    def __init__(self) -> None:
        self.refused: list[str] = []

    def struct(self, current: pa.StructType, new: pa.StructType, path: tuple[str, ...]) -> pa.StructType:
        columns = {field.name: field.type for field in current}
        asked = {field.name: field.type for field in new}
        names = {name.lower(): name for name in columns}
        for name, kind in columns.items():
            if name in asked:
                columns[name] = self._type(kind, asked[name], (*path, name))
        for name, kind in asked.items():
            if name in columns:
                continue
            if other := names.get(name.lower()):
                self.refused.append(f"{'.'.join((*path, name))}: differs from column {other} in case only")
            columns[name] = kind
        return pa.struct(list(columns.items()))

    def _type(self, current: pa.DataType, new: pa.DataType, path: tuple[str, ...]) -> pa.DataType:
        if pa.types.is_struct(current) and pa.types.is_struct(new):
            return self.struct(current, new, path)
        if pa.types.is_list(current) and pa.types.is_list(new):
            return list_of(self._type(current.value_type, new.value_type, (*path, "element")))
        if pa.types.is_map(current) and pa.types.is_map(new):
            return pa.map_(pa.string(), self._type(current.item_type, new.item_type, (*path, "value")))
        if current != new and not _decimal_fits(current, new):
            self.refused.append(f"{'.'.join(path)}: the column is {type_name(current)}, not {type_name(new)}")
        return current


def _decimal_fits(current: pa.DataType, new: pa.DataType) -> bool:
    """Return whether the current type can store each value of the new type, both DECIMAL."""
    return bool(
        pa.types.is_decimal(current)
        and pa.types.is_decimal(new)
        and new.scale <= current.scale
        and new.precision - new.scale <= current.precision - current.scale
    )
