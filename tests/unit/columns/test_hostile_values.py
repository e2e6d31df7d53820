"""Values that are made to harm the process that decodes them: each is a bad record, and the others stay good."""

import json

import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet

from spark_log.columns.decoded import ColumnsDefinition
from spark_log.columns.decoding import decoder, schema_fields
from spark_log.columns.protobuf.schema import protobuf_schema
from spark_log.errors import InvalidSchemaError

BYTES = 1 << 20


def reasons(format_, schema, *values):
    definition = ColumnsDefinition(format_, "none", schema, schema_fields(format_, schema))
    found = decoder(definition).decode(pa.array(values, pa.binary()))
    return [None] * len(values) if found.reasons is None else found.reasons.to_pylist()


@pytest.mark.parametrize(
    "number",
    [b"1e-999999999", b"1e999999999", b"1e" + b"9" * BYTES, b"9" * BYTES, b"0." + b"0" * BYTES + b"1",
     b"340282366920938463463374607431768211461", b"595310700986708910060260050042600200", b'"1e-99999"'],
)  # fmt: skip
def test_a_decimal_that_arrow_would_wrap_around_or_crash_on_is_bad(number):
    bad, good = reasons("json", "d DECIMAL(38,10)", b'{"d": ' + number + b"}", b'{"d": 1.5e3}')
    assert (bad, good) == ("d: not a number that DECIMAL(38, 10) holds exactly", None)


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


def test_many_empty_messages_of_many_fields_are_bad():
    file = FileDescriptorProto(name="m.proto", syntax="proto3")
    item, outer = file.message_type.add(name="I"), file.message_type.add(name="M")
    for number in range(1, 101):
        item.field.add(name=f"c{number}", number=number, type=FieldDescriptorProto.TYPE_INT64, label=1)
    outer.field.add(name="i", number=1, type=FieldDescriptorProto.TYPE_MESSAGE, type_name=".I", label=3)
    schema = protobuf_schema("M", FileDescriptorSet(file=[file]).SerializeToString())
    bad, good = reasons("protobuf", schema, b"\x0a\0" * (BYTES // 2), b"\x0a\0")
    assert (bad, good) == ("field i[]: more than 16777216 values in its messages", None)


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
