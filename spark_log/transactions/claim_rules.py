"""Which connection may act for the producer of a Kafka client. Pure.

The requests of KIP-98 name no transaction. One that a gateway executes late (it was paused, or the network was slow)
could end the producer's next transaction. A client sends such a request again on another connection before it goes on.
So each connection takes a *claim* before its first request is executed, in a call that changes nothing else, and a
request is executed only under the newest claim: once another connection has acted, the late request changes nothing.

This needs no clock. It needs a client that has at most one request of a role in flight, and that uses a connection
again only after an answer.
"""

from dataclasses import dataclass, replace
from enum import Enum

from spark_log.transactions.rules import Transaction


class Role(Enum):
    """The role of a connection. Clients use different connections for the two; each role has a claim of its own."""

    COORDINATOR = "coordinator"
    """AddPartitionsToTxn, AddOffsetsToTxn, EndTxn."""
    OFFSETS = "offsets"
    """TxnOffsetCommit."""


@dataclass(frozen=True)
class Claim:
    """The claim that a connection took: they are numbered for each producer and role."""

    role: Role
    number: int


class ClaimLostError(Exception):
    """Another connection has taken a later claim; nothing was executed."""


def take(transaction: Transaction, role: Role) -> tuple[Transaction, Claim]:
    """The next claim. Earlier ones are lost."""
    number = _newest(transaction, role) + 1
    if role is Role.COORDINATOR:
        return replace(transaction, claim=number), Claim(role, number)
    return replace(transaction, offsets_claim=number), Claim(role, number)


def check(transaction: Transaction, claim: Claim) -> None:
    """ClaimLostError unless the claim is the newest one of its role."""
    if _newest(transaction, claim.role) != claim.number:
        raise ClaimLostError


def end_offsets_claim(transaction: Transaction) -> Transaction:
    """For an abort: a client that has given up a TxnOffsetCommit aborts, and does not send it again."""
    return replace(transaction, offsets_claim=transaction.offsets_claim + 1)


def _newest(transaction: Transaction, role: Role) -> int:
    return transaction.claim if role is Role.COORDINATOR else transaction.offsets_claim
