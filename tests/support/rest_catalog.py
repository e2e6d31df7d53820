"""A REST catalog for Iceberg tables over pyiceberg's SQL catalog, which can fail as real ones do."""

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.table import CommitTableRequest, CommitTableResponse, Table

_STATUS = {
    NoSuchTableError: 404,
    NoSuchNamespaceError: 404,
    CommitFailedException: 409,
    NamespaceAlreadyExistsError: 409,
    TableAlreadyExistsError: 409,
}
_PATH = re.compile(r"/v1/(config|namespaces)(?:/([^/?]+))?(?:/(tables|register))?(?:/([^/?]+))?(?:\?.*)?")


class RestCatalog:
    """The server. `faults` has functions for the next commits: each is called with the commit, and answers a status in
    place of its answer, or None.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        uri = f"sqlite:///{folder}/catalog.db"
        self.catalog = SqlCatalog("server", uri=uri, warehouse=f"file://{folder}/warehouse")
        self.faults: list[Callable[[Callable[[], Any]], int | None]] = []
        self.commits = 0
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.uri = f"http://127.0.0.1:{self._server.server_address[1]}"

    @contextmanager
    def running(self) -> Iterator["RestCatalog"]:
        thread = threading.Thread(target=self._server.serve_forever, args=[0.01])
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            thread.join()
            self._server.server_close()

    @contextmanager
    def silent(self) -> Iterator[None]:
        """It accepts requests and answers none."""
        with self._lock:
            yield

    def answer(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        match = _PATH.fullmatch(path)
        assert match is not None, path
        what, namespace, inside, name = match.groups()
        levels = tuple(unquote(namespace).split("\x1f")) if namespace else ()
        if what == "config":
            return 200, {"defaults": {}, "overrides": {}}
        if inside is None:
            if method == "POST":
                self.catalog.create_namespace(tuple(body["namespace"]))
                return 200, {"namespace": body["namespace"], "properties": {}}
            return 200, {"namespace": levels, "properties": self.catalog.load_namespace_properties(levels)}
        if inside == "register":
            return 200, _loaded(self.catalog.register_table((*levels, body["name"]), body["metadata-location"]))
        assert name is not None
        identifier = (*levels, unquote(name))
        if method == "DELETE":
            self.catalog.drop_table(identifier)
            return 204, None
        if method == "GET":
            return 200, _loaded(self.catalog.load_table(identifier))
        self.commits += 1

        def commit() -> CommitTableResponse:
            request = CommitTableRequest.model_validate({**body, "identifier": {"namespace": levels, "name": name}})
            return self.catalog.commit_table(self.catalog.load_table(identifier), request.requirements, request.updates)

        status = self.faults.pop(0)(commit) if self.faults else None
        if status is not None:
            return status, _error(status, "a fault of the test")
        return 200, json.loads(commit().model_dump_json())

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
                try:
                    with outer._lock:
                        status, content = outer.answer(self.command, self.path, body)
                except tuple(_STATUS) as error:
                    status = _STATUS[type(error)]
                    content = _error(status, str(error), type(error).__name__)
                data = b"" if content is None else json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_POST = do_DELETE = do_HEAD = do_GET  # noqa: N815 - the names that http.server calls

            def log_message(self, *_: Any) -> None:
                """The tests print nothing."""

        return Handler


def _loaded(table: Table) -> dict[str, Any]:
    return {
        "metadata-location": table.metadata_location,
        "metadata": json.loads(table.metadata.model_dump_json()),
        "config": {},
    }


def _error(status: int, message: str, kind: str = "Fault") -> dict[str, Any]:
    return {"error": {"message": message, "type": kind.replace("Error", "Exception"), "code": status}}
