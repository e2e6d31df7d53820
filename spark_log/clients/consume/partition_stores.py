"""Finds the store of each partition that a consumer reads, and reads a store that fails less often."""

import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from kafka.structs import TopicPartition

from spark_log import clock
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.topics import find_topics
from spark_log.errors import RetriableError, redact
from spark_log.ids import HOME, StoreId

logger = logging.getLogger(__name__)

_PAUSE_FACTOR = 10
_PAUSE_S_MIN, _PAUSE_S_MAX = 0.1, 30.0


class PartitionStores:
    """The stores of topics. For one thread.

    In a cluster with one store it does nothing. With several, a store that does not answer is not asked again for ten
    times the time that the attempt took, so that it takes at most a tenth of the time of the others.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._of_topics: dict[str, StoreId] = {}
        self._asked_s: dict[StoreId, float] = {}
        """The time before which a store that failed is not asked again."""

    def of(self, partitions: Collection[TopicPartition]) -> Iterator[tuple[Cluster, list[TopicPartition]]]:
        """Yield the partitions of each store that is to be asked now, with the cluster as that store has it.

        Partitions of unknown topics are the home store's.
        """
        if not partitions:
            return
        unknown = {partition.topic for partition in partitions} - self._of_topics.keys()
        if unknown:
            topics = self._cluster.store.read(lambda connection: find_topics(connection, unknown))
            self._of_topics |= {name: topic.store_id for name, topic in topics.items()}
        by_store: dict[StoreId, list[TopicPartition]] = {}
        for partition in partitions:
            by_store.setdefault(self._of_topics.get(partition.topic, HOME), []).append(partition)
        now_s = clock.monotonic_s()
        for store_id in sorted(by_store):
            if now_s >= self._asked_s.get(store_id, 0):
                with self.attempt(store_id):
                    yield self._cluster.at(store_id), by_store[store_id]

    @contextmanager
    def attempt(self, store_id: StoreId) -> Iterator[None]:
        """Surround a read of a store. An error of a data store that may end by itself is logged."""
        began_s = clock.monotonic_s()
        try:
            yield
        except RetriableError as error:
            if store_id == HOME:
                raise
            pause_s = min(max(_PAUSE_FACTOR * (clock.monotonic_s() - began_s), _PAUSE_S_MIN), _PAUSE_S_MAX)
            self._asked_s[store_id] = clock.monotonic_s() + pause_s
            logger.warning("store %s: tried again in %.1f s: %s", store_id, pause_s, redact(str(error)))

    def forget(self, topics: Collection[str]) -> None:
        """Look these topics up again: they were deleted, and may be created again in another store."""
        for topic in topics:
            self._of_topics.pop(topic, None)
