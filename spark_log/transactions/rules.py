"""Defines the order of calls in a transaction, and their effect on the transaction of a transactional id. Pure.

A transactional id has a producer id and an epoch. Each `init_transactions` raises the epoch, and fences producers with
a lower one. Each end of a transaction also raises it (KIP-890), so that a delayed call of an older transaction cannot
affect a newer one; the producer continues with the next epoch. The clients of a gateway do not know KIP-890: their
commits and aborts keep the epoch (`keeps_epoch`), and `fencing_rules` refuses their delayed calls.

The batches of an open transaction are *pending*: they have no offsets, and no reader sees them. A commit is one
transaction of the metadata store, so Kafka's states PrepareCommit and PrepareAbort do not exist.

A transaction with batches in data stores has a *part* in each of them (`part_rules`). The commit in the home store is
its decision. Until all data stores have appended their parts, the transaction is *unfinished*, and the next one cannot
begin.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from spark_log.errors import (
    CrossStoreTransactionError,
    InvalidProducerIdMappingError,
    InvalidTxnStateError,
    PolicyViolationError,
    ProducerFencedError,
    TransactionAbortableError,
    TransactionCommitPendingError,
)
from spark_log.ids import HOME, StoreId

PENDING_MAX = 50_000
"""The limit of pending batches of a transaction. The commit reads and appends all of them in one SQL transaction."""
GROUPS_MAX = 1_000
"""The limit of groups whose offsets a transaction commits. The commit locks all of them in one SQL transaction."""
EPOCH_MAX = 2**15 - 2
"""The highest epoch that a producer uses, since Kafka's epochs are int16. Above it, `init_producer` gives the
transactional id another producer id, as in Kafka."""


class TransactionState(StrEnum):
    """The state of a transaction, with Kafka's names."""

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
"""The possible next states of each state. After a state other than ONGOING the next transaction begins. A transaction
that has only group offsets may begin and end in the same call."""


@dataclass(frozen=True)
class ProducerRef:
    """The identity that a producer sends in each call. Where each commit and abort raises the epoch, it identifies a
    transaction.
    """

    producer_id: int
    epoch: int


@dataclass(frozen=True)
class Parts:
    """The data stores that have a part of a transaction. `number` names the parts; a later transaction has a higher
    one. Epochs do not name them, because Kafka clients keep theirs.
    """

    number: int = 0
    stores: frozenset[StoreId] = frozenset()


NO_PARTS = Parts()


@dataclass(frozen=True)
class Transaction:
    """The current or last transaction of a transactional id."""

    producer_id: int
    epoch: int
    state: TransactionState
    pending: int = 0
    """The number of registered batches."""
    expired: bool = False
    """Whether it has been open for longer than transaction.timeout.ms, and can only be aborted."""
    transactional_id: str = ""
    """The transactional id, for error messages."""
    previous_epoch: int = -1
    """The epoch of the producer that may continue with the current epoch, until it does, or -1. That producer has
    requested the current epoch (`bump`), or its transaction has ended as `state` says.
    """
    token: int = 0
    """The newest fencing token of a connection of a Kafka client with the role COORDINATOR (`fencing_rules`)."""
    offsets_token: int = 0
    """The newest fencing token with the role OFFSETS, for TxnOffsetCommit."""
    parts: Parts = NO_PARTS
    """The stores that have a part of the open transaction; of a committed one, those that have not appended it yet. The
    number is at least that of the last transaction that had parts.
    """


def initialize(transaction: Transaction) -> Transaction:
    """Apply init_transactions: fence every earlier producer with the id, and abort the open transaction. Raises
    TransactionCommitPendingError if the last one is unfinished.
    """
    check_finished(transaction)
    fenced = replace(transaction, epoch=transaction.epoch + 1, previous_epoch=-1)
    return _over(fenced, ABORTED) if transaction.state is ONGOING else fenced


