"""Push-down: pruning drops only rows that the filters reject."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)
from pyspark.sql.types import VariantVal

from spark_log.ids import OffsetRange, TopicPartition
from spark_log.log.records.record_limits import TIMESTAMP_MS_MAX
from spark_log.log.segments.slices import Condition, FieldFilter
from spark_log.spark.datasource.read.filters import Interval, Pruning, apply, prune

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Row:
    topic: str
    partition: int
    offset: int
    timestamp_ms: int


def instant(micros: int) -> datetime:
    return EPOCH + timedelta(microseconds=micros)


def accepts(found: Filter, row: Row) -> bool:
    """SQL's meaning of a filter on a row; unknown (a comparison with NULL) is not accepted."""
    if isinstance(found, Not):
        return not accepts(found.child, row)
    values: dict[tuple[str, ...], Any] = {
        ("topic",): row.topic,
        ("partition",): row.partition,
        ("offset",): row.offset,
        ("timestamp",): instant(row.timestamp_ms * 1000),
    }
    value = values[found.attribute]  # type: ignore[attr-defined]
    match found:
        case IsNull():
            return False
        case IsNotNull():
            return True
        case In():
            return any(one is not None and value == one for one in found.value)
    constant = found.value  # type: ignore[attr-defined]
    if constant is None:
        return False
    match found:
        case EqualTo() | EqualNullSafe():
            return bool(value == constant)
        case GreaterThan():
            return bool(value > constant)
        case GreaterThanOrEqual():
            return bool(value >= constant)
        case LessThan():
            return bool(value < constant)
        case LessThanOrEqual():
            return bool(value <= constant)
        case StringStartsWith():
            return str(value).startswith(constant)
        case StringEndsWith():
            return str(value).endswith(constant)
        case StringContains():
            return constant in str(value)
    raise AssertionError(found)


SMALL = st.integers(0, 4)
OFFSETS = st.one_of(SMALL, st.integers(0, 2**63 - 1))
MILLIS = st.one_of(SMALL, st.integers(TIMESTAMP_MS_MAX - 3, TIMESTAMP_MS_MAX), st.integers(0, TIMESTAMP_MS_MAX))
TOPICS = st.sampled_from(["a", "b", "ab"])
ROWS = st.builds(Row, TOPICS, SMALL, OFFSETS, MILLIS)

COMPARISONS = (EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)


def _zoned(micros: int, hours: int) -> datetime:
    try:
        return instant(micros).astimezone(timezone(timedelta(hours=hours)))
    except OverflowError:  # the last hours of the year 9999, further east
        return instant(micros)


MICROS = st.builds(
    lambda ms, rest: min(ms * 1000 + rest, TIMESTAMP_MS_MAX * 1000), MILLIS, st.sampled_from([0, 1, 999, -1, 500])
)
VALUES = {
    "partition": st.one_of(st.integers(-1, 5), st.none()),
    "offset": st.one_of(OFFSETS, st.integers(-1, 5), st.none()),
    "timestamp": st.one_of(st.builds(_zoned, MICROS, st.integers(-12, 12)), st.none()),
    "topic": st.one_of(TOPICS, st.none()),
}


@st.composite
def filters(draw: st.DrawFn) -> Filter:
    column = draw(st.sampled_from(sorted(VALUES)))
    kind = draw(st.sampled_from(["compare", "in", "null", "text"] if column == "topic" else ["compare", "in", "null"]))
    if kind == "null":
        found: Filter = draw(st.sampled_from([IsNull, IsNotNull]))((column,))
    elif kind == "in":
        found = In((column,), tuple(draw(st.lists(VALUES[column], max_size=3))))
    elif kind == "text":
        found = draw(st.sampled_from([StringStartsWith, StringEndsWith, StringContains]))((column,), draw(TOPICS))
    else:
        found = draw(st.sampled_from(COMPARISONS))((column,), draw(VALUES[column]))
    return Not(found) if draw(st.booleans()) else found


def kept(pruning: Pruning, row: Row) -> bool:
    """Whether a segment that holds only this row, in a range of its own, is read."""
    ranges = {TopicPartition(row.topic, row.partition): OffsetRange(row.offset, row.offset + 1)}
    low, high = pruning.times
    in_time = (low is None or row.timestamp_ms >= low) and (high is None or row.timestamp_ms < high)
    return bool(apply(pruning, ranges)) and in_time


