"""Learning promptly that the store has changed, without asking it all the time.

    look = changes.current()        a number; what is committed before this line is seen by the read below
    ... read the store, find nothing new ...
    changes.wait(look, timeout_s)   returns when something was committed since `look`, or at the time-out

SQLite says so itself: `PRAGMA data_version` costs microseconds and is asked the more rarely the longer nothing comes.
PostgreSQL notifies: one connection of the process listens; whoever commits announces it afterwards, in the background
and throttled (a NOTIFY inside the transaction would make commits wait for each other). While the listener has no
connection, and for what somebody could not announce, waits are short: the bounded polling that remains.
"""

import contextlib
import os
import sqlite3
import threading
from typing import Protocol

import psycopg
import sqlalchemy as sa

from spark_log import clock
from spark_log.metadata.address import SQLITE_FILE, Address

_CHANNEL = "spark_log"
_LOOK_S_MIN, _LOOK_S_MAX = 0.0005, 0.01
_UNHEARD_S_MAX = 0.05
"""How long to wait at most while the listener is away."""
_ANNOUNCE_EVERY_S = 0.002
_RECONNECT_S = 1.0


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
    return SqliteChanges(address) if address.folder else PostgresqlChanges(address)


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


class PostgresqlChanges:
    def __init__(self, address: Address) -> None:
        url = sa.make_url(address.url).set(drivername="postgresql")
        self._conninfo = url.render_as_string(hide_password=False)
        self._condition = threading.Condition()
        self._heard = 0
        self._listening = False
        self._listener: threading.Thread | None = None
        self._announcer: threading.Thread | None = None
        self._due = threading.Event()
        self._closed = threading.Event()
        self._process = os.getpid()

    def current(self) -> int:
        with self._condition:
            self._after_fork()
            if self._listener is None and not self._closed.is_set():
                self._listener = threading.Thread(target=self._listen, name="spark-log-listen", daemon=True)
                self._listener.start()
            return self._heard

    def wait(self, seen: int, timeout_s: float) -> bool:
        deadline = clock.monotonic_s() + timeout_s
        with self._condition:
            while self._heard == seen:
                left = deadline - clock.monotonic_s()
                if left <= 0 or self._closed.is_set():
                    return False
                if not self._listening:
                    self._condition.wait(min(left, _UNHEARD_S_MAX))
                    return True  # nobody can say: the caller looks for itself
                self._condition.wait(left)
            return True

    def announce(self) -> None:
        with self._condition:
            self._after_fork()
            if self._announcer is None and not self._closed.is_set():
                self._announcer = threading.Thread(target=self._announce, name="spark-log-announce", daemon=True)
                self._announcer.start()
        self._due.set()

    def close(self) -> None:
        self._closed.set()
        self._due.set()
        with self._condition:
            self._condition.notify_all()
        if self._announcer is not None and self._process == os.getpid():
            self._announcer.join(timeout=5)  # what is due is still announced; the listener ends by itself

    def _after_fork(self) -> None:
        if self._process != os.getpid():  # threads stay behind in the parent
            self._listener = self._announcer = None
            self._listening = False
            self._process = os.getpid()

    def _listen(self) -> None:
        while not self._closed.is_set():
            with contextlib.suppress(psycopg.Error, OSError), self._connect() as connection:
                connection.execute(f"LISTEN {_CHANNEL}")
                self._hear(listening=True)  # what came before was not heard
                while not self._closed.is_set():
                    for _ in connection.notifies(timeout=1.0, stop_after=1):
                        self._hear(listening=True)
            self._hear(listening=False)
            self._closed.wait(_RECONNECT_S)

    def _hear(self, *, listening: bool) -> None:
        with self._condition:
            self._heard += 1
            self._listening = listening
            self._condition.notify_all()

    def _announce(self) -> None:
        while True:
            with contextlib.suppress(psycopg.Error, OSError), self._connect() as connection:
                while self._due.wait():
                    self._due.clear()
                    connection.execute(f"NOTIFY {_CHANNEL}")
                    if self._closed.wait(_ANNOUNCE_EVERY_S) and not self._due.is_set():
                        return
            self._due.set()  # the connection is gone, and with it perhaps what was due
            if self._closed.wait(_RECONNECT_S):
                return

    def _connect(self) -> psycopg.Connection[tuple[object, ...]]:
        return psycopg.connect(
            self._conninfo, autocommit=True, application_name="spark-log changes", connect_timeout=10
        )
