"""Sends requests to a server that may be slow or hostile, without following redirects. All requests of a block have one
time limit, also if the server sends a byte now and then.
"""

import io
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.request import HTTPHandler, HTTPRedirectHandler, HTTPSHandler, Request, build_opener

from spark_log import clock

TOGETHER_S_MAX = 30.0
SILENCE_S_MAX = 10.0
"""The time within which a server must send the next part of its answer."""

_until_s: ContextVar[float | None] = ContextVar("until_s", default=None)


@contextmanager
def time_limit() -> Iterator[None]:
    """Let the requests of the block take at most TOGETHER_S_MAX together. A block inside another has the limit of the
    outer one.
    """
    outer_s = _until_s.get()
    token = _until_s.set(clock.monotonic_s() + TOGETHER_S_MAX if outer_s is None else outer_s)
    try:
        yield
    finally:
        _until_s.reset(token)


def send(request: Request, bytes_max: int) -> bytes:
    """Return the body of the answer, at most its first `bytes_max` bytes. Raises TimeoutError, and the errors of
    `urlopen`: HTTPError also for a redirect. The body of an HTTPError can be read inside a block of `time_limit`.
    """
    with time_limit(), _OPENER.open(request, timeout=_left_s()) as answer:
        data: bytes = answer.read(bytes_max)
        return data


def _left_s() -> float:
    until_s = _until_s.get()
    assert until_s is not None, "a response is read inside the block"
    left_s = until_s - clock.monotonic_s()
    if left_s <= 0:
        raise TimeoutError(f"no complete answer in {TOGETHER_S_MAX:g} s")
    return min(left_s, SILENCE_S_MAX)


class _Received(io.RawIOBase):
    """The bytes that a socket receives within the time limit."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock, self._bytes = sock, sock.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._sock.settimeout(_left_s())
        return self._bytes.readinto(buffer)

    def close(self) -> None:
        self._bytes.close()
        super().close()


class _Response(HTTPResponse):
    def __init__(self, sock: socket.socket, *arguments: Any, **options: Any) -> None:
        super().__init__(sock, *arguments, **options)
        self.fp.close()
        self.fp = io.BufferedReader(_Received(sock))


def _connected(address: tuple[str, int], *_: Any) -> socket.socket:
    """Return a connection to the first address of the host that answers. Each attempt has the time that is left, so
    that a host with many addresses takes no longer than a host with one.
    """
    failure = OSError(f"no address of {address[0]}")
    for family, kind, protocol, _name, where in socket.getaddrinfo(*address, type=socket.SOCK_STREAM):
        sock = None
        try:
            sock = socket.socket(family, kind, protocol)
            sock.settimeout(_left_s())
            sock.connect(where)
            sock.settimeout(_left_s())  # for the handshake and the request
            return sock
        except OSError as error:
            failure = error
            if sock is not None:
                sock.close()
    raise failure


class _Connection(HTTPConnection):
    response_class = _Response

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._create_connection = _connected


class _TlsConnection(_Connection, HTTPSConnection):
    """Its __init__ is that of _Connection, which calls HTTPSConnection's."""


class _Http(HTTPHandler):
    def http_open(self, req: Request) -> HTTPResponse:
        return self.do_open(_Connection, req)


class _Https(HTTPSHandler):
    def https_open(self, req: Request) -> HTTPResponse:
        return self.do_open(_TlsConnection, req)


class _NoRedirects(HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


_OPENER = build_opener(_Http, _Https, _NoRedirects)
