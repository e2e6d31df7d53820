"""Converts Protobuf messages to Arrow columns. Google's parser parses them one at a time; the parsed messages are then
converted field by field.

These errors are found after parsing, because the parser ignores them: a known field of another wire type, a missing
required field, a proto2 string that is not UTF-8, a Timestamp out of range.
"""

from collections.abc import Sequence
from itertools import accumulate, chain
from typing import Any

import pyarrow as pa
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from spark_log.log.columns.expansion import MAX_VALUES, item_type, struct_width
from spark_log.log.columns.protobuf.messages import below, is_map, is_timestamp, type_name
from spark_log.log.columns.protobuf.parsed_size import repeated_fields, widest_repeated

_TIMESTAMP_SECONDS = range(-62_135_596_800, 253_402_300_800)
"""The years 1 to 9999, which is what google.protobuf.Timestamp allows."""


def message_columns(
    values: Sequence[bytes | None], kind: Any, arrow: pa.StructType, errors: dict[int, str]
) -> pa.StructArray:
    """Return the messages as structs of the columns `arrow`. Columns that are not fields of the message are null. Adds
    to `errors` the reason why the value at a position is bad.
    """
    widest = widest_repeated(kind.DESCRIPTOR)
    messages = [_parsed(value, row, kind, widest, errors) for row, value in enumerate(values)]
    return _Columns(errors).structs(messages, range(len(messages)), kind.DESCRIPTOR, arrow, "")


def structs_of(values: pa.Array, kind: Any, arrow: pa.StructType) -> pa.Array:
    """Return structs with `value`, the columns of the message, and `error`, why bytes are bad (null for others)."""
    errors: dict[int, str] = {}
    columns = message_columns(values.to_pylist(), kind, arrow.field("value").type, errors)
    reasons = pa.array([errors.get(row) for row in range(len(values))], pa.string())
    return pa.StructArray.from_arrays([columns, reasons], fields=list(arrow))


def _parsed(value: bytes | None, row: int, kind: Any, widest: int, errors: dict[int, str]) -> Any:
    if value is None:
        return None
    name = kind.DESCRIPTOR.full_name
    if len(value) * widest > 2 * MAX_VALUES and repeated_fields(value, kind.DESCRIPTOR) > MAX_VALUES:
        errors[row] = f"more than {MAX_VALUES} fields in its messages, those that are missing included"
        return None
    try:
        message = kind.FromString(value)
    except DecodeError as error:
        why = str(error).removeprefix(f"Error parsing message with type '{name}': ")
        errors[row] = f"not a message of Protobuf type {name}: {why}"
        return None
    if not message.IsInitialized():
        errors[row] = f"field {message.FindInitializationErrors()[0]}: required, and missing"
        return None
    return message


