"""Values that are made to harm the process that decodes them: each is a bad record, and the others stay good."""

import json

import numpy as np
import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from spark_log.errors import InvalidSchemaError
from spark_log.log.columns.avro.cursor import Cursor
from spark_log.log.columns.avro.readers import Union
from spark_log.log.columns.avro.scalars import Number
from spark_log.log.columns.bad_rows import Bad
from spark_log.log.columns.decoded import ColumnsDefinition
from spark_log.log.columns.decoding import decoder, schema_fields
from spark_log.log.columns.field_paths import part_on_paths
from spark_log.log.columns.json.decoder import JsonDecoder
from spark_log.log.columns.json.field_by_field import FieldByField
from spark_log.log.columns.json.record_classes import RecordClasses
from spark_log.log.columns.protobuf.schema import protobuf_schema

BYTES = 1 << 20


def reasons(format_, schema, *values):
    definition = ColumnsDefinition(format_, "none", schema, schema_fields(format_, schema))
    found = decoder(definition).decode(pa.array(values, pa.binary()))
    return [None] * len(values) if found.reasons is None else found.reasons.to_pylist()


@pytest.mark.parametrize(
    "number",
    [b"1e-999999999", b"1e999999999", b"1e" + b"9" * BYTES, b"9" * BYTES, b"0." + b"0" * BYTES + b"1",
     b"340282366920938463463374607431768211461", b"595310700986708910060260050042600200", b'"1e-99999"',
     b'"1e' + b"0" * BYTES + b'x"'],
    ids=lambda number: number[:12].decode(),
)  # fmt: skip
def test_a_decimal_that_arrow_would_wrap_around_or_crash_on_is_bad(number):
    bad, good = reasons("json", "d DECIMAL(38,10)", b'{"d": ' + number + b"}", b'{"d": 1.5e3}')
    assert (bad, good) == ("d: not a number that DECIMAL(38, 10) holds exactly", None)


def fields_of(count):
    return pa.struct([(f"field{number}", pa.int64()) for number in range(count)])


@pytest.mark.parametrize("nested", [False, True], ids=["record", "array"])
def test_many_json_keys_are_not_compared_with_many_fields(nested):
    fields, several = fields_of(10_000), 20_000
    keys = {**{f"other{number}": 1 for number in range(several)}, "field9": 7, "field5": 8}
    decoder, parsed = JsonDecoder(pa.struct([("a", pa.list_(fields))]) if nested else fields), []
    parse = decoder._parse
    decoder._parse = lambda value: parsed.append(value) or parse(value)
    values = [json.dumps({"a": [each]} if nested else each).encode() for each in (keys, {"field1": 1, "other": 1})]
    found = decoder.decode(pa.array(values, pa.binary()))
    assert sum(value.count(b":") for value in parsed) * len(fields) <= 1 << 24
    assert found.reasons is None
    structs = [each["a"][0] for each in found.record.to_pylist()] if nested else found.record.to_pylist()
    known = [{name: value for name, value in struct.items() if value is not None} for struct in structs]
    assert known == [{"field5": 8, "field9": 7}, {"field1": 1}]


def test_many_json_fields_are_not_compared_with_each_other_when_their_record_is_decoded_again():
    """msgspec compares each keyword of a class with all its fields: 100,000 of them would take minutes."""
    classes = RecordClasses()
    record = FieldByField(fields_of(100_000), classes).record(
        json.dumps({f"field{number}": number for number in reversed(range(100_000))}).encode()
    )
    assert (record.f0, record.f99999) == (0, 99_999)


def test_many_bad_elements_of_one_value_are_searched_once():
    for kind, texts in (("TIMESTAMP", b'"2026-02-30","2026-02-20",'), ("DECIMAL(5,2)", b'"x","1",')):
        value = b'{"a": [' + (texts * 20_000)[:-1] + b"]}"
        bad, good = reasons("json", f"a ARRAY<{kind}>", value, b'{"a": []}')
        assert bad.startswith("a[]: not a") and good is None


