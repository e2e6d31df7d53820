"""Watches the existing topics and their partition counts for subscriptions, and creates missing topics."""

import logging
from collections.abc import Collection, Mapping

import sqlalchemy as sa

from spark_log import clock
from spark_log.clients.consume.consumer_settings import ConsumerSettings
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.topics import IS_LIVE
from spark_log.errors import FatalError
from spark_log.metadata.sql_columns import TOPIC
from spark_log.replication.controller.topic_operations import create_topic

logger = logging.getLogger(__name__)

_PROMPTLY_S = 0.25
"""Minimum time between two reads while the store keeps changing."""


class TopicWatch:
    """Reads the list of topics for one consumer. Not thread-safe."""

    def __init__(self, cluster: Cluster, settings: ConsumerSettings) -> None:
        self._cluster = cluster
        self._settings = settings
        self._seen: int | None = None
        self._read_s = float("-inf")
        self._known: set[str] = set()
        self.counts: Mapping[str, int] = {}
        """Partition count of every requested topic that exists, as of the last read."""

    def forget(self) -> None:
        """Make the next `refresh_if_due` read the topics."""
        self._seen = None

    def refresh_if_due(self, names: Collection[str] | None) -> bool:
        """Read the topics of these names, or all topics, if that is due; return whether it was.

        A read is due after `forget`, shortly after a change of the store, and every metadata_max_age_ms. A missing
        topic of these names is created (allow_auto_create_topics), unless it has existed, or its creation has been
        tried, since it is among the names.
        """
        now_s = clock.monotonic_s()
        age_s = now_s - self._read_s
        young = self._seen is not None and age_s < self._settings.metadata_max_age_ms / 1000
        if young and (age_s < _PROMPTLY_S or self._cluster.store.changes.current() == self._seen):
            return False
        self._seen = self._cluster.store.changes.current()
        self._read_s = now_s
        self.counts = partition_counts(self._cluster, names)
        if names is not None and self._settings.allow_auto_create_topics:
            missing = set(names) - self.counts.keys() - self._known
            if missing:
                self._create(missing)
                self.counts = partition_counts(self._cluster, names)
            self._known = (self._known | self.counts.keys()) & set(names)
        return True

    def time_to_read_s(self) -> float:
        """Return the maximum time that a caller may wait until the next read."""
        now_s = clock.monotonic_s()
        if self._seen is None or self._cluster.store.changes.current() != self._seen:
            return max(0.001, self._read_s + _PROMPTLY_S - now_s)
        return max(0.001, self._read_s + self._settings.metadata_max_age_ms / 1000 - now_s)

    def _create(self, names: Collection[str]) -> None:
        for name in sorted(names):
            self._known.add(name)  # a topic whose creation fails is not tried again
            try:
                create_topic(self._cluster, name, 1)
            except FatalError as error:  # another client has just created it, or it cannot be created
                logger.info("topic %s not made: %s", name, error)


def partition_counts(cluster: Cluster, names: Collection[str] | None = None) -> dict[str, int]:
    """Return partition counts by topic, of these names or of all topics. Names must be legal."""
    query = sa.select(TOPIC.name, TOPIC.partition_count).where(IS_LIVE)
    if names is not None:
        query = query.where(TOPIC.name.in_(list(names)))
    return cluster.store.read(lambda connection: {name: count for name, count in connection.execute(query)})  # noqa: C416
