"""The rules of transactions: a table of transitions, random histories against a model, and mutations of the rules that
the model must detect.
"""

from dataclasses import replace

import pytest
from hypothesis import settings

from spark_log.errors import (
    InvalidProducerIdMappingError,
    InvalidTxnStateError,
    ProducerFencedError,
    TransactionAbortableError,
)
from spark_log.transactions import rules
from spark_log.transactions.rules import ABORTED, COMMITTED, EMPTY, ONGOING, TRANSITIONS, ProducerRef, Transaction
from tests.unit.transactions.transaction_world import World

# The table ------------------------------------------------------------------------------------------------------------

SAME = object()
INVALID, ABORTABLE, FENCED = InvalidTxnStateError, TransactionAbortableError, ProducerFencedError
EXPIRED = "expired"
EPOCH = 5
RAISED = {
    # state: result of register, commit and abort of a producer whose epoch each end raises
    EMPTY: (ONGOING, COMMITTED, ABORTED),
    ONGOING: (ONGOING, COMMITTED, ABORTED),
    EXPIRED: (ABORTABLE, ABORTABLE, ABORTED),
    COMMITTED: (ONGOING, COMMITTED, ABORTED),
    ABORTED: (ONGOING, COMMITTED, ABORTED),
}
AGAIN = {
    # how the transaction of the epoch has ended: result of the same calls after it
    COMMITTED: (INVALID, SAME, INVALID),
    ABORTED: (ABORTABLE, ABORTABLE, SAME),
}
KEPT = {
    # state: result of begin, check_open, has_ended (commit), and an abort that keeps the epoch
    EMPTY: (ONGOING, INVALID, INVALID, ABORTED),
    ONGOING: (SAME, None, False, ABORTED),
    EXPIRED: (ABORTABLE, ABORTABLE, ABORTABLE, ABORTED),
    COMMITTED: (ONGOING, INVALID, True, ABORTED),
    ABORTED: (ONGOING, INVALID, INVALID, SAME),
}


def stored(state, previous_epoch=-1):
    expired = state is EXPIRED
    state = ONGOING if expired else state
    return Transaction(7, EPOCH, state, 2 if state is ONGOING else 0, expired, "bills", previous_epoch)


def calls(transaction, ref):
    """Each of the calls, with the number of pending batches."""
    yield lambda: rules.register(transaction, ref, 1)
    yield lambda: rules.commit(transaction, ref, transaction.pending)
    yield lambda: rules.abort(transaction, ref)


def calls_of_clients(transaction, ref):
    yield lambda: rules.begin(transaction, ref)
    yield lambda: rules.check_open(transaction, ref)
    yield lambda: rules.has_ended(transaction, ref, commit=True)
    yield lambda: rules.abort(transaction, ref, keeps_epoch=True)


def expect(call, expected, transaction, raised):
    if expected is SAME:
        assert call() is transaction, "the same object: nothing has to be written"
    elif isinstance(expected, type):
        with pytest.raises(expected, match="'bills'"):
            call()
    elif expected in TRANSITIONS:
        after = call()
        ended = expected is not ONGOING
        assert (after.epoch, after.state, after.expired) == (EPOCH + (raised and ended), expected, False)
        assert after.previous_epoch == (EPOCH if raised and ended else -1) and (after.pending == 0 or not ended)
        assert expected in TRANSITIONS[transaction.state]
    else:
        assert call() is expected


@pytest.mark.parametrize("state", RAISED, ids=str)
def test_transitions(state):
    transaction = stored(state)
    for call, expected in zip(calls(transaction, ProducerRef(7, EPOCH)), RAISED[state], strict=True):
        expect(call, expected, transaction, raised=True)
    for call, expected in zip(calls_of_clients(transaction, ProducerRef(7, EPOCH)), KEPT[state], strict=True):
        expect(call, expected, transaction, raised=False)
    for ref, error in (
        (ProducerRef(7, EPOCH - 1), ProducerFencedError),
        (ProducerRef(7, EPOCH + 1), ProducerFencedError),
        (ProducerRef(7, -1), ProducerFencedError),
        (ProducerRef(8, EPOCH), InvalidProducerIdMappingError),
    ):
        for call in (*calls(transaction, ref), *calls_of_clients(transaction, ref)):
            with pytest.raises(error, match="'bills'"):
                call()


