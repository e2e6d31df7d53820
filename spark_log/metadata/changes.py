"""Learning promptly that the store has changed, without asking it all the time.

    look = changes.current()        a number; what is committed before this line is seen by the read below
    ... read the store, find nothing new ...
    changes.wait(look, timeout_s)   returns when something was committed since `look`, or at the time-out

SQLite says so itself: `PRAGMA data_version` costs microseconds and is asked the more rarely the longer nothing comes.
PostgreSQL notifies: one connection of the process listens; whoever commits announces it afterwards, in the background
and throttled (a NOTIFY inside the transaction would make commits wait for each other). While the listener has no
connection, and for what somebody could not announce, waits are short: the bounded polling that remains.
"""

import sqlite3
import threading
from typing import Protocol

from spark_log import clock
from spark_log.metadata import sqlite_connections
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
        self._path = address.folder / SQLITE_FILE
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._opened = 0
        sqlite_connections.close_before_fork(self)

    def current(self) -> int:
        with sqlite_connections.in_use(), self._lock:
            if self._connection is None:
                self._connection = sqlite_connections.connect(self._path, "ro", timeout_s=60)
                self._opened += 1  # the versions that two connections see do not compare
            version = int(self._connection.execute("PRAGMA data_version").fetchone()[0])
            return (self._opened << 32) + version

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
        self.dispose()

    def dispose(self, close: bool = True) -> None:
        """Close the connection; the next look opens another one. `close=False` only forgets it, in a forked child."""
        if not close:
            self._lock = threading.Lock()
            self._connection = None
            return
        with self._lock:
            if self._connection is not None:
                self._connection.close()
            self._connection = None
