"""Finds the first record of a partition at or after a time (KIP-79): its offset and its timestamp."""

from collections.abc import Mapping
from typing import NamedTuple

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.topics import Topic
from spark_log.ids import TopicPartition
from spark_log.log.records.schema import MICROSECONDS_PER_MILLISECOND, read_schema
from spark_log.log.segments.fetcher import Fetcher
from spark_log.log.segments.plan import TimeLookup, plan_time_lookups


class TimedOffset(NamedTuple):
    """An offset, and the timestamp of the record at this offset."""

    offset: int
    timestamp_ms: int


def first_records(
    cluster: Cluster, lookups: Mapping[TopicPartition, TimeLookup]
) -> dict[TopicPartition, TimedOffset | None]:
    """Return the first record that each lookup finds, None if there is none. Reads segments, and is not affected by
    changes of the metadata since the snapshot of the lookups.
    """
    fetcher = Fetcher(cluster.log_dirs())
    return {tp: _first_record(fetcher, lookup) for tp, lookup in lookups.items()}


def offsets_for_times(
    cluster: Cluster, topic: Topic, timestamps_ms: Mapping[int, int], rack: str | None = None
) -> dict[int, int | None]:
    """Return for each partition the first readable offset with timestamp >= the given one, None if there is none
    (KIP-79).

    Raises UnknownTopicOrPartitionError if the topic has been deleted or created again, or a partition does not exist.
    """
    lookups = cluster.store.read(lambda connection: plan_time_lookups(connection, topic, timestamps_ms, rack))
    found = first_records(cluster, lookups)
    return {tp.partition: None if record is None else record.offset for tp, record in found.items()}


def _first_record(fetcher: Fetcher, lookup: TimeLookup) -> TimedOffset | None:
    for piece in lookup.slices:
        offset = fetcher.first_offset_at_or_after(piece, lookup.timestamp_ms)
        if offset is not None:
            record = piece._replace(start=offset, end=offset + 1)
            [batch] = fetcher.read([record], read_schema(columns=["timestamp"]))
            return TimedOffset(offset, int(batch.column("timestamp")[0].value) // MICROSECONDS_PER_MILLISECOND)
    return None
