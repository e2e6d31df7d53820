"""The producer's thread: takes what is due, appends it, and tells the futures. One append in flight.

    take -> assemble -> append (at most one piece a partition) -> fate, or again after retry_backoff_ms

A partition whose piece must be tried again holds back its later pieces, so order is kept; the other partitions go on.
"""

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Sequence

from spark_log import clock
from spark_log.append.rules import Appended, ProducerSequence, Rejected
from spark_log.cluster.cluster import Cluster
from spark_log.errors import (
    KafkaTimeoutError,
    MetadataStoreUnavailableError,
    OutOfOrderSequenceNumberError,
    ProducerFencedError,
    SparkLogError,
    UnknownProducerIdError,
    UnknownTopicOrPartitionError,
    WriteIdExpiredError,
)
from spark_log.exit_hooks import stop_at_exit
from spark_log.kafka_errors import kafka_error
from spark_log.log.log import Log, Records
from spark_log.produce.accumulator import Accumulator
from spark_log.produce.assembly import assemble
from spark_log.produce.identity import Identity, register
from spark_log.produce.known_topics import KnownTopics
from spark_log.produce.metrics import Metrics
from spark_log.produce.producer_batch import Chunk, Piece
from spark_log.produce.producer_settings import ProducerSettings
from spark_log.produce.producer_transaction import ProducerTransaction
from spark_log.produce.table_batches import TableChunk

logger = logging.getLogger(__name__)

_FORGOTTEN = (UnknownProducerIdError, OutOfOrderSequenceNumberError, ProducerFencedError)
"""The store and this producer no longer agree who it is: it goes on as somebody else. Nothing was appended."""


def _drop_traceback(error: BaseException | None) -> None:
    """Futures keep the error, a traceback its frames and their callers', and those would keep the records."""
    seen = set()  # errors may cause each other
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


def _own_what_is_left(tried: Sequence[Piece]) -> None:
    """The pieces of a chunk share its buffers: what must wait longer than others keeps its own records only."""
    for chunk in {piece.chunk for piece in tried}:
        left = [piece for piece in chunk.pieces or () if piece.table is not None]
        if len(left) < len(chunk.pieces or ()):
            for piece in left:
                piece.own_table()


_NO_FAULTS: dict[int, SparkLogError] = {}