def test_an_avro_fixed_of_a_negative_size_is_no_column():
    fixed = {"type": "fixed", "name": "F", "size": -1}
    fields = [{"name": "f", "type": {"type": "array", "items": fixed}}]
    with pytest.raises(InvalidSchemaError, match="a fixed of -1 bytes"):
        schema_fields("avro", json.dumps({"type": "record", "name": "R", "fields": fields}))


def protobuf_of(messages, label=1, oneof=None):
    """A schema of the last of these messages. The type of each field is a message, or an integer if it is None."""
    file = FileDescriptorProto(name="m.proto", syntax="proto3")
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        if oneof is not None and any(fields.values()):
            message.oneof_decl.add(name="one")
        for number, (field, kind) in enumerate(fields.items(), 1):
            if kind is None:
                message.field.add(name=field, number=number, type="TYPE_INT64", label=1)
            else:
                message.field.add(
                    name=field, number=number, type="TYPE_MESSAGE", type_name=f".{kind}", label=label, oneof_index=oneof
                )
    return protobuf_schema(name, FileDescriptorSet(file=[file]).SerializeToString())


WIDE_MESSAGES = {"I": dict.fromkeys(f"c{number}" for number in range(100)), "M": {"i1": "I", "i2": "I"}}


@pytest.mark.parametrize(
    ("schema", "messages"),
    [(protobuf_of(WIDE_MESSAGES, 3), b"\x0a\0"), (protobuf_of(WIDE_MESSAGES, oneof=0), b"\x0a\0\x12\0")],
    ids=["repeated", "oneof"],
)
def test_many_empty_messages_of_many_fields_are_bad_before_they_are_parsed(schema, messages):
    bad, good = reasons("protobuf", schema, messages * (BYTES // len(messages)), messages)
    assert (bad, good) == ("more than 16777216 fields in its messages, those that are missing included", None)


WIDE = 2_000
ITEM = f"STRUCT<{', '.join(f'f{number}: BIGINT' for number in range(WIDE))}>"


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (f"ARRAY<{ITEM}>", b"[" + b"null," * 20_000 + b"null]"),
        (f"MAP<STRING, {ITEM}>", json.dumps(dict.fromkeys(range(20_000))).encode()),
    ],
    ids=["array", "map"],
)
def test_many_nulls_in_place_of_wide_json_objects_are_bad(kind, value):
    bad, good, few = reasons("json", f"a {kind}", b'{"a": ' + value + b"}", b"{}", b'{"a": null}')
    assert (bad, good, few) == (
        "a: more than 16777216 values with those before them, missing ones included", None, None
    )  # fmt: skip


@pytest.mark.parametrize("container", ["array", "map"])
def test_many_nulls_in_place_of_wide_avro_records_are_bad(container):
    fields = [{"name": f"f{number}", "type": ["null", "long"]} for number in range(WIDE)]
    item = ["null", {"type": "record", "name": "I", "fields": fields}]
    several = {"type": container, "items" if container == "array" else "values": item}
    schema = json.dumps({"type": "record", "name": "R", "fields": [{"name": "a", "type": several}]})
    one = b"\0" if container == "array" else b"\0\0"
    bad, good = reasons("avro", schema, avro_long(20_000) + one * 20_000 + b"\0", avro_long(1) + one + b"\0")
    assert (bad, good) == ("a: more than 16777216 values with those before them, missing ones included", None)


def avro_long(number):
    zigzag, found = 2 * number, bytearray()
    while zigzag > 127:
        found.append(zigzag & 127 | 128)
        zigzag >>= 7
    return bytes([*found, zigzag])


def repeated(count, definition, **others):
    """A JSON Schema with so many fields that refer to one definition."""
    fields = {f"f{number}": {"$ref": "#/definitions/d"} for number in range(count)}
    return {"type": "object", "properties": fields, "definitions": {"d": definition, **others}}


