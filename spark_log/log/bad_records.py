"""The records of a typed topic whose values cannot be decoded: list them, or copy them to a topic for dead letters."""

from collections.abc import Iterator

import pyarrow as pa

from spark_log.cluster.topics import Topic
from spark_log.errors import InvalidConfigurationError
from spark_log.ids import OffsetRange, TopicPartition
from spark_log.log.reader import LogReader
from spark_log.records.schema import RECORD_SCHEMA, read_schema

HEADER_PREFIX = "__spark_log.errors."
"""Prefix of the headers that a dead letter gets. Their names are otherwise those of Kafka Connect's dead letter queue;
with another prefix, a record that went through both has both sets of headers."""

_ERRORS = read_schema(columns=["partition", "offset", "record_error"])


def bad_records(log: LogReader, topic: Topic) -> Iterator[pa.Table]:
    """The bad records of the topic up to the high watermarks: partition, offset, record_error and the columns of
    RECORD_SCHEMA, by partition and offset, in tables of a few records.

    Reads record_error alone where a file has it, and then only the bad records. InvalidConfigurationError if the topic
    has no typed columns.
    """
    if topic.columns is None:
        raise InvalidConfigurationError(f"topic {topic.name!r} has no typed columns: set value.format and value.schema")
    whole = {tp: OffsetRange(*positions) for tp, positions in log.positions(topic).items()}
    for errors in log.read(whole, _ERRORS, topics={topic.name: topic}):
        bad = errors.filter(errors.column("record_error").is_valid())
        for row in bad.to_pylist():
            yield _record(log, topic, row)


def _record(log: LogReader, topic: Topic, row: dict[str, object]) -> pa.Table:
    partition, offset, reason = row["partition"], row["offset"], row["record_error"]
    assert isinstance(partition, int) and isinstance(offset, int)
    here = {TopicPartition(topic.name, partition): OffsetRange(offset, offset + 1)}
    [batch] = log.read(here, topics={topic.name: topic})
    records = pa.Table.from_batches([batch])
    columns = [records.column("partition"), records.column("offset"), pa.array([reason], pa.string())]
    names = ["partition", "offset", "record_error"]
    return pa.table(
        [*columns, *(records.column(name) for name in RECORD_SCHEMA.names)], names=[*names, *RECORD_SCHEMA.names]
    )


def dead_letters(topic: str, bad: pa.Table) -> pa.Table:
    """Records to append to another topic: the bad ones, unchanged, with headers that say where they are from and why
    they are bad: `__spark_log.errors.topic`, `.partition`, `.offset` and `.exception.message`.
    """
    headers = [
        [
            *(row["headers"] or ()),
            _header("topic", topic),
            _header("partition", str(row["partition"])),
            _header("offset", str(row["offset"])),
            _header("exception.message", row["record_error"]),
        ]
        for row in bad.select(["headers", "partition", "offset", "record_error"]).to_pylist()
    ]
    place = RECORD_SCHEMA.get_field_index("headers")
    field = RECORD_SCHEMA.field(place)
    return bad.select(RECORD_SCHEMA.names).set_column(place, field, pa.array(headers, field.type))


def _header(name: str, text: str) -> dict[str, object]:
    return {"key": HEADER_PREFIX + name, "value": text.encode()}
