"""Holds a lease, and runs periodic tasks while it is held."""

import contextlib
import logging
import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from dataclasses import dataclass

from spark_log import clock
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.lease import Fence, Lease, lease_status
from spark_log.cluster.log_dir_failures import failures_of_log_dirs
from spark_log.config import ClusterSettings
from spark_log.errors import (
    NotControllerError,
    NotCoordinatorError,
    SparkLogError,
    StorageUnavailableError,
    UnsupportedVersionError,
    redact,
)
from spark_log.facts.metrics.task_runs import TaskRun, TaskRunBuffer, TaskRuns
from spark_log.failpoints import failpoint
from spark_log.ids import LogDirId
from spark_log.maintenance.coordinator.background_loops import BackgroundLoops
from spark_log.process import begin_or_run

logger = logging.getLogger(__name__)

_FIRST_PAUSE_S_MAX = 600.0
_LEFT_AFTER_S = 60.0
_LOOK_S = 5.0
"""The time between two checks of a run that has not ended."""
_RETRY_S = 1.0
"""Pause after a task whose interval is unknown, because the settings could not be read."""


@dataclass(frozen=True)
class PeriodicTaskContext:
    """The arguments of a periodic task. The task gives `fence` to each of its transactions; a long task polls
    `stopping` and returns early.
    """

    cluster: Cluster
    settings: ClusterSettings
    fence: Fence
    stopping: Callable[[], bool]
    term: int | None
    """The epoch of the lease; differs after another process has held it."""
    run_buffer: TaskRunBuffer
    """The runs of the lease's tasks that are to be recorded."""


@dataclass(frozen=True)
class PeriodicTask:
    """Work that the holder of a lease repeats. An error is logged, and the task runs again after the usual pause."""

    name: str
    every_ms: int | Callable[[ClusterSettings], int]
    """Pause from the end of one run to the next, or a function of the settings that returns it after the run."""
    run: Callable[[PeriodicTaskContext], Sequence[str] | None]
    """Returns notes on its changes, for the history."""
    after_a_pause: bool = False
    """Whether its first run in a term comes after a pause too."""

    def pause_s(self, settings: ClusterSettings) -> float:
        return (self.every_ms if isinstance(self.every_ms, int) else self.every_ms(settings)) / 1000


