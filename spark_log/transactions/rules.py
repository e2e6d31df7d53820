"""The rules of transactions. Pure: which call may follow which, and what becomes of a transactional id's transaction.

A transactional id has a producer id and an epoch, which each `init_transactions` raises: lower ones are fenced. Each
transaction has a number, which grows with every `begin_transaction`, so a late call of an older one cannot touch a
newer (what KIP-890 mended in Kafka). Its batches are *pending*: they have no offset, and nobody sees them. A commit is
one transaction of the metadata store, so Kafka's states PrepareCommit and PrepareAbort do not exist.
"""

from dataclasses import dataclass, replace
from enum import StrEnum

from spark_log.errors import InvalidTxnStateError, ProducerFencedError, TransactionAbortableError


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
"""What may come after what. From one that is over, another number begins (and a transaction of group offsets alone is
over when it begins); the state of one number changes from ONGOING only."""


@dataclass(frozen=True)
class TransactionRef:
    """What a producer says of itself in each call."""

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
    """Batches that are registered."""
    expired: bool = False
    """Ongoing for longer than transaction.timeout.ms: whoever meets it aborts it."""
    transactional_id: str = ""
    """For messages."""


def initialize(transaction: Transaction) -> Transaction:
    """init_transactions: fences every producer that had the id, and aborts what the last one left open."""
    fenced = replace(transaction, epoch=transaction.epoch + 1)
    return _over(fenced, ABORTED) if transaction.state is ONGOING else fenced


def register(transaction: Transaction, ref: TransactionRef, batches: int) -> Transaction:
    """So many batches more; the first ones begin the transaction. Raises what `check` does."""
    check(transaction, ref)
    if ref.number > transaction.number:
        return replace(transaction, number=ref.number, state=ONGOING, pending=batches)
    return replace(transaction, pending=transaction.pending + batches)


def commit(transaction: Transaction, ref: TransactionRef, batches: int) -> Transaction:
    """Over, with all of its `batches`. The same transaction if it was committed before: the answer had been lost.

    Raises what `check` does, and TransactionAbortableError if not all batches are there: their topic was deleted, or
    the store has lost what it had not forced to disk.
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
    return _over(replace(transaction, number=ref.number), COMMITTED)


def abort(transaction: Transaction, ref: TransactionRef) -> Transaction:
    """Over, with nothing of it. The same transaction if it was aborted before.

    Raises ProducerFencedError, and InvalidTxnStateError if it was committed or is an older one.
    """
    if _is_the_last(transaction, ref) and transaction.state is ABORTED:
        return transaction
    _check_claim(transaction, ref)
    if ref.number == transaction.number and transaction.state is not ONGOING:
        raise InvalidTxnStateError(f"{_name(transaction, ref)} cannot be aborted: it is {transaction.state}")
    return _over(replace(transaction, number=ref.number), ABORTED)


def time_out(transaction: Transaction) -> Transaction:
    """The same, aborted if its time is over."""
    return _over(transaction, ABORTED) if transaction.state is ONGOING and transaction.expired else transaction


def check(transaction: Transaction, ref: TransactionRef) -> None:
    """Whether the claim's transaction can go on, or begin.

    Raises ProducerFencedError for a lower epoch, TransactionAbortableError where it has been aborted (its time was
    over, or an operator did it), InvalidTxnStateError for an older transaction, one that is committed, and a new one
    while another is open.
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


def _over(transaction: Transaction, state: TransactionState) -> Transaction:
    assert state in TRANSITIONS[transaction.state]
    return replace(transaction, state=state, pending=0, expired=False)


def _name(transaction: Transaction, ref: TransactionRef) -> str:
    return f"transaction {ref.number} of {transaction.transactional_id!r} (producer {ref.producer_id})"
