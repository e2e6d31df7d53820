"""Describes the commit of a transaction: one append of its pending batches, which also commits offsets of groups."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from spark_log.log.append.append_transaction import AppendRequest, CommitHook
from spark_log.log.append.rules import Batch
from spark_log.transactions.fencing_rules import FencingToken
from spark_log.transactions.rules import NO_PARTS, Parts, ProducerRef
from spark_log.transactions.transaction_store import commit_transaction_hook


@dataclass(frozen=True)
class TransactionCommit:
    """The transaction of a producer when its commit is called.

    `batches` are all its batches in the home store, in order, except the `dropped` ones, whose topics were deleted.
    `blobs` has the bytes of batches that are not registered: the commit stores them. `token` is the fencing token of a
    Kafka client's connection. `parts` are the prepared parts in data stores. The hooks `before` and `after` run in
    the same SQL transaction, before and after the rows that end the producer's; one commits offsets of groups. With
    `durable=False` the commit is not forced to disk.
    """

    ref: ProducerRef
    batches: Sequence[Batch]
    blobs: Mapping[str, bytes] = field(default_factory=dict)
    dropped: Sequence[Batch] = ()
    token: FencingToken | None = None
    before: Sequence[CommitHook] = ()
    after: Sequence[CommitHook] = ()
    durable: bool = True
    parts: Parts = NO_PARTS

    def request(self) -> AppendRequest:
        """Return the request for `Log.append_whole`. Its hooks raise the errors of `transactions.rules.commit`,
        FencedConnectionError, and the errors of `before` and `after`.
        """
        registered = len(self.batches) - len(self.blobs) + len(self.dropped)
        end = commit_transaction_hook(self.ref, registered, self.dropped, self.token, self.parts)
        hooks = [*self.before, end, *self.after]
        return AppendRequest(self.batches, self.blobs, atomic=True, hooks=hooks, durable=self.durable, commits=True)
