"""Lists the tasks of maintenance, with their intervals in the Coordinator, and runs them on request."""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.lease import Fence, unfenced
from spark_log.cluster.log_dir_failures import failures_of_log_dirs
from spark_log.config import ClusterSettings
from spark_log.errors import InvalidConfigurationError
from spark_log.errors.first_failure import FirstFailure
from spark_log.groups.offset_expiry import count_expired_offsets, expire_offsets
from spark_log.ids import HOME
from spark_log.log.append.producer_expiry import count_silent_producers, expire_producers
from spark_log.maintenance.client_log import ClientLog
from spark_log.maintenance.compaction.local_compaction import compact, plan_compaction
from spark_log.maintenance.context import MaintenanceContext, work_in_each_store
from spark_log.maintenance.report import Report
from spark_log.maintenance.rewrite_tasks import (
    backfill_columns,
    merge_segments,
    plan_backfill,
    plan_merge,
)
from spark_log.maintenance.seal_task import plan_seal, seal_tails
from spark_log.maintenance.upkeep_tasks import (
    clean_up_files,
    flush_topics,
    maintain_delta_tables,
    plan_clean_up,
    plan_delta_tables,
    plan_flush,
    plan_retain,
    retain,
)
from spark_log.metadata import commit_tokens
from spark_log.metadata.store import Store
from spark_log.replication.controller.fallback_controller import FallbackController
from spark_log.text import count_of
from spark_log.transactions.left_over_parts import Unresolved, find_unresolved, resolve
from spark_log.transactions.transaction_expiry import (
    abort_timed_out,
    count_expired_ids,
    expire_ids,
    expire_parts,
    timed_out,
)


@dataclass(frozen=True)
class Task:
    name: str
    summary: str
    every_ms: Callable[[ClusterSettings], int] | None
    """None means that the task runs only if it is named."""
    run: Callable[[MaintenanceContext], Iterable[Report]]
    """Yields a report for each changed topic during the work. A failing topic does not stop the others; the first error
    is raised at the end.
    """
    plan: Callable[[MaintenanceContext], Iterable[Report]]
    """Yields reports of the work that `run` would do now. Changes nothing."""
    after_a_pause: bool = False
    """Whether a coordinator runs it for the first time after `every_ms`."""


def _only_with_a_steady_clock(
    name: str, run: Callable[[MaintenanceContext], Iterable[Report]]
) -> Callable[[MaintenanceContext], Iterable[Report]]:
    """Postpone `run` while the store's clock is not trusted: a deletion by age cannot be undone."""

    def run_or_wait(context: MaintenanceContext) -> Iterator[Report]:
        if context.cluster.store.clock_is_steady():
            yield from run(context)
        else:
            yield Report(name, notes=(_CLOCK_WAS_SET,))

    return run_or_wait


_CLOCK_WAS_SET = (
    "postponed: the clock of the metadata store was changed by more than an hour; if the new time is correct, the task"
    " runs a day later"
)


def expire_commit_tokens(store: Store, fence: Fence = unfenced) -> None:
    """Delete the commit tokens that are too old to be asked for."""
    store.transact(lambda c: commit_tokens.expire(c, store.clock(c).wall_ms), fence=fence)


def _expire(context: MaintenanceContext) -> Iterator[Report]:
    store, settings = context.cluster.store, context.settings
    if context.topic_names is None:  # these rows belong to no topic
        counts = [0, 0, 0]
        with FirstFailure() as failure:
            home = None if context.cluster.store_id == HOME else context.cluster.home.store
            tasks: list[Callable[..., int]] = [expire_offsets, partial(expire_producers, home=home), expire_ids]
            for number, expire in enumerate(tasks):
                with failure.attempt():
                    counts[number] = expire(store, settings, context.fence)
            if context.cluster.store_id != HOME:
                with failure.attempt():
                    counts[2] = expire_parts(context.cluster, settings, context.fence)
            with failure.attempt():
                expire_commit_tokens(store, context.fence)
            yield from _expired(*counts)


def _plan_expire(context: MaintenanceContext) -> Iterator[Report]:
    store, settings = context.cluster.store, context.settings
    if context.topic_names is None:
        counts = (count_expired_offsets, count_silent_producers, count_expired_ids)
        yield from _expired(*(count(store, settings) for count in counts))


def _expired(offsets: int, producers: int, ids: int) -> Iterator[Report]:
    found = ((offsets, "committed offset"), (producers, "producer"), (ids, "transactional id"))
    shown = ", ".join(count_of(count, what) for count, what in found if count)
    if shown:
        yield Report("expire", notes=(f"expired: {shown}",))


def _end_transactions(context: MaintenanceContext) -> Iterator[Report]:
    """Abort transactions at home, which decides; in a data store end the parts of those that have ended there."""
    if context.topic_names is not None:
        return
    if context.cluster.store_id == HOME:
        for transactional_id in abort_timed_out(context.cluster, context.fence):
            yield Report("transactions", notes=(f"aborted {transactional_id}: its transaction.timeout.ms has passed",))
        return
    parts = find_unresolved(context.cluster)
    if parts:
        log = ClientLog(context.cluster, settings=context.settings, holder="maintenance: transactions")
        try:
            with FirstFailure() as failure:
                for part in parts:
                    with failure.attempt():
                        resolve(log, part, context.fence)
                        yield Report("transactions", notes=(_ended(part, "committed", "aborted"),))
        finally:
            log.close(more_to_come=True)


