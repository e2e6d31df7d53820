"""Events of Debezium become the columns of their rows: JSON with and without schemas, Avro."""

import io
import json

import fastavro
import pyarrow as pa
import pytest

from spark_log.config import PartConfigs
from spark_log.errors import InvalidConfigurationError, InvalidSchemaError
from spark_log.log.columns.decoding import decoder
from spark_log.log.columns.definitions import define
from spark_log.log.columns.topic_columns import TopicColumns, from_text, to_text

ROW = "id BIGINT, name STRING"
CONFIGS = PartConfigs("value", "json", ROW, "none", "all", "keep", "debezium", "source.lsn")
AVRO = {
    "type": "record",
    "name": "Envelope",
    "fields": [
        {
            "name": "before",
            "type": [
                "null",
                {
                    "type": "record",
                    "name": "Value",
                    "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": ["null", "string"]}],
                },
            ],
        },
        {"name": "after", "type": ["null", "Value"]},
        {
            "name": "source",
            "type": {
                "type": "record",
                "name": "Source",
                "fields": [{"name": "db", "type": "string"}, {"name": "lsn", "type": ["null", "long"]}],
            },
        },
        {"name": "op", "type": "string"},
        {"name": "ts_ms", "type": ["null", "long"]},
    ],
}


def event(op, before=None, after=None, lsn=None):
    return {"before": before, "after": after, "source": {"db": "shop", "lsn": lsn}, "op": op, "ts_ms": 1}


ONE, TWO = {"id": 1, "name": "a"}, {"id": 1, "name": "b"}
EVENTS = [
    event("r", after=ONE, lsn=1),
    event("c", after=ONE),
    event("u", ONE, TWO, 7),
    event("d", TWO, None, 8),
    event("d", None, None, 9),
]
RECORDS = [
    {**ONE, "__op": "r", "__sequence": 1},
    {**ONE, "__op": "c", "__sequence": None},
    {**TWO, "__op": "u", "__sequence": 7},
    {**TWO, "__op": "d", "__sequence": 8},
    {"id": None, "name": None, "__op": "d", "__sequence": 9},
]


def decoded(definition, values):
    record, reasons = decoder(definition).decode(pa.array(values, pa.binary()))
    return record.to_pylist(), None if reasons is None else reasons.to_pylist()


def test_json_events_become_rows():
    values = [json.dumps(each).encode() for each in EVENTS]
    assert decoded(define(CONFIGS, None), values) == (RECORDS, None)


def test_json_events_with_their_schemas_become_rows():
    """Some values may have a schema and others none."""
    wrapped = [json.dumps({"schema": {"type": "struct"}, "payload": each}).encode() for each in EVENTS]
    assert decoded(define(CONFIGS, None), wrapped) == (RECORDS, None)
    mixed = [json.dumps(EVENTS[0]).encode(), *wrapped[1:]]
    assert decoded(define(CONFIGS, None), mixed) == (RECORDS, None)


def test_avro_events_become_rows():
    values = []
    for each in EVENTS:
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, AVRO, each)
        values.append(stream.getvalue())
    definition = define(CONFIGS._replace(format="avro", schema=json.dumps(AVRO)), None)
    assert decoded(definition, values) == (RECORDS, None)


def test_bad_events_have_reasons():
    values = [
        None,  # a tombstone
        b"{}",
        b"not json",
        json.dumps(event("t")).encode(),
        json.dumps(event("m")).encode(),
        json.dumps(event("u", ONE)).encode(),
        json.dumps({"payload": {"op": "c", "after": {"id": "x"}}}).encode(),
        json.dumps(EVENTS[0]).encode(),
    ]
    records, reasons = decoded(define(CONFIGS, None), values)
    assert records == [None] * 7 + [RECORDS[0]]
    assert [reasons[0], reasons[1], *reasons[3:6], reasons[7]] == [
        None,
        "not a change event of Debezium: it has no op",
        "op: expected c, r, u or d: other events change no row",
        "op: expected c, r, u or d: other events change no row",
        "after: missing",
        None,
    ]
    assert reasons[2] and "payload.after.id" in reasons[6]


def test_the_sequence_may_be_elsewhere():
    definition = define(CONFIGS._replace(envelope_sequence="ts_ms"), None)
    assert [each["__sequence"] for each in decoded(definition, [json.dumps(EVENTS[0]).encode()])[0]] == [1]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1764000000000000000", 1764000000000000000),
        ('"12"', 12),
        ("-5", -5),
        ("9223372036854775808", None),
        ("1.5", None),
        ('"0/16B3748"', None),
        ("null", None),
        ("[1]", None),
    ],
)
def test_a_sequence_that_is_no_whole_number_of_64_bits_is_null(text, number):
    value = f'{{"op": "c", "after": {{"id": 1}}, "source": {{"lsn": {text}}}}}'.encode()
    [record], reasons = decoded(define(CONFIGS, None), [value])
    assert (record["__sequence"], reasons) == (number, None)


@pytest.mark.parametrize("path", ["", "after.id", "op", "payload.x", "source.", "before"])
def test_a_path_that_has_no_sequence_is_refused(path):
    with pytest.raises(InvalidConfigurationError, match=r"value\.envelope\.sequence"):
        define(CONFIGS._replace(envelope_sequence=path), None)


def test_a_row_gets_new_fields():
    before = define(CONFIGS, None)
    after = define(CONFIGS._replace(schema="id BIGINT, name STRING, price DOUBLE"), before)
    records, _ = decoded(after, [json.dumps(event("c", after={"id": 1, "price": 2.5})).encode()])
    assert records == [{"id": 1, "name": None, "__op": "c", "__sequence": None, "price": 2.5}]
    columns = TopicColumns(1, None, after)
    assert from_text(to_text(columns)) == columns


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"schema": "id BIGINT, __op STRING"}, InvalidSchemaError, "__op"),
        (
            {"format": "avro", "schema": '{"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]}'},
            InvalidSchemaError,
            "no record `after`",
        ),
    ],
)
def test_definitions_that_are_no_envelope_are_refused(changes, error, text):
    with pytest.raises(error, match=text):
        define(CONFIGS._replace(**changes), None)
