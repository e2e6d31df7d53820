"""The log of a cluster: appends and reads of one process.

An append goes through these steps, each in one place:

    validate    `Log.append`: `log.append.encoding.prepare` refuses invalid records
    write       `Log.write_batches`: blobs, and segment files in the log dirs of the leader and the ISR
    append      `Log.append_batches`: the append transaction, which assigns offsets; `replicated_append` runs it again
                where leader or ISR have changed meanwhile
    follow up   `Log._follow_up`: force to disk, seal full tails, publish to the Delta tables
"""

import logging
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.names import validate_user_topic
from spark_log.cluster.topics import Topic
from spark_log.config import ClusterSettings
from spark_log.errors import (
    SparkLogError,
    redact,
)
from spark_log.ids import WriteId
from spark_log.log.append.append_transaction import AppendRequest, AppendResult, CommitHook, force
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
from spark_log.log.append.targets import targets_of
from spark_log.log.batch_files import BatchFiles, Records, refusal, unknown_partition
from spark_log.log.partitions.partition_rows import Key
from spark_log.log.partitions.replication_rules import PartitionState
from spark_log.log.reader import LogReader
from spark_log.maintenance.removal.expired_records import ExpiredWatch
from spark_log.maintenance.rewrite.client_sealer import Sealer
from spark_log.maintenance.rewrite.tail_seal import seal
from spark_log.metadata.store import DEFAULT_TIMEOUT_MS, READ_TIMEOUT_MS
from spark_log.replication.controller.fallback_controller import FallbackController
from spark_log.replication.replicas.followers import Followers
from spark_log.replication.replicas.replicated_append import replicated_append
from spark_log.tables.publication import try_publish

__all__ = ["Log", "Records", "WrittenBatches"]

logger = logging.getLogger(__name__)

_DRAIN_S = 10.0
_TAILS_MAX = 4
"""Multiple of inline.tail.bytes at which an append seals a tail itself, even if tails are sealed in the background."""


@dataclass(frozen=True)
class WrittenBatches:
    """Batches that are written and not appended yet. `write_id`: the write id of the files among them."""

    batches: list[Batch]
    blobs: dict[str, bytes]
    write_id: WriteId | None


