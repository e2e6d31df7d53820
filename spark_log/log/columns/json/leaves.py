"""Converts the leaf values of JSON to columns: texts to times and decimals, by Arrow's casts."""

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from spark_log.log.columns.types import FIRST_DATE, FIRST_TIMESTAMP, LAST_DATE, LAST_TIMESTAMP, type_ddl

Values = Sequence[Any]
Convert = Callable[[Values], pa.Array]

_UTC = pa.timestamp("us", "UTC")
_DATE = r"^(\d{4}-\d\d-\d\d)$"
_DATE_IN_UTC = r"^(\d{4}-\d\d-\d\d)Z$"
"""The form in which Debezium writes dates with time.precision.mode=isostring."""
_NO_ZONE = r"^(\d{4}-\d\d-\d\d[T ]\d\d(?::\d\d){0,2}(?:\.\d+)?)$"
_NANOSECONDS = r"(\.\d{6})\d+"
_TIMESTAMP = (
    r"^\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])"
    r"([T ]([01]\d|2[0-3])(:[0-5]\d){0,2}(\.\d+)?(Z|[+-]([01]\d|2[0-3])(:?[0-5]\d)?)?)?$"
)


class Leaf(NamedTuple):
    """The conversion of the values of a leaf type.

    `convert` converts values to an array of the same length. It raises ValueError or OverflowError if one does not fit.
    `problem` is the reason for a value that does not fit.
    `plausible` returns for each value whether it may fit. It finds most values that do not, faster than `convert`.
    """

    convert: Convert
    problem: str
    plausible: Callable[[Values], Sequence[bool]] | None = None


def json_leaf(kind: pa.DataType) -> Leaf:
    """Return the conversion of the values of a leaf type. Times are given as texts, decimals as bytes of JSON text."""
    if kind == _UTC:
        return Leaf(_timestamps, "not an ISO 8601 time of the years 1 to 9999", _matching(_TIMESTAMP))
    if kind == pa.date32():
        dates = _matching(f"{_DATE}|{_DATE_IN_UTC}")
        return Leaf(_dates, "not a date of the years 1 to 9999 such as 2026-11-22", dates)
    if pa.types.is_decimal(kind):
        return Leaf(_decimals(kind), f"not a number that {type_ddl(kind)} holds exactly")
    return Leaf(lambda values: pa.array(values, kind), f"not a {type_ddl(kind)}")


def _matching(pattern: str) -> Callable[[Values], Sequence[bool]]:
    return lambda values: pc.match_substring_regex(pa.array(values, pa.string()), pattern).fill_null(True).to_pylist()


def _timestamps(values: Values) -> pa.Array:
    texts = pa.array(values, pa.string())
    for kind in (_UTC, pa.timestamp("us")):  # all with a zone, all without
        try:
            return _within(texts.cast(kind).cast(_UTC), pa.int64(), FIRST_TIMESTAMP, LAST_TIMESTAMP)
        except pa.ArrowInvalid:
            pass
    texts = pc.replace_substring_regex(texts, _DATE, r"\1T00:00:00Z")
    texts = pc.replace_substring_regex(texts, _NO_ZONE, r"\1Z")
    texts = pc.replace_substring_regex(texts, _NANOSECONDS, r"\1")
    return _within(texts.cast(_UTC), pa.int64(), FIRST_TIMESTAMP, LAST_TIMESTAMP)


def _dates(values: Values) -> pa.Array:
    texts = pa.array(values, pa.string())
    try:
        dates = texts.cast(pa.date32())
    except pa.ArrowInvalid:
        dates = pc.replace_substring_regex(texts, _DATE_IN_UTC, r"\1").cast(pa.date32())
    return _within(dates, pa.int32(), FIRST_DATE, LAST_DATE)


def _within(times: pa.Array, number: pa.DataType, first: int, last: int) -> pa.Array:
    extremes = pc.min_max(times.cast(number))
    if extremes["min"].is_valid and not first <= extremes["min"].as_py() <= extremes["max"].as_py() <= last:
        raise ValueError("a time out of range")
    return times


_ARROW_CHARACTERS_MAX = 38
"""Arrow's cast of longer texts overflows, and its cast of exponents such as 1e-99999 reads beyond a table."""
_WIDE_DIGITS = 76
"""Digits of a DECIMAL of 256 bits: 38 before the point and 38 after it."""
_NUMBER = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?(?:[eE]([+-]?)([0-9]*))?")
"""No character can belong to two of its parts, so that a match takes time in proportion to the text."""
_EXPONENT_DIGITS_MAX = 9


def _plain(text: str | None) -> str | None:
    """Return a number as a text that Arrow casts correctly. Raise ValueError if no DECIMAL can represent it exactly."""
    if text is None or (len(text) <= _ARROW_CHARACTERS_MAX and "e" not in text and "E" not in text):
        return text
    parts = _NUMBER.fullmatch(text)
    if parts is None or not (parts[2] or parts[3]) or (parts[4] is not None and text[-1] in "eE+-"):
        raise ValueError("not a number")
    sign, whole, fraction, minus, exponent = (part or "" for part in parts.groups())
    digits, exponent = (whole + fraction).strip("0"), exponent.lstrip("0")
    if not digits:
        return "0"
    if len(exponent) > _EXPONENT_DIGITS_MAX or len(digits) > _ARROW_CHARACTERS_MAX:
        raise ValueError("a number of too many digits")
    zeros = len(fraction) - len((whole + fraction).rstrip("0")) + len(whole)
    power = int(f"{minus}{exponent or 0}") - len(fraction) + zeros
    if power < -_ARROW_CHARACTERS_MAX or len(digits) + power > _ARROW_CHARACTERS_MAX:
        raise ValueError("a number of too many digits")
    if power >= 0:
        return sign + digits + "0" * power
    padded = digits.rjust(1 - power, "0")
    return f"{sign}{padded[:power]}.{padded[power:]}"


def _decimals(kind: pa.DataType) -> Convert:
    def convert(values: Sequence[Any]) -> pa.Array:
        texts = pa.array([_plain(_decimal_text(value)) for value in values], pa.string())
        return texts.cast(pa.decimal256(_WIDE_DIGITS, kind.scale)).cast(kind)  # a cast to 128 bits wraps around

    return convert


def _decimal_text(value: msgspec.Raw | bytes | None) -> str | None:
    if value is None:
        return None
    text = str(value, "utf-8")
    if text[0] == '"':
        return msgspec.json.decode(value, type=str) if "\\" in text else text[1:-1]
    return None if text == "null" else text
