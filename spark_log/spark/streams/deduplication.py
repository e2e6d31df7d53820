"""Keeps one row per key: of a stream the first within a time, of a batch frame the first or last in the log."""

from collections.abc import Sequence
from typing import Literal

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from spark_log.errors import InvalidOptionError
from spark_log.spark.streams.windows import check_time, parse_interval


def deduplicated(stream: DataFrame, *keys: str, time: str = "timestamp", within: str) -> DataFrame:
    """Remove rows whose `keys` were in an earlier row with an event time less than `within` ("1 hour") away.

    Use it for producers that send a record twice. It calls Spark's dropDuplicatesWithinWatermark with a watermark of
    `within` on column `time`, so rows that are later than the watermark are dropped too. The state holds the keys of
    the time `within`. Raises InvalidOptionError.
    """
    if not stream.isStreaming:
        raise InvalidOptionError("deduplicated: not a streaming frame: see keep_last and keep_first")
    _check(stream, keys)
    check_time(stream, time)
    parse_interval("within", within)
    return stream.withWatermark(time, within).dropDuplicatesWithinWatermark(list(keys))


def keep_last(frame: DataFrame, *keys: str, order: Sequence[str] = ("offset",)) -> DataFrame:
    """Of the rows of a batch frame with the same `keys`, return the one with the largest `order`. Columns are
    unchanged.

    The default order, the offset, is correct if rows with the same keys are in one partition, as rows with the same
    record key are. Otherwise name the columns that define the order.
    """
    return _keep(frame, keys, order, "last")


def keep_first(frame: DataFrame, *keys: str, order: Sequence[str] = ("offset",)) -> DataFrame:
    """Of the rows of a batch frame with the same `keys`, return the one with the smallest `order` (see `keep_last`)."""
    return _keep(frame, keys, order, "first")


def _keep(frame: DataFrame, keys: Sequence[str], order: Sequence[str], which: Literal["first", "last"]) -> DataFrame:
    if frame.isStreaming:
        raise InvalidOptionError(f"keep_{which}: a streaming frame has no {which} row: see deduplicated, or Table")
    _check(frame, keys)
    for name in order:
        if name not in frame.columns:
            raise InvalidOptionError(f"order {name!r}: no such column: there are {', '.join(frame.columns)}")
    choose = sf.max_by if which == "last" else sf.min_by
    kept = frame.groupBy(*keys).agg(choose(sf.struct("*"), sf.struct(*order)).alias("_kept"))
    return kept.select("_kept.*")


def _check(frame: DataFrame, keys: Sequence[str]) -> None:
    if not keys:
        raise InvalidOptionError("keys: at least one column is needed")
    for key in keys:
        if key not in frame.columns:
            raise InvalidOptionError(f"key {key!r}: no such column: there are {', '.join(frame.columns)}")
