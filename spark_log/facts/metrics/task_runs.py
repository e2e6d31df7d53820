"""Runs of periodic tasks: their totals in this process, and the runs that are worth keeping in the history."""

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

KEPT_RUNS_MAX = 200
"""Runs that are kept between two records of the history; of more, the oldest are left out and counted."""

SLOW_S = 1.0
"""A run that takes this long is kept although it changed nothing."""


@dataclass(frozen=True)
class TaskRuns:
    """The runs of a periodic task in this process. `success_ms`: wall clock of the last success; None: none yet.

    `seconds`: duration of the last run.
    """

    success_ms: int | None = None
    seconds: float = 0.0
    failures: int = 0


@dataclass(frozen=True)
class TaskRun:
    """One run. `start_ms`: milliseconds since 1970 by the host's clock. `error`: None if it succeeded. `notes`: its
    changes, one a line; empty if it changed nothing. `lease`: coordinator or controller.
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
    """The runs since the last record that failed, changed something, were slow, or followed a failure of their task.

    The others, several a second, would say nothing. Safe to share between threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: deque[TaskRun] = deque(maxlen=KEPT_RUNS_MAX)
        self._omitted = 0
        self._last_errors: dict[str, str | None] = {}

    def add(self, run: TaskRun) -> None:
        """Keep the run if it is worth it. A repeated error of a task is kept once between two records."""
        with self._lock:
            before = self._last_errors.get(run.task)
            self._last_errors[run.task] = run.error
            repeated = run.error is not None and any((r.task, r.error) == (run.task, run.error) for r in self._runs)
            worth = run.error is not None or before is not None or bool(run.notes) or run.seconds >= SLOW_S
            if worth and not repeated:
                self._omitted += len(self._runs) == KEPT_RUNS_MAX
                self._runs.append(run)

    def put_back(self, runs: Sequence[TaskRun], omitted: int) -> None:
        """Keep runs that were taken and could not be recorded; newer ones come first if there are too many."""
        with self._lock:
            room = KEPT_RUNS_MAX - len(self._runs)
            self._omitted += omitted + max(0, len(runs) - room)
            self._runs.extendleft(reversed(runs[max(0, len(runs) - room) :]))

    def take(self) -> tuple[Sequence[TaskRun], int]:
        """The kept runs, oldest first, and the number of those that were left out; the buffer is empty afterwards."""
        with self._lock:
            taken, omitted = list(self._runs), self._omitted
            self._runs.clear()
            self._omitted = 0
            return taken, omitted
