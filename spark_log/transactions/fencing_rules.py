"""Decides which connection may act for the producer of a Kafka client. Pure.

The requests of KIP-98 name no transaction. A request that a gateway executes late (the gateway was paused, or the
network was slow) could end the producer's next transaction. A client sends such a request again on another connection
before it continues. So each connection takes a *fencing token* before its first request is executed, in a call that
changes nothing else. A request is executed only if its token is the newest one, so a late request changes nothing after
another connection has acted.

This needs no clock. It needs a client that has at most one request of a role in flight, and that uses a connection
again only after an answer.
"""

from dataclasses import dataclass, replace
from enum import Enum

from spark_log.transactions.rules import Transaction


class Role(Enum):
    """The role of a connection. Clients use different connections for the two roles; each role has its own tokens."""

    COORDINATOR = "coordinator"
    """The role for AddPartitionsToTxn, AddOffsetsToTxn and EndTxn."""
    OFFSETS = "offsets"
    """The role for TxnOffsetCommit."""


@dataclass(frozen=True)
class FencingToken:
    """The token that a connection took. The tokens of each producer and role are numbered."""

    role: Role
    number: int


class FencedConnectionError(Exception):
    """Another connection has taken a later fencing token. Nothing was executed."""


def take(transaction: Transaction, role: Role) -> tuple[Transaction, FencingToken]:
    """Take the next fencing token of the role; earlier ones become invalid. Return the changed transaction and the
    token.
    """
    number = _newest(transaction, role) + 1
    if role is Role.COORDINATOR:
        return replace(transaction, token=number), FencingToken(role, number)
    return replace(transaction, offsets_token=number), FencingToken(role, number)


def check(transaction: Transaction, token: FencingToken) -> None:
    """Raise FencedConnectionError unless the fencing token is the newest one of its role."""
    if _newest(transaction, token.role) != token.number:
        raise FencedConnectionError


def end_offsets_token(transaction: Transaction) -> Transaction:
    """Make the token for TxnOffsetCommit invalid at an abort: a client may have given up such a request before it."""
    return replace(transaction, offsets_token=transaction.offsets_token + 1)


def _newest(transaction: Transaction, role: Role) -> int:
    return transaction.token if role is Role.COORDINATOR else transaction.offsets_token
