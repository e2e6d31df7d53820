"""The threads of a gateway, in shares: slow work of one kind, group or client leaves threads for the others."""

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import TypeVar

T = TypeVar("T")


class Lane(Enum):
    """A kind of work, with the number of its threads, and how many of them one key may have at a time.

    The key is the group or transactional id that a request names, else the client's principal and address.
    """

    OWN = "own", 4, 4
    """The gateway's own: leases, quotas, ACLs, heartbeats of all groups together."""
    LOGIN = "login", 2, 1
    METADATA = "metadata", 4, 2
    FETCH = "fetch", 6, 4
    GROUP = "group", 6, 2
    TRANSACTION = "transaction", 4, 2
    ADMIN = "admin", 3, 2
    CODEC = "codec", 2, 1
    """Decoding, decompression and encoding of much at once."""

    def __init__(self, _name: str, threads: int, of_key: int) -> None:
        self.threads, self.of_key = threads, of_key


@dataclass
class _Share:
    """The threads of a lane that one key may use."""

    threads: asyncio.Semaphore
    users: int = 0


class Bulkheads:
    """For one event loop."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(sum(lane.threads for lane in Lane), thread_name_prefix="gateway")
        self._lanes = {lane: asyncio.Semaphore(lane.threads) for lane in Lane}
        self._shares: dict[tuple[Lane, str], _Share] = {}

    async def run(self, lane: Lane, key: str, function: Callable[[], T]) -> T:
        """Call a function that blocks, in a thread of the lane. A cancelled call keeps its thread until it returns."""
        share = self._shares.get((lane, key))
        if share is None:
            share = self._shares[lane, key] = _Share(asyncio.Semaphore(lane.of_key))
        share.users += 1
        try:
            await share.threads.acquire()
        except BaseException:
            self._forget(lane, key, share)
            raise
        try:
            await self._lanes[lane].acquire()
        except BaseException:
            share.threads.release()
            self._forget(lane, key, share)
            raise
        job = self._pool.submit(function)
        try:
            return await asyncio.wrap_future(job)
        finally:
            if job.done():
                self._release(lane, key, share)
            else:
                loop, release = asyncio.get_running_loop(), partial(self._release, lane, key, share)
                job.add_done_callback(lambda _: _call_soon(loop, release))

    def close(self) -> None:
        self._pool.shutdown(wait=False)

    def _release(self, lane: Lane, key: str, share: _Share) -> None:
        self._lanes[lane].release()
        share.threads.release()
        self._forget(lane, key, share)

    def _forget(self, lane: Lane, key: str, share: _Share) -> None:
        share.users -= 1
        if not share.users:
            del self._shares[lane, key]


def _call_soon(loop: asyncio.AbstractEventLoop, function: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # the gateway has ended
        loop.call_soon_threadsafe(function)
