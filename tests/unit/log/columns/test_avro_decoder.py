"""Avro to columns: against fastavro, and bad input."""

import datetime
import decimal
import io
import json
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_log.errors import InvalidSchemaError
from spark_log.log.columns.avro import scalars
from spark_log.log.columns.avro.schema import avro_schema_fields
from spark_log.log.columns.decoded import ColumnsDefinition, Decoded
from spark_log.log.columns.decoding import decoder
from spark_log.log.columns.types import parse_ddl, to_ddl

UTC = datetime.UTC
UNIQUE = iter(range(10**9))


def record(*fields: tuple[str, Any]) -> dict[str, Any]:
    return {
        "type": "record",
        "name": f"R{next(UNIQUE)}",
        "fields": [{"name": name, "type": kind} for name, kind in fields],
    }


def definition(schema: Any, fields: pa.StructType | None = None, **more: Any) -> ColumnsDefinition:
    text = json.dumps(schema)
    return ColumnsDefinition("avro", more.pop("framing", "none"), text, fields or avro_schema_fields(text), **more)


def decode(defined: ColumnsDefinition, *values: bytes | None) -> Decoded:
    decoded = decoder(defined).decode(pa.array(values, pa.binary()))
    decoded.record.validate(full=True)
    assert decoded.record.type == defined.fields and len(decoded.record) == len(values)
    return decoded


def encode(schema: Any, value: Any) -> bytes:
    file = io.BytesIO()
    fastavro.schemaless_writer(file, fastavro.parse_schema(schema, _write_hint=False), value)
    return file.getvalue()


def outcome(kind: Any, data: bytes) -> Any:
    """The value of a field `a` of this type with these bytes, or the reason why the record is bad."""
    got, reasons = decode(definition(record(("a", kind))), data)
    return reasons[0].as_py() if reasons else got[0].as_py()["a"]


ENUM = {"type": "enum", "name": "E", "symbols": ["X", "Y"]}
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
LONGS = {"type": "array", "items": "long"}
TRUNCATED = "the bytes of the Avro record end too early"
LEFT_OVER = "bytes left over after the Avro record"


def logical(kind: str, name: str) -> dict[str, str]:
    return {"type": kind, "logicalType": name}


