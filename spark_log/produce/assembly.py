"""From the columns of a chunk to tables by partition. Pure but for the random start of a topic's null keys."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_log.cluster.topics import Topic
from spark_log.errors import InvalidRecordError, SparkLogError, UnknownTopicOrPartitionError
from spark_log.log.encode import Encoding, prepare
from spark_log.produce.chunk import Chunk, Headers
from spark_log.produce.faults import faults
from spark_log.produce.partitioner import partition_of, partition_of_key
from spark_log.records.schema import HEADERS, MICROSECONDS_PER_MILLISECOND, RECORD_SCHEMA, TIMESTAMP

Longs = npt.NDArray[np.int64]

_FEW = 16
"""Up to so many keys are hashed one by one: calling NumPy costs more than that."""


@dataclass(frozen=True)
class Assembled:
    """The records of a chunk by partition: `parts` in ascending order, as they will be stored.

    Row r of the chunk is row `row_of[r]` of part `piece_of[r]`, or has an error in `faults` (and piece -1). Sizes are
    bytes, -1 for null; times are milliseconds.
    """

    parts: Sequence[tuple[int, pa.Table]]
    piece_of: Longs
    row_of: Longs
    times_ms: Longs
    key_sizes: Longs
    value_sizes: Longs
    faults: dict[int, SparkLogError]
    runs: int
    """How many partitions the null keys went to, so that the next chunk's begin behind them."""


def assemble(chunk: Chunk, topic: Topic, now_ms: int, first_run: int, run_bytes_min: int) -> Assembled:
    """Check, partition and sort the records of a chunk.

    Null keys go in runs of one partition, beginning with `first_run` modulo the partition count, of at least
    `run_bytes_min` bytes where there are so many: Kafka's sticky partitioner. What the topic does not take is a fault
    of that record alone.
    """
    encoding = Encoding.of(topic.config)
    records = table_of(chunk)
    bad: dict[int, SparkLogError] = {}
    explicit = _explicit(chunk, topic, bad)
    if not bad:
        try:
            prepared = prepare(records, encoding, now_ms)
        except InvalidRecordError:
            bad = faults(records, encoding.limits, now_ms)
            if not bad:
                raise
    else:
        bad |= faults(records, encoding.limits, now_ms)
    count = records.num_rows
    keys, values = _sizes(records.column("key")), _sizes(records.column("value"))
    if bad:
        good = np.setdiff1d(np.arange(count), np.fromiter(bad, np.int64))
        prepared = prepare(records.take(pa.array(good)), encoding, now_ms)
        explicit = explicit[good] if explicit is not None else None
    times = prepared.column("timestamp").cast(pa.int64()).to_numpy() // MICROSECONDS_PER_MILLISECOND
    per_run = max(1, run_bytes_min * count // max(1, chunk.bytes))
    numbers = _partitions(prepared.column("key"), explicit, topic.partition_count, first_run, per_run)
    parts, piece_of, row_of = split(prepared, numbers)
    if bad:
        piece_of, row_of = _spread(piece_of, good, count, -1), _spread(row_of, good, count, -1)
        times = _spread(times, good, count, 0)
    runs = max(1, min(topic.partition_count, count // per_run))
    return Assembled(parts, piece_of, row_of, times, keys, values, bad, runs)


def table_of(chunk: Chunk) -> pa.Table:
    """The columns as a table of RECORD_SCHEMA."""
    count = len(chunk.values)
    with_headers = any(chunk.headers)
    columns = [
        pa.array(chunk.keys, pa.binary()),
        pa.array(chunk.values, pa.binary()),
        _header_array(chunk.headers) if with_headers else pa.nulls(count, HEADERS),
        pa.array(np.array(chunk.timestamps, np.int64) * MICROSECONDS_PER_MILLISECOND).cast(TIMESTAMP),
    ]
    return pa.table(columns, schema=RECORD_SCHEMA)


def split(records: pa.Table, numbers: npt.NDArray[Any]) -> tuple[list[tuple[int, pa.Table]], Longs, Longs]:
    """(partition, its records in order) ascending; and for each record which of them it is in, and at which row."""
    count = len(numbers)
    if count == 0:
        return [], np.empty(0, np.int64), np.empty(0, np.int64)
    if count == 1 or (numbers == numbers[0]).all():
        return [(int(numbers[0]), records)], np.zeros(count, np.int64), np.arange(count)
    order = np.argsort(numbers.astype(np.uint16) if numbers.max() < 1 << 16 else numbers, kind="stable")
    ordered = numbers[order]
    starts = np.concatenate(([0], np.flatnonzero(ordered[1:] != ordered[:-1]) + 1))
    lengths = np.diff(np.append(starts, count))
    piece_of, row_of = np.empty(count, np.int64), np.empty(count, np.int64)
    piece_of[order] = np.repeat(np.arange(len(starts)), lengths)
    row_of[order] = np.arange(count) - np.repeat(starts, lengths)
    moved = records.take(pa.array(order))
    bounds = zip(starts.tolist(), lengths.tolist(), strict=True)
    return [(int(ordered[start]), moved.slice(start, length)) for start, length in bounds], piece_of, row_of


def _header_array(rows: Sequence[Headers | None]) -> pa.Array:
    lengths = np.fromiter((len(row) if row else 0 for row in rows), np.int32, len(rows))
    items = [item for row in rows if row for item in row]
    keys, values = (
        pa.array([key for key, _ in items], pa.string()),
        pa.array([value for _, value in items], pa.binary()),
    )
    structs = pa.StructArray.from_arrays([keys, values], fields=list(HEADERS.value_type))
    offsets = pa.array(np.concatenate(([0], np.cumsum(lengths))), pa.int32())
    return pa.ListArray.from_arrays(offsets, structs, type=HEADERS, mask=pa.array(lengths == 0))


def _explicit(chunk: Chunk, topic: Topic, bad: dict[int, SparkLogError]) -> npt.NDArray[Any] | None:
    """Explicit partitions, -1 where there is none; those that a recreated topic has not are faults."""
    if not any(partition is not None for partition in chunk.partitions):
        return None
    explicit = np.array([-1 if partition is None else partition for partition in chunk.partitions], np.int64)
    for row in np.flatnonzero(explicit >= topic.partition_count).tolist():
        bad[row] = UnknownTopicOrPartitionError(
            f"partition {topic.name}-{explicit[row]}: the topic has {topic.partition_count} partitions"
        )
    return explicit


def _partitions(
    keys: pa.ChunkedArray, explicit: npt.NDArray[Any] | None, partitions: int, first_run: int, per_run: int
) -> npt.NDArray[Any]:
    count = len(keys)
    if partitions == 1:
        return np.zeros(count, np.int32)
    if explicit is None and count <= _FEW and keys.null_count == 0:
        return np.array([partition_of_key(key, partitions) for key in keys.to_pylist()], np.int32)
    if explicit is None and keys.null_count == count and count < 2 * per_run:
        return np.full(count, first_run % partitions, np.int32)
    given = None if explicit is None else pa.array(explicit, pa.int64(), mask=explicit < 0)
    return partition_of(keys, given, partitions, first_run, per_run)


def _sizes(column: pa.ChunkedArray) -> Longs:
    return np.asarray(pc.fill_null(pc.binary_length(column), -1), np.int64)


def _spread(values: Longs, rows: Longs, count: int, rest: int) -> Longs:
    spread = np.full(count, rest, np.int64)
    spread[rows] = values
    return spread
