"""Appends to and reads from the log of a cluster, for one process.

An append goes through these steps, each in one place:

    validate    `Log.append`: `log.append.encoding.prepare` refuses invalid records
    write       `Log.write_batches`: blobs, and segment files in the log dirs of the leader and the ISR
    append      `Log.append_batches`: the append transaction, which assigns offsets; its `Replication` runs it again
                where leader or ISR have changed meanwhile
    follow up   `Log._follow_up`: force to disk, then call the listeners with the append

A `Log` does no maintenance: `maintenance.client_log` has the listeners that copy, seal and publish.
"""

import logging
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Self

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.names import validate_user_topic
from spark_log.cluster.topics import Topic
from spark_log.errors import CrossStoreTransactionError, SparkLogError, redact
from spark_log.ids import WriteId
from spark_log.log.append.append_transaction import AppendRequest, AppendResult, CommitHook, force
from spark_log.log.append.companions import Append, AppendListener, Replication, TailLimit
from spark_log.log.append.encoding import (
    Encoding,
    Target,
    blob_batch,
    encode_inline,
    prepare,
)
from spark_log.log.append.failed_append_files import InDoubt, delete_files, settle
from spark_log.log.append.rules import (
    Acks,
    Appended,
    Batch,
    Rejected,
)
from spark_log.log.append.write_ids import Writer
from spark_log.log.batch_files import BatchFiles, Records, refusal, unknown_partition
from spark_log.log.partitions.partition_rows import Key
from spark_log.log.producer_introduction import append_with_producers
from spark_log.log.reader import LogReader
from spark_log.metadata.store import DEFAULT_TIMEOUT_MS, READ_TIMEOUT_MS

__all__ = ["Log", "Records", "WrittenBatches"]

logger = logging.getLogger(__name__)

_RETRY_MS = 200
"""How long `append_each` retries batches whose replicas lack records, while the outcomes of the others wait."""


@dataclass(frozen=True)
class WrittenBatches:
    """Batches that are written and not appended yet. `write_id` is the id of their files, None without files."""

    batches: list[Batch]
    blobs: dict[str, bytes]
    write_id: WriteId | None


