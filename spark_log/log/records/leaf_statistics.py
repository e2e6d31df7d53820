"""Computes the smallest value, the largest value and the number of nulls of each leaf of a file with typed columns.

They come from the Parquet footer. Their text, for segment.stats and for Delta's add actions, is Delta's JSON: objects
minValues, maxValues and nullCount, nested like the columns. These rules keep each bound correct for every reader:

    strings      the first STRING_LENGTH_MAX characters; in a longer largest value U+10FFFF follows them
    timestamps   milliseconds in UTC; the smallest value is rounded down, the largest up
    doubles      no bound if it is infinite

Booleans, binaries, leaves in arrays and maps, and doubles that may be NaN have no statistics: Parquet leaves NaN out of
the bounds, but Spark sorts NaN after all other values.

A missing bound is unknown. The text has only the first LEAVES_MAX leaves of each column of the file. It always has
bounds of offset_delta, timestamp and the error columns, unless all their values are null, and an object for each struct
column, even if the object is empty: deltalake's datasets treat a missing bound of a column as one that no row matches,
and a missing number of nulls as zero. This includes typed columns that the file does not have, since the table may get
them later.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from spark_log.log.columns.key_and_value import PARTS, RECORDS, TYPED
from spark_log.log.records.schema import segment_schema

LEAVES_MAX = 32
"""The largest number of leaves of a column in the text. Each takes about 80 bytes in the store and in the Delta log."""
STRING_LENGTH_MAX = 32
"""Characters that are kept of a string, as in Delta."""

_LAST_CHARACTER = "\U0010ffff"
_COLUMNS = ("offset_delta", "timestamp", *TYPED)
_PARTS = ("minValues", "maxValues", "nullCount")
_MS = 1000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_FIRST_DAY = date(1970, 1, 1).toordinal()
_END_OF_TIME_MS = 253_402_300_800_000
"""The year 10000, which has five digits in a text."""


class Leaf(NamedTuple):
    """A leaf column outside of arrays and maps. `path` begins with the file's column; `number` is its place among the
    file's leaves.
    """

    path: tuple[str, ...]
    kind: pa.DataType
    number: int


class Bounds(NamedTuple):
    """low <= value <= high for all values of a leaf that are not null. None is an unknown bound.

    Integers, doubles, strings and decimals are Python objects; timestamps are microseconds and dates are days since
    1970.
    """

    low: Any = None
    high: Any = None
    nulls: int | None = None


@lru_cache(maxsize=64)
def leaves(fields: pa.StructType) -> tuple[Leaf, ...]:
    """Return the leaves that may have statistics in a file with these typed columns: offset_delta, timestamp, and
    leaves of typed columns outside of arrays and maps. Their type decides which have any (`has_statistics`).
    """
    schema = segment_schema(fields)
    all_leaves: list[Leaf] = []
    number = 0
    for column in schema:
        for path, kind, plain in _leaves(column, (), True):
            if plain and column.name in _COLUMNS:
                all_leaves.append(Leaf(path, kind, number))
            number += 1
    return tuple(all_leaves)


@lru_cache(maxsize=64)
def _in_text_of(fields: pa.StructType) -> tuple[Leaf, ...]:
    by_column = [[leaf for leaf in leaves(fields) if leaf.path[0] == column] for column in _COLUMNS]
    return tuple(leaf for found in by_column for leaf in found[:LEAVES_MAX])


def _leaves(
    field: pa.Field, parents: tuple[str, ...], plain: bool
) -> Iterator[tuple[tuple[str, ...], pa.DataType, bool]]:
    kind, path = field.type, (*parents, field.name)
    if not pa.types.is_nested(kind):
        yield path, kind, plain
        return
    in_struct = plain and pa.types.is_struct(kind)
    for number in range(kind.num_fields):
        yield from _leaves(kind.field(number), path, in_struct)


def has_statistics(kind: pa.DataType, *, may_be_nan: bool) -> bool:
    """Return whether leaves of this type have statistics. `may_be_nan` is whether doubles in the file may be NaN."""
    if pa.types.is_floating(kind):
        return not may_be_nan
    return not (pa.types.is_boolean(kind) or pa.types.is_binary(kind))


def group_bounds(group: pq.RowGroupMetaData, leaf: Leaf) -> Bounds:
    """Return the bounds of a leaf in a row group."""
    statistics = group.column(leaf.number).statistics
    if statistics is None:
        return Bounds()
    nulls = statistics.null_count if statistics.has_null_count else None
    if not statistics.has_min_max:
        return Bounds(nulls=nulls)
    if pa.types.is_temporal(leaf.kind):
        return Bounds(statistics.min_raw, statistics.max_raw, nulls)
    return Bounds(statistics.min, statistics.max, nulls)


def file_statistics(metadata: pq.FileMetaData, fields: pa.StructType) -> str:
    """Return the statistics of a file with these typed columns as Delta's JSON text."""
    import msgspec  # not at the top: writers of topics without typed columns start without it

    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    parts: dict[str, dict[str, Any]] = {name: {column: {} for column in RECORDS} for name in _PARTS}
    missing = [part.error for part in PARTS if part.error not in fields.names]
    parts["nullCount"] |= dict.fromkeys(missing, metadata.num_rows)
    for leaf in _in_text_of(fields):
        low, high, nulls = _of_all([(group_bounds(group, leaf), group.num_rows) for group in groups])
        texts = _in_text(low, leaf.kind, up=False), _in_text(high, leaf.kind, up=True), nulls
        for part, value in zip(parts.values(), texts, strict=True):
            if value is not None:
                _put(part, leaf.path, value)
    return msgspec.json.encode(parts).decode()


