"""Resets: a field with another type gets another column, and each column keeps the values that fit it."""

import json
from dataclasses import replace

import pyarrow as pa
import pytest

from spark_log.config import PartConfigs
from spark_log.errors import IncompatibleSchemaError
from spark_log.log.columns import topic_columns
from spark_log.log.columns.decoded import ColumnsDefinition
from spark_log.log.columns.decoding import decoder
from spark_log.log.columns.definitions import define
from spark_log.log.columns.protobuf.schema import protobuf_schema
from spark_log.log.columns.resets import of_present_schema, present_fields
from spark_log.log.columns.topic_columns import TopicColumns, from_text, to_text
from spark_log.log.columns.types import to_ddl
from tests.support.schemas import descriptor_set


def changed(
    schema: str, before: ColumnsDefinition | None, *, reset: bool = False, format_: str = "json"
) -> ColumnsDefinition:
    found = define(PartConfigs("value", format_, schema, "none", "all", "keep"), before, reset=reset)
    assert found is not None
    return found


FIRST = changed("item STRING, price DOUBLE", None)
SECOND = changed("price STRING, item STRING, note STRING", FIRST, reset=True)
THIRD = changed("price BIGINT, item STRING", SECOND, reset=True)


def decoded(definition: ColumnsDefinition, *values: bytes | None) -> list[tuple[object, object]]:
    record, reasons = decoder(definition).decode(pa.array(values, pa.binary()))
    record.validate(full=True)
    assert record.type == definition.fields
    return list(zip(record.to_pylist(), [None] * len(values) if reasons is None else reasons.to_pylist(), strict=True))


def test_a_field_with_another_type_gets_another_column() -> None:
    with pytest.raises(IncompatibleSchemaError, match=r"price: the column is DOUBLE, not STRING; .*--reset"):
        changed("price STRING", FIRST)
    second, third = SECOND, THIRD
    assert to_ddl(second.fields) == "item STRING, price DOUBLE, price__v2 STRING, note STRING"
    assert (second.renamed, second.replaced, second.previous) == ({"price": "price__v2"}, ("price",), FIRST)
    assert to_ddl(present_fields(second)) == "item STRING, price STRING, note STRING"
    assert to_ddl(third.fields) == f"{to_ddl(second.fields)}, price__v3 BIGINT"
    columns = None
    for definition in (FIRST, SECOND, SECOND, THIRD):
        columns = topic_columns.changed(columns, None, definition)
    assert columns == TopicColumns(3, value=THIRD)
    for definition in (FIRST, SECOND, THIRD):
        for columns in (
            TopicColumns(1, value=definition),
            TopicColumns(2, definition),
            TopicColumns(3, definition, FIRST),
        ):
            assert from_text(to_text(columns)) == columns


def test_later_changes_keep_the_columns_of_a_reset() -> None:
    assert changed("price STRING, item STRING, note STRING", SECOND) == SECOND
    later = changed("price STRING, more STRING", SECOND, reset=True)
    assert to_ddl(later.fields) == "item STRING, price DOUBLE, price__v2 STRING, note STRING, more STRING"
    assert later.previous == FIRST
    for name in ("price__v2", "PRICE__V2"):
        with pytest.raises(IncompatibleSchemaError, match=name):
            changed(f"{name} STRING", SECOND)
    cases = changed("ITEM STRING, price__v2 DOUBLE, price STRING", FIRST, reset=True)
    assert cases.renamed == {"ITEM": "ITEM__v2", "price": "price__v3"}


def test_each_column_has_the_values_that_fit_it() -> None:
    values = (
        b'{"item": "a", "price": 4.5}', b'{"item": "b", "price": "free", "note": "n"}', b'{"price": 7}', b"{", None,
        b'{"item": "e"}', b'{"price": []}',
    )  # fmt: skip
    assert decoded(SECOND, *values) == [
        ({"item": "a", "price": 4.5, "price__v2": "4.5", "note": None}, None),
        ({"item": "b", "price": None, "price__v2": "free", "note": "n"}, None),
        ({"item": None, "price": 7.0, "price__v2": "7", "note": None}, None),
        (None, "not valid JSON: Input data was truncated"),
        (None, None),
        ({"item": "e", "price": None, "price__v2": None, "note": None}, None),
        ({"item": None, "price": None, "price__v2": "[]", "note": None}, None),
    ]
    assert [record and record["price__v3"] for record, _ in decoded(THIRD, *values)][:3] == [None, None, 7]
    back = changed("item STRING, price DOUBLE", changed("price STRING", None), reset=True)
    assert decoded(back, *values[:2]) == [
        ({"price": "4.5", "price__v2": 4.5, "item": "a"}, None),
        ({"price": "free", "price__v2": None, "item": None}, None),
    ]
    assert decoded(of_present_schema(back), values[1])[0][1] == "price: expected DOUBLE, got a string"


def test_lists_of_structs_get_another_column_as_a_whole() -> None:
    first = changed("lines ARRAY<STRUCT<n: BIGINT>>", None)
    second = changed("lines ARRAY<STRUCT<n: STRING>>", first, reset=True)
    assert decoded(second, b'{"lines": [{"n": 1}]}', b'{"lines": [{"n": "x"}]}') == [
        ({"lines": [{"n": 1}], "lines__v2": [{"n": "1"}]}, None),
        ({"lines": None, "lines__v2": [{"n": "x"}]}, None),
    ]


def test_messages_of_both_schemas_are_good() -> None:
    def schema(kind: str) -> str:
        return protobuf_schema("Price", descriptor_set("Price", {"item": "TYPE_STRING", "price": kind}))

    first = changed(schema("TYPE_DOUBLE"), None, format_="protobuf")
    second = changed(schema("TYPE_STRING"), first, reset=True, format_="protobuf")
    old, new = b"\x0a\x01a" + b"\x11" + b"\0" * 6 + b"\xf0\x3f", b"\x0a\x01b\x12\x04free"
    assert decoded(second, old, new) == [
        ({"item": "a", "price": 1.0, "price__v2": None}, None),
        ({"item": "b", "price": None, "price__v2": "free"}, None),
    ]


def test_a_definition_without_a_format_cannot_be_decoded_any_more() -> None:
    second = SECOND
    assert second.previous is not None
    without = replace(second, previous=replace(second.previous, format="bytes"))
    assert decoded(without, b'{"price": 1}') == [({"item": None, "price": None, "price__v2": "1", "note": None}, None)]
    assert json.loads(to_text(TopicColumns(1, without)))["key"]["previous"]["format"] == "bytes"
