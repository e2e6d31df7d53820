"""Checks the rules that a batch of records must pass before any of its records is written. Pure and vectorised.

The size of a record is Kafka's upper bound for a batch with only this record
(org.apache.kafka.common.record.DefaultRecord.recordSizeUpperBound):

    61 (record batch) + 21 (record) + field(key) + field(value) + varint(header count) + sum of field(header key) +
    field(header value), where field(null) = 1 and field(bytes) = varint(length) + length
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_log.errors import InvalidRecordError, InvalidTimestampError, MessageSizeTooLargeError, SparkLogError
from spark_log.log.records.schema import MICROSECONDS_PER_MILLISECOND, RECORD_SCHEMA, TIMESTAMP

RECORD_OVERHEAD_BYTES = 61 + 21
HEADERS_PER_RECORD_MAX = 10_000
"""Kafka limits headers only by max.message.bytes, which allows half a million empty headers in a record of 1 MB."""

RECORD_BYTES_MAX = 128 * 1024 * 1024
"""Largest record, even if max.message.bytes is larger: its row group must not exceed the reader's limit
(segment_open.py).
"""

TIMESTAMP_MS_MAX = 253_402_300_799_999
"""9999-12-31T23:59:59.999Z, the last millisecond that both Python's datetime and Spark's timestamp can represent."""

_VARINT_STEPS = np.array([1 << 6, 1 << 13, 1 << 20, 1 << 27])
_HEADERS_ABSENT = 1


@dataclass(frozen=True)
class RecordLimits:
    """The limits that a topic's configs set. `max_message_bytes` is max.message.bytes."""

    max_message_bytes: int = 1_048_588
    timestamp_after_max_ms: int | None = None
    """How far after `now_ms` a timestamp may be, None without limit (message.timestamp.after.max.ms)."""
    timestamp_before_max_ms: int | None = None
    """How far before `now_ms` a timestamp may be, None without limit (message.timestamp.before.max.ms)."""
    compacted: bool = False
    """Whether cleanup.policy contains `compact`: then every record needs a key."""


def check(records: pa.Table, limits: RecordLimits, now_ms: int) -> None:
    """Raise an error, which names a bad row and its field, if a record of a table breaks a rule.

    Raises MessageSizeTooLargeError; InvalidTimestampError for a timestamp that is null, before 1970, after
    TIMESTAMP_MS_MAX or outside the topic's limits; InvalidRecordError for a table of another schema than RECORD_SCHEMA,
    a null key in a compacted topic, a null header or header key, and more than HEADERS_PER_RECORD_MAX headers.
    """
    if not records.schema.equals(RECORD_SCHEMA):
        raise InvalidRecordError(f"records: expected columns {RECORD_SCHEMA.names}, got {records.schema.names}")
    timestamps = records.column("timestamp")
    if timestamps.null_count:
        raise InvalidTimestampError(f"timestamp: null in row {_first(np.asarray(timestamps.is_null()))}")
    _check_headers(records.column("headers"))
    for rows, error in _violations(records, limits, now_ms):
        if len(rows):
            raise error(int(rows[0]), f" in row {rows[0]}")


def faults(records: pa.Table, limits: RecordLimits, now_ms: int) -> dict[int, SparkLogError]:
    """Return row -> error for the rows of a RECORD_SCHEMA table whose key, timestamp or size `check` would refuse.

    Timestamps are not null. Headers are not checked.
    """
    violations = _violations(records, limits, now_ms)
    return {row: error(row, "") for rows, error in violations for row in rows.tolist()}


def has_no_faults(
    limits: RecordLimits, bytes_max: int, oldest_ms: int, newest_ms: int, null_keys: int, now_ms: int
) -> bool:
    """Whether the batch's extremes prove that `faults` finds none. Cheap; most batches pass.

    `bytes_max` is at least the size of the largest record.
    """
    low, high = _times(limits, now_ms)
    return (
        bytes_max <= min(limits.max_message_bytes, RECORD_BYTES_MAX)
        and not (limits.compacted and null_keys)
        and low <= oldest_ms
        and newest_ms <= high
    )


