"""Members of many classic groups wait at one gateway: what a change of the store costs, and which of them wake."""

import asyncio
import contextlib

import pytest

from spark_log.gateway.change_watch import ChangeWatch
from spark_log.gateway.groups import classic_waits
from spark_log.gateway.groups.classic_waits import ClassicWaits
from spark_log.groups.classic.group import Joining, State
from spark_log.groups.classic.rules import leave
from spark_log.groups.classic.service import change, join_classic, marks_of
from spark_log.metadata import tables as t
from spark_log.metadata.sql_columns import CLASSIC_MEMBER

GROUPS = 300
"""More than one statement asks for."""


def join(cluster, group_id, member_id):
    """The first member of a group begins a generation; after a further one, the first must join again."""
    protocols = (("p", b"metadata"),)
    request = Joining("", member_id, None, "client", "host", "connect", protocols, 100_000, 100_000)
    return join_classic(cluster.store, group_id, request)


class Gateway:
    """The members that wait at one, by name. `reads` has the numbers of members that each read of the store was for."""

    def __init__(self, store):
        self.changes = ChangeWatch(store, asyncio.get_running_loop())
        self.waits = ClassicWaits(store, self.changes, self.call)
        self.members = {}
        self.calls = 0
        self.reads = []

    async def call(self, function, *arguments):
        self.calls += 1
        result = await asyncio.to_thread(function, *arguments)
        if function is marks_of:
            self.reads.append(len(arguments[1]))
        return result

    def wait(self, group_id, member_id, state=State.COMPLETING, generation=1):
        waiting = self.waits.wait(group_id, member_id, state, generation, 60)
        self.members[member_id] = asyncio.create_task(waiting)

    async def woken(self):
        """The members that wake first."""
        done, _ = await asyncio.wait(self.members.values(), timeout=60, return_when=asyncio.FIRST_COMPLETED)
        names = [name for name, task in self.members.items() if task in done]
        for name in names:
            del self.members[name]
        return names

    async def quiet(self):
        """Until what was committed is read: PostgreSQL announces commits a moment later."""
        before = None
        while len(self.reads) != before:
            before = len(self.reads)
            await asyncio.sleep(0.5)


@contextlib.asynccontextmanager
async def gateway_of(cluster):
    gateway = Gateway(cluster.store)
    gateway.changes.start()
    try:
        yield gateway
    finally:
        for task in gateway.members.values():
            task.cancel()
        await asyncio.gather(*gateway.members.values(), return_exceptions=True)
        gateway.changes.stop()
        await asyncio.to_thread(gateway.changes.join)


@pytest.mark.on_sqlite
async def test_a_change_of_one_group_is_one_read_for_all_that_wait(cluster):
    for number in range(GROUPS):
        join(cluster, f"g{number}", f"m{number}")
    async with gateway_of(cluster) as gateway:
        for number in range(GROUPS):
            gateway.wait(f"g{number}", f"m{number}")
        await gateway.quiet()
        calls, reads = gateway.calls, len(gateway.reads)
        await asyncio.to_thread(join, cluster, "g7", "other")
        assert await gateway.woken() == ["m7"]
        assert 1 <= len(gateway.reads) - reads <= 3 and gateway.calls - calls <= 6
        assert set(gateway.reads[reads:]) <= {GROUPS}
        await gateway.quiet()
        reads = len(gateway.reads)
        gateway.wait("g7", "m7", State.PREPARING, 1)
        while not gateway.reads[reads:]:
            await asyncio.sleep(0.01)
        assert gateway.reads[reads] == 1, "the groups that have not changed are not read for a member of another"


async def test_members_that_are_removed_wake_and_one_wakes_when_the_time_changes_its_group(cluster, monkeypatch):
    monkeypatch.setattr(classic_waits, "_ADVANCE_S", 0.1)
    join(cluster, "g", "a")
    for name in ("b", "c", "d"):
        join(cluster, "g", name)
    join(cluster, "other", "o")

    def remove(group, now_ms):
        return leave(group, "b", None, now_ms)

    async with gateway_of(cluster) as gateway:
        for name in ("b", "c", "d"):
            gateway.wait("g", name, State.PREPARING)
        gateway.wait("other", "o")
        await gateway.quiet()
        await asyncio.to_thread(change, cluster.store, "g", remove)
        assert await gateway.woken() == ["b"]
        await asyncio.to_thread(expire, cluster, "a")
        [first] = await gateway.woken()
        assert first in ("c", "d")
        [second] = await gateway.woken()
        assert {first, second} == {"c", "d"}, "the first one has not changed the group"
        await asyncio.to_thread(cluster.store.transact, delete, announce=True)
        assert await gateway.woken() == ["o"]


async def test_a_damaged_group_does_not_delay_the_members_of_other_groups(cluster):
    for group_id in ("bad", "good"):
        join(cluster, group_id, group_id)
    damage = t.classic_group.update().where(t.classic_group.c.group_id == "bad").values(state="?")
    cluster.store.transact(lambda connection, _: connection.execute(damage))
    async with gateway_of(cluster) as gateway:
        for group_id in ("bad", "good"):
            gateway.wait(group_id, group_id)
        assert await gateway.woken() == ["bad"], "its next read of the store has the error"
        await asyncio.to_thread(join, cluster, "good", "other")
        assert await gateway.woken() == ["good"]


def expire(cluster, member_id):
    ended = t.classic_member.update().where(CLASSIC_MEMBER.member_id == member_id).values(until_ms=0)
    cluster.store.transact(lambda connection, _: connection.execute(ended), announce=True)


def delete(connection, _attempt):
    for table in (t.classic_member, t.classic_group):
        connection.execute(table.delete())
