"""Opens connections to PostgreSQL that limit the time to wait for an answer, and keep the server's warnings.

If the address has several hosts, the one that served last is tried first.
"""

import os
import sys
import threading
from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from spark_log import clock
from spark_log.metadata.connections import answer_watch
from spark_log.metadata.connections.answer_watch import AnswerLimit

_WARNINGS_MAX = 10
_PASSWORD_FILE = "PGPASSWORD_FILE"
"""The password in a file, as secrets are mounted in containers. libpq's own PGPASSFILE does not help there: libpq
ignores a file that others may read, and a mounted secret belongs to root.
"""
_PASSWORD_FILE_BYTES_MAX = 8192


class Hosts:
    """The hosts of one store, in the order in which they are tried. Safe to share between threads.

    A host that did not answer goes to the end, and so does an old primary: a server on an earlier timeline than one
    that this process has used. An old primary may still answer after a failover if its machine had been frozen.

    While no host accepts a connection, all threads of the process together try once in 0.25 s: each server would
    otherwise be asked by hundreds of threads while it starts or is promoted.
    """

    def __init__(self, limit: AnswerLimit) -> None:
        self.limit = limit
        self.connected = False
        """Whether this process has ever connected to the store."""
        self._lock = threading.Lock()
        self._order: list[tuple[str, str]] = []
        self._newest: dict[str, int] = {}
        """The newest timeline of each system identifier."""
        self._failures = 0
        """Attempts in which no host accepted a connection, since one did."""
        self._failure = ""
        self._failed_s = 0.0

    def connect(self, conninfo: str = "", **parameters: Any) -> "WatchedConnection":
        """Connect as `psycopg.connect` does. `limit` does not apply here: each host has connect_timeout."""
        settings: dict[str, Any] = conninfo_to_dict(
            conninfo, **{name: parameters.pop(name) for name in _PLACE if name in parameters}
        )
        several = "," in str(settings.get("host") or "") and not settings.get("hostaddr")
        if several:
            settings.update(self._places(str(settings["host"]), str(settings.get("port") or "")))
        parameters.update(password_parameter({**settings, **parameters}))
        connection = self._attempt({**settings, **parameters})
        self.connected = True
        connection.hosts, connection.limit = self if several else None, self.limit
        if several:
            self._move_to_the_end(before=(connection.info.host, str(connection.info.port)))
        return connection

    def _attempt(self, parameters: Mapping[str, Any]) -> "WatchedConnection":
        """Connect, or raise the error of the last attempt again if that was a moment ago."""
        with self._lock:
            pause_s = min(_PAUSE_S_MAX, 0.001 * 2 ** min(self._failures, 10)) if self._failures else 0.0
            if clock.monotonic_s() < self._failed_s + pause_s:
                raise psycopg.OperationalError(self._failure)
        try:
            connection = WatchedConnection.connect(**parameters)
        except psycopg.OperationalError as error:
            with self._lock:
                self._failures, self._failure, self._failed_s = self._failures + 1, str(error), clock.monotonic_s()
            raise
        self._failures = 0
        return connection

    def _places(self, hosts: str, ports: str) -> Mapping[str, str]:
        names, numbers = hosts.split(","), ports.split(",")
        numbers = [number or _PORT for number in (numbers if len(numbers) > 1 else numbers * len(names))]
        places = list(zip(names, numbers, strict=True))
        with self._lock:
            if sorted(self._order) != sorted(places):
                self._order = places
            return {
                "host": ",".join(host for host, _ in self._order),
                "port": ",".join(port for _, port in self._order),
            }

    def _move_to_the_end(self, *, before: tuple[str, str]) -> None:
        """Move the hosts before this one to the end, because they did not answer or are standbys."""
        with self._lock:
            if before in self._order:
                first = self._order.index(before)
                self._order = self._order[first:] + self._order[:first]

    def failed(self, connection: "WatchedConnection") -> None:
        """Move the host of the connection to the end."""
        place = (connection.info.host, str(connection.info.port))
        with self._lock:
            if place in self._order:
                self._order.remove(place)
                self._order.append(place)

    def refuse_old_primary(self, connection: "WatchedConnection", system_identifier: str, timeline: int) -> None:
        """Raise psycopg.OperationalError if the connection's server is on an earlier timeline than one that was used
        before. Does nothing if the address has one host.
        """
        if connection.hosts is None:
            return
        with self._lock:
            newest = self._newest[system_identifier] = max(timeline, self._newest.get(system_identifier, 0))
        if timeline < newest:
            self.failed(connection)
            raise psycopg.OperationalError(
                f"the server is on timeline {timeline}, and another host was on timeline {newest}: it is an old"
                " primary; if the store was restored from a backup, restart this process"
            )


def password_parameter(settings: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the parameter `password` with the first line of the file that PGPASSWORD_FILE names.

    Return no parameter if the variable is not set, or a password is given: in `settings`, the parameters of a
    connection, or in PGPASSWORD. The file is read for each connection, so a new password needs no restart.

    Raise psycopg.OperationalError if the file cannot be read, because it may be readable again soon.
    """
    path = environ.get(_PASSWORD_FILE)
    if not path or settings.get("password") or environ.get("PGPASSWORD"):
        return {}
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read(_PASSWORD_FILE_BYTES_MAX).splitlines()
    except (OSError, ValueError) as error:  # the content is not shown: it may be the password
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise psycopg.OperationalError(f"{_PASSWORD_FILE}: the file {path} cannot be read: {reason}") from error
    return {"password": lines[0]} if lines else {}


_PLACE = ("host", "hostaddr", "port")
_PORT = "5432"
_PAUSE_S_MAX = 0.25


class WatchedConnection(psycopg.Connection[Any]):
    """A connection of psycopg. `warnings` has the first 10 warnings of the server since the list was last cleared.

    The statements of spark-log cause no warnings. The server sends one if it commits a transaction without waiting
    until the synchronous standby has it, because an operator has cancelled this wait.
    """

    limit: AnswerLimit
    hosts: Hosts | None = None
    """Set if the address has several hosts."""
    unlimited = False
    """Whether the current transaction has no limit of the time to wait for an answer."""
    waited_s = 0.0
    overdue = False

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.warnings: list[str] = []
        self.add_notice_handler(_keeper(self.warnings))

    def wait(self, *arguments: Any, **options: Any) -> Any:
        """Wait for the answer to a message. psycopg calls this method for all statements.

        Raise psycopg.OperationalError if the answer took longer than `limit`.
        """
        if self.unlimited:
            return super().wait(*arguments, **options)
        answer_watch.begin(self)
        try:
            return super().wait(*arguments, **options)
        finally:
            answer_watch.end(self)
            if self.overdue and isinstance(sys.exc_info()[1], psycopg.Error):
                if self.hosts is not None:
                    self.hosts.failed(self)
                raise psycopg.OperationalError(
                    f"the server did not answer for {self.limit.seconds:g} s (cluster setting store.answer.timeout.ms)"
                )


def _keeper(warnings: list[str]) -> Any:
    """Return a handler of notices that appends warnings to the list.

    The handler has no reference to the connection, so that an unused connection is freed at once.
    """

    def keep(notice: psycopg.errors.Diagnostic) -> None:
        if notice.severity_nonlocalized == "WARNING" and len(warnings) < _WARNINGS_MAX:
            warnings.append(f"{notice.message_primary} ({notice.message_detail})")

    return keep
