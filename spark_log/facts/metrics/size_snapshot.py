"""Reads the sizes of the partitions of a cluster, and counts records that could not be decoded."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.each_store import ASK_TIMEOUT_MS, ask_stores
from spark_log.cluster.usage import Usage, usage
from spark_log.ids import TopicPartition
from spark_log.log.columns.key_and_value import PARTS
from spark_log.metadata import tables as t
from spark_log.metadata.sql_columns import SEGMENT, TOPIC

_ROWS_A_FETCH = 1_000
"""The rows of statistics, each of some KB, that are in memory at a time."""


@dataclass(frozen=True)
class SizeSnapshot:
    """The facts that need a read of every row of table segment. `bad_records` counts bad keys and values, by topic."""

    sizes: Mapping[TopicPartition, Usage]
    bad_records: Mapping[str, int]


def read_sizes(cluster: Cluster) -> SizeSnapshot:
    """Read the sizes of all partitions whose store answers. This reads every row of table segment, about 1 µs each."""
    answers = ask_stores(cluster, lambda each: each.store.read(_read_sizes, timeout_ms=ASK_TIMEOUT_MS))
    sizes: dict[TopicPartition, Usage] = {}
    bad_records: dict[str, int] = {}
    for found in answers.results.values():
        sizes |= found.sizes
        bad_records |= found.bad_records
    return SizeSnapshot(sizes, bad_records)


def _read_sizes(connection: sa.Connection) -> SizeSnapshot:
    names: dict[int, str] = dict(tuple(row) for row in connection.execute(sa.select(TOPIC.topic_id, TOPIC.name)))
    sizes = {
        TopicPartition(names[topic_id], partition): used
        for (topic_id, partition), used in usage(connection).items()
        if used.segments and topic_id in names
    }
    typed = (
        sa.select(TOPIC.name, SEGMENT.record_count, SEGMENT.stats)
        .join(t.topic, TOPIC.topic_id == SEGMENT.topic_id)
        .where(SEGMENT.stats.is_not(None))
    )
    bad_records = {
        row.name: 0 for row in connection.execute(sa.select(TOPIC.name).where(TOPIC.typed_columns.is_not(None)))
    }
    for topic, record_count, stats in connection.execute(typed, execution_options={"yield_per": _ROWS_A_FETCH}):
        bad_records[topic] = bad_records.get(topic, 0) + _bad_records(record_count, stats)
    return SizeSnapshot(sizes, bad_records)


class _Statistics(msgspec.Struct):
    """The field of a segment's statistics that is needed here. Decoding skips the other fields."""

    nullCount: dict[str, Any]  # noqa: N815 - Delta's name


_DECODER = msgspec.json.Decoder(_Statistics)


def _bad_records(record_count: int, stats: str) -> int:
    """Return the number of bad keys and values by the statistics of a segment, 0 if these cannot be read: one damaged
    row must not end the metrics of the cluster.
    """
    try:
        nulls = _DECODER.decode(stats).nullCount
        return sum(record_count - nulls.get(part.error, record_count) for part in PARTS)
    except (msgspec.MsgspecError, TypeError):
        return 0
