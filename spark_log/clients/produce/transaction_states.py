"""Defines the states of a producer's transaction, and the calls that are possible in each.

    UNINITIALIZED -init-> READY -begin-> IN_TRANSACTION -commit-> COMMITTING -settled-> IN_DOUBT -answer-> READY
                            ^                  |                      |                    |
                            |             failed send, abort         same            failed commit
                            |                  v                      v                    v
                            +---abort--- ABORTABLE_ERROR <------------+--------------------+    fenced: FATAL_ERROR

After commit or abort has been called, no more records can be sent; the records sent before are settled first. If the
answer of a commit is lost, the state is IN_DOUBT. A second call then finds out whether the transaction is
committed, and commits it if not. So nothing may be added to the transaction in this state.
"""

from collections.abc import Mapping
from enum import Enum

from spark_log.errors import (
    InvalidProducerIdMappingError,
    ProducerFencedError,
    SparkLogError,
    TopicMovedError,
    UnknownTopicOrPartitionError,
)


class State(Enum):
    """States of a producer's transaction, with kafka-python's names."""

    UNINITIALIZED = "UNINITIALIZED"
    READY = "READY"
    IN_TRANSACTION = "IN_TRANSACTION"
    COMMITTING = "COMMITTING_TRANSACTION"
    IN_DOUBT = "COMMITTING_TRANSACTION, which has been tried"
    ABORTABLE_ERROR = "ABORTABLE_ERROR"
    FATAL_ERROR = "FATAL_ERROR"


CALLS: Mapping[str, frozenset[State]] = {
    "init_transactions": frozenset({State.UNINITIALIZED, State.READY}),
    "begin_transaction": frozenset({State.READY}),
    "send": frozenset({State.IN_TRANSACTION}),
    "register": frozenset({State.IN_TRANSACTION, State.COMMITTING}),
    "send_offsets_to_transaction": frozenset({State.IN_TRANSACTION}),
    "send_share_acknowledgements_to_transaction": frozenset({State.IN_TRANSACTION}),
    "commit_transaction": frozenset({State.IN_TRANSACTION, State.COMMITTING, State.IN_DOUBT}),
    "abort_transaction": frozenset({State.IN_TRANSACTION, State.COMMITTING, State.IN_DOUBT, State.ABORTABLE_ERROR}),
}
"""The states in which each call is possible."""

HINTS = {
    State.UNINITIALIZED: "call init_transactions first",
    State.READY: "call begin_transaction first",
    State.IN_TRANSACTION: "commit or abort the open transaction first",
    State.IN_DOUBT: "call commit_transaction again, or abort_transaction",
}

FATAL = (ProducerFencedError, InvalidProducerIdMappingError)


def after_error(state: State, error: Exception) -> State:
    """Return the state after the error of a send or a call. FATAL_ERROR means that only a new producer can go on."""
    if isinstance(error, FATAL):
        return State.FATAL_ERROR
    if state in CALLS["commit_transaction"]:
        return State.ABORTABLE_ERROR
    return state


def may_commit_again(error: SparkLogError) -> bool:
    """Whether a commit that failed with this error may be called again. It may not if a topic was deleted or moved."""
    return error.retriable and not isinstance(error, UnknownTopicOrPartitionError | TopicMovedError)
