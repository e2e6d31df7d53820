"""The rules of an append, against a table of cases and against a simple model."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from spark_log.errors import (
    InvalidProducerIdMappingError,
    InvalidRecordError,
    InvalidTxnStateError,
    NotEnoughReplicasError,
    NotLeaderForPartitionError,
    OffsetOutOfRangeError,
    OutOfOrderSequenceNumberError,
    ProducerFencedError,
    TransactionAbortableError,
    UnknownProducerIdError,
)
from spark_log.ids import OffsetRange
from spark_log.log.append import append_transaction
from spark_log.log.append.rules import (
    Appended,
    Batch,
    Rejected,
    decide,
    remember,
)
from spark_log.log.append.sequence_rules import (
    FORGOTTEN_OWNER,
    REMEMBERED_BATCHES,
    ProducerSequence,
    ProducerState,
    RememberedBatch,
    with_batches,
)
from spark_log.log.partitions.replication_rules import PartitionState, Replica

BLOB = Batch(
    topic_id=1,
    partition=0,
    name="blob",
    inline=True,
    record_count=3,
    bytes=100,
    min_timestamp_ms=0,
    max_timestamp_ms=0,
    timestamp_type=0,
    codec="none",
    checksum="",
)
FILE = BLOB._replace(name="file", inline=False, written_to=frozenset({1}), leader_epoch=4)
ALONE = PartitionState(
    leader=1,
    leader_epoch=4,
    log_end_offset=10,
    high_watermark=10,
    recovery_point=10,
    tail_bytes=0,
    change=7,
    replicas=(Replica(1, 10, True),),
)


def with_replicas(*replicas, **facts):
    return ALONE._replace(replicas=tuple(Replica(*replica) for replica in replicas), **facts)


def test_blob_gets_the_next_offsets_and_advances_every_replica():
    state = with_replicas((1, 10, True), (2, 10, True), (3, 10, False))
    outcome, after = decide(state, BLOB, "all")
    assert outcome == Appended(10, 13)
    assert [replica.log_end_offset for replica in after.replicas] == [13, 13, 13]
    assert (after.log_end_offset, after.high_watermark, after.tail_bytes, after.change) == (13, 13, 100, 7)


def test_file_advances_only_the_replicas_that_have_it():
    state = with_replicas((1, 10, True), (2, 10, True), (3, 10, False))
    outcome, after = decide(state, FILE, 1)
    assert outcome == Appended(10, 13)
    assert [replica.log_end_offset for replica in after.replicas] == [13, 10, 10]
    assert (after.high_watermark, after.change, after.tail_bytes) == (10, 8, 0)


def mirrored(start, end, batch=FILE, **facts):
    return batch._replace(offsets=OffsetRange(start, end), **facts)


def test_batch_with_offsets_is_appended_at_the_log_end():
    outcome, after = decide(ALONE, mirrored(10, 18), "all")
    assert outcome == Appended(10, 18)
    assert (after.log_end_offset, after.high_watermark, after.replicas[0].log_end_offset) == (18, 18, 18)
    assert decide(ALONE, mirrored(10, 18, record_count=0), "all")[0] == Appended(10, 18)
    assert decide(ALONE, mirrored(10, 13, BLOB), "all")[0] == Appended(10, 13)


@pytest.mark.parametrize("start", [0, 9, 11])
def test_batch_with_other_offsets_is_refused(start):
    outcome, after = decide(ALONE, mirrored(start, start + 8), "all")
    assert isinstance(outcome.error, OffsetOutOfRangeError)
    assert f"[{start}, {start + 8}) cannot be appended: its log has the offsets [0, 10)" in str(outcome.error)
    assert after is ALONE


def test_empty_log_begins_at_the_offsets_of_the_batch_but_not_before_its_end():
    empty = with_replicas((1, 10, True), (2, 10, True), (3, 4, False), log_start_offset=10)
    outcome, after = decide(empty, mirrored(50, 58, written_to=frozenset({1, 2})), "all")
    assert outcome == Appended(50, 58)
    assert (after.log_start_offset, after.log_end_offset, after.high_watermark) == (50, 58, 58)
    assert [replica.log_end_offset for replica in after.replicas] == [58, 58, 4]
    assert after.change > empty.change
    outcome, after = decide(empty, mirrored(50, 53, BLOB), "all")
    assert (outcome, after.change) == (Appended(50, 53), empty.change + 1)
    outcome, after = decide(empty, mirrored(50, 58), 1)
    assert (after.high_watermark, [r.log_end_offset for r in after.replicas]) == (50, [58, 50, 4])
    refused, after = decide(empty, mirrored(9, 17), "all")
    assert isinstance(refused.error, OffsetOutOfRangeError) and after is empty
    refused, after = decide(empty, mirrored(50, 58), "all")
    assert isinstance(refused.error, NotEnoughReplicasError) and after is empty


@pytest.mark.parametrize(
    "batch",
    [
        mirrored(10, 10, record_count=0),
        mirrored(10, 12),
        mirrored(10, 14, BLOB),
        mirrored(10, 18, record_count=-1),
        mirrored(10, 14, sequence=ProducerSequence(7, 0, 0)),
        FILE._replace(record_count=0),
    ],
)
def test_batch_whose_records_do_not_match_its_offsets_is_refused(batch):
    outcome, after = decide(ALONE, batch, "all", ProducerState(0))
    assert isinstance(outcome.error, InvalidRecordError)
    assert after is ALONE


@given(
    batch=st.builds(
        lambda inline, count, brokers, epoch: FILE._replace(
            inline=inline,
            record_count=count,
            written_to=frozenset({1, *brokers}),
            leader_epoch=None if inline else epoch,
        ),
        inline=st.booleans(),
        count=st.integers(0, 2),
        brokers=st.sets(st.integers(2, 3)),
        epoch=st.sampled_from([3, 4, 4, 4]),
    ),
    followers=st.tuples(*[st.tuples(st.sampled_from([6, 10, 10]), st.booleans())] * 2),
    min_isr=st.integers(1, 3),
    acks=st.sampled_from([1, "all"]),
)
def test_a_batch_is_appended_exactly_if_its_replicas_may_take_it(batch, followers, min_isr, acks):
    replicas = [(1, 10, True), *((broker, *each) for broker, each in enumerate(followers, 2))]
    in_sync = {broker: end for broker, end, member in replicas if member}
    state = with_replicas(*replicas, high_watermark=min(in_sync.values()), min_insync_replicas=min_isr)
    allowed = batch.record_count > 0 and (batch.inline or batch.leader_epoch == 4)
    if acks == "all":
        allowed &= len(in_sync) >= min_isr and set(in_sync.values()) == {10}
        allowed &= batch.inline or in_sync.keys() <= batch.written_to
    outcome, after = decide(state, batch, acks)
    assert isinstance(outcome, Appended) == allowed
    assert after is state or allowed


def test_blob_does_not_advance_a_replica_that_lacks_a_file():
    state = with_replicas((1, 10, True), (2, 7, False))
    _, after = decide(state, BLOB, "all")
    assert [replica.log_end_offset for replica in after.replicas] == [13, 7]
    assert after.high_watermark == 13


def sent_by(producer_id, epoch, first, batch=BLOB, count=3):
    return batch._replace(record_count=count, sequence=ProducerSequence(producer_id, epoch, first))


def known(*batches, epoch=2, transactional=False):
    """Producer of epoch 2 with batches (first sequence, last sequence, base offset)."""
    remembered = tuple(RememberedBatch(2, a, b, base, base + b - a + 1) for a, b, base in batches)
    return ProducerState(epoch, remembered, transactional)


def sent_as(principal):
    return BLOB._replace(sequence=ProducerSequence(9, 2, 0, principal))


OF_ANNA = replace(known(), owner="anna")
IN_TRANSACTIONS = known((0, 2, 0), transactional=True)


REFUSED = {
    "no leader": (ALONE._replace(leader=None), BLOB, "all", None, NotLeaderForPartitionError),
    "file of an older leader epoch": (ALONE, FILE._replace(leader_epoch=3), 1, None, NotLeaderForPartitionError),
    "file of a newer leader epoch": (ALONE, FILE._replace(leader_epoch=5), 1, None, NotLeaderForPartitionError),
    "too few in sync": (ALONE._replace(min_insync_replicas=2), BLOB, "all", None, NotEnoughReplicasError),
    "empty ISR": (with_replicas((1, 10, False)), BLOB, "all", None, NotEnoughReplicasError),
    "in sync, but without the file": (
        with_replicas((1, 10, True), (2, 10, True)),
        FILE,
        "all",
        None,
        NotEnoughReplicasError,
    ),
    "in sync, but behind after acks=1": (
        with_replicas((1, 10, True), (2, 7, True), high_watermark=7),
        BLOB,
        "all",
        None,
        NotEnoughReplicasError,
    ),
    "no records": (ALONE, BLOB._replace(record_count=0), "all", None, InvalidRecordError),
    "unknown producer": (ALONE, sent_by(9, 0, 0), "all", None, UnknownProducerIdError),
    "producer expired": (ALONE, sent_by(9, 2, 3), "all", known(), UnknownProducerIdError),
    "gap at the beginning of an epoch": (ALONE, sent_by(9, 3, 1), "all", known((0, 2, 0)), UnknownProducerIdError),
    "outside of the producer's transactions": (ALONE, sent_by(9, 2, 3), "all", IN_TRANSACTIONS, InvalidTxnStateError),
    "repeats a batch of a transaction": (ALONE, sent_by(9, 2, 0), "all", IN_TRANSACTIONS, InvalidTxnStateError),
    "producer id of another principal": (ALONE, sent_as("ben"), "all", OF_ANNA, InvalidProducerIdMappingError),
    "producer id without an owner": (ALONE, sent_as("ben"), "all", known(), InvalidProducerIdMappingError),
    "fences a transactional producer": (ALONE, sent_by(9, 3, 0), "all", IN_TRANSACTIONS, InvalidTxnStateError),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_batch_changes_nothing(case):
    state, batch, acks, producer, error = REFUSED[case]
    outcome, after = decide(state, batch, acks, producer)
    assert isinstance(outcome, Rejected)
    assert type(outcome.error) is error
    assert after is state


@pytest.mark.parametrize(
    ("principal", "owner"), [("anna", "anna"), (None, "anna"), ("ben", FORGOTTEN_OWNER), (None, FORGOTTEN_OWNER)]
)
def test_owner_of_a_producer_id_appends_and_so_does_who_needs_not_be_the_owner(principal, owner):
    outcome, _ = decide(ALONE, sent_as(principal), "all", replace(known(), owner=owner))
    assert outcome == Appended(10, 13)


@pytest.mark.parametrize("first", [0, 7])
def test_any_sequence_is_the_next_one_of_a_producer_whose_sequences_have_expired(first):
    forgotten = replace(known(), owner=FORGOTTEN_OWNER)
    outcome, state = decide(ALONE, sent_by(9, 2, first), "all", forgotten)
    assert outcome == Appended(10, 13)
    after = remember(forgotten, sent_by(9, 2, first), outcome)
    outcome, _ = decide(state, sent_by(9, 2, first), "all", after)
    assert outcome == Appended(10, 13, duplicate=True)
    for gap in (first + 4, first + 2):
        outcome, _ = decide(state, sent_by(9, 2, gap), "all", after)
        assert isinstance(outcome.error, OutOfOrderSequenceNumberError)


def test_no_batch_overtakes_a_refused_one_where_any_sequence_is_the_next_one():
    forgotten = replace(known(), owner=FORGOTTEN_OWNER)
    key = (sent_by(9, 2, 7).topic_id, sent_by(9, 2, 7).partition)
    invalid = sent_by(9, 2, 7)._replace(record_count=0)

    def outcomes(*batches):
        locked = append_transaction._Locked({key: ALONE}, {(9, *key): forgotten})
        return append_transaction._assign(append_transaction.AppendRequest(batches), locked, ()).outcomes

    refused, later = outcomes(invalid, sent_by(9, 2, 10))
    assert isinstance(refused.error, InvalidRecordError)
    assert isinstance(later.error, OutOfOrderSequenceNumberError)
    assert outcomes(sent_by(9, 2, 7), sent_by(9, 2, 10)) == [Appended(10, 13), Appended(13, 16)]


def test_only_transactional_producers_have_one_epoch_for_all_partitions():
    [newest] = known((0, 2, 0)).batches
    assert with_batches(ProducerState(7), [newest]) == ProducerState(2, (newest,))
    assert with_batches(ProducerState(7), []) == ProducerState(0)
    assert with_batches(ProducerState(None), []) == ProducerState(None)
    named = ProducerState(7, transactional=True)
    assert with_batches(named, [newest]) == replace(named, batches=(newest,))


def test_commit_appends_the_batches_of_its_transaction_and_repeats_none():
    outcome, _ = decide(ALONE, sent_by(9, 2, 3), "all", IN_TRANSACTIONS, commits=True)
    assert outcome == Appended(10, 13)
    after = remember(IN_TRANSACTIONS, sent_by(9, 2, 3), outcome)
    assert after.transactional
    outcome, state = decide(ALONE, sent_by(9, 2, 3), "all", after, commits=True)
    assert isinstance(outcome.error, TransactionAbortableError)
    assert state is ALONE


def test_duplicate_is_recognized_after_the_isr_has_shrunk():
    outcome, _ = decide(ALONE._replace(min_insync_replicas=2), sent_by(9, 2, 0), "all", known((0, 2, 0)))
    assert outcome == Appended(0, 3, duplicate=True)


def test_new_epoch_begins_at_sequence_0_and_drops_the_old_batches():
    producer = known((0, 2, 0), epoch=3)
    outcome, _ = decide(ALONE, sent_by(9, 3, 0), "all", producer)
    assert outcome == Appended(10, 13)
    after = remember(producer, sent_by(9, 3, 0), outcome)
    assert after == ProducerState(3, (RememberedBatch(3, 0, 2, 10, 13),))


@pytest.mark.parametrize("last", [2**31 - 1, 0])
def test_sequences_begin_at_0_again_after_the_largest_int32(last):
    first = (last - 2) % 2**31
    producer = known((first - 1, first - 1, 5))
    outcome, state = decide(ALONE, sent_by(9, 2, first), "all", producer)
    assert outcome == Appended(10, 13)
    after = remember(producer, sent_by(9, 2, first), outcome)
    assert after.batches[-1].last_sequence == last
    assert decide(state, sent_by(9, 2, first), "all", after)[0] == replace(outcome, duplicate=True)
    assert decide(state, sent_by(9, 2, (last + 1) % 2**31), "all", after)[0] == Appended(13, 16)
    with_a_gap, _ = decide(state, sent_by(9, 2, (last + 2) % 2**31), "all", after)
    assert isinstance(with_a_gap.error, OutOfOrderSequenceNumberError)


def test_last_five_batches_are_remembered():
    producer = ProducerState(2)
    for number in range(8):
        producer = remember(producer, sent_by(9, 2, 3 * number), Appended(100 + 3 * number, 103 + 3 * number))
    assert len(producer.batches) == REMEMBERED_BATCHES == 5
    assert [batch.first_sequence for batch in producer.batches] == [9, 12, 15, 18, 21]


class Producers(RuleBasedStateMachine):
    """Producers with retries and zombies. The model has what each has sent."""

    def __init__(self):
        super().__init__()
        self.state = ALONE
        self.epochs = {1: 0, 2: 0}
        self.producers = {1: ProducerState(0), 2: ProducerState(0)}
        self.sent = {}  # (producer, epoch, first sequence, count) -> base offset, by age

    @rule(who=st.integers(1, 2), count=st.integers(1, 3))
    def producer_sends_its_next_batch(self, who, count):
        epoch = self.epochs[who]
        first = max((f + c for (w, e, f, c) in self.sent if (w, e) == (who, epoch)), default=0)
        self.send(who, epoch, first, count)

    @rule(data=st.data())
    def producer_repeats_a_batch(self, data):
        if self.sent:
            self.send(*data.draw(st.sampled_from(list(self.sent))))

    @rule(who=st.integers(1, 2), epoch=st.integers(0, 3), first=st.integers(0, 12), count=st.integers(1, 3))
    def producer_sends_anything(self, who, epoch, first, count):
        if epoch <= self.epochs[who]:  # epochs come from the store
            self.send(who, epoch, first, count)

    @rule(who=st.integers(1, 2))
    def producer_is_fenced(self, who):
        self.epochs[who] += 1
        self.producers[who] = replace(self.producers[who], epoch=self.epochs[who])

    def send(self, who, epoch, first, count):
        batch, before = sent_by(who, epoch, first, count=count), self.state
        outcome, self.state = decide(before, batch, 1, self.producers[who])
        end = before.log_end_offset
        mine = [key for key in self.sent if key[:2] == (who, epoch)]
        expected = mine[-1][2] + mine[-1][3] if mine else 0
        if epoch < self.epochs[who]:
            assert isinstance(outcome.error, ProducerFencedError)
        elif (who, epoch, first, count) in mine[-REMEMBERED_BATCHES:]:
            base = self.sent[who, epoch, first, count]
            assert outcome == Appended(base, base + count, duplicate=True)
        elif first == expected:
            assert outcome == Appended(end, end + count)
            assert self.state.log_end_offset == end + count
            self.sent[who, epoch, first, count] = end
            self.producers[who] = remember(self.producers[who], batch, outcome)
            return
        else:
            assert type(outcome.error) is (OutOfOrderSequenceNumberError if mine else UnknownProducerIdError)
        assert self.state is before


Producers.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestProducers = Producers.TestCase