class LeaseRunner:
    """Competes for a lease, and runs its tasks while it holds the lease.

    One thread renews the lease and each task has a thread of its own, so that a task that blocks delays neither the
    renewal nor the other tasks. Each run has a thread too, because a call into a log dir that hangs may
    never return. If a log dir fails that was online when a run began, and the run still goes on _LEFT_AFTER_S later,
    whether it uses the log dir or not, then the run is left to its thread and fenced. The task begins again, without
    this log dir. `close` does not wait for the run.
    """

    def __init__(
        self, cluster: Cluster, lease: str, settings: ClusterSettings | None, tasks: Sequence[PeriodicTask]
    ) -> None:
        self._cluster = cluster
        self._own_settings = settings
        self._tasks = tuple(tasks)
        self.lease = lease
        self.runs: dict[str, TaskRuns] = {task.name: TaskRuns() for task in tasks}
        self.run_buffer = TaskRunBuffer()
        self._lease = Lease(cluster.store, lease, self._settings.controller_lease_ms)
        self._loops = BackgroundLoops(f"spark-log-{lease}")
        self._term_began = threading.Condition()
        self._failures: dict[str, str] = {}
        self._failed_s: dict[LogDirId, float] = {}
        """The monotonic time at which each log dir that is offline was first seen so."""
        self._terms: dict[str, int | None] = {}
        """The term in which a task with `after_a_pause` has had its first pause."""

    @property
    def _settings(self) -> ClusterSettings:
        return self._own_settings or self._cluster.store.settings

    @property
    def acting(self) -> bool:
        """Whether this process held the lease when it last asked."""
        return self._lease.epoch is not None

    @property
    def threads(self) -> list[threading.Thread]:
        return list(self._loops.threads)

    def start(self) -> None:
        assert not self.threads, "it starts once"
        self._loops.start("lease", self._renew_lease)
        for task in self._tasks:
            self._loops.start(task.name, lambda task=task: self._run_in_term(task))  # type: ignore[misc]

    def close(self) -> None:
        """Finish the running tasks and give the lease back."""
        for thread in self.request_stop():
            thread.join()
        try:
            self._lease.give_back()
        except SparkLogError as error:
            logger.warning("%s: the lease was not given back, and runs out: %s", self.lease, redact(str(error)))

    def request_stop(self) -> list[threading.Thread]:
        """Stop starting tasks and renewing the lease, and return the threads, which may still run. Keeps the lease."""
        threads = self._loops.request_stop()
        self._wake_tasks()
        return threads

    def _wake_tasks(self) -> None:
        with self._term_began:
            self._term_began.notify_all()

    def _renew_lease(self) -> float:
        before = self._lease.epoch
        try:
            self._lease.duration_ms = self._settings.controller_lease_ms
            if self._lease.take_or_renew() and self._lease.epoch != before:
                failpoint(f"{self.lease}.lease-taken")
                logger.info("%s: term %s begins", self.lease, self._lease.epoch)
                self._wake_tasks()
            free_s = math.inf
            if not self.acting:
                free_s = max(lease_status(self._cluster.store, self.lease).left_ms, 10) / 1000
        except UnsupportedVersionError:
            raise
        except Exception as error:  # the lease must be tried again, whatever the error is
            logger.warning("%s: the lease was not renewed: %s", self.lease, redact(str(error)))
            free_s = math.inf
        if self.acting:
            with contextlib.suppress(SparkLogError):
                now_s, offline = clock.monotonic_s(), self._cluster.store.read(failures_of_log_dirs)
                self._failed_s = {log_dir_id: self._failed_s.get(log_dir_id, now_s) for log_dir_id in offline}
        return min(free_s, self._lease.duration_ms / 3000)

    def _run_in_term(self, task: PeriodicTask) -> float:
        stopping = self._loops.stopping
        with self._term_began:
            self._term_began.wait_for(lambda: self.acting or stopping.is_set())
        if stopping.is_set():
            return 0.0
        term = self._lease.epoch
        if task.after_a_pause and self._terms.get(task.name) != term:
            self._terms[task.name] = term
            return min(task.pause_s(self._settings), _FIRST_PAUSE_S_MAX)
        return self._run(task)

    def _run(self, task: PeriodicTask) -> float:
        """Run the task once; returns the seconds to wait before the next run. Errors of the task are logged."""
        settings: ClusterSettings | None = None
        left = threading.Event()
        began_s, start_ms = clock.monotonic_s(), clock.wall_ms()

        def done(error: str | None, notes: Sequence[str] = ()) -> None:
            seconds, before = clock.monotonic_s() - began_s, self.runs[task.name]
            success_ms = clock.wall_ms() if error is None else before.success_ms
            self.runs[task.name] = TaskRuns(success_ms, seconds, before.failures + (error is not None))
            self.run_buffer.add(TaskRun(task.name, self.lease, start_ms, seconds, error, "\n".join(notes)))

        try:
            settings = self._settings
            context = PeriodicTaskContext(
                self._cluster,
                settings,
                self._lease.check_of_term(left.is_set),
                lambda: self._loops.stopping.is_set() or left.is_set(),
                self._lease.epoch,
                self.run_buffer,
            )
            answer = begin_or_run(lambda: task.run(context), f"spark-log-{self.lease}: {task.name}: run")
            while wait([answer], _LOOK_S).not_done:
                if self._has_failed_since(began_s):
                    left.set()
                    raise StorageUnavailableError("left, because it may wait for a log dir that has failed meanwhile")
            notes = answer.result()
            self._failures.pop(task.name, None)
            done(None, notes or ())
        except UnsupportedVersionError:
            raise
        except (NotCoordinatorError, NotControllerError):
            logger.info("%s: the term has ended during: %s", self.lease, task.name)
        except Exception as error:
            text = redact(f"{type(error).__name__}: {error}")
            if self._failures.get(task.name) != text:  # logged once, not at every run
                logger.warning("%s: %s: %s", self.lease, task.name, text)
            self._failures[task.name] = text
            done(text)
        return _RETRY_S if settings is None else task.pause_s(settings)

    def _has_failed_since(self, began_s: float) -> bool:
        """Whether a log dir has failed after `began_s`, and at least _LEFT_AFTER_S ago."""
        until_s = clock.monotonic_s() - _LEFT_AFTER_S
        return any(began_s < failed_s <= until_s for failed_s in self._failed_s.values())
