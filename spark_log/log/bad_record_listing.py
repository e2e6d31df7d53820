"""Lists the records of a typed topic whose keys or values cannot be decoded, and makes dead letters of them."""

from collections.abc import Iterator, Mapping
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_log.cluster.topics import Topic
from spark_log.errors import InvalidConfigurationError
from spark_log.ids import OffsetRange, TopicPartition
from spark_log.log.columns.key_and_value import PARTS
from spark_log.log.reader import LogReader
from spark_log.log.records.schema import RECORD_SCHEMA, read_schema

HEADER_PREFIX = "__spark_log.errors."
"""The prefix of the headers of a dead letter. After it, the names are those of Kafka Connect's dead letter queue. The
prefixes differ, so that a record that went through both keeps both sets of headers."""


def bad_rows(log: LogReader, topic: Topic) -> Iterator[dict[str, Any]]:
    """Yield a row for each bad record up to the high watermarks, by partition and offset. A row has the partition, the
    offset and the reasons (key_record_error, record_error, or both).

    Reads only the reasons if a file has them. Raises InvalidConfigurationError if the topic has no typed columns.
    """
    if topic.columns is None:
        raise InvalidConfigurationError(f"topic {topic.name!r} has no typed columns: set value.format and value.schema")
    errors = [part.error for part, _ in topic.columns.parts]
    schema = read_schema(columns=["partition", "offset", *errors], typed=topic.columns.fields)
    whole = {tp: OffsetRange(*positions) for tp, positions in log.positions(topic).items()}
    for batch in log.read(whole, schema, topics={topic.name: topic}):
        bad = reduce(pc.or_, (pc.is_valid(batch.column(name)) for name in errors))
        yield from batch.filter(bad).to_pylist()


def read_bad_record(log: LogReader, topic: Topic, row: Mapping[str, Any]) -> pa.Table:
    """Read the record of a row of `bad_rows`. Returns the row's columns, then those of RECORD_SCHEMA."""
    here = {TopicPartition(topic.name, row["partition"]): OffsetRange(row["offset"], row["offset"] + 1)}
    [batch] = log.read(here, topics={topic.name: topic})
    records = pa.Table.from_batches([batch])
    columns = [records.column("partition"), records.column("offset")]
    errors = [name for name in row if name not in ("partition", "offset")]
    columns += [pa.array([row[name]], pa.string()) for name in errors]
    names = ["partition", "offset", *errors]
    return pa.table(
        [*columns, *(records.column(name) for name in RECORD_SCHEMA.names)], names=[*names, *RECORD_SCHEMA.names]
    )


def reasons(row: Mapping[str, Any]) -> dict[str, str]:
    """Return the reasons of a row of `bad_rows`, by the part of the record that is bad: key or value."""
    return {part.source: row[part.error] for part in PARTS if row.get(part.error) is not None}


def dead_letters(topic: str, bad: pa.Table) -> pa.Table:
    """Return the bad records for an append to another topic, with headers for their origin and the reason:
    `__spark_log.errors.topic`, `.partition`, `.offset` and `.exception.message`. All else is unchanged.
    """
    headers = [
        [
            *(row["headers"] or ()),
            _header("topic", topic),
            _header("partition", str(row["partition"])),
            _header("offset", str(row["offset"])),
            _header("exception.message", "; ".join(f"{source}: {reason}" for source, reason in reasons(row).items())),
        ]
        for row in bad.drop_columns(["key", "value", "timestamp"]).to_pylist()
    ]
    place = RECORD_SCHEMA.get_field_index("headers")
    field = RECORD_SCHEMA.field(place)
    return bad.select(RECORD_SCHEMA.names).set_column(place, field, pa.array(headers, field.type))


def _header(name: str, text: str) -> dict[str, object]:
    return {"key": HEADER_PREFIX + name, "value": text.encode()}
