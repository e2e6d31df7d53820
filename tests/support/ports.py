"""Loopback ports for the servers of tests."""

import os
import random
import socket
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
