"""Exports metrics of a process: of its periodic tasks, and of the cluster if it holds the coordinator's lease.

Only the holder exports facts of the cluster, so that a sum over all processes counts nothing twice.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Protocol

from prometheus_client import GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.each_store import ASK_TIMEOUT_MS
from spark_log.errors import SparkLogError
from spark_log.facts.metrics.cluster_metrics import cluster_metrics, size_metrics
from spark_log.facts.metrics.cluster_snapshot import read_cluster
from spark_log.facts.metrics.size_snapshot import read_sizes
from spark_log.facts.metrics.table_metrics import work_metrics
from spark_log.facts.metrics.task_runs import TaskRuns
from spark_log.remembered import Cached
from spark_log.tables.table_work import of_this_process

CACHED_S = 15.0
"""Scrapes within this time get the same facts of the cluster."""

SIZES_CACHED_S = 60.0
"""Scrapes within this time get the same sizes of segments, which take longer to read."""


class ClusterCollector(Collector):
    """Collects the metrics of the cluster while `is_holder` is true, and for every process whether the home store
    answers it (spark_log_store_up): a home store that is down for longer than a lease leaves no holder.
    """

    def __init__(self, cluster: Cluster, is_holder: Callable[[], bool]) -> None:
        self._cluster, self._is_holder = cluster, is_holder
        self._facts = Cached(CACHED_S, lambda: _facts_of(cluster))
        self._sizes = Cached(SIZES_CACHED_S, lambda: list(size_metrics(read_sizes(cluster))))

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of a scrape."""
        families: list[Metric] = []
        answered = False
        with suppress(SparkLogError):  # spark_log_store_up is 0 then
            if self._is_holder():
                families = [*self._facts.get(), *self._sizes.get()]
            else:
                self._cluster.store.read(self._cluster.store.clock, timeout_ms=ASK_TIMEOUT_MS)
            answered = True
        yield GaugeMetricFamily("spark_log_store_up", "1 if the home store answered this process.", int(answered))
        yield from families


def _facts_of(cluster: Cluster) -> list[Metric]:
    snapshot = read_cluster(cluster)
    return [*cluster_metrics(snapshot), *work_metrics(snapshot.topics.values(), of_this_process())]


class Tasks(Protocol):
    """The periodic tasks of a lease: a LeaseRunner. `acting` is true if this process holds the lease."""

    @property
    def lease(self) -> str: ...
    @property
    def runs(self) -> Mapping[str, TaskRuns]: ...
    @property
    def acting(self) -> bool: ...


class TaskCollector(Collector):
    """Collects the runs of the periodic tasks of the leases that this process holds. `runners` returns the tasks of
    each lease, with the name of the lease's store.
    """

    def __init__(self, runners: Callable[[], Iterable[tuple[str, Tasks]]]) -> None:
        self._runners = runners

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of a scrape."""
        held = GaugeMetricFamily(
            "spark_log_lease_held", "1 if this process holds the lease.", labels=("store", "lease")
        )
        labels = ("store", "task")
        success = GaugeMetricFamily(
            "spark_log_task_last_success_timestamp_seconds", "When the task last succeeded.", labels=labels
        )
        seconds = GaugeMetricFamily(
            "spark_log_task_last_duration_seconds", "Duration of the task's last run.", labels=labels
        )
        failures = CounterMetricFamily("spark_log_task_failures", "Runs that failed in this process.", labels=labels)
        for store, runner in self._runners():
            held.add_metric((store, runner.lease), int(runner.acting))
            for name, run in sorted(runner.runs.items() if runner.acting else ()):
                seconds.add_metric((store, name), run.seconds)
                failures.add_metric((store, name), run.failures)
                if run.success_ms is not None:
                    success.add_metric((store, name), run.success_ms / 1000)
        yield from (held, success, seconds, failures)


def registry_of(*collectors: Collector) -> CollectorRegistry:
    """Return a registry of these collectors, and of the process: CPU, memory, file descriptors, garbage collection."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    for collector in collectors:
        registry.register(collector)
    return registry
