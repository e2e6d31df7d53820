"""Transactions of Kafka clients: random histories against a client's own view, and mutations of the rules that these
histories must detect.
"""

from dataclasses import replace

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from spark_log.errors import InvalidTxnStateError, ProducerFencedError, TransactionAbortableError
from spark_log.log.append import rules as append_rules
from spark_log.log.append.rules import (
    Appended,
    Batch,
    Rejected,
)
from spark_log.log.append.sequence_rules import (
    ProducerSequence,
    ProducerState,
)
from spark_log.log.partitions.replication_rules import PartitionState, Replica
from spark_log.transactions import pending_sequences as sequence_rules
from spark_log.transactions import rules
from spark_log.transactions.rules import EMPTY, ONGOING, ProducerRef, Transaction

PRODUCER = 7
PARTITION = PartitionState(1, 0, 0, 0, 0, 0, 0, (Replica(1, 0, True),))


class Client:
    """A Kafka client: it counts on after an abort, and knows what it has sent in its transaction."""

    def __init__(self, epoch):
        self.epoch, self.sequences, self.sent, self.is_open = epoch, [0, 0], [], False

    @property
    def ref(self):
        return ProducerRef(PRODUCER, self.epoch)


class World(RuleBasedStateMachine):
    """One transactional id, two partitions, clients of which only the last one may act."""

    def __init__(self):
        super().__init__()
        self.transaction = Transaction(PRODUCER, -1, EMPTY, transactional_id="bills")
        self.states = [ProducerState(-1, transactional=True)] * 2
        self.partitions = [PARTITION, PARTITION]
        self.pending = [[], []]
        self.logs, self.expected = [[], []], [[], []]
        self.clients = []
        self.names = iter(range(10**6))
        self.init()

    @rule()
    def init(self):
        self._save(rules.initialize(self.transaction))
        self.clients.append(Client(self.transaction.epoch))

    @rule(again=st.booleans())
    def bump(self, again):
        client = self.clients[-1]
        for _ in range(1 + again):  # also after a time-out, which has raised the epoch
            self._save(rules.bump(self.transaction, client.ref))
        self.clients[-1] = Client(self.transaction.epoch)
        assert self.clients[-1].epoch == client.epoch + 1

    @rule(late=st.integers(0, 3), partition=st.integers(0, 1), count=st.integers(1, 3), sent=st.integers(1, 2))
    def send(self, late, partition, count, sent):
        """A request that is sent again after its answer was lost changes nothing more."""
        client = self._client(late)
        if not self._may_act(client):
            with pytest.raises((ProducerFencedError, TransactionAbortableError, InvalidTxnStateError)):
                rules.begin(self.transaction, client.ref)
            return
        if not client.is_open:
            self._save(rules.begin(self.transaction, client.ref))
            client.is_open = True
        batch = self._batch(partition, ProducerSequence(PRODUCER, client.epoch, client.sequences[partition]), count)
        for turn in range(sent):
            outcome = self._register(batch)
            assert isinstance(outcome, Appended) and outcome.duplicate == (turn > 0)
        client.sequences[partition] += count
        client.sent.append((partition, batch.name))
        gap = batch._replace(sequence=replace(batch.sequence, first=client.sequences[partition] + 1))
        assert isinstance(self._register(gap), Rejected)

    @rule(late=st.integers(0, 3), commit=st.booleans(), sent=st.integers(1, 2))
    def end(self, late, commit, sent):
        client = self._client(late)
        if not self._may_act(client):
            with pytest.raises((ProducerFencedError, TransactionAbortableError, InvalidTxnStateError)):
                self._end(client, commit)
            return
        if not client.is_open:
            return
        for _ in range(sent):
            self._end(client, commit)
        if commit:
            for partition, name in client.sent:
                self.expected[partition].append(name)
        client.sent, client.is_open = [], False

    @rule(partition=st.integers(0, 1), count=st.integers(1, 3), epochs=st.integers(0, 1))
    def stranger_sends(self, partition, count, epochs):
        """A batch outside of transactions, with what the client sends next, or has sent, or with a later epoch."""
        client = self.clients[-1]
        for first in {client.sequences[partition], max(0, client.sequences[partition] - count), 0}:
            sequence = ProducerSequence(PRODUCER, client.epoch + epochs, first)
            self._append(self._batch(partition, sequence, count))

    @rule(partition=st.integers(0, 1), commit=st.booleans())
    def send_and_end(self, partition, commit):
        self.send(0, partition, 1, 1)
        self.end(0, commit, 1)

    @rule()
    def time_out(self):
        if self.transaction.state is ONGOING:
            self._save(rules.time_out(replace(self.transaction, expired=True)))

    @invariant()
    def log_has_what_the_clients_have_committed(self):
        assert self.logs == self.expected
        assert self.transaction.state is ONGOING or self.pending == [[], []]

    def _client(self, late):
        return self.clients[max(0, len(self.clients) - 1 - late)] if late > 1 else self.clients[-1]

    def _may_act(self, client):
        return client is self.clients[-1] and client.epoch == self.transaction.epoch

    def _batch(self, partition, sequence, count):
        name = str(next(self.names))
        return Batch(1, partition, name, True, count, count, 0, 0, 0, "none", "", sequence=sequence)

    def _register(self, batch):
        rules.check_open(self.transaction, ProducerRef(PRODUCER, batch.sequence.producer_epoch))
        here = self.pending[batch.partition]
        outcome, new = sequence_rules.accept(self.states[batch.partition], [each for _, each in here][-5:], batch)
        if new is not None:
            here.append((batch, new))
        return outcome

    def _end(self, client, commit):
        if not commit:
            if not rules.has_ended(self.transaction, client.ref, commit=False):
                after = rules.abort(self.transaction, client.ref, keeps_epoch=True)
                for partition, here in enumerate(self.pending):
                    if here:
                        self.states[partition] = sequence_rules.remember_aborted(self.states[partition], here[-1][1])
                self._save(after)
            return
        if rules.has_ended(self.transaction, client.ref, commit=True):
            return
        for here in self.pending:
            for batch, _ in here:
                outcome = self._append(batch, commits=True)
                assert isinstance(outcome, Appended) and not outcome.duplicate
        self._save(rules.commit(replace(self.transaction, pending=0), client.ref, 0, keeps_epoch=True))

    def _append(self, batch, **how):
        """As the append transaction: decide, and remember what was appended."""
        number = batch.partition
        outcome, self.partitions[number] = append_rules.decide(
            self.partitions[number], batch, "all", self.states[number], **how
        )
        if isinstance(outcome, Appended) and not outcome.duplicate:
            self.states[number] = append_rules.remember(self.states[number], batch, outcome)
            self.logs[number].append(batch.name)
        return outcome

    def _save(self, after):
        if after.state is not ONGOING:
            self.pending = [[], []]
        self.states = [replace(state, epoch=after.epoch) for state in self.states]
        self.transaction = after


