"""PostgreSQL says that it has changed, to those who listen."""

import contextlib
import os
import threading
import weakref

import psycopg
import sqlalchemy as sa

from spark_log import clock
from spark_log.metadata.address import Address

_CHANNEL = "spark_log"
_UNHEARD_S_MAX = 0.05
"""How long to wait at most while the listener is away."""
_ANNOUNCE_EVERY_S = 0.002
_RECONNECT_S = 1.0


class PostgresqlChanges:
    def __init__(self, address: Address) -> None:
        url = sa.make_url(address.url).set(drivername="postgresql")
        self._conninfo = url.render_as_string(hide_password=False)
        self._heard = 0
        self._closed = threading.Event()
        self._begin()
        _living.add(self)

    def _begin(self) -> None:
        """Without threads: they start when they are needed."""
        self._condition = threading.Condition()
        self._due = threading.Event()
        self._listening = False
        self._listener: threading.Thread | None = None
        self._announcer: threading.Thread | None = None

    def forget_parent(self) -> None:
        """In a forked child: the threads are not here, and may have held any of the locks."""
        closed, self._closed = self._closed.is_set(), threading.Event()
        if closed:
            self._closed.set()
        self._begin()

    def current(self) -> int:
        with self._condition:
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
            if self._announcer is None and not self._closed.is_set():
                self._announcer = threading.Thread(target=self._announce, name="spark-log-announce", daemon=True)
                self._announcer.start()
        self._due.set()

    def close(self) -> None:
        self._closed.set()
        self._due.set()
        with self._condition:
            self._condition.notify_all()
        if self._announcer is not None:
            self._announcer.join(timeout=5)  # what is due is still announced; the listener ends by itself

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


_living: "weakref.WeakSet[PostgresqlChanges]" = weakref.WeakSet()


def _forget_parents() -> None:
    for changes in list(_living):
        changes.forget_parent()


os.register_at_fork(after_in_child=_forget_parents)
