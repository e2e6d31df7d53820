"""Whose turn it is to write to a SQLite file."""

import fcntl
import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from spark_log.errors import MetadataStoreUnavailableError


class WriterQueue:
    """Writers of a SQLite file queue here: the kernel wakes them in turn, where SQLite's busy handler lets one starve.

    A thread lock in front of the file lock keeps the threads of a process in turn too, and on one descriptor.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1
        self._forget()
        _queues.add(self)

    def _forget(self) -> None:
        self._thread_lock = threading.Lock()
        self._waiting: _Waiting | None = None

    def forget_parent(self) -> None:
        """In a forked child: what waits and works is not here, and the file's lock is the parent's alone."""
        self._forget()
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1

    @contextmanager
    def turn(self, timeout_s: float) -> Iterator[None]:
        """Raises MetadataStoreUnavailableError where others do not let go of the lock for so long."""
        timeout_s = max(0.0, timeout_s)
        thread_lock = self._thread_lock
        if not thread_lock.acquire(timeout=timeout_s):
            raise MetadataStoreUnavailableError(self._held(timeout_s))
        try:
            if self._descriptor < 0:
                self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            self._lock(timeout_s)
            try:
                yield
            finally:
                if self._thread_lock is thread_lock:  # else this is a forked child, and the turn is its parent's
                    fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        finally:
            thread_lock.release()

    def _lock(self, timeout_s: float) -> None:
        if self._waiting is None or self._waiting.is_over():
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                self._waiting = _Waiting(self._descriptor)
        if not self._waiting.has_it(timeout_s):
            raise MetadataStoreUnavailableError(self._held(timeout_s))
        self._waiting = None

    def _held(self, timeout_s: float) -> str:
        """Who it is that others wait for, as far as the kernel tells."""
        inode = f":{self._path.stat().st_ino} "
        locks = [line.split() for line in Path("/proc/locks").read_text().splitlines() if inode in line]
        holders = [words[4] for words in locks if words[1] == "FLOCK"]  # "->" is the second word of one that waits
        by = f"by process {', '.join(holders)}" if holders else "by others"
        return (
            f"{self._path}: the lock that writers of the metadata store take in turn was held {by} for"
            f" {timeout_s:.1f} s; if that process is stopped (SIGSTOP, a debugger, a frozen container), let it go on"
            " or end it: nothing is lost by that"
        )

    def close(self) -> None:
        """Let go of the file; a turn after that opens it again."""
        with self._thread_lock:
            if self._waiting is not None and not self._waiting.is_over():
                self._waiting.close()
            elif self._descriptor >= 0:
                os.close(self._descriptor)
            self._descriptor, self._waiting = -1, None


class _Waiting:
    """Waits for a file lock in a thread, as flock(2) has no timeout and whoever only asks now and then may starve.

    Whoever has no more time leaves it waiting for the next one: while a process stands still with the lock, others have
    one thread each. If the lock comes when nobody wants it, it is let go.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._changed = threading.Condition()
        self._wanted = True
        self._locked = self._over = self._closed = False
        threading.Thread(target=self._run, name="spark-log-writer-queue", daemon=True).start()

    def _run(self) -> None:
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        with self._changed:
            self._locked = True
            if self._wanted:
                self._changed.notify_all()
            else:
                self._let_go()

    def _let_go(self) -> None:
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        self._over = True
        if self._closed:
            os.close(self._descriptor)

    def is_over(self) -> bool:
        """Whether it waits no more. If it does, it will until `has_it`, for it is wanted from now on."""
        with self._changed:
            self._wanted = not self._over
            return self._over

    def has_it(self, timeout_s: float) -> bool:
        """Whether the lock has come: it is the caller's then. Else it is not wanted any more."""
        with self._changed:
            try:
                return self._changed.wait_for(lambda: self._locked, timeout_s)
            except BaseException:
                if self._locked:
                    self._let_go()
                raise
            finally:
                self._wanted = False

    def close(self) -> None:
        """Close the descriptor when the lock has come."""
        with self._changed:
            self._wanted, self._closed = False, True
            if self._locked:
                self._let_go()


_queues: "weakref.WeakSet[WriterQueue]" = weakref.WeakSet()


def _forget_parents() -> None:
    for queue in list(_queues):
        queue.forget_parent()


os.register_at_fork(after_in_child=_forget_parents)
