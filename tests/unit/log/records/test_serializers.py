"""Avro and Protobuf there and back; what does not fit is an error that says so."""

import subprocess
import sys

import fastavro
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.wrappers_pb2 import Int64Value, StringValue
from hypothesis import given
from hypothesis import strategies as st

from spark_log.errors import InvalidRecordError
from spark_log.log.records.serializers import AvroDeserializer, AvroSerializer, ProtobufDeserializer, ProtobufSerializer

FLIGHT = {
    "type": "record",
    "name": "Flight",
    "fields": [
        {"name": "tail", "type": "string"},
        {"name": "delay", "type": ["null", "int"], "default": None},
        {"name": "legs", "type": {"type": "array", "items": "string"}, "default": []},
    ],
}
INTS = st.none() | st.integers(-(2**31), 2**31 - 1)


@given(st.text(), INTS, st.lists(st.text(), max_size=4))
def test_avro_there_and_back(tail, delay, legs):
    flight = {"tail": tail, "delay": delay, "legs": legs}
    data = AvroSerializer(FLIGHT).serialize("t", [], flight)
    assert AvroDeserializer(FLIGHT).deserialize("t", [], data) == flight


def test_avro_is_the_bare_encoding_and_takes_json_text():
    text = '{"type": "record", "name": "R", "fields": [{"name": "n", "type": "long"}]}'
    assert AvroSerializer(text).serialize("t", [], {"n": 1}) == b"\x02"
    assert AvroSerializer("string").serialize("t", [], "ab") == b"\x04ab"


def test_avro_reader_of_a_newer_schema():
    newer = {**FLIGHT, "fields": [*FLIGHT["fields"], {"name": "gate", "type": "string", "default": "?"}]}
    data = AvroSerializer(FLIGHT).serialize("t", [], {"tail": "N1"})
    assert AvroDeserializer(FLIGHT, newer).deserialize("t", [], data) == {
        "tail": "N1", "delay": None, "legs": [], "gate": "?",
    }  # fmt: skip


@pytest.mark.parametrize(
    "bad", [{"tail": 1}, {}, "text", 7, {"tail": "x", "delay": "late"}, {"tail": "x", "delay": 2**40}]
)
def test_what_does_not_fit_an_avro_schema(bad):
    with pytest.raises(InvalidRecordError, match=r"topic 't': .* does not fit the schema"):
        AvroSerializer(FLIGHT).serialize("t", [], bad)


@pytest.mark.parametrize("bad", [b"", b"\x04a", b"\x02a\x00\x00left", b"\x02a\x09"])
def test_bytes_that_do_not_fit_an_avro_schema(bad):
    with pytest.raises(InvalidRecordError, match="topic 't'"):
        AvroDeserializer(FLIGHT).deserialize("t", [], bad)


def test_a_schema_that_is_none():
    with pytest.raises(fastavro.schema.UnknownType):
        AvroSerializer({"type": "no such type"})


def flight_class():
    file = descriptor_pb2.FileDescriptorProto(name="flight.proto", package="test")
    message = file.message_type.add(name="Flight")
    for number, (name, kind) in enumerate((("tail", 9), ("delay", 5)), 1):
        message.field.add(name=name, number=number, type=kind, label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("test.Flight"))


@given(st.text(), st.integers(-(2**31), 2**31 - 1))
def test_protobuf_there_and_back(tail, delay):
    flight = FLIGHT_CLASS(tail=tail, delay=delay)
    data = ProtobufSerializer(FLIGHT_CLASS).serialize("t", [], flight)
    assert ProtobufDeserializer(FLIGHT_CLASS).deserialize("t", [], data) == flight


FLIGHT_CLASS = flight_class()


def test_protobuf_refuses_other_things():
    with pytest.raises(InvalidRecordError, match="topic 't': expected a StringValue, got Int64Value"):
        ProtobufSerializer(StringValue).serialize("t", [], Int64Value(value=1))
    with pytest.raises(InvalidRecordError, match="topic 't': not a StringValue"):
        ProtobufDeserializer(StringValue).deserialize("t", [], b"\xff\xff")
    for bad in (str, None, StringValue()):
        with pytest.raises(TypeError, match="expected a generated Protobuf class"):
            ProtobufSerializer(bad)


def test_none_is_a_tombstone():
    for serializer in (AvroSerializer(FLIGHT), ProtobufSerializer(StringValue)):
        assert serializer.serialize("t", [], None) is None
    for deserializer in (AvroDeserializer(FLIGHT), ProtobufDeserializer(StringValue)):
        assert deserializer.deserialize("t", [], None) is None


@pytest.mark.parametrize(
    ("missing", "extra", "make"),
    [("fastavro", "avro", 'AvroSerializer("string")'), ("google", "protobuf", "ProtobufSerializer(int)")],
)
def test_a_missing_library_names_its_extra(missing, extra, make):
    program = (
        f"import sys; sys.modules[{missing!r}] = None\n"
        f"from spark_log.log.records.serializers import *\ntry:\n    {make}\nexcept ImportError as e:\n    print(e)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert f"pip install '.[{extra}]'" in done.stdout