NAME = "n" * 400_000


@pytest.mark.parametrize(
    "schema",
    [
        repeated(9_000, {"anyOf": [{"type": "null"}] * 40_000 + [{"type": "string"}]}),
        repeated(9_000, {"type": ["null"] * 80_000 + ["string"]}),
        repeated(2_000, {"$ref": f"#/definitions/{NAME}"}, **{NAME: {"type": "string"}}),
        repeated(5, {"$ref": "#/definitions/0"}, **{str(n): {"$ref": f"#/definitions/{n + 1}"} for n in range(10_000)}),
        repeated(1, {"allOf": [{"$ref": "#/definitions/all"}] * 4_000},
                 all={"type": "object", "properties": {f"f{number}": {"type": "string"} for number in range(9_000)}}),
    ],
    ids=["branches", "types", "name", "chain", "allOf"],
)  # fmt: skip
def test_references_do_not_multiply_the_work_on_a_json_schema(schema):
    with pytest.raises(InvalidSchemaError, match="more than 160000 types, references to references included"):
        schema_fields("json", json.dumps(schema))


def test_a_json_schema_of_many_fields_that_may_be_null_is_allowed():
    schema = repeated(9_999, {"anyOf": [{"type": "null"}, {"$ref": "#/definitions/text"}]}, text={"type": "string"})
    assert schema_fields("json", json.dumps(schema)).num_fields == 9_999


LEVELS = 30
"""Of types with two fields of the type below: 2**30 fields in a few kilobytes."""


def avro_of_doubled_types(use):
    """Records that each have the record below twice, the second time by name; `use` makes the type of a field."""
    kind = {"type": "record", "name": "R0", "fields": [{"name": "a", "type": "long"}]}
    for level in range(1, LEVELS):
        fields = [{"name": "a", "type": use(kind)}, {"name": "b", "type": use(f"R{level - 1}")}]
        kind = {"type": "record", "name": f"R{level}", "fields": fields}
    return json.dumps(kind)


@pytest.mark.parametrize(
    "use",
    [
        lambda kind: kind,
        lambda kind: {"type": "array", "items": kind},
        lambda kind: {"type": "map", "values": kind},
        lambda kind: ["null", kind, kind if isinstance(kind, str) else kind["name"]],
    ],
    ids=["record", "array", "map", "union"],
)
def test_types_of_types_do_not_multiply_the_work_on_an_avro_schema(use):
    with pytest.raises(InvalidSchemaError, match="more than 10000 fields"):
        schema_fields("avro", avro_of_doubled_types(use))


@pytest.mark.parametrize("label", [1, 3], ids=["optional", "repeated"])
def test_messages_of_messages_do_not_multiply_the_work_on_a_protobuf_schema(label):
    doubled = {f"R{level + 1}": {"f1": f"R{level}", "f2": f"R{level}"} for level in range(LEVELS - 1)}
    schema = protobuf_of({"R0": {"a": None}, **doubled}, label)
    with pytest.raises(InvalidSchemaError, match=r"more than 10000 fields|nested deeper than 32 levels"):
        schema_fields("protobuf", schema)


def test_an_avro_schema_that_uses_a_type_up_to_the_limit_is_allowed():
    point = {"type": "record", "name": "P", "fields": [{"name": name, "type": "long"} for name in "xyz"]}
    uses = [point, *["P"] * 2_499]  # each is a field and has three
    fields = [{"name": f"f{number}", "type": use} for number, use in enumerate(uses)]
    schema_fields("avro", json.dumps({"type": "record", "name": "R", "fields": fields}))
    with pytest.raises(InvalidSchemaError, match="more than 10000 fields"):
        schema_fields(
            "avro", json.dumps({"type": "record", "name": "R", "fields": [*fields, {"name": "g", "type": "long"}]})
        )


