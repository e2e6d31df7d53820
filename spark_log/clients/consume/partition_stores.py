"""Finds the store of each partition that a consumer reads, and leaves out stores that do not answer."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from kafka.structs import TopicPartition

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.store_probe import StoreProbe
from spark_log.cluster.topics import find_topics
from spark_log.errors import MetadataStoreUnavailableError, TopicMovedError
from spark_log.ids import HOME, StoreId
from spark_log.process import Stop


class PartitionStores:
    """Caches the store of each topic. Not thread-safe.

    A data store that does not answer delays one call. Then it is left out until it answers its probe.
    """

    def __init__(self, cluster: Cluster, closed: Stop) -> None:
        """`closed` ends the threads of the probes."""
        self._cluster = cluster
        self._of_topics: dict[str, StoreId] = {}
        self._probes: dict[StoreId, StoreProbe] = {}
        """Probes of the data stores that have failed."""
        self._closed = closed

    def of(self, partitions: Collection[TopicPartition]) -> Iterator[tuple[Cluster, list[TopicPartition]]]:
        """Yield (view of the cluster at the store, its partitions) for each store that may be asked now.

        Partitions of unknown topics belong to the home store.
        """
        if not partitions:
            return
        self._look_up({partition.topic for partition in partitions} - self._of_topics.keys())
        by_store: dict[StoreId, list[TopicPartition]] = {}
        for partition in partitions:
            by_store.setdefault(self._of_topics.get(partition.topic, HOME), []).append(partition)
        moved: list[TopicPartition] = []
        for store_id in sorted(by_store):
            probe = self._probes.get(store_id)
            if probe is None or not probe.is_lost:
                with self.attempt(store_id):
                    try:
                        cluster = self._cluster.at(store_id)
                    except TopicMovedError:  # it was removed after home was asked: its topics have been moved
                        moved += by_store[store_id]
                        continue
                    yield cluster, by_store[store_id]
        self.look_up_again({partition.topic for partition in moved})
        yield from self.of(moved)

    @contextmanager
    def attempt(self, store_id: StoreId) -> Iterator[None]:
        """Surround a read of a store. A data store that does not answer is left out."""
        try:
            yield
        except MetadataStoreUnavailableError as error:
            if store_id == HOME:
                raise
            if store_id not in self._probes:
                self._probes[store_id] = StoreProbe(self._cluster, store_id, self._closed)
            self._probes[store_id].suspect(error)

    def forget_others(self, partitions: Collection[TopicPartition]) -> None:
        """Drop the stores of topics other than those of these partitions."""
        if len(self._of_topics) > len(partitions):
            names = {partition.topic for partition in partitions}
            self._of_topics = {name: store_id for name, store_id in self._of_topics.items() if name in names}

    def look_up_again(self, names: Collection[str]) -> None:
        """Ask home again which stores have these topics."""
        for name in names:
            self._of_topics.pop(name, None)
        self._look_up(names)

    def _look_up(self, names: Collection[str]) -> None:
        if names:
            topics = self._cluster.store.read(lambda connection: find_topics(connection, names))
            self._of_topics |= {name: topic.store_id for name, topic in topics.items()}
