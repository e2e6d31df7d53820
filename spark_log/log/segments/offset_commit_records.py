"""Makes the records of `__consumer_offsets`, the committed offsets of all groups, which can be read like any topic.

    key        {"group": "readers", "topic": "flights", "partition": 0}
    value      {"offset": 1200, "leaderEpoch": -1, "metadata": "", "commitTimestamp": 1766000000000}
    timestamp  of the commit, by the store's clock; partition = murmur2(group) modulo 50

The topic is always compacted: its records are the rows of table group_offset. Each key has only its last record, at the
offset that the commit took from the partition's row. So nothing is stored twice, and offsets have gaps where a key was
committed again. A commit advances log end offset and high watermark in its own transaction, and the offsets of a
partition are in the order of the commits (`groups.committed_offsets`). A deleted or expired offset leaves no tombstone.
Keys and values are JSON instead of Kafka's binary format, so that Spark's from_json can read them.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import sqlalchemy as sa

from spark_log.cluster.topics import Topic
from spark_log.log.records import inline
from spark_log.log.records.schema import MICROSECONDS_PER_MILLISECOND, RECORD_SCHEMA, TimestampType
from spark_log.log.segments.slices import Slice
from spark_log.metadata import tables as t
from spark_log.metadata.sql_columns import GROUP_OFFSET, TOPIC

_RECORDS_MAX = 5_000
"""The most rows that are encoded into one slice."""


def slices_of(connection: sa.Connection, topic: Topic, ranges: Sequence[tuple[int, int, int]]) -> list[Slice]:
    """Return the records with start <= offset < end of each (partition, start, end), as slices without gaps."""
    slices: list[Slice] = []
    for partition, start, end in ranges:
        query = (
            sa.select(
                GROUP_OFFSET.position, GROUP_OFFSET.group_id, TOPIC.name, GROUP_OFFSET.partition,
                GROUP_OFFSET.committed_offset, GROUP_OFFSET.leader_epoch,
                GROUP_OFFSET.commit_metadata, GROUP_OFFSET.committed_ms,
            )
            .join(t.topic, TOPIC.topic_id == GROUP_OFFSET.topic_id)
            .where(GROUP_OFFSET.log_partition == partition, GROUP_OFFSET.position >= start, GROUP_OFFSET.position < end)
            .order_by(GROUP_OFFSET.position)
        )  # fmt: skip
        run: list[Any] = []
        for row in connection.execute(query):
            if run and (row.position != run[-1].position + 1 or len(run) == _RECORDS_MAX):
                slices.append(_slice(topic, partition, run))
                run = []
            run.append(row)
        if run:
            slices.append(_slice(topic, partition, run))
    return slices


def _slice(topic: Topic, partition: int, rows: Sequence[Any]) -> Slice:
    blob = inline.encode(_records(rows))
    base, end = rows[0].position, rows[-1].position + 1
    return Slice(
        topic.name, topic.folder, partition, base, base, end, len(rows), len(blob.data), int(TimestampType.CREATE_TIME),
        "", blob.facts.checksum, 0, (), blob.data,
    )  # fmt: skip


def _records(rows: Sequence[Any]) -> pa.Table:
    keys = [_json({"group": row.group_id, "topic": row.name, "partition": row.partition}) for row in rows]
    values = [
        _json(
            {
                "offset": row.committed_offset,
                "leaderEpoch": row.leader_epoch,
                "metadata": row.commit_metadata.decode(),
                "commitTimestamp": row.committed_ms,
            }
        )
        for row in rows
    ]
    micros = [row.committed_ms * MICROSECONDS_PER_MILLISECOND for row in rows]
    headers = RECORD_SCHEMA.field("headers").type
    timestamps = pa.array(micros, pa.int64()).cast(RECORD_SCHEMA.field("timestamp").type)
    return pa.table(
        [pa.array(keys, pa.binary()), pa.array(values, pa.binary()), pa.nulls(len(rows), headers), timestamps],
        schema=RECORD_SCHEMA,
    )


def _json(facts: Mapping[str, Any]) -> bytes:
    return json.dumps(facts, ensure_ascii=False).encode()
