"""The memory that the requests of all connections hold together: frames, decompressed records, responses.

A sender that stops in the middle of a frame, and a reader that does not take its response, hold memory for nothing.
They may, while there is enough. When a request has waited for memory, the largest of them loses its connection.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from spark_log import clock

logger = logging.getLogger(__name__)

UNCOUNTED_BYTES = 16 * 1024
"""Smaller frames and responses are not counted: they never wait for memory."""
_PATIENCE_S = 0.25
_STALLED_S = 1.0


class Hold:
    """The memory of one request, from its first byte until its response is written."""

    def __init__(self, budget: "MemoryBudget", abort: Callable[[], None]) -> None:
        """`abort` closes the connection at once."""
        self._budget, self.abort = budget, abort
        self.bytes = 0
        self.stalled_since_s: float | None = None
        """Since when it has waited for the client to send or to take bytes."""

    async def more(self, size: int) -> None:
        """Hold so many bytes more, as soon as there is room. ConnectionAbortedError."""
        await self._budget.take(self, size)

    def add(self, size: int) -> None:
        """Hold bytes that exist already."""
        self._budget.give(self, size)

    def keep(self, size: int) -> None:
        """Hold no more than so many bytes."""
        if self.bytes > size:
            self._budget.give(self, size - self.bytes)

    def waits_for_client(self, waits: bool) -> None:
        self.stalled_since_s = clock.monotonic_s() if waits else None


class MemoryBudget:
    """Holds have `bytes_max` together. For one event loop."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes_held = 0
        self._holds: set[Hold] = set()
        self._waiting: deque[tuple[Hold, int, asyncio.Future[None]]] = deque()

    def hold(self, abort: Callable[[], None]) -> Hold:
        """A hold of no bytes."""
        return Hold(self, abort)

    async def take(self, hold: Hold, size: int) -> None:
        """Give the bytes to the hold, in the order of the calls."""
        if not self._waiting and self._has_room(hold, size):
            self.give(hold, size)
            return
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = hold, size, granted
        self._waiting.append(entry)
        try:
            while not (await asyncio.wait([granted], timeout=_PATIENCE_S))[0]:
                self._end_one_that_stalls()
            granted.result()
        except BaseException:
            if entry in self._waiting:
                self._waiting.remove(entry)
            elif not granted.cancelled() and granted.exception() is None:
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
        while self._waiting and self._has_room(*self._waiting[0][:2]):
            hold, size, granted = self._waiting.popleft()
            if not granted.done():
                hold.bytes += size
                self.bytes_held += size
                self._holds.add(hold)
                granted.set_result(None)

    def _end_one_that_stalls(self) -> None:
        until_s = clock.monotonic_s() - _STALLED_S
        stalled = [hold for hold in self._holds if hold.stalled_since_s is not None and hold.stalled_since_s <= until_s]
        if not stalled:
            return
        largest = max(stalled, key=lambda hold: hold.bytes)
        logger.warning("a connection that held %d bytes and did not go on was closed", largest.bytes)
        for hold, _, granted in self._waiting:
            if hold is largest and not granted.done():
                granted.set_exception(ConnectionAbortedError("the gateway needs the memory"))
        self._waiting = deque(entry for entry in self._waiting if entry[0] is not largest)
        largest.stalled_since_s = None
        largest.abort()
