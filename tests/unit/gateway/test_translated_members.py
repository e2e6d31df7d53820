"""A classic member in a group of consumers waits for its partitions, and keeps its session meanwhile."""

from itertools import pairwise
from types import SimpleNamespace

import pytest
from kafka.protocol.consumer import JoinGroupRequest
from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription

from spark_log.gateway.api import Client
from spark_log.gateway.groups import translated_members
from spark_log.gateway.groups.translated_members import Membership

SESSION_S = 0.9


class Gateway:
    """A gateway whose time passes only while the member waits. Other groups commit without end, if `busy`."""

    def __init__(self, monkeypatch, *, busy, complete_after=None):
        self.now_s, self.busy, self.complete_after = 0.0, busy, complete_after
        self.looks = []
        self.cluster = SimpleNamespace(store=None)
        self.changes, self.heartbeats = SimpleNamespace(current=None, wait=self.wait), self
        monkeypatch.setattr(translated_members, "clock", SimpleNamespace(monotonic_s=lambda: self.now_s))
        monkeypatch.setattr(translated_members, "asyncio", self)

    async def call(self, function, *arguments):
        if function == translated_members._joining_of:
            return function(*arguments)
        if function in (translated_members.join, translated_members._join_again):
            return Membership(1, "range", frozenset(), complete=len(self.looks) == self.complete_after)
        return None

    async def sleep(self, seconds):
        self.now_s += seconds

    async def wait(self, _seen, timeout_s):
        self.now_s += min(timeout_s, 0.001) if self.busy else timeout_s

    async def answer(self, _heartbeat):
        self.looks.append(self.now_s)
        return SimpleNamespace(alone=len(self.looks) == self.complete_after)


async def join(gateway, rebalance_s):
    metadata = ConsumerProtocolSubscription(version=0, topics=["t"], user_data=b"").encode()
    protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=metadata)
    request = JoinGroupRequest(
        group_id="g", session_timeout_ms=int(SESSION_S * 1000), rebalance_timeout_ms=int(rebalance_s * 1000),
        member_id="m", group_instance_id=None, protocol_type="consumer", protocols=[protocol], version=9,
    )  # fmt: skip
    await translated_members.join_group(gateway, request, Client("client", "host"))


@pytest.mark.parametrize("busy", [False, True])
async def test_a_member_that_waits_looks_three_times_in_its_session_and_no_longer_than_it_may_wait(monkeypatch, busy):
    gateway = Gateway(monkeypatch, busy=busy)
    await join(gateway, rebalance_s=10)
    times_s = [0.0, *gateway.looks]
    assert max(after - before for before, after in pairwise(times_s)) <= SESSION_S / 3 + 1e-9
    assert gateway.now_s == pytest.approx(10)


async def test_a_member_that_gets_its_partitions_is_answered_at_once(monkeypatch):
    gateway = Gateway(monkeypatch, busy=True, complete_after=5)
    await join(gateway, rebalance_s=10)
    assert gateway.now_s == gateway.looks[-1]
