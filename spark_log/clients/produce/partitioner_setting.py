"""Converts the `partitioner` setting to one function, or None for the default rule (key hash, runs of null keys)."""

from collections.abc import Callable, Mapping
from typing import Any

from kafka.errors import KafkaConfigurationError
from kafka.partitioner import DefaultPartitioner, Partitioner, StickyPartitioner

from spark_log.clients.produce.known_topics import KnownTopic

Choose = Callable[[str, Any, bytes | None, Any, bytes | None, "ClusterView"], Any]
"""A function (topic, key, key bytes, value, value bytes, view) -> partition."""


class ClusterView:
    """The part of kafka-python's ClusterMetadata that partitioners use. Every partition counts as available."""

    def __init__(self, known: Mapping[str, KnownTopic]) -> None:
        self._known = known

    def topics(self, exclude_internal_topics: bool = True) -> set[str]:
        """Return the topics that this producer writes to."""
        return set(self._known)

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        known = self._known.get(topic)
        return None if known is None else set(range(known.topic.partition_count))

    def available_partitions_for_topic(self, topic: str) -> set[int] | None:
        return self.partitions_for_topic(topic)


def choose_with(partitioner: Any) -> Choose | None:
    """Convert `partitioner` to one function; return None if batches can be partitioned as a whole (see `assembly`).

    That is possible for kafka-python's two partitioners: both choose a key's partition by the default rule, and
    null keys stay in one partition for a batch. Raises KafkaConfigurationError for a value that is not a partitioner.
    """
    if partitioner is None or type(partitioner) in (DefaultPartitioner, StickyPartitioner):
        return None
    if isinstance(partitioner, Partitioner):
        choose: Choose = partitioner.partition
        return choose
    if hasattr(partitioner, "partition"):  # kafka-python 3 still passes three arguments to such an object
        return lambda topic, _key, key_bytes, _value, _bytes, view: partitioner.partition(topic, key_bytes, view)
    if callable(partitioner):
        return lambda topic, _key, key_bytes, _value, _bytes, view: partitioner(
            key_bytes, *(sorted(view.partitions_for_topic(topic) or ()) for _ in range(2))
        )
    raise KafkaConfigurationError(
        f"partitioner: expected a kafka.partitioner.Partitioner or a callable, got {partitioner!r}"
    )
