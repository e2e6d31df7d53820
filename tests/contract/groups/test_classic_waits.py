"""Classic members wait at one gateway: what a change of the store costs, and which of them wake."""

import asyncio
import contextlib
from dataclasses import replace

import pytest
from kafka.protocol.consumer import JoinGroupRequest
from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription

from spark_log.cluster.cluster import Cluster
from spark_log.gateway.api import Client
from spark_log.gateway.change_watch import ChangeWatch
from spark_log.gateway.groups import classic_waits, translated_members
from spark_log.gateway.groups.classic_waits import ClassicWaits, WaitingMember
from spark_log.gateway.groups.heartbeat_sharing import Heartbeats
from spark_log.groups.assignors import known_assignors
from spark_log.groups.classic.group import Joining, State
from spark_log.groups.classic.rules import leave
from spark_log.groups.classic.service import change, join_classic
from spark_log.groups.committed_offsets import commit_offsets
from spark_log.groups.consumer.heartbeat import ConsumerHeartbeat
from spark_log.groups.consumer.service import consumer_heartbeat
from spark_log.groups.identity import Identity
from spark_log.ids import TopicPartition
from spark_log.metadata import tables as t
from tests.support.group_members import move_session_end
from tests.support.topics import make

GROUPS = 300
"""More than one statement asks for."""


def join(cluster, group_id, member_id):
    """The first member of a group begins a generation; after a further one, the first must join again."""
    protocols = (("p", b"metadata"),)
    request = Joining("", member_id, None, "client", "host", "connect", protocols, 100_000, 100_000)
    return join_classic(cluster.store, group_id, request)


class Gateway:
    """The members that wait at one, by name. `reads` has the numbers of members that each read of the store was for."""

    def __init__(self, cluster):
        self.cluster, store = cluster, cluster.store
        self.changes = ChangeWatch(store, asyncio.get_running_loop())
        self.heartbeats = Heartbeats(store, self.call)
        self.waits = ClassicWaits(store, self.changes, self.call)
        self.members = {}
        self.calls = 0
        self.reads = []
        self.looks = 0

    async def call(self, function, *arguments):
        self.calls += 1
        result = await asyncio.to_thread(function, *arguments)
        self.looks += function == self.changes.current
        if function == self.waits._look:
            self.reads.append(len(arguments[0]))
        return result

    def wait(self, group_id, member_id, state=State.COMPLETING, before_last_change=1):
        """`before_last_change` is how many changes ago the member has read its group."""
        member, seen = WaitingMember(group_id, member_id, state, 1), self.changes.current() - before_last_change
        self.members[member_id] = asyncio.create_task(self.waits.wait(member, seen, None, 60))

    async def woken(self):
        """The members that wake first."""
        done, _ = await asyncio.wait(self.members.values(), timeout=60, return_when=asyncio.FIRST_COMPLETED)
        names = [name for name, task in self.members.items() if task in done]
        for name in names:
            del self.members[name]
        return names

    async def after_look(self, action, *arguments):
        """Call the action, and wait until a member that waits by itself has looked for changes once more."""
        before = self.looks
        await asyncio.to_thread(action, *arguments)
        while self.looks == before:
            await asyncio.sleep(0.01)

    async def quiet(self):
        """Until what was committed is read: PostgreSQL announces commits a moment later."""
        before = None
        while len(self.reads) != before:
            before = len(self.reads)
            await asyncio.sleep(0.5)


@contextlib.asynccontextmanager
async def gateway_of(cluster):
    gateway = Gateway(cluster)
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
        assert 1 <= len(gateway.reads) - reads <= 3 and gateway.calls - calls <= 3
        assert set(gateway.reads[reads:]) <= {GROUPS}
        await gateway.quiet()
        reads = len(gateway.reads)
        gateway.wait("g7", "m7", State.PREPARING, before_last_change=0)
        await gateway.quiet()
        assert gateway.reads[reads:] == [], "the groups that have not changed are not read for a member of another"


async def test_members_that_are_removed_wake_and_one_wakes_when_the_time_changes_its_group(cluster, monkeypatch):
    monkeypatch.setattr(classic_waits, "_ADVANCE_MS", 100)
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
        await asyncio.to_thread(move_session_end, cluster.store, "a", 0)
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
    cluster.store.transact(lambda connection: connection.execute(damage))
    async with gateway_of(cluster) as gateway:
        for group_id in ("bad", "good"):
            gateway.wait(group_id, group_id)
        assert await gateway.woken() == ["bad"], "its next read of the store has the error"
        await asyncio.to_thread(join, cluster, "good", "other")
        assert await gateway.woken() == ["good"]


def delete(connection):
    for table in (t.classic_member, t.classic_group):
        connection.execute(table.delete())


async def test_a_member_that_waits_for_others_writes_nothing_while_other_groups_commit(
    cluster, cluster_address, monkeypatch
):
    """It is a classic member in a group of consumers, and waits until another one has revoked a partition."""
    monkeypatch.setattr(translated_members, "_PAUSE_S_MAX", 0.02)
    make(cluster, "t", 2)

    async def beat(**changes):
        return await asyncio.to_thread(consumer_heartbeat, cluster.store, replace(owner, **changes), known_assignors())

    def commit(number):
        commit_offsets(cluster.store, "other", {TopicPartition("t", 0): number})
        cluster.store.changes.announce()

    me = Identity("g", "owner", None, "client", "host", 100_000)
    owner = ConsumerHeartbeat(
        me, "connection", 0, rebalance_timeout_ms=300_000, names=frozenset({"t"}), owned=frozenset()
    )
    told = await beat()
    metadata = ConsumerProtocolSubscription(version=0, topics=["t"], user_data=b"").encode()
    protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=metadata)
    request = JoinGroupRequest(
        group_id="g", session_timeout_ms=300_000, rebalance_timeout_ms=300_000, member_id="late",
        group_instance_id=None, protocol_type="consumer", protocols=[protocol], version=9,
    )  # fmt: skip
    with Cluster.open(cluster_address) as there:
        writes, transact = [], there.store.transact
        monkeypatch.setattr(
            there.store, "transact", lambda *args, **named: writes.append(1) or transact(*args, **named)
        )
        async with gateway_of(there) as gateway:
            joining = asyncio.create_task(translated_members.join_group(gateway, request, Client("client", "host")))
            while told.partitions is None or len(told.partitions) > 1:
                told = await beat(epoch=told.epoch, names=None, rebalance_timeout_ms=None, owned=None)
            for number in range(6):
                if number == 3:
                    writes.clear()  # the member knows by now what it lacks
                await gateway.after_look(commit, number)
            assert not joining.done() and writes == []
            await beat(epoch=told.epoch, owned=told.partitions)
            assert (await joining).error_code == 0
