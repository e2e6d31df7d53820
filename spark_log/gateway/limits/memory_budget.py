"""Limits the memory that the requests of all connections hold together.

Frames, decoded records and elements, and responses each have a budget. A request takes from them in this order, so
requests do not wait for each other in a circle. The exceptions hold a part of a budget and need more of it: responses
that grow while they are made, and the records of a request with many elements. A hold stalls while it waits for more
memory, while the client stops in the middle of a frame, or while the client does not read the response: it keeps memory
without progress. This is allowed while there is enough memory. When another request has waited for memory, or more is
held than the budget has, the slowest stalled holds lose their connections.

A client that holds at most a sixteenth of the budget is a small one. A quarter of the budget is for small clients only,
so that large requests of some clients leave room for ordinary requests of others.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from operator import attrgetter

from spark_log import clock
from spark_log.gateway.limits.memory_order import Waiter, WaitersOfClient, WaitingClients

logger = logging.getLogger(__name__)

UNCOUNTED_BYTES = 16 * 1024
"""Responses up to this size, and such frames of connections without other requests, never wait for memory, and are not
counted.
"""
_PATIENCE_S = 0.25
_STALLED_S = 1.0
_BYTES_PER_S_MIN = 4 * 1024 * 1024
"""A client that sends a frame, or takes a response, more slowly may lose its connection when others need the memory."""
_CLOSED_AT_ONCE = 200
"""The number of connections that are closed in one turn of the event loop."""
_CLIENTS_REMEMBERED = 10_000
"""The number of clients whose last grant is remembered. The last grant of any other client counts as the oldest."""


class Hold:
    """The bytes of a budget that one request holds. After `close` it holds nothing."""

    # attributes of the class, because each request has three holds, and most of them never change
    bytes = 0
    closed = False
    stalled_since_s: float | None = None
    """The start of its wait until the client sends or takes bytes, or until it gets more memory; None if it does not
    wait. When the client sends or takes bytes, the start moves forward by the time that these bytes may take.
    """
    waiter: Waiter | None = None
    """Its place among the waiting requests while it waits for memory."""
    _began_s, _moved = 0.0, 0

    def __init__(self, budget: "MemoryBudget", abort: Callable[[], None], client: str) -> None:
        """`abort` closes the connection at once. `client` is `Client.key`."""
        self._budget, self.abort, self.client = budget, abort, client

    async def more(self, size: int) -> None:
        """Hold `size` bytes more, as soon as there is room. Raises ConnectionAbortedError if the connection ended."""
        if size > 0:
            await self._budget.take(self, size)

    def more_at_once(self, size: int) -> bool:
        """Hold `size` bytes more, and return True, if there is room and no other request waits for it. Otherwise return
        False and change nothing.
        """
        return size <= 0 or self._budget.take_at_once(self, size)

    def set(self, size: int) -> None:
        """Hold exactly `size` bytes without waiting, because they exist already."""
        if size != self.bytes and not self.closed:
            self._budget.give(self, size - self.bytes)

    def waits_for_client(self, waits: bool) -> None:
        self._began_s, self._moved = clock.monotonic_s(), 0
        self.stalled_since_s = self._began_s if waits else None

    def has_moved(self, size: int) -> None:
        """Record that the client has sent or taken `size` bytes."""
        if self.stalled_since_s is not None:
            self.stalled_since_s += size / _BYTES_PER_S_MIN
            self._moved += size

    def bytes_per_s(self, now_s: float) -> float:
        """Return how fast the client sends or takes bytes, on average."""
        return self._moved / max(now_s - self._began_s, 1e-3)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            if self.bytes or self.waiter is not None:
                self._budget.end(self)


class MemoryBudget:
    """Grants holds at most `bytes_max` together; a large hold may exceed it while it is the only large one.

    Used by one event loop.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._small_max, self._large_max = bytes_max // 16, bytes_max * 3 // 4
        self.bytes_held = 0
        self._holds: set[Hold] = set()
        self._held: Counter[str] = Counter()
        """The bytes that each client holds."""
        self._large: set[str] = set()
        """The clients that hold more than a small client."""
        self._calls = self._grants = 0
        self._last_grants: dict[str, int] = {}
        self._waiting: dict[int, tuple[Hold, asyncio.Future[None]]] = {}
        """Waiting holds by the numbers of their waiters, in the order of the numbers."""
        self._queues: dict[str, WaitersOfClient] = {}
        self._small_turns, self._turns = WaitingClients(), WaitingClients()
        """The turns of clients that a waiting request would leave small, and the turns of all waiting clients."""
        self._check_is_due = False

    def hold(self, abort: Callable[[], None], client: str) -> Hold:
        """Return a new hold of no bytes."""
        return Hold(self, abort, client)

    def take_at_once(self, hold: Hold, size: int) -> bool:
        """Give the bytes to the hold if there is room and no other hold waits. Return whether they were given."""
        if hold.closed:
            raise ConnectionAbortedError("the connection has ended")
        turns = self._small_turns if self._is_small(hold.client, size) else self._turns
        if turns.first is not None or not self._has_room(hold, size):
            return False
        self._grant(hold, size)
        return True

    async def take(self, hold: Hold, size: int) -> None:
        """Give the bytes to the hold when it is its turn. A hold has at most one such call at a time."""
        if self.take_at_once(hold, size):
            return
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._calls += 1
        waiter = Waiter(hold.client, size, clock.monotonic_s(), self._calls)
        hold.waiter = waiter
        self._waiting[waiter.number] = hold, granted
        self._queues.setdefault(waiter.client, WaitersOfClient()).add(waiter)
        self._put(waiter.client)
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
        """Change the bytes of the hold by `size`, without waiting."""
        self._change(hold, size)
        if size < 0:
            self._serve_waiting()
        else:
            self._check_soon()

    def end(self, hold: Hold) -> None:
        """Take back the bytes of a closed hold, and end its waiting with ConnectionAbortedError."""
        if hold.waiter is not None:
            granted = self._remove(hold, hold.waiter)
            if not granted.done():  # it was not cancelled
                granted.set_exception(ConnectionAbortedError("the connection has ended"))
        if hold.bytes:
            self._change(hold, -hold.bytes)
        self._serve_waiting()

    def _grant(self, hold: Hold, size: int) -> None:
        self._grants += 1
        self._last_grants.pop(hold.client, None)  # so that the client becomes the last one
        self._last_grants[hold.client] = self._grants
        if len(self._last_grants) > _CLIENTS_REMEMBERED:
            del self._last_grants[next(iter(self._last_grants))]
        self._change(hold, size)

    def _change(self, hold: Hold, size: int) -> None:
        hold.bytes += size
        self.bytes_held += size
        self._held[hold.client] += size
        if self._held[hold.client] > self._small_max:
            self._large.add(hold.client)
        else:
            self._large.discard(hold.client)
        if not self._held[hold.client]:
            del self._held[hold.client]
        if hold.bytes:
            self._holds.add(hold)
        else:
            self._holds.discard(hold)
        if hold.client in self._queues:
            self._put(hold.client)

    def _is_small(self, client: str, size: int) -> bool:
        """Whether the client is still a small one with `size` bytes more."""
        return self._held[client] + size <= self._small_max

    def _has_room(self, hold: Hold, size: int) -> bool:
        """Whether the hold can get `size` bytes more. A large hold that is the only one always has room. Bytes that the
        only large client holds above three quarters of the budget do not reduce the room of small clients.
        """
        if self._is_small(hold.client, size):
            return self.bytes_held - self._beyond() + size <= self.bytes_max
        if self.bytes_held + size <= self._large_max:
            return True
        return self._large <= {hold.client} and self._held[hold.client] == hold.bytes

    def _beyond(self) -> int:
        """Return the bytes that the only large client holds above three quarters of the budget."""
        if len(self._large) != 1:
            return 0
        return max(0, self._held[next(iter(self._large))] - self._large_max)

    def _put(self, client: str) -> None:
        """Update the turns of the client after a change of its waiting requests or of the bytes that it holds."""
        queue = self._queues[client]
        turn = self._held[client], self._last_grants.get(client, 0), queue.oldest.number
        self._turns.put(client, *turn)
        if self._is_small(client, queue.smallest.size):
            self._small_turns.put(client, *turn)
        else:
            self._small_turns.remove(client)

    def _remove(self, hold: Hold, waiter: Waiter) -> "asyncio.Future[None]":
        """Remove the hold from those that wait, and return the future that it waits for."""
        hold.waiter = None
        queue = self._queues[waiter.client]
        queue.remove(waiter)
        if queue:
            self._put(waiter.client)
        else:
            del self._queues[waiter.client]
            self._small_turns.remove(waiter.client)
            self._turns.remove(waiter.client)
        return self._waiting.pop(waiter.number)[1]

    def _next(self) -> Waiter | None:
        """Return the request whose turn it is. Requests that leave their clients small come first."""
        if (client := self._small_turns.first) is not None:
            return self._queues[client].smallest
        return None if (client := self._turns.first) is None else self._queues[client].oldest

    def _serve_waiting(self) -> None:
        while (waiter := self._next()) is not None:
            hold, granted = self._waiting[waiter.number]
            if not (granted.done() or self._has_room(hold, waiter.size)):
                return
            self._remove(hold, waiter)
            if not granted.done():  # it was not cancelled
                self._grant(hold, waiter.size)
                granted.set_result(None)

    def _check_soon(self) -> None:
        if not self._check_is_due and (self._waiting or self.bytes_held > self.bytes_max):
            self._check_is_due = True
            asyncio.get_running_loop().call_later(_PATIENCE_S, self._check)

    def _check(self) -> None:
        """End the slowest stalled holds, until the bytes that are held fit and no request has waited for long."""
        self._check_is_due = False
        self._serve_waiting()
        if self._is_too_full():
            now_s = clock.monotonic_s()
            stalled = [
                each
                for each in self._holds
                if each.stalled_since_s is not None and now_s - each.stalled_since_s >= _STALLED_S
            ]
            stalled.sort(key=lambda each: (-each.bytes_per_s(now_s), each.bytes))
            for _ in range(_CLOSED_AT_ONCE):
                if not stalled or not self._is_too_full():
                    break
                slowest = stalled.pop()
                if self._would_help(slowest):
                    logger.warning("a connection that held %d bytes and made no progress was closed", slowest.bytes)
                    slowest.abort()
                    slowest.close()
        self._check_soon()

    def _has_too_much(self) -> bool:
        """Whether more is held than `bytes_max`, not counting a large hold that is the only one."""
        if self.bytes_held <= self.bytes_max:
            return False
        largest = max(self._holds, key=attrgetter("bytes"))
        is_alone = self._large <= {largest.client} and self._held[largest.client] == largest.bytes
        return self.bytes_held - (largest.bytes if is_alone else 0) > self.bytes_max

    def _is_too_full(self) -> bool:
        """Whether a request has waited for long, or more is held than the budget has."""
        if self._has_too_much():
            return True
        if not self._waiting:
            return False
        oldest, _ = next(iter(self._waiting.values()))
        return oldest.waiter is not None and clock.monotonic_s() - oldest.waiter.since_s >= _PATIENCE_S

    def _would_help(self, hold: Hold) -> bool:
        """Whether the end of the hold makes room for the next request, or reduces an excess over the budget."""
        waiter = self._next()
        if waiter is None or self._has_too_much():
            return True
        return hold.waiter is not waiter and (self._is_small(waiter.client, waiter.size) or hold.client in self._large)
