"""The rules of membership, against clients that keep or revoke partitions, miss responses, and send late or no
heartbeats.
"""

import contextlib
import itertools
import random
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from spark_log.errors import FencedInstanceIdError, IllegalGenerationError, UnknownMemberIdError
from spark_log.groups.rules import (
    Group,
    HeartbeatRequest,
    Member,
    TopicFacts,
    check_commit,
    check_member,
    decide_heartbeat,
    depart,
    is_unchanged,
    join,
    notice_topics,
    rejoin_by,
    session_end,
    take_over,
)
from spark_log.ids import TopicPartition

T = frozenset({"t"})
P0, P1, P2 = (TopicPartition("t", number) for number in range(3))


def some(*partitions):
    return frozenset(partitions)


def test_member_gets_partitions_without_another_owner():
    beat = decide_heartbeat(Group(2, 2), Member(T, target=some(P0, P1)), HeartbeatRequest(1, T, some()), taken=[P1])
    assert beat.assignment.partitions == beat.member.assigned == some(P0)
    assert not beat.assignment.complete
    assert beat.member.generation == beat.assignment.generation == 2


@pytest.mark.parametrize(
    ("before_ms", "behind", "joined", "expected_ms"),
    [
        (None, False, False, None),  # nothing has changed
        (None, True, False, 160),  # a new target
        (120, True, False, 120),  # another one before it has joined again
        (120, True, True, 160),  # it has joined, and has partitions to give up
        (120, False, True, None),
    ],
)
def test_classic_member_must_join_again_within_its_rebalance_timeout(before_ms, behind, joined, expected_ms):
    assert rejoin_by(100, before_ms, 60, behind=behind, joined=joined) == expected_ms
    assert rejoin_by(100, None, 0, behind=True) is None, "other members have no such limit"


def test_session_ends_at_the_time_by_which_a_member_must_have_joined_again():
    assert [session_end(100, 30, by_ms) for by_ms in (None, 120, 140)] == [130, 120, 130]


def test_partition_outside_the_target_stays_assigned_until_the_member_revokes_it():
    member = Member(T, target=some(P1), assigned=some(P0, P1), generation=1)
    told = decide_heartbeat(Group(2, 2), member, HeartbeatRequest(1, T, some(P0, P1)), taken=[])
    assert told.assignment.partitions == some(P1)
    assert told.member.assigned == some(P0, P1)
    assert not told.assignment.complete
    done = decide_heartbeat(Group(2, 2), told.member, HeartbeatRequest(2, T, some(P1)), taken=[])
    assert done.revoked(told.member) == some(P0)
    assert done.assignment.complete


def test_stale_targets_assign_no_partition():
    member = Member(T, target=some(P0, P1), assigned=some(P0))
    beat = decide_heartbeat(Group(3, 2), member, HeartbeatRequest(1, T, some(P0)), taken=[])
    assert beat.assignment.partitions == some(P0)
    assert not beat.assignment.complete
    assert beat.assignment.generation == 2


def test_new_subscription_starts_a_generation_and_revokes_old_topics():
    member = Member(T, target=some(P0), assigned=some(P0))
    beat = decide_heartbeat(Group(2, 2), member, HeartbeatRequest(1, frozenset({"u"}), some(P0)), taken=[])
    assert beat.group == Group(3, 2)
    assert beat.assignment.partitions == some()
    assert beat.member.assigned == some(P0)


def test_heartbeat_after_a_later_one_is_refused():
    with pytest.raises(IllegalGenerationError, match="too late"):
        decide_heartbeat(Group(1, 1), Member(T, beat=4), HeartbeatRequest(4, T, some()), taken=[])


