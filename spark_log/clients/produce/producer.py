"""The producer has the interface of kafka-python's KafkaProducer for a spark-log cluster."""

import logging
import os
import threading
import weakref
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
from kafka.errors import IllegalStateError, KafkaError, KafkaTimeoutError, TransactionAbortedError
from kafka.structs import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition

from spark_log import clock
from spark_log.clients.kafka_errors import kafka_error, kafka_errors
from spark_log.clients.produce.accumulator import Accumulator, next_client_id
from spark_log.clients.produce.future import SendFuture, TableFuture, Written
from spark_log.clients.produce.known_topics import KnownTopics
from spark_log.clients.produce.partitioner_setting import ClusterView, choose_with
from spark_log.clients.produce.producer_batch import RECORD_BYTES, Headers
from spark_log.clients.produce.producer_settings import KAFKA_DEFAULTS, parse, serialize_with
from spark_log.clients.produce.record_checks import (
    check_delivery_time,
    check_timestamp,
    checked_bytes,
    checked_headers,
    checked_size,
    deliver_at_header,
)
from spark_log.clients.produce.sender import Sender
from spark_log.clients.produce.table_batches import checked, topic_batches
from spark_log.cluster.cluster import Cluster
from spark_log.errors import SparkLogError
from spark_log.maintenance.client_log import ClientLog
from spark_log.metadata.connections.writer_queue import is_writing
from spark_log.process import Finalizer

if TYPE_CHECKING:
    from spark_log.clients.produce.producer_transaction import ProducerTransaction
    from spark_log.groups.share.transacted import ShareAcknowledgements, ShareGroupMetadata

logger = logging.getLogger(__name__)

AT_EXIT_S = 30.0
"""Maximum time that a program that ends without `close` waits for its records. On a busy machine 10 s are too few."""


