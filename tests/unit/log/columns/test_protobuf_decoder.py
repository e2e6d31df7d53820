"""Protobuf to columns: all kinds of fields, framing, columns of several versions, bad input."""

import datetime
import decimal
import random
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import json_format

from spark_log.errors import InvalidSchemaError
from spark_log.log.columns.decoded import ColumnsDefinition, Decoded
from spark_log.log.columns.decoding import decoder
from spark_log.log.columns.protobuf.schema import protobuf_schema, protobuf_schema_fields
from spark_log.log.columns.types import parse_ddl, to_ddl
from tests.support.schemas import FLIGHT_DESCRIPTOR_SET, SHOP_DESCRIPTOR_SET, Order, flight_bytes

ORDER, FLIGHT = protobuf_schema("shop.Order", SHOP_DESCRIPTOR_SET), protobuf_schema("Flight", FLIGHT_DESCRIPTOR_SET)
STRICT = protobuf_schema("Strict", FLIGHT_DESCRIPTOR_SET)
UTC = datetime.UTC
MESSAGE = Order(
    id="é", count=-1, note="n", line={"name": "a", "at": {"seconds": 5}}, lines=[{"name": "b"}, {"amount": 2}],
    tags=["x", "y"], prices={"p": 0.5}, parts={1: {"name": "c"}}, state=1, states=[0, 1, 7], at={"nanos": 7999},
    serial=2**64 - 1, crc=2**32 - 1, data=b"z", ok=True, total=-5, rates=[0.5], kinds={True: 1},
)  # fmt: skip
ROW = {
    "id": "é", "count": -1, "note": "n",
    "line": {"name": "a", "amount": 0, "at": datetime.datetime(1970, 1, 1, 0, 0, 5, tzinfo=UTC)},
    "lines": [{"name": "b", "amount": 0, "at": None}, {"name": "", "amount": 2, "at": None}],
    "tags": ["x", "y"], "prices": [("p", 0.5)], "parts": [("1", {"name": "c", "amount": 0, "at": None})], "seen": [],
    "state": "PAID", "states": ["NEW", "PAID", "7"], "at": datetime.datetime(1970, 1, 1, 0, 0, 0, 7, tzinfo=UTC),
    "serial": decimal.Decimal(2**64 - 1), "crc": 2**32 - 1, "data": b"z", "ok": True, "total": -5, "rates": [0.5],
    "kinds": [("true", "PAID")],
}  # fmt: skip


def definition(schema: str, fields: pa.StructType | None = None, **more: Any) -> ColumnsDefinition:
    framing = more.pop("framing", "none")
    return ColumnsDefinition("protobuf", framing, schema, fields or protobuf_schema_fields(schema), **more)


def decode(defined: ColumnsDefinition, *values: bytes | None) -> Decoded:
    decoded = decoder(defined).decode(pa.array(values, pa.binary()))
    decoded.record.validate(full=True)
    assert decoded.record.type == defined.fields and len(decoded.record) == len(values)
    return decoded


def test_columns_have_the_widest_types() -> None:
    assert to_ddl(protobuf_schema_fields(ORDER)) == (
        "id STRING, count BIGINT, note STRING, line STRUCT<name: STRING, amount: BIGINT, at: TIMESTAMP>, "
        "lines ARRAY<STRUCT<name: STRING, amount: BIGINT, at: TIMESTAMP>>, tags ARRAY<STRING>, "
        "prices MAP<STRING, DOUBLE>, parts MAP<STRING, STRUCT<name: STRING, amount: BIGINT, at: TIMESTAMP>>, "
        "seen MAP<STRING, TIMESTAMP>, state STRING, states ARRAY<STRING>, at TIMESTAMP, serial DECIMAL(20, 0), "
        "crc BIGINT, data BINARY, ok BOOLEAN, total BIGINT, rates ARRAY<DOUBLE>, kinds MAP<STRING, STRING>"
    )


def test_all_kinds_of_fields() -> None:
    record, reasons = decode(definition(ORDER), MESSAGE.SerializeToString(), None, b"")
    assert reasons is None
    assert record[0].as_py() == ROW and not record[1].is_valid
    assert record[2].as_py()["count"] == 0 and record[2].as_py()["note"] is None and record[2].as_py()["tags"] == []


def test_columns_may_be_fewer_or_more_than_the_message_has() -> None:
    fields = parse_ddl("tags ARRAY<STRING>, gone INT, line STRUCT<old: DATE, name: STRING>")
    record, _ = decode(definition(ORDER, fields), MESSAGE.SerializeToString())
    assert record.to_pylist() == [{"tags": ["x", "y"], "gone": None, "line": {"old": None, "name": "a"}}]


