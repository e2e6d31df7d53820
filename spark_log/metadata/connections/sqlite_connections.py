"""Opens connections to SQLite files, and keeps them safe when the process forks.

SQLite records in memory which POSIX locks its process holds on a file. A fork copies that memory, but not the locks. A
child that inherits an open connection therefore takes no locks of its own on that file, in any connection. When the
parent closes the file, SQLite sees no other lock, and deletes the write-ahead log that the child still uses. Therefore:

    before the fork   wait until other threads have ended their transactions, begin no new ones, close every connection
    in the parent     open connections again when they are needed
    in the child      refuse inherited connections, and every file that still has an open connection
"""

import contextlib
import ctypes
import os
import sqlite3
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

import sqlalchemy as sa

from spark_log.errors import IllegalStateError

_WAIT_S_MAX = 2.0
"""How long a fork waits for the transactions of other threads. The child refuses the files of longer transactions."""


class Owner(Protocol):
    """An object that keeps connections for reuse, such as `sqlalchemy.Engine`."""

    def dispose(self, close: bool = True) -> None:
        """Close the connections that are not in use. With `close=False`, drop them without closing them."""
        ...


def connect(path: Path, mode: str, timeout_s: float) -> sqlite3.Connection:
    """Connect to the file. Any thread may use the connection, inside `in_use` or through `Pool`.

    `mode` is ro, rw or rwc, as in SQLite's URIs. `timeout_s` is SQLite's busy timeout. Raise IllegalStateError in a
    child of a process that had the file open when it forked.
    """
    uri = f"file:{quote(str(path))}?mode={mode}"
    with contextlib.suppress(FileNotFoundError):
        if _identity(path) in _refused:
            raise IllegalStateError(
                f"{path} was in use when this process was forked from its parent, and SQLite's locks do not survive"
                " a fork: fork outside of transactions, or start the process with multiprocessing's method 'spawn'"
            )
    connection = sqlite3.connect(uri, uri=True, timeout=timeout_s, check_same_thread=False, factory=_Connection)
    _files.add(_identity(path))
    _connections.add(connection)
    return connection


def close_before_fork(owner: Owner) -> None:
    """Close the connections of `owner` before each fork, as long as `owner` exists."""
    _owners.add(owner)


@contextlib.contextmanager
def in_use() -> Iterator[None]:
    """Mark connections as in use during the block.

    A fork in another thread waits for the end of the block, at most 2 s. A block that begins during a fork waits for
    the end of the fork.
    """
    gate = _gate
    thread = gate.enter()
    try:
        yield
    finally:
        gate.leave(thread)


class Pool(sa.QueuePool):
    """A pool whose connections are `in_use` while they are checked out.

    A disposed pool closes the connections that are returned to it, because a fork closes only those of the engine's
    new pool.
    """

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._entered: dict[Any, tuple[_Gate, int]] = {}
        self._disposed = False

    def dispose(self) -> None:
        self._disposed = True
        super().dispose()

    def _do_get(self) -> Any:
        gate = _gate
        thread = gate.enter()
        try:
            record = super()._do_get()
        except BaseException:
            gate.leave(thread)
            raise
        if record in self._entered:  # SQLAlchemy called this method recursively
            gate.leave(thread)
        else:
            self._entered[record] = (gate, thread)
        return record

    def _do_return_conn(self, record: Any) -> None:
        gate, thread = self._entered.pop(record)
        try:
            if self._disposed:
                record.close()
                self._dec_overflow()
            else:
                super()._do_return_conn(record)
        finally:
            gate.leave(thread)


class _Connection(sqlite3.Connection):
    """A connection that raises IllegalStateError in a forked child, because its transaction belongs to the parent."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._process = os.getpid()

    def cursor(self, *arguments: Any, **keywords: Any) -> Any:
        self._check()
        return super().cursor(*arguments, **keywords)

    def commit(self) -> None:
        self._check()
        super().commit()

    def rollback(self) -> None:
        if self._process == os.getpid():
            super().rollback()

    def close(self) -> None:
        """Close it, after a rollback: otherwise its transaction keeps its locks as long as a cursor exists, such as in
        the traceback of the KeyboardInterrupt for which SQLAlchemy closes a connection.
        """
        if self._process == os.getpid():
            with contextlib.suppress(sqlite3.Error):  # it is closed already
                super().rollback()
            super().close()

    def _check(self) -> None:
        if self._process != os.getpid():
            raise IllegalStateError("this transaction belongs to the process that this one was forked from")


class _Gate:
    """Counts the threads that use connections. During a fork, no other thread may enter."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside: dict[int, int] = {}
        self._forks = 0

    def enter(self) -> int:
        """Wait for the end of a fork, enter, and return the id of the thread.

        A thread that is inside enters without waiting, so that it can finish its transaction.
        """
        thread = threading.get_ident()
        with self._changed:
            if thread not in self._inside:
                self._changed.wait_for(lambda: self._forks == 0)
            self._inside[thread] = self._inside.get(thread, 0) + 1
        return thread

    def leave(self, thread: int) -> None:
        if self is not _gate:  # in a forked child: another thread of the parent may have held the lock
            return
        with self._changed:
            self._inside[thread] -= 1
            if self._inside[thread] == 0:
                del self._inside[thread]
                self._changed.notify_all()

    def shut(self, timeout_s: float) -> None:
        """Let no other thread enter, and wait at most `timeout_s` until no thread is inside.

        A thread that is inside itself does not wait.
        """
        with self._changed:
            self._forks += 1
            if threading.get_ident() not in self._inside:
                self._changed.wait_for(lambda: not self._inside, timeout_s)

    def open(self) -> None:
        with self._changed:
            self._forks -= 1
            self._changed.notify_all()


_gate = _Gate()
_owners: "weakref.WeakSet[Any]" = weakref.WeakSet()
_connections: "weakref.WeakSet[_Connection]" = weakref.WeakSet()
_files: set[tuple[int, int]] = set()
"""Device and inode of each SQLite file that this process has opened."""
_refused: set[tuple[int, int]] = set()


def _before_fork() -> None:
    _gate.shut(_WAIT_S_MAX)
    for owner in list(_owners):
        owner.dispose()


def _after_fork_in_parent() -> None:
    _gate.open()


def _after_fork_in_child() -> None:
    global _gate
    _gate = _Gate()
    _refused.update(_files & _open_files())
    for connection in list(_connections):
        # the connection is never freed: that would close it, which may delete the write-ahead log
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
    for owner in list(_owners):
        owner.dispose(close=False)


def _open_files() -> set[tuple[int, int]]:
    found: set[tuple[int, int]] = set()
    if _files:
        for descriptor in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):  # the descriptor of the listing itself is closed
                found.add(_identity(int(descriptor)))
    return found


def _identity(file: Path | int) -> tuple[int, int]:
    status = os.stat(file)
    return status.st_dev, status.st_ino


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
