"""The commit of a transaction: one append of its pending batches, which also commits the offsets of groups."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from spark_log.append.append_transaction import AppendRequest, CommitHook
from spark_log.append.rules import Batch
from spark_log.groups.transacted_offsets import Commits, Committer, commit_offsets_hook
from spark_log.metadata.store import Store
from spark_log.transactions.claim_rules import Claim
from spark_log.transactions.rules import ProducerRef
from spark_log.transactions.transaction_store import commit_transaction_hook


@dataclass(frozen=True)
class TransactionCommit:
    """The transaction of a producer, as it is when the commit is called.

    `batches`: all of them, in order, except the `dropped` ones, whose topics were deleted. `blobs`: the bytes of those
    that are not registered, but stored by the commit itself. `claim`: of a Kafka client. `hooks` run before.
    """

    ref: ProducerRef
    batches: Sequence[Batch]
    blobs: Mapping[str, bytes] = field(default_factory=dict)
    dropped: Sequence[Batch] = ()
    offsets: Mapping[Committer, Commits] = field(default_factory=dict)
    claim: Claim | None = None
    hooks: Sequence[CommitHook] = ()
    durable: bool = True

    def request(self, store: Store) -> AppendRequest:
        """For `Log.append_whole`. Its hooks raise the errors of `transactions.rules.commit`, ClaimLostError, and those
        of the members that commit offsets.
        """
        registered = len(self.batches) - len(self.blobs) + len(self.dropped)
        hooks = [*self.hooks, commit_transaction_hook(self.ref, registered, self.dropped, self.claim)]
        if self.offsets:
            hooks.append(commit_offsets_hook(store, self.offsets))
        return AppendRequest(self.batches, self.blobs, atomic=True, hooks=hooks, durable=self.durable, commits=True)
