"""Waiting fetches of a share group: one read of the store after a commit serves them all."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from spark_log import clock
from spark_log.cluster.settings import alter_settings
from spark_log.errors import MetadataStoreUnavailableError
from spark_log.gateway import shared_watches
from spark_log.gateway.change_watch import ChangeWatch
from spark_log.gateway.shares.group_watches import GroupWatches, WaitingShareFetch
from spark_log.groups.share import rows
from spark_log.groups.share.acquisition_rules import Request
from spark_log.groups.share.polling import SharePolls
from spark_log.groups.share.reading import ShareReads
from spark_log.replication.controller.topic_operations import create_topic
from tests.support.share_members import ShareMember
from tests.support.waiting import LIMIT_S, until

MEMBERS = 20
WAIT_S = 2 * LIMIT_S
"""The time limit of a fetch that must not reach it."""


@pytest.fixture
def member(cluster):
    """A member of group `workers`, which reads topics `t` and `other`."""
    for topic in ("t", "other", "else"):
        create_topic(cluster, topic)
    configs = {"share.auto.offset.reset": "earliest"}
    cluster.store.transact(lambda connection: rows.save_configs(connection, "workers", configs))
    return ShareMember(cluster, ("t", "other"))


@pytest.fixture
def no_look_without_reason(monkeypatch):
    """Else a watch looks at the store every few seconds, whether something has changed or not."""
    monkeypatch.setattr(shared_watches, "_WAIT_S_MAX", WAIT_S)


class Fetches:
    """Fetches of a gateway that wait."""

    def __init__(self, cluster, member, changes):
        self.polls, self._member, self._changes = SharePolls(cluster, ShareReads(cluster)), member, changes
        self.readers: list[str] = []
        self.watches = GroupWatches(self.polls, changes, self._run)
        self.by_group = self.watches._watches._watches

    async def _run(self, client, function):
        self.readers.append(client)
        return await asyncio.to_thread(function)

    async def fetch(self, name, topics=("t", "other"), timeout_s=WAIT_S):
        """Wait for one record, and return whether there was one."""
        member = self._member
        assigned = {key: topic for key, topic in member.assigned.items() if topic in topics}
        until_s = clock.monotonic_s() + timeout_s
        while True:
            seen = self._changes.current()
            request = Request(name, 1, whole_batches=False)
            result = await asyncio.to_thread(self.polls.attempt, member.group, request, assigned, {})
            left_s = until_s - clock.monotonic_s()
            if result.taken or left_s <= 0:
                return bool(result.taken)
            await self.watches.wait(name, member.group, assigned, seen, result.wait_ms, left_s)


@asynccontextmanager
async def fetches_of(cluster, member):
    changes = ChangeWatch(cluster.store, asyncio.get_running_loop())
    changes.start()
    try:
        yield Fetches(cluster, member, changes)
    finally:
        changes.stop()


def has_seen_records(watch, member):
    """Whether the last read for the group has found records of any partition of the member."""
    return (
        watch.last is not None and watch.last.result_of(WaitingShareFetch("", frozenset(member.assigned))) is not None
    )


async def test_one_read_after_a_commit_serves_all_waiting_fetches(cluster, member, looks, produce):
    producer = produce()
    async with fetches_of(cluster, member) as fetches:
        tasks = [asyncio.create_task(fetches.fetch(f"m{number}")) for number in range(MEMBERS)]
        await until(lambda: sum(len(watch.waiting) for watch in fetches.by_group.values()) == MEMBERS)
        looks.clear()
        await asyncio.to_thread(producer.send("else", b"x", partition=0).get)
        await until(lambda: looks)
        assert len(looks) < MEMBERS / 2
        assert set(fetches.readers) <= {f"m{number}" for number in range(MEMBERS)}
        for _ in range(MEMBERS):
            producer.send("t", b"x", partition=0)
        await asyncio.to_thread(producer.flush)
        assert all(await asyncio.gather(*tasks))
        assert fetches.by_group == {}


async def test_a_fetch_that_comes_late_does_not_miss_records(cluster, member, produce):
    """Its poll saw the store before the records came, and it waits after the store was read for the others."""
    producer = produce()
    async with fetches_of(cluster, member) as fetches:
        seen = fetches._changes.current()
        other = asyncio.create_task(fetches.fetch("m1", ("other",)))
        await until(lambda: fetches.by_group)
        [watch] = fetches.by_group.values()
        await asyncio.to_thread(producer.send("t", b"x", partition=0).get)
        await until(lambda: has_seen_records(watch, member))
        with pytest.raises(StopIteration):  # it does not wait
            fetches.watches.wait("m0", "workers", member.assigned, seen, None, WAIT_S).send(None)
        producer.send("other", b"x", partition=0)
        assert await other


async def test_records_of_other_topics_do_not_wake_a_fetch(cluster, member, produce):
    producer = produce()
    async with fetches_of(cluster, member) as fetches:
        task = asyncio.create_task(fetches.fetch("m1", ("other",), timeout_s=WAIT_S))
        key = next(key for key, topic in member.assigned.items() if topic == "other")
        await until(lambda: fetches.by_group)
        [watch] = fetches.by_group.values()
        producer.send("t", b"x", partition=0)
        await asyncio.to_thread(producer.flush)
        await until(lambda: has_seen_records(watch, member))
        assert [each.request.keys for each in watch.waiting if not each.woken.done()] == [frozenset([key])]
        producer.send("other", b"x", partition=0)
        await asyncio.to_thread(producer.flush)
        assert await task


async def test_a_fetch_waits_no_longer_than_its_own_result_says(cluster, member, no_look_without_reason):
    """Another fetch waits already, and no read of the store for it has seen the lock."""
    async with fetches_of(cluster, member) as fetches:
        seen = fetches._changes.current()
        first = asyncio.create_task(fetches.watches.wait("m0", "workers", member.assigned, seen, None, WAIT_S))
        await until(lambda: fetches.by_group)
        await asyncio.wait_for(fetches.watches.wait("m0", "workers", member.assigned, seen, 50, WAIT_S), LIMIT_S)
        first.cancel()


async def test_a_lock_that_begins_while_a_fetch_waits_wakes_it_at_its_end(
    cluster, member, produce, no_look_without_reason
):
    producer = produce()
    alter_settings(cluster, {"group.share.min.record.lock.duration.ms": "1"})
    configs = {"share.auto.offset.reset": "earliest", "share.record.lock.duration.ms": "300"}
    cluster.store.transact(lambda connection: rows.save_configs(connection, "workers", configs))
    async with fetches_of(cluster, member) as fetches:
        task = asyncio.create_task(fetches.fetch("m2"))
        await until(lambda: fetches.by_group)
        producer.send("t", b"x", partition=0).get()  # the event loop stands still: no watch sees the record free
        assert member.poll(1)
        assert await asyncio.wait_for(task, LIMIT_S)


async def test_a_watch_goes_on_after_the_store_could_not_be_read(cluster, member, produce, monkeypatch):
    producer = produce()
    async with fetches_of(cluster, member) as fetches:
        wait, failures = fetches._changes.wait, [MetadataStoreUnavailableError("away"), ValueError("unforeseen")]

        async def fails(*arguments):
            if failures:
                raise failures.pop()
            await wait(*arguments)

        monkeypatch.setattr(fetches._changes, "wait", fails)
        task = asyncio.create_task(fetches.fetch("m1"))
        await until(lambda: not failures)
        await asyncio.to_thread(producer.send("t", b"x", partition=0).get)
        assert await asyncio.wait_for(task, LIMIT_S)


async def test_a_fetch_waits_although_an_earlier_read_showed_records(cluster, member, produce):
    """Another member took them before its poll."""
    producer = produce()
    async with fetches_of(cluster, member) as fetches:
        other = asyncio.create_task(fetches.fetch("m1", ("other",)))
        await until(lambda: fetches.by_group)
        [watch] = fetches.by_group.values()
        await asyncio.to_thread(producer.send("t", b"x", partition=0).get)
        await until(lambda: has_seen_records(watch, member))
        later = fetches.watches.wait("m2", "workers", member.assigned, watch.last.change + 1, None, WAIT_S)
        assert later.send(None) is not None  # it waits
        later.close()
        producer.send("other", b"x", partition=0)
        assert await other
