"""Records for the tests: small tables of RECORD_SCHEMA, with one key or a key for each record, and reads of a log."""

import contextlib
import random
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.topics import Topic
from spark_log.ids import OffsetRange, TopicPartition
from spark_log.log.append.rules import (
    Acks,
    Appended,
)
from spark_log.log.log import Records
from spark_log.log.records.schema import RECORD_SCHEMA, read_schema
from spark_log.maintenance.client_log import ClientLog

NOON_MS = 1_700_000_000_000


def table(
    *values: str | None,
    key: bytes | None = None,
    headers: Sequence[tuple[str, bytes]] | None = None,
    timestamp_ms: int = NOON_MS,
) -> pa.Table:
    """Records with these values, all with the same key, headers and timestamp."""
    rows = len(values)
    columns = [
        pa.array([key] * rows, pa.binary()),
        pa.array([None if value is None else value.encode() for value in values], pa.binary()),
        pa.array([headers] * rows, RECORD_SCHEMA.field("headers").type),
        pa.array([timestamp_ms * 1000] * rows, pa.int64()).cast(RECORD_SCHEMA.field("timestamp").type),
    ]
    return pa.table(columns, schema=RECORD_SCHEMA)


def ranges_of(log: ClientLog, topic: Topic) -> dict[TopicPartition, OffsetRange]:
    """The ranges of all readable records of a topic."""
    return {tp: OffsetRange(*positions) for tp, positions in log.positions(topic).items()}


def read_rows(log: ClientLog, topic: Topic, schema: pa.Schema | None = None) -> list[dict[str, Any]]:
    """Every readable record of the topic, in order; `schema` has the columns."""
    return [row for batch in log.read(ranges_of(log, topic), schema) for row in batch.to_pylist()]


def read_all(log: ClientLog, topic: Topic) -> list[tuple[int, int, str]]:
    """(partition, offset, value) of every readable record of the topic, in order."""
    rows = read_rows(log, topic, read_schema(columns=["partition", "offset", "value"]))
    return [(row["partition"], row["offset"], row["value"].decode()) for row in rows]


def topic_rows(cluster: Cluster, name: str) -> list[dict[str, Any]]:
    """Every readable record of the topic, in order, read with a log of its own."""
    with contextlib.closing(ClientLog(cluster)) as log:
        return read_rows(log, log.find_topic(name))


def topic_values(cluster: Cluster, name: str) -> list[bytes | None]:
    """The value of every readable record of the topic, in order."""
    return [row["value"] for row in topic_rows(cluster, name)]


SMALL_BLOBS = {"inline.max.bytes": "2000"}
LARGE = random.Random(0).randbytes(10_000).hex()
"""A value that becomes a file with SMALL_BLOBS, even when compressed."""


Rows = list[tuple[int, int, bytes | None, bytes | None]]
"""(partition, offset, key, value)."""


def keyed(rows: Sequence[tuple[bytes | None, bytes | None]], headers: Sequence[tuple[str, bytes]] = ()) -> pa.Table:
    """Records with these keys and values, all with the same headers."""
    columns = [
        pa.array([key for key, _ in rows], pa.binary()),
        pa.array([value for _, value in rows], pa.binary()),
        pa.array([list(headers) or None] * len(rows), RECORD_SCHEMA.field("headers").type),
        pa.array([NOON_MS * 1000] * len(rows), pa.int64()).cast(RECORD_SCHEMA.field("timestamp").type),
    ]
    return pa.table(columns, schema=RECORD_SCHEMA)


def append_keyed(
    log: ClientLog,
    topic: Topic,
    *rows: tuple[bytes | None, bytes | None],
    partition: int = 0,
    headers: Sequence[tuple[str, bytes]] = (),
    acks: Acks = "all",
) -> None:
    """Append one batch."""
    [outcome] = log.append(topic, [Records(partition, keyed(rows, headers))], acks=acks)
    assert isinstance(outcome, Appended), outcome


def rows_of(log: ClientLog, topic: Topic) -> Rows:
    """Every readable record of the topic, by partition and offset."""
    rows = read_rows(log, topic, read_schema(columns=["partition", "offset", "key", "value"]))
    return [(row["partition"], row["offset"], row["key"], row["value"]) for row in rows]


SMALL_TAILS = {"inline.max.bytes": "1000", "inline.tail.bytes": "1500"}
"""Topic configs with which a writer uses every code path within a few records."""
