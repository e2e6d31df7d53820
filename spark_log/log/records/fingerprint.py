"""Computes a checksum of records that depends neither on their order nor on their division into batches.

    fingerprint(batch) = sum over rows of mix(row) mod 2**64

so that fingerprint(a + b) = combine(fingerprint(a), fingerprint(b)). It distinguishes a replayed Spark batch from
another one with the same number of rows; it does not protect against an adversary. Timestamps are left out, because
Spark gives a replayed batch new ones.

Rows are hashed by multilinear hashing (D. Lemire, O. Kaser: Strongly universal string hashing is fast, 2014) over
64-bit words with odd weights. A change of one word always changes the sum; a change of several words leaves it equal
with a probability of about 2**-63. The finaliser is that of splitmix64.
"""

from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_log.log.records.byte_rows import word_rows

Hashes = npt.NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_NULL, _TOPIC, _PARTITION, _KEY, _VALUE, _HEADERS, _HEADER_KEY, _HEADER_VALUE = range(8)
EMPTY = 0
"""Fingerprint of a batch without rows: combine(EMPTY, x) = x."""


def combine(left: int, right: int) -> int:
    """Return the fingerprint of two batches together."""
    return (left + right) % (1 << 64)


def fingerprint(
    records: pa.Table | pa.RecordBatch, topic: str | pa.Array | pa.ChunkedArray, partitions: pa.Array | None = None
) -> int:
    """Return the fingerprint of a batch of RECORD_SCHEMA: 0 <= fingerprint < 2**64.

    `topic` is one name, or a string for each row. `partitions` has the partitions that the caller asked for (int32,
    null where it asked for none). It must not have partitions that the key's hash or round-robin chose: these may
    differ when the batch is replayed.
    """
    table = pa.Table.from_batches([records]) if isinstance(records, pa.RecordBatch) else records
    if table.num_rows == 0:
        return EMPTY
    rows = np.zeros(table.num_rows, np.uint64)
    topics = pa.array([topic], pa.string()) if isinstance(topic, str) else _whole(topic)
    rows += _spread(hash_values(topics), _TOPIC)
    rows += _spread(_integers(partitions, table.num_rows), _PARTITION)
    rows += _spread(hash_values(_whole(table.column("key"))), _KEY)
    rows += _spread(hash_values(_whole(table.column("value"))), _VALUE)
    rows += _spread(_headers(_whole(table.column("headers"))), _HEADERS)
    return int(_mix(rows).sum(dtype=np.uint64))


def _mix(values: Hashes) -> Hashes:
    mixed = values ^ (values >> np.uint64(30))
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed


def _spread(hashes: Hashes, field: int) -> Hashes:
    """Return the hashes mixed with the field's number, so that equal values in two fields have different hashes."""
    return _mix(hashes + _mix(np.array([field + 1], np.uint64) * _GOLDEN))


def _weights(count: int) -> Hashes:
    """Return the weights of words 0 to count-1: odd, pseudo-random, and equal in all processes."""
    return _weight_table(max(64, 1 << (count - 1).bit_length()) if count else 64)[:count]


@lru_cache(maxsize=4)
def _weight_table(count: int) -> Hashes:
    return _mix(np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN) | np.uint64(1)


def hash_values(values: pa.Array) -> Hashes:
    """Return a 64-bit hash of each value of a binary or string array, shape (values,). It is equal in all processes."""
    hashes = np.empty(len(values), np.uint64)
    for group in word_rows(values, np.uint64):
        sums = _weights(len(group.words)) @ group.words if len(group.words) else np.zeros(len(group.rows), np.uint64)
        # The length distinguishes values that differ only in zero bytes at the end.
        hashes[group.rows] = _mix(sums + (group.lengths.astype(np.uint64) + np.uint64(1)) * _GOLDEN)
    if values.null_count:
        hashes[np.asarray(values.is_null())] = _NULL
    return hashes


def _integers(values: pa.Array | None, rows: int) -> Hashes:
    if values is None or values.null_count == rows:
        return np.zeros(1, np.uint64)
    whole = _whole(values)
    known = np.asarray(pc.fill_null(whole, 0)).astype(np.int64).view(np.uint64)
    hashes = _mix((known + np.uint64(1)) * _GOLDEN)
    hashes[np.asarray(whole.is_null())] = _NULL
    return hashes


def _headers(headers: pa.Array) -> Hashes:
    if headers.null_count == len(headers):
        return np.zeros(1, np.uint64)
    counts = np.asarray(pc.fill_null(pc.list_value_length(headers), 0), np.int64)
    items = headers.flatten()
    item_hashes = _spread(hash_values(pc.struct_field(items, "key")), _HEADER_KEY)
    item_hashes += _spread(hash_values(pc.struct_field(items, "value")), _HEADER_VALUE)
    ends = np.cumsum(counts)
    places = np.arange(len(items)) - np.repeat(ends - counts, counts)
    weighted = _mix(item_hashes) * _weights(int(counts.max()))[places]
    # Differences of running sums are exact modulo 2**64.
    running = np.concatenate((np.zeros(1, np.uint64), np.cumsum(weighted, dtype=np.uint64)))
    hashes = _mix(running[ends] - running[ends - counts] + (counts.astype(np.uint64) + np.uint64(1)) * _GOLDEN)
    hashes[np.asarray(headers.is_null())] = _NULL
    return hashes


def _whole(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    array = pa.concat_arrays(values.chunks) if isinstance(values, pa.ChunkedArray) else values
    return array
