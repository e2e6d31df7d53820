"""Facts of the cluster that all requests share, each read at most once in its time, and the part that a role shows."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Generic, TypeVar

from spark_log import clock
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.usage import Usage, usage
from spark_log.console.access.roles import Role
from spark_log.facts.metrics.cluster_snapshot import ClusterSnapshot, read_cluster
from spark_log.facts.metrics.history import DAY_MS, latest_rates, read_task_runs
from spark_log.facts.metrics.task_runs import TaskRun
from spark_log.replication.controller.balance import Balance, load_balance

AGE_S_MAX = 2.0
READS_PER_AGE = 20
"""What takes a second to read is kept for 20 seconds at least, so that the console leaves the cores to others."""

_SLOW_AGE_S_MAX = 15.0
"""Of what reads every row of table segment, or the history."""

T = TypeVar("T")


class Shared(Generic[T]):
    """A value that is read when the last one is older than `age_s_max`, and than READS_PER_AGE times the duration of
    its read. Requests at the same time share one read.
    """

    def __init__(self, age_s_max: float, read: Callable[[], T]) -> None:
        self._age_s_max, self._read = age_s_max, read
        self._lock = threading.Lock()
        self._last: tuple[float, T] | None = None
        """The value, and until when it serves."""

    def get(self) -> T:
        with self._lock:
            if self._last is None or clock.monotonic_s() > self._last[0]:
                began_s = clock.monotonic_s()
                found = self._read()
                now_s = clock.monotonic_s()
                self._last = (now_s + max(self._age_s_max, READS_PER_AGE * (now_s - began_s)), found)
            return self._last[1]

    def forget(self) -> None:
        with self._lock:
            self._last = None


class Snapshots:
    """The state of the cluster, shared by all requests. `sizes`: by topic id. `rates`: records appended per second, by
    topic; None without a history.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._state: Shared[ClusterSnapshot] = Shared(AGE_S_MAX, lambda: read_cluster(cluster))
        self.sizes: Shared[Mapping[int, Usage]] = Shared(_SLOW_AGE_S_MAX, lambda: _sizes(cluster))
        self.rates: Shared[Mapping[str, float] | None] = Shared(_SLOW_AGE_S_MAX, lambda: latest_rates(cluster))
        self.failed_tasks: Shared[Sequence[TaskRun]] = Shared(
            _SLOW_AGE_S_MAX,
            lambda: read_task_runs(cluster, failed=True, from_ms=cluster.store.now().wall_ms - DAY_MS, limit=10),
        )
        self.balance: Shared[Balance] = Shared(_SLOW_AGE_S_MAX, lambda: load_balance(cluster.store))

    def now(self) -> ClusterSnapshot:
        return self._state.get()

    def forget(self) -> None:
        """Read anew for the next request: something was changed."""
        self._state.forget()
        self.sizes.forget()


def _sizes(cluster: Cluster) -> dict[int, Usage]:
    found: dict[int, Usage] = {}
    for (topic_id, _), part in cluster.store.read(usage).items():
        found[topic_id] = found.get(topic_id, Usage()) + part
    return found


def visible(snapshot: ClusterSnapshot, role: Role) -> ClusterSnapshot:
    """The snapshot without the topics that `role` does not show. Pure."""
    if role.sees_all:
        return snapshot
    topics = {topic_id: topic for topic_id, topic in snapshot.topics.items() if role.sees(topic.name)}
    return replace(
        snapshot,
        topics=topics,
        partitions=tuple(each for each in snapshot.partitions if each.topic_id in topics),
        groups=tuple(each for each in snapshot.groups if role.sees(each.topic)),
        delta_lags={key: lag for key, lag in snapshot.delta_lags.items() if key[0] in topics},
    )
