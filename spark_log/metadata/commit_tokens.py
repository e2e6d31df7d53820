"""Whether a PostgreSQL transaction was committed whose answer was lost: asked of a row that it wrote itself.

The last statement of a write transaction inserts a token that is used once, on the same way to the server as COMMIT.
If the answer is lost, `was_committed` inserts the same token under another mark. The primary key decides: it makes the
question wait for a server process that is still at that transaction, and what it finds is final. If the token is the
transaction's, it was committed. If it is the question's, the transaction can never be committed, however late its
COMMIT reaches the server.

A transaction id does not tell. PostgreSQL does not flush the assignment of an id, and assigns it again after a crash.

Each connection deletes its earlier tokens, some at a time, so the table holds a few rows for each connection and one
for each lost answer, until `expire_tokens`.
"""

import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING

import sqlalchemy as sa

from spark_log import clock
from spark_log.metadata import tables as t
from spark_log.metadata.prepared import as_sqlalchemy

if TYPE_CHECKING:
    from spark_log.metadata.store import Store

ASKED_MS_MAX = 24 * 3_600_000
"""How long after its COMMIT a client may still ask about a transaction."""

KEPT_MS = 2 * ASKED_MS_MAX
"""How long a token is kept at least."""

_ANSWERED = "spark_log_answered_tokens"
_ANSWERED_MAX = 16

_NOW_MS = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
_WROTE = "pg_current_xact_id_if_assigned() IS NOT NULL"

_FORGET = f"DELETE FROM commit_token WHERE token = ANY(%s) AND {_WROTE}"
_INSERT = f"INSERT INTO commit_token (token, committed, at_ms) SELECT %s, true, {_NOW_MS} WHERE {_WROTE}"
_ASK = (
    f"INSERT INTO commit_token AS known (token, committed, at_ms) VALUES (:token, false, {_NOW_MS})"
    " ON CONFLICT (token) DO UPDATE SET committed = known.committed RETURNING committed"
)


def new_token() -> str:
    return uuid.uuid4().hex


def commit(connection: sa.Connection, token: str) -> None:
    """Commit the open transaction under a new token, in one round trip. One that wrote nothing leaves no token."""
    driver = connection.connection.driver_connection
    assert driver is not None
    answered: list[str] = connection.info.setdefault(_ANSWERED, [])
    full = len(answered) >= _ANSWERED_MAX
    try:
        with driver.pipeline():  # a statement that fails keeps those after it from being run
            if full:
                driver.execute(_FORGET, (answered,))
            inserted = driver.execute(_INSERT, (token,))
            driver.execute("COMMIT")
    except connection.dialect.loaded_dbapi.Error as error:
        raise as_sqlalchemy(connection, _INSERT, error) from error
    if inserted.rowcount == 1:
        connection.info[_ANSWERED] = [token] if full else [*answered, token]


def was_committed(engine: sa.Engine, token: str) -> bool:
    """Whether the transaction of that token was committed; if it was not, it cannot be any more."""
    with engine.begin() as connection:
        connection.exec_driver_sql("SET LOCAL lock_timeout = '5s'")  # of a server process that is still at it
        committed: bool = connection.execute(sa.text(_ASK), {"token": token}).scalar_one()
    return committed


def may_ask(committed_at_boot_ms: int) -> bool:
    """Whether an answer that has come by now is about a token that was certainly kept."""
    return clock.boot_ms() - committed_at_boot_ms < ASKED_MS_MAX


def expire_tokens(store: "Store", guard: Callable[[sa.Connection], None] = lambda _: None) -> None:
    """Delete the tokens that no client may ask about any more. `guard` raises if the caller may not act any more."""

    def body(connection: sa.Connection, _attempt: object) -> None:
        guard(connection)
        before_ms = store.clock(connection).wall_ms - KEPT_MS
        connection.execute(t.commit_token.delete().where(t.commit_token.c.at_ms < before_ms))

    store.transact(body)
