import datetime as dt

import pyarrow as pa
import pytest
from hypothesis import given, settings

from spark_log.errors import InvalidOptionError, InvalidRecordError, InvalidTimestampError
from spark_log.log.records.schema import HEADERS, RECORD_SCHEMA, normalise, read_schema, stamp
from tests.unit.log.records.strategies import record_tables

KAFKA_COLUMNS = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]


def test_read_schema_columns() -> None:
    assert read_schema().names == KAFKA_COLUMNS
    assert read_schema(True).names == [*KAFKA_COLUMNS, "headers"]
    assert read_schema(columns=["offset", "value"]).names == ["value", "offset"]
    for columns, message in ((["valeu"], "valeu"), (["headers"], "includeHeaders"), ([], "distinct")):
        with pytest.raises(InvalidOptionError, match=message):
            read_schema(columns=columns)


@pytest.mark.parametrize(
    "kind",
    [
        pa.string(),
        pa.large_string(),
        pa.large_binary(),
        pa.string_view(),
        pa.binary_view(),
        pa.binary(2),
        pa.dictionary(pa.int32(), pa.string()),
    ],
    ids=str,
)
def test_normalise_takes_every_kind_of_bytes(kind: pa.DataType) -> None:
    table = pa.table({"value": pa.array([b"ab", None, b"cd"]).cast(pa.string()).cast(kind), "extra": [1, 2, 3]})
    done = normalise(table, timestamp_ms=5)
    assert done.schema.equals(RECORD_SCHEMA)
    assert done.column("value").to_pylist() == [b"ab", None, b"cd"]
    assert done.column("key").null_count == 3
    assert done.column("timestamp").cast(pa.int64()).to_pylist() == [5000] * 3
    assert normalise(table.to_batches()[0], timestamp_ms=5).equals(done)


def test_normalise_headers() -> None:
    kind = pa.large_list(pa.struct([("key", pa.large_string()), ("value", pa.string())]))
    rows = [[{"key": "a", "value": "x"}, {"key": "a", "value": None}], None, [], [{"key": "b", "value": ""}]]
    table = pa.table({"value": pa.array([b"v"] * 4), "headers": pa.array(rows, kind)})
    expected = [[{"key": "a", "value": b"x"}, {"key": "a", "value": None}], None, None, [{"key": "b", "value": b""}]]
    assert normalise(table).column("headers").to_pylist() == expected
    assert normalise(table.slice(1, 3)).column("headers").to_pylist() == expected[1:]
    normalise(table).validate(full=True)


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("value", pa.array([1])),
        ("key", pa.array([1.5])),
        ("headers", pa.array([["a"]])),
        ("headers", pa.array([[{"value": b"x", "key": "a"}]])),
        ("headers", pa.array([[{"key": 1, "value": b"x"}]])),
        ("headers", pa.array([[{"key": b"\xff", "value": b"x"}]])),
        ("timestamp", pa.array([5])),
        ("timestamp", pa.array([dt.datetime(2020, 1, 1)])),
        ("timestamp", pa.array([1 << 62], pa.int64()).cast(pa.timestamp("s", "UTC"))),
    ],
)
def test_normalise_names_the_field_of_a_wrong_type(column: str, values: pa.Array) -> None:
    table = pa.table({**{"value": pa.array([b"v"])}, column: values})
    with pytest.raises(InvalidRecordError, match=column):
        normalise(table)


def test_normalise_missing_and_double_columns() -> None:
    with pytest.raises(InvalidRecordError, match="value: required"):
        normalise(pa.table({"key": [b"a"]}))
    with pytest.raises(InvalidRecordError, match="2 columns of this name"):
        normalise(pa.Table.from_arrays([pa.array([b"a"])] * 2, names=["value", "value"]))


def test_timestamps_of_other_units_and_zones() -> None:
    noon = dt.datetime(2024, 5, 1, 12, tzinfo=dt.UTC)
    for unit in ("s", "ms", "us", "ns"):
        table = pa.table({"value": [b"v"], "timestamp": pa.array([noon], pa.timestamp(unit, "Europe/Berlin"))})
        assert normalise(table).column("timestamp")[0].as_py() == noon
    with pytest.raises(InvalidTimestampError):
        normalise(
            pa.table({"value": [b"v"], "timestamp": pa.array([1 << 60], pa.int64()).cast(pa.timestamp("s", "UTC"))})
        )


@given(record_tables())
@settings(max_examples=50, deadline=None)
def test_normalise_changes_nothing_that_is_normal(table: pa.Table) -> None:
    assert normalise(table).equals(table)
    assert stamp(table, 7).column("timestamp").cast(pa.int64()).to_pylist() == [7000] * table.num_rows
    assert table.schema.field("headers").type.equals(HEADERS)