class Log(LogReader):
    """Appends to and reads from a cluster. Safe to share between threads."""

    def __init__(
        self,
        cluster: Cluster,
        writer: Writer,
        replication: Replication,
        listeners: Sequence[AppendListener] = (),
        *,
        tail_limit: TailLimit | None = None,
        inline_max_bytes_min: int = 0,
        internal: bool = False,
    ) -> None:
        """`writer` names the files. The `listeners` are called after each append, in their order.

        `inline_max_bytes_min` is a lower bound of inline.max.bytes for topics that do not set it. With `internal`,
        appends to internal topics are allowed.
        """
        super().__init__(cluster, tail_limit)
        self._writer, self._replication, self._listeners = writer, replication, listeners
        self._inline_max_bytes_min, self._internal = inline_max_bytes_min, internal
        self._files = BatchFiles(cluster, writer, replication)
        self._doubts: list[InDoubt] = []
        self._doubts_lock = threading.Lock()

    def close(self) -> None:
        """Delete the files of failed appends that are known not to be committed, and release the write id."""
        try:
            self._settle_doubts(READ_TIMEOUT_MS)
        except SparkLogError as error:
            logger.info("files of appends that failed are left to the clean-up: %s", redact(str(error)))
        self._writer.close()

    def append(
        self, topic: Topic, records: Sequence[Records], *, acks: Acks = "all", timeout_ms: int = DEFAULT_TIMEOUT_MS
    ) -> list[Appended | Rejected]:
        """Append to several partitions of a topic in one transaction; each has its own outcome.

        Raises the errors of `record_limits` for invalid records, before anything is written. The outcome of a partition
        of a topic that has been deleted is UnknownTopicOrPartitionError.
        """
        encoding = Encoding.of(topic)
        now_ms = self.cluster.of(topic).store.now().wall_ms
        prepared = [(topic, replace(item, table=prepare(item.table, encoding, now_ms))) for item in records]
        return self.append_prepared(prepared, acks=acks, timeout_ms=timeout_ms)

    def append_prepared(
        self,
        items: Sequence[tuple[Topic, Records]],
        *,
        acks: Acks = "all",
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
        hooks: Sequence[CommitHook] = (),
    ) -> list[Appended | Rejected]:
        """Append records that went through `encoding.prepare`, to partitions of any topics of a store, in one
        transaction.

        `hooks` run in the append transaction, in this log's store. Raises PolicyViolationError for an internal topic,
        CrossStoreTransactionError for topics of several stores, or of another store than this log's with `hooks`, and
        the errors of `write_batches`.
        """
        log = self if hooks else self._log_of(items)

        def append(items: Sequence[tuple[Topic, Records]]) -> list[Appended | Rejected]:
            written = log.write_batches(items, acks=acks, timeout_ms=timeout_ms)
            return log._append_written(written, {topic.topic_id: topic for topic, _ in items}, acks, timeout_ms, hooks)

        return append(items) if hooks else append_with_producers(log.cluster, items, append)

    def append_each(
        self,
        items: Sequence[tuple[Topic, Records]],
        *,
        acks: Acks = "all",
        codec: str | None = None,
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
    ) -> list[Appended | Rejected]:
        """Append like `append_prepared`, but a batch that cannot be written is refused alone, and the outcomes do not
        wait long for a batch whose replicas lack records: it is refused with a retriable error.

        `codec` is the producer's compression type, for topics without compression.type. Raises PolicyViolationError for
        an internal topic, CrossStoreTransactionError for topics of several stores, and the errors of the store.
        """
        log = self._log_of(items)

        def append(items: Sequence[tuple[Topic, Records]]) -> list[Appended | Rejected]:
            written, refused = log.write_each(items, acks=acks, codec=codec, timeout_ms=timeout_ms)
            topics: dict[int, Topic] = {topic.topic_id: topic for topic, _ in items}
            appended = iter(
                log._append_written(written, topics, acks, timeout_ms, retry_ms=_RETRY_MS) if written.batches else ()
            )
            return [refused[number] if number in refused else next(appended) for number in range(len(items))]

        return append_with_producers(log.cluster, items, append)

    def _log_of(self, items: Sequence[tuple[Topic, Records]]) -> Self:
        """Return the log of the store of these topics, or this one if they are in several stores."""
        store_ids = {topic.store_id for topic, _ in items}
        return self.at(store_ids.pop()) if len(store_ids) == 1 else self

    def _append_written(
        self,
        written: WrittenBatches,
        topics: Mapping[int, Topic],
        acks: Acks,
        timeout_ms: int,
        hooks: Sequence[CommitHook] = (),
        retry_ms: int | None = None,
    ) -> list[Appended | Rejected]:
        durable = any(topic.config.flush_messages <= 1 for topic in topics.values())
        request = AppendRequest(
            written.batches,
            written.blobs,
            acks=acks,
            write_id=written.write_id,
            hooks=hooks,
            durable=durable,
            retry_ms=retry_ms,
        )
        with self.naming(written, topics) as unnamed:
            outcomes = list(self.append_batches(request, topics, timeout_ms=timeout_ms).outcomes)
            unnamed += not_stored(written.batches, outcomes)
        return outcomes

    def write_batches(
        self,
        items: Sequence[tuple[Topic, Records]],
        *,
        acks: Acks = "all",
        codec: str | None = None,
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
    ) -> WrittenBatches:
        """Encode records that went through `encoding.prepare`, and write large batches to files in the log dirs.

        Raises the error of the first batch that cannot be written; then no file is left.
        """
        written, refused = self.write_each(items, acks=acks, codec=codec, timeout_ms=timeout_ms)
        for each in refused.values():
            delete_files(self.cluster, {topic.topic_id: topic for topic, _ in items}, written.batches)
            raise each.error
        return written

    def write_each(
        self,
        items: Sequence[tuple[Topic, Records]],
        *,
        acks: Acks = "all",
        codec: str | None = None,
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
    ) -> tuple[WrittenBatches, dict[int, Rejected]]:
        """Write like `write_batches`, but a batch that cannot be written does not affect the others.

        Returns the written batches, in order, and the refused ones by their index in `items`.
        """
        topics: dict[int, Topic] = {topic.topic_id: topic for topic, _ in items}
        self._check_store(topics.values())
        for topic in topics.values():
            if not self._internal:
                validate_user_topic(topic.name, "write to")
        encodings = {topic_id: self._encoding(topic, codec) for topic_id, topic in topics.items()}
        batches: list[Batch | Rejected | None] = []
        blobs: dict[str, bytes] = {}
        for topic, item in items:
            encoding = encodings[topic.topic_id]
            try:
                blob = encode_inline(item.table, encoding)
            except Exception as error:
                batches.append(refusal(topic, item, error))
                continue
            if blob is None:
                batches.append(None)
                continue
            name = os.urandom(16).hex()
            batches.append(blob_batch(topic.topic_id, item.partition, name, blob.facts, encoding, item.sequence))
            blobs[name] = blob.data
        large = [item for item, batch in zip(items, batches, strict=True) if batch is None]
        write_id: WriteId | None = None
        files: list[Batch | Rejected] = []
        if large:
            self._settle_doubts(timeout_ms)
            write_id, files = self._files.write(large, encodings, acks, timeout_ms)
        rest = iter(files)
        batches = [batch or next(rest) for batch in batches]
        refused = {number: batch for number, batch in enumerate(batches) if isinstance(batch, Rejected)}
        return WrittenBatches([batch for batch in batches if isinstance(batch, Batch)], blobs, write_id), refused

    def _encoding(self, topic: Topic, codec: str | None) -> Encoding:
        encoding = Encoding.of(topic, codec)
        if "inline.max.bytes" in topic.overrides or encoding.inline_max_bytes >= self._inline_max_bytes_min:
            return encoding
        return replace(encoding, inline_max_bytes=self._inline_max_bytes_min)

    @contextmanager
    def naming(self, written: WrittenBatches, topics: Mapping[int, Topic]) -> Iterator[list[Batch]]:
        """Surround the transaction that names these batches (an append or a registration). The block adds the batches
        that it has not named to the list, and their files are deleted.

        If the block fails, its outcome is unknown. Before the next file is written, the files are deleted unless they
        were named after all; the next files are written under another write id.
        """
        unnamed: list[Batch] = []
        try:
            yield unnamed
        except BaseException:
            if written.write_id is not None:
                self._writer.forget()
                with self._doubts_lock:
                    self._doubts.append(InDoubt(written.batches, topics, written.write_id))
            raise
        if unnamed:
            delete_files(self.cluster, topics, unnamed)

    def _settle_doubts(self, timeout_ms: int) -> None:
        """Delete files of failed appends that were not committed. Raises the store's errors, so no file is added."""
        with self._doubts_lock:
            while self._doubts:
                settle(self.cluster, self._doubts[0], timeout_ms=timeout_ms)
                del self._doubts[0]

    def append_batches(
        self, request: AppendRequest, topics: Mapping[int, Topic], *, timeout_ms: int = DEFAULT_TIMEOUT_MS
    ) -> AppendResult:
        """Run the append transaction, then its follow-up work (`_follow_up`).

        Raises CrossStoreTransactionError for a topic of another store.
        """
        self._check_store(topics.values())
        result = self._replication.append(request, topics, timeout_ms)
        if not result.committed_before and not request.only_checks:
            self._follow_up(request, topics, result)
        return result

    def _check_store(self, topics: Iterable[Topic]) -> None:
        for topic in topics:
            if topic.store_id != self.cluster.store_id:
                raise CrossStoreTransactionError(
                    f"topic {topic.name!r} is in store {topic.store_id}: one SQL transaction appends to topics of one"
                    f" store, here of store {self.cluster.store_id}"
                )

    def append_whole(
        self, request: AppendRequest, topics: Mapping[int, Topic], *, timeout_ms: int = DEFAULT_TIMEOUT_MS
    ) -> AppendResult:
        """Append all batches or none, for an atomic request. Raises the error of the first refused batch."""
        result = self.append_batches(request, topics, timeout_ms=timeout_ms)
        for outcome in result.outcomes:
            if isinstance(outcome, Rejected):
                raise outcome.error
        return result

    def _follow_up(self, request: AppendRequest, topics: Mapping[int, Topic], result: AppendResult) -> None:
        if not request.durable:
            self._force_due_partitions(topics, result)
        appended = Append(request.batches, result.outcomes, topics, result.partitions)
        for listener in self._listeners:
            try:
                listener.appended(appended)
            except Exception as error:  # the append is committed, and an error would make the caller repeat it
                logger.warning(
                    "work after an append has failed: %s", redact(str(error)),
                    exc_info=not isinstance(error, SparkLogError),
                )  # fmt: skip

    def targets(self, topic: Topic, partitions: Sequence[int]) -> dict[int, Target]:
        """Return the log dirs of the ISR for new files. Raises UnknownTopicOrPartitionError for a missing partition."""
        targets = self._files.targets(topic, partitions, "all", READ_TIMEOUT_MS)
        for partition in partitions:
            if partition not in targets:
                raise unknown_partition(topic, partition)
        return targets

    def _force_due_partitions(self, topics: Mapping[int, Topic], result: AppendResult) -> None:
        due: list[Key] = [
            key
            for key, state in result.partitions.items()
            if state.log_end_offset - state.recovery_point >= topics[key[0]].config.flush_messages
        ]
        if due:
            force(self.cluster.store, due)


def not_stored(batches: Sequence[Batch], outcomes: Sequence[Appended | Rejected]) -> list[Batch]:
    """Return the batches that were refused or are duplicates."""
    pairs = zip(batches, outcomes, strict=True)
    return [batch for batch, outcome in pairs if isinstance(outcome, Rejected) or outcome.duplicate]
