"""Aggregates over Spark's windows of event time, with checked arguments, and counts late records."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import TimestampType

from spark_log.errors import InvalidOptionError
from spark_log.spark.streams.aggregation import Aggregate, columns_of
from spark_log.text import parse_sql_interval_ms

START, END = "window_start", "window_end"
"""Timestamp columns of the result. A window is [start, end)."""


@dataclass(frozen=True)
class Tumbling:
    """Windows of one size without gaps or overlaps. Each record is in exactly one window."""

    size: str
    """An interval such as "1 hour"."""

    def __post_init__(self) -> None:
        _positive_ms("size", self.size)

    def column(self, time: str) -> Column:
        return sf.window(sf.col(time), self.size)


@dataclass(frozen=True)
class Sliding:
    """Windows of one size that begin every `slide`. Each record is in about size / slide windows."""

    size: str
    slide: str

    def __post_init__(self) -> None:
        if _positive_ms("slide", self.slide) > _positive_ms("size", self.size):
            raise InvalidOptionError(
                f"slide {self.slide!r} is larger than size {self.size!r}: some records would be in no window"
            )

    def column(self, time: str) -> Column:
        return sf.window(sf.col(time), self.size, self.slide)


@dataclass(frozen=True)
class Session:
    """Windows of a group's records that are less than `gap` apart. A window ends `gap` after its last record."""

    gap: str

    def __post_init__(self) -> None:
        _positive_ms("gap", self.gap)

    def column(self, time: str) -> Column:
        return sf.session_window(sf.col(time), self.gap)


Window = Tumbling | Sliding | Session


def windowed(
    frame: DataFrame,
    time: str,
    window: Window,
    *by: str,
    aggregates: Sequence[Aggregate],
    watermark: str | None = None,
) -> DataFrame:
    """Return the columns window_start, window_end, `by` and the aggregates, with one row for each window and group that
    has records.

    `time` is a column of type timestamp. Records without a time are in no window. In output mode append, a row is
    emitted once, when its window's end is `watermark` ("10 minutes", "0 seconds") behind the newest event time of
    earlier batches. Records of the window that arrive after that are dropped and counted (`late_records`). In mode
    update, a row is emitted whenever it has changed. Without a watermark no window ends, so the state grows without
    bound, and Spark refuses mode append. `frame` may be a batch frame. Aggregates are columns, or texts such as
    "mean(delay) as mean_delay". Raises InvalidOptionError.
    """
    check_time(frame, time)
    columns = columns_of(frame, [*by], aggregates)
    if watermark is not None:
        parse_interval("watermark", watermark)
        frame = frame.withWatermark(time, watermark)
    grouped = frame.groupBy(window.column(time).alias("_window"), *by).agg(*columns)
    start, end = sf.col("_window.start").alias(START), sf.col("_window.end").alias(END)
    return grouped.select(start, end, *(name for name in grouped.columns if name != "_window"))


def late_records(query: StreamingQuery) -> int:
    """Return the number of rows later than the watermark that the query dropped in its last 100 batches.

    Spark counts the rows (numRowsDroppedByWatermark in recentProgress). In an aggregation, each task first combines the
    records of one window and group into one row, so a dropped row may stand for several records.
    """
    return sum(late_in(progress) for progress in query.recentProgress)


def late_in(progress: Any) -> int:
    """Return the number of rows that were dropped in one batch because they were later than the watermark."""
    return sum(operator.numRowsDroppedByWatermark for operator in progress.stateOperators)


def parse_interval(name: str, text: str) -> int:
    """Parse an interval such as "10 minutes" to milliseconds >= 0. Raises InvalidOptionError that names `name` and the
    value.
    """
    try:
        return parse_sql_interval_ms(text)
    except ValueError:
        raise InvalidOptionError(f"{name} {text!r}: expected an interval such as '10 minutes'") from None


def check_time(frame: DataFrame, column: str) -> None:
    """Raise InvalidOptionError unless `column` is a timestamp."""
    found = {field.name: field.dataType for field in frame.schema}
    if column not in found:
        raise InvalidOptionError(f"event time {column!r}: no such column: there are {', '.join(found)}")
    if not isinstance(found[column], TimestampType):
        raise InvalidOptionError(f"event time {column!r} is {found[column].simpleString()}, expected timestamp")


def _positive_ms(name: str, text: str) -> int:
    size_ms = parse_interval(name, text)
    if size_ms == 0:
        raise InvalidOptionError(f"{name} {text!r}: expected more than zero")
    return size_ms
