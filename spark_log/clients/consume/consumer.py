"""The consumer has the interface of kafka-python's KafkaConsumer for a spark-log cluster, and reads Arrow batches."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import pyarrow as pa
from kafka.consumer.fetcher import ConsumerRecord
from kafka.consumer.group import KafkaConsumer
from kafka.errors import KafkaConfigurationError
from kafka.future import Future
from kafka.structs import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition

from spark_log import clock
from spark_log.clients.client_settings import parse_settings
from spark_log.clients.consume.background import Background
from spark_log.clients.consume.consumer_base import exclusive, record_count, timeout_s, translated
from spark_log.clients.consume.consumer_queries import ConsumerQueries
from spark_log.clients.consume.consumer_settings import ConsumerSettings
from spark_log.clients.consume.poll_loop import Polling
from spark_log.clients.consume.python_records import Deserializers, python_records
from spark_log.clients.consume.subscription import checked_offsets, checked_partition, checked_position
from spark_log.clients.kafka_errors import kafka_errors
from spark_log.cluster.cluster import Cluster
from spark_log.errors import IllegalStateError
from spark_log.groups.committed_offsets import Commit
from spark_log.groups.transacted_offsets import GroupMetadata
from spark_log.log.columns.column_choice import top_columns
from spark_log.process import Finalizer


class Consumer(ConsumerQueries):
    """Reads topics of a cluster. Methods, keyword names and results are those of kafka-python 3's KafkaConsumer.

    >>> consumer = Consumer("flights", cluster="/data/log", group_id="readers")     # doctest: +SKIP
    >>> for record in consumer: print(record.offset, record.value)                  # doctest: +SKIP

    `cluster` (alias `bootstrap_servers`) is the cluster's address; every other setting is a field of ConsumerSettings.
    Raises KafkaConfigurationError for a setting that is unknown, invalid, or not applicable here.

    Not thread-safe: use one consumer per thread. Other threads may call only `close`, `metrics` and ConsumerQueries'
    methods. Each error is an instance of both kafka-python's and spark_log's class.
    """

    DEFAULT_CONFIG: ClassVar[Mapping[str, Any]] = KafkaConsumer.DEFAULT_CONFIG
    """kafka-python's defaults, for programs that select their settings by its keys."""
    _polling: Polling

    def __init__(self, *topics: str, **configs: Any) -> None:
        address, self.settings = parse_settings(ConsumerSettings, configs, self.DEFAULT_CONFIG, KafkaConfigurationError)
        self._background = Background(f"spark-log-consumer-{self.settings.group_id or id(self)}")
        with kafka_errors(), contextlib.ExitStack() as opened:
            self.cluster = opened.enter_context(Cluster.open(address))
            self._polling = Polling(self.cluster, self.settings, self._background)
            opened.pop_all()  # an error before, such as of session_timeout_ms, closes the cluster
        self._subscription = self._polling.subscription
        self._deserializers = Deserializers(self.settings.key_deserializer, self.settings.value_deserializer)
        super().__init__()
        self._closing = False
        self._deferred: tuple[TopicPartition, int | None, Exception] | None = None
        """The error of a deserializer, after a poll that returned records, and the position at which it is due."""
        self._polls = self._records = 0
        self._forgotten = Finalizer(self, self._background.abandon)
        self.config = {"bootstrap_servers": address, **vars(self.settings)}
        try:
            if topics:
                self.subscribe(topics)
        except BaseException:
            self.close(autocommit=False)
            raise

    def __repr__(self) -> str:
        return f"Consumer({self.cluster!r}, group_id={self.settings.group_id!r})"

    def __exit__(self, kind: object, *_: object) -> None:
        """Close. After an error, skip the automatic commit, because the last record may not have been processed."""
        self.close(autocommit=kind is None)

    # --- subscription -------------------------------------------------------------------------------------------

    @exclusive
    def subscribe(self, topics: Sequence[str] = (), pattern: str | None = None, listener: Any = None) -> None:
        """Read the topics of these names, or those whose names a regular expression matches from the beginning.

        With a group_id, the group's members share the partitions, and `poll` calls `listener` (a
        ConsumerRebalanceListener) with the assigned and revoked partitions. Without a group_id, all partitions are
        read. A later call replaces the topics. Raises ValueError, TypeError, or IllegalStateError after `assign`.
        """
        self._subscription.subscribe(topics, pattern, listener)
        self._polling.topics.forget()
        self._iterator = self._deferred = None

    @exclusive
    def assign(self, partitions: Collection[TopicPartition]) -> None:
        """Read exactly these partitions, without group management. Replaces the earlier assignment; partitions in both
        keep their positions. An empty list unsubscribes. Raises IllegalStateError after `subscribe`.
        """
        if not partitions:
            self.unsubscribe()
            return
        if self._subscription.kind == "assigned":
            self._polling.commits.auto_later(self._polling.to_commit())
        self._subscription.assign_from_user(partitions)
        self._polling.topics.forget()
        self._polling.refresh_topics()
        self._polling.positions_changed()
        self._iterator = None

    @exclusive
    def unsubscribe(self) -> None:
        """Commit if commits are automatic, drop all partitions and leave the group."""
        self._polling.commits.finish(self._polling.to_commit())
        self._polling.leave_and_drop_partitions()
        self._subscription.unsubscribe()
        self._iterator = None

    def assignment(self) -> set[TopicPartition]:
        """Return the partitions that are assigned now."""
        return set(self._subscription.partitions)

    def subscription(self) -> set[str] | None:
        """Return the subscribed topics (for a pattern, the matching ones); None without a subscription."""
        topics = self._subscription.topics
        return None if topics is None else set(topics)

    @translated
    def pause(self, *partitions: TopicPartition) -> None:
        """Return no records of these partitions until `resume`. They stay assigned."""
        for partition in partitions:
            self._subscription.state(partition).paused = True

    @translated
    def resume(self, *partitions: TopicPartition) -> None:
        for partition in partitions:
            self._subscription.state(partition).paused = False

    def paused(self) -> set[TopicPartition]:
        return {partition for partition, state in list(self._subscription.partitions.items()) if state.paused}

    # --- records ------------------------------------------------------------------------------------------------

    @exclusive
    def poll(
        self, timeout_ms: float = 0, max_records: int | None = None, update_offsets: bool = True
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        """Return the next records, at most `max_records` (default: max_poll_records). Waits up to `timeout_ms` for one.

        Joins the group and follows its assignments, runs listeners and commit callbacks, and commits automatically.
        With `update_offsets` False the positions stay, for iteration. With auto_offset_reset none, raises
        NoOffsetForPartitionError, OffsetOutOfRangeError or LogTruncationError. Raises CorruptRecordError and the errors
        of deserializers: the position is then at the failed record, and `seek` skips it.
        """
        rows_max = self.settings.max_poll_records if max_records is None else record_count(max_records)
        self._raise_deferred()
        error: Exception | None = None
        polled: dict[TopicPartition, list[ConsumerRecord]] = {}
        self._polls += 1
        self._polling.fetching.choose(None)
        for partition, batch, epoch in self._polling.poll(timeout_s(timeout_ms), rows_max):
            records, error = python_records(batch, partition.topic, partition.partition, self._deserializers, epoch)
            if records:
                polled.setdefault(partition, []).extend(records)
            if error is not None:  # the position stays at the failed record; the records after it are read again
                break
        if self._polling.closed.is_set():  # by a deserializer or a signal handler: it must not commit these records
            return {}
        if error is not None:
            self._polling.positions_changed()
            if not polled:
                raise error
            before = polled.get(partition)
            position = before[-1].offset + 1 if before else self._subscription.partitions[partition].offset
            self._deferred = partition, position, error
        for partition, records in polled.items() if update_offsets else ():
            self._subscription.partitions[partition].seek(records[-1].offset + 1, records[-1].leader_epoch)
        self._records += sum(map(len, polled.values()))
        return polled

    def _raise_deferred(self) -> None:
        """Raise the error of the previous poll's deserializer, if its record is the next one to read. Otherwise a later
        poll meets the record again: the partition is paused or revoked, or an iteration has not returned all records.
        """
        deferred, self._deferred = self._deferred, None
        if deferred is not None:
            partition, position, error = deferred
            state = self._subscription.partitions.get(partition)
            if state is not None and state.fetchable and state.offset == position:
                raise error

    @exclusive
    def poll_arrow(
        self, timeout_ms: float = 0, max_records: int | None = None, columns: Sequence[str] | None = None
    ) -> dict[TopicPartition, pa.Table]:
        """Poll and return Arrow tables with the columns of the Spark source: key, value, topic, partition, offset,
        timestamp, timestampType, headers. It makes no copy of the values, and no Python object per record.

        With `columns` only these columns are read and returned. They may include the typed columns of a topic, and
        paths of fields of record and key_record, as in ["offset", "record.price"]: the structs then have only these
        fields. Their types stay the same until `columns` change, even if the topic gets more fields. Raises
        InvalidOptionError for a column that a topic does not have. Without `max_records`, returns the available records
        within fetch_max_bytes and max_partition_fetch_bytes, at least one batch.
        """
        rows_max = None if max_records is None else record_count(max_records)
        batches: dict[TopicPartition, list[pa.RecordBatch]] = {}
        self._polls += 1
        self._polling.fetching.choose(columns)
        fetched = self._polling.poll(timeout_s(timeout_ms), rows_max)
        for partition, batch, _ in fetched:
            batches.setdefault(partition, []).append(batch)
        tables = {partition: pa.Table.from_batches(found) for partition, found in batches.items()}
        if columns is not None:
            tables = {partition: table.select(top_columns(columns)) for partition, table in tables.items()}
        if self._polling.closed.is_set():
            return {}
        for partition, batch, epoch in fetched:
            self._subscription.partitions[partition].seek(batch.column("offset")[-1].as_py() + 1, epoch)
            self._records += batch.num_rows
        return tables

    def _poll_once(self, deadline_s: float) -> Iterator[ConsumerRecord]:
        """Yield the records of one poll. Each yield moves the position past its record: commits cover no later one."""
        left_ms = max(0.0, (deadline_s - clock.monotonic_s()) * 1000)
        states = self._subscription.partitions
        for partition, records in self.poll(min(left_ms, _ITERATION_POLL_MS), update_offsets=False).items():
            for record in records:
                state = states.get(partition)
                if state is None or not state.fetchable:  # revoked or paused: the rest is read again after `resume`
                    break
                state.seek(record.offset + 1, record.leader_epoch)
                yield record

    # --- positions ----------------------------------------------------------------------------------------------

    @exclusive
    def seek(self, partition: TopicPartition, offset: int | OffsetAndMetadata | Commit) -> None:
        """Continue reading at `offset`. Raises ValueError if the partition is not assigned or the offset is below 0.

        The leader epoch of an OffsetAndMetadata identifies the lineage of the offset, as in Kafka's Java client. The
        offset belongs to the topic that has the name now, even if the consumer has read a deleted topic of that name.
        """
        position = checked_position(checked_partition(partition), offset)
        for found in self._subscription.assigned([partition]):
            self._subscription.partitions[found].replace_by(position)
            self._polling.fetching.buffers.drop(found)  # its records may be of a topic that was deleted
        self._moved()

    @exclusive
    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Continue reading at the log start offset of these partitions, or of all assigned ones."""
        for partition in self._subscription.assigned(partitions):
            self._subscription.partitions[partition].ask_reset("earliest")
        self._moved()

    @exclusive
    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Continue reading at the high watermark of these partitions, or of all assigned ones."""
        for partition in self._subscription.assigned(partitions):
            self._subscription.partitions[partition].ask_reset("latest")
        self._moved()

    @exclusive
    def position(self, partition: TopicPartition, timeout_ms: float | None = None) -> int | None:
        """Return the offset of the next record. Raises IllegalStateError if the partition is not assigned.

        Waits while an open transaction may change the committed offset, up to `timeout_ms` (default:
        request_timeout_ms). Returns None if the offset is still unknown then, or if the partition does not exist.
        """
        state = self._subscription.state(partition)
        if state.offset is None:
            timeout_ms = self.settings.request_timeout_ms if timeout_ms is None else timeout_ms
            self._polling.resolve_positions(partition, timeout_ms / 1000)
        return state.offset

    def offsets_to_commit(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Commit]:
        """Return the positions of those `partitions` that are assigned, for a transaction. The transaction refuses them
        once their topic has been deleted.
        """
        return {name: offset for name, offset in self._polling.to_commit().items() if name in partitions}

    @translated
    def highwater(self, partition: TopicPartition) -> int | None:
        """Return the high watermark at the last read of the store, or None before the first one."""
        return self._subscription.state(partition).high_watermark

    # --- commits and the group ----------------------------------------------------------------------------------

    @translated
    def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata] | None = None, timeout_ms: float | None = None
    ) -> None:
        """Commit, by default the positions of all assigned partitions, and wait.

        Raises CommitFailedError if the group has assigned the partitions to other members, KafkaTimeoutError after
        `timeout_ms` (default: request_timeout_ms), and IllegalStateError without a group_id.
        """
        self._polling.commits.now(self._to_commit(offsets), timeout_ms)

    @translated
    def commit_async(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata] | None = None,
        callback: Callable[[Mapping[TopicPartition, OffsetAndMetadata], Any], Any] | None = None,
    ) -> Future:
        """Commit in the background, in the order of the calls. A later `poll` or commit calls `callback(offsets, None
        or the error)`.
        """
        return self._polling.commits.later(self._to_commit(offsets), callback)

    def group_metadata(self) -> ConsumerGroupMetadata:
        """Return this member's identity for a transactional producer. Its group_id is None without a group.

        A member that has lost its session still returns its old member id, so that the group refuses its commits. With
        an empty member id it could commit to a group without members.
        """
        group = self._polling.group
        return GroupMetadata(group_id=None) if group is None else group.metadata()

    # --- cluster and metrics ------------------------------------------------------------------------------------

    def metrics(self, raw: bool = False) -> dict[str, dict[str, float]] | None:
        """Return metrics by group and name, or None with metrics_enabled=False. Totals and averages are since the
        start, latencies in milliseconds, lags as of the last fetch. May be called from any thread.
        """
        if not self.settings.metrics_enabled:
            return None
        return {"consumer-metrics": {"poll-total": self._polls}, **self._polling.metrics(self._records)}

    def close(self, autocommit: bool = True, timeout_ms: float | None = None) -> None:
        """Commit (if commits are automatic and `autocommit` is True), call the listener, leave the group and end the
        background thread.

        It may be called from any thread, and waits for a running `poll`. Raises IllegalStateError if that takes longer
        than `timeout_ms` (default: request_timeout_ms). Callbacks and signal handlers do not wait: the call that they
        interrupt closes the consumer, and logs an error of this close. A second call has no effect.
        """
        timeout_ms = self.settings.request_timeout_ms if timeout_ms is None else timeout_ms
        if self._closed or self._process != os.getpid():
            return
        self._polling.closed.set()
        if self.closes_later(lambda: self.close(autocommit, timeout_ms)):
            return
        deadline_s = clock.monotonic_s() + timeout_ms / 1000
        with kafka_errors(), self.after_running_call(timeout_ms / 1000), contextlib.ExitStack() as at_end:
            if self._closing:
                return
            self._closing = True
            at_end.callback(lambda: self._release(max(0.0, deadline_s - clock.monotonic_s())))
            at_end.callback(self._polling.leave_and_drop_partitions)
            left_ms = max(0.0, deadline_s - clock.monotonic_s()) * 1000
            self._polling.commits.finish(self._polling.to_commit() if autocommit else {}, left_ms)

    def _release(self, timeout_s: float) -> None:
        self._closed = True
        self._background.close(timeout_s)
        self.cluster.close()
        self._forgotten.detach()
        for deserializer in self._deserializers:
            with contextlib.suppress(AttributeError):
                deserializer.close()

    def check_open(self) -> None:
        super().check_open()
        if self._polling.closed.is_set() and not self._closing:  # the listener that `close` calls may call the consumer
            raise IllegalStateError("the consumer is closed")

    def _moved(self) -> None:
        self._deferred = None
        self._polling.positions_changed()
        self._iterator = None

    def _to_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata] | None) -> dict[TopicPartition, Commit]:
        self.required_group()
        if offsets is None:
            return self._polling.to_commit()
        return self._subscription.of_their_topics(checked_offsets(offsets))


_ITERATION_POLL_MS = 60_000.0
"""Maximum time of one poll of an iteration. Polls keep the membership."""
