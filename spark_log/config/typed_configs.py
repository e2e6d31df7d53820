"""Defines the configs of typed columns. Each exists once for the keys and once for the values of a topic."""

from typing import Any, NamedTuple

from spark_log.config.definition import config
from spark_log.config.values import Choice, Text

SOURCES = ("key", "value")
"""The parts of a record that may have typed columns. They are also the prefixes of their configs."""


class PartConfigs(NamedTuple):
    """The configs of the keys, or of the values, of a topic. `source` is key or value."""

    source: str
    format: str
    schema: str
    framing: str
    columns: str
    bad_records: str
    envelope: str = "none"
    envelope_sequence: str = ""


_COLUMNS = {"key": ("key_record", "key_record_error"), "value": ("record", "record_error")}


def part_format(source: str) -> Any:
    record, error = _COLUMNS[source]
    return config(
        f"{source}.format",
        "bytes",
        Choice(("bytes", "json", "avro", "protobuf")),
        f"Not in Kafka. How {source}s are encoded. With json, avro or protobuf, segment files and the Delta table also"
        f" have the columns {record} and {error}: the fields of {source}.schema, decoded when a file is written. The"
        f" bytes in {source} stay as they are.",
    )


def part_schema(source: str) -> Any:
    return config(
        f"{source}.schema",
        "",
        Text(f"a schema in the language of {source}.format"),
        f"Not in Kafka. The fields of the {source}s: Spark DDL (`item STRING, price DOUBLE`) or a JSON Schema for json,"
        " a schema in JSON for avro, `@FILE#MESSAGE` of a descriptor set for protobuf (the command line stores the"
        " message's name and the descriptor). A change may add fields and leave fields out; the column of a field that"
        " is left out stays. Another type for a field is refused (`spark-log schema set --reset` gives it another"
        " column). `registry:SUBJECT` takes the latest version of a subject of the"
        " schema registry, and follows it; `registry:SUBJECT@N` takes version N. For Protobuf, `#my.package.Message`"
        " after it chooses another message than the first one of the file.",
    )


def part_framing(source: str) -> Any:
    return config(
        f"{source}.framing",
        "none",
        Choice(("none", "confluent")),
        f"Not in Kafka. confluent: a zero byte and the id of the schema (four bytes) precede each {source}, as"
        f" Confluent's serializers write it. Avro and Protobuf {source}s then need {source}.schema=registry:SUBJECT.",
    )


def part_columns(source: str) -> Any:
    return config(
        f"{source}.columns",
        "all",
        Text("all, or names of fields separated by commas"),
        f"Not in Kafka. The fields of {source}.schema that become columns: all, or some (`item,lines.price`).",
    )


def part_bad_records(source: str) -> Any:
    record, error = _COLUMNS[source]
    return config(
        f"{source}.bad.records",
        "keep",
        Choice(("keep", "reject")),
        f"Not in Kafka. A {source} that cannot be decoded: keep appends it, with a null in {record} and the reason in"
        f" {error}; reject refuses the append with InvalidRecordError.",
    )


def value_envelope() -> Any:
    return config(
        "value.envelope",
        "none",
        Choice(("none", "debezium")),
        "Not in Kafka. debezium: the values are change events of Debezium, in JSON or Avro. record then has the row"
        " (`after`, of a deletion `before`) with the columns __op (c, r, u or d) and __sequence. value.schema describes"
        " the row with value.format=json, and the event with avro. In the current-state table (table.current), a row"
        " that was deleted is gone.",
    )


def value_envelope_sequence() -> Any:
    return config(
        "value.envelope.sequence",
        "source.lsn",
        Text("the path of a whole number in an event"),
        "Not in Kafka. The number of an event that becomes record.__sequence, such as source.lsn of PostgreSQL or"
        " source.ts_ms. It is null in events that lack it.",
    )
