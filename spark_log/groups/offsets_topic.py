"""Assigns the offsets of `__consumer_offsets`: each commit takes the next offsets of its partition.

The first commit creates the topic. The topic has no replicas, because the store keeps it, and clients cannot write
to it. `log.segments.offset_commit_records` describes its records.
"""

import sqlalchemy as sa

from spark_log.cluster.names import CONSUMER_OFFSETS_TOPIC
from spark_log.log.partitions import partition_rows
from spark_log.metadata.sql_columns import TOPIC
from spark_log.metadata.store_clock import StoreClock
from spark_log.replication.controller.topic_operations import insert_topic

PARTITIONS = 50
"""The default of Kafka's offsets.topic.num.partitions."""


def take_offsets(connection: sa.Connection, partition: int, count: int, now: StoreClock) -> int:
    """Return the offset of the first of `count` records that this transaction commits to `partition` of the topic.

    Locks the partition's row. The caller must have locked the group's row before (the lock order).
    """
    first = partition_rows.take_offsets(connection, CONSUMER_OFFSETS_TOPIC, partition, count)
    if first is None:
        _create(connection, now)
        first = partition_rows.take_offsets(connection, CONSUMER_OFFSETS_TOPIC, partition, count)
    assert first is not None
    return first


def _create(connection: sa.Connection, now: StoreClock) -> None:
    """Create the topic. On PostgreSQL, concurrent first commits wait for each other; the second finds the topic."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(sa.func.hashtext(CONSUMER_OFFSETS_TOPIC))))
        there = sa.select(TOPIC.topic_id).where(TOPIC.name == CONSUMER_OFFSETS_TOPIC)
        if connection.execute(there).scalar() is not None:
            return
    insert_topic(connection, CONSUMER_OFFSETS_TOPIC, [()] * PARTITIONS, 1, {"cleanup.policy": "compact"}, now)
