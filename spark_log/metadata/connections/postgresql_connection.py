"""Connections to PostgreSQL whose waits have a time limit, and which keep the server's warnings. Of several hosts, the
one that served last is tried first.
"""

import sys
import threading
from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from spark_log.metadata.connections import answer_watch
from spark_log.metadata.connections.answer_watch import AnswerLimit

_WARNINGS_MAX = 10


class Hosts:
    """The hosts of one store, in the order in which they are tried. Safe to share between threads.

    A host that did not answer goes to the end, and so does an old primary: a server on an earlier timeline than one
    that this process has used. It may answer for some time after a failover, if its machine had been frozen.
    """

    def __init__(self, limit: AnswerLimit) -> None:
        self.limit = limit
        self._lock = threading.Lock()
        self._order: list[tuple[str, str]] = []
        self._newest: dict[str, int] = {}
        """The newest timeline of each system identifier."""

    def connect(self, conninfo: str = "", **parameters: Any) -> "WatchedConnection":
        """As `psycopg.connect`. The limit does not count for connecting, which has connect_timeout for each host."""
        settings: dict[str, Any] = conninfo_to_dict(
            conninfo, **{name: parameters.pop(name) for name in _PLACE if name in parameters}
        )
        several = "," in str(settings.get("host") or "") and not settings.get("hostaddr")
        if several:
            settings.update(self._places(str(settings["host"]), str(settings.get("port") or "")))
        connection = WatchedConnection.connect(**settings, **parameters)
        connection.hosts, connection.limit = self if several else None, self.limit
        if several:
            self._move_to_the_end(before=(connection.info.host, str(connection.info.port)))
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
        """Move the hosts before this one to the end: they did not answer, or are standbys."""
        with self._lock:
            if before in self._order:
                first = self._order.index(before)
                self._order = self._order[first:] + self._order[:first]

    def failed(self, connection: "WatchedConnection") -> None:
        """The host of the connection goes to the end."""
        place = (connection.info.host, str(connection.info.port))
        with self._lock:
            if place in self._order:
                self._order.remove(place)
                self._order.append(place)

    def refuse_old_primary(self, connection: "WatchedConnection", system_identifier: str, timeline: int) -> None:
        """OperationalError if the connection's server is on an earlier timeline than one that was used before."""
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


_PLACE = ("host", "hostaddr", "port")
_PORT = "5432"


class WatchedConnection(psycopg.Connection[Any]):
    """A connection of psycopg. `warnings` has the texts of the server's warnings since they were read last.

    No statement of ours causes a warning. The server sends one if it commits a transaction, but stops to wait for its
    synchronous standby, because an operator has cancelled this wait.
    """

    limit: AnswerLimit
    hosts: Hosts | None = None
    """Set if the address has several hosts."""
    unlimited = False
    """Whether the present transaction may wait for an answer for any time."""
    waited_s = 0.0
    overdue = False

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.warnings: list[str] = []
        self.add_notice_handler(_keeper(self.warnings))

    def wait(self, *arguments: Any, **options: Any) -> Any:
        """Wait for the answer to a message; all statements of psycopg do that here."""
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
    """A handler of notices without a reference to the connection, which is then freed when its user forgets it."""

    def keep(notice: psycopg.errors.Diagnostic) -> None:
        if notice.severity_nonlocalized == "WARNING" and len(warnings) < _WARNINGS_MAX:
            warnings.append(f"{notice.message_primary} ({notice.message_detail})")

    return keep
