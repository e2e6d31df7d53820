"""Serves an ASGI application over HTTP with uvicorn."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from spark_log.errors import InvalidConfigurationError

if TYPE_CHECKING:
    from starlette.types import ASGIApp

_STOP_S_MAX = 10
"""How long requests that have begun may take after the server is stopped."""

_HEADER_BYTES_MAX = 64 * 1024
"""The limit of the request line and all headers of a request. A client that sends more gets status 400."""


_UNSENT_MS_MAX = 120_000


class AsgiServer:
    """Serves an application in its own thread. Port 0 selects a free port, which `url` contains.

    Raises InvalidConfigurationError if the server cannot listen on the address.
    """

    def __init__(self, host: str, port: int) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._socket = socket.create_server((host, port), family=family, reuse_port=False)
        except (OSError, OverflowError) as error:
            raise InvalidConfigurationError(f"cannot listen on {host}:{port}: {error}") from error
        # Connections inherit TCP_NODELAY; asyncio sets it only for sockets that name their protocol. Without it, the
        # body of an answer waits 40 ms until the client has acknowledged the headers.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # The kernel ends the connection of a client that receives nothing for this time, and drops the unsent data.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNSENT_MS_MAX)
        self.port: int = self._socket.getsockname()[1]
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self.port}"
        self._server: Any = None
        self._thread: threading.Thread | None = None

    @property
    def is_running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def start(self, application: "ASGIApp", name: str) -> None:
        """Start to answer requests. The socket listens already, so clients that connect earlier wait for the answer."""
        import uvicorn

        from spark_log.gateway.http.protocol import LimitedProtocol

        config = uvicorn.Config(
            application,
            http=LimitedProtocol,
            ws="none",
            log_level="warning",
            access_log=False,
            lifespan="off",
            server_header=False,
            proxy_headers=False,  # the application decides which proxies it trusts
            h11_max_incomplete_event_size=_HEADER_BYTES_MAX,
            timeout_graceful_shutdown=_STOP_S_MAX,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), name=name)
        self._thread.start()

    def stop(self) -> None:
        """Finish the requests that have begun, and stop the server."""
        if self._thread is not None:
            self._server.should_exit = True
            self._thread.join()
        self._socket.close()


@contextmanager
def serving(application: "ASGIApp", host: str, port: int, name: str) -> Iterator[AsgiServer]:
    """Run a server during the `with` block."""
    server = AsgiServer(host, port)
    try:
        server.start(application, name)
        yield server
    finally:
        server.stop()
