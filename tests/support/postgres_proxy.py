"""A TCP proxy in front of PostgreSQL that detects each COMMIT, and cuts the client's connection around it; it can also
hold all answers back.
"""

import contextlib
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal, Self

Moment = Literal["before", "during", "after", "late"]
"""When the client's connection is cut: before COMMIT reaches the server; during the commit, so that no client gets the
answer; after the proxy has received the answer; or before COMMIT reaches the server, which gets it late
(`Cut.deliver`).
"""

_STARTUP_WITHOUT_SESSION = (80877103, 80877104)
"""Codes of SSLRequest and GSSENCRequest, after which the client starts again."""

_READY_FOR_QUERY = b"Z\0\0\0\x05"


@dataclass
class Cut:
    """One cut: of the connection that commits a transaction with a statement that contains `statement`."""

    moment: Moment
    statement: str
    meanwhile: Callable[[], None]
    """Runs before the client notices that its connection is lost."""
    passed: int
    """Number of such transactions that pass before the cut."""
    done: threading.Event = field(default_factory=threading.Event)
    _deliver: Callable[[], bytes] | None = None

    def deliver(self) -> bytes:
        """Let a late COMMIT reach the server; returns its answer."""
        assert self._deliver is not None, "nothing was held back"
        return self._deliver()


class PostgresProxy:
    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self._lock = threading.Lock()
        self._cut: Cut | None = None
        self._refusals: list[str] = []
        self.answers = threading.Event()
        """While it is not set, no answer of the server reaches a client, as if the server was frozen."""
        self.answers.set()
        threading.Thread(target=self._accept, name="postgres-proxy", daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def address(self, url: str) -> str:
        """The URL of a database of that server, through this proxy."""
        return url.replace(f":{self._server_port}/", f":{self.port}/")

    def cut(
        self, moment: Moment, statement: str, meanwhile: Callable[[], None] = lambda: None, *, passed: int = 0
    ) -> Cut:
        """Cut one connection once: at the next such transaction, or after `passed` of them."""
        cut = Cut(moment, statement, meanwhile, passed)
        with self._lock:
            self._cut = cut
        return cut

    def refuse(self, connections: int, sqlstate: str) -> None:
        """Answer the next connections with this error instead of the server's answer."""
        self._refusals = [sqlstate] * connections

    def refusal(self) -> bytes | None:
        """PostgreSQL's message to a new connection that is to be refused."""
        with self._lock:
            if not self._refusals:
                return None
            state = self._refusals.pop()
        fields = f"SFATAL\0VFATAL\0C{state}\0Mrefused with {state}\0\0".encode()
        return b"E" + (len(fields) + 4).to_bytes(4) + fields

    def take(self, statements: list[str]) -> Cut | None:
        """The cut that is due for a transaction of these statements; it is returned once only."""
        with self._lock:
            cut = self._cut
            if cut is None or not any(cut.statement in each for each in statements):
                return None
            if cut.passed > 0:
                cut.passed -= 1
                return None
            self._cut = None
            return cut

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._socket.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self._server_port))
                except OSError:
                    client.close()
                    continue
                for end in (client, server):  # otherwise each second small message waits 40 ms for an acknowledgement
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=_Link(self, client, server).run, daemon=True).start()


class _Link:
    """One connection through the proxy. Requests are forwarded whole, when the client requests the answer."""

    def __init__(self, proxy: PostgresProxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy, self._client, self._server = proxy, client, server
        self._muted = threading.Event()
        self._answered = threading.Event()
        self._answer = b""

    def run(self) -> None:
        back = threading.Thread(target=self._send_back, daemon=True)
        back.start()
        with contextlib.suppress(OSError):
            self._start()
            self._pass_on()
        if not self._muted.is_set():
            _shut(self._server)
            _shut(self._client)

    def _start(self) -> None:
        while True:
            length = self._read(4)
            body = self._read(int.from_bytes(length) - 4)
            if int.from_bytes(body[:4]) not in _STARTUP_WITHOUT_SESSION:
                break
            self._server.sendall(length + body)
        refusal = self._proxy.refusal()
        if refusal is not None:
            self._client.sendall(refusal)
            raise ConnectionError("refused")
        self._server.sendall(length + body)

    def _pass_on(self) -> None:
        prepared: dict[bytes, str] = {}
        statements: list[str] = []
        request = b""
        while True:
            kind, length = self._read(1), self._read(4)
            body = self._read(int.from_bytes(length) - 4)
            request += kind + length + body
            if kind == b"P":
                name, text, _ = body.split(b"\0", 2)
                prepared[name] = text.decode()
            elif kind == b"B":
                statements.append(prepared.get(body.split(b"\0", 2)[1], ""))
            elif kind == b"Q":
                statements.append(body.rstrip(b"\0").decode())
            if kind in b"PBDEC":
                continue  # the rest of this request has not arrived yet
            if "COMMIT" in statements:
                cut = self._proxy.take(statements)
                if cut is not None:
                    self._do(cut, request)
                    return
            if "COMMIT" in statements or "ROLLBACK" in statements:
                statements = []
            self._server.sendall(request)
            request = b""

    def _do(self, cut: Cut, request: bytes) -> None:
        self._muted.set()
        if cut.moment == "late":
            cut._deliver = lambda: self._ask(request)
        elif cut.moment == "during":
            self._server.sendall(request)
        elif cut.moment == "after":
            self._ask(request)
        if cut.moment in ("before", "after"):
            _shut(self._server)
        cut.meanwhile()
        _shut(self._client)
        if cut.moment == "during":
            _shut(self._server)
        cut.done.set()

    def _ask(self, request: bytes) -> bytes:
        self._server.sendall(request)
        assert self._answered.wait(timeout=30)
        return self._answer

    def _send_back(self) -> None:
        with contextlib.suppress(OSError):
            while data := self._server.recv(65536):
                self._proxy.answers.wait()
                if not self._muted.is_set():
                    self._client.sendall(data)
                    continue
                self._answer += data
                if _READY_FOR_QUERY in self._answer:
                    break
        if self._muted.is_set():
            self._answered.set()
        else:
            _shut(self._client)
            _shut(self._server)

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self._client.recv(size - len(data))
            if not part:
                raise ConnectionError("the client has gone")
            data += part
        return data


def _shut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
