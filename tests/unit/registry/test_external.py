"""Servers that are not a schema registry, although a topic names them as one, or one that means harm."""

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import ClassVar
from urllib.request import Request

import pytest

from spark_log import clock
from spark_log.errors import InvalidSchemaError, SchemaRegistryError, SchemaRegistryUnavailableError
from spark_log.registry import bounded_requests, references
from spark_log.registry.external import find_id, find_subject
from spark_log.registry.schema_types import column_source
from tests.support.server_processes import endless_answer, running_server


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
    with running_server(HTTPServer(("127.0.0.1", 0), Answers)) as url:
        yield url


@pytest.mark.parametrize("versions", ["5", "{}", "null", '["a"]', "[]", "[" * 100_000])
@pytest.mark.parametrize("version", ["[]", '{"id": 1}', '{"schemaType": 3}', '"x"', '{"id": 1, "references": 7}'])
def test_an_answer_of_another_form_is_an_error_of_the_registry(url: str, versions: str, version: str) -> None:
    Answers.answers = {"/versions": (200, versions), "": (200, version)}
    with pytest.raises(SchemaRegistryUnavailableError):
        find_subject(url, "s", 1)
    with pytest.raises(SchemaRegistryUnavailableError):
        find_id(url, 1)


@pytest.mark.parametrize("type_", ["OPENAPI", "topic", "avro"])
def test_a_schema_of_a_type_that_is_unknown_here_is_not_valid(url: str, type_: str) -> None:
    """Another error would end the sealing of each topic with a record that names it."""
    schema = json.dumps({"schema": '"string"', "schemaType": type_})
    Answers.answers = {"": (200, schema)}
    with pytest.raises(InvalidSchemaError, match="schema type"):
        column_source(find_id(url, 1))


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
        monkeypatch.setattr(bounded_requests, "SILENCE_S_MAX", 30.0 if request.full_url.startswith(url) else 0.2)
        return send(request, bytes_max)

    monkeypatch.setattr(bounded_requests, "send", patient)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        find_subject(f"http://127.0.0.1:{silent.getsockname()[1]},{url}", "once", None)
        silent.setblocking(False)
        silent.accept()[0].close()
        with pytest.raises(BlockingIOError):
            silent.accept()


def test_an_address_that_has_not_answered_is_left_alone_for_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_requests, "SILENCE_S_MAX", 0.1)
    now_s = clock.monotonic_s()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.setblocking(False)
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(SchemaRegistryUnavailableError, match="timed out"):
            find_id(url, 1)
        silent.accept()[0].close()
        for ask in (lambda: find_id(url, 2), lambda: find_subject(url, "s", None)):
            with pytest.raises(SchemaRegistryUnavailableError, match="no answer lately"):
                ask()
        with pytest.raises(BlockingIOError):
            silent.accept()
        monkeypatch.setattr(clock, "monotonic_s", lambda: now_s + 3_600)
        with pytest.raises(SchemaRegistryUnavailableError, match="timed out"):
            find_id(url, 2)
        silent.accept()[0].close()


def test_versions_that_are_too_long_together_are_not_read(url: str) -> None:
    Answers.answers = {
        "/versions": (200, json.dumps([*range(1, 1_000)])),
        "/versions/20": (500, "this one is not read"),
        "": (200, json.dumps({"id": 1, "schema": "x" * 1_000_000})),
    }
    with pytest.raises(InvalidSchemaError, match=r"subject 'long': .* more than 16,777,216 characters"):
        find_subject(url, "long", None)


def test_imports_are_limited_in_length_number_and_depth(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(text: str, *subjects: str) -> tuple[int, str]:
        named = [{"name": f"{each}{number}", "subject": each, "version": 1} for number, each in enumerate(subjects)]
        return 200, json.dumps({"id": 1, "schema": text, "references": named})

    Answers.answers = {
        "/long/versions/1": answer("x" * 1_000_000),
        "/short/versions/1": answer("x"),
        "/itself/versions/1": (
            200,
            '{"id": 1, "schema": "", "references": [{"name": "i", "subject": "itself", "version": 1}]}',
        ),
        "/ids/11": answer("", *["long"] * 2),
        "/ids/12": answer("", *["long"] * 3),
        "/ids/13": answer("", *["short"] * 20),
        "/ids/14": answer("", *["short"] * 21),
        "/ids/15": answer("", "itself"),
    }
    monkeypatch.setattr(references, "_IMPORTS_MAX", 20)
    assert [len(find_id(url, number).imports) for number in (11, 13)] == [2, 20]
    for number, reason in ((12, "2,097,152 characters"), (14, "more than 20 schemas"), (15, "chain of more than 100")):
        with pytest.raises(InvalidSchemaError, match=reason):
            find_id(url, number)


@pytest.mark.timeout(60)  # ten minutes if each address had the time limit for itself
def test_all_addresses_of_a_host_have_one_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_requests, "TOGETHER_S_MAX", 0.6)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server, socket.create_connection(server.getsockname()):
        found = (socket.AF_INET, socket.SOCK_STREAM, 6, "", server.getsockname())
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [found] * 1_000)
        with pytest.raises(SchemaRegistryUnavailableError, match=r"timed out|no complete answer"):
            find_id("http://registry.example:8081", 1)
