"""The rules of transactions: a table of transitions, random histories against a model, and mutations of the rules that
the model must detect.
"""

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from spark_log.errors import InvalidTxnStateError, ProducerFencedError, TransactionAbortableError
from spark_log.transactions import rules
from spark_log.transactions.rules import ABORTED, COMMITTED, EMPTY, ONGOING, TRANSITIONS, Transaction, TransactionRef
from tests.unit.transactions.transaction_world import World

# The table ------------------------------------------------------------------------------------------------------------

SAME = object()
INVALID, ABORTABLE = InvalidTxnStateError, TransactionAbortableError
OLDER, THIS, NEXT = 4, 5, 6
EXPIRED = "expired"
TABLE = {
    # (state of transaction 5, number in the call): result of register, commit and abort
    (EMPTY, OLDER): (INVALID, INVALID, INVALID),
    (EMPTY, THIS): (INVALID, INVALID, INVALID),
    (EMPTY, NEXT): (ONGOING, COMMITTED, ABORTED),
    (ONGOING, OLDER): (INVALID, INVALID, INVALID),
    (ONGOING, THIS): (ONGOING, COMMITTED, ABORTED),
    (ONGOING, NEXT): (INVALID, INVALID, INVALID),
    (EXPIRED, OLDER): (INVALID, INVALID, INVALID),
    (EXPIRED, THIS): (ABORTABLE, ABORTABLE, ABORTED),
    (EXPIRED, NEXT): (INVALID, INVALID, INVALID),
    (COMMITTED, OLDER): (INVALID, INVALID, INVALID),
    (COMMITTED, THIS): (INVALID, SAME, INVALID),
    (COMMITTED, NEXT): (ONGOING, COMMITTED, ABORTED),
    (ABORTED, OLDER): (INVALID, INVALID, INVALID),
    (ABORTED, THIS): (ABORTABLE, ABORTABLE, SAME),
    (ABORTED, NEXT): (ONGOING, COMMITTED, ABORTED),
}


def stored(state):
    expired = state is EXPIRED
    state = ONGOING if expired else state
    return Transaction(7, 3, THIS, state, 2 if state is ONGOING else 0, expired, "bills")


def calls(transaction, ref):
    """Each of the calls, with the number of pending batches."""
    there = transaction.pending if ref.number == transaction.number else 0
    yield lambda: rules.register(transaction, ref, 1)
    yield lambda: rules.commit(transaction, ref, there)
    yield lambda: rules.abort(transaction, ref)


@pytest.mark.parametrize(("state", "number"), TABLE, ids=str)
def test_transitions(state, number):
    transaction = stored(state)
    for call, expected in zip(calls(transaction, TransactionRef(7, 3, number)), TABLE[state, number], strict=True):
        if expected is SAME:
            assert call() is transaction, "the same object: nothing has to be written"
        elif expected in TRANSITIONS:
            after = call()
            assert (after.epoch, after.number, after.state, after.expired) == (3, number, expected, False)
            assert after.pending == (0 if expected is not ONGOING else 3 if number == THIS else 1)
            assert expected in TRANSITIONS[transaction.state]
        else:
            with pytest.raises(expected, match=f"transaction {number} of 'bills' .producer 7."):
                call()
    for epoch in (2, 4):
        for call in calls(transaction, TransactionRef(7, epoch, number)):
            with pytest.raises(ProducerFencedError, match=f"'bills': epoch {epoch} of producer 7 is fenced by 3"):
                call()


@pytest.mark.parametrize("state", [EMPTY, ONGOING, EXPIRED, COMMITTED, ABORTED])
def test_new_producer_aborts_the_open_transaction(state):
    before = stored(state)
    after = rules.initialize(before)
    assert after == replace(before, epoch=4, state=ABORTED, pending=0, expired=False) or (
        before.state is not ONGOING and after == replace(before, epoch=4)
    )
    timed_out = rules.time_out(before)
    assert timed_out.state is ABORTED if state is EXPIRED else timed_out is before


