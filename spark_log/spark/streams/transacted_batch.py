"""One transaction per micro-batch: the rows that foreachBatch writes to several topics, and the group's offsets.

    def process(batch, batch_id):
        with batch_transaction(batch, cluster="/data/log", group_id="alerts") as transaction:
            transaction.write(alerts, topic="alerts")
            transaction.write(totals, topic="totals")

Rows that are written are pending: no reader sees them. The end of the block is one append: all rows get their offsets,
the group's offsets are committed, and the batch is recorded, so that a replay changes nothing (the same rule as for
the sink's batches: `log.append.spark_batches`). With topics of data stores that append decides, in the home store, and
their parts follow it (`transactions.transaction_parts`). An exception aborts. The transactional id is the query's: a
second driver on the same checkpoint fences the first permanently.
"""

import itertools
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Self, TypeVar

from pyspark.sql import DataFrame

from spark_log.cluster.cluster import Cluster
from spark_log.errors import (
    InvalidOptionError,
    InvalidProducerIdMappingError,
    InvalidTxnStateError,
    ProducerFencedError,
    SparkLogError,
    TransactionAbortableError,
    TransactionCommitPendingError,
)
from spark_log.failpoints import failpoint
from spark_log.groups.transacted_offsets import Commits, Committer, check_offsets, commit_offsets_hook
from spark_log.ids import StoreId
from spark_log.log.append.rules import Batch
from spark_log.log.append.spark_batch_rules import TRANSACTED, SparkBatch, topics_without
from spark_log.log.append.spark_batches import NO_TOPIC, append_once_hook, find_last
from spark_log.log.log import Log
from spark_log.metadata.store import DEFAULT_TIMEOUT_MS
from spark_log.process import in_parallel
from spark_log.spark.datasource.checkpoint.batch_ends import BatchEnds
from spark_log.spark.datasource.checkpoint.offset_log import fingerprint_of_batch
from spark_log.spark.datasource.options.source_options import PendingWrite
from spark_log.spark.datasource.write.topic_write import save
from spark_log.spark.datasource.write.write_commit import append_whole, commit_log, with_patience
from spark_log.spark.streams.micro_batch import BatchLocation, checkpoint_of_batch
from spark_log.transactions import transaction_parts, transaction_store
from spark_log.transactions.rules import EPOCH_MAX, ProducerRef
from spark_log.transactions.transaction_rows import read_pending
from spark_log.transactions.transaction_store import TransactionCommit

logger = logging.getLogger(__name__)
_T = TypeVar("_T")
_STORES_AT_ONCE = 8


@dataclass
class _Producer:
    """The producer of one run of a query in one cluster. It is valid until another run fences it."""

    run_id: str
    ref: ProducerRef
    committed: int = -1
    """The last batch that this run has committed."""


_producers: dict[tuple[str, str], _Producer] = {}
"""By query id and cluster id: those without an open transaction."""


