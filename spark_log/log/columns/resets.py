"""Resets columns: a field of the schema gets another type, and therefore another column. Pure.

A column of a Delta table cannot change its type while there are files that have it with the old type. So the column
`price` stays with its values, and the field `price` is stored in column `price__v2` from then on. A value is decoded
with the present schema and with all earlier ones, and is bad only if it fits none of them. Each column gets its value
from the newest schema that has this column and that the value fits. So no column loses a value when its file is
rewritten.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_log.errors import IncompatibleSchemaError, InvalidSchemaError
from spark_log.log.columns.column_limits import checked
from spark_log.log.columns.decoded import ColumnsDefinition, Decoded, Decoder
from spark_log.log.columns.evolution import evolve
from spark_log.log.columns.schema_id_decoder import taken


def present_fields(definition: ColumnsDefinition) -> pa.StructType:
    """Return the fields of the present schema, with the names that they have in keys or values. They include fields
    that were removed from the schema.
    """
    field_of = {column: name for name, column in definition.renamed.items()}
    return pa.struct(
        [
            column.with_name(field_of.get(column.name, column.name))
            for column in definition.fields
            if column.name not in definition.replaced
        ]
    )


def columns_after(before: ColumnsDefinition, fields: pa.StructType, *, reset: bool = False) -> ColumnsDefinition:
    """Return `before` with the columns of the topic after its schema was changed to these fields.

    With `reset`, a field that does not fit its column gets a new column; without it, IncompatibleSchemaError is raised.
    """
    present = present_fields(before)
    columns = {column.name: column.type for column in before.fields}
    renamed, replaced = dict(before.renamed), list(before.replaced)
    if reset:
        conflicts = [field.name for field in fields if not _fits(present, field)]
        for name in conflicts:
            for field in present:
                if field.name.lower() == name.lower():
                    replaced.append(renamed.pop(field.name, field.name))
            renamed[name] = _free_name(name, {*columns, *renamed.values(), *(field.name for field in fields)})
        gone = {name.lower() for name in conflicts}
        present = pa.struct([field for field in present if field.name.lower() not in gone])
    for field in _evolved(present, fields):
        column = renamed.get(field.name, field.name)
        if column in replaced or (field.name not in renamed and column in renamed.values()):
            raise IncompatibleSchemaError(f"schema: {field.name}: the column of this name is that of another field")
        columns[column] = field.type
    try:
        struct = checked(pa.struct(list(columns.items())))
    except InvalidSchemaError as error:
        raise IncompatibleSchemaError(f"{error}, with the columns that the topic has already") from error
    return replace(before, fields=struct, renamed=renamed, replaced=tuple(replaced))


def _evolved(present: pa.StructType, fields: pa.StructType) -> pa.StructType:
    try:
        return evolve(present, fields)
    except IncompatibleSchemaError as error:
        raise IncompatibleSchemaError(
            f"{error}; give the field another name, or another column with `spark-log schema set --reset`"
        ) from error


def _fits(present: pa.StructType, field: pa.Field) -> bool:
    try:
        evolve(present, pa.struct([field]))
    except IncompatibleSchemaError:
        return False
    return True


def _free_name(name: str, taken_names: set[str]) -> str:
    lower = {each.lower() for each in taken_names}
    number = 2
    while f"{name}__v{number}".lower() in lower:
        number += 1
    return f"{name}__v{number}"


def schemas(definition: ColumnsDefinition) -> Iterator[ColumnsDefinition]:
    """Yield the present definition and those before each reset, newest first, without those of format bytes, which
    cannot be decoded.
    """
    current: ColumnsDefinition | None = definition
    while current is not None:
        if current.format != "bytes":
            yield current
        current = current.previous


def of_present_schema(definition: ColumnsDefinition) -> ColumnsDefinition:
    """Return a definition of the present schema alone, whose columns have the names of its fields."""
    return replace(definition, fields=present_fields(definition), renamed={}, replaced=(), previous=None)


class ResetDecoder:
    """The decoder of a definition with earlier schemas. Threads may share it."""

    def __init__(self, definition: ColumnsDefinition, decoder: Callable[[ColumnsDefinition], Decoder]) -> None:
        """Create the decoder of each schema with `decoder`."""
        self._fields = definition.fields
        self._schemas = []
        kinds = {column.name: column.type for column in definition.fields}
        for each in schemas(definition):
            column_of = {field.name: each.renamed.get(field.name, field.name) for field in present_fields(each)}
            fields = pa.struct([(name, kinds[column]) for name, column in column_of.items()])
            alone = replace(each, fields=fields, renamed={}, replaced=(), previous=None)
            self._schemas.append((decoder(alone), list(column_of.values())))

    def most_values(self, values: pa.BinaryArray) -> float:
        return sum(of_schema.most_values(values) for of_schema, _ in self._schemas)

    def decode(self, values: pa.BinaryArray) -> Decoded:
        decodings = [(decode.decode(values), columns) for decode, columns in self._schemas]
        arrays = []
        for field in self._fields:
            parts, order = [pa.array([], field.type)], np.full(len(values), -1, np.int64)
            for decoded, columns in decodings:
                if field.name not in columns:
                    continue
                good = decoded.record.is_valid().to_numpy(zero_copy_only=False)
                rows = np.flatnonzero(good & (order < 0))
                order[rows] = sum(map(len, parts)) + rows
                parts.append(decoded.record.field(columns.index(field.name)))
            arrays.append(taken(pa.concat_arrays(parts), order))
        bad = pa.array(np.logical_and.reduce([decoded.record.is_null() for decoded, _ in decodings]))
        record = pa.StructArray.from_arrays(arrays, fields=list(self._fields), mask=bad)
        reasons = decodings[0][0].reasons
        if reasons is not None:
            reasons = pc.if_else(bad, reasons, None)
        return Decoded(record, reasons if reasons is not None and reasons.null_count < len(reasons) else None)
