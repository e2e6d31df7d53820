"""Keeps SQLite's write-ahead log short when there is always a reader."""

import contextlib
import os
import sqlite3
from pathlib import Path

from spark_log import clock

BYTES_MAX = 32 * 1024 * 1024
"""Above this size a writer truncates the log. If there are moments without readers, SQLite's own checkpoints, every
4 MB, keep it shorter.
"""

_WAIT_MS = 200
_AGAIN_AFTER_S = 5.0


class WriteAheadLog:
    """Truncates the write-ahead log of one database.

    SQLite restarts its log only when no reader uses it. With overlapping readers this never happens by itself, so a
    writer has to wait for the readers. Readers that begin during the wait do not prolong it.
    """

    def __init__(self, database: Path, busy_timeout_ms: int) -> None:
        self._path = Path(f"{database}-wal")
        self._busy_timeout_ms = busy_timeout_ms
        self._not_before_s = 0.0

    def truncate_if_long(self, connection: sqlite3.Connection) -> None:
        """Truncate the log if it is long. Call it after a commit, while the process has its turn to write.

        If readers prevent it for 200 ms, calls in the next 5 s do nothing.
        """
        try:
            size = os.stat(self._path).st_size
        except FileNotFoundError:
            return
        if size <= BYTES_MAX or clock.monotonic_s() < self._not_before_s:
            return
        busy = True
        with contextlib.suppress(sqlite3.Error):  # the commit is done, so errors here do not matter
            connection.execute(f"PRAGMA busy_timeout={_WAIT_MS}")
            try:
                busy = bool(connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0])
            finally:
                connection.execute(f"PRAGMA busy_timeout={self._busy_timeout_ms}")
        if busy:
            self._not_before_s = clock.monotonic_s() + _AGAIN_AFTER_S