class BatchTransaction:
    """Made by `batch_transaction`; a context manager. `write` may be called from several threads."""

    def __init__(
        self, batch: DataFrame, cluster: str, group_id: str | None, timeout_ms: int | None, location: BatchLocation
    ) -> None:
        self._batch = batch
        checkpoint = checkpoint_of_batch(batch.sparkSession, location)
        entry = checkpoint.offset_log()
        self._query_id, self._batch_id = checkpoint.batch.query_id, checkpoint.batch.batch_id
        self._run_id = checkpoint.run_id
        self._fingerprint = fingerprint_of_batch(entry)
        self._ends = BatchEnds(group_id, entry) if group_id is not None else None
        self._address, self._timeout_ms = cluster, timeout_ms
        self._orders = itertools.count()
        self._unfinished: list[int] = []
        """Writes that have failed, and writes that other threads have not finished."""
        self.done = False
        """True if the batch was committed before: `write` then does nothing."""

    def __enter__(self) -> Self:
        # a failover ends no query
        self._cluster = Cluster.open(self._address, read_timeout_ms=DEFAULT_TIMEOUT_MS)
        try:
            self._begin()
        except BaseException:
            self._cluster.close()
            raise
        return self

    def write(self, rows: DataFrame, topic: str | None = None) -> None:
        """Write rows as `format("spark_log")` does, pending. `topic` None: column `topic` has the topic of each row.

        In each partition the rows of earlier calls come first.
        """
        if self.done:
            return
        pending = PendingWrite(self._producer.ref, next(self._orders))
        options = {"cluster": self._address, "transaction": str(pending), "topic": topic}
        given = {name: value for name, value in options.items() if value is not None}
        self._unfinished.append(pending.order)
        save(rows, given)
        self._unfinished.remove(pending.order)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if not self.done:
                self._end(failed=kind is not None)
        finally:
            self._cluster.close()

    def _begin(self) -> None:
        store = self._cluster.store
        key = (self._query_id, self._cluster.cluster_id)
        producer = _producers.get(key)
        if producer is not None and producer.run_id == self._run_id and producer.committed == self._batch_id:
            raise InvalidOptionError(
                f"batch_transaction: batch {self._batch_id} has been committed in this run of the query:"
                " use one transaction per batch and cluster; it may write to several topics"
            )
        last = find_last(store, self._remembered(0))
        new = self._remembered(last[NO_TOPIC].record_count if NO_TOPIC in last else 0)
        self.done = not topics_without(new, last, {NO_TOPIC})
        if self.done:
            find_last(store, new, final=True)  # Spark must not go on before the batch is replicated
            logger.info("batch %d of query %s was committed before", self._batch_id, self._query_id)
            with commit_log(self._cluster, micro_batch=True) as log:
                self._complete_last(log)
            # the batch is computed all the same: only then does Spark save the state of aggregations and joins
            self._batch.write.format("noop").mode("append").save()
            return
        self._commits: dict[Committer, Commits] = {}
        if self._ends is not None:
            who, commits = Committer(self._ends.group_id), self._ends.commits(self._cluster)
            store.read(lambda connection: check_offsets(store, connection, who, commits))
            self._commits[who] = commits
        if producer is None or producer.run_id != self._run_id or not self._began(producer):
            producer = _Producer(self._run_id, self._initialized())
        _producers.pop(key, None)
        self._producer = producer

    def _began(self, producer: _Producer) -> bool:
        """Return False if another producer id is needed: the transactional id expired while the query was idle, or its
        epochs are used up.
        """
        store = self._cluster.store
        try:
            self._after_the_last_one(lambda: store.read(lambda c: transaction_store.check(store, c, producer.ref)))
        except InvalidProducerIdMappingError:
            return False
        return producer.ref.epoch <= EPOCH_MAX

    def _initialized(self) -> ProducerRef:
        timeout_ms = self._timeout_ms or self._cluster.store.settings.transaction_max_timeout_ms
        name = self._transactional_id
        ref, _, aborted = self._after_the_last_one(
            lambda: transaction_store.init_producer(self._cluster, name, timeout_ms)
        )
        transaction_parts.abort_parts(self._cluster, ref.producer_id, aborted)
        return ref

    def _after_the_last_one(self, call: Callable[[], _T]) -> _T:
        """Call a function. If the last transaction is committed and unfinished, complete it first."""
        try:
            return call()
        except TransactionCommitPendingError:
            with commit_log(self._cluster, micro_batch=True) as log:
                self._complete_last(log)
            return call()

    def _complete_last(self, log: Log) -> None:
        with_patience(lambda: transaction_parts.complete_last(log, self._transactional_id))

    def _end(self, *, failed: bool) -> None:
        committed = False
        try:
            if not failed:
                self._commit()
                committed = True
        finally:
            if not committed:
                self._abort()

    def _commit(self) -> None:
        if self._unfinished:
            raise TransactionAbortableError(
                f"batch_transaction: {len(self._unfinished)} of its writes failed or are not done: nothing is committed"
            )
        store, ref = self._cluster.store, self._producer.ref
        batches, parts = transaction_parts.read_open(store, ref)
        with commit_log(self._cluster, micro_batch=True) as log:
            prepare = partial(self._prepare, log, parts.number)
            prepared = in_parallel(prepare, sorted(parts.stores), _STORES_AT_ONCE, "spark-log-parts")
            new = self._remembered(sum(batch.record_count for batch in itertools.chain(batches, *prepared)))
            once = append_once_hook(new, {NO_TOPIC})
            offsets = commit_offsets_hook(store, self._commits)
            commit = TransactionCommit(ref, batches, before=[once], after=[offsets], parts=parts)
            result = append_whole(log, commit.request())
            failpoint("transaction.committed")
            if result.committed_before:  # by another driver: nothing was appended
                with suppress(InvalidTxnStateError):  # or by this driver, and the response was lost
                    transaction_parts.abort(self._cluster, ref)
            if parts.stores:
                self._complete_last(log)
        self._producer.committed = self._batch_id
        self._over()

    def _prepare(self, log: Log, number: int, store_id: StoreId) -> list[Batch]:
        """Prepare the part of the transaction in a data store. Returns its batches."""
        data, producer_id = log.at(store_id), self._producer.ref.producer_id
        find_last(data.cluster.store, self._remembered(0))  # refuses what the sink wrote there
        batches = [each.batch for each in data.cluster.store.read(lambda c: read_pending(c, producer_id))]
        try:
            if not batches:
                raise TransactionAbortableError(
                    f"batch_transaction: store {store_id} was restored, and has lost the rows: nothing is committed"
                )
            with_patience(lambda: transaction_parts.prepare(data, producer_id, number, len(batches)))
        except TransactionAbortableError:
            transaction_parts.read_open(self._cluster.store, self._producer.ref)  # home knows of another driver
            raise
        return batches

    def _abort(self) -> None:
        try:
            transaction_parts.abort(self._cluster, self._producer.ref)
        except InvalidTxnStateError:  # it was committed: only the answer was lost
            self._over()
        except ProducerFencedError:  # this run of the query stays fenced
            self._keep()
        except SparkLogError:
            logger.info("a transaction of query %s is aborted by the producer of its next batch", self._query_id)
        else:
            self._over()

    def _over(self) -> None:
        """The transaction has ended: the next one has the next epoch (KIP-890)."""
        ref = self._producer.ref
        self._producer.ref = ProducerRef(ref.producer_id, ref.epoch + 1)
        self._keep()

    def _keep(self) -> None:
        _producers[self._query_id, self._cluster.cluster_id] = self._producer

    def _remembered(self, record_count: int) -> SparkBatch:
        return SparkBatch(self._application, TRANSACTED, self._batch_id, record_count, self._fingerprint, strict=True)

    @property
    def _application(self) -> str:
        return f"stream:{self._query_id}"

    @property
    def _transactional_id(self) -> str:
        return f"spark-{self._query_id}"


