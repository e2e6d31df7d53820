"""Members of a classic group behind several gateways, with requests and answers that are lost, repeated and late.

A gateway is the requests that it has open: it begins them in any order, looks at those that wait again at any time, and
loses all of them when it is killed. The store has the group.
"""

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from spark_log.errors import SparkLogError
from spark_log.groups.classic import rules
from spark_log.groups.classic.group import ClassicGroup, Joining, State
from spark_log.groups.classic.rules import (
    advance,
    check_commit,
    heartbeat,
    join,
    join_answer,
    leave,
    member_of,
    next_change_ms,
    replace_member,
    sync,
    sync_answer,
    touched,
)

SESSION_MS, REBALANCE_MS = 30, 60
GATEWAYS = 3
clients = st.integers(0, 3)
gateways = st.integers(0, GATEWAYS - 1)


@dataclass
class Client:
    instance_id: str | None
    member_id: str = ""
    generation: int = -1
    is_leader: bool = False


@dataclass
class Request:
    client: Client
    member_id: str
    generation: int
    """0: a JoinGroup that waits; otherwise a SyncGroup."""
    gave: dict[str, bytes] = field(default_factory=dict)


class Gateways(RuleBasedStateMachine):
    @initialize(static=st.booleans())
    def begin(self, static):
        self.now = 0
        self.group = ClassicGroup("g", 0)
        self.clients = [Client("i" if static and number == 0 else None) for number in range(4)]
        self.open: list[list[Request]] = [[] for _ in range(GATEWAYS)]
        self.ids = 0
        self.leaders: dict[int, str] = {}
        self.assigned: dict[int, set[bytes]] = {}
        self.membership: dict[int, frozenset[str]] = {}
        self.last_generation = 0

    def change(self, step):
        """A transaction: False if it is refused."""
        try:
            self.group = step(advance(self.group, self.now), self.now)
        except SparkLogError:
            return False
        return True

    @rule(number=clients, gateway=gateways, first=st.sampled_from(["p", "q"]), answered=st.booleans())
    def join_group(self, number, gateway, first, answered):
        client = self.clients[number]
        self.ids += 1
        new_id = f"m{self.ids:03}"
        required = client.instance_id is None and not client.member_id
        order = ("p", "q") if first == "p" else ("q", "p")
        protocols = tuple((name, b"%d" % number) for name in order)
        request = Joining(
            client.member_id, new_id, client.instance_id, "c", "h", "connect", protocols, SESSION_MS, REBALANCE_MS,
            required,
        )  # fmt: skip
        member_id = client.member_id or new_id
        if not self.change(lambda group, now: join(group, request, now)):
            client.member_id = ""
        elif required:
            client.member_id = member_id if answered else ""
        else:
            self.open[gateway].append(Request(client, member_id, 0))

    @rule(number=clients, gateway=gateways)
    def sync_group(self, number, gateway):
        client = self.clients[number]
        if client.generation < 0:
            return
        gave = {}
        if client.is_leader:
            gave = {key: b"%d by %s" % (client.generation, client.member_id.encode()) for key in self.group.members}
        request = Request(client, client.member_id, client.generation, gave)
        if self.change(lambda group, now: self.synced(group, request, now)):
            self.open[gateway].append(request)

    def synced(self, group, request, now):
        return sync(group, request.member_id, request.client.instance_id, request.generation, request.gave, now)

    @rule(gateway=gateways, place=st.integers(0, 5), answered=st.booleans())
    def look_again(self, gateway, place, answered):
        """A request that waits; the client may not get the answer."""
        if place >= len(self.open[gateway]):
            return
        request = self.open[gateway][place]
        client, member_id = request.client, request.member_id

        def touch(group, now):
            return replace_member(group, touched(member_of(group, member_id, client.instance_id), now))

        step = touch if request.generation == 0 else lambda group, now: self.synced(group, request, now)
        if not self.change(step):
            del self.open[gateway][place]
            return
        if request.generation == 0:
            answer = join_answer(self.group, member_id, client.instance_id)
        else:
            answer = sync_answer(self.group, member_id)
        if answer is None:
            return
        del self.open[gateway][place]
        if request.generation:
            self.assigned.setdefault(request.generation, set()).add(answer)
            return
        if answer.leader and not answer.skip_assignment:
            leader = self.leaders.setdefault(answer.generation, answer.leader)
            if self.clients[0].instance_id is None:
                assert leader == answer.leader, "a generation has one leader"
        assert bool(answer.members) == (answer.leader == member_id), "only the leader gets the members"
        if answered:
            client.member_id, client.generation = member_id, answer.generation
            client.is_leader = answer.leader == member_id and not answer.skip_assignment

    @rule(numbers=st.permutations(range(4)).flatmap(lambda order: st.integers(1, 4).map(lambda count: order[:count])))
    def rebalance(self, numbers):
        """Some of the clients join, and sync with the answers; nothing is lost."""
        for _ in range(2):
            for number in numbers:
                self.join_group(number, number % GATEWAYS, "p", answered=True)
        for gateway, requests in enumerate(self.open):
            for place in reversed(range(len(requests))):
                self.look_again(gateway, place, answered=True)
        for number in numbers:
            self.sync_group(number, number % GATEWAYS)
        for gateway, requests in enumerate(self.open):
            for place in reversed(range(len(requests))):
                self.look_again(gateway, place, answered=True)

    @rule(number=clients)
    def beat(self, number):
        client = self.clients[number]
        before = self.group.generation
        step = lambda group, now: heartbeat(group, client.member_id, client.instance_id, client.generation, now)  # noqa: E731
        if self.change(step):
            assert client.generation >= before

    @rule(number=clients, transactional=st.booleans())
    def commit(self, number, transactional):
        client, group = self.clients[number], advance(self.group, self.now)
        try:
            check_commit(group, client.member_id, client.instance_id, client.generation, transactional=transactional)
        except SparkLogError:
            return
        assert client.generation == group.generation and client.member_id in group.members
        assert transactional or group.state is not State.COMPLETING

    @rule(number=clients)
    def leave_group(self, number):
        client = self.clients[number]
        self.change(lambda group, now: leave(group, client.member_id, client.instance_id, now))
        client.member_id, client.generation, client.is_leader = "", -1, False

    @rule(number=clients)
    def kill_client(self, number):
        self.clients[number] = Client(self.clients[number].instance_id)

    @rule(gateway=gateways)
    def kill_gateway(self, gateway):
        self.open[gateway] = []

    @rule(elapsed_ms=st.sampled_from([1, 11, SESSION_MS, REBALANCE_MS]))
    def pass_time(self, elapsed_ms):
        self.now += elapsed_ms

    @invariant()
    def holds(self):
        group = self.group
        assert group.generation >= self.last_generation, "the generation only grows"
        self.last_generation = group.generation
        if group.state in (State.COMPLETING, State.STABLE) and self.clients[0].instance_id is None:
            members = self.membership.setdefault(
                group.generation, frozenset(member.member_id for member in group.joined)
            )
            assert members == {member.member_id for member in group.joined}, "a generation has the same members"
            assert self.leaders.setdefault(group.generation, group.leader) == group.leader, "and the same leader"
        assert all(len(given) == 1 for given in self.assigned.values() if b"" not in given)
        looked = advance(group, self.now)
        change_ms = next_change_ms(looked)
        assert change_ms is None or change_ms > self.now, "a request that waits has nothing to wait for"
        assert advance(looked, self.now) == looked
        if looked.state in (State.COMPLETING, State.STABLE):
            assert looked.leader in looked.members and looked.protocol
        if not looked.joined:  # as in Kafka, a rebalance without members waits for those that are pending
            assert looked.state is State.EMPTY or (looked.state is State.PREPARING and looked.members)
        assert looked.state is not State.EMPTY or not looked.joined

    def teardown(self):
        """Whatever has happened: members that go on get one generation, and the assignment of its leader."""
        if not hasattr(self, "group"):
            return
        self.now += 10 * REBALANCE_MS
        self.open = [[] for _ in range(GATEWAYS)]
        self.clients = [Client(None) for _ in range(2)]
        for _ in range(2):
            for number in range(2):
                self.join_group(number, number, "p", answered=True)
        for gateway in range(2):
            self.look_again(gateway, 0, answered=True)
        for number in (0, 1, 0):
            self.sync_group(number, number)
        assert self.group.state is State.STABLE
        [leader] = [client for client in self.clients if client.is_leader]
        wanted = b"%d by %s" % (self.group.generation, leader.member_id.encode())
        assert {sync_answer(self.group, client.member_id) for client in self.clients} == {wanted}


