"""Defines the values in a filter and their kinds, and converts between kinds. Pure."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from enum import Enum
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_log.console.search.batch_columns import BatchColumns, text_of
from spark_log.console.search.filter_syntax import FilterError, error

Evaluate = Callable[[BatchColumns], Any]
"""A function that returns an Arrow array with a value for each record, or a scalar."""


class Kind(Enum):
    WHOLE = "whole number"
    DECIMAL = "decimal number"
    FLOAT = "number"
    TEXT = "text"
    TIME = "time"
    DATE = "date"
    BOOLEAN = "condition"
    JSON = "field of JSON"
    NULL = "NULL"
    NESTED = "struct, array or map"


NUMBERS = (Kind.WHOLE, Kind.DECIMAL, Kind.FLOAT)
DECIMAL = pa.decimal256(76, 38)
"""A type that holds every DECIMAL and every whole number of 64 bits exactly."""
TIME = pa.timestamp("us", "UTC")
ARROW = {
    Kind.WHOLE: pa.int64(),
    Kind.DECIMAL: DECIMAL,
    Kind.FLOAT: pa.float64(),
    Kind.TEXT: pa.string(),
    Kind.TIME: TIME,
    Kind.DATE: pa.date32(),
    Kind.BOOLEAN: pa.bool_(),
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Operand:
    """A part of a filter that has a value for each record.

    `literal` is the value of a literal, as Decimal, str, bool, datetime or date. `path` is that of a column. `json`
    evaluates a field of JSON as the given type.
    """

    kind: Kind
    start: int | None
    evaluate: Evaluate
    literal: Any = None
    path: tuple[str, ...] = ()
    json: Callable[[pa.DataType], Evaluate] | None = None


def column(path: tuple[str, ...], kind: pa.DataType, read: Evaluate, start: int | None) -> Operand:
    """Return the operand of a column of this Arrow type."""
    if pa.types.is_integer(kind):
        return Operand(Kind.WHOLE, start, lambda batch: read(batch).cast(pa.int64()), path=path)
    if pa.types.is_decimal(kind):
        return Operand(Kind.DECIMAL, start, read, path=path)
    if pa.types.is_binary(kind):
        return Operand(Kind.TEXT, start, lambda batch: text_of(read(batch)), path=path)
    kinds = {pa.float64(): Kind.FLOAT, pa.string(): Kind.TEXT, TIME: Kind.TIME, pa.date32(): Kind.DATE,
             pa.bool_(): Kind.BOOLEAN}  # fmt: skip
    return Operand(kinds.get(kind, Kind.NESTED), start, read, path=path)


def number(text: str, start: int | None) -> Operand:
    """Return the operand of a literal in decimal notation.

    The kind is FLOAT if the literal has an exponent, or more digits than the other kinds hold.
    """
    try:
        value = Decimal(text)
    except InvalidOperation:
        raise error(f"{text!r} is not a number", start) from None
    exponent = value.as_tuple().exponent
    plain = "e" not in text.lower() and isinstance(exponent, int) and len(value.as_tuple().digits) <= 38
    if plain and value == value.to_integral_value() and exponent == 0 and -(2**63) <= value < 2**63:
        kind = Kind.WHOLE
    else:
        kind = Kind.DECIMAL if plain and isinstance(exponent, int) and exponent >= -38 else Kind.FLOAT
    return _literal(kind, value, start)


def literal(value: str | bool | datetime | date, start: int | None) -> Operand:
    kinds = {str: Kind.TEXT, bool: Kind.BOOLEAN, datetime: Kind.TIME, date: Kind.DATE}
    return _literal(kinds[type(value)], value, start)


def _literal(kind: Kind, value: Any, start: int | None) -> Operand:
    scalar = _scalar(value, kind)
    return Operand(kind, start, lambda _: scalar, literal=value)


def _scalar(value: Any, kind: Kind) -> pa.Scalar:
    if kind is Kind.WHOLE:
        return pa.scalar(int(value), pa.int64())
    return pa.scalar(float(value) if kind is Kind.FLOAT else value, ARROW[kind])


def time_of(text: str, start: int | None) -> datetime:
    """Return a time in ISO 8601. A time without a zone is UTC. Raises FilterError."""
    try:
        found = datetime.fromisoformat(text.strip())
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise error(f"{text!r} is not a time such as 2026-11-22T16:50:00Z", start, "times are in ISO 8601") from None


def date_of(text: str, start: int | None) -> date:
    try:
        return date.fromisoformat(text.strip())
    except ValueError:
        raise error(f"{text!r} is not a date such as 2026-11-22", start, "dates are in ISO 8601") from None


def as_kind(operand: Operand, kind: Kind) -> Evaluate:
    """Return the operand's values as another kind. Raises FilterError if there is no conversion."""
    if operand.kind is kind:
        if kind is Kind.DECIMAL and operand.literal is None:
            return lambda batch: operand.evaluate(batch).cast(DECIMAL)
        return operand.evaluate
    if operand.kind is Kind.NULL:
        return lambda _: pa.scalar(None, ARROW[kind])
    if operand.json is not None and kind in ARROW:
        return operand.json(pa.float64() if kind in NUMBERS else ARROW[kind])
    if operand.literal is not None:
        scalar = _scalar(_converted_literal(operand, kind), kind)
        return lambda _: scalar
    wide = {(Kind.WHOLE, Kind.DECIMAL), (Kind.WHOLE, Kind.FLOAT), (Kind.DECIMAL, Kind.FLOAT)}
    if (operand.kind, kind) in wide:
        return lambda batch: operand.evaluate(batch).cast(ARROW[kind], safe=False)
    if (operand.kind, kind) == (Kind.DATE, Kind.TIME):
        return lambda batch: operand.evaluate(batch).cast(pa.timestamp("us")).cast(TIME)
    if (operand.kind, kind) == (Kind.TIME, Kind.FLOAT):
        return lambda batch: pc.divide(operand.evaluate(batch).cast(pa.int64()).cast(pa.float64(), safe=False), 1000.0)
    raise _mismatch(operand, kind)


