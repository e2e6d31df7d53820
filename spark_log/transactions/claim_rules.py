"""Decides which connection may act for the producer of a Kafka client. Pure.

The requests of KIP-98 name no transaction. A request that a gateway executes late (the gateway was paused, or the
network was slow) could end the producer's next transaction. A client sends such a request again on another connection
before it continues. So each connection takes a *claim* before its first request is executed, in a call that changes
nothing else. A request is executed only if its claim is the newest one, so a late request changes nothing after another
connection has acted.

This needs no clock. It needs a client that has at most one request of a role in flight, and that uses a connection
again only after an answer.
"""

from dataclasses import dataclass, replace
from enum import Enum

from spark_log.transactions.rules import Transaction


class Role(Enum):
    """The role of a connection. Clients use different connections for the two roles; each role has its own claims."""

    COORDINATOR = "coordinator"
    """The role for AddPartitionsToTxn, AddOffsetsToTxn and EndTxn."""
    OFFSETS = "offsets"
    """The role for TxnOffsetCommit."""


@dataclass(frozen=True)
class Claim:
    """The claim that a connection took. The claims of each producer and role are numbered."""

    role: Role
    number: int


class ClaimLostError(Exception):
    """Another connection has taken a later claim. Nothing was executed."""


def take(transaction: Transaction, role: Role) -> tuple[Transaction, Claim]:
    """Take the next claim of the role. Earlier ones are lost. Return the changed transaction, and the claim."""
    number = _newest(transaction, role) + 1
    if role is Role.COORDINATOR:
        return replace(transaction, claim=number), Claim(role, number)
    return replace(transaction, offsets_claim=number), Claim(role, number)


def check(transaction: Transaction, claim: Claim) -> None:
    """Raise ClaimLostError unless the claim is the newest one of its role."""
    if _newest(transaction, claim.role) != claim.number:
        raise ClaimLostError


def end_offsets_claim(transaction: Transaction) -> Transaction:
    """Make the claim for TxnOffsetCommit invalid at an abort: a client may have given up such a request before it."""
    return replace(transaction, offsets_claim=transaction.offsets_claim + 1)


def _newest(transaction: Transaction, role: Role) -> int:
    return transaction.claim if role is Role.COORDINATOR else transaction.offsets_claim
