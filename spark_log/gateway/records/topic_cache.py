"""Caches the topics that clients use, for one second."""

import threading
from collections.abc import Iterable
from uuid import UUID

from spark_log import clock
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.topics import Topic, find_topics, topics_of_uuids

_FRESH_S = 1.0


class TopicCache:
    """Caches topics by name. Safe to share between threads."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._lock = threading.Lock()
        self._found: dict[str, tuple[float, Topic]] = {}
        self._names: dict[UUID, tuple[float, str]] = {}
        self._dropped_s = -_FRESH_S

    def find(self, names: Iterable[str]) -> dict[str, Topic]:
        """Return the existing topics with these names, by name."""
        now_s = clock.monotonic_s()
        topics: dict[str, Topic] = {}
        missing: set[str] = set()
        with self._lock:
            for name in set(names):
                read_s, topic = self._found.get(name, (-_FRESH_S, None))
                if topic is None or now_s - read_s >= _FRESH_S:
                    missing.add(name)
                else:
                    topics[name] = topic
        if missing:
            read = self._cluster.store.read(lambda connection: find_topics(connection, missing))
            with self._lock:
                self._drop_old(now_s)
                for name in missing - read.keys():
                    self._found.pop(name, None)
                self._found.update((name, (now_s, topic)) for name, topic in read.items())
            topics |= read
        return topics

    def names(self, topic_ids: Iterable[UUID]) -> dict[UUID, str]:
        """Return the names of the existing topics with these ids, by Kafka's topic id.

        A topic may have been deleted within the last second.
        """
        now_s = clock.monotonic_s()
        with self._lock:
            cached = {topic_id: self._names.get(topic_id, (-_FRESH_S, "")) for topic_id in topic_ids}
        names = {topic_id: name for topic_id, (read_s, name) in cached.items() if now_s - read_s < _FRESH_S}
        if missing := {topic_id.hex for topic_id in cached.keys() - names.keys()}:
            found = self._cluster.store.read(lambda connection: topics_of_uuids(connection, missing))
            read = {UUID(hex=each): topic.name for each, topic in found.items()}
            with self._lock:
                self._drop_old(now_s)
                self._names.update((topic_id, (now_s, name)) for topic_id, name in read.items())
            names |= read
        return names

    def forget(self, name: str) -> None:
        """Read the topic again at its next use."""
        with self._lock:
            self._found.pop(name, None)

    def _drop_old(self, now_s: float) -> None:
        """Drop what is not fresh any more, such as deleted topics. Call it with the lock."""
        if now_s - self._dropped_s >= _FRESH_S:
            self._dropped_s = now_s
            self._found = {name: found for name, found in self._found.items() if now_s - found[0] < _FRESH_S}
            self._names = {topic_id: found for topic_id, found in self._names.items() if now_s - found[0] < _FRESH_S}
