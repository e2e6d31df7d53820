"""Splits a stream of bytes into batches of lines, and converts between lines and records. `produce --format json` reads
the lines that `consume --json` prints.

A record in JSON is {"key": …, "value": …, "headers": [{"key": …, "value": …}], "timestamp": milliseconds,
"partition": n}. Bytes that are not UTF-8 are base64 text in `key_base64` or `value_base64` instead. A value that is
an object, a list, a number or a boolean stands for its compact JSON text. Only the value is required; null is a
tombstone.
"""

import base64
import binascii
import io
import select
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import msgspec

from spark_log.errors import InvalidRecordError
from spark_log.text import printable

Header = tuple[str, bytes | None]

BATCH_BYTES = 16 * 1024 * 1024
"""The approximate maximum of a batch. A few MiB per partition make a good segment file."""

_LINGER_S = 0.05
"""The time to wait for more input before a batch that is not full is sent (Kafka's linger.ms)."""

_READ_BYTES = 1 << 20

_READ_FIELDS = ("key", "key_base64", "value", "value_base64", "headers", "timestamp", "partition")
_IGNORED_FIELDS = ("topic", "offset", "timestampType")
_TIMESTAMP_TYPES = ("CreateTime", "LogAppendTime")
_NULL = b"null"


@dataclass(frozen=True)
class Record:
    """A record to append. If `partition` or `timestamp_ms` is None, the default of the producer applies."""

    key: bytes | None
    value: bytes | None
    headers: Sequence[Header] = ()
    timestamp_ms: int | None = None
    partition: int | None = None


@dataclass(frozen=True)
class LineFormat:
    """The format of plain lines. `key_separator` separates key and value. `null_marker` means a null key or value."""

    key_separator: bytes | None = None
    null_marker: bytes | None = None

    def parse(self, line: bytes, number: int) -> Record:
        """Return the record of a line. Raises InvalidRecordError, with the line number, for a line without the
        separator.
        """
        if self.key_separator is None:
            return Record(None, self._or_null(line))
        key, separator, value = line.partition(self.key_separator)
        if not separator:
            raise InvalidRecordError(f"line {number}: no key separator {self.key_separator.decode()!r} in {_cut(line)}")
        return Record(self._or_null(key), self._or_null(value))

    def _or_null(self, text: bytes) -> bytes | None:
        return None if self.null_marker is not None and text == self.null_marker else text


def parse_json(line: bytes, number: int) -> Record:
    """Parse a line of JSON to a record. Raises InvalidRecordError, which names the line and the field."""
    try:
        text = line.decode("utf-8-sig")  # the whole line, because raw parts are not decoded again
        fields = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except msgspec.ValidationError:
        raise InvalidRecordError(f"line {number}: expected a JSON object with a value, got {_cut(line)}") from None
    except (ValueError, RecursionError) as error:
        raise InvalidRecordError(f"line {number}: not JSON: {error}") from None
    unknown = [name for name in fields if name not in _READ_FIELDS + _IGNORED_FIELDS]
    if unknown:
        raise InvalidRecordError(f"line {number}: unknown field {unknown[0]!r}; known are {', '.join(_READ_FIELDS)}")
    if "value" not in fields and "value_base64" not in fields:
        raise InvalidRecordError(f"line {number}: no field 'value' (null is a tombstone)")
    return Record(
        _bytes_of(fields, "key", number),
        _bytes_of(fields, "value", number),
        _headers_of(fields.get("headers", _NULL), number),
        _integer_of(fields, "timestamp", number),
        _integer_of(fields, "partition", number),
    )


