"""Joins a stream with another stream or with a static frame. (For joins with a compacted topic see `live_table.py`.)

The joins are Spark's own, in one call with checked arguments. A state that would grow without bound, and duplicate
column names, are errors when the query is defined.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Literal, get_args

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from spark_log.errors import InvalidOptionError
from spark_log.spark.streams.formats.parsing import column_named
from spark_log.spark.streams.windows import check_time, parse_interval

Kind = Literal["inner", "left", "right", "full"]


@dataclass(frozen=True)
class Side:
    """A stream (or a batch frame) and its event time."""

    frame: DataFrame
    time: str
    """Name of a column of type timestamp."""
    watermark: str | None = None
    """How far a row may be behind the newest event time of this side, such as "10 minutes".
    Later rows may be dropped.
    """


@dataclass(frozen=True)
class Bounds:
    """The bounds of the right event time: left.time - before <= right.time <= left.time + after."""

    before: str = "0 seconds"
    after: str = "0 seconds"


def join_streams(
    left: Side,
    right: Side,
    on: "str | Sequence[str] | Mapping[str, str]",
    *,
    within: Bounds | None = None,
    how: Kind = "inner",
) -> DataFrame:
    """Return the rows of both sides whose columns `on` are equal and whose times are within the bounds `within`.

    `on` is one or more columns of the same name on both sides, or a mapping of left to right columns. The result has
    the columns of `left` and `right`, but the columns `on` only once, under their left names. No other column name may
    be on both sides. A bound in time is required: `within`, or the event times among `on`.

    An outer join needs watermarks on both sides. A row without a match has nulls for the other side. It is emitted when
    the watermarks have passed the last time at which a match could come; watermarks advance only with newer rows on
    both sides. An inner join of streams without watermarks keeps all rows in its state. Rows that are later than the
    watermark are dropped if their state is gone.

    Spark supports append mode only. Each match is emitted once. The join of two batch frames returns the final result
    of the same join of streams. Raises InvalidOptionError.
    """
    pairs = {on: on} if isinstance(on, str) else dict(on) if isinstance(on, Mapping) else {name: name for name in on}
    _check(left, right, pairs, within, how)
    streaming = left.frame.isStreaming or right.frame.isStreaming
    ours, theirs = _watermarked(left, streaming), _watermarked(right, streaming)
    marked = {name: f"_right_{name}" for name in theirs.columns}  # a name of its own for each column of the condition
    theirs = theirs.withColumnsRenamed(marked)
    condition = [column_named(name) == column_named(marked[other]) for name, other in pairs.items()]
    if within is not None:
        time, other_time = column_named(left.time), column_named(marked[right.time])
        condition.append(other_time >= time - sf.expr(f"INTERVAL '{within.before}'"))
        condition.append(other_time <= time + sf.expr(f"INTERVAL '{within.after}'"))
    joined = ours.join(theirs, reduce(and_, condition), "full_outer" if how == "full" else how)
    keys = {name: _key(name, marked[other], how) for name, other in pairs.items()}
    return joined.select(
        *(keys.get(name, column_named(name)) for name in ours.columns),
        *(column_named(marked[name]).alias(name) for name in right.frame.columns if name not in pairs.values()),
    )


def join_static(
    frame: DataFrame,
    static: DataFrame,
    on: "str | Sequence[str]",
    *,
    how: Literal["inner", "left"] = "left",
) -> DataFrame:
    """Return `frame`, a stream or not, joined with the rows of `static` that have equal columns `on`.

    `static` is read when the query starts, but a Delta table at each batch. For data that changes, see `Table`. Only
    the columns `on` may be on both sides. Raises InvalidOptionError.
    """
    names = [on] if isinstance(on, str) else list(on)
    if static.isStreaming:
        raise InvalidOptionError("static: a streaming frame: see join_streams, or Table for a compacted topic")
    if how not in ("inner", "left"):
        raise InvalidOptionError(f"how {how!r}: expected inner or left")
    _check_columns(frame, static, {name: name for name in names})
    return frame.join(static, names, how)


def _check(left: Side, right: Side, pairs: Mapping[str, str], within: Bounds | None, how: str) -> None:
    if how not in get_args(Kind):
        raise InvalidOptionError(f"how {how!r}: expected {', '.join(get_args(Kind))}")
    _check_columns(left.frame, right.frame, pairs)
    for name, side in (("left", left), ("right", right)):
        check_time(side.frame, side.time)
        if side.watermark is not None:
            parse_interval(f"{name} watermark", side.watermark)
        elif how != "inner" and side.frame.isStreaming:
            raise InvalidOptionError(
                f"{name} watermark: required on both sides of a {how} join: a row is known to have no match only"
                " when the watermarks have passed"
            )
    if within is not None:
        parse_interval("before", within.before)
        parse_interval("after", within.after)
    elif pairs.get(left.time) != right.time:
        raise InvalidOptionError(
            f"within: required, or the event times among `on` ({left.time} = {right.time}): without a bound in time the"
            " state would keep every row"
        )


def _check_columns(left: DataFrame, right: DataFrame, pairs: Mapping[str, str]) -> None:
    if not pairs:
        raise InvalidOptionError("on: at least one column is needed")
    for side, frame, names in (("left", left, pairs.keys()), ("right", right, pairs.values())):
        for name in names:
            if name not in frame.columns:
                raise InvalidOptionError(
                    f"on {name!r}: no such column on the {side}: there are {', '.join(frame.columns)}"
                )
    kept = {name.lower() for name in right.columns if name not in pairs.values()}
    both = [name for name in left.columns if name.lower() in kept]
    if both:
        raise InvalidOptionError(
            f"columns {', '.join(both)} are on both sides: drop or rename them on one (withColumnRenamed), or name them"
            " in `on`"
        )


def _watermarked(side: Side, streaming: bool) -> DataFrame:
    if side.watermark is None or not streaming:
        return side.frame
    return side.frame.withWatermark(side.time, side.watermark)


def _key(name: str, other: str, how: str) -> Column:
    """Return a column of `on` from the side whose rows are all in the result: it keeps its watermark."""
    if how == "full":
        return sf.coalesce(column_named(name), column_named(other)).alias(name)
    return column_named(other).alias(name) if how == "right" else column_named(name)
