"""Servers that are not a schema registry, although a topic names them as one."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import ClassVar

import pytest

from spark_log.errors import SchemaRegistryError, SchemaRegistryUnavailableError
from spark_log.registry.external import find_id, find_subject


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