def show_json(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of the read schema (`timestamp` in ms) as JSON that `parse_json` reads, with its position."""
    shown: dict[str, Any] = {name: row[name] for name in ("topic", "partition", "offset", "timestamp")}
    shown["timestampType"] = _TIMESTAMP_TYPES[row["timestampType"]]
    _put_bytes(shown, "key", row["key"])
    _put_bytes(shown, "value", row["value"])
    if row["headers"] is not None:
        shown["headers"] = []
        for header in row["headers"]:
            item = {"key": header["key"]}
            _put_bytes(item, "value", header["value"])
            shown["headers"].append(item)
    return shown


def show_text(data: bytes | None) -> str:
    """Return bytes as text for a terminal: null, UTF-8 with escaped control characters, or base64."""
    if data is None:
        return "null"
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return "base64:" + base64.b64encode(data).decode()
    return printable(text)


def _put_bytes(target: dict[str, Any], name: str, data: bytes | None) -> None:
    try:
        target[name] = None if data is None else data.decode()
    except UnicodeDecodeError:
        assert data is not None
        target[f"{name}_base64"] = base64.b64encode(data).decode()


def _bytes_of(fields: Mapping[str, msgspec.Raw], name: str, number: int) -> bytes | None:
    encoded = msgspec.json.decode(fields.get(f"{name}_base64", _NULL))
    plain = bytes(fields.get(name, _NULL))
    if encoded is None:
        if plain.startswith(b'"'):
            return msgspec.json.decode(plain, type=str).encode()
        return None if plain == _NULL else msgspec.json.format(plain, indent=-1)  # a number keeps its digits
    if plain != _NULL:
        raise InvalidRecordError(f"line {number}: both {name!r} and '{name}_base64'")
    try:
        return base64.b64decode(encoded, validate=True)
    except (binascii.Error, TypeError, ValueError):
        raise InvalidRecordError(
            f"line {number}: '{name}_base64' is not base64: {_cut(str(encoded).encode())}"
        ) from None


def _headers_of(encoded: bytes, number: int) -> Sequence[Header]:
    try:
        headers = msgspec.json.decode(encoded, type=dict[str, msgspec.Raw] | list[dict[str, msgspec.Raw]] | None)
        if isinstance(headers, dict):
            return [(key, _bytes_of({"value": value}, "value", number)) for key, value in headers.items()]
        return [
            (msgspec.json.decode(header["key"], type=str), _bytes_of(header, "value", number))
            for header in headers or ()
        ]
    except (msgspec.ValidationError, KeyError):
        raise InvalidRecordError(
            f'line {number}: headers: expected [{{"key": …, "value": …}}], got {_cut(bytes(encoded))}'
        ) from None


def _integer_of(fields: Mapping[str, msgspec.Raw], name: str, number: int) -> int | None:
    value = bytes(fields.get(name, _NULL))
    try:
        return msgspec.json.decode(value, type=int | None)
    except msgspec.ValidationError:
        raise InvalidRecordError(f"line {number}: {name}: expected a whole number, got {_cut(value)}") from None


def _cut(line: bytes) -> str:
    text = line.decode(errors="replace")
    return repr(text if len(text) <= 80 else text[:80] + "…")


def line_batches(source: BinaryIO) -> Iterator[list[bytes]]:
    """Yield non-empty lists of whole lines without their ends (\\n or \\r\\n), in order.

    A last line without a line end counts. A line longer than BATCH_BYTES makes a larger batch.
    """
    rest = b""
    batch_bytes = BATCH_BYTES
    while True:
        parts, size, ended = [rest], len(rest), False
        while size < batch_bytes and (len(parts) == 1 or _more_within(source, _LINGER_S)):
            data = source.read1(_READ_BYTES) if isinstance(source, io.BufferedReader) else source.read(_READ_BYTES)
            if not data:
                ended = True
                break
            parts.append(data)
            size += len(data)
        lines = b"".join(parts).split(b"\n")
        rest = b"" if ended else lines.pop()
        if ended and not lines[-1]:
            lines.pop()
        if len(rest) >= batch_bytes:
            batch_bytes = 2 * len(rest)  # read more of a long line before the next join
        if lines:
            yield [line.removesuffix(b"\r") for line in lines]
        if ended:
            return


def _more_within(source: BinaryIO, seconds: float) -> bool:
    try:
        return bool(select.select([source], [], [], seconds)[0])
    except (OSError, ValueError, TypeError):  # a source without a file descriptor is in memory
        return True