def avro_of_uses(kind, count):
    """A record of so many fields of one named type."""
    fields = [{"name": f"f{number}", "type": kind if number == 0 else kind["name"]} for number in range(count)]
    return json.dumps({"type": "record", "name": "R", "fields": fields})


def test_branches_of_unions_do_not_multiply_the_readers_of_an_avro_schema():
    branches = [{"type": "enum", "name": f"E{number}", "symbols": ["a"]} for number in range(1_000)]
    kind = {"type": "record", "name": "U", "fields": [{"name": "u", "type": branches}]}
    assert schema_fields("avro", avro_of_uses(kind, 100)).num_fields == 100
    with pytest.raises(InvalidSchemaError, match="more than 160000 types, those of references included"):
        schema_fields("avro", avro_of_uses(kind, 2_000))


def test_an_avro_schema_of_many_fields_that_may_be_null_is_allowed():
    fields = [{"name": f"f{number}", "type": ["null", "int", "long"]} for number in range(10_000)]
    assert schema_fields("avro", json.dumps({"type": "record", "name": "R", "fields": fields})).num_fields == 10_000


def test_fields_of_an_avro_enum_share_its_symbols():
    schema = avro_of_uses({"type": "enum", "name": "E", "symbols": [f"s{number}" for number in range(10_000)]}, 500)
    before = pa.total_allocated_bytes()
    assert reasons("avro", schema, b"\0" * 500) == [None]
    assert pa.total_allocated_bytes() - before < 1 << 20


def test_an_avro_union_visits_only_the_branches_that_occur():
    class Branches(list):
        def __iter__(self):
            raise AssertionError("all branches were visited")

    branches = Branches([Number(64, "", pa.int64(), "u")] * 100_000)
    records = pa.array([avro_long(branch) + avro_long(number) for number, branch in enumerate((7, 99_999, 7))])
    cursor = Cursor.of(records, np.arange(3), Bad())
    assert Union(branches, pa.int64(), "u").read(cursor).to_pylist() == [0, 1, 2]
    assert (cursor.pos == cursor.end).all()


@pytest.mark.timeout(60)  # minutes if the names of the values were collected for each field
def test_fields_of_a_protobuf_enum_share_the_names_of_its_values():
    file = FileDescriptorProto(name="m.proto", syntax="proto3")
    enum = file.enum_type.add(name="E")
    for number in range(30_000):
        enum.value.add(name=f"V{number}", number=number)
    message = file.message_type.add(name="M")
    for number in range(1, 9_001):
        message.field.add(name=f"f{number}", number=number, type="TYPE_ENUM", type_name=".E", label=1)
    schema = protobuf_schema("M", FileDescriptorSet(file=[file]).SerializeToString())
    assert reasons("protobuf", schema, b"\x08\x05") == [None]


LONG = "n" * 2_000
"""The paths of the fields below a field repeat its name: a longer one would take gigabytes."""


def avro_of_long_names(field="f", namespace="n"):
    inner = {"type": "record", "name": "M", "fields": [{"name": "a", "type": "long"}], "namespace": namespace}
    return json.dumps({"type": "record", "name": "R", "fields": [{"name": field, "type": inner}]})


@pytest.mark.parametrize(
    ("format_", "schema"),
    [
        ("json", f"{LONG} STRUCT<a: INT>"),
        ("json", "STRUCT<".join(f"{LONG[:400]} " for _ in range(4)) + "INT" + ">" * 3),
        ("json", f"a MAP<STRING, ARRAY<STRUCT<{LONG}: INT>>>"),
        ("json", json.dumps({"type": "object", "properties": {LONG: {"type": "string"}}})),
        ("avro", avro_of_long_names(field=LONG)),
        ("avro", avro_of_long_names(namespace=LONG)),
        ("protobuf", protobuf_of({"M": {"a": None}, "R": {LONG: "M"}})),
        ("protobuf", protobuf_of({LONG: {"a": None}, "R": {"f": LONG}})),
    ],
    ids=["DDL", "path", "map", "JSON Schema", "Avro", "Avro's namespace", "Protobuf", "Protobuf's message"],
)
def test_long_names_do_not_multiply_with_the_fields_below_them(format_, schema):
    with pytest.raises(InvalidSchemaError, match="has more than 1,000 characters") as caught:
        schema_fields(format_, schema)
    assert len(str(caught.value)) < 2_000


