"""Shows the state of the cluster in one view (page `/`)."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from spark_log.console.charts import Chart, chart
from spark_log.console.listing import row_of
from spark_log.console.pages.topic import GroupLag
from spark_log.console.routes import Call, NotFound, View
from spark_log.errors import SparkLogError, redact
from spark_log.facts.metrics.activity import lag_by_group
from spark_log.facts.metrics.cluster_snapshot import ClusterSnapshot, PartitionFacts
from spark_log.facts.metrics.history import DAY_MS, Kind
from spark_log.facts.metrics.task_runs import TaskRun
from spark_log.text import count_of

_SHOWN_MAX = 10


@dataclass(frozen=True)
class FailedTask:
    """A failed run of a task. `error` is None for users who do not see all topics, because it may name a topic."""

    task: str
    start_ms: int
    error: str | None


@dataclass(frozen=True)
class Overview:
    """The content of the page. Lists have only the first entries.

    `problems` are sentences for the user. If there are none, the cluster is healthy. `open_transactions` is None for
    users who do not see all topics.
    """

    now_ms: int
    problems: tuple[str, ...]
    controller: str | None
    brokers: int
    brokers_alive: int
    gateways: int
    topics: int
    partitions: int
    open_transactions: int | None
    offline: int
    offline_partitions: tuple[PartitionFacts, ...]
    under_replicated: int
    under_replicated_partitions: tuple[PartitionFacts, ...]
    lag_leaders: tuple[GroupLag, ...]
    failed_tasks: tuple[FailedTask, ...] = ()
    """The failed runs of the last 24 hours, newest first."""
    history_error: str | None = None
    """The reason why the history cannot be read, or None."""
    shows_throughput: bool = False
    """Whether the user may see the sum over all topics."""


def overview(snapshot: ClusterSnapshot) -> Overview:
    """Return the content of the page from the state of the cluster. Pure."""
    alive = sum(broker.alive for broker in snapshot.brokers)
    offline = [partition for partition in snapshot.partitions if partition.is_offline]
    behind = [partition for partition in snapshot.partitions if partition.is_under_replicated]
    topics = Counter(snapshot.stores.get(topic.store_id) for topic in snapshot.topics.values())
    below = sum(partition.in_sync < partition.min_in_sync for partition in snapshot.partitions)
    checks = (
        (
            snapshot.controller is None and snapshot.needs_coordinator,
            "There is no active coordinator: run `spark-log coordinator`.",
        ),
        (
            alive < len(snapshot.brokers),
            f"{len(snapshot.brokers) - alive} of {len(snapshot.brokers)} brokers are down.",
        ),
        (bool(offline), f"{len(offline):,} partitions are offline."),
        (below > 0, f"{below:,} partitions have fewer in-sync replicas than min.insync.replicas."),
        (bool(behind), f"{len(behind):,} partitions are under-replicated."),
        *(
            (True, f"Data store {name} does not answer, with {count_of(topics[name], 'topic')}.")
            for name, answers in snapshot.answering.items()
            if not answers
        ),
    )
    return Overview(
        snapshot.now_ms,
        tuple(text for found, text in checks if found),
        snapshot.controller,
        len(snapshot.brokers),
        alive,
        snapshot.gateways,
        len(snapshot.topics),
        len(snapshot.partitions),
        snapshot.open_transactions,
        len(offline),
        tuple(offline[:_SHOWN_MAX]),
        len(behind),
        tuple(behind[:_SHOWN_MAX]),
        _lag_leaders(snapshot),
    )


def _lag_leaders(snapshot: ClusterSnapshot) -> tuple[GroupLag, ...]:
    lags = [(group, lag) for group, lag in lag_by_group(snapshot.groups).items() if lag.lag]
    lags.sort(key=lambda each: (-(each[1].lag_s or 0.0), -each[1].lag))
    return tuple(
        row_of(GroupLag, lag, group=group, members=snapshot.members.get(group, 0)) for group, lag in lags[:_SHOWN_MAX]
    )


def _failed(runs: Sequence[TaskRun], now_ms: int, *, with_errors: bool) -> tuple[FailedTask, ...]:
    return tuple(
        FailedTask(run.task, run.start_ms, redact(run.error or "") if with_errors else None)
        for run in runs
        if run.start_ms > now_ms - DAY_MS
    )


def _facts(call: Call) -> Overview:
    facts = overview(call.snapshot())
    sees_all = call.role.sees_all
    if not sees_all:
        facts = replace(facts, open_transactions=None)
    try:
        failed = _failed(call.snapshots.failed_tasks.get(), facts.now_ms, with_errors=sees_all)
    except SparkLogError as error:  # a log dir with the history is offline
        return replace(facts, history_error=redact(str(error)) if sees_all else "the history cannot be read")
    return replace(facts, failed_tasks=failed, shows_throughput=sees_all)


def _throughput(call: Call) -> Chart:
    if not call.role.sees_all:
        raise NotFound("only users who see all topics see the throughput of the cluster")
    return chart(call, "Throughput of the cluster", "records/s", Kind.CLUSTER, "", {"rate": "appended"})


VIEWS = (
    View("/", "overview.html", _facts, title="Overview"),
    View("/throughput", "chart.html", _throughput),
)
