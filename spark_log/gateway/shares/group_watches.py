"""Wakes waiting fetches of share groups. After a commit the store is read once for a group, not for each member."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

from spark_log.gateway.change_watch import ChangeWatch
from spark_log.gateway.shared_watches import News, SharedWatches
from spark_log.groups.share import rows
from spark_log.groups.share.looks import has_work, next_change_ms
from spark_log.groups.share.polling import SharePolls
from spark_log.log.partitions.partition_rows import Key


class WaitingShareFetch(NamedTuple):
    """A waiting fetch: its client, and its partitions."""

    client: str
    keys: frozenset[Key]


class GroupWatches:
    """Wakes the waiting fetches of each group. Used by one event loop."""

    def __init__(
        self, polls: SharePolls, changes: ChangeWatch, run: Callable[[str, Callable[[], Any]], Awaitable[Any]]
    ) -> None:
        """`run` calls a blocking function in one of the threads that a client may use: reads for a client's many groups
        do not delay the others.
        """
        self._polls, self._changes, self._run = polls, changes, run
        self._watches = SharedWatches[str, WaitingShareFetch, frozenset[Key]](changes, self._read)

    async def wait(
        self, client: str, group_id: str, assigned: Iterable[Key], seen: int, wait_ms: int | None, timeout_s: float
    ) -> None:
        """Return when the group may have new records in these partitions since change number `seen` of the store, or
        after the timeout, or after `wait_ms`: then there may be new records without a change.
        """
        if wait_ms is not None:
            timeout_s = min(timeout_s, wait_ms / 1000 + 0.001)
        await self._watches.wait(group_id, WaitingShareFetch(client, frozenset(assigned)), seen, timeout_s)

    async def _read(
        self, group_id: str, fetches: Sequence[WaitingShareFetch]
    ) -> News[WaitingShareFetch, frozenset[Key]]:
        keys = frozenset[Key]().union(*(fetch.keys for fetch in fetches))
        news: News[WaitingShareFetch, frozenset[Key]] = await self._run(
            fetches[0].client, partial(self._look, group_id, keys)
        )
        return news

    def _look(self, group_id: str, keys: frozenset[Key]) -> News[WaitingShareFetch, frozenset[Key]]:
        change, seen = self._changes.current(), self._polls.look(group_id)
        limits = rows.limits_of(seen.config)
        with_work = frozenset(key for key, offer in seen.offers.items() if has_work(offer, seen.now, limits))
        return News(change, lambda fetch: fetch.keys & with_work or None, next_change_ms(seen, keys - with_work))
