"""Decodes record batches to tables of RECORD_SCHEMA: many batches together, without a loop over fields.

A loop over the records reads only their lengths, to find where the next record begins; array operations read all other
fields. If there are few records, they are decoded one by one, which is faster than a dozen array operations.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_log.errors import InvalidRecordError, InvalidTimestampError, MessageSizeTooLargeError, SparkLogError
from spark_log.log.columns.value_bytes import slices
from spark_log.log.records.arrow_numpy import from_numpy
from spark_log.log.records.kafka_batch.compression import DECOMPRESSED_BYTES_MAX, Budget, decompress
from spark_log.log.records.kafka_batch.few_records import ManyHeadersError, decode_few
from spark_log.log.records.kafka_batch.header import (
    HEADER_BYTES,
    NO_TIMESTAMP,
    RECORD_BYTES_MIN,
    BatchHeader,
    read_header,
)
from spark_log.log.records.kafka_batch.record_headers import (
    NO_HEADERS,
    Flags,
    check_keys,
    read_bytes,
    read_headers,
)
from spark_log.log.records.kafka_batch.varint import WINDOW, Longs, Varints, read_varint
from spark_log.log.records.record_limits import HEADERS_PER_RECORD_MAX
from spark_log.log.records.schema import HEADER, HEADERS, MICROSECONDS_PER_MILLISECOND, RECORD_SCHEMA, TimestampType

logger = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

RECORDS_MAX = 1_000_000
HEADERS_MAX = 1_000_000
"""The limit of headers of all records. An empty header has two bytes, and takes fifty times as much to be decoded."""
FEW, _FEW_HEADERS = 32, 500
"""Batches with at most these numbers of records and of headers in total are decoded record by record."""
_BODY_BYTES_MAX = 1 << 30
"""The number of bytes that are decoded together. It is limited because Arrow's positions in them are int32."""
_TIMESTAMP_MS_MAX = np.iinfo(np.int64).max // MICROSECONDS_PER_MILLISECOND
_BASE_TIMESTAMP_MS_MAX = 1 << 62


@dataclass(frozen=True)
class DecodedBatch:
    """A batch of a producer: its header, and its records as a table of RECORD_SCHEMA. The timestamp of a record without
    one (-1, Kafka's NO_TIMESTAMP) is null.
    """

    header: BatchHeader
    records: pa.Table


@dataclass(frozen=True)
class _Body:
    """The decompressed records of batch `number` of the request."""

    number: int
    header: BatchHeader
    data: memoryview | bytes


@dataclass(frozen=True)
class DecodingLimits:
    """Limits of all batches of one call of `decode` together."""

    decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX
    records_max: int = RECORDS_MAX
    headers_max: int = HEADERS_MAX


def decode(
    batches: Sequence[memoryview | bytes], limits: DecodingLimits | None = None
) -> list[DecodedBatch | SparkLogError]:
    """Return for each item the decoded batch, or the error for which it is refused. A bad item does not affect the
    others.

    Each item must be exactly one batch, as a produce request has it for one partition. The errors are
    CorruptRecordError for a wrong checksum or length; InvalidRecordError for records that are malformed, in another
    format, or of a control batch; InvalidTimestampError for timestamp type LogAppendTime, which only a broker may set;
    MessageSizeTooLargeError for a batch that exceeds the limits.
    """
    limits = limits or DecodingLimits()
    budget, records_left = Budget(limits.decompressed_bytes_max), limits.records_max
    results: list[DecodedBatch | SparkLogError | None] = [None] * len(batches)
    bodies: list[_Body] = []
    for number, batch in enumerate(batches):
        try:
            body = _body(number, memoryview(batch), budget, records_left)
            records_left -= body.header.record_count
            bodies.append(body)
        except Exception as error:
            results[number] = _refusal(error)
    for group in _groups(bodies):
        decode_group = partial(_decode_together, headers_max=limits.headers_max)
        for body, outcome in zip(group, each_alone(decode_group, group), strict=True):
            results[body.number] = outcome if isinstance(outcome, SparkLogError) else DecodedBatch(body.header, outcome)
    return [each for each in results if each is not None]


def each_alone(function: Callable[[Sequence[T]], list[R]], items: Sequence[T]) -> list[R | SparkLogError]:
    """Return the results of `function` for all items. If it raises, call it for each item alone and return for each
    item its result or its error.
    """
    try:
        return [*function(items)]
    except Exception as error:
        if len(items) == 1:
            return [_refusal(error)]
        return [result for item in items for result in each_alone(function, [item])]


