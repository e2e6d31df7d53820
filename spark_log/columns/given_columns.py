"""Columns that a writer gives together with the values that it encoded from them, so that nothing is decoded.

They are accepted only if the decoder has the same result. Its limits are checked here, without decoding: times outside
of the years 1 to 9999, text that is not UTF-8, keys that a map has twice, and for JSON numbers that are not finite.
"""

import pyarrow as pa
import pyarrow.compute as pc

from spark_log.columns.decoding import ColumnsDefinition, Decoded, decoder
from spark_log.columns.json.field_by_field import needs_check, widest_item
from spark_log.columns.times import FIRST_DATE, FIRST_TIMESTAMP, LAST_DATE, LAST_TIMESTAMP
from spark_log.columns.types import type_name
from spark_log.errors import InvalidRecordError

COMPARED_RECORDS = 64
"""Records of which `compare` decodes the values."""


class GivenColumns:
    """Checks the given columns of one definition. `compare`: also decode the first values. Not thread-safe."""

    def __init__(self, definition: ColumnsDefinition, *, compare: bool) -> None:
        self._definition = definition
        self._widest = widest_item(definition.fields) if definition.format == "json" else 0
        self._compare_next = compare

    def columns(self, values: pa.BinaryArray, record: pa.StructArray) -> Decoded:
        """The columns of the values, given as `record`, whose fields may be in any order; a field that it lacks is
        null. A value without a record is decoded. With `compare`, the first records are compared with their values.

        InvalidRecordError names a field of another type, or with a value that the decoder would refuse.
        """
        record = conformed(record, self._definition.fields, "record")
        lacking = pc.and_(record.is_null(), values.is_valid())
        if pc.any(lacking).as_py() or (self._definition.format == "json" and needs_check(values, self._widest)):
            return decoder(self._definition).decode(values)
        _check(record, self._definition.format, "record")
        if self._compare_next:
            self._compare_next = False
            self._compare(decoder(self._definition).decode(values.slice(0, COMPARED_RECORDS)), record)
        if values.null_count:
            record = pc.if_else(values.is_valid(), record, None)
        return Decoded(record, None)

    def _compare(self, decoded: Decoded, record: pa.StructArray) -> None:
        for row, (found, given) in enumerate(zip(decoded.record.to_pylist(), record.to_pylist(), strict=False)):
            if found is not None and repr(found) != repr(given):
                names = [name for name in found if repr(found[name]) != repr(given[name])]
                raise InvalidRecordError(
                    f"record: in row {row}, fields {', '.join(names)} are not those of the value; value and record have"
                    " to stay as `streams.typed` makes them"
                )
            if decoded.reasons is not None and decoded.reasons[row].is_valid:
                raise InvalidRecordError(f"value: in row {row}: {decoded.reasons[row].as_py()}")


def conformed(array: pa.Array, kind: pa.DataType, path: str) -> pa.Array:
    """`array` as this type: fields by name, missing ones null. InvalidRecordError names a field that `kind` lacks, or
    has with another type. Time zones, and large variants of a type, make no difference.
    """
    if array.type.equals(kind):
        return array
    if pa.types.is_struct(kind) and pa.types.is_struct(array.type):
        given = {field.name: number for number, field in enumerate(array.type)}
        if unknown := given.keys() - {field.name for field in kind}:
            raise InvalidRecordError(f"{path}.{min(unknown)}: the topic has no such column")
        children = [
            conformed(array.field(given[field.name]), field.type, f"{path}.{field.name}")
            if field.name in given
            else pa.nulls(len(array), field.type)
            for field in kind
        ]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=array.is_null())
    if array.offset and pa.types.is_nested(kind):  # a list is built from offsets and a mask only if it is not a slice
        array = pa.concat_arrays([array])
    if pa.types.is_list(kind) and pa.types.is_list(array.type):
        items = conformed(array.values, kind.value_type, f"{path}[]")
        return pa.ListArray.from_arrays(array.offsets, items, type=kind, mask=array.is_null())
    if pa.types.is_map(kind) and pa.types.is_map(array.type):
        keys = conformed(array.keys, kind.key_type, f"{path}{{}}")
        items = conformed(array.items, kind.item_type, f"{path}{{}}")
        return pa.MapArray.from_arrays(array.offsets, keys, items, type=kind, mask=array.is_null())
    if _same_family(array.type, kind):
        return array.cast(kind)
    raise InvalidRecordError(f"{path}: expected {type_name(kind)}, got {array.type}")


def _same_family(given: pa.DataType, kind: pa.DataType) -> bool:
    if pa.types.is_null(given):
        return True
    if pa.types.is_timestamp(kind):
        return bool(pa.types.is_timestamp(given)) and given.unit == kind.unit and given.tz is not None
    is_large_text = pa.types.is_string(kind) and pa.types.is_large_string(given)
    return bool(is_large_text or (pa.types.is_binary(kind) and pa.types.is_large_binary(given)))


def _check(array: pa.Array, format: str, path: str) -> None:
    """InvalidRecordError for a value that the decoder of the format would not have returned."""
    kind = array.type
    if pa.types.is_struct(kind):
        for field, child in zip(kind, array.flatten(), strict=True):
            _check(child, format, f"{path}.{field.name}")
    elif pa.types.is_list(kind):
        _check(array.flatten(), format, f"{path}[]")
    elif pa.types.is_map(kind):
        _check_keys(array, path)
        first, last = (array.offsets[place].as_py() for place in (0, -1))
        _check(array.keys.slice(first, last - first), format, f"{path}{{}}")
        _check(array.items.slice(first, last - first), format, f"{path}{{}}")
    elif pa.types.is_string(kind):
        _check_text(array, path)
    elif pa.types.is_timestamp(kind):
        _check_range(array.cast(pa.int64()), FIRST_TIMESTAMP, LAST_TIMESTAMP, path)
    elif pa.types.is_date(kind):
        _check_range(array.cast(pa.int32()), FIRST_DATE, LAST_DATE, path)
    elif pa.types.is_float64(kind) and format == "json" and pc.all(pc.is_finite(array)).as_py() is False:
        raise InvalidRecordError(f"{path}: NaN or infinite, which JSON cannot express")


def _check_text(array: pa.StringArray, path: str) -> None:
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        raise InvalidRecordError(f"{path}: text that is not UTF-8") from error


def _check_range(numbers: pa.Array, first: int, last: int, path: str) -> None:
    extremes = pc.min_max(numbers)
    if extremes["min"].is_valid and not first <= extremes["min"].as_py() <= extremes["max"].as_py() <= last:
        raise InvalidRecordError(f"{path}: a time outside of the years 1 to 9999")


def _check_keys(maps: pa.MapArray, path: str) -> None:
    """A decoder keeps one of several entries with the same key."""
    lists = maps.cast(pa.list_(pa.struct([("key", maps.type.key_type), ("value", maps.type.item_type)])))
    keys = pa.table({"map": pc.list_parent_indices(lists), "key": pc.struct_field(lists.flatten(), "key")})
    if keys.group_by(["map", "key"]).aggregate([]).num_rows < keys.num_rows:
        raise InvalidRecordError(f"{path}: a map with the same key twice")
