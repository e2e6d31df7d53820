"""The memory that the requests of all connections hold together: frames, decoded records and elements, responses.

Each of the three has a budget, and a request that holds one waits only for the next one: a frame for what is decoded of
it, and both for the response. So requests never wait for each other in a circle, but for those that hold a part of a
budget and need more of it: responses that grow while they are made, and the records of a request with many elements.
These, a sender that stops in the middle of a frame, and a reader that does not take its response, hold memory for
nothing. They may, while there is enough; when another request has waited for it, or
responses that exist take more than there is, the largest of them lose their connections.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable

from spark_log import clock
from spark_log.gateway.limits.memory_order import Front, Waiter, WaitersOfClient, first_of

logger = logging.getLogger(__name__)

UNCOUNTED_BYTES = 16 * 1024
"""Smaller responses, and smaller frames that come alone, are not counted: they never wait for memory."""
_PATIENCE_S = 0.25
_STALLED_S = 1.0
_BYTES_PER_S_MIN = 4 * 1024 * 1024
"""A client that sends a frame more slowly may lose its connection when others need the memory."""


class Hold:
    """The part of one request in a budget. After `close` it holds nothing any more."""

    def __init__(self, budget: "MemoryBudget", abort: Callable[[], None], client: str) -> None:
        """`abort` closes the connection at once. `client`: as `Client.key`."""
        self._budget, self.abort, self.client = budget, abort, client
        self.bytes = 0
        self.closed = False
        self.stalled_since_s: float | None = None
        """Since when it has waited for the client to send or to take bytes, or for more memory than it has."""
        self.waiter: Waiter | None = None
        """While it waits for memory."""

    async def more(self, size: int) -> None:
        """Hold so many bytes more, as soon as there is room. ConnectionAbortedError if the connection has ended."""
        if size > 0:
            await self._budget.take(self, size)

    def more_at_once(self, size: int) -> bool:
        """The same if there is room and no other request waits for it; else False, and nothing changes."""
        return size <= 0 or self._budget.take_at_once(self, size)

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
        if not self.closed:
            self.closed = True
            self._budget.end(self)


class MemoryBudget:
    """Holds have `bytes_max` together. For one event loop."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes_held = 0
        self._holds: set[Hold] = set()
        self._held: Counter[str] = Counter()
        """Bytes by client."""
        self._calls = 0
        self._waiting: dict[int, tuple[Hold, asyncio.Future[None]]] = {}
        """By the number of the waiter."""
        self._queues: dict[str, WaitersOfClient] = {}
        self._fronts: dict[str, Front] = {}
        """Of the queues."""
        self._check_is_due = False

    def hold(self, abort: Callable[[], None], client: str) -> Hold:
        """A hold of no bytes."""
        return Hold(self, abort, client)

    def take_at_once(self, hold: Hold, size: int) -> bool:
        """Give the bytes to the hold if there is room and no other waits, and say whether they were given."""
        if hold.closed:
            raise ConnectionAbortedError("the connection has ended")
        if self._waiting or not self._has_room(hold, size):
            return False
        self.give(hold, size)
        return True

    async def take(self, hold: Hold, size: int) -> None:
        """Give the bytes to the hold, in the order of `first_of`. A hold takes one after the other."""
        if self.take_at_once(hold, size):
            return
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._calls += 1
        waiter = Waiter(hold.client, size, clock.monotonic_s(), self._calls)
        self._add(hold, waiter, granted)
        grows = hold.bytes > 0 and hold.stalled_since_s is None
        if grows:
            hold.waits_for_client(True)
        self._serve_waiting()
        self._check_soon()
        try:
            await granted
        except BaseException:
            if hold.waiter is waiter:
                self._remove(hold, waiter)
                self._serve_waiting()
            elif not granted.cancelled() and granted.exception() is None and not hold.closed:
                self.give(hold, -size)
            raise
        finally:
            if grows:
                hold.waits_for_client(False)

    def give(self, hold: Hold, size: int) -> None:
        """Change what the hold has, without waiting."""
        self._change(hold, size)
        if size < 0:
            self._serve_waiting()
        elif self.bytes_held > self.bytes_max:
            self._check_soon()

    def end(self, hold: Hold) -> None:
        """Take back what a closed hold has, and end its waiting."""
        if hold.waiter is not None:
            granted = self._remove(hold, hold.waiter)
            if not granted.done():  # it was not cancelled
                granted.set_exception(ConnectionAbortedError("the connection has ended"))
        if hold.bytes:
            self._change(hold, -hold.bytes)
        self._serve_waiting()

    def _change(self, hold: Hold, size: int) -> None:
        hold.bytes += size
        self.bytes_held += size
        self._held[hold.client] += size
        if not self._held[hold.client]:
            del self._held[hold.client]
        if hold.bytes:
            self._holds.add(hold)
        else:
            self._holds.discard(hold)

    def _has_room(self, hold: Hold, size: int) -> bool:
        """A hold alone always has room."""
        return self.bytes_held + size <= self.bytes_max or self.bytes_held == hold.bytes

    def _add(self, hold: Hold, waiter: Waiter, granted: "asyncio.Future[None]") -> None:
        hold.waiter = waiter
        self._waiting[waiter.number] = hold, granted
        queue = self._queues.setdefault(waiter.client, WaitersOfClient())
        queue.add(waiter)
        self._fronts[waiter.client] = queue.front

    def _remove(self, hold: Hold, waiter: Waiter) -> "asyncio.Future[None]":
        """The future that the hold waits for."""
        hold.waiter = None
        queue = self._queues[waiter.client]
        queue.remove(waiter)
        if queue:
            self._fronts[waiter.client] = queue.front
        else:
            del self._queues[waiter.client], self._fronts[waiter.client]
        return self._waiting.pop(waiter.number)[1]

    def _serve_waiting(self) -> None:
        while self._waiting:
            waiter = first_of(self._fronts, self._held, clock.monotonic_s())
            hold, granted = self._waiting[waiter.number]
            if not (granted.done() or self._has_room(hold, waiter.size)):
                return
            self._remove(hold, waiter)
            if not granted.done():  # it was not cancelled
                self._change(hold, waiter.size)
                granted.set_result(None)

    def _check_soon(self) -> None:
        if not self._check_is_due and (self._waiting or self.bytes_held > self.bytes_max):
            self._check_is_due = True
            asyncio.get_running_loop().call_later(_PATIENCE_S, self._check)

    def _check(self) -> None:
        """End the largest holds that stall, until what exists fits and none has waited for long."""
        self._check_is_due = False
        self._serve_waiting()
        if self._is_too_full():
            until_s = clock.monotonic_s() - _STALLED_S
            stalled = sorted(
                (each for each in self._holds if each.stalled_since_s is not None and each.stalled_since_s <= until_s),
                key=lambda each: (self._held[each.client], each.bytes),
            )
            while stalled and self._is_too_full():
                largest = stalled.pop()
                if (self._waiting or len(self._holds) > 1) and not self._is_first(largest):
                    logger.warning("a connection that held %d bytes and did not go on was closed", largest.bytes)
                    largest.abort()
                    largest.close()
        self._check_soon()

    def _is_too_full(self) -> bool:
        """Whether a request has waited for long, or more is held than there is."""
        if self.bytes_held > self.bytes_max:
            return True
        if not self._waiting:
            return False
        now_s = clock.monotonic_s()
        return now_s - first_of(self._fronts, self._held, now_s).since_s >= _PATIENCE_S

    def _is_first(self, hold: Hold) -> bool:
        """Whether it waits, and is the next."""
        return hold.waiter is not None and hold.waiter is first_of(self._fronts, self._held, clock.monotonic_s())
