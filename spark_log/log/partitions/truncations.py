"""Stores truncations: the records that elections removed from the end of partitions, or that a restored metadata store
lacks.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime

import sqlalchemy as sa

from spark_log.ids import numbers_by_topic
from spark_log.log.partitions.partition_rows import Key
from spark_log.log.partitions.replication_rules import PartitionState, Truncation
from spark_log.metadata import tables as t
from spark_log.metadata.prepared import in_list
from spark_log.metadata.sql_columns import TOPIC, TRUNCATION
from spark_log.metadata.store import Store
from spark_log.metadata.store_clock import StoreClock


@dataclass(frozen=True)
class RecordedTruncation:
    """A truncation of the offsets [start_offset, end_offset), which held `record_count` records. `seen_count` of these
    offsets were below the high watermark, so readers may have read them. `at` is in UTC.

    If start_offset = end_offset, an accepted metadata store lacks an unknown number of records from there on.
    """

    topic: str
    partition: int
    leader_epoch: int
    start_offset: int
    end_offset: int
    record_count: int
    seen_count: int
    unclean: bool
    at: str


def record_truncation(
    connection: sa.Connection,
    key: Key,
    truncation: Truncation,
    before: PartitionState,
    after: PartitionState,
    record_count: int,
    now: StoreClock,
) -> None:
    """Record that the change from `before` to `after` removed `record_count` records."""
    row = {
        "topic_id": key[0],
        "partition": key[1],
        "leader_epoch": truncation.leader_epoch,
        "start_offset": truncation.start_offset,
        "end_offset": before.log_end_offset,
        "high_watermark": before.high_watermark,
        "record_count": record_count,
        "unclean": after.leader not in before.isr,
        "at_ms": now.wall_ms,
    }
    connection.execute(t.truncation.insert(), row)


def read_truncations(connection: sa.Connection, partitions: Collection[Key]) -> dict[Key, list[Truncation]]:
    """Return all truncations of the partitions, by (topic id, partition), in the order of their epochs.

    Partitions without truncations are not in the result.
    """
    truncations: dict[Key, list[Truncation]] = {}
    for topic_id, numbers in numbers_by_topic(partitions).items():
        query = (
            sa.select(TRUNCATION.partition, TRUNCATION.leader_epoch, TRUNCATION.start_offset)
            .where(TRUNCATION.topic_id == topic_id, in_list(TRUNCATION.partition, numbers))
            .order_by(TRUNCATION.leader_epoch)
        )
        for number, leader_epoch, start_offset in connection.execute(query):
            truncations.setdefault((topic_id, number), []).append(Truncation(leader_epoch, start_offset))
    return truncations


def list_truncations(store: Store) -> list[RecordedTruncation]:
    """Return all truncations of topics that still exist, the oldest first."""
    query = sa.select(t.truncation, TOPIC.name).join(t.topic, TOPIC.topic_id == TRUNCATION.topic_id)
    rows = store.read(
        lambda connection: connection.execute(query.order_by(TRUNCATION.at_ms, TOPIC.name, TRUNCATION.partition)).all()
    )
    return [
        RecordedTruncation(
            row.name,
            row.partition,
            row.leader_epoch,
            row.start_offset,
            row.end_offset,
            row.record_count,
            max(0, min(row.high_watermark, row.end_offset) - row.start_offset),
            row.unclean,
            datetime.fromtimestamp(row.at_ms / 1000, UTC).isoformat(timespec="milliseconds"),
        )
        for row in rows
    ]
