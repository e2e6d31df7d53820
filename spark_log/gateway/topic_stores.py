"""Calls functions on the stores of topics, so that a data store that does not answer delays no topic of another store.

Calls on a data store run in threads of their own, and their callers wait for a short time only. After a call that takes
longer, the store is asked whether it answers at all. Until it does, calls fail at once.
"""

import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from spark_log import clock
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.store_directory import ADDING, find_store, find_stores
from spark_log.cluster.store_probe import SILENT_S, StoreProbe
from spark_log.cluster.topics import Topic
from spark_log.errors import MetadataStoreUnavailableError, SparkLogError
from spark_log.gateway.limits.bulkheads import Lane
from spark_log.gateway.protocol.error_codes import log_failed
from spark_log.gateway.records.topic_cache import TopicCache
from spark_log.ids import HOME, HOME_NAME, StoreId, TopicPartition
from spark_log.process import Stop

A = TypeVar("A")
R = TypeVar("R")

CHANGE_S = 60.0
"""How long a change, or a call that also reads files, waits for a data store that answers other calls."""
_LOOK_S = 0.1
_STORES_FRESH_S = 1.0
_THREADS = sum(lane.threads for lane in Lane)


class StoreSilentError(MetadataStoreUnavailableError):
    """The data store of a topic does not answer. Clients get LEADER_NOT_AVAILABLE."""


class TopicStores:
    """The stores of a cluster as a gateway calls them. Safe to share between threads."""

    def __init__(self, cluster: Cluster, topics: TopicCache) -> None:
        self.cluster = cluster
        self._topics = topics
        self._lock = threading.Lock()
        self._data: dict[StoreId, _DataStore] = {}
        self._ids: tuple[float, list[StoreId]] = (-_STORES_FRESH_S, [HOME])

    def ids(self) -> list[StoreId]:
        """Return the stores, home first. The list is up to one second old."""
        if self.cluster.store.sqlite:
            return [HOME]
        read_s, ids = self._ids
        now_s = clock.monotonic_s()
        if now_s - read_s >= _STORES_FRESH_S:
            with contextlib.suppress(SparkLogError):  # the call of the store that follows fails, too
                stores = self.cluster.store.read(find_stores, timeout_ms=int(SILENT_S * 1000))
                ids = [HOME, *(each.store_id for each in stores if each.state != ADDING)]
            self._ids = now_s, ids
        return ids

    def of(self, topic: str) -> StoreId:
        """Return the store of a topic; home for an unknown one."""
        return self._of([topic]).get(topic, HOME)

    def call(self, store_id: StoreId, function: Callable[[Cluster], R], wait_s: float = SILENT_S) -> R:
        """Call a function with the cluster as seen from this store. Raises StoreSilentError if a data store does not
        answer; then the function may still run.
        """
        if store_id == HOME:
            return function(self.cluster)
        store = self._at(store_id)
        return store.result(store.begin(function), wait_s)

    def in_each(
        self, groups: Mapping[StoreId, A], function: Callable[[Cluster, A], R], wait_s: float = SILENT_S
    ) -> dict[StoreId, R | SparkLogError]:
        """Call a function once for each store, at the same time, with the argument of the store. Return the result or
        the error of each store.
        """
        results: dict[StoreId, R | SparkLogError] = {}
        begun: list[tuple[StoreId, _DataStore, concurrent.futures.Future[R]]] = []
        for store_id, argument in groups.items():
            if store_id != HOME:
                store = self._at(store_id)
                try:
                    begun.append((store_id, store, store.begin(lambda cluster, a=argument: function(cluster, a))))  # type: ignore[misc]
                except SparkLogError as error:
                    results[store_id] = error
        if HOME in groups:
            try:
                results[HOME] = function(self.cluster, groups[HOME])
            except SparkLogError as error:
                results[HOME] = error
        until_s = clock.monotonic_s() + wait_s
        for store_id, store, job in begun:
            try:
                results[store_id] = store.result(job, until_s - clock.monotonic_s())
            except SparkLogError as error:
                results[store_id] = error
        return results

    def in_all(self, function: Callable[[Cluster], R]) -> list[R]:
        """Call a function once for each store of the cluster, at the same time. Return the results of the stores that
        answer. An error of the home store is raised; one of a data store is logged.
        """
        results: list[R] = []
        outcomes = self.in_each(dict.fromkeys(self.ids()), lambda cluster, _: function(cluster), CHANGE_S)
        for store_id, outcome in outcomes.items():
            if not isinstance(outcome, SparkLogError):
                results.append(outcome)
            elif store_id == HOME:
                raise outcome
            else:
                log_failed(outcome)
        return results

    def change_each(
        self, store_ids: Iterable[StoreId], work: Callable[[StoreId], None]
    ) -> dict[StoreId, SparkLogError | None]:
        """Call a function that changes each of these stores, at the same time. Return the error of each, or None."""
        return self.in_each(dict.fromkeys(store_ids), lambda cluster, _: work(cluster.store_id), CHANGE_S)

    def of_partitions(
        self,
        partitions: Iterable[TopicPartition],
        function: Callable[[Cluster, Sequence[TopicPartition]], Mapping[TopicPartition, R]],
        wait_s: float = SILENT_S,
        topics: Mapping[str, Topic] | None = None,
    ) -> dict[TopicPartition, R | SparkLogError]:
        """Call a function for the partitions of each store. Return its result for each partition, or the error of the
        partition's store. Partitions of unknown topics count as those of home.

        `topics` are those of the partitions. If it is None, the topics are looked up, and a topic that is missing in
        its store is looked up again, because it may have been moved.
        """
        partitions = list(partitions)
        try:
            stores = self._of({tp.topic for tp in partitions}, topics)
        except SparkLogError as error:
            return dict.fromkeys(partitions, error)
        groups: dict[StoreId, list[TopicPartition]] = {}
        for tp in partitions:
            groups.setdefault(stores.get(tp.topic, HOME), []).append(tp)
        results: dict[TopicPartition, R | SparkLogError] = {}
        for store_id, result in self.in_each(groups, function, wait_s).items():
            results |= dict.fromkeys(groups[store_id], result) if isinstance(result, SparkLogError) else result
        missing = {tp.topic for tp in partitions if tp not in results} & stores.keys()
        if topics is None and missing:
            for name in missing:
                self._topics.forget(name)
            now = self._topics.find(missing)
            moved = {name: topic for name, topic in now.items() if topic.store_id != stores[name]}
            here = [tp for tp in partitions if tp.topic in moved]
            results |= self.of_partitions(here, function, wait_s, moved) if here else {}
        return results

    def change(self, store_id: StoreId, function: Callable[[], R]) -> R:
        """Call a function that changes a topic at home and then in this store."""
        return self.call(store_id, lambda _: function(), CHANGE_S)

    def of_new_topics(self) -> StoreId:
        """Return the store that gets new topics (topic.default.store). Raises StoreNotFoundError."""
        name = self.cluster.store.settings.topic_default_store
        if name == HOME_NAME:
            return HOME
        return self.cluster.store.read(lambda connection: find_store(connection, name)).store_id

    def is_lost(self, store_id: StoreId) -> bool:
        """Whether a data store does not answer."""
        return store_id != HOME and self._at(store_id).probe.is_lost

    def suspect(self, store_id: StoreId) -> None:
        """Begin to check whether a data store answers."""
        self._at(store_id).probe.suspect()

    def close(self) -> None:
        for store in list(self._data.values()):
            store.close()

    def close_at(self, store_id: StoreId) -> None:
        """End the threads of a store that was removed from the cluster."""
        with self._lock:
            store = self._data.pop(store_id, None)
        if store is not None:
            store.close()

    def _of(self, names: Iterable[str], topics: Mapping[str, Topic] | None = None) -> dict[str, StoreId]:
        if topics is None:
            topics = {} if len(self.ids()) == 1 else self._topics.find(names)
        return {name: topic.store_id for name, topic in topics.items()}

    def _at(self, store_id: StoreId) -> "_DataStore":
        with self._lock:
            if store_id not in self._data:
                self._data[store_id] = _DataStore(self.cluster, store_id)
                self.cluster.tell_of_removals(self)
            return self._data[store_id]


