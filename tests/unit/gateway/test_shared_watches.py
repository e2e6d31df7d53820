"""Requests that wait for the same: one read after a change, and no change is missed."""

import asyncio
from types import SimpleNamespace

from spark_log.gateway import shared_watches
from spark_log.gateway.shared_watches import News, SharedWatches
from tests.support.waiting import LIMIT_S

WAIT_S = 2 * LIMIT_S


class Store:
    """A store of changes. A request is a topic; its news is the number of the topic's changes that were read."""

    def __init__(self):
        self.changes: list[str] = []
        self.reads: list[tuple[str, ...]] = []
        self._changed = asyncio.Event()
        self.may_read = asyncio.Event()
        self.may_read.set()
        self.watches = SharedWatches(self, self._read)

    def commit(self, topic):
        self.changes.append(topic)
        self._changed.set()

    async def wait(self, seen, timeout_s, sooner):
        while len(self.changes) == seen and not sooner.done():
            self._changed.clear()
            changed = asyncio.create_task(self._changed.wait())
            done, _ = await asyncio.wait([changed, sooner], timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            changed.cancel()
            if not done:
                return

    async def _read(self, _key, topics):
        change, read = len(self.changes), tuple(self.changes)
        self.reads.append(tuple(sorted(topics)))
        await self.may_read.wait()
        return News(change, lambda topic: read.count(topic) if topic in topics and topic in read else None)

    def begin(self, topic, seen, key="k", wait_ms=None):
        return asyncio.create_task(self.watches.wait(key, topic, seen, WAIT_S, wait_ms))


async def settle():
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_request_that_has_seen_an_older_state_is_read_for_at_once():
    """The change came after its own read, and before it began to wait; the last common read was not for its topic."""
    store = Store()
    first = store.begin("a", 0)
    await settle()
    store.commit("b")
    await settle()
    assert store.reads == [("a",)]
    late = store.begin("b", 0)
    assert await asyncio.wait_for(late, LIMIT_S) == 1
    assert store.reads[1:] == [("a", "b")] and not first.done()
    first.cancel()


async def test_a_request_that_begins_to_wait_during_a_read_misses_nothing():
    store = Store()
    store.may_read.clear()
    first = store.begin("a", 0)
    await settle()
    store.commit("b")
    await settle()
    late = store.begin("b", 0)
    await settle()
    store.may_read.set()
    assert await asyncio.wait_for(late, LIMIT_S) == 1
    assert not first.done()
    first.cancel()


async def test_a_request_that_has_seen_the_last_change_causes_no_read():
    store = Store()
    first = store.begin("a", 0)
    await settle()
    store.commit("b")
    await settle()
    others = [store.begin("b", 1), store.begin("a", 1)]
    await asyncio.sleep(0.05)
    assert store.reads == [("a",)]
    for task in (first, *others):
        task.cancel()


async def test_the_store_is_read_when_there_may_be_news_without_a_change():
    store = Store()
    first = store.begin("a", 0)
    await settle()
    second = store.begin("b", 0, wait_ms=1)
    await asyncio.sleep(0.05)
    assert store.reads == [("a", "b")], "once, for all that wait"
    alone = store.begin("c", 0, key="other", wait_ms=1)
    await asyncio.sleep(0.05)
    assert store.reads[1:] == [("c",)]
    for task in (first, second, alone):
        task.cancel()


async def test_a_read_for_one_key_does_not_delay_another_key():
    store = Store()
    store.may_read.clear()
    slow = store.begin("a", 0, key="slow")
    await settle()
    store.commit("a")
    await settle()
    store.may_read.set()
    quick = store.begin("a", 0, key="quick")
    assert await asyncio.wait_for(quick, LIMIT_S) == 1
    slow.cancel()


async def test_changes_that_follow_fast_are_read_together(monkeypatch):
    pause_s, may_go_on = [], asyncio.Event()

    async def pause(seconds):
        pause_s.append(seconds)
        await may_go_on.wait()

    monkeypatch.setattr(shared_watches, "asyncio", SimpleNamespace(**vars(asyncio) | {"sleep": pause}))
    store = Store()
    task = store.begin("a", 0)
    await settle()
    for _ in range(10):
        store.commit("b")
        await settle()
    assert len(store.reads) == len(pause_s) == 1 and pause_s[0] > 0
    store.commit("a")
    may_go_on.set()
    assert await asyncio.wait_for(task, LIMIT_S) == 1
    assert len(store.reads) == 2


async def test_a_watch_ends_with_its_last_request():
    store = Store()
    task = store.begin("a", 0)
    await settle()
    [watch] = store.watches._watches.values()
    task.cancel()
    await settle()
    assert store.watches._watches == {} and watch.task.cancelled()
