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
        self._thread_lock = threading.Lock()
        self._descriptor = -1
        self._process = -1

    @contextmanager
    def turn(self, timeout_s: float) -> Iterator[None]:
        """Raises MetadataStoreUnavailableError where others do not let go of the lock for so long."""
        if not self._thread_lock.acquire(timeout=max(0.0, timeout_s)):
            raise MetadataStoreUnavailableError(self._held(timeout_s))
        try:
            if self._process != os.getpid():  # a forked child must not share its parent's file lock
                self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
                self._process = os.getpid()
            self._lock(timeout_s)
            try:
                yield
            finally:
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        finally:
            self._thread_lock.release()

    def _lock(self, timeout_s: float) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting = _Waiting(self._descriptor)
            try:
                if waiting.done(timeout_s):
                    return
                raise MetadataStoreUnavailableError(self._held(timeout_s)) from None
            except BaseException:
                self._process = -1  # the descriptor is left to the one that waits
                waiting.give_up()
                raise

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
            if self._process == os.getpid():  # else it is the parent's to close
                os.close(self._descriptor)
            self._process = -1


class _Waiting:
    """Waits for a file lock in a thread, as flock(2) has no timeout and whoever only asks now and then may starve."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._locked = threading.Event()
        self._decision = threading.Lock()
        self._given_up = False
        threading.Thread(target=self._run, name="spark-log-writer-queue", daemon=True).start()

    def _run(self) -> None:
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        with self._decision:
            self._locked.set()
            if self._given_up:
                os.close(self._descriptor)

    def done(self, timeout_s: float) -> bool:
        return self._locked.wait(timeout_s)

    def give_up(self) -> None:
        """Nobody wants the lock any more: whenever it comes, it is let go."""
        with self._decision:
            self._given_up = True
            if self._locked.is_set():
                os.close(self._descriptor)


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


def _forget_connections_of_parent() -> None:
    for engine in list(_engines):
        engine.dispose(close=False)


os.register_at_fork(after_in_child=_forget_connections_of_parent)
