"""The threads of a gateway, in shares: slow work of one kind, group or client leaves threads for the others."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Lane(Enum):
    """A kind of work: its number of threads, how many of them one name may use at a time, and how many one client.

    The name is the group or transactional id in the request. A client, which may invent any number of names, is a
    principal at an address.
    """

    OWN = "own", 4, 4, 4
    """The gateway's own: leases, quotas, ACLs, heartbeats of all groups together."""
    LOGIN = "login", 2, 1, 1
    METADATA = "metadata", 4, 2, 2
    FETCH = "fetch", 6, 4, 4
    GROUP = "group", 6, 2, 4
    TRANSACTION = "transaction", 4, 2, 3
    ADMIN = "admin", 3, 2, 2
    CODEC = "codec", 2, 1, 1
    """Decoding, decompression and encoding of much at once."""

    def __init__(self, _name: str, threads: int, of_name: int, of_client: int) -> None:
        self.threads, self.of_name, self.of_client = threads, of_name, of_client


_Key = tuple[Lane, str, str]


@dataclass
class _Share:
    """The threads of a lane that one name or client may use."""

    threads: asyncio.Semaphore
    users: int = 0


class Bulkheads:
    """For one event loop."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(sum(lane.threads for lane in Lane), thread_name_prefix="gateway")
        self._lanes = {lane: asyncio.Semaphore(lane.threads) for lane in Lane}
        self._shares: dict[_Key, _Share] = {}

    async def run(self, lane: Lane, client: str, function: Callable[[], T], name: str | None = None) -> T:
        """Call a function that blocks, in a thread of the lane. A cancelled call keeps its thread until it returns."""
        # The name first: calls that wait for a slow group take nothing from the client's calls for other groups.
        shares = [] if name is None else [((lane, "name", name), lane.of_name)]
        shares.append(((lane, "client", client), lane.of_client))
        acquired: list[_Key] = []
        try:
            for key, threads in shares:
                await self._acquire(key, threads)
                acquired.append(key)
            await self._lanes[lane].acquire()
        except BaseException:
            self._release(acquired)
            raise
        job = self._pool.submit(function)
        try:
            return await asyncio.wrap_future(job)
        finally:
            if job.done():
                self._end(lane, acquired)
            else:
                loop, end = asyncio.get_running_loop(), partial(self._end, lane, acquired)
                job.add_done_callback(lambda _: _call_soon(loop, end))

    async def run_own(self, function: Callable[P, T], *arguments: P.args, **keywords: P.kwargs) -> T:
        """Call a function that blocks, for the gateway itself or for many requests together."""
        return await self.run(Lane.OWN, "", partial(function, *arguments, **keywords))

    def close(self) -> None:
        self._pool.shutdown(wait=False)

    async def _acquire(self, key: _Key, threads: int) -> None:
        share = self._shares.get(key)
        if share is None:
            share = self._shares[key] = _Share(asyncio.Semaphore(threads))
        share.users += 1
        try:
            await share.threads.acquire()
        except BaseException:
            self._forget(key, share)
            raise

    def _end(self, lane: Lane, acquired: Sequence[_Key]) -> None:
        self._lanes[lane].release()
        self._release(acquired)

    def _release(self, acquired: Sequence[_Key]) -> None:
        for key in acquired:
            share = self._shares[key]
            share.threads.release()
            self._forget(key, share)

    def _forget(self, key: _Key, share: _Share) -> None:
        share.users -= 1
        if not share.users:
            del self._shares[key]


def _call_soon(loop: asyncio.AbstractEventLoop, function: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # the gateway has ended
        loop.call_soon_threadsafe(function)
