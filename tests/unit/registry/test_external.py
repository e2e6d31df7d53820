"""Servers that are not a schema registry, although a topic names them as one."""

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import ClassVar
from urllib.request import Request

import pytest

from spark_log.errors import SchemaRegistryError, SchemaRegistryUnavailableError
from spark_log.registry import bounded_requests
from spark_log.registry.external import find_id, find_subject
from tests.support.endless_answers import endless_answer


class Answers(BaseHTTPRequestHandler):
    answers: ClassVar[dict[str, tuple[int, str]]] = {}

    def do_GET(self) -> None:
        status, text = next(answer for end, answer in self.answers.items() if self.path.endswith(end))
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: object) -> None:
        """Be silent."""


@pytest.fixture
def url() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize("versions", ["5", "{}", "null", '["a"]', "[]", "[" * 100_000])
@pytest.mark.parametrize("version", ["[]", '{"id": 1}', '{"schemaType": 3}', '"x"', '{"id": 1, "references": 7}'])
def test_an_answer_of_another_form_is_an_error_of_the_registry(url: str, versions: str, version: str) -> None:
    Answers.answers = {"/versions": (200, versions), "": (200, version)}
    with pytest.raises(SchemaRegistryUnavailableError):
        find_subject(url, "s", 1)
    with pytest.raises(SchemaRegistryUnavailableError):
        find_id(url, 1)


@pytest.mark.parametrize(
    ("status", "error"),
    [(429, SchemaRegistryUnavailableError), (408, SchemaRegistryUnavailableError), (422, SchemaRegistryError)],
)
def test_a_registry_that_asks_to_wait_is_asked_again(url: str, status: int, error: type[Exception]) -> None:
    Answers.answers = {"": (status, "wait")}
    with pytest.raises(error):
        find_id(url, 2)


@pytest.mark.parametrize("start", [b"", b"HTTP/1.0 200 OK\r\nX-Name: ", b"HTTP/1.0 200 OK\r\n\r\n["])
def test_a_server_that_never_ends_its_answer_is_given_up(monkeypatch: pytest.MonkeyPatch, start: bytes) -> None:
    monkeypatch.setattr(bounded_requests, "TOGETHER_S_MAX", 0.5)
    with (
        endless_answer(start) as url,
        pytest.raises(SchemaRegistryUnavailableError, match=r"timed out|no complete answer"),
    ):
        find_subject(url, "s", None)


def test_a_redirect_is_not_followed(url: str) -> None:
    class Redirects(Answers):
        def do_GET(self) -> None:
            self.send_response(302)
            self.send_header("Location", f"{url}/elsewhere")
            self.end_headers()

    Answers.answers = {"/elsewhere": (200, '{"schema": "\\"int\\"", "id": 3}')}
    with HTTPServer(("127.0.0.1", 0), Redirects) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        with pytest.raises(SchemaRegistryError, match="302"):
            find_id(f"http://127.0.0.1:{server.server_port}", 3)
        thread.join(timeout=60)


def test_an_address_that_does_not_answer_is_asked_once(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All requests for a subject have one time limit, of which each question to that address takes a part."""
    Answers.answers = {"/versions": (200, "[1, 2, 3]"), "": (200, '{"schema": "int", "id": 3}')}
    send = bounded_requests.send

    def patient(request: Request, bytes_max: int) -> bytes:
        """Wait briefly for the silent server only: the one that answers may be slow."""
        monkeypatch.setattr(bounded_requests, "_SILENCE_S_MAX", 30.0 if request.full_url.startswith(url) else 0.2)
        return send(request, bytes_max)

    monkeypatch.setattr(bounded_requests, "send", patient)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        find_subject(f"http://127.0.0.1:{silent.getsockname()[1]},{url}", "once", None)
        silent.setblocking(False)
        silent.accept()[0].close()
        with pytest.raises(BlockingIOError):
            silent.accept()