def _refusal(error: Exception) -> SparkLogError:
    """Return the error without its traceback, whose frames would keep the records of the batch in memory. An unexpected
    exception is logged and becomes InvalidRecordError.
    """
    if isinstance(error, SparkLogError):
        error.__context__ = None
        return error.with_traceback(None)
    logger.error("a record batch cannot be decoded", exc_info=error)
    return InvalidRecordError(f"the batch cannot be decoded: {type(error).__name__}")


def _body(number: int, batch: memoryview, budget: Budget, records_max: int) -> _Body:
    header = read_header(batch)
    if header.is_control:
        raise InvalidRecordError("a producer may not send control batches")
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        raise InvalidTimestampError("timestamp type LogAppendTime: only a broker may set it")
    if header.record_count < 1 or header.last_offset_delta != header.record_count - 1:
        raise InvalidRecordError(
            f"a batch of {header.record_count} records has the last offset delta {header.last_offset_delta}"
        )
    if header.record_count > records_max:
        raise MessageSizeTooLargeError(
            f"a batch of {header.record_count} records: its request may have {records_max} more"
        )
    data = decompress(batch[HEADER_BYTES:], header.compression, budget)
    if header.record_count > len(data) // RECORD_BYTES_MIN:
        raise InvalidRecordError(f"{header.record_count} records do not fit into {len(data)} bytes")
    return _Body(number, header, data)


def _groups(bodies: Sequence[_Body]) -> list[list[_Body]]:
    groups: list[list[_Body]] = []
    size = _BODY_BYTES_MAX
    for body in bodies:
        size += len(body.data)
        if size > _BODY_BYTES_MAX:
            groups.append([])
            size = len(body.data)
        groups[-1].append(body)
    return groups


def _decode_together(bodies: Sequence[_Body], headers_max: int) -> list[pa.Table | SparkLogError]:
    if sum(body.header.record_count for body in bodies) <= FEW:
        with suppress(ManyHeadersError):
            return decode_few([(body.data, body.header) for body in bodies], min(_FEW_HEADERS, headers_max))
    data = b"".join([*(body.data for body in bodies), bytes(WINDOW)])
    ends_of_bodies = list(accumulate(len(body.data) for body in bodies))
    starts: list[int] = []
    ends: list[int] = []
    counts = np.zeros(len(bodies), np.int64)
    begin = 0
    good = np.ones(len(bodies), bool)
    for number, (body, end) in enumerate(zip(bodies, ends_of_bodies, strict=True)):
        before = len(starts)
        good[number] = _boundaries(data, begin, end, body.header.record_count, starts, ends)
        if not good[number]:
            del starts[before:], ends[before:]
        counts[number] = len(starts) - before
        begin = end
    batch_of = np.repeat(np.arange(len(bodies)), counts)
    fields = _Fields(data, np.array(starts, np.int64), np.array(ends, np.int64))
    expected = np.arange(len(starts)) - np.repeat(np.cumsum(counts) - counts, counts)
    bad = fields.bad | (fields.offset_deltas != expected)
    bases = np.array([body.header.base_timestamp_ms for body in bodies], np.int64)
    # With a clipped base the sum does not overflow, and stays out of range: a delta of 8 bytes is below 2^55.
    times = np.clip(bases, -_BASE_TIMESTAMP_MS_MAX, _BASE_TIMESTAMP_MS_MAX)[batch_of] + fields.timestamp_deltas
    bad |= np.abs(times) > _TIMESTAMP_MS_MAX
    good[batch_of[bad]] = False
    too_many = _with_too_many_headers(fields.header_counts, batch_of, good, headers_max)
    bad = fields.read_headers(good[batch_of])
    good[batch_of[bad]] = False
    check_keys(fields.headers.of(good[batch_of]), fields.data, batch_of, good)
    keep = np.flatnonzero(good[batch_of])
    tables = _tables(fields, keep, times, np.where(good, counts, 0), good)
    for number in too_many:
        tables[number] = MessageSizeTooLargeError(f"records of a request have more than {headers_max} headers together")
    return tables


def _with_too_many_headers(counts: Longs, batch_of: Longs, good: Flags, headers_max: int) -> list[int]:
    """Return the numbers of good batches whose headers exceed the limit together with those of the batches before. Set
    `good` to False for them.
    """
    too_many = []
    left = headers_max
    for number, count in enumerate(np.bincount(batch_of, counts, minlength=len(good)).tolist()):
        if not good[number]:
            continue
        if count > left:
            too_many.append(number)
            good[number] = False
        else:
            left -= count
    return too_many


