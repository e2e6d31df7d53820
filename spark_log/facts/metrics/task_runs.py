"""Counts runs of periodic tasks in this process, and keeps the runs that the history records."""

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

KEPT_RUNS_MAX = 200
"""The maximum number of runs that are kept between two records of the history. The oldest others are only counted."""

RUNS_OF_TASK_MAX = 20
"""The number of kept runs of one task from which on no further successful run of it is kept."""

SLOW_S = 1.0
"""A run that takes this long is kept although it changed nothing."""


@dataclass(frozen=True)
class TaskRuns:
    """The runs of a periodic task in this process. `success_ms` is the wall clock of the last success, None before the
    first. `seconds` is the duration of the last run.
    """

    success_ms: int | None = None
    seconds: float = 0.0
    failures: int = 0


@dataclass(frozen=True)
class TaskRun:
    """One run. `start_ms` is in milliseconds since 1970 by the host's clock. `error` is None if it succeeded. `notes`
    has its changes, one a line; empty if it changed nothing. `lease` is coordinator or controller.
    """

    task: str
    lease: str
    start_ms: int
    seconds: float
    error: str | None = None
    notes: str = ""

    @property
    def outcome(self) -> str:
        return "succeeded" if self.error is None else "failed"


class TaskRunBuffer:
    """Keeps runs that failed, changed something, were slow, or followed a failure of their task, until they are taken.

    The others, several a second, are not kept. Safe to share between threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: deque[TaskRun] = deque(maxlen=KEPT_RUNS_MAX)
        self._omitted = 0
        self._last_errors: dict[str, str | None] = {}

    def add(self, run: TaskRun) -> None:
        """Keep the run if it is one of those that the class names. A repeated error of a task is kept once between two
        records.
        """
        with self._lock:
            before = self._last_errors.get(run.task)
            self._last_errors[run.task] = run.error
            repeated = run.error is not None and any((r.task, r.error) == (run.task, run.error) for r in self._runs)
            worth = run.error is not None or before is not None or bool(run.notes) or run.seconds >= SLOW_S
            if worth and run.error is None and before is None:
                worth = sum(r.task == run.task for r in self._runs) < RUNS_OF_TASK_MAX
                self._omitted += not worth
            if worth and not repeated:
                self._omitted += len(self._runs) == KEPT_RUNS_MAX
                self._runs.append(run)

    def put_back(self, runs: Sequence[TaskRun], omitted: int) -> None:
        """Keep runs that were taken and could not be recorded. If there are too many, the newest are kept."""
        with self._lock:
            room = KEPT_RUNS_MAX - len(self._runs)
            self._omitted += omitted + max(0, len(runs) - room)
            self._runs.extendleft(reversed(runs[max(0, len(runs) - room) :]))

    def take(self) -> tuple[Sequence[TaskRun], int]:
        """Empty the buffer. Returns the kept runs, oldest first, and the number of those that were left out."""
        with self._lock:
            taken, omitted = list(self._runs), self._omitted
            self._runs.clear()
            self._omitted = 0
            return taken, omitted
