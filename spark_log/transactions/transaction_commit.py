"""The commit of a transaction: one append of its pending batches, which also commits the offsets of groups."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from spark_log.log.append.append_transaction import AppendRequest, CommitHook
from spark_log.log.append.rules import Batch
from spark_log.transactions.claim_rules import Claim
from spark_log.transactions.rules import ProducerRef
from spark_log.transactions.transaction_store import commit_transaction_hook


@dataclass(frozen=True)
class TransactionCommit:
    """The transaction of a producer, as it is when the commit is called.

    `batches`: all of them, in order, except the `dropped` ones, whose topics were deleted. `blobs`: the bytes of those
    that are not registered, but stored by the commit itself. `claim`: of a Kafka client. `before` and `after` run
    around the end of the transaction: what it commits besides, such as offsets of groups.
    """

    ref: ProducerRef
    batches: Sequence[Batch]
    blobs: Mapping[str, bytes] = field(default_factory=dict)
    dropped: Sequence[Batch] = ()
    claim: Claim | None = None
    before: Sequence[CommitHook] = ()
    after: Sequence[CommitHook] = ()
    durable: bool = True

    def request(self) -> AppendRequest:
        """For `Log.append_whole`. Its hooks raise the errors of `transactions.rules.commit`, ClaimLostError, and those
        of `before` and `after`.
        """
        registered = len(self.batches) - len(self.blobs) + len(self.dropped)
        end = commit_transaction_hook(self.ref, registered, self.dropped, self.claim)
        hooks = [*self.before, end, *self.after]
        return AppendRequest(self.batches, self.blobs, atomic=True, hooks=hooks, durable=self.durable, commits=True)
