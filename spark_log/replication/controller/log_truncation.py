"""Truncates the log of a partition after an election, in every table that describes the removed records."""

import sqlalchemy as sa

from spark_log.cluster.topics import Topic
from spark_log.log.append.producer_rows import delete_batches_above
from spark_log.log.partitions.partition_rows import Key, delete_compactions_above
from spark_log.log.partitions.replication_rules import PartitionState, Truncation
from spark_log.log.partitions.retired_files import retire_files
from spark_log.log.partitions.truncations import record_truncation
from spark_log.log.segments.segment_rows import delete_segments_above
from spark_log.metadata.store_clock import StoreClock
from spark_log.tables.publication_resets import lower_seen_offsets


def truncate_log(
    connection: sa.Connection,
    topic: Topic,
    partition: int,
    truncation: Truncation,
    before: PartitionState,
    after: PartitionState,
    now: StoreClock,
) -> PartitionState:
    """Remove the rows of the segments from `truncation.start_offset` on, and of their records.

    Returns the state to save. `before` and `after` are the partition before and after the election, which truncated at
    a segment boundary. The segment files are retired, so that readers can finish. The truncation is recorded.
    """
    key: Key = (topic.topic_id, partition)
    removed = delete_segments_above(connection, key, truncation.start_offset)
    retire_files(connection, topic, partition, removed.files, after.change, now)
    delete_batches_above(connection, key, truncation.start_offset)
    lower_seen_offsets(connection, key, truncation.start_offset)  # other records will get these offsets
    delete_compactions_above(connection, key, truncation.start_offset)  # they read removed records
    record_truncation(connection, key, truncation, before, after, removed.record_count, now)
    return after._replace(tail_bytes=after.tail_bytes - removed.inline_bytes)
