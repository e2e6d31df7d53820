"""The rules of transactions: the order of calls, and their effect on a transactional id's transaction. Pure.

A transactional id has a producer id and an epoch. Each `init_transactions` increases the epoch: producers with a lower
one are fenced. Each `begin_transaction` increases the transaction's number, so a delayed call of an older transaction
cannot affect a newer one (the problem that KIP-890 solves in Kafka). The batches of an open transaction are *pending*:
they have no offsets, and no reader sees them. A commit is one transaction of the metadata store, so Kafka's states
PrepareCommit and PrepareAbort do not exist.
"""

from dataclasses import dataclass, replace
from enum import StrEnum

from spark_log.errors import (
    InvalidTxnStateError,
    PolicyViolationError,
    ProducerFencedError,
    TransactionAbortableError,
)

PENDING_MAX = 50_000
"""Pending batches of a transaction. The commit reads them all, and appends them in one SQL transaction."""


class TransactionState(StrEnum):
    """Kafka's names."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"


EMPTY, ONGOING, COMMITTED, ABORTED = TransactionState

TRANSITIONS = {
    EMPTY: {EMPTY, ONGOING, COMMITTED, ABORTED},
    ONGOING: {ONGOING, COMMITTED, ABORTED},
    COMMITTED: {COMMITTED, ONGOING, ABORTED},
    ABORTED: {ABORTED, ONGOING, COMMITTED},
}
"""State -> possible next states. After a state other than ONGOING a transaction with another number begins (one with
group offsets only ends in the call that begins it). The state of one number changes only from ONGOING."""


@dataclass(frozen=True)
class TransactionRef:
    """The identity that a producer sends in each call."""

    producer_id: int
    epoch: int
    number: int


@dataclass(frozen=True)
class Transaction:
    """The current or last transaction of a transactional id."""

    producer_id: int
    epoch: int
    number: int
    state: TransactionState
    pending: int = 0
    """Number of registered batches."""
    expired: bool = False
    """Ongoing for longer than transaction.timeout.ms: it can only be aborted."""
    transactional_id: str = ""
    """For error messages."""
    numbered: bool = True
    """False: begun by a Kafka client, whose calls do not name the number (`wire_rules`)."""
    bumped_from: int = -1
    """The epoch that asked for the current one (`wire_rules.bump`); -1: none."""
    claim: int = 0
    """The newest claim of a connection of a Kafka client (`claim_rules`)."""
    offsets_claim: int = 0
    """The same for TxnOffsetCommit."""


def initialize(transaction: Transaction) -> Transaction:
    """init_transactions: fences every earlier producer with the id, and aborts the open transaction."""
    fenced = fence(transaction)
    return over(fenced, ABORTED) if transaction.state is ONGOING else fenced


def fence(transaction: Transaction) -> Transaction:
    """Increase the epoch: producers with the present one can do nothing more."""
    return replace(transaction, epoch=transaction.epoch + 1, bumped_from=-1)


def register(transaction: Transaction, ref: TransactionRef, batches: int) -> Transaction:
    """Add `batches` pending batches; the first ones begin the transaction. Raises the errors of `check`, and
    PolicyViolationError above PENDING_MAX.
    """
    check(transaction, ref)
    check_room(transaction if ref.number == transaction.number else replace(transaction, pending=0), batches)
    if ref.number > transaction.number:
        return replace(transaction, number=ref.number, state=ONGOING, pending=batches, numbered=True)
    return replace(transaction, pending=transaction.pending + batches)


def check_room(transaction: Transaction, batches: int) -> None:
    """PolicyViolationError if the transaction would have more than PENDING_MAX pending batches."""
    if transaction.pending + batches > PENDING_MAX:
        raise PolicyViolationError(
            f"transaction of {transaction.transactional_id!r}: more than {PENDING_MAX} batches before its commit; abort"
            " it, and commit more often or send larger batches (linger, batch size)"
        )


def commit(transaction: Transaction, ref: TransactionRef, batches: int) -> Transaction:
    """The committed transaction, with all of its `batches`. Unchanged if it was committed before (the answer was lost).

    Raises the errors of `check`, and TransactionAbortableError if batches are missing: their topic was deleted, or the
    store has lost batches that were not forced to disk.
    """
    if _is_the_last(transaction, ref) and transaction.state is COMMITTED:
        return transaction
    check(transaction, ref)
    there = transaction.pending if ref.number == transaction.number else 0
    if there != batches:
        raise TransactionAbortableError(
            f"{_name(transaction, ref)}: {batches} batches were sent and {there} are there: a topic was deleted"
            " meanwhile, or the metadata store has crashed; abort it, and do it again"
        )
    return over(replace(transaction, number=ref.number), COMMITTED)


def abort(transaction: Transaction, ref: TransactionRef) -> Transaction:
    """The aborted transaction, without pending batches. Unchanged if it was aborted before. A Kafka client cannot
    notice by its number that its transaction is over: it is fenced.

    Raises ProducerFencedError, and InvalidTxnStateError if it was committed or is an older one.
    """
    if _is_the_last(transaction, ref) and transaction.state is ABORTED:
        return transaction
    _check_claim(transaction, ref)
    if ref.number == transaction.number and transaction.state is not ONGOING:
        raise InvalidTxnStateError(f"{_name(transaction, ref)} cannot be aborted: it is {transaction.state}")
    begun_by_client = not transaction.numbered and ref.number == transaction.number
    return over(replace(fence(transaction) if begun_by_client else transaction, number=ref.number), ABORTED)


def time_out(transaction: Transaction) -> Transaction:
    """The transaction, aborted if it has timed out; a Kafka client is fenced."""
    if transaction.state is not ONGOING or not transaction.expired:
        return transaction
    return over(transaction if transaction.numbered else fence(transaction), ABORTED)


def check(transaction: Transaction, ref: TransactionRef) -> None:
    """Raise an error unless the transaction of `ref` can continue or begin.

    ProducerFencedError for a lower epoch; TransactionAbortableError if it has been aborted (by its time-out or by an
    operator); InvalidTxnStateError for an older transaction, a committed one, and a new one while another is open.
    """
    _check_claim(transaction, ref)
    name = _name(transaction, ref)
    if ref.number == transaction.number:
        if transaction.state is ABORTED or transaction.expired:
            raise TransactionAbortableError(
                f"{name} has been aborted: transaction_timeout_ms was over, or an operator did it"
            )
        if transaction.state is not ONGOING:
            raise InvalidTxnStateError(f"{name} cannot go on: its state is {transaction.state}")


def _check_claim(transaction: Transaction, ref: TransactionRef) -> None:
    if ref.epoch != transaction.epoch:
        raise ProducerFencedError(
            f"transactional_id {transaction.transactional_id!r}: epoch {ref.epoch} of producer {ref.producer_id} is"
            f" fenced by {transaction.epoch}: another producer has the same transactional_id"
        )
    name = _name(transaction, ref)
    if ref.number < transaction.number:
        raise InvalidTxnStateError(f"{name} is over: the current one is {transaction.number}")
    if ref.number > transaction.number and transaction.state is ONGOING:
        raise InvalidTxnStateError(f"{name} cannot begin: {transaction.number} is {transaction.state}")


def _is_the_last(transaction: Transaction, ref: TransactionRef) -> bool:
    return (ref.epoch, ref.number) == (transaction.epoch, transaction.number)


def over(transaction: Transaction, state: TransactionState) -> Transaction:
    """The transaction in a state without pending batches."""
    assert state in TRANSITIONS[transaction.state]
    return replace(transaction, state=state, pending=0, expired=False)


def _name(transaction: Transaction, ref: TransactionRef) -> str:
    return f"transaction {ref.number} of {transaction.transactional_id!r} (producer {ref.producer_id})"
