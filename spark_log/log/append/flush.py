"""Implements flush.ms: data that was acknowledged before it was forced to disk is forced at most flush.ms later.

Only topics with flush.messages above 1 have such data: offsets [recovery_point, log_end_offset). Sealing and merging
force data too: each ends with a durable commit, and one durable commit forces the whole store.
"""

import sqlalchemy as sa

from spark_log.cluster.topics import undamaged_config
from spark_log.config import TopicConfig
from spark_log.log.partitions.partition_rows import Key
from spark_log.metadata import tables as t
from spark_log.metadata.sql_columns import PARTITION, SEGMENT, TOPIC
from spark_log.metadata.store import Store

_OLDEST = (
    sa.select(SEGMENT.appended_ms)
    .where(
        SEGMENT.topic_id == PARTITION.topic_id,
        SEGMENT.partition == PARTITION.partition,
        SEGMENT.base_offset >= PARTITION.recovery_point,
    )
    .order_by(SEGMENT.base_offset)
    .limit(1)
    .scalar_subquery()
)
_UNFORCED = (
    sa.select(PARTITION.topic_id, PARTITION.partition, TOPIC.configs, sa.func.coalesce(_OLDEST, 0))
    .join(t.topic, TOPIC.topic_id == PARTITION.topic_id)
    .where(TOPIC.configs.contains("flush.m", autoescape=True), PARTITION.recovery_point < PARTITION.log_end_offset)
    .order_by(PARTITION.topic_id, PARTITION.partition)
)


def is_due(oldest_ms: int, config: TopicConfig, now_ms: int) -> bool:
    """Whether data appended at `oldest_ms` must be forced now. With flush.messages <= 1 it always must."""
    return config.flush_messages <= 1 or now_ms - oldest_ms >= config.flush_ms


def partitions_to_flush(store: Store) -> list[Key]:
    """Return the partitions whose oldest unforced data is due. The statement skips topics without a flush config."""

    def read(connection: sa.Connection) -> list[Key]:
        now_ms = store.clock(connection).wall_ms
        return [
            (topic_id, partition)
            for topic_id, partition, configs, oldest_ms in connection.execute(_UNFORCED)
            if (config := undamaged_config(configs)) is not None and is_due(oldest_ms, config, now_ms)
        ]

    return store.read(read)
