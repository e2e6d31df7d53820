"""Protobuf messages to columns and back: valid and invalid messages, every type, and the errors of unsupported ones."""

import datetime
import decimal
import sys

import pytest
from pyspark.errors import PythonException
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from spark_log.errors import InvalidConfigurationError, InvalidOptionError
from spark_log.spark.streams.bad_records import valid
from spark_log.spark.streams.formats.codecs import Confluent, Protobuf, decode, encode
from tests.spark.test_codecs import decoded
from tests.support.schemas import (
    FLIGHT_DESCRIPTOR_SET,
    SHOP_ALONE_DESCRIPTOR_SET,
    SHOP_DESCRIPTOR_SET,
    Order,
    flight_bytes,
)
from tests.support.spark import assert_same_rows

FLIGHT = Protobuf("Flight", FLIGHT_DESCRIPTOR_SET)
STRICT = Protobuf("Strict", FLIGHT_DESCRIPTOR_SET)
ORDER = Protobuf("shop.Order", SHOP_DESCRIPTOR_SET)
CORRUPT = "not a message of Protobuf type {}: Wire format was corrupt"


UA = flight_bytes("UA", 3)
FLIGHTS = {
    UA: ("UA", 3),
    b"": (None, None),
    None: None,
    UA[:4]: ("UA", None),
    UA + UA[4:]: ("UA", 3),
    UA + b"\x78\x01": ("UA", 3),
    UA[:-1]: CORRUPT.format("Flight"),
    UA[:3]: CORRUPT.format("Flight"),
    UA + b"\0": CORRUPT.format("Flight"),
    b"\xff" * 9: CORRUPT.format("Flight"),
    b'{"carrier":"UA","delay":3}': CORRUPT.format("Flight"),
    b"\x08\x01": "field carrier: wire type 0 is not that of string",
    UA + b"\x12\x01\x03": "field delay: wire type 2 is not that of int32",
    b"\x0a\x02\xff\xfe": "field carrier: not UTF-8",
}


def test_flights(spark):
    assert dict(zip(FLIGHTS, decoded(spark, FLIGHT, list(FLIGHTS)), strict=True)) == FLIGHTS


def test_required_fields_and_unknown_enum_numbers_of_proto2(spark):
    cases = {
        b"\x08\x01\x10\x01\x1a\x06" + UA: (1, "PAID", [("UA", 3)], {}),
        b"\x08\x01\x10\x07": (1, None, [], {}),
        b"\x08\x01\x22\x05\x0a\x01x\x10\x01\x22\x05\x0a\x01y\x10\x07": (1, None, [], {"x": "PAID"}),
        b"\x08\x01\x22\x05\x0a\x01\xff\x10\x01": "field states{}: a key that is not UTF-8",
        b"\x10\x01": "field id: required, and missing",
        b"\x08\x01\x12\x01\x01": "field state: wire type 2 is not that of enum",
        b"\x08\x01\x1a\x06" + UA + b"\x1a\x02\x08\x01": "field flights[].carrier: wire type 0 is not that of string",
        b"\x08\x01\x1a\x05" + UA: CORRUPT.format("Strict"),
    }
    assert dict(zip(cases, decoded(spark, STRICT, list(cases)), strict=True)) == cases


