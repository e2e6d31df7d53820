"""Members of the consumer protocol in one group, over several gateways: late, lost and repeated heartbeats, members
that are killed, static members that come back or are replaced.
"""

import contextlib
import itertools
import random
from dataclasses import dataclass, replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from spark_log.errors import FencedMemberEpochError, UnknownMemberIdError, UnreleasedInstanceIdError
from spark_log.groups.consumer.rules import (
    JOINING,
    LEAVING_FOR_A_WHILE,
    NO_PARTITIONS,
    EpochRequest,
    EpochState,
    Group,
    TopicFacts,
    check_released,
    decide_epoch_heartbeat,
    depart,
    join_epoch,
    leave_for_a_while,
    notice_topics,
)
from spark_log.ids import TopicPartition

TOPICS = [frozenset("t"), frozenset("tu"), frozenset("u")]
REBALANCE_MS = 10


@dataclass
class Client:
    """A Kafka client: one request is under way at most; after an error or a lost answer it connects anew and says
    everything. `held`: what it may be reading.
    """

    name: str
    topics: frozenset[str]
    instance: str | None = None
    replaces: bool = False
    """It takes the place of a live member with its instance id, as consumers of spark-log do."""
    joined: bool = False
    connection: int = 0
    epoch: int = JOINING
    held: frozenset = NO_PARTITIONS
    target: frozenset = NO_PARTITIONS
    report: bool = True
    """It says with its next heartbeat what it owns."""
    told_anew: bool = False
    """It has another target than it had, and says so when it has reconciled, also if it owns the same."""
    said: frozenset[str] | None = None
    """The subscription that the group knows."""


@dataclass(frozen=True)
class Sent:
    """A request on its way."""

    client: Client
    connection_id: str
    epoch: int
    topics: frozenset[str] | None
    owned: frozenset | None


@dataclass
class Answer:
    epoch: int
    current: frozenset | None


class Repeat(Exception):
    """COORDINATOR_NOT_AVAILABLE."""