@given(st.lists(filters(), max_size=4), ROWS)
@example([LessThan(("timestamp",), instant(TIMESTAMP_MS_MAX * 1000 - 999))], Row("a", 0, 0, TIMESTAMP_MS_MAX - 1))
@example([EqualTo(("topic",), None)], Row("a", 0, 0, 0))
def test_rows_that_the_filters_accept_are_never_pruned(found: list[Filter], row: Row) -> None:
    if all(accepts(one, row) for one in found):
        assert kept(prune(found), row)


@pytest.mark.parametrize(
    ("found", "rows", "left"),
    [
        (EqualTo(("partition",), 1), [Row("a", 0, 0, 0), Row("a", 1, 0, 0), Row("a", 2, 0, 0)], [1]),
        (In(("partition",), (1, 3)), [Row("a", p, 0, 0) for p in range(5)], [1, 2, 3]),
        (GreaterThanOrEqual(("offset",), 2), [Row("a", 0, o, 0) for o in range(4)], [2, 3]),
        (LessThan(("offset",), 2), [Row("a", 0, o, 0) for o in range(4)], [0, 1]),
        (LessThanOrEqual(("offset",), 2), [Row("a", 0, o, 0) for o in range(4)], [0, 1, 2]),
        (EqualTo(("topic",), "b"), [Row(name, 0, 0, 0) for name in "abc"], [1]),
        (In(("topic",), ("b", "c", None)), [Row(name, 0, 0, 0) for name in "abc"], [1, 2]),
        (GreaterThan(("timestamp",), instant(2_000)), [Row("a", 0, 0, ms) for ms in range(5)], [2, 3, 4]),
        (LessThan(("timestamp",), instant(2_000)), [Row("a", 0, 0, ms) for ms in range(5)], [0, 1]),
        (LessThan(("timestamp",), instant(2_001)), [Row("a", 0, 0, ms) for ms in range(5)], [0, 1, 2]),
        (EqualTo(("timestamp",), instant(2_000)), [Row("a", 0, 0, ms) for ms in range(5)], [2]),
    ],
)
def test_filters_prune_segments_without_matching_rows(found: Filter, rows: list[Row], left: list[int]) -> None:
    assert [number for number, row in enumerate(rows) if kept(prune([found]), row)] == left


@pytest.mark.parametrize(
    "found",
    [
        Not(EqualTo(("partition",), 1)),
        EqualTo(("headers", "key"), "x"),
        EqualTo(("partition",), True),
        EqualTo(("partition",), 1.5),
        LessThan(("timestamp",), datetime(1970, 1, 1)),  # without a time zone, midnight is ambiguous
        StringStartsWith(("topic",), "z"),
        IsNull(("topic",)),
        In(("partition",), ()),
        In(("offset",), (1, "2")),
    ],
)
def test_unsupported_filters_prune_nothing(found: Filter) -> None:
    assert prune([found]) == Pruning()


def test_ranges_are_reduced_to_the_offsets_of_the_filter() -> None:
    a, b = TopicPartition("a", 0), TopicPartition("b", 1)
    ranges = {a: OffsetRange(0, 10), b: OffsetRange(5, 20)}
    pruning = prune([GreaterThan(("offset",), 4), LessThan(("offset",), 7)])
    assert apply(pruning, ranges) == {a: OffsetRange(4, 7), b: OffsetRange(5, 7)}
    assert apply(prune([LessThan(("offset",), 5)]), ranges) == {a: OffsetRange(0, 5)}
    assert apply(prune([]), {a: OffsetRange(3, 3)}) == {}


def test_intersection_and_membership_of_intervals() -> None:
    assert Interval(1, 5) & Interval(3, None) == Interval(3, 5)
    assert Interval() & Interval() == Interval()
    assert 5 not in Interval(3, 3)


def as_pyspark_decodes(literal: str) -> Any:
    return VariantVal.parseJson(literal).toPython()


@pytest.mark.parametrize("condition", [EqualTo, LessThan, GreaterThanOrEqual])
def test_a_decimal_that_pyspark_may_have_rounded_prunes_nothing(condition: type[Filter]) -> None:
    column, longest, rounded = ("record", "m"), "123456789012345678901234.5678", "12345678901234567890123456789.0123"
    assert as_pyspark_decodes(rounded) != Decimal(rounded)
    for literal in (longest, rounded):
        decoded = as_pyspark_decodes(literal)
        assert prune([condition(column, decoded), In(column, (Decimal(1), decoded))]).fields == ()
    short = as_pyspark_decodes("12345678901234567890123.4567")
    found = prune([EqualTo(column, short), In(column, (Decimal(1), short))]).fields
    assert found == (
        FieldFilter(column, Condition.IN, (short,)),
        FieldFilter(column, Condition.IN, (Decimal(1), short)),
    )
