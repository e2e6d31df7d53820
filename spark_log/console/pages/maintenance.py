"""Shows the periodic tasks, their runs, and the pending work (page `/maintenance`)."""

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.each_store import ask_stores
from spark_log.cluster.lease import lease_status
from spark_log.cluster.usage import Usage
from spark_log.console.listing import row_of
from spark_log.console.routes import Call, View
from spark_log.errors import InvalidConfigurationError
from spark_log.facts.metrics.history import read_task_runs
from spark_log.facts.metrics.task_runs import TaskRun
from spark_log.log.partitions.truncations import RecordedTruncation, list_truncations
from spark_log.maintenance.task_list import TASKS
from spark_log.metadata.sql_columns import RETIRED_COPY, RETIRED_FILE, RETIRED_REPLICA

_RUNS_MAX = 1_000
_SHOWN_MAX = 200
_TRUNCATIONS_MAX = 50


@dataclass(frozen=True)
class TaskRow:
    """A task of the coordinator.

    `last_success_ms` and `error` are of the recorded runs. `error` is None unless the last run failed.
    """

    task: str
    about: str
    every_ms: int | None
    last_ms: int | None
    last_success_ms: int | None
    error: str | None


@dataclass(frozen=True)
class Waiting:
    """The pending work.

    `unsealed_bytes` are in inline tails. `unpublished_records` are missing in a Delta table of their topic.
    `small_files` may be rewritten by a merge. `retired_*` are deleted when readers no longer use them.
    """

    unsealed_bytes: int
    unpublished_records: int
    small_files: int
    retired_files: int
    retired_replicas: int
    retired_copies: int


@dataclass(frozen=True)
class Run:
    """A recorded run. `notes` has its changes, and is empty for users who do not see all topics."""

    task: str
    lease: str
    start_ms: int
    seconds: float
    outcome: str
    error: str | None
    notes: str


@dataclass(frozen=True)
class Maintenance:
    """The content of the page.

    `needs_coordinator` is whether a process has to run the tasks. `recorded` is whether a coordinator records its runs.
    Quick runs that changed nothing are not recorded.
    """

    coordinator: str | None
    needs_coordinator: bool
    recorded: bool
    tasks: Sequence[TaskRow]
    waiting: Waiting
    task: str
    outcome: str
    runs: Sequence[Run]
    truncations: Sequence[RecordedTruncation]


def _facts(call: Call) -> Maintenance:
    cluster = call.cluster
    task, outcome = call.query.get("task", ""), call.query.get("outcome", "")
    if outcome not in ("", "failed", "succeeded"):
        raise InvalidConfigurationError(f"outcome: expected failed or succeeded, got {outcome!r}")
    runs = read_task_runs(cluster, limit=_RUNS_MAX)
    shown = [run for run in runs if task in ("", run.task) and outcome in ("", run.outcome)]
    lease = lease_status(cluster.store, "coordinator")
    of_stores = ask_stores(cluster, lambda each: list_truncations(each.store)).results.values()
    truncations = [each for found in of_stores for each in found if call.sees(each.topic)]
    return Maintenance(
        lease.holder if lease.left_ms else None,
        call.snapshot().needs_coordinator,
        cluster.store.settings.metrics_interval_ms > 0,
        _tasks(call, runs),
        _waiting(call),
        task,
        outcome,
        [_run(call, run) for run in shown[:_SHOWN_MAX]],
        truncations[::-1][:_TRUNCATIONS_MAX],
    )


def _tasks(call: Call, runs: Sequence[TaskRun]) -> list[TaskRow]:
    """Return the tasks of maintenance, and the other tasks that have recorded runs. `runs` has the newest run first."""
    settings = call.cluster.store.settings
    by_name = {f"maintenance: {each.name}": each for each in TASKS if each.every_ms is not None}
    rows = []
    for name in dict.fromkeys([*by_name, *sorted({run.task for run in runs})]):
        own = [run for run in runs if run.task == name]
        succeeded = next((run.start_ms for run in own if run.error is None), None)
        error = own[0].error if own else None
        about, every_ms = "", None
        if name in by_name and by_name[name].every_ms is not None:
            about, every_ms = by_name[name].summary, by_name[name].every_ms(settings)  # type: ignore[misc]
        rows.append(TaskRow(name, about, every_ms, own[0].start_ms if own else None, succeeded, _error(call, error)))
    return rows


def _waiting(call: Call) -> Waiting:
    snapshot = call.snapshot()
    unpublished: dict[int, int] = {}
    for (topic_id, _), lag in snapshot.delta_lags.items():
        unpublished[topic_id] = max(lag.records, unpublished.get(topic_id, 0))
    sizes = call.snapshots.sizes.get()
    counted = [
        sa.select(sa.func.count()).select_from(column.table).scalar_subquery()
        for column in (RETIRED_FILE.path, RETIRED_REPLICA.topic_id, RETIRED_COPY.path)
    ]

    def count(view: Cluster) -> Sequence[int]:
        return view.store.read(lambda connection: connection.execute(sa.select(*counted)).one())

    of_stores = ask_stores(call.cluster, count).results.values()
    retired = [sum(counts) for counts in zip(*of_stores, strict=True)]
    return Waiting(
        sum(partition.tail_bytes for partition in snapshot.partitions),
        sum(unpublished.values()),
        sum((sizes.get(topic_id, Usage()).small_files for topic_id in snapshot.topics), start=0),
        *retired,
    )


def _run(call: Call, run: TaskRun) -> Run:
    notes = run.notes if call.role.sees_all else ""
    return row_of(Run, run, error=_error(call, run.error), notes=notes)


def _error(call: Call, text: str | None) -> str | None:
    """Return the error, or a general text for users who do not see all topics, since errors may name topics."""
    return text if text is None or call.role.sees_all else "failed; your role does not show all topics"


VIEWS = (View("/maintenance", "maintenance.html", _facts, title="Maintenance"),)
