"""A client of KIP-98, and gateways that execute its requests late: each is executed in the transaction that the client
sent it for, or never. Mutations of the rules must be detected.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from spark_log.errors import InvalidTxnStateError
from spark_log.transactions import fencing_rules, rules
from spark_log.transactions.fencing_rules import FencedConnectionError, Role
from spark_log.transactions.rules import ABORTED, COMMITTED, EMPTY, ProducerRef, Transaction

REF = ProducerRef(7, 0)
BEGIN, OFFSET, COMMIT, ABORT = "begin", "offset", "commit", "abort"


class Request(NamedTuple):
    kind: str
    number: int
    """Of the transaction that the client means."""
    offset: int = -1

    @property
    def role(self):
        return Role.OFFSETS if self.kind == OFFSET else Role.COORDINATOR


@dataclass
class Connection:
    held: dict = field(default_factory=dict)
    """By role: what the gateway remembers for the connection."""
    waiting: list = field(default_factory=list)
    """Requests that the gateway has not executed."""


class World(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.transaction = Transaction(*vars(REF).values(), EMPTY)
        self.begun = 0
        """Transactions that have begun in the store."""
        self.connections = [Connection(), Connection()]
        self.chosen = {Role.COORDINATOR: 0, Role.OFFSETS: 1}
        self.number, self.offset, self.executed_offset = 0, 0, -1
        self.sent = None
        """The request that the client waits for."""

    @rule(
        offsets=st.lists(st.sampled_from(["answered", "late", "given up"]), max_size=2),
        begins_late=st.booleans(),
        ends_late=st.booleans(),
        commits=st.booleans(),
    )
    def transact(self, offsets, begins_late, ends_late, commits):
        """A transaction of the client. A late request is sent again on another connection."""
        self.number += 1
        self._call(BEGIN, late=begins_late)
        for fate in offsets:
            self.offset += 1
            if fate == "given up":
                self._leave(self._send(OFFSET))
                commits = False
                break
            self._call(OFFSET, late=fate == "late")
        self._call(COMMIT if commits else ABORT, late=ends_late)
        assert self.begun == self.number
        assert self.transaction.state is (COMMITTED if commits else ABORTED)

    @rule(chosen=st.integers(0, 10), transacts=st.booleans())
    def execute_late(self, chosen, transacts):
        """A gateway goes on with a request that the client has given up, perhaps inside the next transaction."""
        waiting = [each for each in self.connections if each.waiting]
        if transacts:
            self.number += 1
            self._call(BEGIN)
        if waiting:
            connection = waiting[chosen % len(waiting)]
            self._answer(connection, connection.waiting.pop(0))
        if transacts:
            self._call(COMMIT)

    def _call(self, kind, *, late=False):
        """Send until it is executed."""
        request = self._send(kind)
        if late:
            self._leave(request)
            self._send(kind)
        connection = self.connections[self.chosen[request.role]]
        while not self._answer(connection, connection.waiting.pop(0)):
            self._send(kind)
        self.sent = None

    def _leave(self, request):
        """The time-out of a request: the client closes its connection, and the gateway has the request still."""
        here = self.chosen[request.role]
        self.connections.append(Connection())
        self.chosen = {role: len(self.connections) - 1 if at == here else at for role, at in self.chosen.items()}
        self.sent = None

    def _send(self, kind):
        self.sent = Request(kind, self.number, self.offset)
        self.connections[self.chosen[self.sent.role]].waiting.append(self.sent)
        return self.sent

    def _answer(self, connection, request):
        """Whether it is executed, as `gateway.transactions.fencing_tokens` does it."""
        held = connection.held.get(request.role)
        if held is not None:
            try:
                fencing_rules.check(self.transaction, held)
            except FencedConnectionError:
                pass
            else:
                self._execute(request)
                return True
        self.transaction, connection.held[request.role] = fencing_rules.take(self.transaction, request.role)
        return False

    def _execute(self, request):
        before = self.transaction
        try:
            match request.kind:
                case "begin":
                    self.transaction = rules.begin(before, REF)
                    self.begun += self.transaction is not before
                case "offset":
                    rules.check_open(before, REF)
                    assert request.number == self.begun
                    assert request.offset >= self.executed_offset, "an older offset does not replace a newer one"
                    self.executed_offset = request.offset
                case kind if not rules.has_ended(before, REF, commit=kind == COMMIT):
                    if kind == COMMIT:
                        self.transaction = rules.commit(before, REF, 0, keeps_epoch=True)
                    else:
                        self.transaction = fencing_rules.end_offsets_token(rules.abort(before, REF, keeps_epoch=True))
        except InvalidTxnStateError:
            assert request != self.sent, f"{request} of the client is refused: {before}"
        if self.transaction is not before:
            assert request.number == self.begun, f"{request} was executed in another transaction"


TestWorld = World.TestCase
TestWorld.settings = settings(max_examples=60, stateful_step_count=12)
MUTANTS = settings(max_examples=1_000, stateful_step_count=25, database=None, derandomize=True, phases=[Phase.generate])


def trust_all(patch):
    patch(fencing_rules, "check", lambda transaction, token: None)


def keep_offsets_token(patch):
    patch(fencing_rules, "end_offsets_token", lambda transaction: transaction)


def share_tokens(patch):
    take = fencing_rules.take

    def same(transaction, role):
        after, token = take(transaction, role)
        held = transaction.token if role is Role.COORDINATOR else transaction.offsets_token
        return (transaction, fencing_rules.FencingToken(role, held)) if held else (after, token)

    patch(fencing_rules, "take", same)


@pytest.mark.parametrize("mutant", [trust_all, keep_offsets_token, share_tokens])
def test_histories_detect_the_mutation(monkeypatch, mutant):
    mutant(monkeypatch.setattr)
    with pytest.raises(BaseException):  # noqa: B017, PT011 - hypothesis finds any of the assertions
        run_state_machine_as_test(World, settings=MUTANTS)
