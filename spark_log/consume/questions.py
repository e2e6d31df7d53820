"""What a consumer can ask about topics, partitions and its group without changing anything."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from kafka.structs import OffsetAndMetadata, OffsetAndTimestamp, TopicPartition

from spark_log import ids
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.names import is_legal
from spark_log.consume.calls import Guarded, translated
from spark_log.consume.settings import ConsumerSettings
from spark_log.consume.subscription import checked_partition
from spark_log.consume.topics import partition_counts
from spark_log.errors import IllegalStateError, UnknownTopicOrPartitionError
from spark_log.groups.offsets import committed
from spark_log.log.log import Log
from spark_log.log.plan import find_positions
from spark_log.log.slices import Positions
from spark_log.records.schema import MICROSECONDS_PER_MILLISECOND, read_schema


class Questions(Guarded):
    """The part of a consumer that asks the store and answers. Any thread may call it."""

    cluster: Cluster
    settings: ConsumerSettings

    @translated
    def beginning_offsets(
        self, partitions: Collection[TopicPartition], timeout_ms: float | None = None
    ) -> dict[TopicPartition, int]:
        """Log start offsets. UnknownTopicOrPartitionError names a partition that is not there."""
        found = _ends(self.cluster, [checked_partition(partition) for partition in partitions])
        return {partition: ends.log_start_offset for partition, ends in found.items()}

    @translated
    def end_offsets(
        self, partitions: Collection[TopicPartition], timeout_ms: float | None = None
    ) -> dict[TopicPartition, int]:
        """High watermarks: offsets of the next records to come. UnknownTopicOrPartitionError as above."""
        found = _ends(self.cluster, [checked_partition(partition) for partition in partitions])
        return {partition: ends.high_watermark for partition, ends in found.items()}

    @translated
    def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int], timeout_ms: float | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Of each partition, the first record with timestamp >= the given one, None without. ms; ValueError below 0."""
        wanted = {checked_partition(partition): int(timestamp) for partition, timestamp in timestamps.items()}
        for partition, timestamp in wanted.items():
            if timestamp < 0:
                raise ValueError(f"The target time for partition {partition} is {timestamp}. It cannot be negative.")
        return _offsets_for_times(self.cluster, wanted, self.settings.client_rack or None)

    @translated
    def committed(
        self, partition: TopicPartition, metadata: bool = False, timeout_ms: float | None = None
    ) -> int | OffsetAndMetadata | None:
        """The group's committed offset of any partition, as OffsetAndMetadata with `metadata`; None without."""
        group_id = self.required_group()
        ours = ids.TopicPartition(*checked_partition(partition))
        found = committed(self.cluster.store, group_id, [ours]).get(ours)
        if found is None:
            return None
        return OffsetAndMetadata(*found) if metadata else int(found.offset)

    @translated
    def topics(self) -> set[str]:
        """Names of all topics, internal ones included."""
        return set(partition_counts(self.cluster))

    @translated
    def partitions_for_topic(self, topic: str) -> set[int]:
        """Numbers of a topic's partitions, empty if there is no such topic."""
        return set(range(_partition_count(self.cluster, topic)))

    def required_group(self) -> str:
        if self.settings.group_id is None:
            raise IllegalStateError("Requires group_id")
        return self.settings.group_id


def _partition_count(cluster: Cluster, topic: str) -> int:
    """0 for a topic that there is not."""
    return partition_counts(cluster, [topic]).get(topic, 0) if is_legal(topic) else 0


def _ends(cluster: Cluster, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Positions]:
    """Log start offset and high watermark. UnknownTopicOrPartitionError names a partition that is not there."""
    wanted = [ids.TopicPartition(*partition) for partition in partitions if is_legal(partition.topic)]
    found = cluster.store.read(lambda connection: find_positions(connection, wanted))
    for topic, number in partitions:
        if ids.TopicPartition(topic, number) not in found:
            raise UnknownTopicOrPartitionError(f"partition {topic}-{number}: unknown topic or partition")
    return {partition: found[ids.TopicPartition(*partition)].positions for partition in partitions}


def _offsets_for_times(
    cluster: Cluster, timestamps_ms: Mapping[TopicPartition, int], rack: str | None
) -> dict[TopicPartition, OffsetAndTimestamp | None]:
    """Of each partition, the first readable record with timestamp >= the given one. Errors as `_ends`."""
    _ends(cluster, timestamps_ms)
    log = Log(cluster, holder="consumer")
    try:
        found: dict[TopicPartition, OffsetAndTimestamp | None] = dict.fromkeys(timestamps_ms)
        for name in sorted({topic for topic, _ in timestamps_ms}):
            wanted = {number: at_ms for (topic, number), at_ms in timestamps_ms.items() if topic == name}
            for number, offset in log.offsets_for_times(log.find_topic(name), wanted, rack).items():
                if offset is not None:
                    partition = TopicPartition(name, number)
                    found[partition] = OffsetAndTimestamp(offset, _timestamp_ms(log, partition, offset, rack), -1)
        return found
    finally:
        log.close()


def _timestamp_ms(log: Log, partition: TopicPartition, offset: int, rack: str | None) -> int:
    record = {ids.TopicPartition(*partition): ids.OffsetRange(offset, offset + 1)}
    (batch,) = log.read(record, read_schema(columns=["timestamp"]), rack)
    return int(batch.column("timestamp")[0].value) // MICROSECONDS_PER_MILLISECOND
