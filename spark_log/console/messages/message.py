"""Converts records to what pages and the API show: without fields that the role masks, and with shortened texts."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa

from spark_log.console.masks import Masks
from spark_log.log.columns.expansion import item_type, slices
from spark_log.log.columns.key_and_value import PARTS
from spark_log.log.records.schema import MICROSECONDS_PER_MILLISECOND

_VISIBLE = {
    **{code: f"\\x{code:02x}" for code in (*range(32), *range(0x7F, 0xA0)) if chr(code) not in "\t\n\r"},
    **{code: f"\\u{code:04x}" for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))},
}
"""Control characters as escapes. A page cannot contain NUL, and bidirectional control characters could make a text look
different from what it is.
"""

_COPIED_BYTES = 4 << 20
_VALUE_BYTES = 8
"""The bytes to add for each value: a null or a boolean takes a bit in Arrow, but an entry of a dict or list in Python.
"""


@dataclass(frozen=True)
class Shown:
    """Bytes as text.

    `form` is text (UTF-8), json (indented), hex, null, or hidden. `bytes` is the number of bytes, or 0 if they are
    hidden. `shortened` is whether `text` has only the first part.
    """

    form: str
    text: str = ""
    bytes: int = 0
    shortened: bool = False

    @property
    def visible(self) -> str:
        return visible(self.text)


@dataclass(frozen=True)
class Header:
    name: str
    value: Shown


@dataclass(frozen=True)
class Message:
    """A message.

    `record` and `key_record` are the typed columns as objects, or None if the topic has none. `record_error` and
    `key_record_error` are the reasons why a value or key of a typed topic could not be decoded.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: Shown
    value: Shown
    headers: tuple[Header, ...]
    record: Any = None
    key_record: Any = None
    record_error: str | None = None
    key_record_error: str | None = None


def visible(text: object) -> str:
    """Return a text or a JSON value as text in which control characters are visible."""
    found = text if isinstance(text, str) else json.dumps(text, ensure_ascii=False, default=str)
    return found.translate(_VISIBLE)


def rows_of(batch: pa.RecordBatch, columns_bytes_max: int = _COPIED_BYTES) -> Iterator[dict[str, Any]]:
    """Yield the records of a batch, with `timestamp` in ms. Only a few records are Python objects at a time.

    The typed columns of a key or value are null if they have more than `columns_bytes_max` (see `_size`). The error
    column of the key or value then has the reason.
    """
    place = batch.schema.get_field_index("timestamp")
    plain = batch.set_column(place, "timestamp", batch.column(place).cast(pa.int64()))

    def size(start: int, end: int) -> int:
        return sum(_size(column.slice(start, end - start)) for column in plain.columns)

    for start, end in slices(plain.num_rows, size, min(_COPIED_BYTES, columns_bytes_max)):
        rows = plain.slice(start, end - start)
        for row in (rows if end - start > 1 else _without_large(rows, columns_bytes_max)).to_pylist():
            row["timestamp"] //= MICROSECONDS_PER_MILLISECOND
            yield row


def _without_large(row: pa.RecordBatch, bytes_max: int) -> pa.RecordBatch:
    """Return a single row, with null in place of typed columns that are too large."""
    for part in PARTS:
        place = row.schema.get_field_index(part.record)
        if place >= 0 and _size(row.column(place)) > bytes_max:
            reason = f"too large to show: the columns have more than {bytes_max:,} bytes"
            row = row.set_column(place, part.record, pa.nulls(1, row.column(place).type))
            row = row.set_column(row.schema.get_field_index(part.error), part.error, pa.array([reason]))
    return row


def _size(array: pa.Array) -> int:
    """Return the approximate size of an array as Python objects: its bytes, and a fixed number for each value."""
    return int(array.nbytes) + _VALUE_BYTES * _value_count(array)


def _value_count(array: pa.Array) -> int:
    if pa.types.is_struct(array.type):
        return len(array) + sum(_value_count(array.field(place)) for place in range(array.type.num_fields))
    if item_type(array.type) is None or not len(array):
        return len(array)
    first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
    items = array.items if pa.types.is_map(array.type) else array.values
    return len(array) + _value_count(items.slice(first, last - first))


def message_of(row: dict[str, Any], form: str, masks: Masks, characters_max: int) -> Message:
    """Return the message of a row of `rows_of`. `form` is auto, text, json or hex."""

    def part(source: str) -> Shown:
        data = row[source]
        allowed = None if data is None else masks.json_text(source, data)
        return Shown("hidden") if allowed is None and data is not None else shown(allowed, form, characters_max)

    def header(name: str, value: bytes | None) -> Header:
        hidden = masks.hides(("headers", name))
        return Header(name, Shown("hidden") if hidden else shown(value, "auto", characters_max))

    return Message(
        row["topic"], row["partition"], row["offset"], row["timestamp"], part("key"), part("value"),
        headers=tuple(header(each["key"], each["value"]) for each in row["headers"] or ()),
        record=jsonable(masks.record("value", row.get("record"))),
        key_record=jsonable(masks.record("key", row.get("key_record"))),
        record_error=row.get("record_error"), key_record_error=row.get("key_record_error"),
    )  # fmt: skip


def shown(data: bytes | None, form: str, characters_max: int) -> Shown:
    """Return the bytes in a form.

    The form `auto` is text where the bytes are UTF-8, and hex elsewhere. The forms text and json fall back to hex too.
    """
    if data is None:
        return Shown("null")
    if form == "hex":
        return _hex(data, characters_max)
    try:
        text, found = data.decode(), "text"
    except UnicodeDecodeError:
        return _hex(data, characters_max)
    if form == "json" and len(data) <= 4 * characters_max:
        text, found = _indented(text)
    return Shown(found, text[:characters_max], len(data), len(text) > characters_max)


def _hex(data: bytes, characters_max: int) -> Shown:
    start = data[: characters_max // 3]
    return Shown("hex", start.hex(" "), len(data), len(start) < len(data))


def _indented(text: str) -> tuple[str, str]:
    try:
        msgspec.json.decode(text)  # format does not check
        return msgspec.json.format(text, indent=2), "json"
    except (ValueError, RecursionError):
        return text, "text"


def jsonable(value: Any) -> Any:
    """Convert an Arrow value to a JSON value.

    Bytes become text or hexadecimal digits, cut if they are long. Values that JSON does not have become text.
    """
    match value:
        case dict():
            return {name: jsonable(item) for name, item in value.items()}
        case list() | tuple():
            return [jsonable(item) for item in value]
        case bytes():
            found = shown(value, "auto", 4_000)
            return found.text
        case None | bool() | int() | str():
            return value
        case float():
            return value if value - value == 0 else str(value)
        case _ if hasattr(value, "isoformat"):
            return value.isoformat()
    return str(value)
