"""Decides which files and row groups are excluded by filters on the typed columns. Pure.

A file or row group is excluded only if its statistics prove that no record in it matches. It is never excluded because
of unknown statistics, a filter that is not supported, or a value of another type.
"""

import math
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from spark_log.log.records.leaf_statistics import Bounds, Leaf, group_bounds, leaves, parse
from spark_log.log.segments.slices import Condition, FieldFilter

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_DAY = date(1970, 1, 1).toordinal()


def file_excluded(filters: Sequence[FieldFilter], fields: pa.StructType, statistics: str, rows: int) -> bool:
    """Return whether the `statistics` of a file (segment.stats) prove that none of its records passes all filters. The
    file has the typed columns `fields` and `rows` records.
    """
    known, bounds = _by_path(fields), parse(statistics, fields)
    return any(
        found.path in bounds and excludes(found, known[found.path].kind, bounds[found.path], rows) for found in filters
    )


def group_excluded(filters: Sequence[FieldFilter], fields: pa.StructType, group: pq.RowGroupMetaData) -> bool:
    """Return whether the statistics of a row group prove that none of its records passes all filters. Its file has the
    typed columns `fields`.
    """
    known = _by_path(fields)
    return any(
        found.path in known
        and excludes(found, known[found.path].kind, group_bounds(group, known[found.path]), group.num_rows)
        for found in filters
    )


def _by_path(fields: pa.StructType) -> dict[tuple[str, ...], Leaf]:
    return {leaf.path: leaf for leaf in leaves(fields)}


def excludes(field_filter: FieldFilter, kind: pa.DataType, bounds: Bounds, rows: int) -> bool:
    """Return whether the bounds of a leaf in `rows` rows prove that no value passes the filter."""
    if field_filter.condition is Condition.IS_NULL:
        return bounds.nulls == 0
    if bounds.nulls == rows:
        return True
    values = [_comparable(value, kind) for value in field_filter.values]
    if not values or None in values or bounds.low is None or bounds.high is None:
        return False
    return not any(_may_pass(field_filter.condition, value, bounds.low, bounds.high) for value in values)


def _may_pass(condition: Condition, value: Any, low: Any, high: Any) -> bool:
    match condition:
        case Condition.IN:
            return bool(low <= value <= high)
        case Condition.BELOW:
            return bool(low < value)
        case Condition.AT_MOST:
            return bool(low <= value)
        case Condition.ABOVE:
            return bool(high > value)
        case Condition.AT_LEAST:
            return bool(high >= value)
        case Condition.STARTS_WITH:
            return isinstance(value, str) and bool(low[: len(value)] <= value <= high[: len(value)])
        case _:
            return True


def _comparable(value: Any, kind: pa.DataType) -> Any:
    """Return the value in the form of the bounds of a leaf of this type; None if it is of another type or cannot be
    compared.
    """
    if pa.types.is_integer(kind):
        return value if isinstance(value, int) and not isinstance(value, bool) else None
    if pa.types.is_floating(kind):
        return value if isinstance(value, float) and not math.isnan(value) else None
    if pa.types.is_string(kind):
        return value if isinstance(value, str) else None
    if pa.types.is_decimal(kind):
        return value if isinstance(value, Decimal) and value.is_finite() else None
    if pa.types.is_timestamp(kind):
        known = isinstance(value, datetime) and value.tzinfo is not None
        return (value - _EPOCH) // timedelta(microseconds=1) if known else None
    if pa.types.is_date(kind):
        known = isinstance(value, date) and not isinstance(value, datetime)
        return value.toordinal() - _FIRST_DAY if known else None
    return None
