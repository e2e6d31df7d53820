"""Checks each record batch that a client sends, independently of others, before it is appended.

Cheap checks come first: the topic, the partition and the size of a batch are checked before it is decompressed. The
decompressed size of all batches of a request is limited.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, islice

import pyarrow as pa

from spark_log.cluster.names import validate_user_topic
from spark_log.cluster.topics import Topic
from spark_log.errors import (
    InvalidTxnStateError,
    MessageSizeTooLargeError,
    SparkLogError,
    UnknownTopicOrPartitionError,
)
from spark_log.gateway.protocol.error_codes import client_message
from spark_log.log.append.encoding import Encoding, bad_records, prepare
from spark_log.log.append.sequence_rules import ProducerSequence
from spark_log.log.log import Records
from spark_log.log.records.kafka_batch.decode import DecodedBatch, DecodingLimits, decode
from spark_log.log.records.kafka_batch.header import (
    NO_PRODUCER_ID,
    CompressionType,
    claimed_compression,
    claimed_records,
)
from spark_log.log.records.record_limits import faults
from spark_log.log.records.schema import TimestampType, normalise, stamp

logger = logging.getLogger(__name__)

_LIGHT_BATCHES, _LIGHT_BYTES, _LIGHT_RECORDS = 100, 256 * 1024, 50_000

_RATIOS: Mapping[int, int] = {
    CompressionType.NONE: 2, CompressionType.GZIP: 1032, CompressionType.SNAPPY: 64, CompressionType.LZ4: 255,
    CompressionType.ZSTD: 1 << 15,
}  # fmt: skip
"""The largest ratio of decompressed to compressed bytes. A zstd block has 128 KiB from four bytes (RFC 8878, 3.1.1.2).
"""
BAD_RECORDS_MAX = 1_000
"""The number of invalid records that a response names."""
_BAD_RECORDS_STEP = 10_000


@dataclass(frozen=True)
class SentBatch:
    """A record batch that a client sent for a partition. `transactional` means that the request has a transactional id.
    `principal` is the sender if rights are checked.
    """

    topic: str
    partition: int
    data: bytes | memoryview
    transactional: bool = False
    principal: str | None = None


def are_light(batches: Sequence[SentBatch]) -> bool:
    """Whether the appender may check the batches of a request together with those of others: they are few, small and
    uncompressed, with few records.
    """
    return (
        len(batches) <= _LIGHT_BATCHES
        and sum(len(batch.data) for batch in batches) <= _LIGHT_BYTES
        and sum(claimed_records(batch.data) for batch in batches) <= _LIGHT_RECORDS
        and not any(claimed_compression(batch.data) for batch in batches)
    )


def decoded_bytes_max(batches: Sequence[SentBatch], limits: DecodingLimits) -> int:
    """Estimate how many bytes the decoded batches of a request have at most, by the best ratios of the codecs."""
    sizes = (len(batch.data) * _RATIOS.get(claimed_compression(batch.data), 1 << 15) for batch in batches)
    return min(limits.decompressed_bytes_max, sum(sizes))


@dataclass(frozen=True)
class Outcome:
    """The base offset of a batch, or its error. `bad_records` returns reasons by the numbers of the first invalid rows,
    at most as many as its argument. It takes long, so it is called for the response, not where others wait.

    `append_time_ms` is the timestamp that its records got, or -1 with message.timestamp.type=CreateTime.
    """

    error: Exception | None = None
    base_offset: int = -1
    append_time_ms: int = -1
    bad_records: Callable[[int], Mapping[int, str]] = field(default=lambda _: {}, compare=False)
    bytes: int = field(default=0, compare=False)
    """The size of the records that `bad_records` holds in memory."""


@dataclass(frozen=True)
class Accepted:
    """A batch that passed every check."""

    topic: Topic
    records: Records
    append_time_ms: int

    @property
    def bytes(self) -> int:
        return int(self.records.table.nbytes)


Checked = Accepted | Outcome


def check_batches(
    batches: Sequence[SentBatch], topics: Mapping[str, Topic], now_ms: int, limits: DecodingLimits
) -> list[Checked]:
    """Return the records of each batch as they will be stored, or its error. `limits` apply to all batches together."""
    checked: list[Checked | None] = [_refused(batch, topics.get(batch.topic)) for batch in batches]
    open_ones = [number for number, outcome in enumerate(checked) if outcome is None]
    decoded = decode([batches[number].data for number in open_ones], limits)
    by_topic: dict[str, list[int]] = {}
    for number, decoded_batch in enumerate(decoded):
        if isinstance(decoded_batch, DecodedBatch):
            by_topic.setdefault(batches[open_ones[number]].topic, []).append(number)
    stored: dict[int, pa.Table] = {}
    for name, numbers in by_topic.items():
        if len(numbers) > 1:
            records = [
                decoded_batch.records
                for number in numbers
                if isinstance(decoded_batch := decoded[number], DecodedBatch)
            ]
            stored.update(zip(numbers, _stored_together(records, topics[name], now_ms), strict=False))
    for position, (number, decoded_batch) in enumerate(zip(open_ones, decoded, strict=True)):
        batch = batches[number]
        checked[number] = _check(batch, decoded_batch, topics[batch.topic], now_ms, stored.get(position))
    return [outcome for outcome in checked if outcome is not None]


def _refused(batch: SentBatch, topic: Topic | None) -> Outcome | None:
    """Return the error of a batch that is refused without decoding its records, or None."""
    try:
        if topic is None or not 0 <= batch.partition < topic.partition_count:
            raise UnknownTopicOrPartitionError(f"{batch.topic}-{batch.partition}: unknown topic or partition")
        validate_user_topic(topic.name, "write to")
        limit = Encoding.of(topic).limits.max_message_bytes
        if len(batch.data) > limit:
            raise MessageSizeTooLargeError(f"a batch of {len(batch.data)} bytes, max.message.bytes is {limit}")
    except SparkLogError as error:
        return Outcome(error)
    return None


def _stored_together(batches: Sequence[pa.Table], topic: Topic, now_ms: int) -> list[pa.Table]:
    """Return the records of batches of one topic as they will be stored. Return nothing if a record breaks a rule: then
    the batches are checked one by one, which takes longer, and finds the ones with such records.
    """
    try:
        together = pa.concat_tables(batches)
        stored = prepare(normalise(together, timestamp_ms=now_ms), Encoding.of(topic), now_ms)
    except Exception:
        return []
    starts = accumulate((batch.num_rows for batch in batches), initial=0)
    return [stored.slice(start, batch.num_rows) for start, batch in zip(starts, batches, strict=False)]


def _check(
    batch: SentBatch, decoded: DecodedBatch | SparkLogError, topic: Topic, now_ms: int, stored: pa.Table | None
) -> Checked:
    """Return the batch with its records as they will be stored, or its error. `stored` are these records, if known."""
    if isinstance(decoded, SparkLogError):
        return Outcome(decoded)
    try:
        return _accepted(batch, decoded, topic, now_ms, stored)
    except SparkLogError as error:
        reasons = partial(_bad_records, decoded.records, topic, now_ms)
        # without the traceback, whose frames would keep further copies of the records in memory
        return Outcome(error.with_traceback(None), bad_records=reasons, bytes=decoded.records.nbytes)
    except Exception as error:
        logger.exception("%s-%s: a record batch cannot be checked", batch.topic, batch.partition)
        return Outcome(error.with_traceback(None))


def _accepted(batch: SentBatch, decoded: DecodedBatch, topic: Topic, now_ms: int, stored: pa.Table | None) -> Accepted:
    encoding, header = Encoding.of(topic), decoded.header
    if header.is_transactional != batch.transactional:
        raise InvalidTxnStateError("the batch and its request do not both belong to a transaction")
    if batch.transactional and header.producer_id == NO_PRODUCER_ID:
        raise InvalidTxnStateError("a batch of a transaction has no producer id")
    if stored is None:
        stored = prepare(normalise(decoded.records, timestamp_ms=now_ms), encoding, now_ms)
    sequence = None
    if header.producer_id != NO_PRODUCER_ID:
        sequence = ProducerSequence(header.producer_id, header.producer_epoch, header.base_sequence, batch.principal)
    append_time_ms = now_ms if encoding.timestamp_type is TimestampType.LOG_APPEND_TIME else -1
    return Accepted(topic, Records(batch.partition, stored, sequence), append_time_ms)


def _bad_records(records: pa.Table, topic: Topic, now_ms: int, count_max: int) -> dict[int, str]:
    """Return the errors of the first invalid rows, by row number. There are none if the error is not that of a row."""
    texts: dict[int, str] = {}
    try:
        for start in range(0, records.num_rows, _BAD_RECORDS_STEP):
            reasons = _reasons(records.slice(start, _BAD_RECORDS_STEP), topic, now_ms)
            for row, error in islice(sorted(reasons.items()), count_max - len(texts)):
                texts[start + row] = client_message(error)
            if len(texts) >= count_max:
                break
        return texts
    except Exception:
        logger.exception("%s: invalid records cannot be listed", topic.name)
        return {}


def _reasons(records: pa.Table, topic: Topic, now_ms: int) -> dict[int, Exception]:
    encoding = Encoding.of(topic)
    if encoding.timestamp_type is TimestampType.LOG_APPEND_TIME:
        records = stamp(records, now_ms)
    records = normalise(records, timestamp_ms=now_ms)
    return {**faults(records, encoding.limits, now_ms), **bad_records(records, encoding)}
