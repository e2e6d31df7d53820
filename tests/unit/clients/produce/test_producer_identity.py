import contextlib
from itertools import count

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from spark_log.clients.produce.producer_identity import Identity
from spark_log.errors import SparkLogError
from spark_log.log.append.rules import (
    Appended,
    Batch,
    decide,
    remember,
)
from spark_log.log.append.sequence_rules import ProducerState
from spark_log.log.partitions.replication_rules import PartitionState, Replica

KEYS = st.tuples(st.integers(1, 2), st.integers(0, 1))


class Sequences(RuleBasedStateMachine):
    """After every outcome of a batch the log accepts the next one: it is neither a gap nor a duplicate of another."""

    def __init__(self):
        super().__init__()
        self.identity = Identity(count(1).__next__)
        self.partitions = {}
        self.producers = {}

    def append(self, key, records):
        """The outcome of a batch with the identity's sequence."""
        sequence = self.identity.sequence(key)
        batch = Batch(key[0], key[1], "b", True, records, 1, 0, 0, 0, "none", "", sequence=sequence)
        state = self.partitions.get(key, PartitionState(1, 0, 0, 0, 0, 0, 0, (Replica(1, 0, True),)))
        producer = self.producers.get((sequence.producer_id, key), ProducerState(0))
        outcome, self.partitions[key] = decide(state, batch, "all", producer)
        if isinstance(outcome, Appended) and not outcome.duplicate:
            self.producers[sequence.producer_id, key] = remember(producer, batch, outcome)
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
        if appended:
            self.append(key, records)
        self.identity.reset(key)

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
