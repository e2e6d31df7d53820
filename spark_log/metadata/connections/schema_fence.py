"""Refuses the store to processes whose version of spark-log does not know its schema, also when they run already.

Invariant: in each transaction of a process of revision r, `cluster.oldest_revision` <= r <= the store's revision. The
code of revision r knows the tables then: the migrations after r are additive.

SQLite: each transaction reads both numbers after BEGIN (10 us, 1 % of an append). PostgreSQL: each session reads both
when it is opened, and holds an advisory lock that names its revision. An upgrade ends the sessions of the
revisions that it excludes, so transactions cost nothing:

    session    in its first transaction: shared lock (_OPENING, r) until its end, shared lock (_USING, r) of the session
               after it: read the numbers
    upgrade    lock (_OPENING, r) for each excluded r until its commit: no further session of r is opened
               end the sessions with a lock (_USING, r)
               change the tables
"""

import contextlib
import sqlite3
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from spark_log import clock
from spark_log.errors import MetadataStoreError, MetadataStoreUnavailableError, UnsupportedVersionError
from spark_log.metadata import tables
from spark_log.metadata.address import Address
from spark_log.metadata.prepared import as_sqlalchemy, driver_of

if TYPE_CHECKING:
    import psycopg

_FIRST_FENCED = 8
"""The first revision whose code has the fence."""

_OPENING, _USING = 0x736C6701, 0x736C6702
"""The first number of an advisory lock of two; the second one is a revision."""

_STORED = "SELECT version_num, oldest_revision FROM alembic_version, cluster"

_SESSIONS = sa.text(
    "SELECT pid, usename, coalesce(client_addr::text, 'this host') AS host, state IS NOT DISTINCT FROM 'idle' AS idle"
    " FROM pg_locks LEFT JOIN pg_stat_activity USING (pid)"
    " WHERE locktype = 'advisory' AND classid = :using AND objsubid = 2 AND objid::bigint < :oldest"
    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)
_BUSY_S = 2.0
"""How long an upgrade waits for the transactions of sessions before it ends them."""
_END_S = 30.0
_POLL_S = 0.01


def number_of(revision: str | None) -> int:
    """Return the number of a revision, 0 for one from before the first release."""
    return int(revision[1:]) if revision is not None and revision.startswith("v") else 0


class SchemaFence:
    """The check of one `Store`. Thread-safe."""

    def __init__(self, address: Address) -> None:
        self.refusal: UnsupportedVersionError | None = None
        """Set when the store was refused: this process cannot use it any more."""
        self._address = address
        self._revision = tables.SCHEMA_REVISION
        self._thread = threading.local()

    @contextlib.contextmanager
    def lifted(self) -> Iterator[None]:
        """Check nothing in this thread during the block, which reads the revision itself, or the token of a commit."""
        self._thread.lifted = True
        try:
            yield
        finally:
            self._thread.lifted = False

    def raise_refusal(self) -> None:
        """Raise UnsupportedVersionError if the store was refused. Servers call it, and end."""
        if self.refusal is not None:
            raise self.refusal

    @property
    def admission(self) -> str:
        """A SQL expression for a PostgreSQL session's first transaction. It is false while the store is upgraded."""
        number = number_of(self._revision)
        return (
            f"pg_try_advisory_xact_lock_shared({_OPENING}, {number})"
            f" AND pg_try_advisory_lock_shared({_USING}, {number})"
        )

    def check_transaction(self, connection: sa.Connection) -> None:
        """Check a transaction on SQLite that has just begun. Raise UnsupportedVersionError if this process must not use
        the store.
        """
        if self._is_lifted:
            return
        try:
            [(revision, oldest)] = driver_of(connection).execute(_STORED)
        except sqlite3.Error as error:
            raise as_sqlalchemy(connection, _STORED, error) from error
        self._check(revision, oldest)

    def check_session(self, connection: "psycopg.Connection[Any]") -> None:
        """Check a new session on PostgreSQL as `check_transaction` does. A session that is refused is closed."""
        if self._is_lifted:
            return
        try:
            [(revision, oldest)] = connection.execute(_STORED).fetchall()
            self._check(revision, oldest)
        except UnsupportedVersionError:
            connection.close()
            raise
        connection.rollback()

    @property
    def _is_lifted(self) -> bool:
        return getattr(self._thread, "lifted", False)

    def _check(self, revision: str, oldest: int) -> None:
        if revision == self._revision or oldest <= number_of(self._revision) <= number_of(revision):
            return
        store = f"the metadata store at {self._address}"
        if number_of(revision) < number_of(self._revision):
            text = (
                f"{store} went back to revision {revision!r}, and this process uses {self._revision!r}: start it again"
                " when the restored store is in its place"
            )
        else:
            text = (
                f"{store} was upgraded to revision {revision!r} by a newer spark-log while this process used it, which"
                f" understands {self._revision!r}: install the newer spark-log here, and start the process again"
            )
        self.refusal = UnsupportedVersionError(text)
        raise UnsupportedVersionError(text)  # not the same object, whose traceback would grow


def end_sessions(connection: sa.Connection, oldest: int) -> None:
    """End all sessions on PostgreSQL whose revision is below `oldest`, and let none begin until the transaction of this
    connection has ended.

    Idle sessions are ended at once, and those in a transaction after 2 s. Raise MetadataStoreError if this role may not
    end them.
    """
    for revision in range(_FIRST_FENCED, oldest):
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_OPENING, revision)))
    began_s = clock.monotonic_s()
    while True:
        connection.execute(sa.text("SELECT pg_stat_clear_snapshot()"))  # else the states are those of the first loop
        sessions = connection.execute(_SESSIONS, {"using": _USING, "oldest": oldest}).all()
        if not sessions:
            return
        waited_s = clock.monotonic_s() - began_s
        if waited_s > _END_S:
            raise MetadataStoreUnavailableError(f"sessions of an older spark-log do not end: {_names(sessions)}")
        for each in sessions:
            if each.idle or waited_s > _BUSY_S:
                _end(connection, each)
        clock.sleep_s(_POLL_S)


def _end(connection: sa.Connection, session: Any) -> None:
    try:
        connection.execute(sa.text("SELECT pg_terminate_backend(:pid)"), {"pid": session.pid})
    except sa.exc.ProgrammingError as error:
        raise MetadataStoreError(
            f"the upgrade must end the sessions of an older spark-log, and this role may not: {_names([session])}; end"
            " their processes first, or run as a superuser: GRANT pg_signal_backend TO the role that upgrades"
        ) from error


def _names(sessions: Any) -> str:
    return ", ".join(f"pid {each.pid} of {each.usename} from {each.host}" for each in sessions)
