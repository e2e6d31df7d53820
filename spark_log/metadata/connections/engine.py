"""Creates engines for the databases, with the settings that make a commit durable."""

import contextlib
import os
import socket
import sqlite3
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy import event

from spark_log.errors import MetadataStoreError, SparkLogError, UnsupportedStoreError
from spark_log.metadata.address import (
    SQLITE_FILE,
    Address,
    check_transport,
    cluster_not_found,
    refuse_insecure,
    refuse_network_file_system,
)
from spark_log.metadata.compiled_statements import COMPILED_STATEMENTS
from spark_log.metadata.connections import sqlite_connections
from spark_log.metadata.connections.schema_fence import SchemaFence
from spark_log.metadata.connections.server_identity import ask_server
from spark_log.metadata.connections.silent_sessions import APPLICATION
from spark_log.metadata.connections.write_ahead_log import BYTES_MAX
from spark_log.metadata.prepared import LastChanges, Prepared, driver_of

if TYPE_CHECKING:
    from spark_log.metadata.connections.postgresql_connection import Hosts

BUSY_TIMEOUT_MS = 60_000
_EXECUTION_OPTIONS = {"compiled_cache": COMPILED_STATEMENTS}
_WRITES = "spark_log_writes"
_BEGIN, _BEGIN_WRITE = Prepared(sa.text("BEGIN")), Prepared(sa.text("BEGIN IMMEDIATE"))

_POSTGRESQL_OPTIONS = (
    "-c timezone=UTC -c idle_in_transaction_session_timeout=10000 -c lock_timeout=3000 -c client_min_messages=warning"
    r" -c statement_timeout=0 -c default_transaction_isolation=read\ committed"
)
"""These options win over settings of the role and of the database. Warnings are requested because they put a commit in
doubt (`commit_tokens`). Transactions lock a row and then read others, as they are after the wait for the lock.

A process that is stopped during a transaction holds its locks until another one that waits for them ends its session,
after 3 to 6 s (`silent_sessions`). If no process waits, the server or a coordinator ends it, after 10 s.
"""
_PID = "spark_log_pid"
_SYNCHRONOUS = "spark_log_synchronous"
_WAITING_MAX = 8
_WAITING = sa.text("SELECT pid FROM pg_stat_activity WHERE pid = ANY(:pids) AND wait_event = 'SyncRep'")


def create_engine(
    address: Address, fence: SchemaFence, *, create: bool = False, hosts: "Hosts | None" = None
) -> sa.Engine:
    """Return an engine for `address`. With `create`, the SQLite file may be created. PostgreSQL needs `hosts`.

    Raise ClusterNotFoundError if there is no SQLite file, UnsupportedStoreError if it is on a network file system, and
    InvalidConfigurationError if PostgreSQL would be reached over a network without verified TLS.
    """
    if address.folder:
        return _sqlite_engine(address, address.folder, fence, create)
    assert hosts is not None
    return _postgresql_engine(address, fence, hosts)


def begin_write(connection: sa.Connection) -> sa.Connection:
    """Return the connection with options for one write transaction, which takes SQLite's write lock when it begins."""
    if connection.dialect.name == "sqlite":
        return connection.execution_options(**{_WRITES: True})
    return connection.execution_options(**{_WRITES: True, LastChanges.OPTION: LastChanges()})


def is_write(connection: sa.Connection) -> bool:
    """Return whether the connection is one that `begin_write` returned."""
    return bool(connection.get_execution_options().get(_WRITES, False))


def set_synchronous(connection: sa.Connection, mode: str) -> None:
    """Let the next transactions of a SQLite connection be forced to disk (FULL) or not (NORMAL)."""
    if connection.info.get(_SYNCHRONOUS) != mode:
        connection.info[_SYNCHRONOUS] = None  # unknown, if this is interrupted
        driver_of(connection).execute(f"PRAGMA synchronous={mode}")
        connection.info[_SYNCHRONOUS] = mode


def _sqlite_engine(address: Address, folder: Path, fence: SchemaFence, create: bool) -> sa.Engine:
    refuse_network_file_system(folder, Path("/proc/mounts").read_text())
    path = folder / SQLITE_FILE
    if not create and not path.is_file():
        raise cluster_not_found(address)

    opened: tuple[int, int] | None = None

    def connect() -> sqlite3.Connection:  # not through a SQLAlchemy URL, in which % and ? have a meaning
        return sqlite_connections.connect(path, "rwc" if create else "rw", BUSY_TIMEOUT_MS / 1000)

    engine = sa.create_engine(
        "sqlite://", creator=connect, poolclass=sqlite_connections.Pool, execution_options=_EXECUTION_OPTIONS
    )
    sqlite_connections.close_before_fork(engine)

    @event.listens_for(engine, "connect")
    def set_up(connection: Any, record: Any) -> None:
        nonlocal opened
        connection.isolation_level = None  # the driver would send BEGIN late, and never BEGIN IMMEDIATE
        cursor = connection.cursor()
        cursor.execute("PRAGMA journal_mode=WAL")
        cursor.execute("PRAGMA synchronous=FULL")
        record.info[_SYNCHRONOUS] = "FULL"
        cursor.execute("PRAGMA temp_store=MEMORY")
        cursor.execute("PRAGMA cache_size=-16384")
        cursor.execute(f"PRAGMA journal_size_limit={BYTES_MAX}")  # truncates a long log when SQLite restarts it
        cursor.close()
        opened = opened or _place_of(path)

    @event.listens_for(engine, "handle_error", retval=True)
    def keep_ours(context: sa.ExceptionContext) -> BaseException | None:
        return context.original_exception if isinstance(context.original_exception, SparkLogError) else None

    @event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        (_BEGIN_WRITE if is_write(connection) else _BEGIN).run(connection, [{}])
        if _place_of(path) != opened:  # no other process sees what changes here, and other segment files may be there
            raise MetadataStoreError(
                f"{path}: it was moved, deleted or replaced after it was opened: start this process again"
            )
        fence.check_transaction(connection)

    return engine


