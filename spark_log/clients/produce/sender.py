"""Runs the producer's thread, which takes the due topic batches, appends them, and sets the outcome of the futures.

    take -> assemble -> append (at most one batch per partition) -> outcome, or retry after retry_backoff_ms

One append runs at a time; with topics in several stores, one for each store (`store_appends`). In a transaction, an
append takes all batches.

A batch that is retried holds back the later batches of its partition, so that their order is kept. Other partitions are
not delayed.
"""

import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from spark_log import clock
from spark_log.clients.kafka_errors import kafka_error
from spark_log.clients.produce.accumulator import Accumulator
from spark_log.clients.produce.assembly import assemble
from spark_log.clients.produce.failing_appends import FailingAppends
from spark_log.clients.produce.known_topics import KnownTopics
from spark_log.clients.produce.metrics import Metrics
from spark_log.clients.produce.producer_batch import ProducerBatch, TopicBatch
from spark_log.clients.produce.producer_identity import Identity
from spark_log.clients.produce.producer_settings import ProducerSettings
from spark_log.clients.produce.store_appends import Result, StoreAppends, timed
from spark_log.clients.produce.table_batches import TableBatch
from spark_log.clients.produce.waiting_batches import WaitingBatches
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.topics import Topic
from spark_log.errors import (
    DiskFullError,
    KafkaTimeoutError,
    MetadataStoreUnavailableError,
    OutOfOrderSequenceNumberError,
    ProducerFencedError,
    SparkLogError,
    TopicMovedError,
    UnknownProducerIdError,
    UnknownTopicOrPartitionError,
    WriteIdExpiredError,
)
from spark_log.ids import HOME, StoreId
from spark_log.log.append.producer_rows import register_producer
from spark_log.log.append.rules import Appended, Rejected
from spark_log.log.append.sequence_rules import ProducerSequence
from spark_log.log.log import Records
from spark_log.maintenance.client_log import ClientLog
from spark_log.process import stop_at_exit

if TYPE_CHECKING:
    from spark_log.clients.produce.producer_transaction import ProducerTransaction

logger = logging.getLogger(__name__)

_FORGOTTEN = (UnknownProducerIdError, OutOfOrderSequenceNumberError, ProducerFencedError)
"""Errors of a store that does not know the producer or its sequence any more. Nothing was appended, and the producer
continues with a new producer id.
"""


def _drop_traceback(error: BaseException | None) -> None:
    """Remove the tracebacks of an error and its causes: futures keep the error, and its frames keep the records."""
    seen = set()  # errors may cause each other
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


def _own_remaining_tables(tried: Sequence[ProducerBatch]) -> None:
    """Copy the records of the batches that remain of a partly finished topic batch, to free shared buffers."""
    for topic_batch in {batch.topic_batch for batch in tried}:
        left = [batch for batch in topic_batch.batches or () if batch.table is not None]
        if len(left) < len(topic_batch.batches or ()):
            for batch in left:
                batch.own_table()


def _is_retriable(error: Exception) -> bool:
    return isinstance(error, WriteIdExpiredError) or (isinstance(error, SparkLogError) and error.retriable)


_NO_FAULTS: dict[int, SparkLogError] = {}


