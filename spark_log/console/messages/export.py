"""Converts messages to lines of CSV or NDJSON. Pure.

Keys and values are text where they are UTF-8, otherwise base64. `key_encoding` and `value_encoding` name the encoding.
In CSV, a text that begins with = + - @, a tab or a line break gets an apostrophe in front, so that a spreadsheet does
not run it as a formula. NDJSON has every text unchanged.
"""

import base64
import csv
import io
from collections.abc import Iterable
from typing import Any

import msgspec

from spark_log.console.masks import HIDDEN, Masks
from spark_log.console.messages.message import jsonable
from spark_log.text import time_of

COLUMNS = ("partition", "offset", "timestamp", "key", "key_encoding", "value", "value_encoding", "headers", "error")
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


def exported(row: dict[str, Any], masks: Masks) -> dict[str, Any]:
    """Return a row of `rows_of` as an object of NDJSON."""

    def part(source: str) -> tuple[str | None, str]:
        data = row[source]
        allowed = None if data is None else masks.json_text(source, data)
        return (HIDDEN, "hidden") if data is not None and allowed is None else encoded(allowed)

    def header(name: str, value: bytes | None) -> dict[str, str | None]:
        text, encoding = (HIDDEN, "hidden") if masks.hides(("headers", name)) else encoded(value)
        return {"key": name, "value": text, "encoding": encoding}

    (key, key_encoding), (value, value_encoding) = part("key"), part("value")
    fields = {
        "partition": row["partition"], "offset": row["offset"], "timestamp": time_of(row["timestamp"]),
        "key": key, "key_encoding": key_encoding, "value": value, "value_encoding": value_encoding,
        "headers": [header(each["key"], each["value"]) for each in row["headers"] or ()],
        "error": row.get("record_error") or row.get("key_record_error"),
    }  # fmt: skip
    for source, name in (("key", "key_record"), ("value", "record")):
        if name in row:
            fields[name] = jsonable(masks.record(source, row[name]))
    return fields


def encoded(data: bytes | None) -> tuple[str | None, str]:
    """Return the bytes as text, and the encoding, which is utf-8, base64 or null."""
    if data is None:
        return None, "null"
    try:
        return data.decode(), "utf-8"
    except UnicodeDecodeError:
        return base64.b64encode(data).decode(), "base64"


def ndjson(row: dict[str, Any]) -> bytes:
    return msgspec.json.encode(row) + b"\n"


def csv_line(values: Iterable[object]) -> bytes:
    """Return a line of CSV (RFC 4180)."""
    text = io.StringIO()
    csv.writer(text).writerow([_cell(value) for value in values])
    return text.getvalue().encode()


def csv_row(row: dict[str, Any]) -> bytes:
    return csv_line(row[name] for name in COLUMNS)


def _cell(value: object) -> object:
    if isinstance(value, list):
        return msgspec.json.encode(value).decode() if value else ""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
