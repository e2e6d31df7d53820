"""Limits HTTP connections of uvicorn whose clients send or receive slowly, or open many connections.

A connection waits for its client until a request has arrived completely, and while the client does not receive the
answer. A wait of WAIT_S ends the connection. At most WAITING_MAX connections wait: a further one ends the connection
that has waited longest in the network with the most waiting ones. A network has at most OF_NETWORK_MAX connections: a
further one ends the one that has waited longest, or is refused if none waits.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable
from operator import itemgetter
from typing import cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from spark_log.gateway.limits.networks import network_of

WAIT_S = 60.0
WAITING_MAX = 256
"""A process has 1,024 file descriptors on many systems, and a server needs some for its work."""
OF_NETWORK_MAX = 256
"""A proxy in front of the server is one network: it has a connection for each request and each page that is live."""


class LimitedProtocol(H11Protocol):
    """An HTTP connection. `self.connections` are all connections of the server; they have one event loop."""

    _deadline: asyncio.TimerHandle | None = None
    """The timer that ends the connection, or None while the connection does not wait for its client."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._network = network_of(self.client[0] if self.client else "")
        of_network = [each for each in self._connections() if each._network == self._network]
        if len(of_network) > OF_NETWORK_MAX:
            (_longest_waiting(of_network) or self)._end()
        if not transport.is_closing():
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
            waiting = Counter(each._network for each in self._connections() if each._deadline is not None)
            if waiting.total() >= WAITING_MAX:
                [(largest, _)] = waiting.most_common(1)
                longest = _longest_waiting(each for each in self._connections() if each._network == largest)
                if longest is not None:
                    longest._end()
            self._deadline = self.loop.call_later(WAIT_S, self._end)

    def _connections(self) -> "set[LimitedProtocol]":
        return cast("set[LimitedProtocol]", self.connections)

    def _end(self) -> None:
        self._done()
        self.connections.discard(self)  # asyncio calls connection_lost later
        self.transport.abort()

    def _done(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def _longest_waiting(connections: Iterable[LimitedProtocol]) -> LimitedProtocol | None:
    waiting = [(each._deadline.when(), each) for each in connections if each._deadline is not None]
    return min(waiting, key=itemgetter(0), default=(0, None))[1]
