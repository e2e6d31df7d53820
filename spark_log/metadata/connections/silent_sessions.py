"""Ends PostgreSQL sessions of stopped processes, which would otherwise keep their locks.

The server itself ends a transaction that has waited 10 s for a statement (`engine`), but not one that waits for the
rest of a message, or after a Flush, which psycopg sends at the end of a pipeline or an executemany.
"""

import sqlalchemy as sa

from spark_log import clock

APPLICATION = "spark-log"
"""The application name of all sessions."""

_OURS = (
    " datname = current_database() AND usename = current_user AND application_name = :application"
    " AND state IN ('active', 'idle in transaction') AND wait_event_type = 'Client' AND wait_event = 'ClientRead'"
)
_END = sa.text(
    f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {_OURS}"
    " AND pid NOT IN (SELECT pid FROM pg_stat_progress_copy)"
    " AND state_change < clock_timestamp() - interval '1 millisecond'"
    "  * CASE WHEN backend_xid IS NULL THEN :silent_ms ELSE :locking_ms END"
)
_COPIES = sa.text(
    f"SELECT pid, bytes_processed FROM pg_stat_progress_copy JOIN pg_stat_activity USING (pid, datname) WHERE {_OURS}"
)
_END_COPIES = sa.text("SELECT pg_terminate_backend(pid) FROM pg_stat_progress_copy WHERE pid = ANY(:pids)")


class SilentSessions:
    """Ends the silent sessions of a store. A COPY is one statement for all of its rows, so it is silent if it has
    received nothing since an earlier call of `end`. Threads may share it: at worst two of them end the same session.
    """

    def __init__(self) -> None:
        self._copies: dict[int, tuple[int, float]] = {}
        """The bytes that each COPY had received, and when they were as many for the first time."""

    def end(self, engine: sa.Engine, silent_ms: int, locking_ms: int) -> None:
        """End the sessions in a transaction that have sent nothing for `silent_ms`, or for `locking_ms` if they have
        locked or written rows: only these have a transaction id.
        """
        ours = {"application": APPLICATION}
        with engine.begin() as connection:
            connection.execute(_END, {**ours, "silent_ms": silent_ms, "locking_ms": locking_ms})
            now_s, before = clock.monotonic_s(), self._copies
            self._copies = {
                pid: before[pid] if pid in before and before[pid][0] == size else (size, now_s)
                for pid, size in connection.execute(_COPIES, ours)
            }
            stuck = [pid for pid, (_, since_s) in self._copies.items() if now_s - since_s >= silent_ms / 1000]
            if stuck:
                connection.execute(_END_COPIES, {"pids": stuck})
