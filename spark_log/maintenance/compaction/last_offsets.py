"""Finds the records of a partition that are the last of their keys, without Spark and in bounded memory."""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_log.log.append.partitioner import murmur2
from spark_log.log.records.schema import read_schema
from spark_log.log.records.winners import current_records
from spark_log.log.segments.fetcher import Fetcher
from spark_log.log.segments.slices import LogDirs
from spark_log.maintenance.compaction.unit import Offsets, Unit

_KEYS = read_schema(columns=["key", "offset"])
_LAST = pa.schema([("key", pa.large_binary()), ("offset", pa.int64())])

_BUCKET_RECORDS = 4 << 20
_BUCKET_BYTES = 256 << 20
"""Limit of the records, and of the stored bytes, whose keys are in memory at the same time."""
_WAITING_BYTES = 32 << 20


def find_last_offsets(units: Sequence[Unit], log_dirs: LogDirs) -> Iterator[Offsets]:
    """Yield, for each unit of a partition, the offsets of its records that are the last of their keys in all of the
    units.

    The keys are divided into buckets, so that the keys of one bucket fit into memory, whatever the number of keys. Each
    bucket reads all keys once. The result takes 8 bytes for each record that is kept.
    """
    records = sum(unit.record_count for unit in units)
    size = sum(each.bytes for unit in units for each in unit.rewriting.inputs)
    buckets = 1 + max(records // _BUCKET_RECORDS, size // _BUCKET_BYTES)
    slices = [piece for unit in units for piece in unit.rewriting.slices]
    found = [_last_of_bucket(Fetcher(log_dirs).read(slices, _KEYS), bucket, buckets) for bucket in range(buckets)]
    last = np.sort(np.concatenate(found))
    for unit in units:
        first, end = np.searchsorted(last, [unit.rewriting.base_offset, unit.rewriting.end_offset])
        yield last[first:end]


def _last_of_bucket(batches: Iterator[pa.RecordBatch], bucket: int, buckets: int) -> Offsets:
    last = _LAST.empty_table()
    waiting: list[pa.Table] = []
    waiting_bytes = 0
    for batch in batches:
        mine = pc.is_valid(batch.column("key"))
        if buckets > 1:
            mine = pc.and_(mine, pa.array(_bucket_of(batch.column("key"), buckets) == bucket))
        rows = pa.Table.from_batches([batch]).filter(mine).cast(_LAST)
        waiting.append(rows)
        waiting_bytes += rows.nbytes
        if waiting_bytes > max(_WAITING_BYTES, last.nbytes):
            last = _last_of([last, *waiting])
            waiting, waiting_bytes = [], 0
    return np.asarray(_last_of([last, *waiting]).column("offset"))


def _last_of(tables: Sequence[pa.Table]) -> pa.Table:
    """Return the rows that are the last of their keys. The tables, and the result, are ordered by offset."""
    rows = pa.concat_tables(tables).combine_chunks()
    return rows.take(current_records(pa.concat_arrays(rows.column("key").chunks)))


def _bucket_of(keys: pa.Array, buckets: int) -> npt.NDArray[np.int64]:
    """Return the bucket of each key. It depends on other bits of the hash than the partition: those are the same for
    all keys of a partition.
    """
    mixed = murmur2(keys) * np.uint32(0x9E3779B1)
    return np.asarray((mixed >> np.uint32(8)).astype(np.int64) % buckets)