@pytest.mark.parametrize(
    ("kind", "data", "expected"),
    [
        ("long", b"\x02", 1),
        ("long", b"\xff" * 9 + b"\x01", -(2**63)),
        ("long", b"\xfe" + b"\xff" * 8 + b"\x01", 2**63 - 1),
        ("long", b"\xff" * 9 + b"\x02", "a: a number of more than 64 bits"),
        ("long", b"\xff" * 20 + b"\x01", "a: a number of more than 64 bits"),
        ("long", b"", TRUNCATED),
        ("long", b"\xff", TRUNCATED),
        ("long", b"\x02\x02", LEFT_OVER),
        ("int", b"\xff\xff\xff\xff\x0f", -(2**31)),
        ("int", b"\xff\xff\xff\xff\x1f", "a: a number of more than 32 bits"),
        ("float", b"\x00\x00\xc0\x3f", 1.5),
        ("double", b"\x00" * 6 + b"\xf8\x3f", 1.5),
        ("double", b"\x00" * 7, TRUNCATED),
        ("boolean", b"\x01", True),
        ("boolean", b"\x02", "a: a boolean other than 0 and 1"),
        ("boolean", b"", TRUNCATED),
        ("string", b"\x04\xc3\xa9", "é"),
        ("string", b"\x02\xff", "a: not UTF-8"),
        ("string", b"\x08abc", TRUNCATED),
        ("string", b"\x04abc", LEFT_OVER),
        ("string", b"\x01abc", TRUNCATED),
        ("bytes", b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01", TRUNCATED),
        ("bytes", b"\x04\x00\xff", b"\x00\xff"),
        ({"type": "fixed", "name": "F", "size": 3}, b"abc", b"abc"),
        ({"type": "fixed", "name": "F", "size": 3}, b"ab", TRUNCATED),
        (ENUM, b"\x02", "Y"),
        (ENUM, b"\x04", "a: no such symbol of the Avro enum"),
        (ENUM, b"\x01", "a: no such symbol of the Avro enum"),
        (["null", "long"], b"\x00", None),
        (["long", "null"], b"\x00\x02", 1),
        (["null", "int", "long"], b"\x04\x02", 1),
        (["null", "long"], b"\x04\x02", "a: no such branch of the Avro union"),
        (["null", "long"], b"\x01\x02", "a: no such branch of the Avro union"),
        (LONGS, b"\x04\x02\x04\x00", [1, 2]),
        (LONGS, b"\x03\x04\x02\x04\x02\x06\x00", [1, 2, 3]),
        (LONGS, b"\x00", []),
        (LONGS, b"\x04\x02\x04", TRUNCATED),
        (LONGS, b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01\x02", TRUNCATED),
        (LONGS, b"\x02" + b"\xff" * 9 + b"\x02\x00", "a[]: a number of more than 64 bits"),
        ({"type": "array", "items": "string"}, b"\x02\x01\x00", TRUNCATED),
        (
            {"type": "array", "items": record(("b", ENUM), ("c", "string"))},
            b"\x06\x00\x02x\x01\x02y\x00\x02z\x00",
            "a[].b: no such symbol of the Avro enum",
        ),
        ({"type": "map", "values": "long"}, b"\x06\x02x\x02\x02y\x04\x02x\x06\x00", [("y", 2), ("x", 3)]),
        (DECIMAL, b"\x02\x96", decimal.Decimal("-1.06")),
        (DECIMAL, b"\x00", decimal.Decimal("0.00")),
        (DECIMAL, b"\x06\x7f\xff\xff", "a: more digits than DECIMAL(4, 2) has"),
        (DECIMAL, b"\x40" + b"\x7f" * 32, "a: more digits than DECIMAL(4, 2) has"),
        ({**DECIMAL, "type": "fixed", "name": "F", "size": 2}, b"\x00\x69", decimal.Decimal("1.05")),
        (logical("int", "date"), b"\x02", datetime.date(1970, 1, 2)),
        (logical("int", "date"), b"\xff\xff\xff\xff\x0f", "a: not a time of the years 1 to 9999"),
        (logical("int", "time-millis"), b"\x02", 1),
        (logical("long", "timestamp-millis"), b"\x01", datetime.datetime(1969, 12, 31, 23, 59, 59, 999000, tzinfo=UTC)),
        (logical("long", "timestamp-micros"), b"\x02", datetime.datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC)),
        (logical("long", "timestamp-nanos"), b"\xa0\x1f", datetime.datetime(1970, 1, 1, 0, 0, 0, 2, tzinfo=UTC)),
        (logical("long", "local-timestamp-micros"), b"\x02", datetime.datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC)),
        (logical("long", "timestamp-millis"), b"\xff" * 9 + b"\x01", "a: not a time of the years 1 to 9999"),
        (logical("string", "uuid"), b"\x02u", "u"),
        (logical("bytes", "unknown"), b"\x02u", b"u"),
    ],
)
def test_bytes_of_a_type(kind: Any, data: bytes, expected: Any) -> None:
    assert outcome(kind, data) == expected


def test_a_bad_record_affects_no_other() -> None:
    defined = definition(record(("a", ["null", "string"]), ("b", LONGS)))
    good = b"\x02\x04ab\x02\x02\x00"
    bad = [b"", b"\x02", good[:-1], good + b"x", b"\x02\x04\xff\xff\x00", b"\x00\x02" + b"\xff" * 11, b"\xff" * 20]
    values = [each for one in bad for each in (good, one, None, b"\x00\x00")]
    got, reasons = decode(defined, *values)
    assert reasons is not None
    for row in range(0, len(values), 4):
        assert got[row].as_py() == {"a": "ab", "b": [1]} and got[row + 3].as_py() == {"a": None, "b": []}
        assert [got[row + 1].is_valid, got[row + 2].is_valid] == [False, False]
        assert [reasons[each].is_valid for each in range(row, row + 4)] == [False, True, False, False]
    array = pa.array([b"before", *values], pa.binary())[1:]
    assert decoder(defined).decode(array) == (got, reasons)


def test_framing_chooses_the_schema_of_each_record() -> None:
    old, new = record(("a", "long"), ("gone", "string")), record(("b", "double"), ("a", ["null", "long"]))
    fields = parse_ddl("a BIGINT, gone STRING, b DOUBLE")
    schemas = {1: json.dumps(old), 70_000: json.dumps(new)}
    defined = definition(new, fields, framing="confluent", schemas_by_id=schemas)
    one, two = encode(old, {"a": 1, "gone": "x"}), encode(new, {"b": 2.5, "a": 2})

    def framed(number: int, data: bytes, magic: bytes = b"\0") -> bytes:
        return magic + number.to_bytes(4, "big") + data

    values = [
        framed(70_000, two),
        None,
        framed(1, one),
        framed(2, one),
        framed(1, one, b"\1"),
        one,
        framed(1, b""),
        b"",
    ]
    got, reasons = decode(defined, *values)
    assert got.to_pylist() == [
        {"a": 2, "gone": None, "b": 2.5},
        None,
        {"a": 1, "gone": "x", "b": None},
        *[None] * 5,
    ]
    not_framed = "does not begin with Confluent's framing"
    assert reasons is not None and reasons.to_pylist() == [
        *[None] * 3,
        "unknown schema id 2",
        not_framed,
        not_framed,
        TRUNCATED,
        not_framed,
    ]