class Log(LogReader):
    """Appends to and reads from a cluster. Safe to share between threads.

    >>> log = Log(Cluster.open("/data/log"))                                  # doctest: +SKIP
    >>> log.append(topic, [Records(0, table)])                                # doctest: +SKIP
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        settings: ClusterSettings | None = None,
        holder: str = "log",
        seal_beside: bool = False,
        inline_bytes_min: tuple[int, int] = (0, 0),
        internal: bool = False,
    ) -> None:
        """With `seal_beside` tails are sealed and files are published in the background, for a process that appends
        repeatedly. An append seals a full tail itself only if the background thread does not keep up.

        `inline_bytes_min`: lower bounds of inline.max.bytes and inline.tail.bytes for the appends of this Log to topics
        that leave these configs at their defaults. For a process that gathers the batches of many clients: a file for
        each of them costs several times a blob. `internal`: it appends to internal topics for the cluster itself.
        """
        self._internal = internal
        self._inline_max_bytes_min, self._inline_tail_bytes_min = inline_bytes_min
        super().__init__(cluster, settings=settings, holder=holder)
        self._sealer = Sealer(cluster, self._writer, self._try_seal, beside=seal_beside)
        self._seal_beside = seal_beside
        self._fallback = FallbackController(cluster, settings)
        self._files = BatchFiles(cluster, self._writer, self._fallback)
        self._followers = Followers(cluster)
        self.expired = ExpiredWatch(cluster.store)
        """Finds appended records that are already older than retention.ms: `take` them and warn."""
        self._left_behind = False
        self._doubts: list[InDoubt] = []
        self._doubts_lock = threading.Lock()

    def close(self, *, more_to_come: bool = False) -> None:
        """Copy to the replicas that lag behind this log's appends, and seal the tails that it appended to if no
        coordinator runs. Takes a few seconds at most.

        With `more_to_come` (after a micro-batch) another Log will append to the same topics: tails are sealed as often
        as delta.max.lag.ms needs, not after every append.
        """
        if self._left_behind:
            self._followers.drain(_DRAIN_S)
            self._followers.close(_DRAIN_S)
        self._sealer.close(_DRAIN_S, more_to_come=more_to_come)
        try:
            self._settle_doubts(READ_TIMEOUT_MS)
        except SparkLogError as error:
            logger.info("files of appends that failed are left to the clean-up: %s", redact(str(error)))
        super().close()

    def seal_at_close(self, topics: Iterable[Topic]) -> None:
        """Seal the tails of these topics at close, as if this log had appended to them. For the micro-batches of a
        query, each of which has a Log of its own.
        """
        for topic in topics:
            self._sealer.watch(topic)

    def stop_sealing(self) -> None:
        """Make a running or later `close` in another thread start no further sealing."""
        self._sealer.stop_after_current_tail()

    def append(
        self, topic: Topic, records: Sequence[Records], *, acks: Acks = "all", timeout_ms: int = DEFAULT_TIMEOUT_MS
    ) -> list[Appended | Rejected]:
        """Append to several partitions of a topic in one transaction; each has its own outcome.

        Raises the errors of `record_limits` for invalid records, before anything is written. The outcome of a partition
        of a topic that has been deleted is UnknownTopicOrPartitionError.
        """
        encoding = Encoding.of(topic)
        now_ms = self.cluster.store.now().wall_ms
        prepared = [(topic, replace(item, table=prepare(item.table, encoding, now_ms))) for item in records]
        return self.append_prepared(prepared, acks=acks, timeout_ms=timeout_ms)

    def append_prepared(
        self,
        items: Sequence[tuple[Topic, Records]],
        *,
        acks: Acks = "all",
        codec: str | None = None,
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
        hooks: Sequence[CommitHook] = (),
    ) -> list[Appended | Rejected]:
        """Append records that went through `encoding.prepare`, to partitions of any topics, in one transaction.

        `codec` is the producer's, for topics without a compression.type of their own. PolicyViolationError for an
        internal topic. `hooks`: of the append transaction. Raises the errors of `write_batches`.
        """
        written = self.write_batches(items, acks=acks, codec=codec, timeout_ms=timeout_ms)
        return self._append_written(written, {topic.topic_id: topic for topic, _ in items}, acks, timeout_ms, hooks)

    def append_each(
        self, items: Sequence[tuple[Topic, Records]], *, acks: Acks = "all", timeout_ms: int = DEFAULT_TIMEOUT_MS
    ) -> list[Appended | Rejected]:
        """As `append_prepared`, for batches of different clients: one that cannot be written is refused alone."""
        written, refused = self.write_each(items, acks=acks, timeout_ms=timeout_ms)
        topics: dict[int, Topic] = {topic.topic_id: topic for topic, _ in items}
        appended = iter(self._append_written(written, topics, acks, timeout_ms) if written.batches else ())
        return [refused[number] if number in refused else next(appended) for number in range(len(items))]

    def _append_written(
        self,
        written: WrittenBatches,
        topics: Mapping[int, Topic],
        acks: Acks,
        timeout_ms: int,
        hooks: Sequence[CommitHook] = (),
    ) -> list[Appended | Rejected]:
        durable = any(topic.config.flush_messages <= 1 for topic in topics.values())
        request = AppendRequest(
            written.batches, written.blobs, acks=acks, write_id=written.write_id, durable=durable, hooks=hooks
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
        """Encode records that went through `encoding.prepare`; large ones into files in the log dirs.

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
        """As `write_batches`, but a batch that cannot be written does not affect the others: the batches that are
        written, in order, and by their numbers those that are not.
        """
        topics: dict[int, Topic] = {topic.topic_id: topic for topic, _ in items}
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
        if "inline.max.bytes" in topic.overrides:
            return encoding
        return replace(encoding, inline_max_bytes=max(encoding.inline_max_bytes, self._inline_max_bytes_min))

    @contextmanager
    def naming(self, written: WrittenBatches, topics: Mapping[int, Topic]) -> Iterator[list[Batch]]:
        """Around the transaction that names these batches (an append or a registration). The block adds to the list
        those that it has not named: their files are deleted.

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
        """Decide the files of failed appends. Raises the errors of the store; then no further file is written."""
        with self._doubts_lock:
            while self._doubts:
                settle(self.cluster, self._doubts[0], timeout_ms=timeout_ms)
                del self._doubts[0]

    def append_batches(
        self, request: AppendRequest, topics: Mapping[int, Topic], *, timeout_ms: int = DEFAULT_TIMEOUT_MS
    ) -> AppendResult:
        """Run the append transaction, then its follow-up work (`_follow_up`)."""
        result = replicated_append(self.cluster, self._fallback, request, topics, timeout_ms)
        if not result.committed_before:
            self._follow_up(request, topics, result)
        return result

    def append_whole(
        self, request: AppendRequest, topics: Mapping[int, Topic], *, timeout_ms: int = DEFAULT_TIMEOUT_MS
    ) -> AppendResult:
        """As `append_batches`, for an atomic request: raises the error of a refused batch."""
        result = self.append_batches(request, topics, timeout_ms=timeout_ms)
        for outcome in result.outcomes:
            if isinstance(outcome, Rejected):
                raise outcome.error
        return result

    def _follow_up(self, request: AppendRequest, topics: Mapping[int, Topic], result: AppendResult) -> None:
        """Wake followers, warn of expired records, force to disk, seal full tails, publish."""
        if any(_has_lagging_replica(state) for state in result.partitions.values()):
            self._left_behind = True
            self._followers.wake()  # followers of embedded brokers: no other process copies for them
        self.expired.check(request.batches, result.outcomes, topics)
        if not request.durable:
            self._force_due_partitions(topics, result)
        touched = {
            batch.topic_id
            for batch, outcome in zip(request.batches, result.outcomes, strict=True)
            if isinstance(outcome, Appended) and not outcome.duplicate and not batch.inline
        }
        for (topic_id, partition), state in result.partitions.items():
            topic = topics[topic_id]
            full_bytes = topic.config.inline_tail_bytes
            if "inline.tail.bytes" not in topic.overrides:
                full_bytes = max(full_bytes, self._inline_tail_bytes_min)
            if state.tail_bytes < full_bytes:
                if state.tail_bytes:
                    self._sealer.watch(topic)
                continue
            if self._seal_beside and state.tail_bytes < _TAILS_MAX * full_bytes:
                self._sealer.add(topic, partition)
            elif self._try_seal(topic, partition):
                touched.add(topic_id)
        for topic_id in sorted(touched):
            if self._seal_beside:
                self._sealer.publish(topics[topic_id])
            elif not try_publish(self.cluster, [topics[topic_id]]):
                self._sealer.watch(topics[topic_id])
        self._sealer.run_due()

    def seal(self, topic: Topic, partitions: Iterable[int]) -> int:
        """Seal the tails of the partitions now, and publish; returns the number of new segment files.

        0 for a topic that has been deleted, or deleted and created again.
        """
        files = sum(seal(self.cluster, self._writer, topic, partition) for partition in partitions)
        if files:
            try_publish(self.cluster, [topic])
        return files

    def targets(
        self, topic: Topic, partitions: Sequence[int], acks: Acks = "all", *, timeout_ms: int = READ_TIMEOUT_MS
    ) -> dict[int, Target]:
        """The log dirs for new files of the partitions. UnknownTopicOrPartitionError names a missing partition."""
        found = self.cluster.store.read(
            lambda connection: targets_of(connection, topic, partitions, acks), timeout_ms=timeout_ms
        )
        for partition in partitions:
            if partition not in found:
                raise unknown_partition(topic, partition)
        return found

    def _force_due_partitions(self, topics: Mapping[int, Topic], result: AppendResult) -> None:
        due: list[Key] = [
            key
            for key, state in result.partitions.items()
            if state.log_end_offset - state.recovery_point >= topics[key[0]].config.flush_messages
        ]
        if due:
            force(self.cluster.store, due)


def not_stored(batches: Sequence[Batch], outcomes: Sequence[Appended | Rejected]) -> list[Batch]:
    """The batches that were refused, and duplicates."""
    pairs = zip(batches, outcomes, strict=True)
    return [batch for batch, outcome in pairs if isinstance(outcome, Rejected) or outcome.duplicate]


def _has_lagging_replica(state: PartitionState) -> bool:
    return any(replica.log_end_offset < state.log_end_offset for replica in state.replicas)
