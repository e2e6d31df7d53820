"""Limits the time of calls into a folder: a disk or mount that hangs blocks a system call until it answers, perhaps
forever.
"""

import os
import threading
from collections.abc import Callable
from concurrent.futures import wait
from dataclasses import dataclass
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
    """The two kinds of calls, which are watched apart: a frozen file system still answers reads."""

    READS = "reads"
    WRITES = "writes"


class DiskCalls:
    """Makes calls below the folder `root`, one at a time, each in a thread that is left after its limit."""

    def __init__(self, root: str, use: Use, undo: Callable[[], object] = lambda: None) -> None:
        """If a call that was left returns after all, its thread calls `undo`."""
        self.left = False
        self.refused = False
        """Whether `run` has raised because this call or another one hangs."""
        self._folder = root, use
        self._undo = undo
        self._working = False
        self._counted = False
        """Whether the call that was left counts as one that hangs."""

    def run(self, work: Callable[[], R], size: int = 0) -> R:
        """Call `work`, which reads or writes `size` bytes. Raises StorageUnavailableError after its limit, and at once
        while another call hangs.
        """
        return self.begin(work, size)()

    def begin(self, work: Callable[[], R], size: int = 0) -> Callable[[], R]:
        """Begin the call. The function that is returned waits for its end."""
        with _lock:
            folder = _folders.get(self._folder)
            if self.left or (folder is not None and folder.refuses()):
                self.refused = True
                raise StorageUnavailableError(f"{redact(self._folder[0])}: an earlier call has not returned yet")
            tried = folder is not None and not folder.answers
            if folder is not None and tried:  # only this call is
                folder.pause = Pause.after(folder.pause)
            self._working = True
        limit_s = CALL_S_MAX + size / _BYTES_PER_S_MIN
        answer = begin_or_run(lambda: self._run(work, tried), f"spark-log-disk-{self._folder[1].value}")

        def end() -> R:
            wait([answer], limit_s)
            if self._leave(hangs=True):
                self.refused = True
                where = redact(self._folder[0])
                raise StorageUnavailableError(f"{where}: no answer in {limit_s:.0f} s, its disk may hang")
            return answer.result()

        return end

    def leave(self) -> bool:
        """Leave a call that is running. Return whether one was left, now or before."""
        return self._leave(hangs=False)

    def _leave(self, *, hangs: bool) -> bool:
        with _lock:
            self.left = self.left or self._working
            if hangs and self._working and not self._counted:
                self._counted = True
                folder = _folders.get(self._folder)
                if folder is None:
                    _folders[self._folder] = _Folder(Pause.after(None), 1)
                else:
                    folder.add_left()
            return self.left

    def _run(self, work: Callable[[], R], tried: bool) -> R:
        try:
            return work()
        finally:
            with _lock:
                self._working = False
                folder = _folders.get(self._folder)
                if folder is not None and (self._counted or tried):
                    folder.answers = True
                    folder.left -= self._counted
                    if self._counted and not folder.left:
                        del _folders[self._folder]
            if self.left:
                self._undo()


@dataclass
class _Folder:
    """A folder in which `left` calls were left and have not returned. During the pause all calls fail at once, and then
    one is tried. If it `answers`, others follow. If one of them hangs, a longer pause begins: some kinds of calls may
    hang while others return.
    """

    pause: Pause
    left: int
    answers: bool = False

    def refuses(self) -> bool:
        return not self.answers and clock.monotonic_s() < self.pause.until_s

    def add_left(self) -> None:
        self.left += 1
        if self.answers:
            self.answers, self.pause = False, Pause.after(self.pause)


def hangs(root: str) -> bool:
    """Whether a call below the folder `root` was left that has not returned."""
    with _lock:
        return any((folder := _folders.get((root, use))) is not None and folder.left > 0 for use in Use)


def refuses(root: str) -> bool:
    """Whether calls below the folder `root` fail at once."""
    with _lock:
        return any((folder := _folders.get((root, use))) is not None and folder.refuses() for use in Use)


_folders: dict[tuple[str, Use], _Folder] = {}
_lock = threading.Lock()


def _forget_calls_of_parent() -> None:
    global _lock
    _lock = threading.Lock()
    _folders.clear()


os.register_at_fork(after_in_child=_forget_calls_of_parent)