SCHEMA = (
    "id STRING, count INT, note STRING, line STRUCT<name: STRING, amount: INT, at: TIMESTAMP>,"
    " lines ARRAY<STRUCT<name: STRING, amount: INT, at: TIMESTAMP>>, tags ARRAY<STRING>, prices MAP<STRING, DOUBLE>,"
    " parts MAP<INT, STRUCT<name: STRING, amount: INT, at: TIMESTAMP>>, seen MAP<STRING, TIMESTAMP>, state STRING,"
    " states ARRAY<STRING>, at TIMESTAMP, serial DECIMAL(20,0), crc BIGINT, data BINARY, ok BOOLEAN, total BIGINT,"
    " rates ARRAY<FLOAT>, kinds MAP<BOOLEAN, STRING>"
)
BEFORE = datetime.datetime(1969, 12, 31, 23, 59, 59, 5, tzinfo=datetime.UTC)
AFTER = datetime.datetime(2013, 1, 1, 10, 0, 0, 999_999, tzinfo=datetime.UTC)
FULL = {
    "id": "é",
    "count": -(2**31),
    "note": "",
    "line": {"name": "a", "amount": 1, "at": AFTER},
    "lines": [{"name": "b", "amount": -1, "at": BEFORE}, {"name": "", "amount": 0, "at": None}],
    "tags": ["x", "", "x"],
    "prices": {"p": 0.5, "q": -1.0},
    "parts": {-1: {"name": "c", "amount": 0, "at": None}},
    "seen": {"here": BEFORE, "there": AFTER},
    "state": "PAID",
    "states": ["NEW", "PAID", "9"],
    "at": AFTER,
    "serial": decimal.Decimal(2**64 - 1),
    "crc": 2**32 - 1,
    "data": b"\xff\0",
    "ok": True,
    "total": -(2**63),
    "rates": [0.5, -2.0],
    "kinds": {True: "PAID", False: "-7"},
}
EMPTY = {
    "id": "", "count": 0, "note": None, "line": None, "lines": [], "tags": [], "prices": {}, "parts": {}, "seen": {},
    "state": "NEW", "states": [], "at": None, "serial": decimal.Decimal(0), "crc": 0, "data": b"", "ok": False,
    "total": 0, "rates": [], "kinds": {},
}  # fmt: skip


def full_bytes():
    given = {**FULL, "states": [0, 1, 9], "serial": 2**64 - 1, "kinds": {True: 1, False: -7}}
    seen = given.pop("seen")
    order = Order(**given)
    for where, at in seen.items():
        order.seen[where].FromDatetime(at)
    return order.SerializeToString(deterministic=True)


def test_values_of_every_type_are_encoded_and_decoded(spark):
    values = spark.createDataFrame([(1, full_bytes()), (2, b""), (3, None)], "n INT, value BINARY")
    both = decode(values, ORDER)
    expected = spark.createDataFrame([(1, FULL), (2, EMPTY), (3, None)], f"n INT, value STRUCT<{SCHEMA}>")
    assert_same_rows(both.select("n", "value"), expected)
    assert both.where("error IS NOT NULL").isEmpty()
    back = encode(expected.orderBy("n").coalesce(1), ORDER, value="value")
    assert [row.value for row in back.collect()] == [full_bytes(), b"", None]


def test_some_columns_and_narrower_ones_make_a_message(spark):
    rows = spark.createDataFrame([(1, "x"), (2, None)], "n SMALLINT, id STRING").coalesce(1)
    line = F.when(F.col("n") == 2, F.struct(F.lit("l").alias("name")))
    some = encode(
        rows.select(F.col("id").alias("ID"), F.col("n").alias("total"), F.col("n").alias("serial"), line.alias("line"),
                    F.array("n").cast("array<float>").alias("rates"), F.lit(None).alias("tags"),
                    F.create_map("n", F.struct(F.lit("p").alias("NAME"))).alias("parts")),
        ORDER,
    )  # fmt: skip
    found = [Order.FromString(row.value) for row in some.collect()]
    assert found == [
        Order(id="x", total=1, serial=1, rates=[1], parts={1: {"name": "p"}}),
        Order(total=2, serial=2, rates=[2], line={"name": "l"}, parts={2: {"name": "p"}}),
    ]


def test_invalid_times_and_invalid_text(spark):
    def order(**fields):
        return Order(**fields).SerializeToString()

    cases = {
        order(at={"seconds": 253_402_300_799, "nanos": 999_999_999}): None,
        order(at={"seconds": 253_402_300_800}): "field at: not a time of the years 1 to 9999",
        order(line={"at": {"nanos": -1}}): "field line.at: not a time of the years 1 to 9999",
        order(lines=[{}, {"at": {"seconds": -(2**62)}}]): "field lines[].at: not a time of the years 1 to 9999",
        b"\x0a\x01\xff": "not a message of Protobuf type shop.Order: String field had bad UTF-8",
        b"\x92\x01\x02\x00\x00": CORRUPT.format("shop.Order"),
    }
    frame = spark.createDataFrame([(value,) for value in cases], "value BINARY").coalesce(1)
    found = {row.raw: row.error for row in decode(frame, ORDER).select("raw", "error").collect()}
    assert found == cases


