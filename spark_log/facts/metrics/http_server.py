"""Serves metrics, health and readiness over HTTP: GET /metrics, /health, /ready."""

import json
import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from prometheus_client.registry import CollectorRegistry

from spark_log.errors import InvalidConfigurationError
from spark_log.facts.metrics.exposition import CONTENT_TYPE, exposition

Probe = Callable[[], str | None]
"""Returns the reason why something does not work, or None if it works."""

_READ_S = 30.0
"""A client that sends nothing for this time loses its connection."""
_CONNECTIONS_MAX = 64
"""The maximum number of connections. Each has a thread and a file descriptor; a further one ends the oldest one of the
address with the most connections."""


@contextmanager
def serving_metrics(host: str, port: int, registry: CollectorRegistry, health: Probe, ready: Probe) -> Iterator[int]:
    """Serve in threads of this process, and yield the port. With `port` 0 it is a free one.

    /health and /ready answer 200, or 503 with the reason. Raises InvalidConfigurationError if the address cannot be
    listened on.
    """
    try:
        server = _Server((host, port), registry, {"/health": health, "/ready": ready})
    except (OSError, OverflowError) as error:
        raise InvalidConfigurationError(f"--metrics-port: cannot listen on {host}:{port}: {error}") from error
    thread = threading.Thread(target=server.serve_forever, name="spark-log-metrics", daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], registry: CollectorRegistry, probes: dict[str, Probe]) -> None:
        self.registry, self.probes = registry, probes
        self._lock = threading.Lock()
        self._connections: dict[socket.socket, str] = {}
        """The address of each connection. The oldest connection is the first."""
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            if len(self._connections) >= _CONNECTIONS_MAX:
                [(largest, _)] = Counter(self._connections.values()).most_common(1)
                oldest = next(each for each, address in self._connections.items() if address == largest)
                del self._connections[oldest]
                with suppress(OSError):  # the client has closed it
                    oldest.shutdown(socket.SHUT_RDWR)
            self._connections[request] = client_address[0]
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._connections.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log the error, unless the client has closed its connection."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _READ_S
    server_version, sys_version = "spark-log", ""

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        if path == "/metrics":
            self._answer(200, CONTENT_TYPE, exposition(self.server.registry))
        elif path in self.server.probes:
            reason = self.server.probes[path]()
            facts = {"status": "ok"} if reason is None else {"status": "failing", "reason": reason}
            self._answer(200 if reason is None else 503, "application/json", json.dumps(facts).encode() + b"\n")
        else:
            self._answer(404, "text/plain; charset=utf-8", b"here are /metrics, /health and /ready\n")

    def _answer(self, status: int, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing for a scrape."""
