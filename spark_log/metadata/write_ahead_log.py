"""Keeps SQLite's write-ahead log short while there are readers all the time."""

import contextlib
import os
import sqlite3
from pathlib import Path

from spark_log import clock

BYTES_MAX = 32 * 1024 * 1024
"""Above this a writer cuts the log. SQLite's own checkpoints, every 4 MB, are enough where readers leave gaps."""

_WAIT_MS = 200
_AGAIN_AFTER_S = 5.0


class WriteAheadLog:
    """SQLite starts its log again only when no reader is on it, and with readers that overlap that moment never comes
    by itself: it has to be waited for. New readers do not delay it; the longest one does, for as long as it reads.
    """

    def __init__(self, database: Path, busy_timeout_ms: int) -> None:
        self._path = Path(f"{database}-wal")
        self._busy_timeout_ms = busy_timeout_ms
        self._not_before_s = 0.0

    def keep_short(self, connection: sqlite3.Connection) -> None:
        """After a commit, in the writer's turn: cut the log if it is long. A long reader is waited for another time."""
        try:
            size = os.stat(self._path).st_size
        except FileNotFoundError:
            return
        if size <= BYTES_MAX or clock.monotonic_s() < self._not_before_s:
            return
        busy = True
        with contextlib.suppress(sqlite3.Error):  # the commit is done, whatever becomes of this
            connection.execute(f"PRAGMA busy_timeout={_WAIT_MS}")
            try:
                busy = bool(connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0])
            finally:
                connection.execute(f"PRAGMA busy_timeout={self._busy_timeout_ms}")
        if busy:
            self._not_before_s = clock.monotonic_s() + _AGAIN_AFTER_S