@pytest.mark.parametrize("state", AGAIN, ids=str)
def test_calls_after_the_end(state):
    transaction = stored(state, previous_epoch=EPOCH - 1)
    for call, expected in zip(calls(transaction, ProducerRef(7, EPOCH - 1)), AGAIN[state], strict=True):
        expect(call, expected, transaction, raised=True)
    begun = rules.begin(transaction, ProducerRef(7, EPOCH))
    for call in calls(begun, ProducerRef(7, EPOCH - 1)):
        with pytest.raises(ProducerFencedError):
            call()


def test_a_repeated_commit_that_keeps_the_epoch_changes_nothing():
    committed = rules.commit(stored(ONGOING), ProducerRef(7, EPOCH), 2, keeps_epoch=True)
    assert (committed.epoch, committed.state) == (EPOCH, COMMITTED)
    assert rules.commit(committed, ProducerRef(7, EPOCH), 2, keeps_epoch=True) is committed


@pytest.mark.parametrize("state", RAISED, ids=str)
def test_new_producer_aborts_the_open_transaction(state):
    before = stored(state, previous_epoch=EPOCH - 1)
    after = rules.initialize(before)
    assert after == replace(
        before, epoch=EPOCH + 1, previous_epoch=-1, pending=0, expired=False,
        state=ABORTED if before.state is ONGOING else before.state,
    )  # fmt: skip
    timed_out = rules.time_out(before)
    assert timed_out.state is ABORTED if state is EXPIRED else timed_out is before


@pytest.mark.parametrize("batches", [0, 1, 3])
def test_commit_with_missing_batches_is_refused(batches):
    with pytest.raises(TransactionAbortableError, match=f"{batches} batches were sent and 2 are there"):
        rules.commit(stored(ONGOING), ProducerRef(7, EPOCH), batches)


def test_only_the_newest_producer_gets_the_next_epoch_and_may_ask_again():
    ref = ProducerRef(7, EPOCH)
    bumped = rules.bump(stored(ONGOING), ref)
    assert (bumped.epoch, bumped.state) == (EPOCH + 1, ABORTED)
    assert rules.bump(bumped, ref) is bumped
    assert rules.bump(bumped, ProducerRef(7, EPOCH + 1)).epoch == EPOCH + 2
    for later in (rules.begin(bumped, ProducerRef(7, EPOCH + 1)), rules.initialize(bumped)):
        with pytest.raises(ProducerFencedError):
            rules.bump(later, ref)


# The model ------------------------------------------------------------------------------------------------------------

World.TestCase.settings = settings(max_examples=150, stateful_step_count=40)
TestTransactional = World.TestCase


# Mutations: each removes or breaks one rule, and the model must detect it --------------------------------------------


def without(name, refused):
    """Mutant: this function without the errors that contain the text."""

    def mutant(patch):
        strict = getattr(rules, name)

        def lenient(transaction, ref):
            try:
                strict(transaction, ref)
            except Exception as error:
                if refused not in str(error):
                    raise

        patch(rules, name, lenient)

    mutant.__name__ = f"{name} without {refused!r}"
    return mutant


def commit_does_not_check_the_count(patch):
    commit = rules.commit
    patch(rules, "commit", lambda row, ref, batches: commit(replace(row, pending=batches), ref, batches))


def commit_ignores_the_timeout(patch):
    commit = rules.commit
    patch(rules, "commit", lambda row, ref, batches: commit(replace(row, expired=False), ref, batches))


def repeated_commit_is_done_again(patch):
    commit = rules.commit
    patch(rules, "commit", lambda row, ref, batches: replace(commit(row, ref, batches)))


def repeated_commit_is_refused(patch):
    patch(rules, "_has_ended", lambda row, ref, state, keeps_epoch: False)


def commit_leaves_it_open(patch):
    patch(rules, "_over", lambda row, state: replace(row, pending=0))


def ends_keep_the_epoch(patch):
    ended = rules._ended
    patch(rules, "_ended", lambda row, state, keeps_epoch: ended(row, state, True))


def every_earlier_epoch_may_ask(patch):
    patch(rules, "_is_previous", lambda row, ref: ref.epoch < row.epoch)