def batch_transaction(
    batch: DataFrame,
    *,
    cluster: str,
    group_id: str | None = None,
    transaction_timeout_ms: int | None = None,
    batch_id: int | None = None,
    checkpoint: str | None = None,
) -> BatchTransaction:
    """A transaction of the micro-batch, for a `with` block in foreachBatch. All rows given to its `write` become
    visible together at the end of the block, exactly once, also if the batch is replayed after a crash. Persist the
    batch if several writes compute it.

    With `group_id`, the offsets at which the batch ends in the query's spark_log sources of this cluster are committed
    for the group in the same transaction; the sources must not have option `group.id`, and the group must not have live
    members. `transaction_timeout_ms` limits how long the transaction may be open after its first write; the default and
    the maximum are transaction.max.timeout.ms. No reader waits for it.

    Over Spark Connect, `batch_id` (the second argument of foreachBatch's function) and `checkpoint` (the query's option
    checkpointLocation) are needed; a classic session ignores them, because Spark's JVM knows both.

    Raises InvalidOptionError outside of foreachBatch, over Spark Connect without these two, and for a second
    transaction of the batch. Raises CheckpointMismatchError for a copied or rolled-back checkpoint, and for a batch
    that the query wrote with `format("spark_log")` before. Raises ProducerFencedError if another driver runs the query,
    and at the end of the block TransactionAbortableError if the transaction has timed out, and
    TransactionCommitPendingError if it is committed and a data store has not appended its rows yet, which the replay of
    the batch waits for.
    """
    if transaction_timeout_ms is not None and transaction_timeout_ms <= 0:
        raise InvalidOptionError(f"transaction_timeout_ms {transaction_timeout_ms}: expected more than 0")
    return BatchTransaction(batch, cluster, group_id, transaction_timeout_ms, BatchLocation(batch_id, checkpoint))