def bump(transaction: Transaction, ref: ProducerRef) -> Transaction:
    """Apply InitProducerId of a producer with an epoch (KIP-360): raise the epoch, and abort its open transaction.

    Unchanged if the current epoch was already made for the producer, because the answer to the same call was lost, or
    its transaction has timed out. Raises InvalidProducerIdMappingError, ProducerFencedError, and
    TransactionCommitPendingError.
    """
    if _is_previous(transaction, ref):
        return transaction
    _check_epoch(transaction, ref)
    return replace(initialize(transaction), previous_epoch=ref.epoch)


def check(transaction: Transaction, ref: ProducerRef) -> None:
    """Raise an error unless the producer's transaction can continue or begin.

    Raises ProducerFencedError for another epoch, InvalidProducerIdMappingError for another producer id,
    TransactionAbortableError if the transaction has timed out or an operator has aborted it, and InvalidTxnStateError
    if it has been committed.
    """
    if _is_previous(transaction, ref) and transaction.state is COMMITTED:
        raise InvalidTxnStateError(f"{_name(transaction, ref)} cannot go on: its state is {transaction.state}")
    if _is_previous(transaction, ref) or (_is_current(transaction, ref) and transaction.expired):
        raise TransactionAbortableError(
            f"{_name(transaction, ref)} has been aborted: transaction_timeout_ms was over, or an operator did it"
        )
    _check_epoch(transaction, ref)


def check_open(transaction: Transaction, ref: ProducerRef) -> None:
    """Raise the errors of `check`, and InvalidTxnStateError unless the transaction is open."""
    check(transaction, ref)
    if transaction.state is not ONGOING:
        raise InvalidTxnStateError(
            f"{_name(transaction, ref)}: no transaction is open: the last one is {transaction.state}"
        )


def begin(transaction: Transaction, ref: ProducerRef) -> Transaction:
    """Return the open transaction unchanged, or begin the next one. Raises the errors of `check`, and
    TransactionCommitPendingError if the last one is unfinished.
    """
    check(transaction, ref)
    if transaction.state is ONGOING:
        return transaction
    check_finished(transaction)
    return replace(transaction, state=ONGOING, pending=0, previous_epoch=-1, parts=_next_parts(transaction))


def register(transaction: Transaction, ref: ProducerRef, batches: int) -> Transaction:
    """Add `batches` pending batches. The first ones begin the transaction. Raises the errors of `begin`, and
    PolicyViolationError above PENDING_MAX.
    """
    begun = begin(transaction, ref)
    check_pending(begun.pending + batches, f"transaction of {begun.transactional_id!r}")
    return replace(begun, pending=begun.pending + batches)


def check_pending(batches: int, what: str = "transaction") -> None:
    """Raise PolicyViolationError above PENDING_MAX."""
    if batches > PENDING_MAX:
        raise PolicyViolationError(
            f"{what}: more than {PENDING_MAX} batches before its commit; abort it, and commit more often or send larger"
            " batches (linger, batch size)"
        )


def check_groups(group_ids: Collection[str], what: str) -> None:
    """Raise PolicyViolationError if a transaction would commit offsets of more than GROUPS_MAX groups."""
    if len(group_ids) > GROUPS_MAX:
        raise PolicyViolationError(
            f"{what}: offsets of more than {GROUPS_MAX} groups; abort it, and commit those of fewer groups together"
        )


def join(
    transaction: Transaction, ref: ProducerRef, store_id: StoreId, *, across: bool = False, now_ms: int = 0
) -> Transaction:
    """Give the transaction a part in a data store, before its first batch there; the first call begins the transaction.
    Unchanged if it has the part, and for the home store. Raises the errors of `begin` and, unless `across`, of
    `check_stores`.

    With `now_ms`, the number of the parts is at least the time, so it is higher than any number that a restored home
    store has lost.
    """
    begun = begin(transaction, ref)
    if store_id in begun.parts.stores:
        return begun
    stores = begun.parts.stores | {store_id}
    if not across:
        check_stores([*stores, *([HOME] if begun.pending else [])])
    if store_id == HOME:
        return begun
    number = begun.parts.number if begun.parts.stores else max(begun.parts.number + 1, now_ms)
    return replace(begun, parts=Parts(number, stores))