def parse(text: str, fields: pa.StructType) -> dict[tuple[str, ...], Bounds]:
    """Return the bounds of each leaf, by path, from a text of `file_statistics` for the same columns."""
    found = json.loads(text, parse_float=Decimal)
    bounds = {}
    for leaf in _in_text_of(fields):
        low, high, nulls = (_get(found[name], leaf.path) for name in _PARTS)
        bounds[leaf.path] = Bounds(_of_text(low, leaf.kind), _of_text(high, leaf.kind), nulls)
    return bounds


def _of_all(groups: Sequence[tuple[Bounds, int]]) -> Bounds:
    """Return the bounds of all row groups together. Each is given as its bounds and its number of rows."""
    nulls = [bounds.nulls for bounds, _ in groups if bounds.nulls is not None]
    total = sum(nulls) if len(nulls) == len(groups) else None
    with_values = [bounds for bounds, rows in groups if bounds.nulls != rows]
    if not with_values or any(bounds.low is None for bounds in with_values):
        return Bounds(nulls=total)
    return Bounds(min(bounds.low for bounds in with_values), max(bounds.high for bounds in with_values), total)


def _in_text(bound: Any, kind: pa.DataType, *, up: bool) -> Any:
    """Return a JSON value that is not larger than the bound, or with `up` not smaller; None if the bound is unknown or
    there is no such value.
    """
    if bound is None:
        return None
    if pa.types.is_string(kind):
        return _rounded_up(bound) if up else bound[:STRING_LENGTH_MAX]
    if pa.types.is_floating(kind):
        return bound if math.isfinite(bound) else None
    if pa.types.is_date(kind):
        return date.fromordinal(_FIRST_DAY + bound).isoformat()
    if pa.types.is_timestamp(kind):
        ms = -(-bound // _MS) if up else bound // _MS
        if ms >= _END_OF_TIME_MS:
            return None
        return (_EPOCH + timedelta(milliseconds=ms)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if pa.types.is_decimal(kind):
        import msgspec

        return msgspec.Raw(f"{bound:f}".encode())  # not 0E-9, which readers of Delta's JSON take for null
    return bound


def _rounded_up(text: str) -> str:
    """Return a text that does not sort before `text`: `text` itself, or one cut at STRING_LENGTH_MAX or soon after."""
    for place in range(STRING_LENGTH_MAX, len(text)):
        if text[place] != _LAST_CHARACTER:
            return text[:place] + _LAST_CHARACTER
    return text


def _of_text(bound: Any, kind: pa.DataType) -> Any:
    if bound is None:
        return None
    if pa.types.is_floating(kind):
        return float(bound)
    if pa.types.is_decimal(kind):
        return Decimal(bound)
    if pa.types.is_date(kind):
        return date.fromisoformat(bound).toordinal() - _FIRST_DAY
    if pa.types.is_timestamp(kind):
        return (datetime.fromisoformat(bound) - _EPOCH) // _MICROSECOND
    return bound


def _put(part: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for name in path[:-1]:
        part = part.setdefault(name, {})
    part[path[-1]] = value


def _get(part: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    found: Any = part
    for name in path:
        found = found.get(name)
        if found is None:
            return None
    return found
