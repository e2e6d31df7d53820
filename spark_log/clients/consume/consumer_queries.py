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
from spark_log.cluster.each_store import by_store
from spark_log.cluster.names import is_legal
from spark_log.cluster.topics import Topic, find_topics
from spark_log.errors import IllegalStateError, UnknownTopicOrPartitionError
from spark_log.groups.committed_offsets import committed
from spark_log.ids import StoreId
from spark_log.log.segments.plan import PartitionSnapshot, TimeLookup, find_positions, plan_time_lookups
from spark_log.log.segments.slices import Positions
from spark_log.log.segments.timed_offsets import first_records


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
        """Return the first record of each partition with timestamp >= the given one (ms), or None if there is none.

        All are from one snapshot. Raises ValueError for a timestamp below 0. UnknownTopicOrPartitionError names a
        partition that does not exist.
        """
        wanted = {checked_partition(partition): int(timestamp) for partition, timestamp in timestamps.items()}
        for partition, timestamp in wanted.items():
            if timestamp < 0:
                raise ValueError(f"The target time for partition {partition} is {timestamp}. It cannot be negative.")
        return _offsets_for_times(self.cluster, wanted, self.settings.client_rack or None)

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
        return _all_ends(self.cluster, [checked_partition(partition) for partition in partitions])

    def required_group(self) -> str:
        if self.settings.group_id is None:
            raise IllegalStateError("Requires group_id")
        return self.settings.group_id


def _partition_count(cluster: Cluster, topic: str) -> int:
    """Return the partition count, or 0 if the topic does not exist."""
    return partition_counts(cluster, [topic]).get(topic, 0) if is_legal(topic) else 0


def _all_ends(cluster: Cluster, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Positions]:
    """Return log start offsets and high watermarks, in one snapshot of each store. UnknownTopicOrPartitionError names
    an unknown partition.
    """
    wanted = [partition for partition in partitions if is_legal(partition.topic)]
    positions = cluster.store.read(lambda connection: find_positions(connection, wanted))
    missing = [partition for partition in wanted if partition not in positions]
    if missing:
        for store_id, topics in _elsewhere(cluster, missing).items():
            names = {topic.name for topic in topics}
            there = [partition for partition in missing if partition.topic in names]
            find = partial(find_positions, partitions=there)
            positions |= cluster.at(store_id).store.read(find)
    return _checked(positions, partitions)


def _elsewhere(cluster: Cluster, partitions: Collection[TopicPartition]) -> dict[StoreId, list[Topic]]:
    """Return the topics of these partitions that are in data stores."""
    topics = cluster.store.read(lambda connection: find_topics(connection, {topic for topic, _ in partitions}))
    return by_store(topic for topic in topics.values() if topic.store_id != cluster.store_id)


def _checked(
    positions: Mapping[ids.TopicPartition, PartitionSnapshot], partitions: Collection[TopicPartition]
) -> dict[TopicPartition, Positions]:
    for partition in partitions:
        if partition not in positions:
            raise UnknownTopicOrPartitionError(
                f"partition {partition.topic}-{partition.partition}: unknown topic or partition"
            )
    return {partition: positions[partition].positions for partition in partitions}


def _offsets_for_times(
    cluster: Cluster, timestamps_ms: Mapping[TopicPartition, int], rack: str | None
) -> dict[TopicPartition, OffsetAndTimestamp | None]:
    """Return the first readable record of each partition with timestamp >= the given one, or None."""

    elsewhere: dict[StoreId, list[Topic]] = {}

    def plan(connection: sa.Connection) -> dict[ids.TopicPartition, TimeLookup]:
        topics = find_topics(connection, {topic for topic, _ in timestamps_ms})
        away = by_store(topic for topic in topics.values() if topic.store_id != cluster.store_id)
        elsewhere.clear()
        elsewhere.update(away)
        names = {topic.name for those in away.values() for topic in those}
        here = [partition for partition in timestamps_ms if partition.topic not in names]
        _checked(find_positions(connection, [each for each in here if is_legal(each.topic)]), here)
        return plan_of(connection, [topic for topic in topics.values() if topic.name not in names])

    def plan_of(connection: sa.Connection, topics: Collection[Topic]) -> dict[ids.TopicPartition, TimeLookup]:
        lookups: dict[ids.TopicPartition, TimeLookup] = {}
        for topic in topics:
            wanted = {number: at_ms for (its, number), at_ms in timestamps_ms.items() if its == topic.name}
            lookups |= plan_time_lookups(connection, topic, wanted, rack)
        return lookups

    records = first_records(cluster, cluster.store.read(plan))
    for store_id, topics in elsewhere.items():
        data = cluster.at(store_id)
        records |= first_records(data, data.store.read(partial(plan_of, topics=topics)))
    return {
        partition: None if record is None else OffsetAndTimestamp(record.offset, record.timestamp_ms, -1)
        for partition, record in ((partition, records[partition]) for partition in timestamps_ms)
    }
