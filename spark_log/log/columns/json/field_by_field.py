"""Decodes JSON records field by field if they do not fit their class, to accept them or to find the reason."""

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_log.log.columns.expansion import MAX_VALUES, widest_item
from spark_log.log.columns.json.record_classes import LEAF_CLASSES, RecordClasses
from spark_log.log.columns.types import type_name
from spark_log.log.columns.value_bytes import Bytes

MAX_NESTING = 200
"""Levels of a JSON text. With Python's recursion limit alone, the limit would depend on the depth of the caller."""

_COUNTED_BYTES = 1 << 16
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_STEPS = np.zeros(256, np.int8)
_STEPS[list(b"[{")] = 1
_STEPS[list(b"]}")] = -1
_TOO_DEEP = f"not valid JSON: nested deeper than {MAX_NESTING} levels"
_TOKENS = {
    b'"': "a string",
    b"{": "an object",
    b"[": "an array",
    b"t": "a boolean",
    b"f": "a boolean",
    b"n": "null",
}
_PROBLEMS = {  # of a value with the right token
    pa.int64(): ("a number", "not a whole number of 64 bits"),
    pa.float64(): ("a number", "a number out of range"),
    pa.binary(): ("a string", "a string that is not base64"),
}
_Field = Callable[[bytes], Any]


class BadRecordError(Exception):
    """The record cannot be decoded. The text is the reason."""


class FieldByField:
    """Decodes one record to an object of its class, or finds the reason why it is bad."""

    def __init__(self, fields: pa.StructType, classes: RecordClasses) -> None:
        self._classes = classes
        self._record = self._struct(fields, "")
        self._widest = widest_item(fields)

    def record(self, value: bytes) -> Any:
        """Return the record as an object of its class, or raise BadRecordError with the reason."""
        check_text(value, self._widest)
        try:
            return self._record(value)
        except RecursionError as error:
            raise BadRecordError(_TOO_DEEP) from error
        except ValueError as error:
            raise BadRecordError(f"not valid JSON: {str(error).removeprefix('JSON is malformed: ')}") from error

    def _field(self, kind: pa.DataType, path: str) -> _Field:
        if pa.types.is_struct(kind):
            return self._struct(kind, path)
        if pa.types.is_list(kind):
            element = self._field(kind.value_type, f"{path}[]")
            return _nested(list[msgspec.Raw], kind, path, lambda items: [element(bytes(item)) for item in items])
        if pa.types.is_map(kind):
            item = self._field(kind.item_type, f"{path}{{}}")
            return _nested(
                dict[str, msgspec.Raw],
                kind,
                path,
                lambda items: {key: item(bytes(value)) for key, value in items.items()},
            )
        if pa.types.is_decimal(kind):
            return lambda value: value
        return _text if pa.types.is_string(kind) else _leaf(kind, path)

    def _struct(self, kind: pa.StructType, path: str) -> _Field:
        record = self._classes.of(kind)
        fields = [(field.name, self._field(field.type, f"{path}.{field.name}".lstrip("."))) for field in kind]

        def struct(items: dict[str, msgspec.Raw]) -> Any:  # by position, because msgspec searches for each keyword
            return record(*[field(bytes(items[name])) if name in items else None for name, field in fields])

        return _nested(dict[str, msgspec.Raw], kind, path, struct)


def _nested(parts: Any, kind: pa.DataType, path: str, build: Callable[[Any], Any]) -> _Field:
    split = msgspec.json.Decoder(parts).decode

    def value(raw: bytes) -> Any:
        if path and raw == b"null":
            return None
        try:
            items = split(raw)
        except msgspec.ValidationError as error:
            raise BadRecordError(_unexpected(kind, path, raw)) from error
        return build(items)

    return value


def _leaf(kind: pa.DataType, path: str) -> _Field:
    parse = msgspec.json.Decoder(LEAF_CLASSES[kind] | None).decode

    def value(raw: bytes) -> Any:
        try:
            return parse(raw)
        except msgspec.ValidationError as error:
            raise BadRecordError(_unexpected(kind, path, raw)) from error

    return value


def _text(raw: bytes) -> str | None:
    if raw[:1] == b'"':
        return msgspec.json.decode(raw, type=str)
    return None if raw == b"null" else raw.decode()


def _unexpected(kind: pa.DataType, path: str, raw: bytes) -> str:
    got = _TOKENS.get(raw.lstrip()[:1], "a number")
    if not path:
        return f"not a JSON object, but {got}"
    expected, problem = _PROBLEMS.get(kind, ("", ""))
    return f"{path}: {problem}" if got == expected else f"{path}: expected {type_name(kind)}, got {got}"


def check_text(value: bytes, widest: int = 0) -> None:
    """Raise BadRecordError for a text that is empty, begins with a byte order mark, is not UTF-8, is nested too deeply,
    or whose objects have too many fields if each has `widest` fields.
    """
    if not value.strip():
        raise BadRecordError("empty, which is not valid JSON")
    if value.startswith(_BYTE_ORDER_MARK):
        raise BadRecordError("not valid JSON: a byte order mark (byte 0)")
    try:
        value.decode()
    except UnicodeDecodeError as error:
        raise BadRecordError(f"not UTF-8 (byte {error.start})") from error
    objects = value.count(b"{")
    if objects + value.count(b"[") > MAX_NESTING or objects * widest > MAX_VALUES:
        _check_brackets(value, widest)


def needs_check(values: pa.BinaryArray, widest: int) -> bool:
    """Return whether a value has so many brackets that it may be nested too deeply or have too many fields."""
    length = pc.max(pc.binary_length(values)).as_py()
    if length is None or length <= 2 * MAX_NESTING:
        return False
    objects = pc.count_substring(values, "{")
    most = pc.max(pc.add(objects, pc.count_substring(values, "["))).as_py()
    return bool(most > MAX_NESTING or pc.max(objects).as_py() * widest > MAX_VALUES)


def most_items(data: Bytes) -> int:
    """Return an upper bound of the number of structs in arrays and maps of JSON texts: each is an object or null."""
    count = 0
    for start in range(0, len(data), _COUNTED_BYTES):  # in parts whose intermediate results fit the processor's cache
        part = data[start : start + _COUNTED_BYTES + 1]  # a byte that two parts share may be counted twice
        nulls = (part[:-1] == ord("n")) & (part[1:] == ord("u"))
        count += int(np.count_nonzero(part == ord("{")) + np.count_nonzero(nulls))
    return count


def _check_brackets(value: bytes, widest: int) -> None:
    outside = b"".join(value.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2])  # the text outside of strings
    steps = _STEPS[np.frombuffer(outside.translate(None, _NO_BRACKETS), np.uint8)]
    if np.cumsum(steps, dtype=np.int64).max(initial=0) > MAX_NESTING:
        raise BadRecordError(_TOO_DEEP)
    if outside.count(b"{") * widest > MAX_VALUES:
        raise BadRecordError(f"more than {MAX_VALUES} fields in its objects, those that are missing included")
