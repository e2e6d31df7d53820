"""Defines the periodic tasks of two leases: `controller` (replicas, leaders) and `coordinator` (groups,
maintenance).
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial

from spark_log import clock
from spark_log.cluster import promotion as acceptance
from spark_log.cluster.log_dir_failures import suspected_log_dirs
from spark_log.config import ClusterSettings
from spark_log.errors import NotCoordinatorError
from spark_log.errors.first_failure import FirstFailure
from spark_log.groups.assignors import known_assignors
from spark_log.groups.consumer.reconciliation import groups_of_changed_topics, reconcile_group, stale_groups
from spark_log.groups.share.dead_letters import DeadLetters, archiving_partitions
from spark_log.groups.share.service import end_idle_locks
from spark_log.ids import HOME, StoreId, TopicId
from spark_log.log.append.write_ids import Writer
from spark_log.log.partitions.retired_replicas import delete_retired_replicas
from spark_log.maintenance.client_log import ClientLog
from spark_log.maintenance.context import MaintenanceContext
from spark_log.maintenance.coordinator.lease_runner import PeriodicTask, PeriodicTaskContext
from spark_log.maintenance.coordinator.recorder import Recorder, record_task_runs
from spark_log.maintenance.rewrite.segment_merge import BACKGROUND_GROWTH
from spark_log.maintenance.seal_task import TOPICS_MAX, TableRounds, publish_to_catalog
from spark_log.maintenance.task_list import TASKS, Task
from spark_log.replication.controller import controller
from spark_log.replication.controller.balance import auto_rebalance
from spark_log.replication.controller.isr_lag import LagWatch, read_lagging_members
from spark_log.replication.controller.log_dir_inspection import inspect_log_dirs
from spark_log.replication.controller.topic_copies import follow_all
from spark_log.replication.controller.topic_moves import continue_moves
from spark_log.replication.replicas.replica_moves import switch_reassignments

logger = logging.getLogger(__name__)

_INSPECT_S = 2.0
"""The time between two inspections of log dirs if no failure is reported."""
_CATALOG_MS = 2_000
"""The time between two searches for tables in a catalog that are behind, which read all partitions."""


# The coordinator's ---------------------------------------------------------------------------------------------------


def _reconcile(context: PeriodicTaskContext, group_ids: Sequence[str]) -> None:
    assignors = known_assignors()
    with FirstFailure() as failure:
        for group_id in group_ids:
            try:
                reconcile_group(context.cluster.store, group_id, assignors, context.fence)
            except NotCoordinatorError:
                raise
            except Exception as error:  # of an assignor, or damaged rows: it does not stop the other groups
                failure.keep(error)


def _reconcile_groups(context: PeriodicTaskContext) -> None:
    _reconcile(context, stale_groups(context.cluster.store))


def _follow_topic_changes(context: PeriodicTaskContext) -> None:
    _reconcile(context, groups_of_changed_topics(context.cluster.store))


def _serve_share_groups(context: PeriodicTaskContext) -> None:
    """Do for share groups that no member polls what polls do: end locks by time, and write dead letters."""
    store = context.cluster.store
    with FirstFailure() as failure:
        with failure.attempt():
            end_idle_locks(store, context.fence)
        places = store.read(archiving_partitions)
        if places:
            make_log = partial(ClientLog, context.cluster, holder="coordinator: dead letters")
            with closing(DeadLetters(make_log)) as letters:
                for group_id, key in places:
                    if context.stopping():
                        break
                    letters.write(group_id, key)


GROUP_TASKS: tuple[PeriodicTask, ...] = (
    PeriodicTask("end sessions and assign partitions of groups", 250, _reconcile_groups),
    PeriodicTask("assign partitions of topics that were created or changed", 5_000, _follow_topic_changes),
    PeriodicTask("share groups", 60_000, _serve_share_groups),
)


def _maintenance_task(task: Task, every_ms: Callable[[ClusterSettings], int]) -> PeriodicTask:
    def run(context: PeriodicTaskContext) -> list[str]:
        notes = []
        lease_ms = context.settings.producer_write_id_lease_ms
        with closing(Writer(context.cluster.store, f"coordinator: {task.name}", lease_ms)) as writer:
            maintenance = MaintenanceContext(
                context.cluster,
                context.settings,
                writer,
                context.fence,
                stopping=context.stopping,
                growth=BACKGROUND_GROWTH,
            )
            for report in task.run(maintenance):
                logger.info("%s", report)
                notes.append(str(report))
        return notes

    return PeriodicTask(f"maintenance: {task.name}", every_ms, run, task.after_a_pause)


_METRICS_OFF_MS = 5_000
"""The time between two checks whether metrics.interval.ms is still -1."""


def _metrics_interval_ms(settings: ClusterSettings) -> int:
    return settings.metrics_interval_ms if settings.metrics_interval_ms > 0 else _METRICS_OFF_MS


def _recording_task(
    name: str,
    record: Callable[[PeriodicTaskContext], None],
    every_ms: Callable[[ClusterSettings], int] = _metrics_interval_ms,
) -> PeriodicTask:
    def run(context: PeriodicTaskContext) -> None:
        if context.settings.metrics_interval_ms > 0:
            record(context)

    return PeriodicTask(name, every_ms, run)


def _record_task_runs(context: PeriodicTaskContext) -> None:
    record_task_runs(context.cluster, context.run_buffer, context.fence)


def _beat(context: PeriodicTaskContext) -> None:
    acceptance.beat(context.cluster, context.settings, context.fence)


def _end_silent_sessions(context: PeriodicTaskContext) -> None:
    context.cluster.store.end_silent_sessions()


def _follow_home(context: PeriodicTaskContext) -> None:
    follow_all(context.cluster)
    continue_moves(context.cluster)


def data_store_tasks() -> tuple[PeriodicTask, ...]:
    """Return the tasks of the holder of lease `coordinator` of a data store."""
    return (
        *_scheduled(),
        PeriodicTask("end sessions of stopped processes", 5_000, _end_silent_sessions),
        PeriodicTask("beat, and accept a promotion of the store", acceptance.BEAT_MS, _beat),
    )


def _scheduled() -> list[PeriodicTask]:
    """Return the tasks of maintenance. A schema registry, or a catalog, that does not answer delays only the task that
    asks it.
    """
    left: set[TopicId] = set()
    rounds = {
        "seal": TableRounds(TOPICS_MAX, leaves=left, catalogs=False),
        "seal records of new schemas": TableRounds(TOPICS_MAX, takes=left, catalogs=False),
    }
    [seal] = [task for task in TASKS if task.name == "seal"]
    tasks = [
        *(task for task in TASKS if task is not seal),
        *(replace(seal, name=name, run=each.run, every_ms=each.pause_ms) for name, each in rounds.items()),
        replace(seal, name="publish to the catalog", run=publish_to_catalog, every_ms=lambda _: _CATALOG_MS),
    ]
    return [_maintenance_task(task, task.every_ms) for task in tasks if task.every_ms is not None]


def coordinator_tasks() -> tuple[PeriodicTask, ...]:
    """Return the tasks of the holder of lease `coordinator` in the home store."""
    recorder = Recorder()
    return (
        *GROUP_TASKS,
        *data_store_tasks(),
        PeriodicTask("let data stores follow the home store", 5_000, _follow_home),
        _recording_task(
            "record metrics",
            lambda context: recorder.record(context.cluster, context.fence, context.term),
            lambda settings: recorder.pause_ms(_metrics_interval_ms(settings)),
        ),
        _recording_task("record runs of the coordinator's tasks", _record_task_runs),
    )


# The controller's ----------------------------------------------------------------------------------------------------


def _elect_leaders(context: PeriodicTaskContext) -> None:
    controller.elect_leaders(context.cluster.store, context.fence)


class _Inspection:
    """Inspects the log dirs every two seconds, and as soon as a failure is reported."""

    def __init__(self) -> None:
        self._next_s = 0.0

    def __call__(self, context: PeriodicTaskContext) -> None:
        now_s = clock.monotonic_s()
        if now_s >= self._next_s or context.cluster.store.read(suspected_log_dirs):
            self._next_s = now_s + _INSPECT_S
            inspect_log_dirs(context.cluster, context.fence)


def _shrink_isrs(watch: LagWatch, context: PeriodicTaskContext) -> None:
    lag_max_s = context.settings.replica_lag_time_max_ms / 1000
    late = watch.late(clock.monotonic_s(), context.cluster.store.read(read_lagging_members), lag_max_s)
    controller.shrink_isrs(context.cluster.store, context.fence, late)


def _lag_check_interval_ms(settings: ClusterSettings) -> int:
    return min(1_000, max(10, settings.replica_lag_time_max_ms // 4))


def _finish_reassignments(context: PeriodicTaskContext) -> None:
    switch_reassignments(context.cluster, context.fence)


def _delete_retired_replicas(context: PeriodicTaskContext) -> None:
    delete_retired_replicas(context.cluster, context.fence, context.stopping)


def _rebalance_leaders(context: PeriodicTaskContext) -> None:
    if context.settings.auto_leader_rebalance_enable:
        threshold_percent = context.settings.leader_imbalance_per_broker_percentage
        auto_rebalance(context.cluster.store, context.fence, threshold_percent)


def controller_tasks(store_id: StoreId = HOME) -> tuple[PeriodicTask, ...]:
    """Return the tasks of the holder of lease `controller` of a store."""
    recording = [_recording_task("record runs of the controller's tasks", _record_task_runs)]
    watch = LagWatch()
    return (
        PeriodicTask("elect leaders and remove dead replicas from ISRs", 200, _elect_leaders),
        PeriodicTask("inspect log dirs", 200, _Inspection()),
        PeriodicTask(
            "remove lagging replicas from ISRs", _lag_check_interval_ms, lambda context: _shrink_isrs(watch, context)
        ),
        PeriodicTask("finish reassignments", 500, _finish_reassignments),
        PeriodicTask(
            "elect preferred leaders", lambda settings: settings.leader_imbalance_check_interval_ms, _rebalance_leaders
        ),
        PeriodicTask("delete retired replicas", 600_000, _delete_retired_replicas),
        *(recording if store_id == HOME else ()),  # the history is a topic of the home store
    )
