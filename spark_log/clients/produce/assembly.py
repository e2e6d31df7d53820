"""Converts the columns of a topic batch to tables by partition. Pure."""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_log.clients.produce.producer_batch import RECORD_BYTES, Headers, TopicBatch
from spark_log.cluster.topics import Topic
from spark_log.errors import SparkLogError, UnknownTopicOrPartitionError
from spark_log.log.append.encoding import Encoding, bad_records
from spark_log.log.append.partitioner import order_by_partition, partition_of, partition_of_key, split_by_partition
from spark_log.log.records.arrow_numpy import Longs, binary_array, from_numpy, validity
from spark_log.log.records.record_limits import faults, has_no_faults
from spark_log.log.records.schema import HEADERS, MICROSECONDS_PER_MILLISECOND, RECORD_SCHEMA, TIMESTAMP, TimestampType

_FEW = 16
"""Up to this number, records are processed one by one, because NumPy and Arrow calls would take longer."""


@dataclass(frozen=True)
class Assembled:
    """The records of a topic batch by partition. `parts` are in ascending order, as they will be stored.

    Row r of the topic batch is row `row_of[r]` of part `batch_of[r]`, or has an error in `faults` (batch -1). Sizes are
    bytes, -1 for null; times are milliseconds.
    """

    parts: Sequence[tuple[int, pa.Table]]
    batch_of: Longs | Sequence[int]
    row_of: Longs | Sequence[int]
    times_ms: Longs | Sequence[int]
    key_sizes: Longs | Sequence[int]
    value_sizes: Longs | Sequence[int]
    faults: dict[int, SparkLogError]
    runs: int
    """Number to add to `first_run` for the next topic batch, so that its null keys go to the next partitions."""


