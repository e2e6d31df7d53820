"""Learning promptly that the store has changed, without asking it all the time.

    look = changes.current()        a number; what is committed before this line is seen by the read below
    ... read the store, find nothing new ...
    changes.wait(look, timeout_s)   returns when something was committed since `look`, or at the time-out

SQLite says so itself: `PRAGMA data_version` costs microseconds and is asked the more rarely the longer nothing comes.
PostgreSQL notifies: one connection of the process listens; whoever commits announces it afterwards, in the background
and throttled (a NOTIFY inside the transaction would make commits wait for each other). While the listener has no
connection, and for what somebody could not announce, waits are short: the bounded polling that remains.
"""

import os
import sqlite3
import threading
from typing import Protocol

from spark_log import clock
from spark_log.metadata.address import SQLITE_FILE, Address

_LOOK_S_MIN, _LOOK_S_MAX = 0.0005, 0.01


class Changes(Protocol):
    """Safe to share between threads."""

    def current(self) -> int: ...

    def wait(self, seen: int, timeout_s: float) -> bool:
        """Whether anything was committed since `current` gave `seen`."""
        ...

    def announce(self) -> None:
        """Tell the others that something was committed."""
        ...

    def close(self) -> None: ...


def changes_of(address: Address) -> Changes:
    if address.folder:
        return SqliteChanges(address)
    from spark_log.metadata.postgresql_changes import PostgresqlChanges  # psycopg takes its time to import

    return PostgresqlChanges(address)


class SqliteChanges:
    def __init__(self, address: Address) -> None:
        assert address.folder is not None
        self._uri = f"{(address.folder / SQLITE_FILE).absolute().as_uri()}?mode=ro"
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._process = -1

    def current(self) -> int:
        with self._lock:
            if self._connection is None or self._process != os.getpid():
                self._connection = sqlite3.connect(self._uri, uri=True, check_same_thread=False, timeout=60)
                self._process = os.getpid()
            return int(self._connection.execute("PRAGMA data_version").fetchone()[0])

    def wait(self, seen: int, timeout_s: float) -> bool:
        began = clock.monotonic_s()
        while self.current() == seen:
            waited = clock.monotonic_s() - began
            if waited >= timeout_s:
                return False
            clock.sleep_s(min(max(_LOOK_S_MIN, waited / 20), _LOOK_S_MAX, timeout_s - waited))
        return True

    def announce(self) -> None:
        """SQLite's file says it."""

    def close(self) -> None:
        with self._lock:
            if self._connection is not None and self._process == os.getpid():
                self._connection.close()
            self._connection = None
