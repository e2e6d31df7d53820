"""Records the history: measures the cluster at intervals and appends to `__metrics`.

The first call only takes a snapshot, because rates need two; the second one follows soon, so that a new cluster has a
history at once. If a record cannot be written, its interval is missing in the history: it is not added to the next one,
since it may have been written after all.
"""

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.lease import Fence
from spark_log.facts.metrics.cluster_snapshot import ClusterSnapshot, read_cluster
from spark_log.facts.metrics.history import Kind
from spark_log.facts.metrics.measurement import Written, measure, select, task_records
from spark_log.facts.metrics.recorded_topics import METRICS
from spark_log.facts.metrics.size_snapshot import read_sizes
from spark_log.facts.metrics.task_runs import TaskRunBuffer
from spark_log.maintenance.recorded_appends import append_records

_SECOND_CALL_MS = 2_000


class Recorder:
    """Measures a cluster, in one thread. A coordinator calls it while it holds its lease."""

    def __init__(self) -> None:
        self._before: ClusterSnapshot | None = None
        self._term: int | None = None
        self._written: dict[tuple[Kind, str], Written] = {}

    def pause_ms(self, interval_ms: int) -> int:
        """Return the ms until the next call. `interval_ms` is the setting metrics.interval.ms."""
        return interval_ms if self._written else min(interval_ms, _SECOND_CALL_MS)

    def record(self, cluster: Cluster, fence: Fence, term: int | None) -> None:
        """Append the records of the interval since the last call in this term, in one transaction with `fence`.

        The first call of a term only takes a snapshot: another process may have recorded the interval before it.
        """
        before, now = self._before if term == self._term else None, read_cluster(cluster)
        self._before, self._term = now, term
        if before is None:
            self._written = {}  # another process may have recorded other values since
            return
        found = measure(before, now, read_sizes(cluster))
        records = select(found, self._written, now.now_ms)
        append_records(cluster, METRICS, records, fence=fence)
        there = {(kind, record.key) for kind, of_kind in found.items() for record in of_kind}
        self._written = {key: last for key, last in self._written.items() if key in there}
        self._written |= {(Kind(r.partition), r.key): Written(r.fields, now.now_ms) for r in records}


def record_task_runs(cluster: Cluster, runs: TaskRunBuffer, fence: Fence) -> None:
    """Append the runs that the buffer has kept. They stay in it if that fails."""
    taken, omitted = runs.take()
    try:
        append_records(cluster, METRICS, task_records(taken, omitted), fence=fence)
    except Exception:
        runs.put_back(taken, omitted)
        raise
