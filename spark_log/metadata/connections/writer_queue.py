"""Records whether a thread is in a write transaction, and queues the writers of a SQLite file."""

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from spark_log import clock
from spark_log.errors import IllegalStateError, MetadataStoreUnavailableError, storage_error
from spark_log.process import forget_parent_in_child, start_thread

_POLL_S = 0.001


class _Writing(threading.local):
    depth = 0


_writing = _Writing()


@contextmanager
def writing() -> Iterator[None]:
    """Let `is_writing` return True during the block."""
    _writing.depth += 1
    try:
        yield
    finally:
        _writing.depth -= 1


def is_writing() -> bool:
    """Whether the calling thread is inside a write transaction of a store, so that others may wait for its locks."""
    return _writing.depth > 0


class WriterQueue:
    """A file lock that processes take in turn. SQLite's busy handler is not fair: a writer can starve.

    The threads of a process share one descriptor of the file, so they take a thread lock before the file lock.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1
        self._forget()
        forget_parent_in_child(self)

    def _forget(self) -> None:
        self._thread_lock = threading.RLock()
        self._waiting: _Waiting | None = None

    def forget_parent(self) -> None:
        """Reset the state in a forked child, which has no waiting threads, and whose parent has the file lock."""
        self._forget()
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1

    @contextmanager
    def turn(self, timeout_s: float) -> Iterator[None]:
        """Hold the lock during the block. Raise MetadataStoreUnavailableError if others hold it too long,
        StorageUnavailableError if its file cannot be opened, and IllegalStateError if a signal handler or finalizer has
        interrupted a turn of this thread.
        """
        timeout_s = max(0.0, timeout_s)
        thread_lock = self._thread_lock
        if thread_lock._is_owned():  # type: ignore[attr-defined]
            raise IllegalStateError(
                f"{self._path}: a signal handler or finalizer (__del__) writes to the metadata store while its thread"
                " is in a write transaction: let it set a flag, and write later"
            )
        try:
            if not thread_lock.acquire(timeout=timeout_s):
                raise MetadataStoreUnavailableError(self._held(timeout_s))
            if self._descriptor < 0:
                self._descriptor = self._open()
            self._lock(timeout_s)
            yield
        finally:
            # A signal handler may have raised KeyboardInterrupt just after a lock was acquired. So the thread lock says
            # itself whether this thread has it. In a forked child the queue has another one, and no file lock.
            if self._thread_lock is thread_lock and thread_lock._is_owned():  # type: ignore[attr-defined]
                if self._waiting is not None:
                    self._waiting.give_up()
                if self._descriptor >= 0:
                    fcntl.flock(self._descriptor, fcntl.LOCK_UN)
                thread_lock.release()

    def _open(self) -> int:
        try:
            return os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise storage_error(
                f"metadata store: {self._path} cannot be written: {error.strerror}; nothing was changed. Look at the"
                " mount and the permissions of its folder",
                error,
            ) from error

    def _lock(self, timeout_s: float) -> None:
        if self._waiting is None or self._waiting.is_over():
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                self._waiting = _Waiting(self._descriptor)
                if not self._waiting.start():
                    self._waiting = None
                    self._poll(timeout_s)
                    return
        if not self._waiting.is_acquired(timeout_s):
            raise MetadataStoreUnavailableError(self._held(timeout_s))
        self._waiting = None

    def _poll(self, timeout_s: float) -> None:
        """Wait for the lock without a thread, because none can be started. This is not fair."""
        deadline_s = clock.monotonic_s() + timeout_s
        while True:
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if clock.monotonic_s() >= deadline_s:
                    raise MetadataStoreUnavailableError(self._held(timeout_s)) from None
            clock.sleep_s(_POLL_S)

    def _held(self, timeout_s: float) -> str:
        """Return the error message. It names the process that holds the lock if the kernel shows it."""
        inode = f":{self._path.stat().st_ino} "
        locks = [line.split() for line in Path("/proc/locks").read_text().splitlines() if inode in line]
        holders = [words[4] for words in locks if words[1] == "FLOCK"]  # "->" is the second word of one that waits
        by = f"by process {', '.join(holders)}" if holders else "by another process"
        return (
            f"{self._path}: the lock that writers of the metadata store take in turn was held {by} for"
            f" {timeout_s:.1f} s; if that process is stopped (SIGSTOP, a debugger, a frozen container), resume"
            " or end it: no data is lost by that"
        )

    def close(self) -> None:
        """Close the file. The next turn opens it again."""
        with self._thread_lock:
            if self._waiting is not None and not self._waiting.is_over():
                self._waiting.close()
            elif self._descriptor >= 0:
                os.close(self._descriptor)
            self._descriptor, self._waiting = -1, None


class _Waiting:
    """A thread that waits for a file lock, since flock(2) has no timeout, and a process that polls can starve.

    After a caller's timeout the thread continues to wait, for the next caller. A process therefore has at most one such
    thread for each open queue. A lock that is acquired when no caller waits is released.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._changed = threading.Condition()
        self._wanted = True
        self._locked = self._over = self._closed = False

    def start(self) -> bool:
        """Start the thread. Return False if no thread can be started."""
        return start_thread(self._run, "spark-log-writer-queue") is not None

    def _run(self) -> None:
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        with self._changed:
            self._locked = True
            if self._wanted:
                self._changed.notify_all()
            else:
                self._release()

    def _release(self) -> None:
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        self._over = True
        if self._closed:
            os.close(self._descriptor)

    def is_over(self) -> bool:
        """Return whether the lock was acquired and released again.

        If False, the lock is kept for the caller, which must call `give_up` or `close` unless `is_acquired`.
        """
        with self._changed:
            self._wanted = not self._over
            return self._over

    def is_acquired(self, timeout_s: float) -> bool:
        """Wait at most `timeout_s` for the lock. Return True if the caller holds it now."""
        with self._changed:
            return self._changed.wait_for(lambda: self._locked, timeout_s)

    def give_up(self) -> None:
        """Release the lock, now or as soon as it is acquired, unless `is_over` is called before."""
        with self._changed:
            self._wanted = False
            if self._locked and not self._over:
                self._release()

    def close(self) -> None:
        """Release the lock and close the descriptor as soon as the lock is acquired."""
        with self._changed:
            self._wanted, self._closed = False, True
            if self._locked:
                self._release()
