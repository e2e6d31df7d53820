"""Many members of both group protocols join, leave and die at two gateways, one of which is killed again and again."""

import contextlib
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from spark_log.cluster.settings import alter_settings
from spark_log.facts.groups import describe_groups
from spark_log.groups.assignors import known_assignors
from spark_log.groups.consumer.reconciliation import reconcile_group
from spark_log.metadata import tables as t
from tests.support.classic_members import ClassicMember
from tests.support.consumer_members import ConsumerMember, topic_ids
from tests.support.gateway_wire import WireConnection, commit_request, committed
from tests.support.stores import count_rows
from tests.support.topics import make
from tests.support.waiting import Worker, wait_until

PARTITIONS, MEMBERS, SURVIVORS, SESSION_MS = 12, 8, 4, 3_000
CHURN_S = 3.0
UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID = 25, 82
GONE = (OSError, AssertionError)
"""Errors of a connection to a gateway that was killed."""


class Ownership:
    """The partitions that living members believe to have."""

    def __init__(self):
        self._lock, self._owners, self.twice = threading.Lock(), {}, []

    def claim(self, member, partitions):
        with self._lock:
            for number in [each for each, owner in self._owners.items() if owner is member]:
                del self._owners[number]
            for number in partitions:
                owner = self._owners.get(number)
                if owner is not None and time.monotonic() - owner.heard_s < SESSION_MS / 1000:
                    self.twice.append((number, member, owner))
                self._owners[number] = member

    def numbers(self):
        with self._lock:
            return sorted(self._owners)


class Life(Worker):
    """A place that members take one after the other, each of a random protocol, until `settle`; then one stays."""

    def __init__(self, seed, assignor, ports, ids, ownership):
        self.kinds = (assignor, "consumer")
        self.random, self.ports, self.ids, self.ownership = random.Random(seed), ports, ids, ownership
        self.settle, self.settled = threading.Event(), False
        self.instance_id = f"place-{seed}" if seed % 4 == 0 else None
        self.heard_s = 0.0
        """When it sent the last request that was answered: its session goes on from then."""
        super().__init__(self.run)

    def run(self, stop):
        while not stop.is_set():
            with contextlib.suppress(*GONE):
                self.live(self.random.choice(self.kinds), stop)
            self.ownership.claim(self, ())

    def connect(self):
        return WireConnection(self.random.choice(self.ports), timeout_s=10)

    def live(self, kind, stop):
        """Until the member leaves, or vanishes as a killed process does: its sockets close, and nothing is said."""
        wire = self.connect()
        try:
            if kind == "consumer":
                member = ConsumerMember(wire, "g", self.ids, instance_id=self.instance_id, subscribed_topic_names=["t"])
                alive = self.beat_consumer
                member.join()
            else:
                member = ClassicMember(
                    wire, "g", ["t"], assignor=kind, session_timeout_ms=SESSION_MS, instance_id=self.instance_id
                )
                alive = self.beat_classic
            beats = self.random.randint(0, 40)
            while not stop.is_set() and (beats > 0 or self.settle.is_set()):
                beats -= 1
                sent_s = time.monotonic()
                if not alive(member):
                    return
                self.heard_s = sent_s
                time.sleep(0.05)
            if stop.is_set() or self.random.random() < 0.4:
                self.ownership.claim(self, ())
                member.leave()
        finally:
            wire.__exit__()

    def beat_classic(self, member):
        code = member.beat() if member.member_id else -1
        if code == 0:
            self.settled = True
            return True
        self.settled = False
        if member._protocol == "range":  # an eager member gives everything up before it joins again
            member.owned = {}
            self.ownership.claim(self, ())
        if code in (UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID) or member.join() != 0:
            return code == -1
        if member.sync() == 0:
            self.ownership.claim(self, member.owned.get("t", ()))
        return True

    def beat_consumer(self, member):
        before = member.owned
        answer = member.beat(owned=True)
        if answer.error_code in (14, 15, 16):
            return True
        if answer.error_code:
            return False
        self.settled = member.owned == before
        self.ownership.claim(self, member.owned.get("t", ()))
        return True