Gateways.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestGateways = Gateways.TestCase


# Each of these removes one rule; the model must detect it.


def any_generation_is_right(patch):
    patch(rules, "_in_generation", lambda group, member_id, instance_id, generation: member_of(group, member_id, None))


def the_generation_stays(patch):
    def complete(group, now_ms):
        after = complete_join(group, now_ms)
        return replace(after, generation=group.generation)

    complete_join = rules._complete_join
    patch(rules, "_complete_join", complete)


def sessions_never_end(patch):
    patch(rules, "_without", lambda group, member_ids, now_ms: group)


def the_leader_changes_in_a_generation(patch):
    replaced = rules.replace_member
    patch(rules, "replace_member", lambda group, member: replace(replaced(group, member), leader=member.member_id))


@pytest.mark.parametrize(
    "mutation",
    [any_generation_is_right, the_generation_stays, sessions_never_end, the_leader_changes_in_a_generation],
)
def test_the_model_detects(mutation, monkeypatch):
    mutation(monkeypatch.setattr)
    quiet = settings(max_examples=200, stateful_step_count=40, deadline=None, database=None, report_multiple_bugs=False,
                     phases=[Phase.generate])  # fmt: skip
    with pytest.raises((AssertionError, ValueError, KeyError)):
        run_state_machine_as_test(Gateways, settings=quiet)