def test_framing_of_json() -> None:
    defined = ColumnsDefinition("json", "confluent", "", parse_ddl("a INT"))
    got, reasons = decode(defined, b'\0\0\0\0\7{"a":1}', b'{"a":1}', None, b"\0\0\0\0\7", b'\1\0\0\0\7{"a":1}')
    assert got.to_pylist() == [{"a": 1}, *[None] * 4]
    assert reasons is not None and reasons.to_pylist() == [
        None,
        "does not begin with Confluent's framing",
        None,
        "empty, which is not valid JSON",
        "does not begin with Confluent's framing",
    ]


def test_columns_may_be_fewer_or_more_than_the_schema_has() -> None:
    inner = record(("x", "long"), ("y", "string"))
    schema = record(("a", inner), ("skipped", LONGS), ("c", {"type": "array", "items": {**inner, "name": "Other"}}))
    value = encode(schema, {"a": {"x": 1, "y": "2"}, "skipped": [3], "c": [{"x": 4, "y": "5"}]})
    fields = parse_ddl("c ARRAY<STRUCT<y: STRING>>, d INT, a STRUCT<z: DATE, x: INT>")
    got, reasons = decode(definition(schema, fields), value)
    assert reasons is None and got.to_pylist() == [{"c": [{"y": "5"}], "d": None, "a": {"z": None, "x": 1}}]


def test_columns_of_a_schema_with_named_types() -> None:
    schema = """{"type": "record", "namespace": "shop", "name": "Order", "fields": [
        {"name": "first", "type": {"type": "record", "name": "Line", "fields": [{"name": "n", "type": "int"}]}},
        {"name": "lines", "type": {"type": "array", "items": "shop.Line"}},
        {"name": "kind", "type": {"type": "enum", "name": "x.Kind", "symbols": ["A"]}, "default": "A"},
        {"name": "other", "type": ["null", "x.Kind"]}, {"name": "last", "type": ["null", "Line"]}
    ]}"""
    assert to_ddl(avro_schema_fields(schema)) == (
        "first STRUCT<n: BIGINT>, lines ARRAY<STRUCT<n: BIGINT>>, kind STRING, other STRING, last STRUCT<n: BIGINT>"
    )


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("", "not an Avro schema"),
        ('"long"', "expected an Avro record, got long"),
        ('{"type": "record", "name": "R"}', "not an Avro schema: KeyError"),
        (record(("a", "other")), "field a: unknown Avro type 'other'"),
        (record(("a", "null")), "field a: always null"),
        (record(("a", ["long", "string"])), "field a: a union of BIGINT, STRING cannot be a column"),
        (record(("a", {"type": "array", "items": "null"})), "field a: an array of values without bytes"),
        (
            {"type": "record", "name": "R", "fields": [{"name": "a", "type": {"type": "array", "items": "R"}}]},
            r"field a\[\]: a type that contains itself, R,",
        ),
        (record(("a", "long"), ("A", "long")), "the name 'A' differs from 'a' in case only"),
        (record(), "a struct needs at least one field"),
        (record(("a", {"type": "array", "items": record()})), "field a: an array of values without bytes"),
    ],
)
def test_refused_schema(schema: Any, message: str) -> None:
    with pytest.raises(InvalidSchemaError, match=message):
        avro_schema_fields(schema if isinstance(schema, str) else json.dumps(schema))


def test_deep_schemas_are_refused() -> None:
    with pytest.raises(InvalidSchemaError):
        avro_schema_fields('{"type":"array","items":' * 100_000)
    nested: Any = "long"
    for _ in range(40):
        nested = {"type": "array", "items": nested}
    with pytest.raises(InvalidSchemaError, match="nested deeper than 32 levels"):
        avro_schema_fields(json.dumps(record(("a", nested))))


