"""The appends of a gateway: one transaction at a time, for all connections together.

What arrives while a transaction runs is the next one. So the number of transactions follows what the store can do, and
not the number of clients.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from spark_log import clock
from spark_log.append.encoding import Encoding, bad_records, prepare
from spark_log.append.rules import Acks, Appended, ProducerSequence, Rejected
from spark_log.cluster.names import validate_user_topic
from spark_log.cluster.topics import Topic
from spark_log.errors import (
    InvalidTxnStateError,
    MessageSizeTooLargeError,
    SparkLogError,
    UnknownTopicOrPartitionError,
)
from spark_log.gateway.counters import Counters
from spark_log.gateway.error_codes import client_message
from spark_log.gateway.topic_cache import TopicCache
from spark_log.gateway.transactions import register_records
from spark_log.log.log import Log, Records
from spark_log.produce.faults import faults
from spark_log.records.kafka_batch.decode import DecodedBatch, decode
from spark_log.records.kafka_batch.header import NO_PRODUCER_ID
from spark_log.records.schema import TimestampType, normalise, stamp

logger = logging.getLogger(__name__)

_BYTES_TOGETHER_MAX = 64 * 1024 * 1024
"""Encoded bytes of one transaction, unless a single request has more."""
_TIMEOUT_MS = 30_000


@dataclass(frozen=True)
class SentBatch:
    """A record batch that a client sent for a partition. `transactional`: in a request with a transactional id."""

    topic: str
    partition: int
    data: bytes | memoryview
    transactional: bool = False


@dataclass(frozen=True)
class Outcome:
    """The outcome of a batch: its base offset, or the error. `bad_records`: why rows of it are invalid.

    `append_time_ms`: the timestamp that its records got; -1 with message.timestamp.type=CreateTime.
    """

    error: Exception | None = None
    base_offset: int = -1
    append_time_ms: int = -1
    bad_records: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Request:
    batches: Sequence[SentBatch]
    acks: Acks
    transactional_id: str | None
    done: "asyncio.Future[list[Outcome]]"

    def may_join(self, other: "_Request") -> bool:
        """Whether both may be in one transaction of the store."""
        return self.acks == other.acks and (self.transactional_id is None) == (other.transactional_id is None)

    @property
    def bytes(self) -> int:
        return sum(len(batch.data) for batch in self.batches)


@dataclass(frozen=True)
class _Accepted:
    """A batch that passed every check."""

    topic: Topic
    records: Records
    append_time_ms: int


class Appender(threading.Thread):
    """Owns the Log of the gateway, and closes it at its end."""

    def __init__(
        self,
        log: Log,
        topics: TopicCache,
        loop: asyncio.AbstractEventLoop,
        counters: Counters,
        *,
        provisional_offsets: bool = False,
    ) -> None:
        """`provisional_offsets`: as in GatewaySettings."""
        super().__init__(name="gateway appender", daemon=True)
        self._log, self._topics, self._loop, self._counters = log, topics, loop, counters
        self._provisional_offsets = provisional_offsets
        self._changed = threading.Condition()
        self._queue: deque[_Request] = deque()
        self._closing = False

    def submit(
        self, batches: Sequence[SentBatch], acks: Acks, transactional_id: str | None = None
    ) -> "asyncio.Future[list[Outcome]]":
        """Append the batches after everything that was submitted before. Called in the event loop.

        With a transactional id they become pending in its open transaction.
        """
        request = _Request(batches, acks, transactional_id, self._loop.create_future())
        with self._changed:
            self._queue.append(request)
            self._changed.notify()
        return request.done

    def close(self) -> None:
        """Append what was submitted, then end."""
        with self._changed:
            self._closing = True
            self._changed.notify()

    def run(self) -> None:
        try:
            while requests := self._take():
                self._append(requests)
        finally:
            self._log.close()

    def _take(self) -> list[_Request]:
        """The next requests that may be in one transaction of the store; empty when the appender ends."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closing)
            found: list[_Request] = []
            size = 0
            while self._queue and (not found or self._queue[0].may_join(found[0])):
                size += self._queue[0].bytes
                if found and size > _BYTES_TOGETHER_MAX:
                    break
                found.append(self._queue.popleft())
            return found

    def _append(self, requests: Sequence[_Request]) -> None:
        batches = [batch for request in requests for batch in request.batches]
        counters, began_s = self._counters, clock.monotonic_s()
        try:
            if requests[0].transactional_id is None:
                outcomes = self._outcomes(batches, requests[0].acks)
            else:
                outcomes = self._registered(requests)
        except Exception as error:
            counters.failed_appends += 1
            if not isinstance(error, SparkLogError):
                logger.exception("an append failed")
            outcomes = [Outcome(error)] * len(batches)
        counters.appends += 1
        counters.append_seconds += clock.monotonic_s() - began_s
        begin = 0
        for request in requests:
            part = outcomes[begin : begin + len(request.batches)]
            begin += len(part)
            self._loop.call_soon_threadsafe(_resolve, request.done, part)

    def _outcomes(self, batches: Sequence[SentBatch], acks: Acks) -> list[Outcome]:
        checked = self._checked(batches)
        accepted = [each for each in checked if isinstance(each, _Accepted)]
        self._counters.appended_records += sum(each.records.table.num_rows for each in accepted)
        appended = iter(
            self._log.append_prepared(
                [(each.topic, each.records) for each in accepted], acks=acks, timeout_ms=_TIMEOUT_MS
            )
            if accepted
            else ()
        )
        return [self._outcome_of(each, next(appended)) if isinstance(each, _Accepted) else each for each in checked]

    def _checked(self, batches: Sequence[SentBatch]) -> "list[_Accepted | Outcome]":
        topics = self._topics.find(batch.topic for batch in batches)
        now_ms = self._log.cluster.store.now().wall_ms
        return [
            _check(batch, found, topics.get(batch.topic), now_ms)
            for batch, found in zip(batches, decode([batch.data for batch in batches]), strict=True)
        ]

    def _registered(self, requests: Sequence[_Request]) -> list[Outcome]:
        """The outcomes of the batches of transactions, which get their final offsets at the commit."""
        checked = self._checked([batch for request in requests for batch in request.batches])
        names = [request.transactional_id or "" for request in requests for _ in request.batches]
        accepted = [(name, each) for name, each in zip(names, checked, strict=True) if isinstance(each, _Accepted)]
        registered = iter(
            register_records(
                self._log,
                [(name, each.topic, each.records) for name, each in accepted],
                provisional=self._provisional_offsets,
                timeout_ms=_TIMEOUT_MS,
            )
            if accepted
            else ()
        )
        return [self._outcome_of(each, next(registered)) if isinstance(each, _Accepted) else each for each in checked]

    def _outcome_of(self, accepted: _Accepted, outcome: Appended | Rejected) -> Outcome:
        if isinstance(outcome, Appended):
            return Outcome(None, outcome.base_offset, accepted.append_time_ms)
        if isinstance(outcome.error, UnknownTopicOrPartitionError):
            self._topics.forget(accepted.topic.name)
        return Outcome(outcome.error)