def _place_of(path: Path) -> tuple[int, int] | None:
    """Return the device and the inode of a file, which another file at the same path does not have."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _postgresql_engine(address: Address, fence: SchemaFence, hosts: "Hosts") -> sa.Engine:
    import psycopg  # slow to import

    check_transport(address)
    engine = sa.create_engine(
        address.url,
        pool_pre_ping=False,  # a lost connection is retried where it is used, which saves a round trip
        use_native_hstore=False,  # a type of PostgreSQL that no table has: saves a round trip when an engine connects
        connect_args={
            "application_name": APPLICATION,
            "connect_timeout": address.connect_timeout_s,
            "options": _POSTGRESQL_OPTIONS,
        },
        execution_options=_EXECUTION_OPTIONS,
    )
    _postgresql_engines.add(engine)

    @event.listens_for(engine, "do_connect")
    def connect(_dialect: Any, _record: Any, arguments: Any, parameters: Any) -> Any:
        return hosts.connect(*arguments, **parameters)

    @event.listens_for(engine, "connect")
    def check(connection: Any, record: Any) -> None:
        refuse_insecure(address, connection.info.host, connection.info.get_parameters().get("sslmode", ""))
        _postgresql_connections.add(connection)
        record.info[_PID] = connection.info.backend_pid
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT current_setting('fsync'), current_setting('synchronous_commit'),"
                f" current_setting('full_page_writes'), pg_is_in_recovery(), {fence.admission}"
            )
            fsync, synchronous_commit, full_page_writes, in_recovery, admitted = cursor.fetchone()
        connection.rollback()
        if in_recovery:
            # it may be promoted soon; SQLAlchemy treats this error as a failure to connect
            raise psycopg.OperationalError("this PostgreSQL server is a standby in recovery; name the primary")
        if not admitted:
            raise psycopg.OperationalError("a newer spark-log upgrades the metadata store now")
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
        identity = ask_server(connection, record.info, address)
        if identity is not None:
            hosts.refuse_old_primary(connection, identity.system_identifier, identity.timeline)
        fence.check_session(connection)

    return engine


@contextlib.contextmanager
def without_answer_limit(connection: sa.Connection) -> Iterator[None]:
    """Remove the time limit of answers for a PostgreSQL connection inside the block (`answer_watch`)."""
    driver = driver_of(connection)
    driver.unlimited = True
    try:
        yield
    finally:
        driver.unlimited = False


class UnansweredCommits:
    """The sessions of this process on PostgreSQL whose COMMIT got no answer, and may wait for a synchronous standby.

    Such a session still waits after its client has gone (store.answer.timeout.ms). While no standby is there, each
    further commit would leave one more, until max_connections refuses readers too. So a process begins no write
    transaction while _WAITING_MAX of its sessions wait.
    """

    def __init__(self) -> None:
        self._pids: set[int] = set()

    def add(self, pid: int) -> None:
        self._pids.add(pid)

    def refuse_more(self, engine: sa.Engine) -> None:
        """Raise OperationalError if too many sessions wait. It asks the server only after a lost answer."""
        if not self._pids:
            return
        asked = list(self._pids)
        with engine.connect() as connection:
            waiting = set(connection.execute(_WAITING, {"pids": asked}).scalars())
        self._pids.difference_update(set(asked) - waiting)
        if len(waiting) >= _WAITING_MAX:
            problem = f"{len(waiting)} commits of this process wait for a synchronous standby: no further one is begun"
            raise sa.exc.OperationalError(None, None, Exception(problem))


def pid_of(connection: sa.Connection) -> int:
    """Return the process id of the connection's session on PostgreSQL."""
    pid: int = connection.info[_PID]
    return pid


_postgresql_engines: "weakref.WeakSet[sa.Engine]" = weakref.WeakSet()
_postgresql_connections: "weakref.WeakSet[Any]" = weakref.WeakSet()


def _leave_sessions_to_parent() -> None:
    """Disconnect inherited sockets in a forked child, so that it sends nothing to a session of the parent.

    This includes the end of a transaction during which the parent forked.
    """
    ours, theirs = socket.socketpair()
    theirs.close()
    for connection in list(_postgresql_connections):
        with contextlib.suppress(Exception):  # a closed connection has no descriptor
            os.dup2(ours.fileno(), connection.fileno())
    ours.close()
    for engine in list(_postgresql_engines):
        engine.dispose(close=False)


os.register_at_fork(after_in_child=_leave_sessions_to_parent)
