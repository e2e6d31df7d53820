"""Removes the bytes of deleted rows from a SQLite file and its write-ahead log."""

import os
import sqlite3
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from spark_log import clock
from spark_log.errors import SparkLogError, redact
from spark_log.metadata.address import SQLITE_FILE
from spark_log.metadata.connections.engine import set_synchronous
from spark_log.metadata.store import DEFAULT_TIMEOUT_MS, Store

WAIT_MS = 5_000
"""How long a scrub waits for another program's transaction. Writers of the store wait during that time."""

_FIRST_READER_LOCK, _READER_LOCKS = 123, 5
"""First and number of the bytes of the -shm file that SQLite's readers lock while they read an older state of the
write-ahead log.
"""

POSTGRESQL_KEEPS = (
    "PostgreSQL keeps deleted data: in its data files until `VACUUM FULL blob` and the next checkpoint, in its"
    " write-ahead log until those files are removed or overwritten, and in backups"
)


def scrub(store: Store) -> str | None:
    """Remove the bytes of deleted rows from the store's files.

    Return None if that succeeded, else a message that says which data is left and where. SQLite rewrites its file
    in about a second for 100 MB; writers wait during that time. On PostgreSQL nothing is removed.
    """
    if store.address.folder is None:
        return POSTGRESQL_KEEPS
    path = store.address.folder / SQLITE_FILE
    deadline = clock.monotonic_s() + DEFAULT_TIMEOUT_MS / 1000
    try:
        with store.writer_turn(deadline), store.engine.connect() as connection:
            set_synchronous(connection, "FULL")
            return _scrub_sqlite(connection.connection.driver_connection, path)
    except (sqlite3.Error, sa.exc.DBAPIError, SparkLogError) as error:
        return _still_there(path, f"it could not be rewritten ({redact(str(error))}): when that has ended")


def _scrub_sqlite(driver: Any, path: Path) -> str | None:
    """Rewrite the file and empty the write-ahead log. `driver` is a sqlite3 connection to the file at `path`.

    Return None if that succeeded, else a message for the user that says what is left, where and why. Raise
    sqlite3.Error.
    """
    [timeout_ms] = driver.execute("PRAGMA busy_timeout").fetchone()
    driver.execute(f"PRAGMA busy_timeout={WAIT_MS}")
    try:
        driver.execute("VACUUM")
        [busy, _, _] = driver.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    finally:
        driver.execute(f"PRAGMA busy_timeout={timeout_ms}")
    if not busy:
        return None
    readers = _readers(path)
    by = f"process {', '.join(map(str, readers))}" if readers else "another program"
    return _still_there(path, f"{by} is reading an older state of it: when that has ended")


def _still_there(path: Path, why: str) -> str:
    """Return the message about a SQLite file that may still contain deleted data. `why` ends with when to try again."""
    return f"{path} and its write-ahead log {path.name}-wal may still hold deleted data, since {why}, erase again"


def _readers(path: Path) -> list[int]:
    """Return the ids of the processes whose reads prevent the truncation of the write-ahead log.

    The list is empty if the kernel does not show them.
    """
    try:
        inode = os.stat(f"{path}-shm").st_ino
        lines = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    except OSError:
        return []
    last = _FIRST_READER_LOCK + _READER_LOCKS
    return sorted(
        {
            int(words[-4])
            for words in lines
            if words[1] == "POSIX" and words[-3].endswith(f":{inode}") and _FIRST_READER_LOCK <= int(words[-2]) < last
        }
    )