@pytest.mark.parametrize("batches", [0, 1, 3])
def test_commit_with_missing_batches_is_refused(batches):
    with pytest.raises(TransactionAbortableError, match=f"{batches} batches were sent and 2 are there"):
        rules.commit(stored(ONGOING), TransactionRef(7, 3, THIS), batches)


# The model ------------------------------------------------------------------------------------------------------------

FATE = st.sampled_from([0, 0, 0, 1, 2])
ANY = st.integers(0, 40)
WHO = st.sampled_from([-1, -1, -1, 0, 1, 2])
"""Most calls come from the newest producer."""


class Transactional(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.world = World()

    @rule()
    def init(self):
        self.world.init()

    @rule(who=WHO)
    def begin(self, who):
        self.world.begin(who)

    @rule(who=WHO)
    def check_another(self, who):
        self.world.check_another(who)

    @rule(who=WHO, fate=FATE)
    def send(self, who, fate):
        self.world.send(who, fate)

    @rule(who=WHO, fate=FATE)
    def begin_and_send(self, who, fate):
        self.world.begin(who)
        self.world.send(who, fate)

    @rule(who=WHO, fate=FATE)
    def commit(self, who, fate):
        self.world.commit(who, fate)

    @rule(who=WHO, fate=FATE)
    def abort(self, who, fate):
        self.world.abort(who, fate)

    @rule(which=ANY)
    def late(self, which):
        self.world.late(-which)

    @rule()
    def expire(self):
        self.world.expire()

    @rule()
    def time_out(self):
        self.world.time_out()

    @rule(lost=st.integers(1, 3))
    def crash(self, lost):
        self.world.crash(lost)


Transactional.TestCase.settings = settings(max_examples=150, stateful_step_count=40)
TestTransactional = Transactional.TestCase


# Mutations: each removes or breaks one rule, and the model must detect it --------------------------------------------


def without(*refused):
    """Mutant: `check` and `_check_claim` without the errors that contain one of these texts."""

    def mutant(patch):
        check_claim, check = rules._check_claim, rules.check

        def lenient(of):
            def run(transaction, ref):
                try:
                    of(transaction, ref)
                except Exception as error:
                    if not any(text in str(error) for text in refused):
                        raise

            return run

        patch(rules, "_check_claim", lenient(check_claim))
        patch(rules, "check", lenient(check))

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
    patch(rules, "_is_the_last", lambda row, ref: False)


def commit_leaves_it_open(patch):
    patch(rules, "over", lambda row, state: replace(row, pending=0))


def repeated_commit_is_recognized_by_number_only(patch):
    patch(rules, "_is_the_last", lambda row, ref: row.number == ref.number)


def committed_transaction_can_be_aborted(patch):
    abort = rules.abort

    def lenient(row, ref):
        if rules._is_the_last(row, ref) and row.state is COMMITTED:
            return replace(row, state=ABORTED)
        return abort(row, ref)

    patch(rules, "abort", lenient)


def abort_of_an_unknown_transaction_is_not_stored(patch):
    abort = rules.abort
    patch(rules, "abort", lambda row, ref: row if ref.number > row.number else abort(row, ref))


def abort_keeps_pending_batches(patch):
    over = rules.over
    patch(rules, "over", lambda row, state: replace(over(row, state), pending=row.pending))


def init_does_not_abort(patch):
    patch(rules, "initialize", lambda row: replace(row, epoch=row.epoch + 1))


def init_does_not_increment_the_epoch(patch):
    initialize = rules.initialize
    patch(rules, "initialize", lambda row: replace(initialize(row), epoch=max(row.epoch, 0)))


def init_resets_the_number(patch):
    initialize = rules.initialize
    patch(rules, "initialize", lambda row: replace(initialize(row), number=0))


def time_out_ignores_the_time(patch):
    time_out = rules.time_out
    patch(rules, "time_out", lambda row: time_out(replace(row, expired=True)) if row.state is ONGOING else row)


def nothing_times_out(patch):
    patch(rules, "time_out", lambda row: row)


def new_transaction_takes_over_pending_batches(patch):
    register = rules.register
    patch(rules, "register", lambda row, ref, batches: register(replace(row, state=EMPTY), ref, batches))


no_epochs = without("is fenced by")
no_numbers = without("is over: the current one")
several_open_transactions = without("cannot begin")
aborted_transaction_continues = without("has been aborted")
committed_transaction_continues = without("cannot go on")

ONE_OPEN = "init; begin 0; send 0"
DETECTED_IN = {
    "no_epochs": (no_epochs, "init; begin 0; init; begin 1; send 1; send 0"),
    "no_numbers, and a late send": (no_numbers, f"{ONE_OPEN}; commit 0; begin 0; send 0; late 0"),
    "no_numbers, and a late commit of offsets": (
        no_numbers,
        "init; begin 0; commit 0 2; abort 0; begin 0; send 0; late 0",
    ),
    "no_numbers, and a late abort": (no_numbers, f"{ONE_OPEN}; abort 0; begin 0; send 0; late 1"),
    "several_open_transactions": (several_open_transactions, f"{ONE_OPEN}; check_another 0"),
    "aborted_transaction_continues": (aborted_transaction_continues, f"{ONE_OPEN}; expire; time_out; send 0"),
    "committed_transaction_continues": (committed_transaction_continues, f"{ONE_OPEN}; commit 0; late 0"),
    "commit_does_not_check_the_count": (commit_does_not_check_the_count, f"{ONE_OPEN}; send 0; crash 1; commit 0"),
    "commit_ignores_the_timeout": (commit_ignores_the_timeout, f"{ONE_OPEN}; expire; commit 0"),
    "repeated_commit_is_done_again": (
        repeated_commit_is_done_again,
        f"{ONE_OPEN}; commit 0 1; commit 0",
    ),
    "repeated_commit_is_refused": (repeated_commit_is_refused, f"{ONE_OPEN}; commit 0 1; commit 0"),
    "commit_leaves_it_open": (commit_leaves_it_open, f"{ONE_OPEN}; commit 0"),
    "repeated_commit_is_recognized_by_number_only": (
        repeated_commit_is_recognized_by_number_only,
        f"{ONE_OPEN}; commit 0; init; late -1",
    ),
    "committed_transaction_can_be_aborted": (committed_transaction_can_be_aborted, f"{ONE_OPEN}; commit 0 1; abort 0"),
    "abort_of_an_unknown_transaction_is_not_stored": (
        abort_of_an_unknown_transaction_is_not_stored,
        "init; begin 0; send 0 2; abort 0; late 0",
    ),
    "abort_keeps_pending_batches": (abort_keeps_pending_batches, f"{ONE_OPEN}; abort 0"),
    "init_does_not_abort": (init_does_not_abort, f"{ONE_OPEN}; init"),
    "init_does_not_increment_the_epoch": (init_does_not_increment_the_epoch, "init; init"),
    "init_resets_the_number": (init_resets_the_number, f"{ONE_OPEN}; commit 0; init"),
    "time_out_ignores_the_time": (time_out_ignores_the_time, f"{ONE_OPEN}; time_out"),
    "nothing_times_out": (nothing_times_out, f"{ONE_OPEN}; expire; time_out"),
    "new_transaction_takes_over_pending_batches": (new_transaction_takes_over_pending_batches, f"{ONE_OPEN}; send 0"),
}


def run(steps):
    world = World()
    for step in steps.split("; "):
        name, *arguments = step.split()
        getattr(world, name)(*map(int, arguments))


@pytest.mark.parametrize(("mutant", "steps"), DETECTED_IN.values(), ids=DETECTED_IN)
def test_model_detects_the_mutation(monkeypatch, mutant, steps):
    run(steps)
    mutant(monkeypatch.setattr)
    with pytest.raises(AssertionError):
        run(steps)
