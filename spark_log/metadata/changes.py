"""Waits for changes of the store without polling it all the time.

    version = changes.current()        a number that changes with commits; take it before the read
    ... read the store, find nothing new ...
    changes.wait(version, timeout_s)   returns after a commit that is later than `version`, or at the timeout

SQLite: `PRAGMA data_version` costs microseconds. It is polled, and less often the longer nothing changes.
PostgreSQL: one connection of the process listens. After a commit with `announce` (`Store.transact`), the client sends
NOTIFY in the background and throttled, because a NOTIFY inside the transaction would make commits wait for each other.
Other commits are not detected. While the listener is not connected, each wait returns within 50 ms, so that its caller
polls the store.
"""

import sqlite3
import threading
from typing import TYPE_CHECKING, Protocol

from spark_log import clock
from spark_log.errors import MetadataStoreUnavailableError
from spark_log.metadata.address import SQLITE_FILE, Address
from spark_log.metadata.connections import sqlite_connections

if TYPE_CHECKING:
    from spark_log.metadata.connections.postgresql_connection import Hosts

_POLL_S_MIN, _POLL_S_MAX = 0.0005, 0.01


class Changes(Protocol):
    """Detects commits of one store, also those of other processes. Safe to share between threads."""

    exact: bool
    """Whether `current` takes microseconds, and its value differs as soon as another connection has committed."""

    def current(self) -> int:
        """Return the number of the last change. Raises MetadataStoreUnavailableError."""
        ...

    def wait(self, seen: int, timeout_s: float) -> bool:
        """Return True if there may have been a commit since `current` returned `seen`, False at the timeout."""
        ...

    def announce(self) -> None:
        """Notify waiting processes of a commit."""
        ...

    def reconnect(self) -> None:
        """Use a new connection, since the server may have been replaced."""
        ...

    def close(self) -> None: ...


def changes_of(address: Address, hosts: "Hosts | None") -> Changes:
    if hosts is None:
        return SqliteChanges(address)
    from spark_log.metadata.postgresql_changes import PostgresqlChanges  # importing psycopg is slow

    return PostgresqlChanges(address, hosts)


def include(home: Changes, data: Changes) -> None:
    """Let the changes of the home store include those of a data store. Both are on PostgreSQL."""
    from spark_log.metadata.postgresql_changes import PostgresqlChanges

    assert isinstance(home, PostgresqlChanges) and isinstance(data, PostgresqlChanges)
    home.include(data)


def exclude(home: Changes, data: Changes) -> None:
    """Undo `include`."""
    from spark_log.metadata.postgresql_changes import PostgresqlChanges

    assert isinstance(home, PostgresqlChanges) and isinstance(data, PostgresqlChanges)
    home.exclude(data)


class SqliteChanges:
    exact = True

    def __init__(self, address: Address) -> None:
        assert address.folder is not None
        self._path = address.folder / SQLITE_FILE
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._opened = 0
        sqlite_connections.close_before_fork(self)

    def current(self) -> int:
        try:
            with sqlite_connections.in_use(), self._lock:
                if self._connection is None:
                    self._connection = sqlite_connections.connect(self._path, "ro", timeout_s=60)
                    self._opened += 1  # data_version is comparable only within one connection
                version = int(self._connection.execute("PRAGMA data_version").fetchone()[0])
                return (self._opened << 32) + version
        except sqlite3.Error as error:
            self.dispose()
            raise MetadataStoreUnavailableError(f"metadata store at {self._path}: {error}") from error

    def wait(self, seen: int, timeout_s: float) -> bool:
        began = clock.monotonic_s()
        while self.current() == seen:
            waited = clock.monotonic_s() - began
            if waited >= timeout_s:
                return False
            clock.sleep_s(min(max(_POLL_S_MIN, waited / 20), _POLL_S_MAX, timeout_s - waited))
        return True

    def announce(self) -> None:
        """Nothing to do: other connections see the change in data_version."""

    def reconnect(self) -> None:
        """Nothing to do: there is no server."""

    def close(self) -> None:
        self.dispose()

    def dispose(self, close: bool = True) -> None:
        """Close the connection; `current` opens another one. With `close=False`, in a forked child, only drop it."""
        if not close:
            self._lock = threading.Lock()
            self._connection = None
            return
        with self._lock:
            if self._connection is not None:
                self._connection.close()
            self._connection = None