def _ended(part: Unresolved, committed: str, aborted: str) -> str:
    return f"{committed if part.committed else aborted} the part of {part.name}, as the home store has decided"


def _plan_transactions(context: MaintenanceContext) -> Iterator[Report]:
    if context.topic_names is not None:
        return
    if context.cluster.store_id == HOME:
        for _, transactional_id in timed_out(context.cluster.store):
            yield Report("transactions", notes=(f"aborts {transactional_id}: its transaction.timeout.ms has passed",))
        return
    for part in find_unresolved(context.cluster):
        yield Report("transactions", notes=(_ended(part, "commits", "aborts"),))


TASKS: tuple[Task, ...] = (
    Task(
        "flush",
        "force acknowledged records to disk (flush.ms)",
        lambda s: s.log_flush_scheduler_interval_ms,
        flush_topics,
        plan_flush,
    ),
    Task(
        "seal",
        "write inline tails older than delta.max.lag.ms or segment.ms to files, and list these in the Delta tables",
        lambda s: s.table_loop_poll_ms,
        seal_tails,
        plan_seal,
    ),
    Task(
        "transactions",
        "abort transactions open for longer than transaction.timeout.ms; end their parts in data stores",
        lambda s: s.transaction_abort_interval_ms,
        _end_transactions,
        _plan_transactions,
    ),
    Task(
        "retention",
        "drop records that retention.ms and retention.bytes no longer keep",
        lambda s: s.log_retention_check_interval_ms,
        retain,
        plan_retain,
    ),
    Task(
        "compact",
        "keep the last value of every key (cleanup.policy=compact) in partitions that are not too large",
        lambda s: s.log_cleaner_backoff_ms,
        compact,
        plan_compaction,
    ),
    Task(
        "merge",
        "merge small segments into segments of segment.bytes",
        lambda s: s.log_merge_interval_ms,
        merge_segments,
        plan_merge,
    ),
    Task(
        "delta",
        "update Delta tables, write their checkpoints, delete their expired log files",
        lambda s: s.delta_maintenance_interval_ms,
        maintain_delta_tables,
        plan_delta_tables,
    ),
    Task(
        "files",
        "delete retired files, deleted topics, and files that the metadata does not name",
        lambda s: s.log_clean_up_interval_ms,
        _only_with_a_steady_clock("files", clean_up_files),
        _only_with_a_steady_clock("files", plan_clean_up),
    ),
    Task(
        "expire",
        "delete the offsets of empty groups, and inactive producers and transactional ids",
        lambda s: s.offsets_retention_check_interval_ms,
        _only_with_a_steady_clock("expire", _expire),
        _only_with_a_steady_clock("expire", _plan_expire),
        after_a_pause=True,  # as in Kafka: after a week without the cluster, its consumers come back first
    ),
    Task(
        "columns",
        "add the present typed columns (of keys and values) to files that lack them; runs only if it is named",
        None,
        backfill_columns,
        plan_backfill,
    ),
)
"""The tasks in the order in which `run_tasks` runs them: each task reduces the work of the next."""


def run_tasks(
    cluster: "str | Cluster",
    tasks: Iterable[str] | None = None,
    *,
    topics: Collection[str] | None = None,
    settings: ClusterSettings | None = None,
    dry_run: bool = False,
    now: bool = False,
) -> Iterator[Report]:
    """Run the named tasks (for None all that have an interval) on these topics (all for None), now; yields reports
    during the work. With `now` every inline tail is sealed, whatever its age.

    With `dry_run` nothing is changed: each report describes the changes that its task would make in the present state,
    without the changes of the tasks before it.

    Raises InvalidConfigurationError for an unknown task, UnknownTopicOrPartitionError for an unknown topic. The first
    failure of a task is raised when all tasks have run.
    """
    names = [task.name for task in TASKS if task.every_ms is not None] if tasks is None else list(tasks)
    for name in names:
        if name not in {task.name for task in TASKS}:
            raise InvalidConfigurationError(f"task {name!r}: expected {', '.join(task.name for task in TASKS)}")
    run = partial(_run, names=names, dry_run=dry_run)
    yield from work_in_each_store(cluster, "maintenance", topics, run, settings=settings, now=now)


def _run(context: MaintenanceContext, *, names: Collection[str], dry_run: bool) -> Iterator[Report]:
    if not dry_run and context.cluster.store.read(failures_of_log_dirs):  # an offline log dir may be back
        FallbackController(context.cluster, context.settings).detect_failures()
    with FirstFailure() as failure:
        for task in TASKS:
            if task.name in names:
                with failure.attempt():
                    if dry_run:
                        yield from (replace(report, dry_run=True) for report in task.plan(context))
                    else:
                        yield from task.run(context)