class Sender(threading.Thread):
    """Appends a producer's batches. It owns the cluster and the log, and closes them at its end."""

    def __init__(
        self,
        cluster: Cluster,
        log: ClientLog,
        settings: ProducerSettings,
        accumulator: Accumulator,
        topics: KnownTopics,
        transaction: "ProducerTransaction | None",
    ) -> None:
        super().__init__(name=f"{settings.client_id} sender", daemon=True)
        self.metrics = Metrics()
        self.aborted: Exception | None = None
        """The error of the records that are not stored, once the timeout of `close` has expired."""
        self._cluster, self._log, self._settings = cluster, log, settings
        self._accumulator, self._topics, self._transaction = accumulator, topics, transaction
        self._identity = Identity(lambda: register_producer(cluster.store, int(settings.request_timeout_ms)))
        self._appends = StoreAppends(accumulator.wake)
        self._waiting = WaitingBatches(self._appends, all_at_once=transaction is not None)
        self._has_data_stores = False
        """Whether a topic of a data store has been seen: then each store's appends have a thread."""
        self._failing = FailingAppends()
        accumulator.sender = self
        stop_at_exit(self)

    def abandon_batches(self, error: Exception) -> None:
        """Stop appending and start no sealing, because the timeout of `close` has expired."""
        self.aborted = error
        self._log.stop_sealing()

    def request_stop(self) -> list[threading.Thread]:
        """Return the threads to wait for at interpreter exit: this one after `close`, otherwise none, because the
        finalizer closes the producer and waits.
        """
        return [self] if self._accumulator.closing and self.is_alive() else []

    def run(self) -> None:
        try:
            while True:
                topic_batches = self._accumulator.take(self._waiting.next_try_s())
                if topic_batches is None:
                    return
                for ended in self._appends.take_ended():
                    self._settle(*ended)
                for topic_batch in topic_batches:
                    self._assemble(topic_batch)
                batches = self._waiting.due()
                if batches:
                    self._append(batches)
        except BaseException as error:  # a bug: no caller may wait without end
            logger.exception("the producer's sender failed")
            self._accumulator.close()
            for topic_batch in self._accumulator.flush():
                topic_batch.fail(error if isinstance(error, Exception) else RuntimeError(repr(error)))
                self._accumulator.finished(topic_batch)
        finally:
            if self._transaction is not None and self._transaction.is_open:
                try:
                    self._transaction.abort()
                except SparkLogError as error:
                    logger.warning("transaction not aborted, it will time out: %s", error)
            try:
                self._log.close()
            except SparkLogError as error:
                logger.warning("write id not given back, it will expire: %s", error)
            self._cluster.close()

    def _has_new_columns(self, topic: Topic) -> bool:
        """Read the topic again; return whether its typed columns differ, as after the registration of a schema."""
        fresh = self._topics.refresh(topic.name, force=True)
        return fresh is not None and fresh.topic.typed_columns != topic.typed_columns

    def _assemble(self, topic_batch: TopicBatch) -> None:
        try:
            target = self._topics.by_name[topic_batch.topic]
            with contextlib.suppress(MetadataStoreUnavailableError):  # the append waits up to delivery_timeout_ms
                target = self._topics.refresh(topic_batch.topic) or target
            topic, now_ms = target.topic, self._cluster.store.now().wall_ms
            deadline_s = topic_batch.made_s + self._settings.delivery_timeout_ms / 1000
            if isinstance(topic_batch, TableBatch):
                parts, batch_of, faults = topic_batch.take_parts(), topic_batch.batch_of, _NO_FAULTS
            else:
                run_bytes = self._settings.batch_size
                assembled = assemble(topic_batch, topic, target.encoding, now_ms, target.first_run, run_bytes)
                if assembled.faults and target.encoding.rejects_bad_records and self._has_new_columns(topic):
                    topic = target.topic
                    assembled = assemble(topic_batch, topic, target.encoding, now_ms, target.first_run, run_bytes)
                target.first_run += assembled.runs
                parts, batch_of, faults = assembled.parts, assembled.batch_of, assembled.faults
                topic_batch.row_of, topic_batch.times_ms = assembled.row_of, assembled.times_ms
                topic_batch.key_sizes, topic_batch.value_sizes = assembled.key_sizes, assembled.value_sizes
                topic_batch.header_sizes = {
                    row: sum(len(key.encode()) + len(value) for key, value in headers)
                    for row, headers in topic_batch.headers.items()
                }
            total = sum(table.num_rows for _, table in parts) + len(faults)
            share = topic_batch.bytes // max(1, total)
            batches = [
                ProducerBatch(topic_batch, number, topic, partition, table, share * table.num_rows, deadline_s)
                for number, (partition, table) in enumerate(parts)
            ]
            rest = topic_batch.bytes - sum(batch.bytes for batch in batches)
            topic_batch.unsettled = len(batches)
            topic_batch.begin(batches, batch_of, {row: kafka_error(error) for row, error in faults.items()})
            self._accumulator.release(rest)
            self.metrics.failed += len(faults)
            for error in faults.values():
                self._fail_transaction(error)
        except Exception as error:
            logger.exception("%s: records could not be assembled", topic_batch.topic)
            _drop_traceback(error)
            self._fail_transaction(error)
            topic_batch.fail(kafka_error(error) if isinstance(error, SparkLogError) else error)
            self._accumulator.release(topic_batch.bytes)
            self._accumulator.finished(topic_batch)
            return
        for batch in batches:
            if self._settings.acks == 0:
                topic_batch.resolve(batch, -1, None)
            self._waiting.add(batch)
        if not batches:
            self._accumulator.finished(topic_batch)

    def _append(self, heads: Sequence[ProducerBatch]) -> None:
        now_s = clock.monotonic_s()
        # a topic may have been moved to a store that is busy
        batches = [
            batch for batch in heads if self._wanted(batch, now_s) and not self._appends.is_busy(batch.topic.store_id)
        ]
        if not batches:
            return
        left_ms = (min(batch.deadline_s for batch in batches) - now_s) * 1000
        timeout_ms = max(1, int(min(left_ms, self._settings.request_timeout_ms)))
        for batch in batches:
            batch.attempts += 1
        if self._transaction is not None:
            self._register(self._transaction, batches, timeout_ms)
            if self._waiting:
                _own_remaining_tables(batches)
            return
        self._has_data_stores |= any(batch.topic.store_id != HOME for batch in batches)
        if not self._has_data_stores:
            self._settle(batches, *timed(lambda: self._prepare(batches, timeout_ms)()))
            return
        by_store: dict[StoreId, list[ProducerBatch]] = {}
        for batch in batches:
            by_store.setdefault(batch.topic.store_id, []).append(batch)
        for store_id, part in by_store.items():
            try:
                append = self._prepare(part, timeout_ms)
            except Exception as error:  # the home store did not give the producer an id
                self._failed(part, error)
            else:
                self._appends.start(store_id, part, append)

    def _prepare(self, batches: Sequence[ProducerBatch], timeout_ms: int) -> Callable[[], list[Appended | Rejected]]:
        """Return a function that appends the batches, and that any thread may call."""
        items = [(batch.topic, Records(batch.partition, batch.table, self._sequence(batch))) for batch in batches]
        acks, codec = self._settings.log_acks, self._settings.compression_type
        return lambda: self._log.append_each(items, acks=acks, codec=codec, timeout_ms=timeout_ms)

    def _settle(self, batches: Sequence[ProducerBatch], result: Result, seconds: float) -> None:
        if isinstance(result, Exception):
            self._failed(batches, result)
        else:
            self.metrics.record_append(seconds, len(batches))
            self._appended(batches, result)
        if self._waiting:
            _own_remaining_tables(batches)

    def _appended(self, batches: Sequence[ProducerBatch], outcomes: Sequence[Appended | Rejected]) -> None:
        self.warn_of_expired()
        for batch, outcome in zip(batches, outcomes, strict=True):
            if isinstance(outcome, Appended):
                if self._settings.enable_idempotence:
                    self._identity.advance((batch.topic.topic_id, batch.partition), batch.count)
                self._finish(batch, outcome.base_offset, None)
            else:
                self._rejected(batch, outcome.error)

    def warn_of_expired(self) -> None:
        """Log a warning, once per topic, about records that are already older than retention.ms."""
        for each in self._log.take_expired():
            logger.warning("%s", each)

    def _register(self, transaction: "ProducerTransaction", batches: Sequence[ProducerBatch], timeout_ms: int) -> None:
        """Register the batches in the transaction. A future succeeds, without an offset, when its record is pending."""
        began_s = clock.monotonic_s()
        try:
            transaction.register(self._log, batches, timeout_ms)
        except Exception as error:
            self._failed(batches, error)
            return
        self.metrics.record_append(clock.monotonic_s() - began_s, len(batches))
        for batch in batches:
            self._finish(batch, -1, None)

    def _fail_transaction(self, error: Exception) -> None:
        if self._transaction is not None:
            self._transaction.fail(kafka_error(error) if isinstance(error, SparkLogError) else error)

    def _wanted(self, batch: ProducerBatch, now_s: float) -> bool:
        """Whether to append the batch now: it has no outcome, its deadline has not passed, its partition exists. If
        not, finish it, or retry it later.
        """
        if self.aborted or (batch.done and self._settings.acks != 0):
            self._finish(batch, -1, batch.error or self.aborted)
            return False
        if now_s >= batch.deadline_s:
            late = KafkaTimeoutError(
                f"{batch.count} record(s) for {batch.topic.name}-{batch.partition} expired: delivery_timeout_ms="
                f"{self._settings.delivery_timeout_ms} has passed since send(); last error: {batch.last_error}"
            )
            self._finish(batch, -1, late)
            return False
        if not batch.attempts:
            return True
        try:
            force = isinstance(batch.last_error, UnknownTopicOrPartitionError | TopicMovedError)
            known_topic = self._topics.refresh(batch.topic.name, force=force)
        except SparkLogError as error:
            self._retry_later(batch, error)
            return False
        if known_topic is None or batch.partition >= known_topic.topic.partition_count:
            missing = f"partition {batch.topic.name}-{batch.partition}: unknown topic or partition"
            self._retry_later(batch, UnknownTopicOrPartitionError(missing))
            return False
        batch.topic = known_topic.topic
        return True

    def _sequence(self, batch: ProducerBatch) -> ProducerSequence | None:
        if not self._settings.enable_idempotence:
            return None
        return self._identity.sequence((batch.topic.topic_id, batch.partition))

    def _rejected(self, batch: ProducerBatch, error: Exception) -> None:
        if isinstance(error, _FORGOTTEN):
            self._identity.reset((batch.topic.topic_id, batch.partition))
            batch.in_doubt = False
            self._retry_later(batch, error)
        elif _is_retriable(error):
            # the answer of its append may be lost
            batch.in_doubt = batch.in_doubt or isinstance(error, MetadataStoreUnavailableError)
            self._retry_later(batch, error)
        else:
            self._finish(batch, -1, error)

    def _failed(self, batches: Sequence[ProducerBatch], error: Exception) -> None:
        """Handle an append that raised an error instead of returning an outcome for each batch."""
        if not isinstance(error, SparkLogError):
            logger.error("append failed", exc_info=error)
        for batch in batches:
            batch.in_doubt = True
            if _is_retriable(error):
                self._retry_later(batch, error)
            elif len(batches) > 1 and self._transaction is None:
                batch.attempts -= 1
                self._retry_later(batch, error)
                batch.alone = True  # one attempt with each batch alone shows which one fails
            else:
                self._finish(batch, -1, error)

    def _retry_later(self, batch: ProducerBatch, error: Exception) -> None:
        logger.debug("%s-%s: tried again", batch.topic.name, batch.partition, exc_info=error)
        _drop_traceback(error)
        batch.last_error, batch.alone = error, False
        if isinstance(error, DiskFullError):
            # it fails soon, also if later attempts fail with another error, as when the log dir goes offline
            batch.disk_full = error
            self._failing.disk_full(batch.key, f"{batch.topic.name}-{batch.partition}", error)
        else:
            self._failing.failed(batch.key, f"{batch.topic.name}-{batch.partition}", error)
        full = batch.disk_full is not None and self._failing.is_full_for_long(batch.key)
        if full or batch.attempts > self._settings.retries:
            self._finish(batch, -1, batch.disk_full if full else error)
            return
        self.metrics.retried += batch.count
        batch.retry_at_s = clock.monotonic_s() + self._settings.retry_backoff_ms / 1000

    def _finish(self, batch: ProducerBatch, base_offset: int, error: Exception | None) -> None:
        """Set the outcome of the first batch of a partition, or in a transaction of any batch."""
        if error is not None:
            logger.debug("%s-%s: batch failed", batch.topic.name, batch.partition, exc_info=error)
            _drop_traceback(error)
            self._fail_transaction(error)
        if error is not None and batch.in_doubt and self._settings.enable_idempotence:
            # it may be appended: its sequences must not be used for other records, and it must not follow later ones
            self._identity.begin_epoch((batch.topic.topic_id, batch.partition))
        self._waiting.remove(batch)
        self._failing.ended(batch.key)
        if error is None:
            self._failing.appended(batch.key)
            self.metrics.sent += batch.count
            self.metrics.sent_bytes += batch.bytes
        else:
            self.metrics.failed += batch.count
            if self._settings.acks == 0 and not self.aborted:
                logger.warning("%s-%s: records lost: %s", batch.topic.name, batch.partition, error)
        batch.table = None
        topic_batch = batch.topic_batch
        topic_batch.resolve(batch, base_offset, kafka_error(error) if isinstance(error, SparkLogError) else error)
        self._accumulator.release(batch.bytes)
        topic_batch.unsettled -= 1
        if topic_batch.unsettled == 0:
            self._accumulator.finished(topic_batch)
