"""Aggregates over windows of event time, which are Spark's own with checked arguments, and counts of late records."""

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
"""Columns of the result, timestamps: a window is [start, end)."""


@dataclass(frozen=True)
class Tumbling:
    """Windows of one size without gaps and overlaps. Each record is in one window."""

    size: str
    """An interval such as "1 hour"."""

    def __post_init__(self) -> None:
        _positive_ms("size", self.size)

    def column(self, time: str) -> Column:
        return sf.window(sf.col(time), self.size)


@dataclass(frozen=True)
class Sliding:
    """Windows of one size, of which one begins every `slide`. Each record is in about size / slide windows."""

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
    """Windows from the first record of a group to `gap` after its last one. A window ends when no record comes for
    `gap`.
    """

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
    """Return columns window_start, window_end, `by` and the aggregates, with one row for each window and group with
    records.

    `time` is a column of type timestamp. Records without a time are in no window. In output mode append, a row is
    emitted once, when its window's end is `watermark` ("10 minutes", "0 seconds") behind the newest event time of
    earlier batches. Later records of the window are dropped and counted (`late_records`). In mode update, a row is
    emitted whenever it has changed. Without a watermark no window ends, so the state grows without bound, and Spark
    refuses mode append. `frame` may be a batch frame. Aggregates are columns, or texts such as "mean(delay) as
    mean_delay". Raises InvalidOptionError.
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
    """Return the number of rows that the query dropped in its last batches because they came after the watermark.

    The last batches are those in Spark's recentProgress, which are 100. The number is Spark's count
    (numRowsDroppedByWatermark). In an aggregation, each task first combines the records of one window and group into
    one row, so a dropped row may stand for several records.
    """
    return sum(late_in(progress) for progress in query.recentProgress)


def late_in(progress: Any) -> int:
    """Return `late_records` of one batch."""
    return sum(operator.numRowsDroppedByWatermark for operator in progress.stateOperators)


def parse_interval(name: str, text: str) -> int:
    """Return the milliseconds >= 0 of an interval such as "10 minutes". Raises InvalidOptionError that names `name` and
    the value.
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