def check_stores(stores: Iterable[StoreId]) -> None:
    """Raise CrossStoreTransactionError for a transaction with topics of several stores."""
    if len(numbers := sorted(set(stores))) > 1:
        raise CrossStoreTransactionError(
            f"a transaction would write to topics of the stores {', '.join(map(str, numbers))}. Readers may see it in"
            " one store first: allow that with the cluster setting transaction.cross.store=allow, or move the topics to"
            " one store (`spark-log topic move`)"
        )


def commit(
    transaction: Transaction, ref: ProducerRef, batches: int, parts: Parts = NO_PARTS, *, keeps_epoch: bool = False
) -> Transaction:
    """Commit the transaction with all its `batches` in the home store, and its prepared `parts`. Unchanged if the same
    call, whose answer was lost, committed it. This decides about the parts: until each is finished (`finish`), the
    transaction is unfinished.

    Raises the errors of `check`, and TransactionAbortableError if batches are missing, because their topic was deleted,
    or the store has lost batches that were not forced to disk, or if it has a part that is not prepared.
    """
    if _has_ended(transaction, ref, COMMITTED, keeps_epoch):
        return transaction
    check(transaction, ref)
    there = transaction.pending if transaction.state is ONGOING else 0
    if there != batches:
        raise TransactionAbortableError(
            f"{_name(transaction, ref)}: {batches} batches were sent and {there} are there: a topic was deleted"
            " meanwhile, or the metadata store has crashed; abort it, and do it again"
        )
    if transaction.state is not ONGOING:
        check_finished(transaction)
        transaction = replace(transaction, parts=_next_parts(transaction))
    joined = transaction.parts
    if joined.stores != parts.stores or (parts.stores and joined.number != parts.number):
        raise TransactionAbortableError(
            f"{_name(transaction, ref)}: its parts {_numbers(parts)} are prepared, and it has {_numbers(joined)}: abort"
            " it, and do it again"
        )
    return _ended(transaction, COMMITTED, keeps_epoch)


def finish(transaction: Transaction, number: int, store_id: StoreId) -> Transaction:
    """Note that a data store has appended its part of the committed transaction. Unchanged if that is known."""
    parts = transaction.parts
    if transaction.state is not COMMITTED or number != parts.number or store_id not in parts.stores:
        return transaction
    return replace(transaction, parts=replace(parts, stores=parts.stores - {store_id}))


def learn_commit(transaction: Transaction, parts: Parts) -> Transaction:
    """Commit a transaction whose end a restored home store does not know. Its part in one data store is committed,
    which proves the commit, and those of `parts` are only prepared.

    Unchanged if home has a later transaction, or knows the end. The producer is fenced: batches and offsets that are
    pending at home are lost, so a repeated commit must not succeed.
    """
    is_open = transaction.state is ONGOING and bool(transaction.parts.stores)
    if transaction.parts.number > parts.number or (transaction.parts.number == parts.number and not is_open):
        return transaction
    fenced = replace(transaction, epoch=transaction.epoch + 1, previous_epoch=-1, parts=parts)
    return _over(fenced, COMMITTED)


def is_unfinished(transaction: Transaction) -> bool:
    """Whether the transaction is committed, and a data store has not appended its part yet."""
    return transaction.state is COMMITTED and bool(transaction.parts.stores)


def check_finished(transaction: Transaction) -> None:
    """Raise TransactionCommitPendingError if the transaction is unfinished."""
    if is_unfinished(transaction):
        raise TransactionCommitPendingError(
            f"the transaction of {transaction.transactional_id!r} is committed, and its records are not readable yet in"
            f" the stores {_numbers(transaction.parts)}: repeat the call"
        )