@pytest.fixture(autouse=True)
def topic(cluster):
    """Topic t, and short sessions."""
    make(cluster, "t", PARTITIONS)
    times = {"group.consumer.heartbeat.interval.ms": "100", "group.consumer.session.timeout.ms": f"{SESSION_MS}"}
    alter_settings(cluster, times)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cluster_address", "assignor"),
    [("sqlite", "cooperative-sticky"), ("postgres", "range")],
    indirect=["cluster_address"],
)
def test_a_group_converges_after_members_and_gateways_were_killed(cluster, gateways, assignor):
    """Each store and each assignor once: the store does not know the assignor."""
    with WireConnection(gateways[0].port) as wire:
        ids = topic_ids(wire, "t")
    ownership = Ownership()
    ports = [each.port for each in gateways]
    lives = [Life(seed, assignor, ports, ids, ownership) for seed in range(MEMBERS)]
    try:
        ends_s = time.monotonic() + CHURN_S
        while time.monotonic() < ends_s:
            time.sleep(1)
            gateways[1].kill()
            gateways[1].start()
        for life in lives[:SURVIVORS]:
            life.settle.set()
        for life in lives[SURVIVORS:]:
            life.finish()
        survivors = lives[:SURVIVORS]

        def converged():
            return (
                all(life.settled for life in survivors)
                and ownership.numbers() == list(range(PARTITIONS))
                and members(cluster) == SURVIVORS
            )

        wait_until(converged, f"{[life.settled for life in survivors]} {ownership.numbers()}")
        [group] = describe_groups(cluster.store, ["g"])
        assert sorted(p.partition for each in group.members for p in each.assignment) == list(range(PARTITIONS))
    finally:
        for life in lives:
            life.finish()
    assert ownership.twice == []

    def nothing_left():
        reconcile_group(cluster.store, "g", known_assignors())  # as a coordinator ends the sessions of killed members
        return members(cluster) == count_rows(cluster.store, t.group_partition) == 0

    wait_until(nothing_left, "rows are left")
    assert all("Traceback" not in each.output for each in gateways)


def test_of_members_that_join_with_one_instance_id_at_once_one_stays(cluster, gateways):
    """A stranger with the instance id of a member takes its place (KIP-345), and never a second one beside it."""
    with contextlib.ExitStack() as stack:
        members = [
            ClassicMember(stack.enter_context(WireConnection(gateways[n % 2].port)), "g", ["t"], instance_id="i")
            for n in range(MEMBERS)
        ]
        with ThreadPoolExecutor(MEMBERS) as pool:
            joined = list(pool.map(ClassicMember.join, members))
            synced = list(pool.map(ClassicMember.sync, members))
        assert count_rows(cluster.store, t.classic_member) == 1
        beats = [member.beat() for member in members]
        [owner] = [member for member, code in zip(members, beats, strict=True) if code in (0, 27)]
        assert set(beats) - {0, 27} <= {UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID}, (joined, synced, beats)
        owner.settle()
        assert owner.owned == {"t": list(range(PARTITIONS))}
        for member in members:
            for instance_id in ("i", None):  # without the instance id it is not fenced, but it is no member either
                member.instance_id = instance_id
                expected = {0} if member is owner else {UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID}
                assert {commit(member)} <= expected and (member is owner or member.sync() in expected)
        assert count_rows(cluster.store, t.classic_member) == 1 and owner.beat() == 0


def commit(member):
    who = {
        "generation_id_or_member_epoch": member.generation, "member_id": member.member_id,
        "group_instance_id": member.instance_id,
    }  # fmt: skip
    return committed(member.wire, commit_request("g", "t", **who))


def members(cluster):
    return count_rows(cluster.store, t.group_member) + count_rows(cluster.store, t.classic_member)
