"""Loopback ports and servers for tests, and a server whose answer never ends."""

import contextlib
import http.server
import os
import random
import socket
import threading
import time
from collections.abc import Iterator

_FIRST, _PER_WORKER = 12_000, 2_000
"""Below the ports that the system gives to outgoing connections, which could take one before its server starts."""


def free_port() -> int:
    """A port that nothing listens on, and that no server of this process had before: a client of an ended test may
    still try to reach its server, and would create topics in the cluster of another test.
    """
    for port in _PORTS:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise AssertionError("no port is left")


def _ports() -> Iterator[int]:
    """A part of the ports for each worker of pytest-xdist; processes begin at different ones."""
    first = _FIRST + _PER_WORKER * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    begin = random.SystemRandom().randrange(_PER_WORKER)
    return (first + (begin + number) % _PER_WORKER for number in range(_PER_WORKER))


_PORTS = _ports()


@contextlib.contextmanager
def running_server(server: http.server.HTTPServer) -> Iterator[str]:
    """The URL of a server on loopback that answers during the block."""
    thread = threading.Thread(target=server.serve_forever, args=[0.01], daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextlib.contextmanager
def endless_answer(start: bytes) -> Iterator[str]:
    """The URL of a server that sends `start` to its only client, and then a byte now and then, so that no wait for the
    next one is long. At the end of the block the client must have closed its connection.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            client = server.accept()[0]
            with client, contextlib.suppress(OSError):
                client.sendall(start)
                while True:  # ends when the reader closes its end
                    client.sendall(b"1")
                    time.sleep(0.02)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        thread.join(timeout=60)
        assert not thread.is_alive()
