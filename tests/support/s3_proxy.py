"""A forwarding HTTP proxy on loopback in front of an object store, whose answers are late, wrong or missing."""

import http.client
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Literal

Fault = Literal["refuse", "lose the answer", "cut the answer", "late"] | None
"""refuse: 503, not forwarded. lose the answer: forwarded, then 500. cut the answer: half of its body, then the end of
the connection. late: forwarded after `LATE_S`."""
Rule = Callable[[str, str], Fault]
"""(method, path with query) -> the fault of the answer."""

LATE_S = 1.0
_HOP_BY_HOP = {"connection", "transfer-encoding", "content-length", "expect"}


class S3Proxy:
    """Forwards to `host` ("127.0.0.1:port"). `rule` may be changed at any time; `seen` counts the faults."""

    def __init__(self, host: str) -> None:
        self.rule: Rule = lambda _method, _path: None
        self.seen: list[tuple[str, str]] = []
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # otherwise the body waits 40 ms for the acknowledgement of the headers

            def handle_one_request(self) -> None:
                self.raw_requestline = self.rfile.readline(65537)
                if not self.raw_requestline or not self.parse_request():
                    self.close_connection = True
                    return
                try:
                    proxy._answer(self, host)
                except ConnectionError:  # the client did not wait for the answer
                    self.close_connection = True

            def handle_expect_100(self) -> bool:
                self.send_response_only(http.HTTPStatus.CONTINUE)
                self.end_headers()
                return True

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self._server.server_port}"

    def start(self) -> None:
        Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def times(self, count: int, fault: Fault, method: str, part: str = "") -> None:
        """The next `count` requests of the method whose path contains `part` get the fault."""
        left = [None] * count

        def rule(asked: str, path: str) -> Fault:
            if asked == method and part in path and left:
                left.pop()
                return fault
            return None

        self.rule = rule

    def always(self, fault: Fault, method: str, part: str = "") -> None:
        self.rule = lambda asked, path: fault if asked == method and part in path else None

    def _answer(self, request: BaseHTTPRequestHandler, host: str) -> None:
        body = _body(request)
        fault = self.rule(request.command, request.path)
        if fault is not None:
            self.seen.append((fault, f"{request.command} {request.path}"))
        if fault == "refuse":
            _reply(request, 503, {}, b"<Error><Code>SlowDown</Code></Error>")
            return
        if fault == "late":
            time.sleep(LATE_S)
        upstream = http.client.HTTPConnection(host, timeout=30)
        asked = {name: value for name, value in request.headers.items() if name.lower() not in _HOP_BY_HOP}
        upstream.request(request.command, request.path, body, asked)
        answer = upstream.getresponse()
        content = answer.read()
        upstream.close()
        if fault == "lose the answer":
            _reply(request, 500, {}, b"<Error><Code>InternalError</Code></Error>")
            return
        headers = {name: value for name, value in answer.getheaders() if name.lower() not in _HOP_BY_HOP}
        length = int(answer.headers.get("Content-Length") or len(content))
        cut = len(content) // 2 if fault == "cut the answer" else None
        _reply(request, answer.status, headers, content[:cut], length)
        if cut is not None:
            request.close_connection = True


def _body(request: BaseHTTPRequestHandler) -> bytes:
    if request.headers.get("Transfer-Encoding") != "chunked":
        return request.rfile.read(int(request.headers.get("Content-Length") or 0))
    body = b""
    while size := int(request.rfile.readline().split(b";")[0], 16):
        body += request.rfile.read(size)
        request.rfile.readline()
    while request.rfile.readline().strip():  # trailers
        pass
    return body


def _reply(
    request: BaseHTTPRequestHandler, status: int, headers: dict[str, str], body: bytes, length: int | None = None
) -> None:
    request.send_response_only(status)
    for name, value in {**headers, "Content-Length": str(len(body) if length is None else length)}.items():
        request.send_header(name, value)
    request.end_headers()
    if request.command != "HEAD":
        request.wfile.write(body)
    request.wfile.flush()
