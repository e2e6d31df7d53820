"""Columns that a writer gives: accepted if they are what the decoder returns, refused by name otherwise."""

import math

import pyarrow as pa
import pytest

from spark_log.columns.decoding import ColumnsDefinition, decoder, schema_fields
from spark_log.columns.given_columns import GivenColumns
from spark_log.errors import InvalidRecordError

DDL = "a INT, m MAP<STRING, DOUBLE>, l ARRAY<STRUCT<x: STRING>>, t TIMESTAMP, s STRUCT<q: DATE>"
JSON = ColumnsDefinition(1, "json", "none", DDL, schema_fields("json", DDL))
VALUES = pa.array(
    [
        b'{"a": 1, "m": {"x": 1.5, "y": null}, "l": [{"x": "q"}, null], "t": "2026-01-01T00:00:00Z",'
        b' "s": {"q": "2026-01-01"}}',
        None,
        b"{}",
    ],
    pa.binary(),
)
RECORD = decoder(JSON).decode(VALUES).record


def with_field(name, values, kind=None):
    arrays = {field.name: RECORD.field(field.name) for field in JSON.fields}
    arrays[name] = pa.array(values, kind or JSON.fields.field(name).type)
    return pa.StructArray.from_arrays(list(arrays.values()), names=list(arrays))


def test_other_orders_and_time_zones_and_missing_fields_make_no_difference():
    kinds = {field.name: field.type for field in JSON.fields if field.name != "s"}
    kinds["t"] = pa.timestamp("us", "Europe/Berlin")
    given = pa.array(RECORD.to_pylist(), pa.struct(reversed(kinds.items())))
    values = pa.array([VALUES[0].as_py().replace(b"2026-01-01" + b'"}', b'2026-01-01"}, "s": null'), None, b"{}"])
    assert GivenColumns(JSON, compare=True).columns(values, given) == (decoder(JSON).decode(values).record, None)
    part = GivenColumns(JSON, compare=True).columns(VALUES.slice(1), RECORD.slice(1))
    assert part.record.equals(RECORD.slice(1))


def test_a_value_without_a_record_is_decoded():
    bad = pa.array([b"{oops", VALUES[0].as_py()], pa.binary())
    decoded = GivenColumns(JSON, compare=True).columns(bad, pa.nulls(2, JSON.fields))
    assert decoded.record.to_pylist() == [None, RECORD[0].as_py()]
    assert decoded.reasons[0].as_py().startswith("not valid JSON")


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (with_field("m", [[("x", 1.0), ("x", 2.0)], None, None]), r"record\.m: a map with the same key twice"),
        (with_field("m", [[("x", math.nan)], None, None]), r"record\.m\{\}: NaN or infinite"),
        (with_field("t", [10**18, None, None]), r"record\.t: a time outside of the years 1 to 9999"),
        (with_field("s", [{"q": 10**7}, None, None]), r"record\.s\.q: a time outside"),
        (with_field("a", [2, None, None]), "in row 0, fields a are not those of the value"),
        (with_field("a", ["1", None, None], pa.string()), r"record\.a: expected BIGINT, got string"),
        (with_field("b", [1, None, None], pa.int64()), r"record\.b: the topic has no such column"),
    ],
)
def test_what_a_decoder_would_not_return_is_refused_by_name(record, message):
    with pytest.raises(InvalidRecordError, match=message):
        GivenColumns(JSON, compare=True).columns(VALUES, record)


def test_text_that_is_not_utf8_is_refused():
    lines = pa.ListArray.from_arrays(
        pa.array([0, 1, 1, 1], pa.int32()),
        pa.StructArray.from_arrays([pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff"]).buffers())], names=["x"]),
    )
    with pytest.raises(InvalidRecordError, match=r"record\.l\[\]\.x: text that is not UTF-8"):
        GivenColumns(JSON, compare=True).columns(VALUES, with_field("l", lines, lines.type))