def _boundaries(data: bytes, at: int, end: int, count: int, starts: list[int], ends: list[int]) -> bool:
    """Append the position where each of `count` records begins, after its length, to `starts`, and the position where
    it ends to `ends`. Return whether the records fill the bytes from `at` to `end`.
    """
    for _ in range(count):
        if at >= end:
            return False
        size = data[at]
        if size < 0x80:
            at += 1
            if size & 1:
                return False
            size >>= 1
        else:
            try:
                size, at = read_varint(data, at, end)
            except ValueError:
                return False
            if size < 0:
                return False
        starts.append(at)
        at += size
        if at > end:
            return False
        ends.append(at)
    return at == end


class _Fields:
    """The fields of all records, as positions in `data`. `bad` marks malformed records, whose fields are not valid."""

    def __init__(self, data: bytes, starts: Longs, ends: Longs) -> None:
        self.data, self._varints = data, Varints(data)
        self.bad: Flags = ends - starts < RECORD_BYTES_MIN
        at = starts + 1  # after the attributes of the record, which Kafka does not use
        self.timestamp_deltas, at = self._varints.read(at, self.bad)
        self.offset_deltas, at = self._varints.read(at, self.bad)
        self.key_starts, self.key_ends, self.key_is_null, at = read_bytes(self._varints, at, ends, self.bad)
        self.value_starts, self.value_ends, self.value_is_null, at = read_bytes(self._varints, at, ends, self.bad)
        self.header_counts, at = self._varints.read(at, self.bad)
        self.bad |= (self.header_counts < 0) | (self.header_counts > HEADERS_PER_RECORD_MAX)
        self.header_counts[self.bad] = 0
        self._headers_at, self._ends = at, ends
        self.headers = NO_HEADERS

    def read_headers(self, rows: Flags) -> Flags:
        """Read the headers of the records that `rows` marks. Return a mark for each record with malformed headers."""
        self.header_counts[~rows] = 0
        self.headers, bad = read_headers(self.data, self._varints, self._headers_at, self._ends, self.header_counts)
        return bad & rows


def _tables(
    fields: _Fields, keep: Longs, times_ms: Longs, counts: Longs, good: Flags
) -> list[pa.Table | SparkLogError]:
    """Return the table of each batch, or an error for a batch that is not good."""
    data = pa.py_buffer(fields.data)
    keys = _binary(data, fields.key_starts[keep], fields.key_ends[keep], fields.key_is_null[keep])
    values = _binary(data, fields.value_starts[keep], fields.value_ends[keep], fields.value_is_null[keep])
    times = times_ms[keep]
    no_time = times == NO_TIMESTAMP
    micros = from_numpy(times * MICROSECONDS_PER_MILLISECOND)
    if no_time.any():
        micros = pc.if_else(pa.array(no_time), pa.scalar(None, pa.int64()), micros)
    headers = _header_lists(fields, keep)
    columns = [keys, values, headers, micros.cast(RECORD_SCHEMA.field("timestamp").type)]
    whole = pa.table(columns, schema=RECORD_SCHEMA)
    tables: list[pa.Table | SparkLogError] = []
    begin = 0
    for is_good, count in zip(good.tolist(), counts.tolist(), strict=True):
        part = whole.slice(begin, count)
        begin += count
        tables.append(part if is_good else InvalidRecordError("a malformed record"))
    return tables


def _header_lists(fields: _Fields, keep: Longs) -> pa.Array:
    """Return the headers of the records at `keep`, null for a record without headers."""
    if not len(fields.headers.rows):
        return pa.nulls(len(keep), HEADERS)
    kept = np.zeros(len(fields.header_counts), bool)
    kept[keep] = True
    headers = fields.headers.of(kept)
    values = _binary(
        pa.py_buffer(fields.data), headers.value_starts, headers.value_ends, headers.value_is_null.astype(bool)
    )
    items = pa.StructArray.from_arrays([headers.keys(fields.data), values], fields=list(HEADER))
    counts = fields.header_counts[keep]
    offsets = from_numpy(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32))
    return pa.ListArray.from_arrays(offsets, items, type=HEADERS, mask=pa.array(counts == 0))


def _binary(data: pa.Buffer, starts: Longs, ends: Longs, is_null: Flags) -> pa.Array:
    if is_null.all():
        return pa.nulls(len(starts), pa.binary())
    found = slices(data, starts, ends)
    return pc.if_else(pa.array(is_null), pa.scalar(None, pa.binary()), found) if is_null.any() else found