class _Columns:
    """Converts messages to Arrow arrays. `rows` has the row of each value; `errors` gets each row's first error."""

    def __init__(self, errors: dict[int, str]) -> None:
        self._errors = errors
        self._counts: dict[int, int] = {}
        """Number of values in the repeated messages of each row."""
        self._names: dict[str, dict[int, str]] = {}
        """The names of each enum's values by number, collected once for all fields with this enum."""

    def structs(
        self, messages: Sequence[Any], rows: Sequence[int], kind: Descriptor, arrow: pa.StructType, path: str
    ) -> pa.Array:
        for row, message in zip(rows, messages, strict=True):
            if message is not None and len(unknown := UnknownFieldSet(message)):
                for unknown_field in unknown:
                    self._check_unknown(unknown_field, row, kind, path)
        columns = [
            self._field(messages, rows, kind.fields_by_name[field.name], field.type, path)
            if field.name in kind.fields_by_name
            else pa.nulls(len(messages), field.type)
            for field in arrow
        ]
        absent = pa.array([message is None for message in messages], pa.bool_())
        return pa.StructArray.from_arrays(columns, fields=list(arrow), mask=absent)

    def _check_unknown(self, unknown: Any, row: int, kind: Descriptor, path: str) -> None:
        """Make the row bad if the unknown field has the number of a known field: then its wire type is another one. A
        value that its closed enum does not have is unknown too, but not bad.
        """
        field = kind.fields_by_number.get(unknown.field_number)
        if field is None or _is_of_closed_enum(field, unknown.wire_type):
            return
        where = below(path, field)
        self._errors.setdefault(row, f"field {where}: wire type {unknown.wire_type} is not that of {type_name(field)}")

    def _field(
        self, messages: Sequence[Any], rows: Sequence[int], field: FieldDescriptor, arrow: pa.DataType, path: str
    ) -> pa.Array:
        name, where = field.name, below(path, field)
        if not field.is_repeated:
            if field.has_presence:
                values = [
                    getattr(message, name) if message is not None and message.HasField(name) else None
                    for message in messages
                ]
            else:
                values = [None if message is None else getattr(message, name) for message in messages]
            return self._values(values, rows, field, arrow, where)
        several = [() if message is None else getattr(message, name) for message in messages]
        if width := struct_width(item_type(arrow)):
            for place, (row, elements) in enumerate(zip(rows, several, strict=True)):
                self._counts[row] = self._counts.get(row, 0) + len(elements) * width
                if self._counts[row] > MAX_VALUES:  # an empty message of two bytes may become thousands of values
                    self._errors.setdefault(row, f"field {where}: more than {MAX_VALUES} values in its messages")
                    several[place] = ()
        if is_map(field):
            several = [self._pairs(elements, row, where) for row, elements in zip(rows, several, strict=True)]
        offsets = pa.array(list(accumulate(map(len, several), initial=0)), pa.int32())
        rows = [row for row, elements in zip(rows, several, strict=True) for _ in elements]
        if not is_map(field):
            flat = self._values(list(chain.from_iterable(several)), rows, field, arrow.value_type, where)
            return pa.ListArray.from_arrays(offsets, flat, type=arrow)
        pairs = list(chain.from_iterable(several))
        key, value = (field.message_type.fields_by_name[part] for part in ("key", "value"))
        keys = self._values([_key(pair[0], arrow.key_type) for pair in pairs], rows, key, arrow.key_type, where)
        items = self._values([pair[1] for pair in pairs], rows, value, arrow.item_type, where)
        return pa.MapArray.from_arrays(offsets, keys, items, type=arrow)

    def _values(
        self, values: list[Any], rows: Sequence[int], field: FieldDescriptor, arrow: pa.DataType, path: str
    ) -> pa.Array:
        if is_timestamp(field):
            values = [
                None if timestamp is None else self._micros(timestamp, row, path)
                for row, timestamp in zip(rows, values, strict=True)
            ]
        elif field.message_type is not None:
            return self.structs(values, rows, field.message_type, arrow, path)
        elif field.enum_type is not None:
            names = self._enum_names(field.enum_type)
            values = [None if number is None else names.get(number, str(number)) for number in values]
        elif field.type == FieldDescriptor.TYPE_STRING:
            values = [
                None if text is None else self._text(text, row, path) for row, text in zip(rows, values, strict=True)
            ]
        return pa.array(values, arrow)

    def _enum_names(self, enum: EnumDescriptor) -> dict[int, str]:
        if enum.full_name not in self._names:
            self._names[enum.full_name] = {value.number: value.name for value in enum.values}
        return self._names[enum.full_name]

    def _pairs(self, entries: Any, row: int, path: str) -> list[tuple[Any, Any]]:
        try:
            return list(entries.items()) if entries else []
        except UnicodeDecodeError:
            self._errors.setdefault(row, f"field {path}: a key that is not UTF-8")
            return []

    def _text(self, value: Any, row: int, path: str) -> str:
        """Return the text, or make the row bad: the parser returns bytes for a proto2 string that is not UTF-8."""
        if isinstance(value, str):
            return value
        self._errors.setdefault(row, f"field {path}: not UTF-8")
        return ""

    def _micros(self, value: Any, row: int, path: str) -> int:
        if value.seconds in _TIMESTAMP_SECONDS and 0 <= value.nanos < 1_000_000_000:
            return int(value.seconds) * 1_000_000 + int(value.nanos) // 1000
        self._errors.setdefault(row, f"field {path}: not a time of the years 1 to 9999")
        return 0


def _key(key: Any, arrow: pa.DataType) -> Any:
    """Return the key of a map, as in Protobuf's JSON if the keys of the column are strings."""
    if isinstance(key, str) or not pa.types.is_string(arrow):
        return key
    return str(key).lower() if isinstance(key, bool) else str(key)


def _is_of_closed_enum(field: FieldDescriptor, wire_type: int) -> bool:
    """Return whether the unknown field is a number, or a map entry with a number, that its closed (proto2) enum does
    not have.
    """
    value = field.message_type.fields_by_name["value"] if is_map(field) else field
    return bool(value.enum_type and value.enum_type.is_closed) and wire_type == (2 if is_map(field) else 0)
