"""Which topics there are, for subscriptions: patterns, topics that are to be made, partitions without a group."""

import logging
from collections.abc import Collection, Mapping

import sqlalchemy as sa

from spark_log import clock
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.topics import create_topic
from spark_log.consume.consumer_settings import ConsumerSettings
from spark_log.errors import FatalError
from spark_log.metadata.columns import TOPIC

logger = logging.getLogger(__name__)

_PROMPTLY_S = 0.25
"""How often to look again, at the most, while the store changes all the time."""


class TopicWatch:
    """Looks for one consumer which topics there are. Not thread-safe."""

    def __init__(self, cluster: Cluster, settings: ConsumerSettings) -> None:
        self._cluster = cluster
        self._settings = settings
        self._seen: int | None = None
        self._looked_s = float("-inf")
        self._known: set[str] = set()
        self.counts: Mapping[str, int] = {}
        """Partition count of every topic that was asked for and is there, as of the last look."""

    def forget(self) -> None:
        """The next `refresh_if_due` looks."""
        self._seen = None

    def refresh_if_due(self, names: Collection[str] | None) -> bool:
        """Look at the topics of these names, or at all; whether it did.

        At once after `forget`, soon after a change of the store, and every metadata_max_age_ms. Topics of these names
        that are missing are made (allow_auto_create_topics), except for one that was there and has been deleted.
        """
        now_s = clock.monotonic_s()
        age_s = now_s - self._looked_s
        young = self._seen is not None and age_s < self._settings.metadata_max_age_ms / 1000
        if young and (age_s < _PROMPTLY_S or self._cluster.store.changes.current() == self._seen):
            return False
        self._seen = self._cluster.store.changes.current()
        self._looked_s = now_s
        self.counts = partition_counts(self._cluster, names)
        if names is not None and self._settings.allow_auto_create_topics:
            missing = set(names) - self.counts.keys() - self._known
            if missing:
                self._create(missing)
                self.counts = partition_counts(self._cluster, names)
        self._known |= self.counts.keys()
        return True

    def time_to_look_s(self) -> float:
        """How long a caller that waits for topics may wait at the most."""
        now_s = clock.monotonic_s()
        if self._seen is None or self._cluster.store.changes.current() != self._seen:
            return max(0.001, self._looked_s + _PROMPTLY_S - now_s)
        return max(0.001, self._looked_s + self._settings.metadata_max_age_ms / 1000 - now_s)

    def _create(self, names: Collection[str]) -> None:
        for name in sorted(names):
            self._known.add(name)  # a topic that cannot be made is not tried again and again
            try:
                create_topic(self._cluster, name, 1)
            except FatalError as error:  # somebody else made it just now, or nobody can
                logger.info("topic %s not made: %s", name, error)


def partition_counts(cluster: Cluster, names: Collection[str] | None = None) -> dict[str, int]:
    """Partition count of each topic, of these names or of all. Names must be legal ones."""
    query = sa.select(TOPIC.name, TOPIC.partition_count)
    if names is not None:
        query = query.where(TOPIC.name.in_(list(names)))
    return cluster.store.read(lambda connection: {name: count for name, count in connection.execute(query)})  # noqa: C416
