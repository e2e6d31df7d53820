"""Wakes waiting fetches of share groups. After a commit the store is read once for a group, not for each member."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from spark_log import clock
from spark_log.errors import SparkLogError
from spark_log.gateway.change_watch import ChangeWatch
from spark_log.groups.share import rows
from spark_log.groups.share.looks import has_work, next_change_ms
from spark_log.groups.share.polling import SharePolls
from spark_log.log.partitions.partition_rows import Key

logger = logging.getLogger(__name__)

_WAIT_S_MAX = 5.0
_PAUSE_S_MAX = 0.5
_PAUSE = 2.0
"""The pause after a read of the store, as a multiple of its duration: commits of others may follow each other fast."""


class _News(NamedTuple):
    """The result of a read: all partitions that have records for the group, and when those of waiting fetches may have
    some by time.
    """

    change: int
    with_work: frozenset[Key]
    wait_ms: int | None


class _Fetch(NamedTuple):
    """A waiting fetch: its client, and its partitions."""

    client: str
    keys: frozenset[Key]


@dataclass
class _Watch:
    """The waiting fetches of a group, and the last read for them."""

    since: int
    """The number of the store's last change when the watch began: it sees later ones."""
    waiting: dict["asyncio.Future[None]", _Fetch] = field(default_factory=dict)
    task: "asyncio.Task[None] | None" = None
    last: _News | None = None

    def wake(self, with_work: frozenset[Key] | None) -> None:
        """Wake the fetches of these partitions; None: all."""
        for future, fetch in self.waiting.items():
            if not future.done() and (with_work is None or fetch.keys & with_work):
                future.set_result(None)


class GroupWatches:
    """Used by one event loop."""

    def __init__(
        self, polls: SharePolls, changes: ChangeWatch, run: Callable[[str, Callable[[], Any]], Awaitable[Any]]
    ) -> None:
        """`run` calls a blocking function in one of the threads that a client may use: reads for a client's many groups
        do not delay the others.
        """
        self._polls, self._changes, self._run = polls, changes, run
        self._watches: dict[str, _Watch] = {}

    async def wait(
        self, client: str, group_id: str, assigned: Iterable[Key], seen: int, wait_ms: int | None, timeout_s: float
    ) -> None:
        """Return when the group may have records in these partitions that it did not have at change number `seen` of
        the store, or at the time-out, or after `wait_ms`, when there may be some without a change.
        """
        keys, watch = frozenset(assigned), self._watches.setdefault(group_id, _Watch(seen))
        if watch.last is None and seen < watch.since:
            return  # a change between the poll of this fetch and the watch
        if watch.last is not None and watch.last.change > seen and watch.last.with_work & keys:
            return  # the others were woken before this one waited
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        watch.waiting[future] = _Fetch(client, keys)
        if watch.task is None or watch.task.done():
            watch.task = asyncio.create_task(self._follow(group_id, watch, _News(seen, frozenset(), None)))
        if wait_ms is not None:
            timeout_s = min(timeout_s, wait_ms / 1000 + 0.001)
        try:
            await asyncio.wait([future], timeout=timeout_s)
        finally:
            del watch.waiting[future]
            if not watch.waiting:
                del self._watches[group_id]
                watch.task.cancel()

    async def _follow(self, group_id: str, watch: _Watch, news: _News) -> None:
        """Read the store after each change, and wake the fetches whose partitions have records."""
        while True:
            wait_s = _WAIT_S_MAX if news.wait_ms is None else min(_WAIT_S_MAX, news.wait_ms / 1000 + 0.001)
            began_s = clock.monotonic_s()
            try:
                await self._changes.wait(news.change, wait_s)
                began_s = clock.monotonic_s()
                client, *_ = {fetch.client for fetch in watch.waiting.values()}
                keys = frozenset[Key]().union(*(fetch.keys for fetch in watch.waiting.values()))
                news = await self._run(client, partial(self._read, group_id, keys))
            except Exception as error:
                if not isinstance(error, SparkLogError):
                    logger.exception("share group %r cannot be watched", group_id)
                news, watch.last = _News(-1, frozenset(), None), None
                watch.wake(None)  # each fetch meets the error itself
                await asyncio.sleep(_PAUSE_S_MAX)
            else:
                watch.last = news
                watch.wake(news.with_work)
                await asyncio.sleep(min(_PAUSE * (clock.monotonic_s() - began_s), _PAUSE_S_MAX))

    def _read(self, group_id: str, keys: frozenset[Key]) -> _News:
        change, seen = self._changes.current(), self._polls.look(group_id)
        limits = rows.limits_of(seen.config)
        with_work = frozenset(key for key, offer in seen.offers.items() if has_work(offer, seen.now, limits))
        return _News(change, with_work, next_change_ms(seen, keys - with_work))