def truncate_to_milliseconds(timestamps: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray | pa.Array:
    """Return the timestamps (timestamp[us, UTC]) truncated to milliseconds, Kafka's unit."""
    return timestamps.cast(pa.timestamp("ms", "UTC"), safe=False).cast(TIMESTAMP)


def record_sizes(records: pa.Table) -> npt.NDArray[np.int64]:
    """Return the size in bytes of every row of a table of RECORD_SCHEMA, by the formula above, shape (rows,)."""
    sizes = RECORD_OVERHEAD_BYTES + _field_sizes(records.column("key")) + _field_sizes(records.column("value"))
    headers = records.column("headers")
    if headers.null_count == len(headers):
        return sizes + _HEADERS_ABSENT
    counts = _header_counts(headers)
    items = pa.concat_arrays([chunk.flatten() for chunk in headers.chunks])
    item_sizes = _field_sizes(pc.struct_field(items, "key")) + _field_sizes(pc.struct_field(items, "value"))
    total = np.concatenate(([0], np.cumsum(item_sizes)))
    ends = np.cumsum(counts)
    return np.asarray(sizes + _varint_sizes(counts) + total[ends] - total[ends - counts], np.int64)


def _violations(
    records: pa.Table, limits: RecordLimits, now_ms: int
) -> Iterator[tuple[npt.NDArray[np.intp], Callable[[int, str], SparkLogError]]]:
    """Yield, for each rule, the rows that break it, in order, and a function that makes the error of a row. Its second
    argument is the text that names the row, or an empty one.
    """
    keys = records.column("key")
    if limits.compacted and keys.null_count:
        yield (
            np.flatnonzero(np.asarray(keys.is_null())),
            lambda _, where: InvalidRecordError(f"key: null{where}, and a compacted topic needs a key in every record"),
        )
    low, high = _times(limits, now_ms)
    micros = records.column("timestamp").cast(pa.int64()).to_numpy()
    outside = (micros < low * MICROSECONDS_PER_MILLISECOND) | (micros >= (high + 1) * MICROSECONDS_PER_MILLISECOND)
    yield (
        np.flatnonzero(outside),
        lambda row, where: InvalidTimestampError(
            f"timestamp: {micros[row] // MICROSECONDS_PER_MILLISECOND} ms{where} is outside [{low}, {high}] (now is"
            f" {now_ms}; see message.timestamp.before.max.ms, message.timestamp.after.max.ms)"
        ),
    )
    limit = min(limits.max_message_bytes, RECORD_BYTES_MAX)
    # No row is larger than the batch, so small batches, which are the usual case, need no arithmetic for each row. A
    # row's own varints take at most 16 bytes; those of a header (at most 10 bytes) take less than twice its two Arrow
    # offsets (8 bytes).
    if 3 * records.nbytes + RECORD_OVERHEAD_BYTES + 16 <= limit:
        return
    sizes = record_sizes(records)
    its = "max.message.bytes" if limit == limits.max_message_bytes else "largest record that a segment can hold"
    yield (
        np.flatnonzero(sizes > limit),
        lambda row, where: MessageSizeTooLargeError(
            f"value: the record{where} has {sizes[row]} bytes, {its} is {limit}"
        ),
    )


def _times(limits: RecordLimits, now_ms: int) -> tuple[int, int]:
    """Return the lowest and the highest timestamp that the topic accepts."""
    low, high = 0, TIMESTAMP_MS_MAX
    if limits.timestamp_before_max_ms is not None:
        low = max(low, now_ms - limits.timestamp_before_max_ms)
    if limits.timestamp_after_max_ms is not None:
        high = min(high, now_ms + limits.timestamp_after_max_ms)
    return low, high


def _check_headers(headers: pa.ChunkedArray) -> None:
    if headers.null_count == len(headers):
        return
    counts = _header_counts(headers)
    if counts.max() > HEADERS_PER_RECORD_MAX:
        row = _first(counts > HEADERS_PER_RECORD_MAX)
        raise InvalidRecordError(f"headers: {counts[row]} in row {row}, at most {HEADERS_PER_RECORD_MAX} are allowed")
    items = pa.concat_arrays([chunk.flatten() for chunk in headers.chunks])
    keys = pc.struct_field(items, "key")
    if keys.null_count:
        item = _first(np.asarray(keys.is_null()))
        row = int(np.searchsorted(np.cumsum(counts), item, side="right"))
        raise InvalidRecordError(f"headers: null key in row {row}")


def _header_counts(headers: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    return np.asarray(pc.fill_null(pc.list_value_length(headers), 0), np.int64)


def _field_sizes(column: pa.ChunkedArray | pa.Array) -> npt.NDArray[np.int64]:
    lengths = np.asarray(pc.fill_null(pc.binary_length(column), 0), np.int64)
    # A null takes one byte, as a length of 0 does.
    return lengths + _varint_sizes(lengths)


def _varint_sizes(values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the size in bytes of the zigzag varint of each value, which is >= 0."""
    return np.searchsorted(_VARINT_STEPS, values, side="right") + 1


def _first(mask: npt.NDArray[Any]) -> int:
    return int(np.argmax(mask))
