"""The memory that the requests of all connections hold together: frames, decoded records, responses.

Each of the three has a budget, and a request that holds one waits only for the next one: a frame for the records in it,
and both for the response. So requests never wait for each other in a circle. A sender that stops in the middle of a
frame, and a reader that does not take its response, hold memory for nothing. They may, while there is enough; when
another request has waited for it, the largest of them lose their connections.
"""

import asyncio
import logging
from bisect import insort
from collections.abc import Callable
from operator import itemgetter

from spark_log import clock

logger = logging.getLogger(__name__)

UNCOUNTED_BYTES = 16 * 1024
"""Smaller frames and responses are not counted: they never wait for memory."""
_PATIENCE_S = 0.25
_STALLED_S = 1.0
_BYTES_PER_S_MIN = 4 * 1024 * 1024
"""A client that sends a frame more slowly may lose its connection when others need the memory."""


class Hold:
    """The part of one request in a budget. After `close` it holds nothing any more."""

    def __init__(self, budget: "MemoryBudget", abort: Callable[[], None]) -> None:
        """`abort` closes the connection at once."""
        self._budget, self.abort = budget, abort
        self.bytes = 0
        self.closed = False
        self.stalled_since_s: float | None = None
        """Since when it has waited for the client to send or to take bytes."""

    async def more(self, size: int) -> None:
        """Hold so many bytes more, as soon as there is room. ConnectionAbortedError if the connection has ended."""
        if size > 0:
            await self._budget.take(self, size)

    def set(self, size: int) -> None:
        """Hold so many bytes, which exist already."""
        if size != self.bytes and not self.closed:
            self._budget.give(self, size - self.bytes)

    def waits_for_client(self, waits: bool) -> None:
        self.stalled_since_s = clock.monotonic_s() if waits else None

    def has_received(self, size: int) -> None:
        """The client has sent so many bytes."""
        if self.stalled_since_s is not None:
            self.stalled_since_s += size / _BYTES_PER_S_MIN

    def close(self) -> None:
        self.set(0)
        self.closed = True


class MemoryBudget:
    """Holds have `bytes_max` together. For one event loop."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes_held = 0
        self._holds: set[Hold] = set()
        self._waiting: list[tuple[Hold, int, asyncio.Future[None]]] = []
        """By size: what needs little does not wait behind what needs much."""

    def hold(self, abort: Callable[[], None]) -> Hold:
        """A hold of no bytes."""
        return Hold(self, abort)

    async def take(self, hold: Hold, size: int) -> None:
        """Give the bytes to the hold: the fewest first, of as many in the order of the calls."""
        if hold.closed:
            raise ConnectionAbortedError("the connection has ended")
        if self._has_room(hold, size) and not (self._waiting and self._waiting[0][1] <= size):
            self.give(hold, size)
            return
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = hold, size, granted
        insort(self._waiting, entry, key=itemgetter(1))
        try:
            while not (await asyncio.wait([granted], timeout=_PATIENCE_S))[0]:
                self._end_those_that_stall(entry)
            granted.result()
        except BaseException:
            if entry in self._waiting:
                self._waiting.remove(entry)
                self._serve_waiting()
            elif not granted.cancelled() and granted.exception() is None and not hold.closed:
                self.give(hold, -size)
            raise

    def give(self, hold: Hold, size: int) -> None:
        """Change what the hold has, without waiting."""
        hold.bytes += size
        self.bytes_held += size
        if hold.bytes:
            self._holds.add(hold)
        else:
            self._holds.discard(hold)
        if size < 0:
            self._serve_waiting()

    def _has_room(self, hold: Hold, size: int) -> bool:
        """A hold alone always has room."""
        return self.bytes_held + size <= self.bytes_max or self.bytes_held == hold.bytes

    def _serve_waiting(self) -> None:
        while self._waiting:
            hold, size, granted = self._waiting[0]
            if not (hold.closed or self._has_room(hold, size)):
                return
            del self._waiting[0]
            if granted.done():
                continue
            if hold.closed:
                granted.set_exception(ConnectionAbortedError("the connection has ended"))
                continue
            hold.bytes += size
            self.bytes_held += size
            self._holds.add(hold)
            granted.set_result(None)

    def _end_those_that_stall(self, waiting: tuple[Hold, int, "asyncio.Future[None]"]) -> None:
        """Close the connections of the largest holds that wait for their clients, until another hold has room."""
        for_hold, size, granted = waiting
        until_s = clock.monotonic_s() - _STALLED_S
        stalled = sorted(
            (hold for hold in self._holds if hold.stalled_since_s is not None and hold.stalled_since_s <= until_s),
            key=lambda hold: hold.bytes,
        )
        while stalled and not granted.done() and not self._has_room(for_hold, size):
            largest = stalled.pop()
            logger.warning("a connection that held %d bytes and did not go on was closed", largest.bytes)
            largest.abort()
            largest.close()


class RequestMemory:
    """The part of one request in each budget, until its response is written or its client has gone."""

    def __init__(self, frames: MemoryBudget, records: MemoryBudget, responses: MemoryBudget, abort: Callable[[], None]):
        self.frame, self.records, self.response = frames.hold(abort), records.hold(abort), responses.hold(abort)

    def close(self) -> None:
        for hold in (self.frame, self.records, self.response):
            hold.close()