def test_missed_response_is_repeated_and_its_heartbeat_is_written():
    group, member = Group(1, 1), Member(T, target=some(P0), assigned=some(P0), generation=1, beat=3)
    missed, knows = HeartbeatRequest(5, T, some()), HeartbeatRequest(5, T, some(P0))
    assert not is_unchanged(group, member, missed, decide_heartbeat(group, member, missed, []))
    assert decide_heartbeat(group, member, missed, []).assignment.partitions == some(P0)
    assert is_unchanged(group, member, knows, decide_heartbeat(group, member, knows, []))


def test_claim_to_an_unassigned_partition_is_not_confirmed():
    beat = decide_heartbeat(
        Group(1, 1), Member(T, target=some(P0), assigned=some(P0)), HeartbeatRequest(1, T, some(P0, P2)), taken=[]
    )
    assert beat.assignment.partitions == beat.member.assigned == some(P0)


def test_returning_static_member_keeps_the_generation_unless_its_subscription_changed():
    old = Member(T, target=some(P0), assigned=some(P0), generation=5, beat=9)
    assert take_over(Group(5, 5), old, T, same_assignors=True) == (Group(5, 5), Member(T, old.target, old.assigned, 5))
    assert take_over(Group(5, 5), old, frozenset({"u"}), same_assignors=True)[0] == Group(6, 5)
    assert take_over(Group(5, 5), old, T, same_assignors=False)[0] == Group(6, 5)
    assert take_over(Group(5, 4), old, T, same_assignors=True)[0] == Group(6, 4), (
        "a target may be on its way to the old"
    )


def test_departure_of_the_last_member_leaves_no_stale_target():
    assert depart(Group(5, 5), left=0) == Group(6, 6)
    assert depart(Group(5, 5), left=1) == Group(6, 5)


@pytest.mark.parametrize("now", [{}, {"t": TopicFacts(1, 3)}, {"t": TopicFacts(2, 2)}])
def test_deleted_enlarged_or_recreated_topic_starts_a_generation(now):
    assumed = {"t": TopicFacts(1, 2)}
    assert notice_topics(Group(4, 4), assumed, now, T) == Group(5, 4)
    assert notice_topics(Group(4, 4), assumed, assumed, T) == Group(4, 4)
    assert notice_topics(Group(4, 3), assumed, now, T) == Group(4, 3), "stale already"


def test_only_a_live_member_of_the_current_generation_may_commit():
    check_commit("g", 3, 3, {})
    with pytest.raises(IllegalGenerationError, match="generation 2"):
        check_commit("g", 3, 2, {})
    with pytest.raises(IllegalGenerationError, match="t-1 belongs to m"):
        check_commit("g", 3, 3, {P1: "m"})
    check_member("g", "m", live=True, fenced=False)
    with pytest.raises(UnknownMemberIdError):
        check_member("g", "m", live=False, fenced=False)
    with pytest.raises(FencedInstanceIdError):
        check_member("g", "m", live=False, fenced=True)


@dataclass
class Client:
    """A consumer: `held` are the partitions that it may be reading at this moment."""

    name: str
    instance: str | None
    topics: frozenset[str]
    held: set = field(default_factory=set)
    allowed: frozenset = frozenset()
    generation: int = -1
    number: int = 0


