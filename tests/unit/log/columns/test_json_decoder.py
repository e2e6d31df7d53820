"""JSON to columns: the rules for each type, bad input, and random records against the json module."""

import base64
import datetime
import decimal
import json
import pickle
import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark_log.errors import InvalidConfigurationError, InvalidSchemaError
from spark_log.log.columns.decoded import ColumnsDefinition, Decoded
from spark_log.log.columns.decoding import decoder, schema_fields
from spark_log.log.columns.protobuf.schema import protobuf_schema
from spark_log.log.columns.types import parse_ddl
from tests.support.schemas import FLIGHT_DESCRIPTOR_SET

from .strategies import SCHEMAS

UTC = datetime.UTC


def definition(fields: pa.StructType) -> ColumnsDefinition:
    return ColumnsDefinition(format="json", framing="none", schema="", fields=fields)


def decode(fields: pa.StructType, *values: bytes | None) -> Decoded:
    decoded = decoder(definition(fields)).decode(pa.array(values, pa.binary()))
    decoded.record.validate(full=True)
    assert decoded.record.type == fields and len(decoded.record) == len(values)
    return decoded


def outcome(kind: str, text: str) -> Any:
    """The value of a column of this type in {"a": text}, or the reason why the record is bad."""
    record, reasons = decode(parse_ddl(f"a {kind}"), f'{{"a":{text}}}'.encode())
    return reasons[0].as_py() if reasons else record[0].as_py()["a"]


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("BIGINT", "9223372036854775807", 2**63 - 1),
        ("BIGINT", "-9223372036854775808", -(2**63)),
        ("BIGINT", "9223372036854775808", "a: not a whole number of 64 bits"),
        ("BIGINT", "1" * 5000, "a: not a whole number of 64 bits"),
        ("BIGINT", "1.0", "a: not a whole number of 64 bits"),
        ("BIGINT", "1e3", "a: not a whole number of 64 bits"),
        ("BIGINT", '"1"', "a: expected BIGINT, got a string"),
        ("BIGINT", "true", "a: expected BIGINT, got a boolean"),
        ("DOUBLE", "1", 1.0),
        ("DOUBLE", "9007199254740993", 9007199254740992.0),
        ("DOUBLE", "1e-400", 0.0),
        ("DOUBLE", "1e400", "a: a number out of range"),
        ("DOUBLE", "NaN", "not valid JSON: invalid character (byte 5)"),
        ("DOUBLE", "-Infinity", "not valid JSON: invalid character (byte 6)"),
        ("DOUBLE", '"NaN"', "a: expected DOUBLE, got a string"),
        ("BOOLEAN", "false", False),
        ("BOOLEAN", "0", "a: expected BOOLEAN, got a number"),
        ("STRING", '"\\u00e9\\ud83d\\ude00\\u0000"', "é😀\0"),
        ("STRING", "1.50", "1.50"),
        ("STRING", "true", "true"),
        ("STRING", '{"b" : [1, null]} ', '{"b" : [1, null]}'),
        ("STRING", '"\\ud800"', "not valid JSON: Input data was truncated"),
        ("STRING", '"\\ud800\\u0041"', "not valid JSON: invalid utf-16 surrogate pair (byte 18)"),
        ("STRING", '"a\nb"', "not valid JSON: invalid character (byte 7)"),
        ("BINARY", '"YWI="', b"ab"),
        ("BINARY", '"YWI"', "a: a string that is not base64"),
        ("BINARY", '"Y-_="', "a: a string that is not base64"),
        ("DECIMAL(5, 2)", "123.450", decimal.Decimal("123.45")),
        ("DECIMAL(5, 2)", '"-0.5"', decimal.Decimal("-0.50")),
        ("DECIMAL(5, 2)", "1e2", decimal.Decimal("100.00")),
        ("DECIMAL(5, 2)", '"\\u0031"', decimal.Decimal("1.00")),
        ("DECIMAL(38, 0)", "9" * 38, decimal.Decimal("9" * 38)),
        ("DECIMAL(5, 2)", "1.005", "a: not a number that DECIMAL(5, 2) holds exactly"),
        ("DECIMAL(5, 2)", "1000", "a: not a number that DECIMAL(5, 2) holds exactly"),
        ("DECIMAL(5, 2)", "1e99999999", "a: not a number that DECIMAL(5, 2) holds exactly"),
        ("DECIMAL(5, 2)", '"NaN"', "a: not a number that DECIMAL(5, 2) holds exactly"),
        ("DECIMAL(5, 2)", '""', "a: not a number that DECIMAL(5, 2) holds exactly"),
        ("DECIMAL(5, 2)", "[1]", "a: not a number that DECIMAL(5, 2) holds exactly"),
        ("TIMESTAMP", '"2026-11-22T10:00:00Z"', datetime.datetime(2026, 11, 22, 10, tzinfo=UTC)),
        ("TIMESTAMP", '"2026-11-22 10:00:00.5+01:30"', datetime.datetime(2026, 11, 22, 8, 30, 0, 500000, tzinfo=UTC)),
        ("TIMESTAMP", '"2026-11-22T10:00"', datetime.datetime(2026, 11, 22, 10, tzinfo=UTC)),
        ("TIMESTAMP", '"2026-11-22"', datetime.datetime(2026, 11, 22, tzinfo=UTC)),
        ("TIMESTAMP", '"2026-11-22T10:00:00.9999999Z"', datetime.datetime(2026, 11, 22, 10, 0, 0, 999999, tzinfo=UTC)),
        ("TIMESTAMP", '"0001-01-01T00:00:00Z"', datetime.datetime(1, 1, 1, tzinfo=UTC)),
        ("TIMESTAMP", '"0001-01-01T00:00:00+01:00"', "a: not an ISO 8601 time of the years 1 to 9999"),
        ("TIMESTAMP", '"2026-02-30T10:00:00Z"', "a: not an ISO 8601 time of the years 1 to 9999"),
        ("TIMESTAMP", '"2026-11-22T24:00:00Z"', "a: not an ISO 8601 time of the years 1 to 9999"),
        ("TIMESTAMP", '"now"', "a: not an ISO 8601 time of the years 1 to 9999"),
        ("TIMESTAMP", "1763805600", "a: expected TIMESTAMP, got a number"),
        ("DATE", '"2024-02-29"', datetime.date(2024, 2, 29)),
        ("DATE", '"2026-11-22Z"', datetime.date(2026, 11, 22)),
        ("DATE", '"2026-02-29Z"', "a: not a date of the years 1 to 9999 such as 2026-11-22"),
        ("DATE", '"2026-02-29"', "a: not a date of the years 1 to 9999 such as 2026-11-22"),
        ("DATE", '"0000-01-01"', "a: not a date of the years 1 to 9999 such as 2026-11-22"),
        ("DATE", '"2026-11-22T10:00:00Z"', "a: not a date of the years 1 to 9999 such as 2026-11-22"),
        ("DATE", "20000", "a: expected DATE, got a number"),
        ("STRUCT<b: INT>", "{}", {"b": None}),
        ("STRUCT<b: INT>", "[]", "a: expected STRUCT, got an array"),
        ("STRUCT<b: STRUCT<c: INT>>", '{"b":{"c":"x"}}', "a.b.c: expected BIGINT, got a string"),
        ("ARRAY<INT>", "[1,null]", [1, None]),
        ("ARRAY<INT>", "{}", "a: expected ARRAY, got an object"),
        ("ARRAY<STRUCT<b: DATE>>", '[null,{"b":"x"}]', "a[].b: not a date of the years 1 to 9999 such as 2026-11-22"),
        ("MAP<STRING, INT>", '{"x":1,"y":null,"x":2}', [("x", 2), ("y", None)]),
        ("MAP<STRING, INT>", '{"secret":"x"}', "a{}: expected BIGINT, got a string"),
    ],
)
def test_value_of_a_type(kind: str, text: str, expected: Any) -> None:
    assert outcome(kind, text) == expected
    if not str(expected).startswith("not valid JSON"):
        assert outcome(f"ARRAY<{kind}>", f"[{text}]") == (
            expected.replace("a", "a[]", 1) if isinstance(expected, str) and expected.startswith("a") else [expected]
        )
    if kind not in ("DECIMAL(5, 2)", "DECIMAL(38, 0)"):
        assert outcome(kind, "null") is None