def _check(
    batch: SentBatch, found: DecodedBatch | SparkLogError, topic: Topic | None, now_ms: int
) -> _Accepted | Outcome:
    """The records as they will be stored, or why they are refused: each batch is checked alone."""
    if isinstance(found, SparkLogError):
        return Outcome(found)
    try:
        if topic is None or not 0 <= batch.partition < topic.partition_count:
            raise UnknownTopicOrPartitionError(f"{batch.topic}-{batch.partition}: unknown topic or partition")
        validate_user_topic(topic.name, "write to")
        encoding = Encoding.of(topic)
        if len(batch.data) > encoding.limits.max_message_bytes:
            raise MessageSizeTooLargeError(
                f"a batch of {len(batch.data)} bytes, max.message.bytes is {encoding.limits.max_message_bytes}"
            )
        if found.header.is_transactional != batch.transactional:
            raise InvalidTxnStateError("the batch and its request do not both belong to a transaction")
        if batch.transactional and found.header.producer_id == NO_PRODUCER_ID:
            raise InvalidTxnStateError("a batch of a transaction has no producer id")
        records = normalise(found.records, timestamp_ms=now_ms)
        stored = prepare(records, encoding, now_ms)
    except SparkLogError as error:
        return Outcome(error, bad_records=_bad_records(found.records, topic, now_ms))
    header = found.header
    sequence = None
    if header.producer_id != NO_PRODUCER_ID:
        sequence = ProducerSequence(header.producer_id, header.producer_epoch, header.base_sequence)
    append_time_ms = now_ms if encoding.timestamp_type is TimestampType.LOG_APPEND_TIME else -1
    return _Accepted(topic, Records(batch.partition, stored, sequence), append_time_ms)


def _bad_records(records: pa.Table, topic: Topic | None, now_ms: int) -> dict[int, str]:
    """Why rows are invalid, by row; empty if the whole batch is."""
    if topic is None:
        return {}
    encoding = Encoding.of(topic)
    if encoding.timestamp_type is TimestampType.LOG_APPEND_TIME:
        records = stamp(records, now_ms)
    records = normalise(records, timestamp_ms=now_ms)
    bad = {**faults(records, encoding.limits, now_ms), **bad_records(records, encoding)}
    return {row: client_message(error) for row, error in bad.items()}


def _resolve(done: "asyncio.Future[list[Outcome]]", outcomes: list[Outcome]) -> None:
    if not done.done():
        done.set_result(outcomes)