def test_a_path_of_a_thousand_characters_is_allowed():
    fields = schema_fields("json", f"{LONG[:998]} STRUCT<a: INT>")
    assert fields.field(0).type.num_fields == 1


def test_the_paths_of_chosen_columns_do_not_multiply_with_the_fields():
    fields = pa.struct([(f"f{number}", pa.int64()) for number in range(10_000)])
    assert part_on_paths(fields, [("f7",), ("f5",)] * 200_000).names == ["f5", "f7"]


@pytest.mark.parametrize("part", ["'\\", '"\\', "/*x", "``", "'", "`", "--\n", "'' ", "(", "a"])
def test_the_text_of_a_ddl_is_searched_once(part):
    with pytest.raises(InvalidSchemaError, match=r"expected .* at character \d+, got|cannot be a column") as caught:
        schema_fields("json", "a " + part * (BYTES // len(part) - 2))
    assert len(str(caught.value)) < 200


def test_a_ddl_has_a_limit_of_its_length():
    schema_fields("json", "a INT " + " " * (BYTES - 6))
    with pytest.raises(InvalidSchemaError, match="a DDL of more than 1,048,576 characters"):
        schema_fields("json", "a INT " + " " * (BYTES - 5))


def test_quotes_and_comments_of_a_ddl_hide_each_other():
    text = """a INT COMMENT 'it\\'s /* '"--`", -- c /* d '
        `e/*` INT /* f ' -- ` */, g INT COMMENT '*/'"""
    assert schema_fields("json", text).names == ["a", "e/*", "g"]


FIXED = {"type": "fixed", "name": "F", "size": 4, "logicalType": "decimal"}
BYTES_DECIMAL = {"type": "bytes", "logicalType": "decimal"}


@pytest.mark.parametrize("number", ["1e999", "-1e999", "NaN", '"x"', "[]", "null", "9" * 4_000])
@pytest.mark.parametrize(
    ("kind", "key", "column"),
    [(FIXED, "precision", pa.binary()), (BYTES_DECIMAL, "precision", pa.binary()),
     (BYTES_DECIMAL | {"precision": 4}, "scale", pa.binary()), (FIXED, "size", None)],
    ids=["fixed", "bytes", "scale", "size"],
)  # fmt: skip
def test_a_number_of_an_avro_schema_that_is_none(kind, key, column, number):
    schema = json.dumps({"type": "record", "name": "R", "fields": [{"name": "a", "type": kind | {key: "?"}}]})
    schema = schema.replace('"?"', number)
    if column is None:
        with pytest.raises(InvalidSchemaError):
            schema_fields("avro", schema)
    else:
        assert schema_fields("avro", schema).field("a").type == column, "the logical type is ignored"


def test_an_avro_decimal_without_a_precision_is_bytes():
    record = {"type": "record", "name": "R", "fields": [{"name": "a", "type": BYTES_DECIMAL}]}
    assert schema_fields("avro", json.dumps(record)).field("a").type == pa.binary()


@pytest.mark.parametrize("kind", ["DECIMAL({})", "DECIMAL(5, {})", "VARCHAR({})"])
def test_a_number_of_a_ddl_has_few_digits(kind):
    with pytest.raises(InvalidSchemaError, match=r"expected .* at character") as caught:
        schema_fields("json", "a " + kind.format("1" * 5_000))
    assert len(str(caught.value)) < 200