BAD = {
    "an empty value": (b"", "empty, which is not valid JSON"),
    "spaces": (b" \n", "empty, which is not valid JSON"),
    "a byte order mark": (b"\xef\xbb\xbf{}", "not valid JSON: a byte order mark (byte 0)"),
    "truncated": (b'{"a":1', "not valid JSON: Input data was truncated"),
    "trailing bytes": (b"{} x", "not valid JSON: trailing characters"),
    "two objects": (b"{}{}", "not valid JSON: trailing characters"),
    "the end of an object and another field": (b'{"a":1},"w":1', "not valid JSON: trailing characters"),
    "a trailing comma": (b'{"a":1,}', "not valid JSON: trailing comma in object (byte 7)"),
    "single quotes": (b"{'a':1}", "not valid JSON: object keys must be strings (byte 1)"),
    "a comment": (b"{/* */}", "not valid JSON: object keys must be strings (byte 1)"),
    "a leading zero": (b'{"z":01}', "not valid JSON: invalid number (byte 6)"),
    "invalid UTF-8 in an unknown field": (b'{"z":"\xff"}', "not UTF-8 (byte 6)"),
    "UTF-16": ('{"a":1}'.encode("utf-16"), "not UTF-8 (byte 0)"),
    "a lone surrogate in an unknown field": (b'{"z":"\\ud800 "}', "not valid JSON"),
    "an array": (b"[1]", "not a JSON object, but an array"),
    "a string": (b' "a"', "not a JSON object, but a string"),
    "a number": (b"5", "not a JSON object, but a number"),
    "null": (b"null", "not a JSON object, but null"),
    "100,000 brackets": (b"[" * 100_000, "not valid JSON: nested deeper than 200 levels"),
    "100,000 levels": (
        b'{"z":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        "not valid JSON: nested deeper than 200 levels",
    ),
    "100,000 objects": (b'{"z":' * 100_000 + b"1" + b"}" * 100_000, "not valid JSON: nested deeper than 200 levels"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_record_has_a_reason_and_affects_no_other(kind: str) -> None:
    value, reason = BAD[kind]
    good = [b'{"a":1}', None, b'{"a":2}']
    record, reasons = decode(parse_ddl("a INT"), good[0], value, *good[1:], value)
    assert record.to_pylist() == [{"a": 1}, None, None, {"a": 2}, None]
    assert reasons is not None and [reasons[row].as_py() for row in (0, 2, 3)] == [None] * 3
    assert reasons[1].as_py().startswith(reason) and len(reasons[1].as_py()) <= 200
    assert reasons[4] == reasons[1]


def test_records_that_are_not_bad() -> None:
    text = "x" * (1 << 20)
    fields = ",".join(f'"f{number}":{number}' for number in range(10_000))
    deep = "[" * 199 + "]" * 199
    brackets = "[{" * 1000
    values = [
        b' \n{ "a" : 1 }\t',
        f'{{"a":2,"s":"{text}"}}'.encode(),
        f'{{"a":3,{fields}}}'.encode(),
        f'{{"a":4,"z":{deep},"s":{deep}}}'.encode(),
        f'{{"a":5,"s":"\\\\\\"{brackets}"}}'.encode(),
        f'{{"a":6,"z":[{",".join(["{}"] * 1000)}]}}'.encode(),
        b'{"a":"x","a":7}',
        b'{"\\u0061":8}',
        b'{"A":9}',
        b'{"z":1e999}',
    ]
    record, reasons = decode(parse_ddl("a INT, s STRING"), *values)
    assert reasons is None
    assert [row["a"] for row in record.to_pylist()] == [1, 2, 3, 4, 5, 6, 7, 8, None, None]
    assert [row["s"] for row in record.to_pylist()][1:5] == [text, None, deep, f'\\"{brackets}']


def test_nesting_is_limited_at_200_levels_wherever_the_decoder_is_called() -> None:
    def value(levels: int) -> bytes:
        return b'{"z":' + b"[" * (levels - 1) + b"]" * (levels - 1) + b"}"

    def called_within(frames: int) -> Decoded:
        return called_within(frames - 1) if frames else decode(parse_ddl("a INT"), value(200), value(201))

    assert called_within(300) == called_within(0)
    assert [reason is None for reason in called_within(0).reasons.to_pylist()] == [True, False]  # type: ignore[union-attr]


def test_a_short_text_that_stands_for_too_many_values_is_bad() -> None:
    wide = ", ".join(f"f{number}: INT" for number in range(5000))
    fields = parse_ddl(f"a ARRAY<STRUCT<s: STRUCT<{wide}>>>, b STRING")
    objects = b"{}" + b",{}" * 3500
    values = [b'{"a":[%b]}' % objects, b'{"b":"%b","a":[{}]}' % objects, b'{"b":"[","z":[%b]}' % objects]
    record, reasons = decode(fields, *values)
    assert reasons is not None
    assert reasons.to_pylist() == [
        "more than 16777216 fields in its objects, those that are missing included",
        None,
        "more than 16777216 fields in its objects, those that are missing included",
    ]
    assert record[1].as_py()["b"] == objects.decode()


def test_a_schema_of_10000_fields_decodes_in_any_order() -> None:
    fields = parse_ddl(", ".join(f"f{number} INT" for number in range(10_000)))
    record = {f"f{number}": number for number in range(10_000)}
    forward, backward = json.dumps(record), json.dumps(dict(reversed(record.items())))
    decoded = decode(fields, forward.encode(), backward.encode())
    assert decoded.record.to_pylist() == [record, record]


def test_many_values_are_decoded_in_parts() -> None:
    numbers = list(range(10_000))
    values: list[bytes | None] = [b'{"a":%d}' % number for number in numbers]
    values[5000], values[6000], values[7000] = None, b"x", b'{"a":"7000"}'
    array = pa.array([b"before", *values], pa.binary())[1:]
    record, reasons = decoder(definition(parse_ddl("a INT"))).decode(array)
    assert record.field("a").to_pylist() == [n if n not in (5000, 6000, 7000) else None for n in numbers]
    assert [row for row in numbers if not record[row].is_valid] == [5000, 6000, 7000]
    assert [row for row in numbers if reasons[row].is_valid] == [6000, 7000]  # type: ignore[index]
    large = [b'{"a":%d,"z":"%s"}' % (number, b"z" * 3_000_000) for number in range(10)]
    assert decode(parse_ddl("a INT"), *large).record.field("a").to_pylist() == list(range(10))


def test_no_values() -> None:
    assert decode(parse_ddl("a INT")) == (pa.array([], parse_ddl("a INT")), None)
    assert decode(parse_ddl("a INT"), None, None).record.null_count == 2


def test_a_reason_is_cut_off() -> None:
    names = [letter * 70 for letter in "abcd"]
    ddl = f"{names[0]} STRUCT<{names[1]}: STRUCT<{names[2]}: STRUCT<{names[3]}: INT>>>"
    value = json.dumps({names[0]: {names[1]: {names[2]: {names[3]: "secret"}}}}).encode()
    _, reasons = decode(parse_ddl(ddl), value)
    assert len(reasons[0].as_py()) == 200 and "secret" not in reasons[0].as_py()  # type: ignore[index]


def test_a_definition_is_pickled_and_its_decoder_kept() -> None:
    one = definition(parse_ddl("a INT"))
    assert pickle.loads(pickle.dumps(one)) == one
    assert decoder(pickle.loads(pickle.dumps(one))) is decoder(one)
    for use in (lambda: decoder(ColumnsDefinition("xml", "none", "", one.fields)), lambda: schema_fields("xml", "")):
        with pytest.raises(InvalidSchemaError, match="format 'xml'"):
            use()


def test_columns_of_a_schema_of_each_format() -> None:
    assert schema_fields("json", "a INT") == parse_ddl("a INT")
    avro = '{"type":"record","name":"R","fields":[{"name":"a","type":"int"}]}'
    assert schema_fields("avro", avro) == parse_ddl("a INT")
    protobuf = protobuf_schema("Flight", FLIGHT_DESCRIPTOR_SET)
    assert schema_fields("protobuf", protobuf) == parse_ddl("carrier STRING, delay INT")


def test_the_interface_imports_no_parser() -> None:
    code = "import sys, spark_log.log.columns.decoding, spark_log.log.columns.evolution; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"msgspec", "fastavro", "google.protobuf", "pyspark", "sqlalchemy"} & set(modules)


def test_without_the_package_of_protobuf_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("spark_log.log.columns.protobuf.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "google.protobuf.descriptor", None)
    fields, text = parse_ddl("carrier STRING, missing INT"), protobuf_schema("Flight", FLIGHT_DESCRIPTOR_SET)
    for use in (
        lambda: decoder(ColumnsDefinition("protobuf", "none", text, fields)),
        lambda: schema_fields("protobuf", text),
    ):
        with pytest.raises(InvalidConfigurationError, match=r"pip install '\.\[protobuf\]'"):
            use()


def _values(kind: pa.DataType) -> st.SearchStrategy[tuple[Any, Any]]:
    """A value for json.dumps, and the value of the column."""
    if pa.types.is_struct(kind):
        parts = {field.name: _values(field.type) for field in kind}
        some = st.fixed_dictionaries({}, optional=parts)
        value = some.map(
            lambda got: ({n: v[0] for n, v in got.items()}, {n: got[n][1] if n in got else None for n in parts})
        )
    elif pa.types.is_list(kind):
        several = st.lists(_values(kind.value_type), max_size=3)
        value = several.map(lambda got: ([pair[0] for pair in got], [pair[1] for pair in got]))
    elif pa.types.is_map(kind):
        entries = st.dictionaries(st.text(max_size=3), _values(kind.item_type), max_size=3)
        value = entries.map(lambda got: ({k: v[0] for k, v in got.items()}, [(k, v[1]) for k, v in got.items()]))
    elif pa.types.is_decimal(kind):
        number = st.decimals(
            min_value=-(10 ** (kind.precision - kind.scale)) + 1,
            max_value=10 ** (kind.precision - kind.scale) - 1,
            places=kind.scale,
        )
        value = number.map(lambda got: (str(got), got))
    else:
        value = _LEAF_VALUES[kind]
    return st.one_of(value, st.just((None, None)))


_LEAF_VALUES: dict[pa.DataType, st.SearchStrategy[tuple[Any, Any]]] = {
    pa.int64(): st.integers(-(2**63), 2**63 - 1).map(lambda n: (n, n)),
    pa.float64(): st.floats(allow_nan=False, allow_infinity=False).map(lambda n: (n, n)),
    pa.bool_(): st.booleans().map(lambda b: (b, b)),
    pa.string(): st.text(max_size=5).map(lambda s: (s, s)),
    pa.binary(): st.binary(max_size=5).map(lambda b: (base64.b64encode(b).decode(), b)),
    pa.date32(): st.dates().map(lambda d: (d.isoformat(), d)),
    pa.timestamp("us", "UTC"): st.datetimes(timezones=st.just(UTC)).map(lambda t: (t.isoformat(), t)),
}


@st.composite
def schemas_with_records(draw: st.DrawFn) -> tuple[pa.StructType, list[tuple[Any, Any]]]:
    fields = draw(SCHEMAS)
    return fields, draw(st.lists(_values(fields), max_size=4))


@settings(max_examples=50)
@given(schemas_with_records(), st.booleans())
def test_random_records_as_the_json_module_writes_them(
    example: tuple[pa.StructType, list[tuple[Any, Any]]], ascii: bool
) -> None:
    fields, records = example
    values = [None if raw is None else json.dumps(raw, ensure_ascii=ascii).encode() for raw, _ in records]
    record, reasons = decode(fields, *values)
    assert reasons is None
    assert record.to_pylist() == pa.array([expected for _, expected in records], fields).to_pylist()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda parts: st.lists(parts, max_size=3) | st.dictionaries(st.sampled_from("abcd"), parts, max_size=3),
    max_leaves=10,
)
ANY = parse_ddl("a BIGINT, b STRUCT<a: DOUBLE, b: ARRAY<BOOLEAN>, c: STRING>, c MAP<STRING, BIGINT>, d ARRAY<BIGINT>")


def _fits(value: Any, kind: pa.DataType) -> bool:
    """The rule in terms of what the json module reads."""
    if value is None:
        return True
    if pa.types.is_struct(kind):
        return isinstance(value, dict) and all(_fits(value.get(each.name), each.type) for each in kind)
    if pa.types.is_list(kind):
        return isinstance(value, list) and all(_fits(each, kind.value_type) for each in value)
    if pa.types.is_map(kind):
        return isinstance(value, dict) and all(_fits(each, kind.item_type) for each in value.values())
    if kind == pa.int64():
        return type(value) is int and -(2**63) <= value < 2**63
    if kind == pa.float64():
        return type(value) in (int, float)
    return kind == pa.string() or type(value) is bool


def _strict_json(text: str) -> Any:
    def refused(constant: str) -> None:
        raise ValueError(constant)

    return json.loads(text, parse_constant=refused)


def _is_good(value: bytes) -> bool:
    try:
        read = _strict_json(value.decode())
    except (ValueError, RecursionError):
        return False
    return isinstance(read, dict) and _fits(read, ANY)


@given(st.lists(JSON.map(lambda value: json.dumps(value).encode()) | st.binary(max_size=20), max_size=4))
@example([b'{"a":1}', b'{"a":1.0}', b'{"b":{"c":[1]}}', b"{}{}", b'{"a":1},"w":1'])
def test_exactly_those_records_are_good_that_the_json_module_reads_and_that_fit(values: list[bytes]) -> None:
    record, reasons = decode(ANY, *values)
    good = [_is_good(value) for value in values]
    assert [row.is_valid for row in record] == good
    assert [reasons is None or not reason.is_valid for reason in (reasons or record)] == good or reasons is None
    for row, value in zip(record.to_pylist(), values, strict=True):
        if row is not None:
            assert row["a"] == json.loads(value).get("a")
            alone = decode(ANY, value).record.to_pylist()[0]
            assert str(alone) == str(row), "a record does not depend on the others"


@given(st.binary(max_size=30).map(lambda junk: b'{"a":' + junk + b"}"))
def test_random_bytes_never_raise(value: bytes) -> None:
    record, reasons = decode(ANY, value)
    assert record[0].is_valid == (reasons is None)
