"""Keeps the parts that a producer's open transaction has in data stores, and takes them through the commit."""

from collections.abc import Mapping, Sequence

from spark_log.cluster.cluster import Cluster
from spark_log.ids import StoreId
from spark_log.log.append.rules import Batch
from spark_log.log.log import Log, WrittenBatches
from spark_log.process import in_parallel
from spark_log.transactions import rules, transaction_parts, transaction_store
from spark_log.transactions.rules import NO_PARTS, Parts, ProducerRef
from spark_log.transactions.transaction_rows import PendingBatch

_AT_ONCE = 8


class StoreParts:
    """The parts of one transaction. The caller allows one call at a time."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.parts: Parts = NO_PARTS
        self._decided = False
        """Whether the transaction is known to be committed; then its parts need not be prepared again."""

    def check_stores(self, stores: set[StoreId]) -> None:
        """Raise CrossStoreTransactionError for several stores, unless the cluster allows it."""
        if len(stores) > 1 and not transaction_store.may_cross(self._cluster.store):
            rules.check_stores(stores)

    def register(
        self,
        data: Cluster,
        ref: ProducerRef,
        batches: Sequence[PendingBatch],
        written: WrittenBatches,
        *,
        again: bool,
        timeout_ms: int,
    ) -> Sequence[Batch]:
        """Make batches pending in a data store, as `transaction_parts.register` does. The first ones add the part."""
        if data.store_id not in self.parts.stores:
            number = transaction_parts.join(self._cluster, ref, data.store_id, timeout_ms=timeout_ms)
            self.parts = Parts(number, self.parts.stores | {data.store_id})
        return transaction_parts.register(
            data, ref, self.parts.number, batches, written.blobs,
            write_id=written.write_id, again=again, timeout_ms=timeout_ms,
        )  # fmt: skip

    def prepare(self, log: Log, ref: ProducerRef, batches: Mapping[StoreId, Sequence[Batch]], timeout_ms: int) -> None:
        """Prepare all parts, before the home store decides."""

        def prepare(store_id: StoreId) -> None:
            count = len(batches.get(store_id, ()))
            transaction_parts.prepare(
                log.at(store_id), ref.producer_id, self.parts.number, count, timeout_ms=timeout_ms
            )

        if self.parts.stores and not self._decided:
            in_parallel(prepare, sorted(self.parts.stores), _AT_ONCE, "spark-log-parts")

    def complete(
        self, log: Log, ref: ProducerRef, batches: Mapping[StoreId, Sequence[Batch]], timeout_ms: int
    ) -> dict[str, int]:
        """Complete all parts, after the home store has decided. Return the base offsets of the batches by name, as
        `transaction_store.find_offsets` does. Raises TransactionCommitPendingError.
        """
        if not self.parts.stores:
            return {}
        self._decided = True
        transaction_parts.complete(log, ref.producer_id, self.parts, timeout_ms=timeout_ms)
        offsets: dict[str, int] = {}
        for store_id in self.parts.stores:
            offsets |= transaction_store.find_offsets(self._cluster.at(store_id).store, batches.get(store_id, ()))
        return offsets
