"""Divides the threads of a gateway, so that slow work of one kind, group or client leaves threads for the others. Holds
the facts about the request that the current task answers.
"""

import asyncio
import contextlib
from collections import Counter, OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from functools import partial
from time import thread_time
from typing import ParamSpec, TypeVar

from spark_log.gateway.limits.request_memory import RequestMemory

P = ParamSpec("P")
T = TypeVar("T")


class Lane(Enum):
    """A kind of work. Its values are its number of threads, and how many of them each name and each client may use.

    The name is the group or transactional id in the request. A client is a principal at an address; it may invent any
    number of names.
    """

    OWN = "own", 4, 4, 4
    """Work of the gateway itself: leases, quotas, ACLs, and heartbeats of all groups together."""
    LOGIN = "login", 2, 1, 1
    METADATA = "metadata", 4, 2, 2
    FETCH = "fetch", 6, 4, 4
    GROUP = "group", 6, 2, 4
    TRANSACTION = "transaction", 4, 2, 3
    ADMIN = "admin", 3, 2, 2
    CODEC = "codec", 2, 1, 1
    """Decoding, decompression and encoding of large requests and responses."""

    def __init__(self, _name: str, threads: int, of_name: int, of_client: int) -> None:
        self.threads, self.of_name, self.of_client = threads, of_name, of_client


class CpuTime:
    """Counts CPU seconds of the threads that work for a request. The calls of `measure` do not overlap."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def measure(self, function: Callable[P, T], *arguments: P.args, **keywords: P.kwargs) -> T:
        """Call the function, and add the CPU time that this thread uses for it to `seconds`."""
        began_s = thread_time()
        try:
            return function(*arguments, **keywords)
        finally:
            self.seconds += thread_time() - began_s


@dataclass(frozen=True)
class RequestContext:
    """The limits that apply to a request. Blocking calls use threads of its `lane`, `client` and `name` (`Bulkheads`).

    `memory` is None for calls of the gateway itself. `cpu` is None if no quota request_percentage limits the client:
    then CPU time is not measured.
    """

    lane: Lane = Lane.OWN
    client: str = ""
    name: str | None = None
    memory: RequestMemory | None = None
    cpu: CpuTime | None = None


request_context: ContextVar[RequestContext] = ContextVar("request_context", default=RequestContext())  # noqa: B039


@dataclass(frozen=True, eq=False)
class _Waiting:
    """A call that waits until its lane, its client and its name all have a thread left. It holds no thread."""

    client: str
    name: str | None
    start: asyncio.Future[None]


class _Threads:
    """Counts the threads of one lane that are in use: in all, by each client and by each name."""

    def __init__(self, lane: Lane) -> None:
        self._lane, self._used = lane, 0
        self._of_client: Counter[str] = Counter()
        self._of_name: Counter[str] = Counter()
        self._waiting: OrderedDict[str, list[_Waiting]] = OrderedDict()
        """The waiting calls of each client. The clients take turns."""

    def _is_free(self, client: str, name: str | None) -> bool:
        lane = self._lane
        return (
            self._used < lane.threads
            and self._of_client[client] < lane.of_client
            and (name is None or self._of_name[name] < lane.of_name)
        )

    def _add(self, client: str, name: str | None, count: int) -> None:
        self._used += count
        self._of_client[client] += count
        if not self._of_client[client]:
            del self._of_client[client]
        if name is not None:
            self._of_name[name] += count
            if not self._of_name[name]:
                del self._of_name[name]

    async def acquire(self, client: str, name: str | None) -> None:
        if self._is_free(client, name):
            self._add(client, name, 1)
            return
        waiting = _Waiting(client, name, asyncio.get_running_loop().create_future())
        self._waiting.setdefault(client, []).append(waiting)
        try:
            await waiting.start
        except BaseException:
            if waiting.start.done() and not waiting.start.cancelled():
                self.release(client, name)
            else:
                self._forget(waiting)
            raise

    def release(self, client: str, name: str | None) -> None:
        self._add(client, name, -1)
        while self._start_one():
            pass

    def _start_one(self) -> bool:
        """Start the first call that can start, in the order of the clients' turns; return whether there was one."""
        if self._used >= self._lane.threads:
            return False
        for client, calls in self._waiting.items():
            if self._of_client[client] >= self._lane.of_client:
                continue
            free = (each for each in calls if not each.start.done() and self._is_free(client, each.name))
            waiting = next(free, None)
            if waiting is not None:
                self._add(client, waiting.name, 1)
                self._waiting.move_to_end(client)
                self._forget(waiting)
                waiting.start.set_result(None)
                return True
        return False

    def _forget(self, waiting: _Waiting) -> None:
        calls = self._waiting[waiting.client]
        calls.remove(waiting)
        if not calls:
            del self._waiting[waiting.client]


class Bulkheads:
    """Runs blocking calls in the threads of their lanes. Used by one event loop."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(sum(lane.threads for lane in Lane), thread_name_prefix="gateway")
        self._threads = {lane: _Threads(lane) for lane in Lane}

    async def run(
        self, lane: Lane, client: str, function: Callable[[], T], name: str | None = None,
        memory: RequestMemory | None = None,
    ) -> T:  # fmt: skip
        """Call a blocking function in a thread of the lane. After a cancellation the call keeps its thread, and the
        memory of its request, until the function returns.
        """
        threads = self._threads[lane]
        await threads.acquire(client, name)

        def end() -> None:
            threads.release(client, name)
            if memory is not None:
                memory.end_thread()

        if memory is not None:
            memory.begin_thread()
        job = self._pool.submit(function)
        try:
            return await asyncio.wrap_future(job)
        finally:
            if job.done():
                end()
            else:
                loop = asyncio.get_running_loop()
                job.add_done_callback(lambda _: _call_soon(loop, end))

    async def run_own(self, function: Callable[P, T], *arguments: P.args, **keywords: P.kwargs) -> T:
        """Call a blocking function for the gateway itself, or for many requests together."""
        return await self.run(Lane.OWN, "", partial(function, *arguments, **keywords))

    def close(self) -> None:
        self._pool.shutdown(wait=False)


def _call_soon(loop: asyncio.AbstractEventLoop, function: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # the gateway has ended
        loop.call_soon_threadsafe(function)
