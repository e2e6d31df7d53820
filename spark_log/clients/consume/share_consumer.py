"""Implements a consumer of a share group (KIP-932), whose members share the records one by one, as in a queue."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from kafka.consumer.fetcher import ConsumerRecord
from kafka.errors import KafkaConfigurationError
from kafka.structs import TopicPartition

from spark_log import clock
from spark_log.clients.client_settings import parse_settings
from spark_log.clients.consume.background import Background
from spark_log.clients.consume.consumer_base import ConsumerBase, exclusive, record_count, timeout_s
from spark_log.clients.consume.python_records import Converted, Deserializers, python_records
from spark_log.clients.consume.share_deliveries import Delivery, acknowledgements
from spark_log.clients.consume.share_membership import ShareMembership
from spark_log.clients.consume.share_poll_loop import Callback, SharePolling
from spark_log.clients.consume.share_settings import ShareConsumerSettings
from spark_log.clients.kafka_errors import kafka_errors
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.names import validate_topic_name
from spark_log.config.values import INT32_MAX
from spark_log.errors import IllegalStateError
from spark_log.groups.share.rules import AcknowledgeType
from spark_log.groups.share.transacted import ShareAcknowledgements, ShareGroupMetadata
from spark_log.process import Finalizer

__all__ = ["AcknowledgeType", "ShareConsumer", "ShareRecord"]

_ITERATION_POLL_MS = 1_000


class ShareRecord(ConsumerRecord):  # type: ignore[misc]  # kafka-python has no types
    """A ConsumerRecord with `delivery_count`: the number of its deliveries, from 1."""

    delivery_count: int = 0


class ShareConsumer(ConsumerBase[ShareRecord]):
    """Reads topics of a cluster as a member of a share group. Method names are those of Kafka's Java client, in
    kafka-python's style.

    >>> with ShareConsumer("jobs", cluster="/data/log", group_id="workers") as consumer:     # doctest: +SKIP
    ...     for record in consumer: print(record.value)

    Each record is delivered to one member and locked for it during share.record.lock.duration.ms. A record that is
    released, or whose lock ends, is delivered again. Delivery is at least once, without an order beyond one poll.

    `cluster` (alias `bootstrap_servers`) is the cluster's address; every other setting is a field of
    ShareConsumerSettings. Raises KafkaConfigurationError for a setting that is unknown or invalid.

    Not thread-safe: use one consumer per thread. Other threads may call only `close`, `wakeup` and `metrics`. Each
    error is an instance of both kafka-python's and spark_log's class.
    """

    settings: ShareConsumerSettings
    _polling: SharePolling

    def __init__(self, *topics: str, **configs: Any) -> None:
        address, self.settings = parse_settings(ShareConsumerSettings, configs, {}, KafkaConfigurationError)
        with kafka_errors():
            self.cluster = Cluster.open(address)
        super().__init__()
        self._background = Background(f"spark-log-share-consumer-{self.settings.group_id}")
        self._membership = ShareMembership(self.cluster, self.settings, self._background)
        self.member_id = self._membership.member_id
        self._polling = SharePolling(self.cluster, self.settings, self._membership)
        self._deserializers = Deserializers(self.settings.key_deserializer, self.settings.value_deserializer)
        self._deferred: Exception | None = None
        self._polls = 0
        self._records = 0
        self._forgotten = Finalizer(self, self._background.abandon)
        try:
            if topics:
                self.subscribe(topics)
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        return f"ShareConsumer({self.cluster!r}, group_id={self.settings.group_id!r})"

    def __exit__(self, kind: object, *_: object) -> None:
        """Close. After an error, release the records of the last poll instead of accepting them."""
        self.close(accept=kind is None)

    def check_open(self) -> None:
        super().check_open()
        if self._polling.callback_thread is not None:
            raise IllegalStateError("an acknowledgement callback must not call its consumer")

    # --- subscription -------------------------------------------------------------------------------------------

    @exclusive
    def subscribe(self, topics: Sequence[str]) -> None:
        """Read these topics. A later call replaces them; an empty list unsubscribes.

        Raises InvalidTopicError for a name that is not legal.
        """
        if isinstance(topics, str):
            raise TypeError("topics: expected a list of names, got a text")
        if not topics:
            self._unsubscribe()
            return
        for topic in topics:
            validate_topic_name(topic)
        self._membership.topics = frozenset(topics)

    @exclusive
    def unsubscribe(self) -> None:
        """Send acknowledgements, release the other records, and leave the group."""
        self._unsubscribe()

    def subscription(self) -> set[str]:
        return set(self._membership.topics)

    def _unsubscribe(self) -> None:
        self._polling.release_all(accept=True)
        self._membership.leave()
        self._membership.topics = frozenset()

    # --- records ------------------------------------------------------------------------------------------------

    @exclusive
    def poll(self, timeout_ms: float = 0, max_records: int | None = None) -> dict[TopicPartition, list[ShareRecord]]:
        """Return acquired records by partition, at most `max_records` (default: max_poll_records). Waits up to
        `timeout_ms` for one.

        In implicit mode it first accepts the records of the last poll. In explicit mode it raises IllegalStateError
        while one of them is not acknowledged. Raises IllegalStateError without a subscription, GroupIdNotFoundError if
        the group is not a share group, GroupMaxSizeReachedError, WakeupError after `wakeup`, and the error of a
        deserializer, whose record is released.
        """
        rows_max = self.settings.max_poll_records if max_records is None else record_count(max_records)
        self._begin_poll(timeout_ms, rows_max)
        taken: list[tuple[Delivery, pa.RecordBatch, Converted]] = []
        for delivery, batch in self._polling.take(rows_max):
            name, number = delivery.partition
            converted = python_records(batch, name, number, self._deserializers, record_class=ShareRecord)
            taken.append((delivery, batch, converted))
            if converted.error is not None:
                break
        if self._polling.closed.is_set():  # by a deserializer or a signal handler: it must not accept these records
            return {}
        polled: dict[TopicPartition, list[ShareRecord]] = {}
        for delivery, batch, (records, error) in taken:
            for record in records:
                record.delivery_count = delivery.acquired.deliveries
            if records:
                polled.setdefault(delivery.partition, []).extend(records)
            delivery.returned += len(records)
            if error is not None:
                delivery.returned += 1
                failed = int(batch.column("offset")[len(records)].as_py())
                topic, partition = delivery.partition
                self._polling.deliveries.mark(topic, partition, failed, AcknowledgeType.RELEASE)
                if not polled:
                    raise error
                self._deferred = error
        self._records += sum(map(len, polled.values()))
        return polled

    @exclusive
    def poll_arrow(self, timeout_ms: float = 0, max_records: int | None = None) -> dict[TopicPartition, pa.Table]:
        """Poll and return Arrow tables with the columns of the Spark source, and `delivery_count` (int32). It makes no
        Python object per record. `acknowledge` accepts a table, or a part of one.
        """
        rows_max = self.settings.max_poll_records if max_records is None else record_count(max_records)
        self._begin_poll(timeout_ms, rows_max)
        taken = list(self._polling.take(rows_max))
        polled: dict[TopicPartition, list[pa.RecordBatch]] = {}
        for delivery, batch in taken:
            counts = pa.repeat(pa.scalar(delivery.acquired.deliveries, pa.int32()), batch.num_rows)
            polled.setdefault(delivery.partition, []).append(batch.append_column("delivery_count", counts))
        tables = {partition: pa.Table.from_batches(batches) for partition, batches in polled.items()}
        if self._polling.closed.is_set():
            return {}
        for delivery, batch in taken:
            delivery.returned += batch.num_rows
        self._records += sum(table.num_rows for table in tables.values())
        return tables

    def _poll_once(self, deadline_s: float) -> Iterator[ShareRecord]:
        """Return the records of one poll. In implicit mode it is one record, so that `commit_sync` and `close` accept
        none that the program has not seen.
        """
        left_ms = max(0.0, (deadline_s - clock.monotonic_s()) * 1000)
        polled = self.poll(min(left_ms, _ITERATION_POLL_MS), None if self.settings.explicit else 1)
        return iter([record for records in polled.values() for record in records])

    def _begin_poll(self, timeout_ms: float, rows_max: int) -> None:
        """Acknowledge, and acquire records unless some are buffered."""
        limit_s = timeout_s(timeout_ms)
        if not self._membership.topics:
            raise IllegalStateError("the consumer is not subscribed to any topics: call subscribe first")
        self._polls += 1
        if self._deferred is not None:
            error, self._deferred = self._deferred, None
            raise error
        self._polling.begin(limit_s, rows_max)

    # --- acknowledgements ---------------------------------------------------------------------------------------

    @exclusive
    def acknowledge(
        self,
        record: Any,
        type: AcknowledgeType = AcknowledgeType.ACCEPT,
        *,
        delay_ms: int = 0,
    ) -> None:
        """Acknowledge a record of the last poll, or all records of a table (`poll_arrow`). The next poll or commit
        sends the acknowledgement. With RELEASE and `delay_ms`, the record is delivered again only after this time.

        Raises IllegalStateError in implicit mode, or if the record is not held.
        """
        self._check_explicit()
        if isinstance(record, pa.Table):
            self._polling.deliveries.mark_table(record, AcknowledgeType(type))
        else:
            self._mark(record.topic, record.partition, record.offset, type, delay_ms)

    @exclusive
    def acknowledge_offset(
        self, topic: str, partition: int, offset: int, type: AcknowledgeType = AcknowledgeType.ACCEPT,
        *, delay_ms: int = 0,
    ) -> None:  # fmt: skip
        """Acknowledge a record by its offset, as `acknowledge` does. Its deserializer may have failed."""
        self._check_explicit()
        self._mark(topic, partition, offset, type, delay_ms)

    def _mark(self, topic: str, partition: int, offset: int, kind: AcknowledgeType, delay_ms: int) -> None:
        if delay_ms and kind != AcknowledgeType.RELEASE:
            raise ValueError(f"delay_ms: only a RELEASE can be delayed, not {AcknowledgeType(kind).name}")
        if not 0 <= delay_ms <= INT32_MAX:
            raise ValueError(f"delay_ms: {delay_ms} is outside [0, {INT32_MAX}]")
        self._polling.deliveries.mark(topic, partition, offset, AcknowledgeType(kind), delay_ms)

    def _check_explicit(self) -> None:
        if not self.settings.explicit:
            raise IllegalStateError("Implicit acknowledgement of delivery is being used: acknowledge is not allowed.")

    @exclusive
    def commit_sync(self, timeout_ms: float | None = None) -> dict[TopicPartition, Exception | None]:
        """Send the acknowledgements, durably. Returns for each partition None, or the error with which all of its
        acknowledgements were refused: InvalidRecordStateError, UnknownTopicOrPartitionError.
        """
        del timeout_ms  # a transaction of the store has its own limit
        if not self.settings.explicit:
            self._polling.deliveries.accept_returned()
        return self._polling.send()

    @exclusive
    def commit_async(self) -> None:
        """Send the acknowledgements. The callback gets the result before this call returns."""
        if not self.settings.explicit:
            self._polling.deliveries.accept_returned()
        self._polling.send()

    @exclusive
    def set_acknowledgement_commit_callback(self, callback: Callback | None) -> None:
        """Call `callback(offsets, error)` for each partition whose acknowledgements were sent, with the offsets by
        partition. The callback must not call the consumer.
        """
        self._polling.callback = callback

    @exclusive
    def acknowledge_rest(self, type: AcknowledgeType = AcknowledgeType.ACCEPT) -> None:
        """Acknowledge, as `acknowledge` does, each record of the last poll that is not acknowledged."""
        self._check_explicit()
        self._polling.deliveries.mark_rest(AcknowledgeType(type))

    @exclusive
    def release_all(self) -> None:
        """Release all records that this consumer holds, also those whose acknowledgements were not sent."""
        self._polling.deliveries.release_all()
        self._polling.release_all(accept=False)

    @exclusive
    def acknowledgements_for_transaction(self) -> ShareAcknowledgements:
        """Return the acknowledgements that were not sent, for `Producer.send_share_acknowledgements_to_transaction`.
        This consumer gives them up: it sends none of them, and does not release their records.

        Raises IllegalStateError in implicit mode, or for a RENEW.
        """
        self._check_explicit()
        marked = self._polling.deliveries.marked()
        by_partition = acknowledgements(marked, self.member_id)
        if any(ack.type == AcknowledgeType.RENEW for acks in by_partition.values() for ack in acks):
            raise IllegalStateError("a RENEW cannot be part of a transaction: call commit_sync first")
        self._polling.deliveries.sent(marked, 0.0)
        return ShareAcknowledgements(self.settings.group_id, by_partition)

    def share_group_metadata(self) -> ShareGroupMetadata:
        """Return the identity of this member, for a transaction."""
        return ShareGroupMetadata(self.settings.group_id, self.member_id)

    # --- others -------------------------------------------------------------------------------------------------

    def wakeup(self) -> None:
        """Make the running poll of another thread, or the next one, raise WakeupError."""
        self._polling.woken = True

    def acquisition_lock_timeout_ms(self) -> int | None:
        """Return the duration of the locks as of the last poll; None before the first one."""
        return self._polling.lock_ms

    def metrics(self) -> dict[str, dict[str, float]]:
        """Return totals since the start, by group and name."""
        return {
            "share-consumer-metrics": {
                "poll-total": self._polls,
                "records-consumed-total": self._records,
                "acknowledgements-total": self._polling.acknowledged_count,
            }
        }

    def close(self, timeout_ms: float | None = None, *, accept: bool = True) -> None:
        """Send acknowledgements, release all other records, leave the group and end the background thread. In implicit
        mode the records of the last poll are accepted, unless `accept` is False.

        It may be called from any thread: a running `poll` returns first. Raises IllegalStateError if it does not return
        within `timeout_ms` (default: request_timeout_ms), or in a callback. If a signal handler calls it, the call that
        it interrupts closes the consumer, and logs an error of this close. A second call has no effect.
        """
        timeout_ms = self.settings.request_timeout_ms if timeout_ms is None else timeout_ms
        if self._closed or self._process != os.getpid():
            return
        with kafka_errors():
            if self._polling.callback_thread == threading.get_ident():
                self.check_open()
            self._polling.closed.set()
            if self.closes_later(lambda: self.close(timeout_ms, accept=accept)):
                return
            with self.after_running_call(timeout_ms / 1000):
                if self._closed:
                    return
                try:
                    try:
                        self._polling.release_all(accept=accept)
                    finally:
                        self._membership.close()
                finally:
                    self._closed = True
                    self._background.close(timeout_ms / 1000)
                    self._polling.close()
                    self.cluster.close()
                    self._forgotten.detach()