class Consumers(RuleBasedStateMachine):
    """Up to five consumers of two topics. The store is `group`, `members` and `assumed`."""

    @initialize()
    def start(self):
        self.group = Group()
        self.members = {}
        self.assumed = {}
        self.facts = {"t": TopicFacts(1, 3), "u": TopicFacts(2, 1)}
        self.clients = {}
        self.on_the_way = []
        self.computing = []
        self.names = (f"m{n}" for n in itertools.count())
        for instance, topics in ((None, T), ("i", T), (None, frozenset("tu"))):
            self.a_consumer_joins(instance, topics)
            self.write(self.compute(random.Random(1)))
            self.all_clients_send_a_heartbeat()

    # the transactions around the rules

    def deliver(self, client, request):
        """A heartbeat arrives. Returns its response, or raises."""
        member = self.members.get(client.name)
        check_member("g", client.name, live=member is not None, fenced=False)
        kept = request.topics & member.topics
        group = notice_topics(self.group, self.assumed, self.facts, kept)
        taken = {p for name, other in self.members.items() if name != client.name for p in other.assigned}
        beat = decide_heartbeat(group, member, request, taken & member.target)
        if not (group == self.group and is_unchanged(group, member, request, beat)):
            self.group, self.members[client.name] = beat.group, beat.member
        return beat.assignment

    def request(self, client):
        client.number += 1
        return HeartbeatRequest(client.number, client.topics, frozenset(client.held))

    def remove(self, name):
        del self.members[name]
        self.group = depart(self.group, left=len(self.members))

    def compute(self, chance):
        """Read a snapshot, and compute a random complete assignment for it."""
        target = {name: set() for name in self.members}
        for topic, facts in self.facts.items():
            able = sorted(name for name, member in self.members.items() if topic in member.topics)
            for number in range(facts.partition_count if able else 0):
                target[chance.choice(able)].add(TopicPartition(topic, number))
        return self.group.generation, {name: frozenset(to) for name, to in target.items()}, dict(self.facts)

    def write(self, computed):
        generation, target, facts = computed
        if self.group.generation != generation or not self.group.stale:
            return
        for name, to in target.items():
            self.members[name] = replace(self.members[name], target=to)
        self.group, self.assumed = Group(generation, generation), facts

    def notify(self, client, assignment):
        client.allowed, client.generation = assignment.partitions, assignment.generation
        client.held |= assignment.partitions

    # events

    @precondition(lambda self: len(self.clients) < 5)
    @rule(
        instance=st.sampled_from([None, None, "i", "j"]), topics=st.sampled_from([T, frozenset("tu"), frozenset("u")])
    )
    def a_consumer_joins(self, instance, topics):
        client = Client(next(self.names), instance, topics)
        old = next((c for c in self.clients.values() if instance and c.instance == instance), None)
        if old is not None and old.name in self.members:
            self.group, member = take_over(self.group, self.members.pop(old.name), topics, same_assignors=True)
        else:
            self.group, member = join(self.group, topics)
        if old is not None:
            del self.clients[old.name]  # fenced: it continues to read until its next heartbeat, and may not commit
        self.members[client.name] = member
        self.clients[client.name] = client

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), lost=st.sampled_from([False, False, True]))
    def a_heartbeat(self, data, lost):
        self.beat(self.any_client(data), lost)

    @precondition(lambda self: self.clients)
    @rule()
    def all_clients_send_a_heartbeat(self):
        for client in list(self.clients.values()):
            self.beat(client, lost=False)

    def beat(self, client, lost):
        request = self.request(client)
        try:
            assignment = self.deliver(client, request)
        except UnknownMemberIdError:
            assert client.name not in self.members
            del self.clients[client.name]
        else:
            assert assignment.partitions <= self.members[client.name].assigned
            if not lost:
                self.notify(client, assignment)
                self.a_partition_has_one_owner_at_most()

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def a_heartbeat_is_delayed(self, data):
        client = self.any_client(data)
        self.on_the_way.append((client, self.request(client)))

    @precondition(lambda self: self.on_the_way)
    @rule(data=st.data())
    def a_heartbeat_arrives_late(self, data):
        client, request = self.on_the_way.pop(data.draw(st.integers(0, len(self.on_the_way) - 1)))
        with contextlib.suppress(UnknownMemberIdError, IllegalGenerationError):  # its response is not received
            self.deliver(client, request)

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def a_consumer_revokes(self, data):
        client = self.any_client(data)
        client.held &= client.allowed

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), topics=st.sampled_from([T, frozenset("tu"), frozenset("u"), frozenset()]))
    def a_consumer_changes_its_subscription(self, data, topics):
        self.any_client(data).topics = topics

    @precondition(lambda self: self.members)
    @rule(data=st.data(), leaves=st.booleans())
    def a_session_ends(self, data, leaves):
        name = data.draw(st.sampled_from(sorted(self.members)))
        self.remove(name)
        if leaves:
            del self.clients[name]

    @rule(topic=st.sampled_from("tu"), count=st.integers(1, 4))
    def a_topic_grows(self, topic, count):
        old = self.facts.get(topic, TopicFacts(9, 0))
        self.facts[topic] = TopicFacts(old.topic_id, max(count, old.partition_count))

    @precondition(lambda self: "u" in self.facts)
    @rule()
    def a_topic_is_deleted(self):
        del self.facts["u"]

    @rule(chance=st.randoms(use_true_random=False))
    def a_target_computation_begins(self, chance):
        self.computing.append(self.compute(chance))

    @precondition(lambda self: self.group.stale)
    @rule(chance=st.randoms(use_true_random=False))
    def a_target_is_computed_and_written_at_once(self, chance):
        self.write(self.compute(chance))

    @precondition(lambda self: self.computing)
    @rule(data=st.data())
    def a_computed_target_is_written(self, data):
        self.write(self.computing.pop(data.draw(st.integers(0, len(self.computing) - 1))))

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), back=st.integers(-1, 1))
    def a_commit(self, data, back):
        client = self.any_client(data)
        if not client.held:
            return
        partition = data.draw(st.sampled_from(sorted(client.held)))
        owners = [n for n, m in self.members.items() if n != client.name and partition in m.assigned]
        others = dict.fromkeys([partition], owners[0]) if owners else {}
        zombie = client.name not in self.members
        try:
            member = self.members.get(client.name)
            check_member("g", client.name, live=member is not None, fenced=False)
            check_commit("g", member.generation, client.generation + back, others)
        except UnknownMemberIdError:
            assert zombie
        except IllegalGenerationError:
            assert member.generation != client.generation + back, "a member commits what it holds"
        else:
            assert not others
            assert not zombie
            assert back == 0 or member.generation == client.generation + back

    def any_client(self, data):
        return self.clients[data.draw(st.sampled_from(sorted(self.clients)))]

    # invariants

    @invariant()
    def a_partition_has_one_owner_at_most(self):
        held = [p for client in self.clients.values() if client.name in self.members for p in client.held]
        assert len(held) == len(set(held)), "two members may be reading the same partition"
        assigned = [p for member in self.members.values() for p in member.assigned]
        assert len(assigned) == len(set(assigned))

    @invariant()
    def held_partitions_are_assigned_in_the_store(self):
        for client in self.clients.values():
            if client.name in self.members:
                assert client.held <= self.members[client.name].assigned

    @invariant()
    def generations_only_grow(self):
        assert self.group.target_generation <= self.group.generation
        seen = getattr(self, "seen", Group())
        assert (self.group.generation, self.group.target_generation) >= (seen.generation, seen.target_generation)
        self.seen = self.group

    def teardown(self):
        """Without further events the group becomes stable: every subscribed partition has an owner."""
        if not hasattr(self, "group"):
            return
        for _ in range(12):
            complete = []
            for client in list(self.clients.values()):
                try:
                    assignment = self.deliver(client, self.request(client))
                except UnknownMemberIdError:
                    del self.clients[client.name]
                    continue
                self.notify(client, assignment)
                self.a_partition_has_one_owner_at_most()
                client.held &= client.allowed
                complete.append(assignment.complete)
                assert not assignment.complete or client.held == self.members[client.name].target
            self.write(self.compute(random.Random(0)))
        assert all(complete)
        assert not self.group.stale
        members = [client for client in self.clients.values() if client.name in self.members]
        subscribed = {topic for client in members for topic in client.topics} & self.facts.keys()
        wanted = {TopicPartition(t, n) for t in subscribed for n in range(self.facts[t].partition_count)}
        assert sorted(p for client in members for p in client.held) == sorted(wanted)


Consumers.TestCase.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
TestConsumers = Consumers.TestCase
