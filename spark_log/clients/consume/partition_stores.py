"""Finds the store of each partition that a consumer reads, and leaves out stores that do not answer."""

import logging
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from kafka.structs import TopicPartition

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.topics import find_topics
from spark_log.errors import RetriableError, SparkLogError, redact
from spark_log.ids import HOME, StoreId
from spark_log.process import start_thread

logger = logging.getLogger(__name__)

_PROBE_S = 0.5


class PartitionStores:
    """The stores of topics. For one thread.

    A data store that does not answer delays one call: afterwards a thread asks it, and it is left out until it answers.
    """

    def __init__(self, cluster: Cluster, closed: threading.Event) -> None:
        """`closed` ends the threads."""
        self._cluster = cluster
        self._of_topics: dict[str, StoreId] = {}
        self._failed: dict[StoreId, threading.Thread | None] = {}
        """The data stores that are left out, with the threads that ask them."""
        self._closed = closed

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
        for store_id in sorted(by_store):
            if store_id not in self._failed:
                with self.attempt(store_id):
                    yield self._cluster.at(store_id), by_store[store_id]

    @contextmanager
    def attempt(self, store_id: StoreId) -> Iterator[None]:
        """Surround a read of a store. After an error that may end by itself, a data store is left out for a while."""
        try:
            yield
        except RetriableError as error:
            if store_id == HOME:
                raise
            logger.warning("store %s: its topics are left out until it answers: %s", store_id, redact(str(error)))
            self._failed[store_id] = None
            self._failed[store_id] = start_thread(lambda: self._probe(store_id), f"spark-log-probe-{store_id}")

    def _probe(self, store_id: StoreId) -> None:
        while not self._closed.wait(_PROBE_S):
            try:
                self._cluster.at(store_id).store.read(lambda _: None, timeout_ms=0)
            except SparkLogError:
                continue
            logger.warning("store %s answers again", store_id)
            del self._failed[store_id]
            return

    def forget(self, topics: Collection[str]) -> None:
        """Look these topics up again: they were deleted, and may be created again in another store."""
        for topic in topics:
            self._of_topics.pop(topic, None)
