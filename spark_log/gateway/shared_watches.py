"""Wakes requests that wait for news in the store. After a change one read serves all requests of the same key."""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from spark_log import clock
from spark_log.errors import SparkLogError
from spark_log.gateway.change_watch import ChangeWatch

logger = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)
Q = TypeVar("Q")
R = TypeVar("R")

_WAIT_S_MAX = 5.0


class Pause(NamedTuple):
    """The pause after a read of the store, because commits may follow each other fast. It is the duration of the read
    times `factor`, within limits in seconds.
    """

    s_min: float
    factor: float
    s_max: float


PAUSE = Pause(s_min=0.0, factor=2.0, s_max=0.5)


@dataclass(frozen=True)
class News(Generic[Q, R]):
    """The result of a read for waiting requests."""

    change: int
    """The number of the store's last change before the read."""
    result_of: Callable[[Q], R | None]
    """Returns the news for a request, or None. It is also called for requests that began to wait after the read."""
    wait_ms: int | None = None
    """The time after which there may be news without a change."""


@dataclass(eq=False)
class _Waiting(Generic[Q, R]):
    request: Q
    seen: int
    """The number of the last change that a read for this request has seen."""
    read_at_s: float = math.inf
    """The time at which there may be news without a change, unless a read for this request has begun."""
    woken: "asyncio.Future[R | None]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())


@dataclass
class _Watch(Generic[Q, R]):
    """The waiting requests of one key, and the last read for them."""

    waiting: set[_Waiting[Q, R]] = field(default_factory=set)
    seen: int = -1
    """The task waits for the store to change after this change number."""
    read_at_s: float = 0.0
    """The time at which the task reads without a change."""
    sooner: "asyncio.Future[None]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """Completes when a new request has seen an older change than `seen`, or has a time before `read_at_s`. Then the
    task reads at once.
    """
    task: "asyncio.Task[None] | None" = None
    last: News[Q, R] | None = None

    def wake(self, result_of: Callable[[Q], R | None], *, every: bool = False) -> None:
        for each in self.waiting:
            if each.woken.done():
                continue
            result = result_of(each.request)
            if every or result is not None:
                each.woken.set_result(result)


class SharedWatches(Generic[K, Q, R]):
    """One watch for each key. Used by one event loop."""

    def __init__(
        self,
        changes: ChangeWatch,
        read: Callable[[K, Sequence[Q]], Awaitable[News[Q, R]]],
        pause: Pause | None = None,
    ) -> None:
        """`read` reads the store for the waiting requests of a key. The default of `pause` is PAUSE."""
        self._changes, self._read, self._pause = changes, read, pause or PAUSE
        self._watches: dict[K, _Watch[Q, R]] = {}

    async def wait(self, key: K, request: Q, seen: int, timeout_s: float, wait_ms: int | None = None) -> R | None:
        """Return the news for the request since change number `seen` of the store. Return None after the timeout, or if
        the store could not be read: then the request has to read it itself, and gets the error. After `wait_ms` there
        may be news without a change.
        """
        watch = self._watches.setdefault(key, _Watch())
        if watch.last is not None and watch.last.change > seen:
            result = watch.last.result_of(request)
            if result is not None:  # the others were woken before this one waited
                return result
        me: _Waiting[Q, R] = _Waiting(request, seen)
        if wait_ms is not None:
            me.read_at_s = clock.monotonic_s() + wait_ms / 1000
        watch.waiting.add(me)
        if watch.task is None:
            watch.task = asyncio.create_task(self._follow(key, watch))
        elif (seen < watch.seen or me.read_at_s < watch.read_at_s) and not watch.sooner.done():
            watch.sooner.set_result(None)
        try:
            await asyncio.wait([me.woken], timeout=timeout_s)
            return me.woken.result() if me.woken.done() else None
        finally:
            watch.waiting.remove(me)
            if not watch.waiting:
                del self._watches[key]
                watch.task.cancel()

    async def _follow(self, key: K, watch: _Watch[Q, R]) -> None:
        """Read the store after each change, and wake the requests for which there is news."""
        wait_s = _WAIT_S_MAX
        while True:
            began_s = clock.monotonic_s()
            try:
                watch.seen = min(each.seen for each in watch.waiting)
                watch.read_at_s = min(began_s + wait_s, *(each.read_at_s for each in watch.waiting))
                watch.sooner = asyncio.get_running_loop().create_future()
                await self._changes.wait(watch.seen, max(0.0, watch.read_at_s - began_s), watch.sooner)
                began_s = clock.monotonic_s()
                read_for = list(watch.waiting)
                news = await self._read(key, [each.request for each in read_for])
                for each in read_for:
                    each.seen, each.read_at_s = news.change, math.inf
                watch.last = news
                watch.wake(news.result_of)
                wait_s = _WAIT_S_MAX if news.wait_ms is None else min(_WAIT_S_MAX, news.wait_ms / 1000 + 0.001)
                took_s = clock.monotonic_s() - began_s
                pause_s = min(max(self._pause.factor * took_s, self._pause.s_min), self._pause.s_max)
            except Exception as error:
                if not isinstance(error, SparkLogError):
                    logger.exception("requests that wait for %r cannot be woken by a common read", key)
                watch.last = None
                watch.wake(lambda _: None, every=True)
                wait_s, pause_s = _WAIT_S_MAX, self._pause.s_max
            await asyncio.sleep(pause_s)
