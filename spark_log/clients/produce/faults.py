"""Detects the records that a topic refuses, each with its error; the other records of the batch are sent. Pure."""

import numpy as np
import pyarrow as pa

from spark_log.errors import InvalidRecordError, InvalidTimestampError, MessageSizeTooLargeError, SparkLogError
from spark_log.log.records.record_limits import RECORD_BYTES_MAX, TIMESTAMP_MS_MAX, RecordLimits, record_sizes
from spark_log.log.records.schema import MICROSECONDS_PER_MILLISECOND


def has_no_faults(
    limits: RecordLimits, bytes_max: int, oldest_ms: int, newest_ms: int, null_keys: int, now_ms: int
) -> bool:
    """Whether the batch's extremes prove that no record violates the limits. Cheap; most batches pass.

    `bytes_max` is at least the size of the largest record.
    """
    low, high = _times(limits, now_ms)
    return (
        bytes_max <= min(limits.max_message_bytes, RECORD_BYTES_MAX)
        and not (limits.compacted and null_keys)
        and low <= oldest_ms
        and newest_ms <= high
    )


def faults(records: pa.Table, limits: RecordLimits, now_ms: int) -> dict[int, SparkLogError]:
    """Return row -> error for the rows of a RECORD_SCHEMA table that `record_limits` would refuse with these limits.

    Timestamps are not null. Headers are not checked here, but in `send` and `send_table`.
    """
    by_row: dict[int, SparkLogError] = {}
    if limits.compacted:
        for row in np.flatnonzero(np.asarray(records.column("key").is_null())).tolist():
            by_row[row] = InvalidRecordError("key: null, and a compacted topic needs a key in every record")
    low, high = _times(limits, now_ms)
    millis = records.column("timestamp").cast(pa.int64()).to_numpy() // MICROSECONDS_PER_MILLISECOND
    for row in np.flatnonzero((millis < low) | (millis > high)).tolist():
        by_row[row] = InvalidTimestampError(
            f"timestamp: {millis[row]} ms is outside [{low}, {high}] (now is {now_ms}; see"
            " message.timestamp.before.max.ms, message.timestamp.after.max.ms)"
        )
    limit = min(limits.max_message_bytes, RECORD_BYTES_MAX)
    sizes = record_sizes(records)
    for row in np.flatnonzero(sizes > limit).tolist():
        by_row[row] = MessageSizeTooLargeError(
            f"value: the record has {sizes[row]} bytes, max.message.bytes of the topic is {limit}"
        )
    return by_row


def _times(limits: RecordLimits, now_ms: int) -> tuple[int, int]:
    """Return the lowest and the highest timestamp that the topic accepts."""
    low, high = 0, TIMESTAMP_MS_MAX
    if limits.timestamp_before_max_ms is not None:
        low = max(low, now_ms - limits.timestamp_before_max_ms)
    if limits.timestamp_after_max_ms is not None:
        high = min(high, now_ms + limits.timestamp_after_max_ms)
    return low, high
