"""Counts the records and bytes of the readable segments of each topic, by partition.

This is the one definition of records, bytes and segments for `topic list`, `topic describe`, `partition balance`,
`status`, the console and the metrics.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.each_store import ask_stores, store_names
from spark_log.cluster.names import CONSUMER_OFFSETS_TOPIC
from spark_log.cluster.topics import Topic, find_topics
from spark_log.errors import SparkLogError
from spark_log.ids import StoreId, TopicId
from spark_log.metadata import tables as t
from spark_log.metadata.sql_columns import GROUP_OFFSET, PARTITION, SEGMENT, TOPIC

K = TypeVar("K")

READABLE = sa.and_(SEGMENT.end_offset > PARTITION.log_start_offset, SEGMENT.base_offset < PARTITION.high_watermark)
"""A segment, joined with its partition, overlaps [log start offset, high watermark)."""

READABLE_RECORDS = sa.case(
    (
        (SEGMENT.record_count == SEGMENT.end_offset - SEGMENT.base_offset)
        & (SEGMENT.base_offset < PARTITION.log_start_offset),
        SEGMENT.end_offset - PARTITION.log_start_offset,
    ),
    else_=SEGMENT.record_count,
)
"""The records of a readable segment that readers see. Records before the log start offset do not count. If compaction
has left gaps in the segment, all its records count."""


_SMALL_SEGMENT_BYTES = 1024 * 1024
"""A smaller segment file counts as small: opening it takes about as long as reading it."""


class Usage(NamedTuple):
    """The usage of a partition: `records` that readers see, and `bytes` of their segments (files and inline), counted
    once and not for each replica. `segments` is the number of segments, and `small_files` of them are small files.
    """

    records: int = 0
    bytes: int = 0
    segments: int = 0
    small_files: int = 0

    def __add__(self, other: object) -> "Usage":
        assert isinstance(other, Usage)
        return Usage(*(mine + others for mine, others in zip(self, other, strict=True)))


def usage(connection: sa.Connection, topic_ids: Collection[TopicId] | None = None) -> dict[tuple[int, int], Usage]:
    """Return the usage by (topic id, partition) of these topics, or of all. Empty partitions may be left out.

    Call it in the snapshot that also reads the offsets to which the numbers are compared. The records of
    `__consumer_offsets` are rows of the store: they count as records, and have no segments and no bytes.
    """
    segments = (
        sa.select(
            SEGMENT.topic_id,
            SEGMENT.partition,
            sa.func.sum(READABLE_RECORDS),
            sa.func.sum(SEGMENT.bytes),
            sa.func.count(),
            sa.func.sum(sa.case((~SEGMENT.inline & (SEGMENT.bytes < _SMALL_SEGMENT_BYTES), 1), else_=0)),
        )
        .join(t.partition, (PARTITION.topic_id == SEGMENT.topic_id) & (PARTITION.partition == SEGMENT.partition))
        .where(READABLE)
        .group_by(SEGMENT.topic_id, SEGMENT.partition)
    )
    committed_to = t.topic.alias()
    commits = (
        sa.select(TOPIC.topic_id, GROUP_OFFSET.log_partition, sa.func.count(), *[sa.literal(0)] * 3)
        .select_from(
            t.group_offset.join(committed_to, committed_to.c.topic_id == GROUP_OFFSET.topic_id).join(
                t.topic, TOPIC.name == CONSUMER_OFFSETS_TOPIC
            )
        )
        .where(GROUP_OFFSET.log_partition >= 0)
        .group_by(TOPIC.topic_id, GROUP_OFFSET.log_partition)
    )
    if topic_ids is not None:
        segments = segments.where(SEGMENT.topic_id.in_(topic_ids))
        commits = commits.where(TOPIC.topic_id.in_(topic_ids))
    return {
        (topic, partition): Usage(int(records), int(size), int(count), int(small))
        for query in (segments, commits)
        for topic, partition, records, size, count, small in connection.execute(query).all()
    }


def by_topic(used: Iterable[tuple[tuple[K, int], Usage]]) -> dict[K, Usage]:
    """Return the sum of each topic, given ((topic, partition), usage)."""
    totals: dict[K, Usage] = {}
    for (topic, _), part in used:
        totals[topic] = totals.get(topic, Usage()) + part
    return totals


@dataclass(frozen=True)
class ClusterUsage:
    """All topics by name, the usage by (topic id, partition) in the stores that answer, and the errors of the others.
    `store_names` has the names of all stores.
    """

    topics: dict[str, Topic]
    used: dict[tuple[int, int], Usage]
    failures: dict[StoreId, SparkLogError]
    store_names: dict[StoreId, str]

    def store_of(self, topic: Topic) -> str:
        """Return the name of the topic's store."""
        return self.store_names.get(topic.store_id, str(topic.store_id))

    def is_available(self, topic: Topic) -> bool:
        """Whether the topic's store has answered, so that its usage is known."""
        return topic.store_id not in self.failures


def cluster_usage(cluster: Cluster) -> ClusterUsage:
    """Return the usage of all topics, as of one snapshot of each store."""
    topics, used = cluster.store.read(lambda connection: (find_topics(connection), usage(connection)))
    answers = ask_stores(cluster, lambda data: data.store.read(usage), cluster.store_ids()[1:])
    for there in answers.results.values():
        used |= there
    return ClusterUsage(topics, used, answers.failures, store_names(cluster))