@pytest.mark.parametrize(
    ("message", "field", "indexes"),
    [("Flight", "carrier", b"\0"), ("shop.Order", "id", b"\x02\x02"), ("shop.Order.Line", "name", b"\x04\x02\0")],
)
def test_confluent_framing_names_the_message_of_the_file(spark, tmp_path, message, field, indexes):
    path = tmp_path / "messages.desc"
    path.write_bytes(FLIGHT_DESCRIPTOR_SET if message == "Flight" else SHOP_DESCRIPTOR_SET)
    rows = spark.range(1).select(F.lit("x").alias(field))
    [row] = encode(rows, Protobuf(message, str(path), Confluent(7))).collect()
    assert row.value == b"\0\0\0\0\x07" + indexes + b"\x0a\x01x"
    [found, *bad] = decoded(
        spark,
        Protobuf(message, str(path), Confluent()),
        [row.value, b"\0\0\0\0\x07\x10" + row.value[6:], row.value[:5], b"\x0a\x01x"],
    )
    assert found[field] == "x"
    assert bad == ["does not begin with Confluent's framing"] * 3


def test_a_filter_parses_once(spark):
    frame = spark.createDataFrame([(UA,)], "value BINARY")
    plan = valid(decode(frame, FLIGHT)).select("value.carrier")._jdf.queryExecution().executedPlan().toString()
    assert plan.count("ArrowEvalPython") == 1


def test_unsupported_messages_and_columns_are_named(spark):
    frame = spark.createDataFrame([(b"",)], "value BINARY")
    for codec, message in {
        Protobuf("Flight", "/nowhere"): "descriptor '/nowhere': cannot be read",
        Protobuf("Flight", b"\xff"): "descriptor: not a descriptor set .*Wire format was corrupt",
        Protobuf("shop.Order", SHOP_ALONE_DESCRIPTOR_SET): "include_imports.* file 'google/protobuf/timestamp.proto'",
        Protobuf("Order", SHOP_DESCRIPTOR_SET): "message 'Order': not in the descriptor",
        Protobuf("shop.Tree", SHOP_DESCRIPTOR_SET): r"field branches\[\].tree: a message that contains itself",
        Protobuf("shop.Holder", SHOP_DESCRIPTOR_SET): "field nothing: a message without fields, shop.Nothing",
    }.items():
        with pytest.raises(InvalidOptionError, match=message):
            decode(frame, codec)
        with pytest.raises(InvalidOptionError, match=message):
            encode(frame, codec)
    for column, message in {
        "1L AS count": "column value.count: bigint does not fit int, cast the column",
        "1 AS id": "column value.id: int does not fit string",
        "1 AS more": "column value.more: the schema has no such field, only id, count, note",
        "array(named_struct('amount', 1L)) AS lines": r"column value.lines\[\].amount: bigint does not fit int",
        "map('x', 'y') AS prices": r"column value.prices\{\}: string does not fit double",
        "1.5BD AS serial": r"column value.serial: decimal\(2,1\) does not fit decimal\(20,0\)",
    }.items():
        with pytest.raises(InvalidOptionError, match=message):
            encode(spark.range(1).selectExpr(column), ORDER)


@pytest.mark.parametrize(
    ("codec", "column", "message"),
    [
        (ORDER, "'LOST' AS state", 'field state of shop.Order: unknown enum label "LOST"'),
        (ORDER, "map(true, '7.0') AS kinds", "field kinds of shop.Order: "),
        (STRICT, "'7' AS state", 'field state of Strict: unknown enum label "7"'),
        (ORDER, "-1 AS crc", "field crc of shop.Order: Value out of range: -1"),
        (ORDER, "array('x', null) AS tags", "field tags of shop.Order: "),
        (STRICT, "'NEW' AS state", "Message Strict is missing required fields: id"),
    ],
)
def test_a_value_that_no_message_can_hold_is_an_error_not_a_record(spark, codec, column, message):
    with pytest.raises(PythonException, match=message):
        encode(spark.range(1).selectExpr(column), codec).collect()


def test_without_the_package_the_error_says_how_to_install_it(spark, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("spark_log.spark.streams.formats.protobuf")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "google.protobuf.descriptor", None)
    frame = spark.createDataFrame([(b"",)], "value BINARY")
    for use in (decode, encode):
        with pytest.raises(InvalidConfigurationError, match=r"pip install '\.\[protobuf\]'"):
            use(frame, FLIGHT)
