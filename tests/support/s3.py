"""Object storage for the tests: moto's S3 on loopback, reached by a pyarrow.fs URI, as from any log dir.

`S3Proxy` forwards to it, with answers that are late, wrong or missing.
"""

import http.client
import logging
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from types import SimpleNamespace
from typing import Any, Literal
from urllib.parse import quote

import boto3
import pytest
from moto.moto_server.werkzeug_app import MotoRequestHandler, create_backend_app
from pyarrow import fs
from werkzeug.serving import make_server

from tests.support.stores import STORES

ACCESS_KEY = "test-access-key"
SECRET_KEY = "test-secret-key"
REGION = "us-east-1"

also_on_s3 = pytest.mark.parametrize("cluster_address", [*STORES, "s3"], indirect=True)
"""For contract tests: one more run, with the log dirs of `cluster` and `three_brokers` in object storage."""


def give_up_at_once(patch: pytest.MonkeyPatch) -> None:
    """Let log dirs that are opened from now on report the first error of a request. Arrow repeats it for 6 s."""

    def from_uri(uri: str) -> tuple[Any, str]:
        opened, path = fs.FileSystem.from_uri(uri)
        if isinstance(opened, fs.S3FileSystem):
            _, (settings,) = opened.__reduce__()
            opened = fs.S3FileSystem(**settings, retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=1))
        return opened, path

    impatient = SimpleNamespace(**{**vars(fs), "FileSystem": SimpleNamespace(from_uri=from_uri)})
    patch.setattr("spark_log.cluster.files.log_dir_folder.fs", impatient)


class S3Server:
    """A server with one bucket. Other processes of this machine (Spark workers) reach it too."""

    bucket = "log-dirs"

    def __init__(self) -> None:
        logging.getLogger("werkzeug").setLevel(logging.WARNING)  # a line for each request
        # moto's own server looks through all services of AWS at each request
        self._server = make_server(
            "127.0.0.1", 0, create_backend_app("s3"), threaded=True, request_handler=MotoRequestHandler
        )
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def host(self) -> str:
        """`127.0.0.1:port`"""
        return f"127.0.0.1:{self._server.server_port}"

    def start(self) -> None:
        self._thread.start()
        self.client().create_bucket(Bucket=self.bucket)

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def client(self) -> Any:
        """A boto3 client, for changes by a test without notice to the log."""
        return boto3.client(
            "s3",
            endpoint_url=f"http://{self.host}",
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            region_name=REGION,
        )

    def uri(self, prefix: str, host: str | None = None) -> str:
        """A pyarrow.fs URI of a folder in the bucket, with the endpoint (or another `host`) and the keys in it."""
        keys, endpoint = f"{ACCESS_KEY}:{SECRET_KEY}", quote(host or self.host)
        return f"s3://{keys}@{self.bucket}/{prefix}?region={REGION}&scheme=http&endpoint_override={endpoint}"

    def storage_options(self) -> dict[str, str]:
        """The options with which deltalake reaches the same bucket."""
        return {
            "AWS_ENDPOINT_URL": f"http://{self.host}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_REGION": REGION,
        }


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
