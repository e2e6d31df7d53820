"""Caches values of the cluster that all requests share, and selects the part of them that a role shows."""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.usage import by_topic, cluster_usage
from spark_log.console.access.roles import Role
from spark_log.facts.metrics.cluster_snapshot import ClusterSnapshot, read_cluster
from spark_log.facts.metrics.history import DAY_MS, latest_rates, read_task_runs
from spark_log.remembered import Cached
from spark_log.replication.controller.balance import load_balance

AGE_S_MAX = 2.0
READS_PER_AGE = 20
"""A value is kept for at least this multiple of the duration of its read. A value that takes a second to read is kept
for at least 20 seconds, so that the console leaves the CPU to other processes.
"""

_SLOW_AGE_S_MAX = 15.0
"""The maximum age of values whose read scans all rows of table segment, or the history."""

T = TypeVar("T")


class Snapshots:
    """The state of the cluster, shared by all requests.

    `sizes` has the usage by topic id. `rates` has the records appended per second by topic, or is None without a
    history.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._state = Cached(AGE_S_MAX, lambda: read_cluster(cluster), READS_PER_AGE)
        self.sizes = _slow(lambda: by_topic(cluster_usage(cluster).used.items()))
        self.rates = _slow(lambda: latest_rates(cluster))
        self.failed_tasks = _slow(
            lambda: read_task_runs(cluster, failed=True, from_ms=cluster.store.now().wall_ms - DAY_MS, limit=10)
        )
        self.balance = _slow(lambda: load_balance(cluster))

    def now(self) -> ClusterSnapshot:
        return self._state.get()

    def forget(self) -> None:
        """Let the next request read the state again, because something was changed."""
        self._state.forget()
        self.sizes.forget()


def _slow(read: Callable[[], T]) -> Cached[T]:
    return Cached(_SLOW_AGE_S_MAX, read, READS_PER_AGE)


def visible(snapshot: ClusterSnapshot, role: Role) -> ClusterSnapshot:
    """Return the snapshot without the topics that `role` does not show. Pure."""
    if role.sees_all:
        return snapshot
    topics = {topic_id: topic for topic_id, topic in snapshot.topics.items() if role.sees(topic.name)}
    return replace(
        snapshot,
        topics=topics,
        partitions=tuple(each for each in snapshot.partitions if each.topic_id in topics),
        groups=tuple(each for each in snapshot.groups if role.sees(each.topic)),
        share_partitions=tuple(each for each in snapshot.share_partitions if role.sees(each.topic)),
        table_lags={key: lag for key, lag in snapshot.table_lags.items() if key.topic_id in topics},
    )