def committed_transaction_can_be_aborted(patch):
    abort = rules.abort

    def lenient(row, ref):
        if rules._is_previous(row, ref) and row.state is COMMITTED:
            return replace(row, state=ABORTED)
        return abort(row, ref)

    patch(rules, "abort", lenient)


def abort_of_an_unknown_transaction_is_not_stored(patch):
    abort = rules.abort

    def forgetful(row, ref):
        return row if ref.epoch == row.epoch and row.state is not ONGOING else abort(row, ref)

    patch(rules, "abort", forgetful)


def abort_keeps_pending_batches(patch):
    over = rules._over
    patch(rules, "_over", lambda row, state: replace(over(row, state), pending=row.pending))


def init_does_not_abort(patch):
    patch(rules, "initialize", lambda row: replace(row, epoch=row.epoch + 1, previous_epoch=-1))


def init_does_not_increment_the_epoch(patch):
    initialize = rules.initialize
    patch(rules, "initialize", lambda row: replace(initialize(row), epoch=max(row.epoch, 0)))


def init_lets_the_previous_producer_ask(patch):
    initialize = rules.initialize
    patch(rules, "initialize", lambda row: replace(initialize(row), previous_epoch=row.previous_epoch))


def time_out_ignores_the_time(patch):
    time_out = rules.time_out
    patch(rules, "time_out", lambda row: time_out(replace(row, expired=True)) if row.state is ONGOING else row)


def nothing_times_out(patch):
    patch(rules, "time_out", lambda row: row)


def new_transaction_takes_over_pending_batches(patch):
    begin = rules.begin
    patch(rules, "begin", lambda row, ref: begin(replace(row, state=EMPTY), ref))


no_epochs = without("_check_epoch", "is fenced by")
aborted_transaction_continues = without("check", "has been aborted")
committed_transaction_continues = without("check", "cannot go on")

ONE_OPEN = "init; begin 0; send 0"
DETECTED_IN = [
    (no_epochs, "init; begin 0; init; begin 1; send 1; send 0"),
    (ends_keep_the_epoch, f"{ONE_OPEN}; commit 0; begin 0; send 0; late 0"),
    (no_epochs, "init; begin 0; commit 0 2; abort 0; begin 0; send 0; late 0"),
    (no_epochs, f"{ONE_OPEN}; abort 0; begin 0; send 0; late 1"),
    (aborted_transaction_continues, f"{ONE_OPEN}; expire; send 0"),
    (committed_transaction_continues, f"{ONE_OPEN}; commit 0; late 0"),
    (commit_does_not_check_the_count, f"{ONE_OPEN}; send 0; crash 1; commit 0"),
    (commit_ignores_the_timeout, f"{ONE_OPEN}; expire; commit 0"),
    (repeated_commit_is_done_again, f"{ONE_OPEN}; commit 0 1; commit 0"),
    (repeated_commit_is_refused, f"{ONE_OPEN}; commit 0 1; commit 0"),
    (commit_leaves_it_open, f"{ONE_OPEN}; commit 0"),
    (every_earlier_epoch_may_ask, f"{ONE_OPEN}; commit 0; init; late -1"),
    (committed_transaction_can_be_aborted, f"{ONE_OPEN}; commit 0 1; abort 0"),
    (abort_of_an_unknown_transaction_is_not_stored, "init; begin 0; send 0 2; abort 0; late 0"),
    (abort_keeps_pending_batches, f"{ONE_OPEN}; abort 0"),
    (init_does_not_abort, f"{ONE_OPEN}; init"),
    (init_does_not_increment_the_epoch, "init; init"),
    (init_lets_the_previous_producer_ask, f"{ONE_OPEN}; commit 0; init; late 1"),
    (time_out_ignores_the_time, f"{ONE_OPEN}; time_out"),
    (nothing_times_out, f"{ONE_OPEN}; expire; time_out"),
    (new_transaction_takes_over_pending_batches, f"{ONE_OPEN}; send 0"),
]


def run(steps):
    world = World()
    for step in steps.split("; "):
        name, *arguments = step.split()
        getattr(world, name)(*map(int, arguments))


@pytest.mark.parametrize(("mutant", "steps"), DETECTED_IN, ids=lambda each: getattr(each, "__name__", each))
def test_model_detects_the_mutation(monkeypatch, mutant, steps):
    run(steps)
    mutant(monkeypatch.setattr)
    with pytest.raises(AssertionError):
        run(steps)