class Sender(threading.Thread):
    """Owns the cluster and the log, and closes them at its end."""

    def __init__(
        self,
        cluster: Cluster,
        log: Log,
        settings: ProducerSettings,
        accumulator: Accumulator,
        topics: KnownTopics,
        transaction: ProducerTransaction | None,
    ) -> None:
        super().__init__(name=f"{settings.client_id} sender", daemon=True)
        self.metrics = Metrics()
        self.aborted = False
        self._cluster, self._log, self._settings = cluster, log, settings
        self._accumulator, self._topics, self._transaction = accumulator, topics, transaction
        self._identity = Identity(lambda: register(cluster.store, int(settings.request_timeout_ms)))
        self._queues: dict[tuple[str, int], deque[Piece]] = {}
        accumulator.sender = self
        stop_at_exit(self)

    def give_up(self) -> None:
        """Append nothing more, and begin no sealing: the time for closing the producer is over."""
        self.aborted = True
        self._log.stop_sealing()

    def request_stop(self) -> list[threading.Thread]:
        """The interpreter ends: one that is being closed comes to its end; any other is closed by its finalizer."""
        return [self] if self._accumulator.closing and self.is_alive() else []

    def run(self) -> None:
        try:
            while True:
                chunks = self._accumulator.take(self._next_try_s())
                if chunks is None:
                    return
                for chunk in chunks:
                    self._assemble(chunk)
                pieces = self._due()
                if pieces:
                    self._append(pieces)
                    _own_what_is_left(pieces)
        except BaseException as error:  # a bug: nobody may wait for ever
            logger.exception("the producer's sender failed")
            self._accumulator.close()
            for chunk in self._accumulator.flush():
                chunk.fail(error if isinstance(error, Exception) else RuntimeError(repr(error)))
                self._accumulator.finished(chunk)
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

    def _next_try_s(self) -> float | None:
        """When a piece that has been assembled may be appended, in a transaction all of them; None without any."""
        if self._transaction is not None:
            return max((piece.retry_at_s for queue in self._queues.values() for piece in queue), default=None)
        return min((queue[0].retry_at_s for queue in self._queues.values()), default=None)

    def _assemble(self, chunk: Chunk) -> None:
        try:
            known = self._topics.by_name[chunk.topic]
            with contextlib.suppress(
                MetadataStoreUnavailableError
            ):  # the append waits for it, up to delivery_timeout_ms
                known = self._topics.refresh(chunk.topic) or known
            topic, now_ms = known.topic, self._cluster.store.now().wall_ms
            deadline_s = chunk.made_s + self._settings.delivery_timeout_ms / 1000
            if isinstance(chunk, TableChunk):
                parts, piece_of, faults = chunk.take_parts(), chunk.piece_of, _NO_FAULTS
            else:
                found = assemble(chunk, topic, known.encoding, now_ms, known.first_run, self._settings.batch_size)
                known.first_run += found.runs
                parts, piece_of, faults = found.parts, found.piece_of, found.faults
                chunk.row_of, chunk.times_ms = found.row_of, found.times_ms
                chunk.key_sizes, chunk.value_sizes = found.key_sizes, found.value_sizes
                chunk.header_sizes = {
                    row: sum(len(key.encode()) + len(value) for key, value in headers)
                    for row, headers in chunk.headers.items()
                }
            total = sum(table.num_rows for _, table in parts) + len(faults)
            share = chunk.bytes // max(1, total)
            pieces = [
                Piece(chunk, number, topic, partition, table, share * table.num_rows, deadline_s)
                for number, (partition, table) in enumerate(parts)
            ]
            rest = chunk.bytes - sum(piece.bytes for piece in pieces)
            chunk.unsettled = len(pieces)
            chunk.begin(pieces, piece_of, {row: kafka_error(error) for row, error in faults.items()})
            self._accumulator.release(rest)
            self.metrics.failed += len(faults)
            for error in faults.values():
                self._fail_transaction(error)
        except Exception as error:
            logger.exception("%s: records could not be assembled", chunk.topic)
            _drop_traceback(error)
            self._fail_transaction(error)
            chunk.fail(kafka_error(error) if isinstance(error, SparkLogError) else error)
            self._accumulator.release(chunk.bytes)
            self._accumulator.finished(chunk)
            return
        for piece in pieces:
            if self._settings.acks == 0:
                chunk.resolve(piece, -1, None)
            self._queues.setdefault(piece.key, deque()).append(piece)
        if not pieces:
            self._accumulator.finished(chunk)

    def _due(self) -> list[Piece]:
        """The first piece of each partition that need not wait; one alone where together they failed. In a transaction
        all pieces: none is seen before the others, and what fails, fails with all.
        """
        now_s = clock.monotonic_s()
        if self._transaction is not None:
            pieces = [piece for queue in self._queues.values() for piece in queue]
            return pieces if all(piece.retry_at_s <= now_s for piece in pieces) else []
        heads = [queue[0] for queue in self._queues.values() if queue[0].retry_at_s <= now_s]
        alone = next((piece for piece in heads if piece.alone), None)
        return heads if alone is None else [alone]

    def _append(self, heads: Sequence[Piece]) -> None:
        now_s = clock.monotonic_s()
        pieces = [piece for piece in heads if self._wanted(piece, now_s)]
        if not pieces:
            return
        left_ms = (min(piece.deadline_s for piece in pieces) - now_s) * 1000
        timeout_ms = max(1, int(min(left_ms, self._settings.request_timeout_ms)))
        for piece in pieces:
            piece.attempts += 1
        if self._transaction is not None:
            self._register(self._transaction, pieces, timeout_ms)
            return
        try:
            items = [(piece.topic, Records(piece.partition, piece.table, self._sequence(piece))) for piece in pieces]
            outcomes = self._log.append_prepared(
                items, acks=self._settings.log_acks, codec=self._settings.compression_type, timeout_ms=timeout_ms
            )
        except Exception as error:
            self._failed(pieces, error)
            return
        self.warn_of_expired()
        self.metrics.append_took(clock.monotonic_s() - now_s, len(pieces))
        for piece, outcome in zip(pieces, outcomes, strict=True):
            if isinstance(outcome, Appended):
                if self._settings.enable_idempotence:
                    self._identity.advance((piece.topic.topic_id, piece.partition), piece.count)
                self._finish(piece, outcome.base_offset, None)
            else:
                self._rejected(piece, outcome)

    def warn_of_expired(self) -> None:
        """Warn, once a topic, of records that retention.ms does not keep."""
        for each in self._log.expired.take():
            logger.warning("%s", each)

    def _register(self, transaction: ProducerTransaction, pieces: Sequence[Piece], timeout_ms: int) -> None:
        """In a transaction: a record's future succeeds, without an offset, when the record is pending."""
        began_s = clock.monotonic_s()
        try:
            transaction.register(self._log, pieces, timeout_ms)
        except Exception as error:
            self._failed(pieces, error)
            return
        self.metrics.append_took(clock.monotonic_s() - began_s, len(pieces))
        for piece in pieces:
            self._finish(piece, -1, None)

    def _fail_transaction(self, error: Exception) -> None:
        if self._transaction is not None:
            self._transaction.fail(kafka_error(error) if isinstance(error, SparkLogError) else error)

    def _wanted(self, piece: Piece, now_s: float) -> bool:
        """Whether the piece is to be appended now: nobody gave it up, there is time left, its partition is there."""
        if self.aborted or (piece.done and self._settings.acks != 0):
            self._finish(piece, -1, piece.error)
            return False
        if now_s >= piece.deadline_s:
            late = KafkaTimeoutError(
                f"{piece.count} record(s) for {piece.topic.name}-{piece.partition} expired: delivery_timeout_ms="
                f"{self._settings.delivery_timeout_ms} has passed since send(); last error: {piece.last_error}"
            )
            self._finish(piece, -1, late)
            return False
        if not piece.attempts:
            return True
        try:
            force = isinstance(piece.last_error, UnknownTopicOrPartitionError)
            known = self._topics.refresh(piece.topic.name, force=force)
        except SparkLogError as error:
            self._again(piece, error)
            return False
        if known is None or piece.partition >= known.topic.partition_count:
            missing = f"partition {piece.topic.name}-{piece.partition}: unknown topic or partition"
            self._again(piece, UnknownTopicOrPartitionError(missing))
            return False
        piece.topic = known.topic
        return True

    def _sequence(self, piece: Piece) -> ProducerSequence | None:
        if not self._settings.enable_idempotence:
            return None
        return self._identity.sequence((piece.topic.topic_id, piece.partition))

    def _rejected(self, piece: Piece, outcome: Rejected) -> None:
        error = outcome.error
        if isinstance(error, _FORGOTTEN):
            self._identity.reset((piece.topic.topic_id, piece.partition))
            piece.in_doubt = False
            self._again(piece, error)
        elif error.retriable:
            self._again(piece, error)
        else:
            self._finish(piece, -1, error)

    def _failed(self, pieces: Sequence[Piece], error: Exception) -> None:
        """The append raised instead of giving each partition its outcome."""
        ours = isinstance(error, SparkLogError)
        retriable = isinstance(error, WriteIdExpiredError) or (isinstance(error, SparkLogError) and error.retriable)
        if not ours:
            logger.error("append failed", exc_info=error)
        for piece in pieces:
            piece.in_doubt = True
            in_common = isinstance(error, MetadataStoreUnavailableError) or self._transaction is not None
            if len(pieces) > 1 and not in_common:
                piece.alone = True  # whose fault it is shows when each is tried by itself
                piece.attempts -= 1
                self._again(piece, error)
            elif retriable:
                self._again(piece, error)
            else:
                self._finish(piece, -1, error)

    def _again(self, piece: Piece, error: Exception) -> None:
        logger.debug("%s-%s: tried again", piece.topic.name, piece.partition, exc_info=error)
        _drop_traceback(error)
        piece.last_error = error
        if piece.attempts > self._settings.retries:
            self._finish(piece, -1, error)
            return
        self.metrics.retried += piece.count
        piece.retry_at_s = clock.monotonic_s() + self._settings.retry_backoff_ms / 1000

    def _finish(self, piece: Piece, base_offset: int, error: Exception | None) -> None:
        """The fate of a piece: the first one of its partition, or in a transaction any."""
        if error is not None:
            logger.debug("%s-%s: given up", piece.topic.name, piece.partition, exc_info=error)
            _drop_traceback(error)
            self._fail_transaction(error)
        if error is not None and piece.in_doubt and self._settings.enable_idempotence:
            # it may have been appended: its sequences must not be given to other records
            self._identity.reset((piece.topic.topic_id, piece.partition))
        queue = self._queues[piece.key]
        queue.remove(piece)
        if not queue:
            del self._queues[piece.key]
        if error is None:
            self.metrics.sent += piece.count
            self.metrics.sent_bytes += piece.bytes
        else:
            self.metrics.failed += piece.count
            if self._settings.acks == 0 and not self.aborted:
                logger.warning("%s-%s: records lost: %s", piece.topic.name, piece.partition, error)
        piece.table = None
        chunk = piece.chunk
        chunk.resolve(piece, base_offset, kafka_error(error) if isinstance(error, SparkLogError) else error)
        self._accumulator.release(piece.bytes)
        chunk.unsettled -= 1
        if chunk.unsettled == 0:
            self._accumulator.finished(chunk)
