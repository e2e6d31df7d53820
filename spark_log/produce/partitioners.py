"""What a user may set as `partitioner`, in one shape: a function that chooses, or None for the rule of the house."""

from collections.abc import Callable, Mapping
from typing import Any

from kafka.errors import KafkaConfigurationError
from kafka.partitioner import DefaultPartitioner, Partitioner, StickyPartitioner

from spark_log.append.partitioner import partition_of_key
from spark_log.produce.known_topics import KnownTopic

Choose = Callable[[str, Any, bytes | None, Any, bytes | None, "ClusterView"], Any]
"""(topic, key, key bytes, value, value bytes, view) -> partition."""


class ClusterView:
    """What partitioners may ask of kafka-python's ClusterMetadata. Every partition counts as available."""

    def __init__(self, known: Mapping[str, KnownTopic]) -> None:
        self._known = known

    def topics(self, exclude_internal_topics: bool = True) -> set[str]:
        """The topics that this producer writes to."""
        return set(self._known)

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        known = self._known.get(topic)
        return None if known is None else set(range(known.topic.partition_count))

    def available_partitions_for_topic(self, topic: str) -> set[int] | None:
        return self.partitions_for_topic(topic)


class RoundRobinPartitioner(Partitioner):  # type: ignore[misc]
    """Keys by their hash; null keys to one partition after the other, record by record."""

    def __init__(self) -> None:
        self._next: dict[str, int] = {}

    def partition(
        self, topic: str, key: Any, serialized_key: bytes | None, value: Any, serialized_value: Any, cluster: Any
    ) -> int:
        count = len(cluster.partitions_for_topic(topic))
        if serialized_key is not None:
            return partition_of_key(serialized_key, count)
        number = self._next.get(topic, 0)
        self._next[topic] = number + 1
        return number % count


def choose_with(partitioner: Any) -> Choose | None:
    """`partitioner` as one function; None where batches may be partitioned as a whole (see `assembly`).

    That is so for kafka-python's own two: they agree with it on keys, and null keys stick to a partition for a batch.
    KafkaConfigurationError for what is no partitioner.
    """
    if partitioner is None or type(partitioner) in (DefaultPartitioner, StickyPartitioner):
        return None
    if isinstance(partitioner, Partitioner):
        choose: Choose = partitioner.partition
        return choose
    if hasattr(partitioner, "partition"):  # the three arguments that kafka-python 3 still passes to such
        return lambda topic, _key, key_bytes, _value, _bytes, view: partitioner.partition(topic, key_bytes, view)
    if callable(partitioner):
        return lambda topic, _key, key_bytes, _value, _bytes, view: partitioner(
            key_bytes, *(sorted(view.partitions_for_topic(topic) or ()) for _ in range(2))
        )
    raise KafkaConfigurationError(
        f"partitioner: expected a kafka.partitioner.Partitioner or a callable, got {partitioner!r}"
    )
