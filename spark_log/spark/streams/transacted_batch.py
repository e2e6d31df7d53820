"""Commits one transaction per micro-batch: the rows that foreachBatch writes to topics, and the group's offsets.

    def process(batch, batch_id):
        with batch_transaction(batch, cluster="/data/log", group_id="alerts") as transaction:
            transaction.write(alerts, topic="alerts")
            transaction.write(totals, topic="totals")

Written rows are pending: no reader sees them. One append at the end of the block gives all rows their offsets, commits
the group's offsets, and records the batch, so that a replay changes nothing (by the rule for the sink's batches,
`log.append.spark_batches`). With topics of data stores, this append in the home store decides, and then the data stores
commit their parts (`transactions.transaction_parts`). An exception aborts the transaction. The transactional id belongs
to the query: a second driver on the same checkpoint fences the first one permanently.
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
"""The producers without an open transaction, by query id and cluster id."""


class BatchTransaction:
    """The context manager that `batch_transaction` returns. Several threads may call `write`."""

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
        """The writes that have failed, or that other threads have not finished."""
        self.done = False
        """Whether the batch was committed before. `write` then does nothing."""

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
        """Write rows like `format("spark_log")`, but pending. Without `topic`, each row has its topic in column
        `topic`.

        In each partition, the rows of earlier calls come first.
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
            # the batch is computed nevertheless, because Spark then saves the state of aggregations and joins
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
        """Return the result of `call`. If the last transaction is not appended in all stores, complete it and call
        again.
        """
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
        """Prepare the part of the transaction in a data store. Return its batches."""
        data, producer_id = log.at(store_id), self._producer.ref.producer_id
        find_last(data.cluster.store, self._remembered(0))  # refuses a batch that the sink wrote there
        batches = [each.batch for each in data.cluster.store.read(lambda c: read_pending(c, producer_id))]
        try:
            if not batches:
                raise TransactionAbortableError(
                    f"batch_transaction: store {store_id} was restored, and has lost the rows: nothing is committed"
                )
            with_patience(lambda: transaction_parts.prepare(data, producer_id, number, len(batches)))
        except TransactionAbortableError:
            transaction_parts.read_open(self._cluster.store, self._producer.ref)  # raises if this driver is fenced
            raise
        return batches

    def _abort(self) -> None:
        try:
            transaction_parts.abort(self._cluster, self._producer.ref)
        except InvalidTxnStateError:  # the transaction was committed, and only the response was lost
            self._over()
        except ProducerFencedError:  # this run of the query stays fenced
            self._keep()
        except SparkLogError:
            logger.info("a transaction of query %s is aborted by the producer of its next batch", self._query_id)
        else:
            self._over()

    def _over(self) -> None:
        """Raise the producer's epoch at the end of a transaction (KIP-890), and keep the producer for the next one."""
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
    """Return a transaction of the micro-batch, for a `with` block in foreachBatch. All rows of its `write` calls become
    visible together at the end of the block, exactly once, even if the batch is replayed after a crash. Persist the
    batch if several writes compute it.

    With `group_id`, the same transaction commits the batch's end offsets in the query's spark_log sources of this
    cluster to the group. The sources must not have option `group.id`, and the group must not have live members.
    `transaction_timeout_ms` limits how long the transaction may be open after its first write; the default and the
    maximum are transaction.max.timeout.ms. No reader waits for an open transaction.

    Over Spark Connect, give `batch_id` (the second argument of foreachBatch's function) and `checkpoint` (the query's
    option checkpointLocation). A classic session ignores them, because Spark's JVM knows both.

    Raises InvalidOptionError outside of foreachBatch, over Spark Connect without these two, and for a second
    transaction of the batch. Raises CheckpointMismatchError for a copied or rolled-back checkpoint, and for a batch
    that the query wrote with `format("spark_log")` before. Raises ProducerFencedError if another driver runs the query.
    The end of the block raises TransactionAbortableError if the transaction has timed out, and
    TransactionCommitPendingError if it is committed but a data store has not appended its rows yet; a replay of the
    batch waits for that.
    """
    if transaction_timeout_ms is not None and transaction_timeout_ms <= 0:
        raise InvalidOptionError(f"transaction_timeout_ms {transaction_timeout_ms}: expected more than 0")
    return BatchTransaction(batch, cluster, group_id, transaction_timeout_ms, BatchLocation(batch_id, checkpoint))