def _converted_literal(operand: Operand, kind: Kind) -> Any:
    value, start = operand.literal, operand.start
    if operand.kind in NUMBERS and kind in (Kind.DECIMAL, Kind.FLOAT):
        return value
    if operand.kind is Kind.WHOLE and kind is Kind.TIME:
        try:
            return _EPOCH + timedelta(milliseconds=int(value))
        except OverflowError:
            raise error(f"{value} ms is not a time of the years 1 to 9999", start, "times are ms since 1970") from None
    if operand.kind is Kind.TEXT and kind is Kind.TIME:
        return time_of(value, start)
    if operand.kind is Kind.TEXT and kind is Kind.DATE:
        return date_of(value, start)
    if operand.kind is Kind.DATE and kind is Kind.TIME:
        return datetime(value.year, value.month, value.day, tzinfo=UTC)
    raise _mismatch(operand, kind)


def _mismatch(operand: Operand, kind: Kind) -> FilterError:
    advice = "write text in '...', numbers without quotes, times as TIMESTAMP '...'"
    return error(f"a {operand.kind.value} where a {kind.value} is needed", operand.start, advice)


def common_kind(left: Operand, right: Operand) -> Kind:
    """Return the kind in which two operands are compared. Raises FilterError if there is none."""
    kinds = {left.kind, right.kind} - {Kind.NULL}
    if not kinds:
        return Kind.BOOLEAN
    if Kind.JSON in kinds:
        [other] = (kinds - {Kind.JSON}) or {Kind.TEXT}
        return Kind.FLOAT if other in NUMBERS else other
    if len(kinds) == 1:
        [kind] = kinds
        if kind is Kind.NESTED:
            raise error("a struct, array or map", left.start, "it has only IS NULL")
        return kind
    if kinds <= {*NUMBERS}:
        return max(kinds, key=NUMBERS.index)
    for kind in (Kind.TIME, Kind.DATE):
        if kind in kinds:
            against = right if left.kind is kind else left
            whole = against.kind is Kind.WHOLE and against.literal is not None
            if kind is Kind.TIME and against.kind in NUMBERS:
                return Kind.TIME if whole else Kind.FLOAT
            return kind
    raise _mismatch(right, left.kind)
