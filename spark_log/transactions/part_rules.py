"""Defines the part of a transaction in a data store: its pending batches there, and their end. Pure.

    open -prepare-> prepared -roll_forward-> committed
      |                |
      +----- abort ----+--------------------> aborted

A part never decides alone. The commit of the transaction in the home store decides (`rules.commit`), and needs every
part prepared: forced to disk, with all batches that the producer has sent, and closed for others. After the decision
the parts are rolled forward: each appends its batches. After an abort at home the parts are aborted.

A data store has one part of each producer id, that of the newest transaction. A transaction begins only after the one
before it is finished, so an older part is aborted or committed in any case.
"""

from dataclasses import dataclass, replace
from enum import Enum, StrEnum

from spark_log.errors import InvalidTxnStateError, TransactionAbortableError
from spark_log.ids import StoreId
from spark_log.transactions.rules import COMMITTED, Transaction, check_pending


class PartState(StrEnum):
    OPEN = "open"
    PREPARED = "prepared"
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass(frozen=True)
class Part:
    """The newest part of a producer id in a data store. Without one, it is aborted and has number 0."""

    producer_id: int
    number: int = 0
    """`rules.Parts.number` of its transaction."""
    state: PartState = PartState.ABORTED
    pending: int = 0
    """The number of its registered batches."""

    @property
    def is_over(self) -> bool:
        return self.state in (PartState.COMMITTED, PartState.ABORTED)


class Resolution(Enum):
    """The action for a part that its producer has not ended."""

    WAIT = "wait"
    ROLL_FORWARD = "roll forward"
    ABORT = "abort"


def register(part: Part, number: int, batches: int) -> Part:
    """Add batches to the part of transaction `number`. The batches of an older part have to be deleted first.

    Raises InvalidTxnStateError if the part is closed, or is of a later transaction, and PolicyViolationError if it
    would have too many batches.
    """
    if number > part.number:
        part = Part(part.producer_id, number, PartState.OPEN)
    elif number < part.number or part.state is not PartState.OPEN:
        raise InvalidTxnStateError(f"{_name(part, number)} takes no batches: part {part.number} is {part.state}")
    check_pending(part.pending + batches)
    return replace(part, pending=part.pending + batches)


def prepare(part: Part, number: int, batches: int) -> Part:
    """Close the part, which must have these `batches`. Unchanged if an earlier call has prepared or committed it.

    Raises TransactionAbortableError if batches are missing, or the part is aborted or of a later transaction.
    """
    if number == part.number and part.state in (PartState.PREPARED, PartState.COMMITTED):
        return part
    if number < part.number or (number == part.number and part.state is PartState.ABORTED):
        raise TransactionAbortableError(f"{_name(part, number)} was aborted")
    there = part.pending if number == part.number else 0
    if there != batches:
        raise TransactionAbortableError(
            f"{_name(part, number)}: {batches} batches were sent and {there} are there: the metadata store has crashed;"
            " abort the transaction, and do it again"
        )
    return Part(part.producer_id, number, PartState.PREPARED, batches)


def roll_forward(part: Part, number: int) -> Part:
    """Commit the part of a transaction that home has committed. Unchanged if that was done before.

    Raises InvalidTxnStateError for a part that is not prepared.
    """
    if number < part.number or (number == part.number and part.state is PartState.COMMITTED):
        return part
    if number > part.number or part.state is not PartState.PREPARED:
        raise InvalidTxnStateError(
            f"{_name(part, number)} is committed, and is not prepared here: part {part.number} is {part.state}. The"
            " store was restored from a backup that lacks it"
        )
    return replace(part, state=PartState.COMMITTED, pending=0)


def is_lost(part: Part, number: int) -> bool:
    """Whether the store lacks the part of transaction `number`, which was prepared."""
    return part.number < number or (part.number == number and part.state in (PartState.OPEN, PartState.ABORTED))


def abort(part: Part, number: int) -> Part:
    """Abort the part of a transaction that home has not committed, and will not. Unchanged if it is over."""
    if number != part.number or part.is_over:
        return part
    return replace(part, state=PartState.ABORTED, pending=0)


def resolve(transaction: Transaction | None, store_id: StoreId, part: Part) -> Resolution:
    """Return what to do with an open or prepared part. `transaction` is its transaction at home, read after the part,
    or None if home has none of the producer id any more.

    A part with a higher number than home's is of a transaction that the restored home store has lost. If the
    transaction is committed and the part is still open, the data store was restored to a time before the prepare.
    """
    if transaction is None or transaction.parts.number != part.number:
        return Resolution.ABORT
    if part.state is PartState.OPEN and transaction.state is COMMITTED and store_id not in transaction.parts.stores:
        return Resolution.ABORT
    if transaction.state is COMMITTED:  # also if home has noted it as done, and this store has lost that
        return Resolution.ROLL_FORWARD
    return Resolution.WAIT if store_id in transaction.parts.stores else Resolution.ABORT


def _name(part: Part, number: int) -> str:
    return f"the part of transaction {number} of producer {part.producer_id}"
