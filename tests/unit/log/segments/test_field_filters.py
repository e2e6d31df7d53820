"""Pruning by statistics never loses a record: a file or row group is skipped only if no record in it passes.

The oracle compares values as Spark does: NaN is larger than all other doubles and equal to itself, -0.0 equals 0.0,
strings are ordered by their UTF-8 bytes, and null passes no comparison.
"""

import io
import json
import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_log.log.columns.decoded import ColumnsDefinition
from spark_log.log.columns.key_and_value import PARTS, RECORDS
from spark_log.log.columns.topic_columns import TopicColumns
from spark_log.log.columns.types import parse_ddl
from spark_log.log.records.segment_write import SegmentWriter
from spark_log.log.segments.field_filters import file_excluded, group_excluded
from spark_log.log.segments.slices import Condition, FieldFilter
from tests.support.records import table

FIELDS = parse_ddl("n INT, x DOUBLE, s STRING, at TIMESTAMP, d DATE, m DECIMAL(38, 5), b BOOLEAN, p STRUCT<n: INT>")
TYPED = TopicColumns(1, *(ColumnsDefinition("json", "none", "", FIELDS) for _ in PARTS)).fields
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LAST = datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
_integers = st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(-3, 3))
_doubles = st.one_of(st.floats(), st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -0.0, 1.5, 5e-324]))
_texts = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=3),
    st.builds(
        str.__add__,
        st.sampled_from(["a" * 31, "a" * 32, "\U0010ffff" * 33, "é" * 32]),
        st.sampled_from(["", "b", "\U0010ffff", "\x7f", "\U0010ffffb"]),
    ),
    st.just("z" * 5000),
)
_times = st.one_of(
    st.datetimes(timezones=st.just(UTC)), st.sampled_from([LAST, EPOCH, EPOCH + timedelta(microseconds=1)])
)
_decimals = st.decimals(-(10**33), 10**33, places=5, allow_nan=False).filter(
    lambda found: len(found.as_tuple().digits) <= 38
)
_OF_VALUES = {
    ("record", "n"): _integers,
    ("record", "x"): _doubles,
    ("record", "s"): _texts,
    ("record", "at"): _times,
    ("record", "d"): st.dates(),
    ("record", "m"): _decimals,
    ("record", "b"): st.booleans(),
    ("record", "p", "n"): _integers,
    ("record_error",): _texts,
}
VALUES = {**_OF_VALUES, **{(f"key_{path[0]}", *path[1:]): values for path, values in _OF_VALUES.items()}}


@st.composite
def rows(draw):
    """Rows as Python has them, in row groups."""
    of_any = {path: st.none() | values for path, values in _OF_VALUES.items()}
    record = st.none() | st.fixed_dictionaries(
        {path[1]: of_any[path] for path in _OF_VALUES if len(path) == 2}
        | {"p": st.none() | st.fixed_dictionaries({"n": of_any["record", "p", "n"]})}
    )
    row = st.fixed_dictionaries(
        dict.fromkeys(("key_record_error", "record_error"), of_any["record_error",]) | dict.fromkeys(RECORDS, record)
    )
    return draw(st.lists(st.lists(row, min_size=1, max_size=4), min_size=1, max_size=3))


@st.composite
def filters(draw):
    path = draw(st.sampled_from(list(VALUES)))
    test = draw(st.sampled_from(list(Condition)))
    if test in (Condition.IS_NULL, Condition.IS_NOT_NULL):
        return FieldFilter(path, test)
    if test is Condition.STARTS_WITH:
        path = draw(st.sampled_from([path for path in VALUES if VALUES[path] is _texts]))
    count = 3 if test is Condition.IN else 1
    return FieldFilter(path, test, tuple(draw(st.lists(VALUES[path], min_size=1, max_size=count))))


def value_of(row, path):
    for name in path:
        row = None if row is None else row[name]
    return row


def ordered(value):
    """The value so that Python orders it as Spark does."""
    if isinstance(value, float):
        return (1, 0.0) if math.isnan(value) else (0, value)
    return value.encode() if isinstance(value, str) else value


def passes(row, found):
    value = value_of(row, found.path)
    if value is None or found.condition in (Condition.IS_NULL, Condition.IS_NOT_NULL):
        return (value is None) == (found.condition is Condition.IS_NULL)
    if found.condition is Condition.STARTS_WITH:
        return value.startswith(found.values[0])
    mine, theirs = ordered(value), [ordered(other) for other in found.values]
    return {
        Condition.IN: mine in theirs, Condition.BELOW: mine < theirs[0], Condition.AT_MOST: mine <= theirs[0],
        Condition.ABOVE: mine > theirs[0], Condition.AT_LEAST: mine >= theirs[0],
    }[found.condition]  # fmt: skip


