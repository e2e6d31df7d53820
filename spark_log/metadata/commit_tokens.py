"""Finds out whether a PostgreSQL transaction was committed when the answer to its COMMIT was lost.

The last statement of a write transaction inserts a token that is used once, in the same message to the server as
COMMIT. If the answer is lost, `was_committed` inserts the same token with committed = false. The primary key makes this
insert wait while the server still runs the transaction. The result of the insert is final. If the table has the
transaction's row, the transaction was committed. If it has the row of `was_committed`, the transaction can never be
committed, however late its COMMIT reaches the server.

A COMMIT that is answered with a warning is in doubt too: an operator has cancelled the wait for the synchronous
standby, so a failover may lose the transaction. `was_committed` is itself a synchronous commit, later in the
write-ahead log. If it is answered without a warning, the standby has both commits.

A PostgreSQL transaction id cannot replace the token: PostgreSQL does not flush the assignment of an id, and may assign
the same id again after a crash.

Each store deletes its answered tokens in batches, and the last ones when it is closed. The table therefore has a few
rows for each process, and one for each lost answer until `expire` deletes it.
"""

import contextlib
import os
from collections import deque

import sqlalchemy as sa

from spark_log import clock
from spark_log.metadata import tables as t
from spark_log.metadata.prepared import LastChanges, as_sqlalchemy, driver_of, one_message
from spark_log.metadata.sql_columns import COMMIT_TOKEN

ASKED_MS_MAX = 24 * 3_600_000
"""How long after its COMMIT a client may ask whether a transaction was committed."""

KEPT_MS = 2 * ASKED_MS_MAX
"""The shortest time for which a token is kept."""

_ANSWERED_MAX = 16

_NOW_MS = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
_WROTE = "pg_current_xact_id_if_assigned() IS NOT NULL"

_FORGET_ALWAYS = "DELETE FROM commit_token WHERE token = ANY(%s)"
_FORGET = f"{_FORGET_ALWAYS} AND {_WROTE}"
"""At READ COMMITTED the statement sees the rows of all answered tokens. A row that it does not find was deleted before.
"""
_FORGET_SEEN = f"{_FORGET_ALWAYS} RETURNING token"
_INSERT_ALWAYS = f"INSERT INTO commit_token (token, committed, at_ms) SELECT %s, true, {_NOW_MS}"
_INSERT = f"{_INSERT_ALWAYS} WHERE {_WROTE}"
_ASK = (
    f"INSERT INTO commit_token AS known (token, committed, at_ms) VALUES (:token, false, {_NOW_MS})"
    " ON CONFLICT (token) DO UPDATE SET committed = known.committed RETURNING committed"
)


def new_token() -> str:
    return os.urandom(16).hex()


def commit(connection: sa.Connection, token: str, answered: deque[str], *, durable: bool, always: bool = False) -> None:
    """Commit the open transaction under `token`, in one round trip with its last changes (`sent_with_commit`).

    A transaction that wrote nothing leaves no token, except with `always`, for REPEATABLE READ: its snapshot may be
    older than some of the answered tokens, and a later transaction deletes those. With `durable=False` the server does
    not wait until the commit is on disk. Raise OperationalError, as for a lost answer, if the server sends a warning.
    `answered` are the tokens of the store's transactions that no thread will ask about; threads share it.
    """
    driver = driver_of(connection)
    forgotten = _taken(answered) if len(answered) >= _ANSWERED_MAX else []
    last = LastChanges.of(connection)
    driver.warnings.clear()
    with one_message(connection):
        if last is not None:
            last.send(connection)
        deleted = driver.execute(_FORGET_SEEN if always else _FORGET, (forgotten,)) if forgotten else None
        if not durable:
            driver.execute("SET LOCAL synchronous_commit = off")
        inserted = driver.execute(_INSERT_ALWAYS if always else _INSERT, (token,))
        driver.execute("COMMIT")
    _refuse_warnings(connection)
    if inserted.rowcount == 1:
        answered.append(token)
    else:  # nothing was written, and none deleted
        answered.extend(forgotten)
    if always and deleted is not None:
        seen = {row[0] for row in deleted}
        answered.extend(each for each in forgotten if each not in seen)


def _taken(answered: deque[str]) -> list[str]:
    """Remove and return the tokens. Another thread may take some of them meanwhile."""
    found = []
    with contextlib.suppress(IndexError):
        while True:
            found.append(answered.popleft())
    return found


def forget(engine: sa.Engine, answered: deque[str]) -> None:
    """Delete the answered tokens of a store that is closed, without waiting for the disk."""
    if answered:
        with engine.begin() as connection:
            connection.exec_driver_sql("SET LOCAL synchronous_commit = off")
            connection.exec_driver_sql(_FORGET_ALWAYS, (_taken(answered),))


def was_committed(engine: sa.Engine, token: str) -> bool:
    """Return whether the transaction with this token was committed and, if there is a synchronous standby, is on it.

    If False, the transaction can never be committed. Raise OperationalError if the server sends a warning: then call
    it again.
    """
    with engine.connect() as connection:
        try:
            with connection.begin():
                connection.exec_driver_sql(
                    "SET LOCAL lock_timeout = '5s'"
                )  # while the server still runs the transaction
                driver_of(connection).warnings.clear()
                committed: bool = connection.execute(sa.text(_ASK), {"token": token}).scalar_one()
            _refuse_warnings(connection)
        finally:
            connection.invalidate()  # the store may have been upgraded: the session must not be used for more
    return committed


def _refuse_warnings(connection: sa.Connection) -> None:
    """Raise OperationalError if the server has sent a warning: the commit is then in doubt."""
    warnings = driver_of(connection).warnings
    if warnings:
        error = connection.dialect.loaded_dbapi.OperationalError(f"the commit is in doubt: {'; '.join(warnings)}")
        raise as_sqlalchemy(connection, "COMMIT", error) from error


def may_ask(committed_at_boot_ms: int) -> bool:
    """Return whether an answer that was just received can be trusted, because the token cannot have expired.

    `committed_at_boot_ms` is the time of the COMMIT by `clock.boot_ms`.
    """
    return clock.boot_ms() - committed_at_boot_ms < ASKED_MS_MAX


def expire(connection: sa.Connection, now_ms: int) -> None:
    """Delete the tokens that are too old for any client to ask about. `now_ms` is the store clock."""
    connection.execute(t.commit_token.delete().where(COMMIT_TOKEN.at_ms < now_ms - KEPT_MS))
