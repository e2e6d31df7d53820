"""Limits HTTP connections of uvicorn whose clients send or receive slowly, or open many connections.

A connection waits for its client until a request has arrived completely, and while the client does not receive the
answer. A wait of WAIT_S ends the connection. At most WAITING_MAX connections wait: a further one ends the connection
that has waited longest.
"""

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

WAIT_S = 60.0
WAITING_MAX = 256
"""A process has 1,024 file descriptors on many systems, and a server needs some for its work."""


class LimitedProtocol(H11Protocol):
    """An HTTP connection. `self.connections` are all connections of the server, in the event loop of one thread."""

    _deadline: asyncio.TimerHandle | None = None
    """Ends the connection while it waits for its client; otherwise None."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._done()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._watch()

    def _watch(self) -> None:
        """Begin or end the wait, depending on the state of the connection."""
        receives = self.flow.write_paused or self.transport.is_closing()
        if not receives and self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._done()
        elif self._deadline is None:
            waiting = [each for each in self.connections if getattr(each, "_deadline", None) is not None]
            if len(waiting) >= WAITING_MAX:
                min(waiting, key=lambda each: each._deadline.when())._end()  # type: ignore[union-attr]
            self._deadline = self.loop.call_later(WAIT_S, self._end)

    def _end(self) -> None:
        self._done()
        self.transport.abort()

    def _done(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
