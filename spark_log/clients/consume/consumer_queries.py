"""Defines a consumer's read-only queries about topics, partitions, its group and the client."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial

import sqlalchemy as sa
from kafka.consumer.fetcher import ConsumerRecord
from kafka.structs import OffsetAndMetadata, OffsetAndTimestamp, TopicPartition

from spark_log import ids
from spark_log.clients.consume.consumer_base import ConsumerBase, translated
from spark_log.clients.consume.consumer_settings import ConsumerSettings
from spark_log.clients.consume.subscription import checked_partition
from spark_log.clients.consume.topic_watch import partition_counts
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.each_store import in_stores_of
from spark_log.cluster.names import is_legal
from spark_log.cluster.topics import find_topics
from spark_log.errors import IllegalStateError, UnknownTopicOrPartitionError
from spark_log.groups.committed_offsets import committed
from spark_log.log.segments.plan import TimeLookup, find_positions, plan_time_lookups
from spark_log.log.segments.slices import Positions
from spark_log.log.segments.timed_offsets import TimedOffset, first_records


class ConsumerQueries(ConsumerBase[ConsumerRecord]):
    """The consumer's methods that only read the store or the settings. Any thread may call them. `timeout_ms` has no
    effect.
    """

    cluster: Cluster
    settings: ConsumerSettings

    @property
    def client_id(self) -> str:
        """The setting client_id."""
        return self.settings.client_id

    @translated
    def beginning_offsets(
        self, partitions: Collection[TopicPartition], timeout_ms: float | None = None
    ) -> dict[TopicPartition, int]:
        """Return log start offsets. UnknownTopicOrPartitionError names a partition that does not exist."""
        found = self._ends(partitions)
        return {partition: ends.log_start_offset for partition, ends in found.items()}

    @translated
    def end_offsets(
        self, partitions: Collection[TopicPartition], timeout_ms: float | None = None
    ) -> dict[TopicPartition, int]:
        """Return high watermarks, the offsets of the next records. UnknownTopicOrPartitionError names a partition that
        does not exist.
        """
        found = self._ends(partitions)
        return {partition: ends.high_watermark for partition, ends in found.items()}

    @translated
    def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int], timeout_ms: float | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return offset and timestamp of the first record with timestamp >= the given one (ms) in each partition, or
        None if there is none.

        All offsets of a store are from one snapshot. Raises ValueError for a timestamp below 0.
        UnknownTopicOrPartitionError names a partition that does not exist.
        """
        times_ms = {checked_partition(partition): int(timestamp) for partition, timestamp in timestamps.items()}
        for partition, timestamp in times_ms.items():
            if timestamp < 0:
                raise ValueError(f"The target time for partition {partition} is {timestamp}. It cannot be negative.")
        ours = {ids.TopicPartition(*partition): timestamp for partition, timestamp in times_ms.items()}
        rack = self.settings.client_rack or None
        records = in_stores_of(self.cluster, ours, partial(_first_records, rack=rack))
        return {
            partition: None if record is None else OffsetAndTimestamp(record.offset, record.timestamp_ms, -1)
            for partition, record in ((partition, records[partition]) for partition in times_ms)
        }

    @translated
    def committed(
        self, partition: TopicPartition, metadata: bool = False, timeout_ms: float | None = None
    ) -> int | OffsetAndMetadata | None:
        """Return the group's committed offset of any partition, or None if there is none. With `metadata` it is an
        OffsetAndMetadata. Raises IllegalStateError without a group_id.
        """
        group_id = self.required_group()
        checked = checked_partition(partition)
        found = committed(self.cluster.store, group_id, [checked]).get(checked)
        if found is None:
            return None
        return OffsetAndMetadata(*found) if metadata else int(found.offset)

    @translated
    def topics(self) -> set[str]:
        """Return the names of all topics, including internal ones."""
        return set(partition_counts(self.cluster))

    @translated
    def partitions_for_topic(self, topic: str) -> set[int]:
        """Return the numbers of a topic's partitions; empty if there is no such topic."""
        return set(range(_partition_count(self.cluster, topic)))

    def bootstrap_connected(self) -> bool:
        """Whether the cluster is open."""
        return not self._closed

    def bootstrap(self, timeout_ms: float | None = None, refresh: bool = False) -> None:
        """Do nothing: the constructor has opened the cluster."""

    def _ends(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Positions]:
        ours = dict.fromkeys(ids.TopicPartition(*checked_partition(partition)) for partition in partitions)
        positions = in_stores_of(
            self.cluster, ours, lambda view, here: view.store.read(partial(_positions, partitions=here))
        )
        return {TopicPartition(*partition): positions[partition] for partition in ours}

    def required_group(self) -> str:
        if self.settings.group_id is None:
            raise IllegalStateError("Requires group_id")
        return self.settings.group_id


def _partition_count(cluster: Cluster, topic: str) -> int:
    """Return the partition count, or 0 if the topic does not exist."""
    return partition_counts(cluster, [topic]).get(topic, 0) if is_legal(topic) else 0


def _positions(
    connection: sa.Connection, partitions: Collection[ids.TopicPartition]
) -> dict[ids.TopicPartition, Positions]:
    """Return log start offsets and high watermarks. UnknownTopicOrPartitionError names an unknown partition."""
    found = find_positions(connection, [partition for partition in partitions if is_legal(partition.topic)])
    for partition in partitions:
        if partition not in found:
            raise UnknownTopicOrPartitionError(f"partition {partition}: unknown topic or partition")
    return {partition: found[partition].positions for partition in partitions}


def _first_records(
    view: Cluster, times_ms: Mapping[ids.TopicPartition, int], rack: str | None
) -> dict[ids.TopicPartition, TimedOffset | None]:
    """Return the first readable record of each partition with timestamp >= the given one, or None."""

    def plan(connection: sa.Connection) -> dict[ids.TopicPartition, TimeLookup]:
        _positions(connection, times_ms)
        lookups: dict[ids.TopicPartition, TimeLookup] = {}
        for topic in find_topics(connection, {name for name, _ in times_ms}, only_live=False).values():
            times = {number: at_ms for (name, number), at_ms in times_ms.items() if name == topic.name}
            lookups |= plan_time_lookups(connection, topic, times, rack)
        return lookups

    return first_records(view, view.store.read(plan))
