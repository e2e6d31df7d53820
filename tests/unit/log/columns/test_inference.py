"""Inference of columns from JSON values."""

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_log.errors import InvalidSchemaError
from spark_log.log.columns.column_limits import checked
from spark_log.log.columns.decoded import ColumnsDefinition
from spark_log.log.columns.decoding import decoder
from spark_log.log.columns.inference import infer_json
from spark_log.log.columns.types import to_ddl


def inferred(*values: Any) -> str:
    """The DDL of the field `a` with these values."""
    array = pa.array([json.dumps({"a": value}).encode() for value in values], pa.binary())
    return to_ddl(infer_json(array)).removeprefix("a ")


@pytest.mark.parametrize(
    ("values", "ddl"),
    [
        ([1, None, -5], "BIGINT"),
        ([1, 1.5], "DOUBLE"),
        ([2**63], "STRING"),
        ([True, None], "BOOLEAN"),
        ([True, 1], "STRING"),
        ([1, "x"], "STRING"),
        (["2026-11-22"], "DATE"),
        (["2026-11-22T10:00:00Z", "2026-11-22 10:00:00.123456789+01:00"], "TIMESTAMP"),
        (["2026-11-22T10:00:00Z", "2026-11-22"], "TIMESTAMP"),
        (["2026-11-22T10:00:00"], "STRING"),
        (["2026-11-22T10:00Z"], "STRING"),
        (["2026-02-30", "20261122", "0000-01-01"], "STRING"),
        (["2026-11-22", "soon"], "STRING"),
        (["2026-11-22", 5], "STRING"),
        ([{"x": 1}, {"y": "2"}, {}], "STRUCT<x: BIGINT, y: STRING>"),
        ([{"x": None}, {"x": {"y": [1, None, 2.5]}}], "STRUCT<x: STRUCT<y: ARRAY<DOUBLE>>>"),
        ([{"x": 1}, [1]], "STRING"),
        ([[], [[]], [[{"x": 1}]]], "ARRAY<ARRAY<STRUCT<x: BIGINT>>>"),
        ([{f"user-{number}": number for number in range(201)}], "MAP<STRING, BIGINT>"),
        (
            [{f"user-{number}": {"n": [number, "x"][number % 2]} for number in range(201)}],
            "MAP<STRING, STRUCT<n: STRING>>",
        ),
    ],
)
def test_type_of_the_values_of_a_field(values: list[Any], ddl: str) -> None:
    assert inferred(*values) == ddl


def test_fields_without_a_type_or_a_possible_name_are_left_out() -> None:
    values = [b'{"b":1,"null":null,"empty":{},"none":[],"x y":1,"a.b":1,"":1,"B":"x"}', b'{"a":true,"b":2}']
    assert to_ddl(infer_json(pa.array(values))) == "b BIGINT, a BOOLEAN"


def test_values_that_are_not_objects_are_ignored() -> None:
    values = [None, b"", b"x", b"[1]", b"5", b"\xff", b"[" * 100_000, b'{"a":"\\ud800"}', b'{"a":1}']
    assert to_ddl(infer_json(pa.array(values, pa.binary()))) == "a BIGINT"
    for none in ([], [None], [b"{}", b"[]"], [b'{"a":null}']):
        with pytest.raises(InvalidSchemaError, match="no JSON object with a field"):
            infer_json(pa.array(none, pa.binary()))


def test_a_deep_object_is_text_below_the_limit() -> None:
    value = b'{"a":' * 40 + b"1" + b"}" * 40
    fields = infer_json(pa.array([value]))
    assert to_ddl(fields).endswith("a: STRING" + ">" * 31)
    assert decoder(ColumnsDefinition("json", "none", "", fields)).decode(pa.array([value])).reasons is None


TEXTS = st.text(max_size=3) | st.sampled_from(
    ["2026-11-22", "2026-02-30", "2026-11-22T10:00:00Z", "0001-01-01T00:00:00+01:00"]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda parts: st.lists(parts, max_size=3) | st.dictionaries(st.sampled_from(["a", "A", "b", "x y", ""]), parts),
    max_leaves=10,
)


@given(st.lists(st.dictionaries(st.sampled_from(["a", "b", "B", "c", "d.e"]), JSON), max_size=4))
def test_the_values_fit_the_columns_inferred_from_them(values: list[Any]) -> None:
    array = pa.array([json.dumps(value).encode() for value in values], pa.binary())
    try:
        fields = infer_json(array)
    except InvalidSchemaError:
        return
    assert checked(fields) == fields
    assert decoder(ColumnsDefinition("json", "none", "", fields)).decode(array).reasons is None
