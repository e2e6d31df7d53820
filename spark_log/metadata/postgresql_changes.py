"""Detects changes of a PostgreSQL store by LISTEN and NOTIFY."""

import contextlib
import threading

import psycopg
import sqlalchemy as sa

from spark_log import clock
from spark_log.metadata.address import Address
from spark_log.metadata.connections.postgresql_connection import Hosts, WatchedConnection
from spark_log.metadata.connections.server_identity import ask_server
from spark_log.process import forget_parent_in_child, start_thread

_CHANNEL = "spark_log"
_DISCONNECTED_WAIT_S_MAX = 0.05
"""The longest wait while the listener is not connected."""
_INCLUDED_WAIT_S = 1.0
"""The longest wait while the listener of an included store is not connected: readers of other stores must not poll."""
_ANNOUNCE_EVERY_S = 0.002
_RECONNECT_S = 1.0
_ASK_EVERY_S = 5.0


class PostgresqlChanges:
    exact = False

    def __init__(self, address: Address, hosts: Hosts) -> None:
        self._address = address
        self._hosts = hosts
        url = sa.make_url(address.url).set(drivername="postgresql")
        self._conninfo = url.render_as_string(hide_password=False)
        self._version = 0
        self._included: list[PostgresqlChanges] = []
        self._into: PostgresqlChanges | None = None
        self._closed = threading.Event()
        self._begin()
        forget_parent_in_child(self)

    def _begin(self) -> None:
        """Reset the state to one without threads: they start when they are needed."""
        self._condition = threading.Condition()
        self._due = threading.Event()
        self._listening = False
        self._connections = 0
        """Number of calls of `reconnect`. The listener connects again when it changes."""
        self._listener: threading.Thread | None = None
        self._announcer: threading.Thread | None = None

    def forget_parent(self) -> None:
        closed, self._closed = self._closed.is_set(), threading.Event()
        if closed:
            self._closed.set()
        self._begin()

    def include(self, other: "PostgresqlChanges") -> None:
        """Detect the changes of another store too."""
        other._into = self
        self._included.append(other)

    def exclude(self, other: "PostgresqlChanges") -> None:
        """Detect the changes of another store no longer."""
        other._into = None
        self._included = [each for each in self._included if each is not other]

    def current(self) -> int:
        for other in self._included:
            other.current()
        with self._condition:
            if self._listener is None and not self._closed.is_set():
                self._listener = start_thread(self._listen, "spark-log-listen")
            return self._version

    def wait(self, seen: int, timeout_s: float) -> bool:
        deadline = clock.monotonic_s() + timeout_s
        with self._condition:
            while self._version == seen:
                left = deadline - clock.monotonic_s()
                if left <= 0 or self._closed.is_set():
                    return False
                if not self._listening:
                    self._condition.wait(min(left, _DISCONNECTED_WAIT_S_MAX))
                    return True  # there may have been a commit: the caller reads the store to find out
                if left > _INCLUDED_WAIT_S and not all(other._listening for other in self._included):
                    self._condition.wait(_INCLUDED_WAIT_S)
                    return True
                self._condition.wait(left)
            return True

    def announce(self) -> None:
        with self._condition:
            if self._announcer is None and not self._closed.is_set():
                self._announcer = start_thread(self._announce, "spark-log-announce")
            threadless = self._announcer is None and not self._closed.is_set()
        self._due.set()
        if threadless:
            with contextlib.suppress(psycopg.Error, OSError), self._connect() as connection:
                connection.execute(f"NOTIFY {_CHANNEL}")

    def close(self) -> None:
        self._closed.set()
        self._due.set()
        with self._condition:
            self._condition.notify_all()
        if self._announcer is not None:
            self._announcer.join(timeout=5)  # a pending announcement is still sent; the listener ends by itself

    def reconnect(self) -> None:
        """Let the listener connect again, since the server may have been replaced."""
        with self._condition:
            self._connections += 1
            self._listening = False
            self._condition.notify_all()

    def _listen(self) -> None:
        while not self._closed.is_set():
            number = self._connections
            with contextlib.suppress(psycopg.Error, OSError), self._connect() as connection:
                connection.execute(f"LISTEN {_CHANNEL}")
                self._advance(listening=True)  # earlier notifications were missed
                asked_s = clock.monotonic_s()
                while not self._closed.is_set() and number == self._connections:
                    for _ in connection.notifies(timeout=1.0, stop_after=1):
                        self._advance(listening=True)
                    if clock.monotonic_s() - asked_s > _ASK_EVERY_S:
                        connection.execute("SELECT 1")  # fails if the server does not answer
                        asked_s = clock.monotonic_s()
            self._advance(listening=False)
            self._closed.wait(_RECONNECT_S)

    def _advance(self, *, listening: bool) -> None:
        with self._condition:
            self._version += 1
            self._listening = listening
            self._condition.notify_all()
        into = self._into
        if into is not None:
            into._advance_included()

    def _advance_included(self) -> None:
        with self._condition:
            self._version += 1
            self._condition.notify_all()

    def _announce(self) -> None:
        while True:
            with contextlib.suppress(psycopg.Error, OSError), self._connect() as connection:
                while self._due.wait():
                    self._due.clear()
                    connection.execute(f"NOTIFY {_CHANNEL}")
                    if self._closed.wait(_ANNOUNCE_EVERY_S) and not self._due.is_set():
                        return
            self._due.set()  # the connection was lost, perhaps before the announcement was sent
            if self._closed.wait(_RECONNECT_S):
                return

    def _connect(self) -> WatchedConnection:
        connection = self._hosts.connect(
            self._conninfo,
            autocommit=True,
            application_name="spark-log changes",
            connect_timeout=self._address.connect_timeout_s,
        )
        try:
            identity = ask_server(connection, {}, self._address)
            if identity is not None:
                self._hosts.refuse_old_primary(connection, identity.system_identifier, identity.timeline)
        except BaseException:
            connection.close()
            raise
        return connection