def abort(transaction: Transaction, ref: ProducerRef, *, keeps_epoch: bool = False) -> Transaction:
    """Abort the transaction, and drop its pending batches. Unchanged if it was aborted before.

    Raises InvalidProducerIdMappingError and ProducerFencedError, InvalidTxnStateError if it was committed, and
    TransactionCommitPendingError if the one before it is unfinished.
    """
    if _has_ended(transaction, ref, ABORTED, keeps_epoch):
        return transaction
    if _is_previous(transaction, ref):
        raise InvalidTxnStateError(f"{_name(transaction, ref)} cannot be aborted: it is {transaction.state}")
    _check_epoch(transaction, ref)
    return _ended(transaction, ABORTED, keeps_epoch)


def has_ended(transaction: Transaction, ref: ProducerRef, *, commit: bool) -> bool:
    """For EndTxn of a client that keeps its epoch, return whether the same call has ended the transaction before, or
    False if it is open. Raises the errors of `check`, and InvalidTxnStateError if it ended otherwise or never began.
    """
    check(transaction, ref)
    if transaction.state is ONGOING:
        return False
    if transaction.state is not (COMMITTED if commit else ABORTED):
        end = "committed" if commit else "aborted"
        raise InvalidTxnStateError(f"{_name(transaction, ref)}: cannot be {end}: it is {transaction.state}")
    return True


def time_out(transaction: Transaction) -> Transaction:
    """Abort the transaction if it has timed out.

    Before its next transaction the producer must call `abort`, or `bump` if it is a Kafka client.
    """
    if transaction.state is not ONGOING or not transaction.expired:
        return transaction
    return _ended(transaction, ABORTED, keeps_epoch=False)


def _check_epoch(transaction: Transaction, ref: ProducerRef) -> None:
    if ref.producer_id != transaction.producer_id:
        raise InvalidProducerIdMappingError(
            f"transactional_id {transaction.transactional_id!r} has another producer id than {ref.producer_id}"
        )
    if ref.epoch != transaction.epoch:
        raise ProducerFencedError(
            f"transactional_id {transaction.transactional_id!r}: epoch {ref.epoch} of producer {ref.producer_id} is"
            f" fenced by {transaction.epoch}: another producer has the same transactional_id"
        )


def _is_current(transaction: Transaction, ref: ProducerRef) -> bool:
    return (ref.producer_id, ref.epoch) == (transaction.producer_id, transaction.epoch)


def _is_previous(transaction: Transaction, ref: ProducerRef) -> bool:
    return ref.producer_id == transaction.producer_id and ref.epoch == transaction.previous_epoch >= 0


def _has_ended(transaction: Transaction, ref: ProducerRef, state: TransactionState, keeps_epoch: bool) -> bool:
    """Whether the same call has ended the transaction before."""
    if transaction.state is not state:
        return False
    return _is_previous(transaction, ref) or (keeps_epoch and _is_current(transaction, ref))


def _ended(transaction: Transaction, state: TransactionState, keeps_epoch: bool) -> Transaction:
    check_finished(transaction)
    if keeps_epoch:
        return _over(transaction, state)
    return _over(replace(transaction, epoch=transaction.epoch + 1, previous_epoch=transaction.epoch), state)


def _over(transaction: Transaction, state: TransactionState) -> Transaction:
    """Return the transaction in a state without pending batches. Parts of an aborted one are dropped later
    (`part_rules.resolve`).
    """
    assert state in TRANSITIONS[transaction.state]
    parts = Parts(transaction.parts.number) if state is ABORTED else transaction.parts
    return replace(transaction, state=state, pending=0, expired=False, parts=parts)


def _next_parts(transaction: Transaction) -> Parts:
    """Return the parts with which the next transaction begins. After an abort they have another number: a part of the
    aborted transaction that still exists must not be taken for one of the next transaction.
    """
    return Parts(transaction.parts.number + 1) if transaction.state is ABORTED else transaction.parts


def _numbers(parts: Parts) -> str:
    return ", ".join(map(str, sorted(parts.stores))) or "none"


def _name(transaction: Transaction, ref: ProducerRef) -> str:
    return f"the transaction of {transaction.transactional_id!r} (producer {ref.producer_id}, epoch {ref.epoch})"
