"""The rules of transactions of Kafka clients (KIP-98, KIP-360). Pure.

Kafka's protocol names a transactional id, a producer id and an epoch, but no number of the transaction. So the epoch
alone decides which calls are late: a transaction that ends without its client's call (time-out, operator, another
producer) increases it. The records of a client have sequences; an aborted transaction keeps the last ones, because
clients count on.
"""

from collections.abc import Sequence
from dataclasses import replace

from spark_log.append.rules import (
    Appended,
    Batch,
    ProducerState,
    Rejected,
    RememberedBatch,
    check_sequence,
    remember,
    sequences_between,
)
from spark_log.errors import InvalidProducerIdMappingError, InvalidTxnStateError, ProducerFencedError, SparkLogError
from spark_log.transactions.claim_rules import end_offsets_claim
from spark_log.transactions.rules import ABORTED, COMMITTED, ONGOING, Transaction, initialize, over

EPOCH_MAX = 2**15 - 2
"""Epochs are int16. After this one the transactional id gets another producer id, as in Kafka."""


def bump(transaction: Transaction, producer_id: int, epoch: int) -> Transaction:
    """InitProducerId of a producer that has `epoch` already (KIP-360): the next epoch, its open transaction aborted.

    Unchanged if the answer of the same call was lost. ProducerFencedError if another producer has a later epoch.
    """
    if producer_id == transaction.producer_id and epoch == transaction.bumped_from >= 0:
        return transaction
    check_producer(transaction, producer_id, epoch)
    return replace(initialize(transaction), bumped_from=epoch)


def begin(transaction: Transaction, producer_id: int, epoch: int) -> Transaction:
    """AddPartitionsToTxn and AddOffsetsToTxn: the open transaction, or else the next one. Unchanged if it is open.

    Raises the errors of `check_producer`.
    """
    check_producer(transaction, producer_id, epoch)
    if transaction.state is ONGOING:
        return transaction
    number = transaction.number + 1
    return replace(transaction, number=number, state=ONGOING, pending=0, numbered=False, bumped_from=-1)


def check_open(transaction: Transaction, producer_id: int, epoch: int) -> None:
    """Raise the errors of `check_producer`, and InvalidTxnStateError unless the transaction is open."""
    check_producer(transaction, producer_id, epoch)
    if transaction.state is not ONGOING:
        raise InvalidTxnStateError(f"{_name(transaction)}: no transaction is open: the last one is {transaction.state}")


def is_ended(transaction: Transaction, producer_id: int, epoch: int, *, commit: bool) -> bool:
    """EndTxn: whether the same call has ended the transaction before. False: it is open.

    Raises the errors of `check_producer`, and InvalidTxnStateError if it was ended otherwise or never began.
    """
    check_producer(transaction, producer_id, epoch)
    if transaction.state is ONGOING:
        return False
    if transaction.state is not (COMMITTED if commit else ABORTED):
        wanted = "committed" if commit else "aborted"
        raise InvalidTxnStateError(f"{_name(transaction)}: cannot be {wanted}: it is {transaction.state}")
    return True


def abort(transaction: Transaction, producer_id: int, epoch: int) -> Transaction:
    """EndTxn that aborts. Unchanged if it was aborted before. Raises as `is_ended`."""
    if is_ended(transaction, producer_id, epoch, commit=False):
        return transaction
    return end_offsets_claim(over(transaction, ABORTED))


def check_producer(transaction: Transaction, producer_id: int, epoch: int) -> None:
    """Raise an error unless the producer may act: InvalidProducerIdMappingError, ProducerFencedError."""
    if producer_id != transaction.producer_id:
        raise InvalidProducerIdMappingError(f"{_name(transaction)} has another producer id than {producer_id}")
    if epoch != transaction.epoch:
        raise ProducerFencedError(f"{_name(transaction)}: epoch {epoch} is fenced by {transaction.epoch}")
    if transaction.expired:
        raise ProducerFencedError(f"{_name(transaction)}: transaction.timeout.ms is over")


def accept(
    state: ProducerState, pending: Sequence[RememberedBatch], batch: Batch
) -> tuple[Appended | Rejected, RememberedBatch | None]:
    """Whether a partition takes a batch of the open transaction: its outcome, and the batch to remember if it is new.

    `state`: the producer in the partition before the transaction; `pending`: its last pending batches there, in order.
    The offsets of pending batches are -1.
    """
    assert batch.sequence is not None
    known = replace(state, batches=(*state.batches, *pending))
    try:
        repeated = check_sequence(batch.sequence, batch.record_count, known)
    except SparkLogError as error:
        return Rejected(error), None
    if repeated is not None:
        return Appended(-1, -1, duplicate=True), None
    return Appended(-1, -1), remember(known, batch, Appended(-1, -1)).batches[-1]


def provisional(log_end_offset: int, first_sequence: int, batch: Batch) -> Appended:
    """The offsets that a pending batch would have if its transaction were committed now.

    `first_sequence`: that of the transaction's first pending batch in the partition.
    """
    assert batch.sequence is not None
    base = log_end_offset + sequences_between(first_sequence, batch.sequence.first)
    return Appended(base, base + batch.record_count)


def add_pending(transaction: Transaction, batches: int) -> Transaction:
    """The open transaction with new pending batches."""
    return replace(transaction, pending=transaction.pending + batches)


def remember_aborted(state: ProducerState, last: RememberedBatch) -> ProducerState:
    """The producer in a partition after an abort: it knows the `last` batch of the aborted transaction.

    That batch has no offsets: it is empty, behind the last one that has some. Batches of earlier epochs are forgotten:
    they may have the same sequences.
    """
    epoch = [known for known in state.batches if known.producer_epoch == last.producer_epoch]
    # one with the same sequence is the batch of a stranger, for which the commit has failed
    there = [
        known for known in epoch if known.base_offset < known.end_offset and known.first_sequence != last.first_sequence
    ]
    end = max((known.end_offset for known in there), default=0)
    return replace(state, batches=(*there, replace(last, base_offset=end, end_offset=end)))


def _name(transaction: Transaction) -> str:
    return f"transactional_id {transaction.transactional_id!r}"
