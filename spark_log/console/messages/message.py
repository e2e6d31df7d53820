"""Messages as a page and the API show them: masked for the role, and shortened."""

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
"""Control characters as escapes: a page cannot hold NUL, and those of direction would show the text as another."""

_COPIED_BYTES = 4 << 20
_VALUE_BYTES = 8
"""Added for each value: a null or a boolean takes a bit in Arrow, and a place in a dict or list of Python."""


@dataclass(frozen=True)
class Shown:
    """Bytes as text. `form`: text (UTF-8), json (indented), hex, null, or hidden. `bytes`: how many there are; 0 if
    they are hidden. `shortened`: whether only the first part is in `text`.
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
    """`record`, `key_record`: the typed columns as objects; None if the topic has none. The errors: why a value or key
    of a typed topic could not be decoded.
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
    """A text or a value of JSON, in which control characters are visible."""
    found = text if isinstance(text, str) else json.dumps(text, ensure_ascii=False, default=str)
    return found.translate(_VISIBLE)


def rows_of(batch: pa.RecordBatch, columns_bytes_max: int = _COPIED_BYTES) -> Iterator[dict[str, Any]]:
    """The records of a batch, of which only a few are Python objects at a time. `timestamp`: ms.

    Typed columns of a key or value that have more than `columns_bytes_max` (see `_size`) are null; its error says so.
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
    """A single row; null in place of typed columns that are larger."""
    for part in PARTS:
        place = row.schema.get_field_index(part.record)
        if place >= 0 and _size(row.column(place)) > bytes_max:
            reason = f"too large to show: the columns have more than {bytes_max:,} bytes"
            row = row.set_column(place, part.record, pa.nulls(1, row.column(place).type))
            row = row.set_column(row.schema.get_field_index(part.error), part.error, pa.array([reason]))
    return row


def _size(array: pa.Array) -> int:
    """About how large an array is as Python objects: its bytes, and some for each value."""
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
    """A row of `rows_of`. `form`: auto, text, json or hex."""

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
    """Bytes in a form: `auto` is text where they are UTF-8, hex elsewhere; text and json fall back to it."""
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
    """A struct of Arrow as values of JSON. Bytes are text or hexadecimal digits, decimals and times their texts."""
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
