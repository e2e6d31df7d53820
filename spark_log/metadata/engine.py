"""How each database is opened: the settings that make a commit durable and writers fair."""

import fcntl
import os
import sqlite3
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy import event

from spark_log.errors import ClusterNotFoundError, MetadataStoreUnavailableError, UnsupportedStoreError
from spark_log.metadata.address import SQLITE_FILE, Address, refuse_network_file_system
from spark_log.metadata.identity import ask_server

_BUSY_TIMEOUT_MS = 60_000
_WRITES = "spark_log_writes"

_POSTGRESQL_OPTIONS = "-c timezone=UTC -c idle_in_transaction_session_timeout=10000"
"""A process that was stopped in the midst of a transaction does not hold its locks for longer than 10 s."""


def create_engine(address: Address, *, create: bool = False) -> sa.Engine:
    """An engine whose every connection is set up for `address`; `create` allows a SQLite file to come into being."""
    engine = _sqlite_engine(address.folder, create) if address.folder else _postgresql_engine(address)
    _engines.add(engine)
    return engine


def begin_write(connection: sa.Connection) -> sa.Connection:
    """The same connection, whose next transaction will take SQLite's write lock at its beginning."""
    return connection.execution_options(**{_WRITES: True})


def is_write(connection: sa.Connection) -> bool:
    """Whether the connection came through `begin_write`."""
    return bool(connection.get_execution_options().get(_WRITES, False))


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
        if not self._thread_lock.acquire(timeout=max(0.0, timeout_s)):
            raise MetadataStoreUnavailableError(self._held(timeout_s))
        try:
            if self._descriptor < 0:
                self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            self._lock(timeout_s)
            try:
                yield
            finally:
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        finally:
            self._thread_lock.release()

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


def _sqlite_engine(folder: Path, create: bool) -> sa.Engine:
    refuse_network_file_system(folder, Path("/proc/mounts").read_text())
    path = folder / SQLITE_FILE
    if not create and not path.is_file():
        raise ClusterNotFoundError(f"no cluster at {folder}: make one with `spark-log init {folder}`")
    uri = f"file:{quote(str(path))}?mode={'rwc' if create else 'rw'}"

    def connect() -> sqlite3.Connection:  # not through a URL of SQLAlchemy's, which takes % and ? in a path for its own
        return sqlite3.connect(uri, uri=True, timeout=_BUSY_TIMEOUT_MS / 1000, check_same_thread=False)

    engine = sa.create_engine("sqlite://", creator=connect, poolclass=sa.QueuePool)

    @event.listens_for(engine, "connect")
    def set_up(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # the driver's own BEGIN comes too late and cannot be IMMEDIATE
        cursor = connection.cursor()
        cursor.execute("PRAGMA journal_mode=WAL")
        cursor.execute("PRAGMA synchronous=FULL")
        cursor.execute("PRAGMA temp_store=MEMORY")
        cursor.execute("PRAGMA cache_size=-16384")
        cursor.close()

    @event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE" if is_write(connection) else "BEGIN")

    return engine


def _postgresql_engine(address: Address) -> sa.Engine:
    engine = sa.create_engine(
        address.url,
        pool_pre_ping=False,  # a lost connection is met and retried where it is used, which costs no round trip
        connect_args={"application_name": "spark-log", "connect_timeout": 10, "options": _POSTGRESQL_OPTIONS},
    )

    @event.listens_for(engine, "connect")
    def check(connection: Any, record: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT current_setting('fsync'), current_setting('synchronous_commit'),"
                " current_setting('full_page_writes'), pg_is_in_recovery()"
            )
            fsync, synchronous_commit, full_page_writes, in_recovery = cursor.fetchone()
        connection.rollback()
        if in_recovery:
            raise UnsupportedStoreError(f"{address}: this PostgreSQL server is a standby in recovery; name the primary")
        if fsync != "on" or full_page_writes != "on":
            raise UnsupportedStoreError(
                f"{address}: fsync is {fsync} and full_page_writes is {full_page_writes}; both must be on,"
                " or an acknowledged record may be lost"
            )
        if synchronous_commit not in ("on", "remote_apply"):
            raise UnsupportedStoreError(
                f"{address}: synchronous_commit is {synchronous_commit}; it must be on (or remote_apply),"
                " or an acknowledged record may be lost"
            )
        ask_server(connection, record.info, address)

    return engine


_engines: "weakref.WeakSet[sa.Engine]" = weakref.WeakSet()
_queues: "weakref.WeakSet[WriterQueue]" = weakref.WeakSet()


def _forget_what_is_the_parents() -> None:
    for engine in list(_engines):
        engine.dispose(close=False)
    for queue in list(_queues):
        queue.forget_parent()


os.register_at_fork(after_in_child=_forget_what_is_the_parents)
