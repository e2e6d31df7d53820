"""Reads the sizes of the partitions of a cluster, and counts records that could not be decoded."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.each_store import ASK_TIMEOUT_MS, ask_stores
from spark_log.cluster.usage import SMALL_SEGMENT_BYTES
from spark_log.ids import TopicPartition
from spark_log.log.columns.key_and_value import PARTS
from spark_log.metadata import tables as t
from spark_log.metadata.sql_columns import SEGMENT, TOPIC


@dataclass(frozen=True)
class PartitionSize:
    """The segments of a partition: number, bytes, and how many are small files."""

    segments: int
    bytes: int
    small: int


@dataclass(frozen=True)
class SizeSnapshot:
    """The facts that need a read of every row of table segment. `bad_records` counts bad keys and values, by topic."""

    sizes: Mapping[TopicPartition, PartitionSize]
    bad_records: Mapping[str, int]


def read_sizes(cluster: Cluster) -> SizeSnapshot:
    """Read the sizes of all partitions whose store answers. It reads every row of table segment, about 1 µs for
    each.
    """
    answers = ask_stores(cluster, lambda each: each.store.read(_read_sizes, timeout_ms=ASK_TIMEOUT_MS))
    sizes: dict[TopicPartition, PartitionSize] = {}
    bad_records: dict[str, int] = {}
    for found in answers.results.values():
        sizes |= found.sizes
        bad_records |= found.bad_records
    return SizeSnapshot(sizes, bad_records)


def _read_sizes(connection: sa.Connection) -> SizeSnapshot:
    small = sa.case((~SEGMENT.inline & (SEGMENT.bytes < SMALL_SEGMENT_BYTES), 1), else_=0)
    query = (
        sa.select(TOPIC.name, SEGMENT.partition, sa.func.count(), sa.func.sum(SEGMENT.bytes), sa.func.sum(small))
        .join(t.topic, TOPIC.topic_id == SEGMENT.topic_id)
        .group_by(TOPIC.name, SEGMENT.partition)
    )
    sizes = {
        TopicPartition(topic, partition): PartitionSize(segments, int(bytes_), int(small_files))
        for topic, partition, segments, bytes_, small_files in connection.execute(query).all()
    }
    typed = (
        sa.select(TOPIC.name, SEGMENT.record_count, SEGMENT.stats)
        .join(t.topic, TOPIC.topic_id == SEGMENT.topic_id)
        .where(SEGMENT.stats.is_not(None))
    )
    bad_records = {
        row.name: 0 for row in connection.execute(sa.select(TOPIC.name).where(TOPIC.typed_columns.is_not(None)))
    }
    for topic, record_count, stats in connection.execute(typed):
        nulls = json.loads(stats)["nullCount"]
        bad = sum(record_count - nulls.get(part.error, record_count) for part in PARTS)
        bad_records[topic] = bad_records.get(topic, 0) + bad
    return SizeSnapshot(sizes, bad_records)