TestWorld = World.TestCase
TestWorld.settings = settings(max_examples=60, stateful_step_count=30)


MUTANTS = settings(max_examples=200, database=None, derandomize=True, phases=[Phase.generate])


def let_strangers_append(patch):
    decide = append_rules.decide

    def trusting(state, batch, acks, producer, **how):
        return decide(state, batch, acks, replace(producer, transactional=False), **how)

    patch(append_rules, "decide", trusting)


def forget_aborted(patch):
    patch(sequence_rules, "remember_aborted", lambda state, last: state)


def take_duplicates(patch):
    accept = sequence_rules.accept

    def accept_all(state, pending, batch):
        outcome, new = accept(state, pending, batch)
        return (Appended(-1, -1), accept(state, pending[:-1], batch)[1]) if new is None and pending else (outcome, new)

    patch(sequence_rules, "accept", accept_all)


def trust_epochs(patch):
    patch(rules, "check", lambda transaction, ref: None)


def keep_epoch_at_time_out(patch):
    ended = rules._ended
    patch(rules, "_ended", lambda transaction, state, keeps_epoch: ended(transaction, state, True))


def end_anything(patch):
    patch(rules, "has_ended", lambda transaction, ref, commit: transaction.state is not ONGOING)


@pytest.mark.parametrize(
    "mutant",
    [let_strangers_append, forget_aborted, take_duplicates, trust_epochs, keep_epoch_at_time_out, end_anything],
)
def test_histories_detect_the_mutation(monkeypatch, mutant):
    mutant(monkeypatch.setattr)
    with pytest.raises(BaseException):  # noqa: B017, PT011 - hypothesis finds any of the assertions
        run_state_machine_as_test(World, settings=MUTANTS)
