"""Chooses the partition of a record. Pure. A key goes to the same partition as with Kafka's clients.

A record goes to its explicit partition, otherwise to that of its key's hash, otherwise (null key) round-robin:

    partition(key) = (murmur2(key) & 0x7fffffff) % partitions    org.apache.kafka.clients.producer, seed 0x9747b28c

Records with null keys are distributed in *runs*: a batch is cut into contiguous blocks of nearly equal size, at
most one per partition. The partitions get the same share as with round-robin by record, but a block is a slice, which
needs no copy, and adjacent records stay together, as in Kafka's sticky partitioner.
"""

import struct
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_log.errors import InvalidRecordError
from spark_log.log.records.arrow_numpy import Longs, from_numpy, is_null
from spark_log.log.records.byte_rows import word_rows

_M = np.uint32(0x5BD1E995)
_SEED = np.uint32(0x9747B28C)


def partition_of(
    keys: pa.Array | pa.ChunkedArray,
    explicit: pa.Array | pa.ChunkedArray | None,
    partitions: int,
    round_robin_start: int = 0,
    run_records_min: int = 1,
) -> npt.NDArray[np.int32]:
    """Return the partition of each record, shape (records,), 0 <= partition < `partitions`.

    `keys`: binary or string. `explicit`: integers, null for records without one. Runs of null keys start with partition
    `round_robin_start` % partitions and have at least `run_records_min` records, if there are that many. Raises
    InvalidRecordError for an explicit partition that does not exist, with its value and the partition count.
    """
    if partitions < 1:
        raise InvalidRecordError(f"partition: the topic has {partitions} partitions")
    if explicit is not None and len(explicit) != len(keys):
        raise InvalidRecordError(f"partition: {len(explicit)} values for {len(keys)} records")
    chosen = np.full(len(keys), -1, np.int64) if explicit is None else _explicit(explicit, partitions)
    free = chosen < 0
    if not free.any():
        return chosen.astype(np.int32)
    without_key = free & is_null(keys) if keys.null_count else np.zeros(len(keys), bool)
    with_key = free & ~without_key
    if with_key.all():
        return _of_hashes(murmur2(keys), partitions).astype(np.int32)
    if with_key.any():
        chosen[with_key] = _of_hashes(murmur2(keys.take(from_numpy(np.flatnonzero(with_key)))), partitions)
    count = int(without_key.sum())
    if count:
        runs = max(1, min(partitions, count // max(1, run_records_min)))
        chosen[without_key] = (round_robin_start + np.arange(count) * runs // count) % partitions
    return chosen.astype(np.int32)


def partition_of_key(key: bytes, partitions: int) -> int:
    """Return the partition of one key, as `partition_of` does, but faster for a few records."""
    whole = len(key) >> 2
    state = 0x9747B28C ^ len(key)
    for word in struct.unpack_from(f"<{whole}I", key):
        word = word * 0x5BD1E995 & 0xFFFFFFFF
        word = (word ^ word >> 24) * 0x5BD1E995
        state = (state * 0x5BD1E995 ^ word) & 0xFFFFFFFF
    if len(key) & 3:
        state = (state ^ int.from_bytes(key[whole << 2 :], "little")) * 0x5BD1E995 & 0xFFFFFFFF
    state = (state ^ state >> 13) * 0x5BD1E995 & 0xFFFFFFFF
    return ((state ^ state >> 15) & 0x7FFFFFFF) % partitions


def murmur2(keys: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.uint32]:
    """Return Kafka's 32-bit murmur2 of each key, shape (keys,). A null is hashed as an empty key."""
    chunks = keys.chunks if isinstance(keys, pa.ChunkedArray) else [keys]
    return np.concatenate([np.empty(0, np.uint32), *(_murmur2(chunk) for chunk in chunks)])


def order_by_partition(partitions: npt.NDArray[Any]) -> Longs:
    """Return the row numbers in the order of the partitions. Rows of one partition keep their order."""
    if len(partitions) == 0 or (partitions == partitions[0]).all():
        return np.arange(len(partitions))
    return np.argsort(partitions.astype(np.uint16) if partitions.max() < 1 << 16 else partitions, kind="stable")


def split_by_partition(
    records: pa.Table, partitions: npt.NDArray[Any], order: Longs | None = None
) -> list[tuple[int, pa.Table]]:
    """Return each partition that occurs, ascending, with its records in their order. `order` is the result of
    `order_by_partition`, if the caller has it already.
    """
    bounds = _runs(partitions)
    if len(bounds) - 1 > len(np.unique(partitions[bounds[:-1]])):
        order = order_by_partition(partitions) if order is None else order
        records, partitions = records.take(from_numpy(order)), partitions[order]
        bounds = _runs(partitions)
    # each partition is one run now, as with null keys or a single partition from the beginning: slices, no copy
    runs = sorted(zip(partitions[bounds[:-1]].tolist(), pairwise(bounds.tolist()), strict=True))
    return [(partition, records.slice(start, end - start)) for partition, (start, end) in runs]


def _runs(partitions: npt.NDArray[Any]) -> Longs:
    """Return the first row of each run of equal partitions, and the number of rows."""
    changes = np.flatnonzero(partitions[1:] != partitions[:-1]) + 1
    return np.concatenate(([0], changes, [len(partitions)])) if len(partitions) else np.zeros(1, np.int64)


def _of_hashes(hashes: npt.NDArray[np.uint32], partitions: int) -> npt.NDArray[np.int64]:
    return (hashes & np.uint32(0x7FFFFFFF)).astype(np.int64) % partitions


def _explicit(explicit: pa.Array | pa.ChunkedArray, partitions: int) -> npt.NDArray[np.int64]:
    if pa.types.is_null(explicit.type):
        return np.full(len(explicit), -1, np.int64)
    if not pa.types.is_integer(explicit.type):
        raise InvalidRecordError(f"partition: unsupported type {explicit.type}, expected int")
    bad = pc.fill_null(pc.or_(pc.less(explicit, 0), pc.greater_equal(explicit, partitions)), False)
    if pc.any(bad).as_py():
        value = explicit.filter(bad)[0].as_py()
        raise InvalidRecordError(f"partition: {value} does not exist, the topic has {partitions} partitions")
    return np.asarray(pc.fill_null(explicit.cast(pa.int64()), -1), np.int64).copy()  # Arrow's own memory is read-only


def _murmur2(keys: pa.Array) -> npt.NDArray[np.uint32]:
    hashes = np.empty(len(keys), np.uint32)
    for group in word_rows(keys, np.uint32):
        words = group.words
        partial = (group.lengths & 3) != 0
        state = _SEED ^ group.lengths.astype(np.uint32)
        if len(words):
            # All words are mixed in one operation; only the chain over a key's words is sequential. If a key is not a
            # multiple of 4 bytes, its last word enters unmixed, before the multiplication instead of after it.
            whole = words * _M
            whole ^= whole >> np.uint32(24)
            whole *= _M
            for word in whole[:-1]:
                state *= _M
                state ^= word
            state = np.where(partial, (state ^ words[-1]) * _M, (state * _M) ^ whole[-1])
        state ^= state >> np.uint32(13)
        state *= _M
        state ^= state >> np.uint32(15)
        hashes[group.rows] = state
    return hashes
