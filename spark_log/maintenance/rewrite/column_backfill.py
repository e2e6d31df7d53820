"""Backfills typed columns: files that lack the topic's present columns are written again, at the same offsets.

A change of a format or a schema never rewrites files. Merge and compaction write the present columns into their outputs
anyway; the backfill does so for the other files.
"""

from collections.abc import Iterator
from functools import partial

import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.lease import Fence, unfenced
from spark_log.cluster.topics import Topic
from spark_log.log.append.write_ids import Writer
from spark_log.maintenance.rewrite.rewrite_plan import Rewriting, Segment, files_below_tail, plan_rewriting
from spark_log.maintenance.rewrite.segment_rewrite import Written, write_and_swap
from spark_log.metadata.sql_columns import SEGMENT


def partitions_to_backfill(connection: sa.Connection, topic: Topic) -> list[int]:
    """Return the partitions with a file that lacks the topic's present columns."""
    if topic.columns is None:
        return []
    query = (
        sa.select(SEGMENT.partition)
        .distinct()
        .where(SEGMENT.topic_id == topic.topic_id, ~SEGMENT.inline)
        .where(SEGMENT.columns_version.is_distinct_from(topic.columns.version))
        .order_by(SEGMENT.partition)
    )
    return list(connection.execute(query).scalars())


def files_to_backfill(connection: sa.Connection, topic: Topic, partition: int) -> list[Segment]:
    """Return those of `files_below_tail` that lack the topic's present columns."""
    if topic.columns is None:
        return []
    version = topic.columns.version
    return [each for each in files_below_tail(connection, topic, partition) if each.columns_version != version]


def backfill(
    cluster: Cluster, writer: Writer, topic: Topic, partition: int, fence: Fence = unfenced
) -> Iterator[tuple[Rewriting, Written]]:
    """Write the files of the partition that lack the topic's present columns again. Yields each when its swap is done.

    It ends with the first swap that is refused, because the file or the ISR has changed: the next run sees the new
    state.
    """
    for file in cluster.store.read(partial(files_to_backfill, topic=topic, partition=partition)):
        rewriting = cluster.store.read(partial(plan_rewriting, topic=topic, partition=partition, inputs=[file]))
        if rewriting is None:
            return
        written = write_and_swap(cluster, writer, rewriting, fence, "columns")
        if written is None:
            return
        yield rewriting, written