class Producer:
    """Sends records to topics of a cluster. Threads may share it; a forked child must not use it.

    >>> producer = Producer(cluster="/data/log", linger_ms=5)               # doctest: +SKIP
    >>> future = producer.send("flights", key=b"N14228", value=b"...")      # doctest: +SKIP
    >>> future.get(timeout=10).offset                                       # doctest: +SKIP

    Settings are those of `ProducerSettings`, by kafka-python's names; `bootstrap_servers` is an alias of `cluster`.
    Raises ValueError for an unknown one, KafkaConfigurationError for one that is not applicable or has an invalid
    value. Errors are kafka-python's and, if spark-log has a class of the same name, instances of that class too.
    """

    DEFAULT_CONFIG: ClassVar[Mapping[str, Any]] = KAFKA_DEFAULTS

    @kafka_errors()
    def __init__(self, **configs: Any) -> None:
        address, settings = parse(configs)
        if settings.client_id is None:
            settings = replace(settings, client_id=next_client_id())
        self._settings = settings
        self._serialize_key = serialize_with("key_serializer", settings.key_serializer)
        self._serialize_value = serialize_with("value_serializer", settings.value_serializer)
        self._choose = choose_with(settings.partitioner)
        self.config = {"bootstrap_servers": address, **vars(settings)}
        cluster = Cluster.open(address)
        self._cluster = cluster
        self._accumulator = Accumulator(settings)
        self._topics = KnownTopics(cluster, settings, self._accumulator)
        self._view = ClusterView(self._topics.by_name)
        log = ClientLog(cluster, holder=f"producer {settings.client_id}", in_thread=True)
        self._log = log
        self._transaction: ProducerTransaction | None = None
        if settings.transactional_id is not None:
            from spark_log.clients.produce import producer_transaction  # imports the groups, which few need

            self._transaction = producer_transaction.ProducerTransaction(cluster, settings)
        self._sender = Sender(cluster, log, settings, self._accumulator, self._topics, self._transaction)
        _living.add(self)
        # runs when the producer is garbage-collected, and when the interpreter ends
        self._finalizer = Finalizer(self, _close, self._accumulator, self._sender, AT_EXIT_S, True)
        self._sender.start()

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        *,
        deliver_at_ms: int | None = None,
    ) -> SendFuture:
        """Send a record; return at once with a future of its RecordMetadata.

        The record goes to `partition` if it is given; otherwise the partitioner chooses, by default by the key's hash.
        Headers are a list of (str, bytes); `timestamp_ms` counts from 1970, by default it is the current time. With
        `deliver_at_ms` (since 1970) share groups deliver the record at that time or later; other consumers read it at
        once. The header spark-log.deliver-at has it; ValueError is raised for a time beyond the topic's retention.ms.
        Raises TypeError and ValueError for records that no topic accepts, as kafka-python does,
        MessageSizeTooLargeError above max_request_size, KafkaTimeoutError when the topic is not found or the buffer has
        no room within max_block_ms, IllegalStateError after `close` and in a forked child. A record that only this
        topic refuses fails its future. In a transaction all errors except TypeError and ValueError fail the commit too.
        """
        if self._accumulator.refusal is not None:
            raise IllegalStateError(self._accumulator.refusal)
        if self._transaction is not None and not self._transaction.may_send:
            self._transaction.check("send")
        try:
            if value is None and key is None:
                raise ValueError("Need at least one: key or value")
            if deliver_at_ms is not None:
                headers = [*(headers or []), deliver_at_header(deliver_at_ms)]
            if headers is not None:
                headers = checked_headers(headers)
            key_bytes, value_bytes = key, value
            if self._serialize_key is not None:
                key_bytes = self._serialize_key(topic, headers or [], key)
            if self._serialize_value is not None:
                value_bytes = self._serialize_value(topic, headers or [], value)
            if type(key_bytes) is not bytes:
                key_bytes = checked_bytes("key", key_bytes)
            if type(value_bytes) is not bytes:
                value_bytes = checked_bytes("value", value_bytes)
            if timestamp_ms is None:
                timestamp_ms = clock.wall_ms()
            else:
                check_timestamp(timestamp_ms)
            known_topic = self._topics.by_name.get(topic) or self._topics.find(topic)
            if deliver_at_ms is not None:
                check_delivery_time(deliver_at_ms, known_topic.topic, clock.wall_ms())
            size = RECORD_BYTES + (len(key_bytes) if key_bytes else 0) + (len(value_bytes) if value_bytes else 0)
            if headers or size > self._settings.max_request_size:
                size = checked_size(key_bytes, value_bytes, headers, self._settings.max_request_size)
            if partition is None and self._choose is not None:
                partition = self._choose(topic, key, key_bytes, value, value_bytes, self._view)
                if partition is None:
                    raise ValueError(f"Partitioner did not assign a partition for topic {topic}!")
            if partition is not None:
                partition = self._topics.checked_partition(topic, partition)
            try:
                topic_batch, row = self._accumulator.add(
                    known_topic.queue, key_bytes, value_bytes, headers, partition, timestamp_ms, size
                )
            except SparkLogError as error:
                raise kafka_error(error) from None
            return SendFuture(topic_batch, row)
        except KafkaError as error:  # the transaction must not be committed without this record
            if self._transaction is not None:
                self._transaction.fail(error)
            raise

    @kafka_errors()
    def send_table(self, topic: str, table: pa.Table | pa.RecordBatch) -> TableFuture:
        """Send the records of an Arrow table after all earlier records; return a future of a list of `Written`.

        Columns are `value`, and optionally `key` (both string or binary), `partition` (integers; with null the key
        decides), `timestamp` (with time zone; null means the current time) and `headers` (list of struct of key and
        value). No Python code runs per record; serializers and a custom partitioner are not used. A table that does not
        fit into the buffer waits for room, up to max_block_ms for each of its slices. Raises InvalidRecordError or a
        subclass for a record that the topic refuses; then nothing of the table is sent.
        """
        if self._accumulator.refusal is not None:
            raise IllegalStateError(self._accumulator.refusal)
        if self._transaction is not None:
            self._transaction.check("send")
        if not isinstance(table, pa.Table | pa.RecordBatch):
            raise TypeError(f"table: expected a pyarrow Table or RecordBatch, got {type(table)}")
        with self._transaction.fail_on_error() if self._transaction is not None else nullcontext():
            target = self._topics.find(topic)
            now_ms = self._cluster.store.now().wall_ms
            records, explicit = checked(table, target.topic, now_ms, self._settings.max_request_size)
            future = TableFuture()
            run_bytes = self._settings.batch_size
            bytes_max = max(1, self._settings.buffer_memory // 2)  # one slice is written while the next one waits
            for topic_batch in topic_batches(target.topic, records, explicit, bytes_max, target.first_run, run_bytes):
                target.first_run += 1
                future.add(topic_batch)
                try:
                    self._accumulator.add_topic_batch(target.queue, topic_batch)
                except BaseException:
                    topic_batch.take_parts()  # the future refers to the topic batch, and other listeners may keep it
                    raise
        return future

    def flush(self, timeout: float | None = None) -> None:
        """Send all waiting records now, and wait until every record sent so far is stored or has failed.

        Raises KafkaTimeoutError after `timeout` seconds, IllegalStateError in a callback, which would wait for itself.
        """
        if self._accumulator.refusal == _FORKED:
            raise IllegalStateError(_FORKED)
        if threading.current_thread() is self._sender:
            raise IllegalStateError("flush in a callback would wait for itself")
        if not self._accumulator.wait_for(self._accumulator.flush(), timeout):
            raise KafkaTimeoutError(f"Timeout after waiting for {timeout} secs.")

    def close(self, timeout: float | None = None) -> None:
        """Send the waiting records and end the producer. Records that are not stored after `timeout` seconds fail.

        It does not wait in a callback.
        """
        if timeout is not None and not 0 <= timeout <= threading.TIMEOUT_MAX:
            raise ValueError(f"Invalid timeout: {timeout}")
        if not self._finalizer.detach():
            return
        _close(self._accumulator, self._sender, timeout)
        for serializer in (self._settings.key_serializer, self._settings.value_serializer):
            if hasattr(serializer, "close"):
                serializer.close()

    @kafka_errors()
    def partitions_for(self, topic: str) -> set[int]:
        """Return a topic's partition numbers. Raises MissingTopicError, or IllegalStateError after `close`."""
        if self._accumulator.refusal is not None:
            raise IllegalStateError(self._accumulator.refusal)
        return set(range(self._topics.find(topic).topic.partition_count))

    def bootstrap_connected(self) -> bool:
        """Whether the metadata store answers, and the producer is open."""
        if self._accumulator.refusal is not None:
            return False
        try:
            return bool(
                self._cluster.store.read(lambda c: c.exec_driver_sql("SELECT 1").scalar_one(), timeout_ms=1_000)
            )
        except SparkLogError:
            return False

    @property
    def client_id(self) -> str:
        """Return the setting client_id; its default is generated."""
        return self._settings.client_id or ""

    def metrics(self, raw: bool = False) -> dict[str, Any] | None:
        """Return totals since the start in kafka-python's group `producer-metrics`; with `raw` without the group."""
        if not self._settings.metrics_enabled:
            return None
        found = self._sender.metrics.as_kafka(self._settings.buffer_memory, self._accumulator.available_bytes)
        return dict(found) if raw else {"producer-metrics": found}

    # --- transactions --------------------------------------------------------------------------------------------

    @kafka_errors()
    def init_transactions(self) -> None:
        """Fence earlier producers with this transactional_id and abort their open transaction. Call it before the first
        transaction.

        If an earlier producer has committed a transaction over several stores, and a store has not completed its part,
        this call completes it first. Raises TransactionCommitPendingError, which is retriable, if that is not possible
        now, and InvalidTransactionTimeoutError for a transaction_timeout_ms above the cluster's
        transaction.max.timeout.ms.
        """
        self._transactional().initialize(self._log)

    @kafka_errors()
    def begin_transaction(self) -> None:
        """Begin a transaction: all records sent from now on belong to it. After another `init_transactions` with the
        same transactional_id, this call and each later one raise ProducerFencedError.
        """
        transaction = self._transactional()
        transaction.check("begin_transaction")
        late = self._accumulator.flush()
        if late:  # sent by other threads while the last transaction ended: refused, not part of this one
            self._accumulator.wait_for(late, None)
        transaction.begin(self._log)

    @kafka_errors()
    def send_offsets_to_transaction(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group_metadata: ConsumerGroupMetadata | str
    ) -> None:
        """Commit a group's offsets with the transaction. `group_metadata` is the result of `Consumer.group_metadata()`,
        or a group id if the group has no members.

        Raises, now or in the commit, CommitFailedError if the consumer does not own the partitions any more, or
        UnknownTopicOrPartitionError if the topic that it read has been deleted. Abort the transaction after either.
        """
        from spark_log.groups.committed_offsets import check_commits
        from spark_log.groups.transacted_offsets import committer, of_topics_read

        commits = of_topics_read(check_commits(offsets, self._cluster.store.settings), group_metadata)
        self._transactional().add_offsets(committer(group_metadata), commits)

    @kafka_errors()
    def send_share_acknowledgements_to_transaction(
        self, acknowledgements: "ShareAcknowledgements", group_metadata: "ShareGroupMetadata"
    ) -> None:
        """Commit acknowledgements of a share group with the transaction: either its records are visible and the
        acknowledgements count, or neither. The arguments are the results of
        `ShareConsumer.acknowledgements_for_transaction()` and `share_group_metadata()`.

        From now on the locks of the acknowledged records last as long as the transaction, and the consumer may poll or
        close. Raises, now or in the commit, CommitFailedError if a lock has ended: abort the transaction then. An abort
        releases the records.
        """
        if acknowledgements.group_id != group_metadata.group_id:
            raise ValueError(
                f"group_metadata: of group {group_metadata.group_id!r}, the acknowledgements are of group"
                f" {acknowledgements.group_id!r}"
            )
        self._transactional().add_acknowledgements(acknowledgements)

    @kafka_errors()
    def commit_transaction(self) -> list[Written]:
        """Wait for all sent records, then make them visible at once, and commit the offsets of the groups with them.

        Returns the partitions and offsets of the records; the futures of the records now have them too. Raises if a
        send failed (abort then), and: TransactionAbortableError if the transaction has timed out or its topic was
        deleted (abort then); ProducerFencedError (close the producer then); KafkaConnectionError and other retriable
        errors. After a retriable error it is unknown whether the transaction is committed: call this again, which
        commits it once, or `abort_transaction`. After TransactionCommitPendingError it is committed, but a data store
        has not completed its part: call this again to wait for the store.
        """
        transaction = self._transactional()
        number = transaction.begin_commit()
        self.flush()
        written = transaction.commit(self._log, number)
        self._sender.warn_of_expired()
        return written

    @kafka_errors()
    def abort_transaction(self) -> None:
        """Drop the records of the transaction. Futures that are not done fail with TransactionAbortedError.

        Raises InvalidTxnStateError if an earlier call of commit has committed the transaction after all.
        """
        transaction = self._transactional()
        number = transaction.begin_abort()
        unsent = self._accumulator.flush()
        for topic_batch in unsent:
            topic_batch.fail(TransactionAbortedError("the transaction was aborted"))
        self._accumulator.wait_for(unsent, None)
        transaction.abort(number)

    def _transactional(self) -> "ProducerTransaction":
        if self._accumulator.refusal is not None:
            raise IllegalStateError(self._accumulator.refusal)
        if self._transaction is None:
            raise IllegalStateError("Cannot use transactional methods without setting a transactional_id")
        if threading.current_thread() is self._sender:
            raise IllegalStateError("transactional methods cannot be called in a callback, which they would wait for")
        return self._transaction

    def __enter__(self) -> "Producer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Producer client_id={self._settings.client_id} cluster={self._cluster.store.address}>"


_FORKED = "this producer belongs to the process that this one was forked from: make one here"
_living: "weakref.WeakSet[Producer]" = weakref.WeakSet()


def _close(accumulator: Accumulator, sender: Sender, timeout_s: float | None, forgotten: bool = False) -> None:
    """Close a producer. `forgotten` means that it was garbage-collected, or that the interpreter exits.

    A garbage collection may run inside a transaction of another client. Then this does not wait for the sender, which
    may need the locks of that transaction: the exit of the interpreter waits for the sender.
    """
    if accumulator.refusal == _FORKED:
        return
    waits = not (forgotten and is_writing())
    accumulator.refusal = "KafkaProducer already closed!"
    accumulator.close()
    if not waits or threading.current_thread() is sender:
        return
    sender.join(timeout_s)
    if not sender.is_alive():
        return
    error = IllegalStateError(f"the producer was closed before the record was stored (timeout {timeout_s} s)")
    sender.abandon_batches(error)
    left = accumulator.flush()
    if left:
        logger.error("producer closed with records that were not stored within %s s", timeout_s)
    for topic_batch in left:
        topic_batch.fail(error)


def _after_fork() -> None:
    for producer in list(_living):
        producer._accumulator.refusal = _FORKED
        for topic_batch in producer._accumulator.outstanding():
            topic_batch.abandon(IllegalStateError(_FORKED))


os.register_at_fork(after_in_child=_after_fork)