@pytest.mark.parametrize("kind", ["array", "map"])
def test_fields_without_bytes_in_items_without_a_column_are_not_skipped_one_by_one(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = {"type": "fixed", "name": f"F{next(UNIQUE)}", "size": 0}
    fields = [("f0", empty), *((f"f{number}", empty["name"]) for number in range(1, 9000)), ("last", "boolean")]
    items = {"type": kind, "items" if kind == "array" else "values": record(*fields)}
    item = b"\x01" if kind == "array" else b"\x00\x01"
    monkeypatch.delattr(scalars.Fixed, "skip")
    defined = definition(record(("a", "long"), ("b", items)), parse_ddl("a BIGINT"))
    got, reasons = decode(defined, b"\x02" + encode("long", 10_000) + item * 10_000 + b"\x00")
    assert got.to_pylist() == [{"a": 1}] and reasons is None


def test_a_large_array_and_a_large_text() -> None:
    schema = record(("a", {"type": "array", "items": ["null", "string"]}), ("b", "string"))
    value = {"a": ["x", None] * 100_000, "b": "y" * (1 << 20)}
    got, _ = decode(definition(schema), encode(schema, value), encode(schema, value))
    assert got[1].as_py() == value


LEAVES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    ("int", st.integers(-(2**31), 2**31 - 1)),
    ("long", st.integers(-(2**63), 2**63 - 1)),
    ("double", st.floats(allow_nan=False)),
    ("float", st.floats(allow_nan=False, width=32)),
    ("boolean", st.booleans()),
    ("string", st.text(max_size=5)),
    ("bytes", st.binary(max_size=200)),
    (logical("int", "date"), st.dates()),
    (logical("long", "timestamp-micros"), st.datetimes(timezones=st.just(UTC))),
    (DECIMAL, st.decimals(-99, 99, places=2)),
]


@st.composite
def types(draw: st.DrawFn, depth: int = 3) -> tuple[Any, st.SearchStrategy[Any]]:
    """An Avro type and its values, as fastavro writes them."""
    form = draw(st.sampled_from(["leaf", "null", "enum", "fixed", "array", "map", "record"] if depth else ["leaf"]))
    if form == "leaf":
        return draw(st.sampled_from(LEAVES))
    if form == "enum":
        return {**ENUM, "name": f"E{next(UNIQUE)}"}, st.sampled_from("XY")
    if form == "fixed":
        return {"type": "fixed", "name": f"F{next(UNIQUE)}", "size": 3}, st.binary(min_size=3, max_size=3)
    if form == "record":
        names = draw(st.lists(st.sampled_from("abcd"), min_size=1, max_size=3, unique=True))
        parts = {name: draw(types(depth - 1)) for name in names}
        schema = record(*((name, part[0]) for name, part in parts.items()))
        return schema, st.fixed_dictionaries({name: part[1] for name, part in parts.items()})
    kind, values = draw(types(depth - 1))
    if form == "null":
        already = isinstance(kind, list)
        return kind if already else draw(st.permutations(["null", kind])), st.none() | values
    if form == "array":
        return {"type": "array", "items": kind}, st.lists(values, max_size=3)
    return {"type": "map", "values": kind}, st.dictionaries(st.text(max_size=2), values, max_size=3)


@st.composite
def records(draw: st.DrawFn) -> tuple[Any, list[Any]]:
    parts = {name: draw(types()) for name in draw(st.lists(st.sampled_from("abcd"), min_size=1, unique=True))}
    schema = record(*((name, part[0]) for name, part in parts.items()))
    return schema, draw(st.lists(st.fixed_dictionaries({n: part[1] for n, part in parts.items()}), max_size=4))


@settings(max_examples=100)
@given(records())
def test_random_records_as_fastavro_writes_them(example: tuple[Any, list[Any]]) -> None:
    schema, values = example
    defined = definition(schema)
    got, reasons = decode(defined, *[encode(schema, value) for value in values])
    assert reasons is None
    assert got.to_pylist() == pa.array(values, defined.fields).to_pylist()


@settings(max_examples=100)
@given(records(), st.data())
def test_damaged_records_are_bad_or_what_fastavro_reads(example: tuple[Any, list[Any]], data: st.DataObject) -> None:
    schema, values = example
    defined = definition(schema)
    encoded = [bytearray(encode(schema, value)) for value in values]
    for one in encoded:
        if one:
            one[data.draw(st.integers(0, len(one) - 1))] = data.draw(st.integers(0, 255))
    damaged = [bytes(one) for one in encoded]
    got, reasons = decode(defined, *damaged)
    assert [row.is_valid for row in got] == [reasons is None or not reason.is_valid for reason in reasons or got]
    for row, one in zip(got, damaged, strict=True):
        if row.is_valid:
            file = io.BytesIO(one)
            read = fastavro.schemaless_reader(file, fastavro.parse_schema(schema, _write_hint=False), None)
            assert file.tell() == len(one)
            assert str(row.as_py()) == str(pa.array([read], defined.fields)[0].as_py())
        assert decode(defined, one).record[0].is_valid == row.is_valid
