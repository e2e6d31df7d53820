"""A console that runs in this process, and a client that has a session on it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx2

from spark_log.cluster.cluster import Cluster
from spark_log.console.server import serving
from spark_log.console.settings import ConsoleSettings

SAME_ORIGIN = {"Sec-Fetch-Site": "same-origin"}


class Console:
    """The address of a console, the addresses with tokens that it printed, and a client with a session."""

    def __init__(self, url: str, printed: list[str]) -> None:
        self.url = url
        self.printed = printed
        self.client = httpx2.Client(base_url=url, headers=SAME_ORIGIN, timeout=30)

    def stranger(self) -> httpx2.Client:
        """A client without a session."""
        return httpx2.Client(base_url=self.url, headers=SAME_ORIGIN, timeout=30)

    def page(self, path: str, status: int = 200) -> str:
        answer = self.client.get(path)
        assert answer.status_code == status, (path, answer.status_code, answer.text)
        return answer.text

    def facts(self, path: str, status: int = 200) -> Any:
        answer = self.client.get(f"/api/v1{path}")
        assert answer.status_code == status, (path, answer.status_code, answer.text)
        return answer.json()

    def change(self, path: str, **form: str) -> httpx2.Response:
        return self.client.post(path, data=form)


@contextmanager
def running_console(cluster: Cluster, **settings: Any) -> Iterator[Console]:
    """A console at a free port. With tokens (the default), its client has a session."""
    printed: list[str] = []
    with serving(cluster, ConsoleSettings(**{"port": 0, **settings}), printed.append) as server:
        console = Console(server.url, printed)
        try:
            if printed:
                assert console.client.get("/?" + urlsplit(printed[0]).query).status_code == 303
            yield console
        finally:
            console.client.close()
