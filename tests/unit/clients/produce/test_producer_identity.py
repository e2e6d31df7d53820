import contextlib
from itertools import count

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from spark_log.clients.produce.producer_identity import Identity
from spark_log.errors import SparkLogError
from spark_log.log.append.rules import (
    Appended,
    Batch,
    Rejected,
    decide,
    remember,
)
from spark_log.log.append.sequence_rules import ProducerSequence, ProducerState
from spark_log.log.partitions.replication_rules import PartitionState, Replica
from spark_log.transactions.rules import EPOCH_MAX

KEYS = st.tuples(st.integers(1, 2), st.integers(0, 1))


class Sequences(RuleBasedStateMachine):
    """After every outcome of a batch the log accepts the next one: it is neither a gap nor a duplicate of another. A
    batch that has failed in doubt is not appended after a later one.
    """

    def __init__(self):
        super().__init__()
        self.identity = Identity(count(1).__next__)
        self.partitions = {}
        self.producers = {}
        self.failed = {}
        """The last batch of each partition that failed in doubt: its sequence, the number of its records, and whether a
        later batch was appended."""

    def append(self, key, records, sequence=None):
        """The outcome of a batch, by default with the identity's sequence."""
        late, sequence = sequence is not None, sequence or self.identity.sequence(key)
        batch = Batch(key[0], key[1], "b", True, records, 1, 0, 0, 0, "none", "", sequence=sequence)
        state = self.partitions.get(key, PartitionState(1, 0, 0, 0, 0, 0, 0, (Replica(1, 0, True),)))
        producer = self.producers.get((sequence.producer_id, key), ProducerState(0))
        outcome, self.partitions[key] = decide(state, batch, "all", producer)
        if isinstance(outcome, Appended) and not outcome.duplicate:
            self.producers[sequence.producer_id, key] = remember(producer, batch, outcome)
        if key in self.failed and not late:
            self.failed[key] = (*self.failed[key][:2], True)
        return outcome

    @rule(key=KEYS, records=st.integers(1, 3))
    def acknowledged(self, key, records):
        outcome = self.append(key, records)
        assert isinstance(outcome, Appended) and not outcome.duplicate, outcome
        self.identity.advance(key, records)

    @rule(key=KEYS, records=st.integers(1, 3), tries=st.integers(1, 3))
    def acknowledged_after_lost_answers(self, key, records, tries):
        first = self.append(key, records)
        for _ in range(tries):
            again = self.append(key, records)
            assert again == Appended(first.base_offset, first.end_offset, duplicate=True)
        self.identity.advance(key, records)

    @rule(key=KEYS, records=st.integers(1, 3), appended=st.booleans())
    def failed_in_doubt(self, key, records, appended):
        sequence = self.identity.sequence(key)
        if appended:
            self.append(key, records)
        self.identity.begin_epoch(key)
        self.failed[key] = sequence, records, False

    @rule(key=KEYS)
    def a_failed_append_ends_late(self, key):
        if key in self.failed:
            sequence, records, overtaken = self.failed[key]
            outcome = self.append(key, records, sequence)
            assert isinstance(outcome, Rejected if overtaken else Appended), outcome

    @rule(key=KEYS)
    def forgotten(self, key):
        self.identity.reset(key)
        self.failed.pop(key, None)

    @rule(key=KEYS)
    def refused_for_good(self, key):
        self.identity.sequence(key)  # nothing was appended: the next batch has the same sequence


TestSequences = Sequences.TestCase


def test_reset_does_not_change_other_partitions():
    identity = Identity(count(7).__next__)
    identity.advance((1, 0), 5) if identity.sequence((1, 0)) else None
    identity.sequence((1, 1))
    identity.reset((1, 1))
    assert identity.sequence((1, 1)).producer_id == 8
    assert (identity.sequence((1, 0)).producer_id, identity.sequence((1, 0)).first) == (7, 5)
    assert identity.sequence((2, 0)).producer_id == 8


def test_the_epoch_after_the_last_one_is_that_of_a_new_producer_id():
    identity = Identity(count(7).__next__)
    identity.sequence((1, 0))
    for _ in range(EPOCH_MAX):
        identity.begin_epoch((1, 0))
    assert identity.sequence((1, 0)) == ProducerSequence(7, EPOCH_MAX, 0)
    assert identity.sequence((1, 1)) == ProducerSequence(7, 0, 0)
    identity.begin_epoch((1, 0))
    assert identity.sequence((1, 0)) == ProducerSequence(8, 0, 0)


def test_failed_registration_is_tried_again():
    answers = iter([SparkLogError("away"), 3])

    def register():
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    identity = Identity(register)
    with contextlib.suppress(SparkLogError):
        identity.sequence((1, 0))
    assert identity.sequence((1, 0)).producer_id == 3
