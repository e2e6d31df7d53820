"""Finds the current records of the keys of a partition, without Spark and in bounded memory."""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_log.cluster.topics import Topic
from spark_log.log.append.partitioner import murmur2
from spark_log.log.records.arrow_numpy import is_null
from spark_log.log.records.current_rule import CurrentRule
from spark_log.log.records.schema import read_schema
from spark_log.log.records.winners import current_records, short_keys
from spark_log.log.segments.fetcher import Fetcher
from spark_log.log.segments.slices import LogDirs, Slice
from spark_log.maintenance.compaction.unit import Offsets, Unit

_LAST = pa.schema([("key", pa.large_binary()), ("offset", pa.int64())])
_BY_SEQUENCE = pa.schema([*_LAST, ("event", pa.large_binary()), ("sequence", pa.int64())])
"""`event` is the key of a record that may be current (`Candidates.keys`)."""

_BUCKET_RECORDS = 4 << 20
_BUCKET_BYTES = 256 << 20
"""Limit of the records, and of the stored bytes, whose keys are in memory at the same time."""
_WAITING_BYTES = 32 << 20


def find_last_offsets(topic: Topic, units: Sequence[Unit], log_dirs: LogDirs) -> Iterator[Offsets]:
    """Yield, for each unit of a partition, the offsets of its records that stay. These are the current record of each
    key in all of the units and, with sequences, a tombstone that is the last of its key, as it cannot be current.

    The keys are divided into buckets, so that the keys of one bucket fit into memory, whatever the number of keys. Each
    bucket reads all keys once. The result takes 8 bytes for each record that is kept.
    """
    records = sum(unit.record_count for unit in units)
    size = sum(each.bytes for unit in units for each in unit.rewriting.inputs)
    buckets = 1 + max(records // _BUCKET_RECORDS, size // _BUCKET_BYTES)
    slices = [piece for unit in units for piece in unit.rewriting.slices]
    rule = CurrentRule.of(topic.config, topic.columns)
    schema = _BY_SEQUENCE if rule.by_sequence else _LAST
    found = [
        _last_of_bucket(_read(slices, log_dirs, topic, rule), schema, bucket, buckets) for bucket in range(buckets)
    ]
    last = np.sort(np.concatenate(found))
    for unit in units:
        first, end = np.searchsorted(last, [unit.rewriting.base_offset, unit.rewriting.end_offset])
        yield last[first:end]


def _read(slices: Sequence[Slice], log_dirs: LogDirs, topic: Topic, rule: CurrentRule) -> Iterator[pa.RecordBatch]:
    """Yield batches with the columns of _LAST, or those of _BY_SEQUENCE if the rule needs them."""
    if not rule.by_sequence or topic.columns is None:
        for batch in Fetcher(log_dirs).read(slices, read_schema(columns=["key", "offset"])):
            yield pa.RecordBatch.from_arrays([_keys(batch), batch.column("offset")], schema=_LAST)
        return
    schema = read_schema(columns=[*rule.column_names(), "offset"], typed=topic.columns.fields)
    for batch in Fetcher(log_dirs).read(slices, schema):
        candidates = rule.candidates(batch)
        columns = [_keys(batch), batch.column("offset"), candidates.keys, candidates.sequences]
        yield pa.RecordBatch.from_arrays(columns, schema=_BY_SEQUENCE)


def _keys(batch: pa.RecordBatch) -> pa.Array:
    return short_keys(batch.column("key").cast(pa.large_binary()))


def _last_of_bucket(batches: Iterator[pa.RecordBatch], schema: pa.Schema, bucket: int, buckets: int) -> Offsets:
    waiting = [schema.empty_table()]
    """The rows that stay of the batches so far, and those of later batches."""
    waiting_bytes = last_bytes = 0
    for batch in batches:
        mine = pc.is_valid(batch.column("key"))
        if buckets > 1:
            mine = pc.and_(mine, pa.array(_bucket_of(batch.column("key"), buckets) == bucket))
        rows = pa.Table.from_batches([batch]).filter(mine)
        waiting.append(rows)
        waiting_bytes += rows.nbytes
        if waiting_bytes > max(_WAITING_BYTES, last_bytes):
            waiting = [_last_of(waiting)]
            waiting_bytes, last_bytes = 0, waiting[0].nbytes
    return np.asarray(_last_of(waiting).column("offset"))


def _last_of(tables: Sequence[pa.Table]) -> pa.Table:
    """Return the rows that compaction keeps, as `find_last_offsets`. The given rows and these are ordered by offset."""
    rows = pa.concat_tables(tables).combine_chunks()
    keys = pa.concat_arrays(rows.column("key").chunks)
    last = current_records(keys)
    if "sequence" not in rows.column_names:
        return rows.take(last)
    events, sequences = (pa.concat_arrays(rows.column(name).chunks) for name in ("event", "sequence"))
    not_current = last[is_null(events)[last]]
    return rows.take(np.union1d(current_records(events, sequences), not_current))


def _bucket_of(keys: pa.Array, buckets: int) -> npt.NDArray[np.int64]:
    """Return the bucket of each key. It depends on other bits of the hash than the partition does, as the latter are
    the same for all keys of a partition.
    """
    mixed = murmur2(keys) * np.uint32(0x9E3779B1)
    return np.asarray((mixed >> np.uint32(8)).astype(np.int64) % buckets)