class Consumers(RuleBasedStateMachine):
    """The store is `group`, `members` (by name), `states` (of members of the consumer protocol), `assumed`."""

    @initialize()
    def start(self):
        self.group, self.assumed = Group(), {}
        self.facts = {"t": TopicFacts(1, 3), "u": TopicFacts(2, 1)}
        self.members, self.states, self.instances = {}, {}, {}
        self.clients, self.late = {}, []
        self.names = (f"m{n}" for n in itertools.count())
        self.now_ms = 0

    # the transactions around the rules

    def deliver(self, sent):
        """A heartbeat of the consumer protocol arrives. Its transactions, with the target computed between them."""
        client, trusted = sent.client, True
        for last in (False, True):
            self.end_late_revocations(keep=client.name)
            if client.name not in self.members:
                if sent.epoch != JOINING:
                    raise UnknownMemberIdError
                self.join(sent)
            state, member = self.states[client.name], self.members[client.name]
            epoch = member.generation if sent.epoch is None else sent.epoch
            check = EpochRequest(epoch, sent.owned, sent.connection_id, trusted)
            decide_epoch_heartbeat(self.group, member, state, check, self.taken(client.name), self.now_ms)  # fenced?
            trusted = trusted and state.connection_id == sent.connection_id
            if sent.topics is not None and sent.topics != member.topics:
                self.group = self.group.changed()
                member = self.members[client.name] = replace(member, topics=sent.topics)
            self.group = notice_topics(self.group, self.assumed, self.facts, member.topics)
            if not self.group.stale or last:
                break
            self.write(self.compute(random.Random(len(self.members))))
        before = state.current
        found = decide_epoch_heartbeat(
            self.group, member, state, EpochRequest(epoch, sent.owned, sent.connection_id, trusted),
            self.taken(client.name), self.now_ms,
        )  # fmt: skip
        self.members[client.name], self.states[client.name] = found.member, found.state
        if found.repeat or (found.member.generation == JOINING and not client.replaces):
            raise Repeat
        full = sent.topics is not None and sent.owned is not None
        current = found.state.current if full or found.state.current != before or not trusted else None
        return Answer(found.member.generation, current)

    def join(self, sent):
        client = sent.client
        holder = self.instances.get(client.instance) if client.instance else None
        old = self.members.get(holder)
        current = NO_PARTITIONS
        if old is not None:
            if not client.replaces:
                check_released(client.name, client.instance, holder, old.generation)
            if old.generation != LEAVING_FOR_A_WHILE:
                current = old.assigned
            del self.members[holder], self.states[holder]
        self.group, self.members[client.name] = join_epoch(self.group, sent.topics, old)
        self.states[client.name] = EpochState(sent.connection_id, REBALANCE_MS, current=current)
        if client.instance:
            self.instances[client.instance] = client.name

    def taken(self, name):
        return [p for other, member in self.members.items() if other != name for p in member.assigned]

    def end_late_revocations(self, keep=None):
        for name, state in list(self.states.items()):
            if name != keep and state.revoke_by_ms is not None and state.revoke_by_ms <= self.now_ms:
                self.remove(name)

    def remove(self, name):
        del self.members[name]
        self.states.pop(name, None)
        self.instances = {key: value for key, value in self.instances.items() if value != name}
        self.group = depart(self.group, left=len(self.members))

    def compute(self, chance):
        target = {name: set() for name in self.members}
        for topic, facts in self.facts.items():
            able = sorted(name for name, member in self.members.items() if topic in member.topics)
            for number in range(facts.partition_count if able else 0):
                target[chance.choice(able)].add(TopicPartition(topic, number))
        return self.group.generation, {name: frozenset(to) for name, to in target.items()}, dict(self.facts)

    def write(self, computed):
        generation, target, facts = computed
        if self.group.generation == generation and self.group.stale:
            for name, to in target.items():
                self.members[name] = replace(self.members[name], target=to)
            self.group, self.assumed = Group(generation, generation), facts

    # Kafka clients

    def send(self, client):
        full = client.epoch == JOINING or client.said is None
        topics = client.topics if full or client.said != client.topics else None
        owned = client.held if full or client.report else None
        client.said, client.report = client.topics, False
        epoch = None if client.replaces and client.joined and client.epoch == JOINING else client.epoch
        return Sent(client, f"{client.name}/{client.connection}", epoch, topics, owned)

    def say_everything(self, client, *, reconnect):
        client.connection += reconnect
        client.said, client.report = None, True

    def exchange(self, client, lost, *, busy=False):
        """`busy`: the client gets on with its last assignment while the request is on its way."""
        sent = self.send(client)
        if busy:
            self.reconcile(client)
        try:
            answer = self.deliver(sent)
        except (UnknownMemberIdError, FencedMemberEpochError):
            if client.instance and self.instances.get(client.instance, client.name) != client.name:
                del self.clients[client.name]  # fenced by the one that has replaced it
            else:
                self.abandon(client)
            return False
        except UnreleasedInstanceIdError:
            del self.clients[client.name]
            return False
        except Repeat:
            self.say_everything(client, reconnect=False)
            return False
        if lost:
            self.say_everything(client, reconnect=True)
        else:
            self.accept(client, answer)
        return not lost

    def accept(self, client, answer):
        client.epoch, client.joined = answer.epoch, True
        if answer.current is not None and answer.current != client.target:
            client.target, client.told_anew = answer.current, True

    def abandon(self, client):
        client.epoch, client.held, client.target, client.told_anew = JOINING, NO_PARTITIONS, NO_PARTITIONS, False
        client.joined = False
        self.say_everything(client, reconnect=False)
        if client.name in self.members:  # Kafka fences it again until its session ends
            self.remove(client.name)

    def reconcile(self, client):
        if client.joined and client.told_anew:
            client.held, client.report, client.told_anew = client.target, True, False

    @precondition(lambda self: len(self.clients) < 5)
    @rule(topics=st.sampled_from(TOPICS), instance=st.sampled_from([None, None, "i"]), replaces=st.booleans())
    def a_client_joins(self, topics, instance, replaces):
        client = Client(next(self.names), topics, instance, replaces)
        self.clients[client.name] = client
        self.exchange(client, lost=False)

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), lost=st.sampled_from([False, False, True]), busy=st.booleans())
    def a_heartbeat(self, data, lost, busy):
        self.exchange(self.any_client(data), lost, busy=busy)

    @precondition(lambda self: self.clients)
    @rule()
    def all_send_heartbeats(self):
        for client in list(self.clients.values()):
            self.exchange(client, lost=False)

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def a_heartbeat_is_delayed(self, data):
        """Its connection breaks, or its gateway is paused: the client goes on with another one."""
        client = self.any_client(data)
        self.late.append(self.send(client))
        self.say_everything(client, reconnect=True)

    @precondition(lambda self: self.late)
    @rule(data=st.data())
    def a_heartbeat_arrives_late(self, data):
        sent = self.late.pop(data.draw(st.integers(0, len(self.late) - 1)))
        known = sent.client.name in self.members
        if not known and (sent.epoch != JOINING or sent.client.instance or sent.client.name not in self.clients):
            return
        with contextlib.suppress(UnknownMemberIdError, FencedMemberEpochError, Repeat):
            self.deliver(sent)  # its answer reaches nobody

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def a_client_reconciles(self, data):
        self.reconcile(self.any_client(data))

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), topics=st.sampled_from(TOPICS))
    def a_client_subscribes(self, data, topics):
        self.any_client(data).topics = topics

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), how=st.sampled_from(["killed", "left", "left for a while"]))
    def a_client_ends(self, data, how):
        client = self.any_client(data)
        member = self.members.get(client.name)
        if how == "killed" and member is not None:
            self.remove(client.name)  # its session ends
        elif how == "left for a while" and client.instance and member is not None:
            self.members[client.name], self.states[client.name] = leave_for_a_while(member, self.states[client.name])
        elif member is not None:
            self.remove(client.name)
        del self.clients[client.name]

    @rule(ms=st.integers(1, REBALANCE_MS))
    def time_passes(self, ms):
        self.now_ms += ms
        self.end_late_revocations()
        for client in list(self.clients.values()):  # one that is removed notices before others get its partitions
            if client.joined and client.name not in self.members:
                self.abandon(client)

    # the group

    @rule(topic=st.sampled_from("tu"), count=st.integers(1, 4))
    def a_topic_grows(self, topic, count):
        old = self.facts.get(topic, TopicFacts(9, 0))
        self.facts[topic] = TopicFacts(old.topic_id, max(count, old.partition_count))

    @precondition(lambda self: self.group.stale and self.members)
    @rule(chance=st.randoms(use_true_random=False))
    def a_target_is_computed(self, chance):
        self.write(self.compute(chance))

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
    def what_a_member_may_read_is_assigned(self):
        for client in self.clients.values():
            if client.name in self.members:
                assigned = self.members[client.name].assigned
                assert client.held <= assigned
                assert not client.joined or client.target <= assigned
        for name, state in self.states.items():
            assert state.current <= self.members[name].assigned

    def teardown(self):
        """Without further faults, every subscribed partition has an owner, and all members are in the same epoch."""
        if not hasattr(self, "group"):
            return
        for name, member in list(self.members.items()):
            if name not in self.clients:
                self.remove(name)  # the session of a static member that does not return
            assert member is not None
        for _ in range(14):
            for client in list(self.clients.values()):
                if self.exchange(client, lost=False):
                    self.reconcile(client)
            self.a_partition_has_one_owner_at_most()
        assert not self.group.stale
        if not self.members:
            return
        topics = {topic for member in self.members.values() for topic in member.topics} & self.facts.keys()
        wanted = {TopicPartition(t, n) for t in topics for n in range(self.facts[t].partition_count)}
        held = [p for client in self.clients.values() for p in client.held]
        assert sorted(held) == sorted(wanted)
        assert {client.epoch for client in self.clients.values()} <= {self.group.generation}


Consumers.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestEpochModel = Consumers.TestCase