def assemble(
    topic_batch: TopicBatch, topic: Topic, encoding: Encoding, now_ms: int, first_run: int, run_bytes_min: int
) -> Assembled:
    """Check, partition and sort the records of a topic batch. `encoding` is the topic's.

    Null keys go in runs to one partition each, beginning with `first_run` modulo the partition count. A run has at
    least `run_bytes_min` bytes if there are as many (as in Kafka's sticky partitioner). A record that the topic refuses
    is a fault; the others are not affected.
    """
    count = len(topic_batch.values)
    per_run = max(1, run_bytes_min * count // max(1, topic_batch.bytes))
    if count <= _FEW and not encoding.rejects_bad_records:
        few = _assemble_few(topic_batch, topic, encoding, now_ms, first_run, per_run)
        if few is not None:
            return few
    (keys, key_sizes), (values, value_sizes) = binary_array(topic_batch.keys), binary_array(topic_batch.values)
    times = np.frombuffer(topic_batch.timestamps, np.int64).copy()  # the array cannot grow while NumPy uses its buffer
    if encoding.timestamp_type is TimestampType.LOG_APPEND_TIME:
        times[:] = now_ms
    headers = _header_array(topic_batch.headers, count) if topic_batch.headers else pa.nulls(count, HEADERS)
    stamps = from_numpy(times * MICROSECONDS_PER_MILLISECOND, TIMESTAMP)
    records = pa.Table.from_arrays([keys, values, headers, stamps], schema=RECORD_SCHEMA)
    explicit = _explicit(topic_batch.partitions, count) if topic_batch.partitions else None
    bad: dict[int, SparkLogError] = {}
    if explicit is not None:
        bad |= _missing(explicit, topic)
    extremes = int(times.min()), int(times.max())
    bytes_max = topic_batch.bytes
    if not topic_batch.headers:
        bytes_max = min(bytes_max, RECORD_BYTES + max(0, int(np.max(key_sizes))) + max(0, int(np.max(value_sizes))))
    if not has_no_faults(encoding.limits, bytes_max, *extremes, keys.null_count, now_ms):
        bad |= faults(records, encoding.limits, now_ms)
    bad |= bad_records(records, encoding)
    good = np.arange(0)
    if bad:
        good = np.setdiff1d(np.arange(count), np.fromiter(bad, np.int64))
        records = records.take(from_numpy(good))
        explicit = explicit[good] if explicit is not None else None
    numbers = _partitions(records.column("key"), explicit, topic.partition_count, first_run, per_run)
    order = order_by_partition(numbers)
    parts = split_by_partition(records, numbers, order)
    lengths = np.array([part.num_rows for _, part in parts], np.int64)
    batch_of, row_of = np.full(count, -1, np.int64), np.full(count, -1, np.int64)
    rows = good[order] if bad else order
    batch_of[rows] = np.repeat(np.arange(len(parts)), lengths)
    row_of[rows] = np.arange(len(rows)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return Assembled(
        parts, batch_of, row_of, times, key_sizes, value_sizes, bad, _runs(topic.partition_count, count, per_run)
    )


def _runs(partitions: int, records: int, per_run: int) -> int:
    return max(1, min(partitions, records // per_run))


def _assemble_few(
    topic_batch: TopicBatch, topic: Topic, encoding: Encoding, now_ms: int, first_run: int, per_run: int
) -> Assembled | None:
    """Assemble record by record, as `assemble` does; return None if some record may be a fault."""
    keys, values = topic_batch.keys, topic_batch.values
    count, partitions, null_keys = len(values), topic.partition_count, keys.count(None)
    times = topic_batch.timestamps.tolist()
    if encoding.timestamp_type is TimestampType.LOG_APPEND_TIME:
        times = [now_ms] * count
    if not has_no_faults(encoding.limits, topic_batch.bytes, min(times), max(times), null_keys, now_ms):
        return None
    if any(number >= partitions for number in topic_batch.partitions.values()):
        return None
    free = [row for row in range(count) if keys[row] is None and row not in topic_batch.partitions]
    runs = _runs(partitions, len(free), per_run)
    chosen = {row: (first_run + place * runs // len(free)) % partitions for place, row in enumerate(free)}
    chosen.update(topic_batch.partitions)
    rows_of: dict[int, list[int]] = {}
    for row, key in enumerate(keys):
        if row not in chosen and key is not None:
            chosen[row] = partition_of_key(key, partitions)
        rows_of.setdefault(chosen[row], []).append(row)
    parts = []
    batch_of, row_of = [0] * count, [0] * count
    for part, (number, rows) in enumerate(sorted(rows_of.items())):
        for place, row in enumerate(rows):
            batch_of[row], row_of[row] = part, place
        parts.append((number, _table(topic_batch, rows, times)))
    key_sizes, value_sizes = ([-1 if data is None else len(data) for data in column] for column in (keys, values))
    runs = _runs(partitions, count, per_run)
    return Assembled(parts, batch_of, row_of, times, key_sizes, value_sizes, {}, runs)


def _table(topic_batch: TopicBatch, rows: Sequence[int], times_ms: Sequence[int]) -> pa.Table:
    headers = {place: topic_batch.headers[row] for place, row in enumerate(rows) if row in topic_batch.headers}
    stamps = array("q", [times_ms[row] * MICROSECONDS_PER_MILLISECOND for row in rows])
    columns = [
        binary_array([topic_batch.keys[row] for row in rows])[0],
        binary_array([topic_batch.values[row] for row in rows])[0],
        _header_array(headers, len(rows)) if headers else pa.nulls(len(rows), HEADERS),
        pa.Array.from_buffers(TIMESTAMP, len(rows), [None, pa.py_buffer(stamps)]),
    ]
    return pa.Table.from_arrays(columns, schema=RECORD_SCHEMA)


def _header_array(headers: Mapping[int, Headers], count: int) -> pa.Array:
    rows = [headers.get(row, ()) for row in range(count)]
    items = [item for row in rows for item in row]
    keys, values = binary_array([key.encode() for key, _ in items])[0], binary_array([value for _, value in items])[0]
    structs = pa.StructArray.from_arrays([keys.cast(pa.string()), values], fields=list(HEADERS.value_type))
    offsets = pa.py_buffer(array("i", accumulate(map(len, rows), initial=0)))
    return pa.Array.from_buffers(HEADERS, count, [validity([bool(row) for row in rows]), offsets], children=[structs])


def _explicit(partitions: Mapping[int, int], count: int) -> Longs:
    """Return the explicit partition of each record, or -1 if it has none."""
    explicit = np.full(count, -1, np.int64)
    explicit[np.fromiter(partitions, np.int64)] = np.fromiter(partitions.values(), np.int64)
    return explicit


def _missing(explicit: Longs, topic: Topic) -> dict[int, SparkLogError]:
    """Return errors of records whose partition existed at `send`, before the topic was deleted and created again."""
    return {
        row: UnknownTopicOrPartitionError(
            f"partition {topic.name}-{explicit[row]}: the topic has {topic.partition_count} partitions"
        )
        for row in np.flatnonzero(explicit >= topic.partition_count).tolist()
    }


def _partitions(
    keys: pa.ChunkedArray, explicit: npt.NDArray[Any] | None, partitions: int, first_run: int, per_run: int
) -> npt.NDArray[Any]:
    count = len(keys)
    if partitions == 1:
        return np.zeros(count, np.int32)
    if explicit is None and keys.null_count == count and count < 2 * per_run:
        return np.full(count, first_run % partitions, np.int32)
    given = None if explicit is None else pa.array(explicit, pa.int64(), mask=explicit < 0)
    return partition_of(keys, given, partitions, first_run, per_run)