def test_framing_names_the_schema_and_the_message() -> None:
    fields = parse_ddl("carrier STRING, delay INT, id BIGINT")
    defined = definition(FLIGHT, fields, framing="confluent", schemas_by_id={1: FLIGHT, 2: STRICT})
    flight, strict = flight_bytes("UA", 3), b"\x08\x07"
    values = [
        b"\0\0\0\0\1\0" + flight,
        b"\0\0\0\0\1\2\0" + flight,
        b"\0\0\0\0\2\2\2" + strict,
        None,
        b"\0\0\0\0\1\2\2" + strict,
        b"\0\0\0\0\3\0" + flight,
        b"\1\0\0\0\1\0" + flight,
        flight,
        b"\0\0\0\0\1",
    ]
    record, reasons = decode(defined, *values)
    ua = {"carrier": "UA", "delay": 3, "id": None}
    assert record.to_pylist() == [ua, ua, {"carrier": None, "delay": None, "id": 7}, *[None] * 6]
    other = "its index in Confluent's framing is not that of Protobuf type Flight"
    none = "does not begin with Confluent's framing"
    assert reasons is not None
    assert reasons.to_pylist() == [*[None] * 4, other, "unknown schema id 3", none, none, other]


@pytest.mark.parametrize(
    ("schema", "value", "reason"),
    [
        (FLIGHT, b"\x0a\x05UA", "not a message of Protobuf type Flight"),
        (FLIGHT, b"\xff" * 12, "not a message of Protobuf type Flight"),
        (FLIGHT, b"\x0a\x01\xff", "field carrier: not UTF-8"),
        (FLIGHT, b"\x12\x01a", "field delay: wire type 2 is not that of int32"),
        (STRICT, b"", "field id: required, and missing"),
        (ORDER, b"\x62\x0a\x08" + b"\xff" * 8 + b"\x7f", "field at: not a time of the years 1 to 9999"),
        (ORDER, b"\x0a\x01\xff", "not a message of Protobuf type shop.Order"),
    ],
)
def test_a_bad_message_affects_no_other(schema: str, value: bytes, reason: str) -> None:
    good = {FLIGHT: flight_bytes("UA", 3), STRICT: b"\x08\x07", ORDER: MESSAGE.SerializeToString()}[schema]
    record, reasons = decode(definition(schema), good, value, None, good)
    assert [row.is_valid for row in record] == [True, False, False, True] and record[0] == record[3]
    assert reasons is not None and [each.is_valid for each in reasons] == [False, True, False, False]
    assert reasons[1].as_py().startswith(reason) and len(reasons[1].as_py()) <= 200


def test_damaged_messages_are_bad_or_what_the_parser_reads() -> None:
    whole, chance = MESSAGE.SerializeToString(deterministic=True), random.Random(7)
    values = []
    for _ in range(1000):
        wrong = bytearray(whole)
        wrong[chance.randrange(len(wrong))] = chance.randrange(256)
        values.append(bytes(wrong))
    record, reasons = decode(definition(ORDER), *values)
    assert reasons is not None and 100 < reasons.null_count < 1000
    for row, value in zip(record.to_pylist(), values, strict=True):
        if row is not None:
            read = json_format.MessageToDict(Order.FromString(value), preserving_proto_field_name=True)
            assert row["tags"] == read.get("tags", []) and dict(row["prices"]) == read.get("prices", {})


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("x", "not a Protobuf message and its descriptor"),
        ('{"message": "a"}', "not a Protobuf message and its descriptor"),
        (protobuf_schema("a", b"x"), "not a descriptor set"),
        (protobuf_schema("a", FLIGHT_DESCRIPTOR_SET), "message 'a': not in the descriptor"),
        (protobuf_schema("shop.Tree", SHOP_DESCRIPTOR_SET), r"a message that contains itself, shop\.Tree"),
        (protobuf_schema("shop.Nothing", SHOP_DESCRIPTOR_SET), "a struct needs at least one field"),
    ],
)
def test_refused_schema(schema: str, message: str) -> None:
    with pytest.raises(InvalidSchemaError, match=message):
        protobuf_schema_fields(schema)


def test_deep_and_large_messages() -> None:
    """Work that grows with the square of the size would not end."""
    large = Order(id="x" * (1 << 20), tags=["y"] * 100_000).SerializeToString()
    deep = b"\x0b" * 100_000
    record, reasons = decode(definition(ORDER), large, deep)
    assert len(record[0].as_py()["tags"]) == 100_000 and reasons is not None and reasons[1].is_valid
