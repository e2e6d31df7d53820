"""Finds the partitions, offsets, timestamps and fields of typed columns that Spark's filters rule out. Pure.

Only whole partitions, segments and row groups are skipped; Spark applies every filter again to the rows that are read.
So a filter that is not supported here costs time, but loses no rows.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

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
    StringStartsWith,
)

from spark_log.ids import OffsetRange, TopicPartition
from spark_log.log.columns.key_and_value import TYPED
from spark_log.log.segments.slices import Condition, FieldFilter, TimestampBounds

_COMPARISONS: Mapping[type[Filter], Condition] = {
    EqualTo: Condition.IN,
    EqualNullSafe: Condition.IN,
    LessThan: Condition.BELOW,
    LessThanOrEqual: Condition.AT_MOST,
    GreaterThan: Condition.ABOVE,
    GreaterThanOrEqual: Condition.AT_LEAST,
    StringStartsWith: Condition.STARTS_WITH,
}

_EXACT_DIGITS_MAX = 27
"""A decimal literal with more digits may have been rounded: PySpark decodes it in Python's context of 28 digits."""


@dataclass(frozen=True)
class Interval:
    """The whole numbers x with low <= x < high. A limit that is None does not bound them."""

    low: int | None = None
    high: int | None = None

    def __and__(self, other: "Interval") -> "Interval":
        lows = [bound for bound in (self.low, other.low) if bound is not None]
        highs = [bound for bound in (self.high, other.high) if bound is not None]
        return Interval(max(lows, default=None), min(highs, default=None))

    def __contains__(self, x: int) -> bool:
        return (self.low is None or x >= self.low) and (self.high is None or x < self.high)


@dataclass(frozen=True)
class Pruning:
    """The partitions, offsets and timestamps (milliseconds) that the filters may accept, and the filters on typed
    columns. All other partitions, offsets and timestamps are rejected.
    """

    partition: Interval = Interval()
    offset: Interval = Interval()
    timestamp_ms: Interval = Interval()
    topics: frozenset[str] | None = None
    fields: tuple[FieldFilter, ...] = ()

    @property
    def times(self) -> TimestampBounds:
        return TimestampBounds(self.timestamp_ms.low, self.timestamp_ms.high)


def prune(filters: Iterable[Filter]) -> Pruning:
    """Return the conjunction of the filters on partition, offset, timestamp, topic and typed columns; ignore others."""
    partition, offset, timestamp_ms = Interval(), Interval(), Interval()
    topics: frozenset[str] | None = None
    fields: list[FieldFilter] = []
    for pushed in filters:
        match getattr(pushed, "attribute", None):
            case ("partition",):
                partition &= _interval(pushed, _number)
            case ("offset",):
                offset &= _interval(pushed, _number)
            case ("timestamp",):
                timestamp_ms &= _interval(pushed, _micros, scale=1000)
            case ("topic",) if isinstance(pushed, EqualTo | In):
                values = pushed.value if isinstance(pushed, In) else (pushed.value,)
                named = frozenset(value for value in values if isinstance(value, str))
                topics = named if topics is None else topics & named
            case (column, *_) if column in TYPED and not _may_be_rounded(pushed):
                fields += _field_filters(pushed)
    return Pruning(partition, offset, timestamp_ms, topics, tuple(fields))


def _field_filters(pushed: Any) -> Iterator[FieldFilter]:
    """Yield the filter on a typed column, if it is supported."""
    if isinstance(pushed, IsNull | IsNotNull):
        yield FieldFilter(pushed.attribute, Condition.IS_NULL if isinstance(pushed, IsNull) else Condition.IS_NOT_NULL)
    elif isinstance(pushed, In):
        yield FieldFilter(pushed.attribute, Condition.IN, tuple(value for value in pushed.value if value is not None))
    elif type(pushed) in _COMPARISONS and pushed.value is not None:
        yield FieldFilter(pushed.attribute, _COMPARISONS[type(pushed)], (pushed.value,))


def _may_be_rounded(pushed: Filter) -> bool:
    values = pushed.value if isinstance(pushed, In) else (getattr(pushed, "value", None),)
    return any(isinstance(value, Decimal) and len(value.as_tuple().digits) > _EXACT_DIGITS_MAX for value in values)


def apply(pruning: Pruning, ranges: Mapping[TopicPartition, OffsetRange]) -> dict[TopicPartition, OffsetRange]:
    """Remove from the ranges the partitions and offsets that cannot match."""
    kept: dict[TopicPartition, OffsetRange] = {}
    low, high = pruning.offset.low, pruning.offset.high
    for topic_partition, (start, end) in ranges.items():
        if topic_partition.partition not in pruning.partition:
            continue
        if pruning.topics is not None and topic_partition.topic not in pruning.topics:
            continue
        start = start if low is None else max(start, low)
        end = end if high is None else min(end, high)
        if start < end:
            kept[topic_partition] = OffsetRange(start, end)
    return kept


def _interval(pushed: Filter, to_int: Any, scale: int = 1) -> Interval:
    """Return the interval that a comparison accepts. Its unit is `scale` times the unit of the filter's constant."""
    if isinstance(pushed, In):
        values = [to_int(value) for value in pushed.value if value is not None]
        if not values or None in values:
            return Interval()
        return Interval(min(values) // scale, max(values) // scale + 1)
    value = to_int(getattr(pushed, "value", None))
    if value is None:
        return Interval()
    match pushed:
        case EqualTo():
            return Interval(value // scale, value // scale + 1)
        case GreaterThan() | GreaterThanOrEqual():
            return Interval(low=value // scale)
        case LessThan():
            return Interval(high=-(-value // scale))  # rounded up in whole numbers: a float has not enough digits
        case LessThanOrEqual():
            return Interval(high=value // scale + 1)
        case _:
            return Interval()


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _micros(value: object) -> int | None:
    """Return microseconds since the epoch, or None for a time without a time zone, which prunes nothing."""
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    since = value.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