def written(groups, format_):
    """The statistics of a file with these row groups, and its row groups."""
    columns = TopicColumns(1, *(ColumnsDefinition(format_, "none", "", FIELDS) for _ in PARTS))
    file = io.BytesIO()
    writer = SegmentWriter(file, columns=columns)
    for group in groups:
        typed = pa.table({field.name: pa.array([row[field.name] for row in group], field.type) for field in TYPED})
        records = table(*("" for _ in group))
        for name in typed.schema.names:
            records = records.append_column(typed.schema.field(name), typed.column(name))
        writer.write(records)
        writer.flush_rows()
    facts = writer.close()
    metadata = pq.read_metadata(io.BytesIO(file.getvalue()))
    return facts.stats, [metadata.row_group(number) for number in range(metadata.num_row_groups)]


def without_nan(groups):
    """JSON values have no NaN."""
    for record in (row[name] for group in groups for row in group for name in RECORDS if row[name] is not None):
        if record["x"] is not None and math.isnan(record["x"]):
            record["x"] = math.inf
    return groups


@given(groups=rows(), found=st.lists(filters(), min_size=1, max_size=3), format_=st.sampled_from(["json", "avro"]))
def test_no_record_that_passes_the_filters_is_skipped(groups, found, format_):
    groups = without_nan(groups) if format_ == "json" else groups
    stats, row_groups = written(groups, format_)
    matching = [any(all(passes(row, each) for each in found) for row in group) for group in groups]
    assert not (file_excluded(found, TYPED, stats, sum(map(len, groups))) and any(matching))
    for group, matches in zip(row_groups, matching, strict=True):
        assert not (group_excluded(found, TYPED, group) and matches)


@given(groups=rows(), format_=st.sampled_from(["json", "avro"]))
def test_the_bounds_in_the_text_hold_for_every_value(groups, format_):
    groups = without_nan(groups) if format_ == "json" else groups
    stats = json.loads(written(groups, format_)[0], parse_float=Decimal)
    of_file = [row for group in groups for row in group]
    for path in VALUES:
        values = [value_of(row, path) for row in of_file]
        assert value_of_text(stats["nullCount"], path) in (None, values.count(None))
        for name, holds in (("minValues", lambda a, b: a <= b), ("maxValues", lambda a, b: a >= b)):
            bound = value_of_text(stats[name], path)
            for value in values:
                if bound is not None and value is not None:
                    assert holds(ordered(of_text(bound, value)), ordered(value)), (path, bound, value)


def value_of_text(found, path):
    for name in path:
        found = None if found is None else found.get(name)
    return found


def of_text(bound, like):
    if isinstance(like, datetime):
        return datetime.fromisoformat(bound)
    if isinstance(like, date):
        return date.fromisoformat(bound)
    return type(like)(bound)


@pytest.mark.parametrize(
    ("path", "condition", "value", "excluded"),
    [
        (("record", "x"), Condition.ABOVE, 10.0, True),
        (("record", "x"), Condition.AT_LEAST, 2.5, False),
        (("record", "s"), Condition.STARTS_WITH, "c", True),
        (("record", "s"), Condition.STARTS_WITH, "b", False),
        (("record", "at"), Condition.BELOW, EPOCH, True),
        (("record", "m"), Condition.IN, Decimal("0.1"), True),
        (("record", "p", "n"), Condition.IN, 8, True),
        (("record", "p", "n"), Condition.IN, "7", False),
        (("record", "unknown"), Condition.IN, 8, False),
        (("key_record", "n"), Condition.IN, 1, True),
        (("key_record_error",), Condition.IN, "bad", False),
        (("key_record_error",), Condition.IN, "good", True),
    ],
)
def test_a_file_without_a_matching_record_is_skipped(path, condition, value, excluded):
    record = {"n": 1, "x": 2.5, "s": "b", "at": EPOCH, "d": date(2026, 1, 1), "m": Decimal("0.2"), "p": {"n": 7}}
    of_key = {"key_record_error": "bad", "key_record": None}
    stats, [group] = written([[{**of_key, "record_error": None, "record": record}]], "json")
    found = [FieldFilter(path, condition, (value,))]
    assert file_excluded(found, TYPED, stats, 1) is excluded
    assert group_excluded(found, TYPED, group) is excluded
    assert file_excluded([FieldFilter(("record_error",), Condition.IS_NOT_NULL)], TYPED, stats, 1)