class _DataStore:
    """The threads of a data store."""

    def __init__(self, home: Cluster, store_id: StoreId) -> None:
        self._home, self._store_id = home, store_id
        self._pool = concurrent.futures.ThreadPoolExecutor(_THREADS, thread_name_prefix=f"gateway store {store_id}")
        self._closed = Stop()
        self.probe = StoreProbe(home, store_id, self._closed)

    def begin(self, function: Callable[[Cluster], R]) -> "concurrent.futures.Future[R]":
        if self.probe.is_lost:
            raise self._silent()
        return self._pool.submit(lambda: function(self._home.at(self._store_id)))

    def result(self, job: "concurrent.futures.Future[R]", wait_s: float) -> R:
        until_s = clock.monotonic_s() + wait_s
        concurrent.futures.wait([job], max(0.0, min(wait_s, SILENT_S)))
        while not job.done():
            self.probe.suspect()
            left_s = until_s - clock.monotonic_s()
            if left_s <= 0 or self.probe.is_lost:
                job.cancel()
                raise self._silent()
            concurrent.futures.wait([job], min(left_s, _LOOK_S))
        try:
            return job.result()
        except MetadataStoreUnavailableError as error:
            self.probe.suspect()
            raise StoreSilentError(str(error)) from error

    def _silent(self) -> StoreSilentError:
        return StoreSilentError(f"store {self._store_id} does not answer")

    def close(self) -> None:
        self._closed.set()
        self._pool.shutdown(wait=False, cancel_futures=True)
