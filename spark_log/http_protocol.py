"""HTTP connections of uvicorn, with limits for clients that send slowly or open many connections.

A request has to arrive within REQUEST_S of the connection's begin, or of the answer before it. Of the connections that
have not sent a request completely there are at most WAITING_MAX: a further one ends the one that waits longest.
"""

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_S = 60.0
WAITING_MAX = 256
"""A process has 1,024 file descriptors on many systems, and a server needs some for its work."""


class LimitedProtocol(H11Protocol):
    """One connection. `self.connections` are all of the server, in the event loop of one thread."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        waiting = [each for each in self.connections if getattr(each, "_deadline", None) is not None]
        if len(waiting) >= WAITING_MAX:
            min(waiting, key=lambda each: each._deadline.when()).transport.abort()  # type: ignore[union-attr]
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._done()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE and self.conn.their_state is not h11.SEND_BODY:
            self._done()

    def on_response_complete(self) -> None:
        self._wait()
        super().on_response_complete()

    def _wait(self) -> None:
        self._done()
        self._deadline = self.loop.call_later(REQUEST_S, self.transport.abort)

    def _done(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
