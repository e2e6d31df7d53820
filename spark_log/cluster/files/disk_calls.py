"""Calls into a folder with a limit of time: a disk or mount that hangs blocks a system call until it answers, perhaps
forever.
"""

import threading
from collections.abc import Callable
from concurrent.futures import wait
from enum import Enum
from typing import TypeVar

from spark_log import clock
from spark_log.errors import StorageUnavailableError, redact
from spark_log.process import Pause, begin_or_run

R = TypeVar("R")

CALL_S_MAX = 30.0
"""The longest time for a call, besides the time for its bytes: as long as a replica may lag before it leaves the ISR
(Kafka's replica.lag.time.max.ms).
"""
_BYTES_PER_S_MIN = 10_000_000


class Use(Enum):
    """A frozen file system answers reads."""

    READS = "reads"
    WRITES = "writes"


class DiskCalls:
    """Makes calls below the folder `root`, one at a time, each in a thread that is left after its limit."""

    def __init__(self, root: str, use: Use, undo: Callable[[], object] = lambda: None) -> None:
        """`undo` is called in the thread of a call that was left, should it return."""
        self.left = False
        self.hangs = False
        """Whether `run` has raised because this call or another one hangs."""
        self._folder = root, use
        self._undo = undo
        self._turn = threading.Lock()
        self._working = False

    def run(self, work: Callable[[], R], size: int = 0) -> R:
        """Call `work`, which reads or writes `size` bytes. Raises StorageUnavailableError after its limit, and at once
        while another call hangs.
        """
        return self.begin(work, size)()

    def begin(self, work: Callable[[], R], size: int = 0) -> Callable[[], R]:
        """Begin the call. The function that is returned waits for its end."""
        pause = _hanging.get(self._folder)
        if self.left or (pause is not None and clock.monotonic_s() < pause.until_s):
            self.hangs = True
            raise StorageUnavailableError(f"{redact(self._folder[0])}: an earlier call has not returned yet")
        tried = pause is not None
        if tried:  # only this call is
            _hanging[self._folder] = Pause.after(pause)
        self._working = True
        limit_s = CALL_S_MAX + size / _BYTES_PER_S_MIN
        answer = begin_or_run(lambda: self._run(work, tried), f"spark-log-disk-{self._folder[1].value}")

        def end() -> R:
            wait([answer], limit_s)
            if self.leave():
                self.hangs = True
                _hanging.setdefault(self._folder, Pause.after(None))
                where = redact(self._folder[0])
                raise StorageUnavailableError(f"{where}: no answer in {limit_s:.0f} s, its disk may hang")
            return answer.result()

        return end

    def leave(self) -> bool:
        """Leave a call that is running. Return whether one was left, now or before."""
        with self._turn:
            self.left = self.left or self._working
            return self.left

    def _run(self, work: Callable[[], R], tried: bool) -> R:
        try:
            return work()
        finally:
            with self._turn:
                self._working = False
            if self.left or tried:
                _hanging.pop(self._folder, None)
            if self.left:
                self._undo()


def hangs(root: str) -> bool:
    """Whether a call below the folder `root` was left that has not returned."""
    return any((root, use) in _hanging for use in Use)


_hanging: dict[tuple[str, Use], Pause] = {}
"""The folders in which a call was left, and neither it nor one that was tried later has returned. During the pause all
calls there fail at once, and then one is tried.
"""
