"""Rewrites segments: one file replaces a run of a partition's segments, with the same offsets and all or some records.

Sealing, merging, compaction and erasing all use it. It has three steps, which may run in three places:

    plan     in one snapshot: the segments, their files, and the log dirs of the ISR that are to have the new file
             (`rewrite_plan`)
    write    anywhere, also in a Spark task: reads the inputs, writes the file into all those log dirs
    swap     one transaction, which changes nothing unless the inputs are still the log and the ISR is still the same

So appends, readers and other maintenance do not notice: until the swap no metadata names the file, and after it none
names the inputs, which stay on disk for file.delete.delay.ms.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.lease import Fence, unfenced
from spark_log.cluster.log_dir import LogDir, LogDirInfo, segment_path
from spark_log.cluster.log_dir_failures import report_failure
from spark_log.errors import WriteIdExpiredError
from spark_log.failpoints import failpoint
from spark_log.log.append.append_transaction import check_write_id
from spark_log.log.append.encoding import Encoding, SegmentFiles
from spark_log.log.append.write_ids import Writer
from spark_log.log.partitions.partition_rows import lock_partitions, save_partitions
from spark_log.log.partitions.replication_rules import rewrite
from spark_log.log.partitions.retired_files import is_fresh, retire_files
from spark_log.log.records.arrow_numpy import from_numpy, to_numpy
from spark_log.log.records.inline import decode as decode_inline
from spark_log.log.records.inline import decoded_bytes
from spark_log.log.records.schema import RECORD_SCHEMA, read_schema, typed_fields
from spark_log.log.records.segment_write import ROW_GROUP_BYTES, SegmentFacts
from spark_log.log.segments.fetcher import Fetcher
from spark_log.log.segments.segment_rows import delete_blobs, delete_segments, insert_segments
from spark_log.log.segments.slices import LogDirs, Slice
from spark_log.log.segments.typed_columns import has_present_columns
from spark_log.maintenance.rewrite.rewrite_plan import Rewriting
from spark_log.metadata.sql_columns import SEGMENT
from spark_log.tables.seen_offsets import listed_above_tail, overlaps, seen_offsets

_TABLE_RECORDS = 65_536
_TYPED_ZSTD_LEVEL = 8
"""Typed columns make files 1.44 times as large, but only 1.24 times with level 8. Level 9 gains nothing more."""
_READ = ("offset", *RECORD_SCHEMA.names)


@dataclass(frozen=True)
class Written:
    """A file that a rewriting has written: its name and facts, and the brokers whose log dirs have it or failed."""

    name: str
    facts: SegmentFacts
    brokers: frozenset[int]
    failed: frozenset[int]


Write = Callable[[Rewriting, str, LogDirs], Written]
"""Runs `write`, in this process or in a Spark task."""

Keep = Callable[[pa.Int64Array, pa.Table], pa.BooleanArray]
"""Marks the records that stay, given their offsets and the records (RECORD_SCHEMA). The result has no nulls."""


def write(
    rewriting: Rewriting,
    name: str,
    log_dirs: LogDirs,
    open_: Callable[[LogDirInfo], LogDir],
    keep: Keep | None = None,
) -> Written:
    """Write the file under the unused name `name`; also runs on executors. It needs memory for a row group or two.

    `keep` selects the records that stay; without it all stay. A bad replica of an input is skipped, and repaired.
    Raises CorruptRecordError, StorageUnavailableError or LogDirMismatchError if all replicas or log dirs fail.
    """
    path = segment_path(rewriting.topic.folder, rewriting.partition, name)
    targets = {broker_id: log_dirs[log_dir_id] for broker_id, log_dir_id in rewriting.log_dirs.items()}
    files = SegmentFiles(targets, open_, path, _encoding(rewriting))
    try:
        for offsets, records in read(rewriting.slices, log_dirs):
            if keep is not None:
                stays = keep(offsets, records)
                offsets, records = offsets.filter(stays), records.filter(stays)
            files.append(records, offset_deltas(offsets, rewriting.base_offset))
        facts = files.commit()
    except BaseException:
        files.abort()
        raise
    return Written(name, facts, files.brokers, frozenset(files.failures))


def _encoding(rewriting: Rewriting) -> Encoding:
    """Return the topic's encoding. A file that replaces typed files gets a higher zstd level, unless one is set."""
    topic, encoding = rewriting.topic, Encoding.of(rewriting.topic)
    new = rewriting.inputs[0].inline or topic.columns is None
    if new or encoding.codec != "zstd" or "compression.zstd.level" in topic.overrides:
        return encoding
    return replace(encoding, level=_TYPED_ZSTD_LEVEL)


def offset_deltas(offsets: pa.Int64Array, base_offset: int) -> pa.Int64Array:
    """Return the offsets relative to the file's base offset."""
    return from_numpy(to_numpy(offsets) - base_offset)


def read(slices: Sequence[Slice], log_dirs: LogDirs) -> Iterator[tuple[pa.Int64Array, pa.Table]]:
    """Yield offsets and records (RECORD_SCHEMA) of the slices, in order, many at a time: about ROW_GROUP_BYTES, so that
    large records do not fill the memory. Records of files with the topic's present columns have the typed columns,
    which are copied; those of other files must be decoded.
    """
    fetcher = Fetcher(log_dirs)
    waiting: list[pa.Table] = []
    count = size = 0
    for table in _tables(fetcher, slices):
        full = count >= _TABLE_RECORDS or size >= ROW_GROUP_BYTES
        if waiting and (full or table.num_columns != waiting[0].num_columns):
            yield _split(waiting)
            waiting, count, size = [], 0, 0
        waiting.append(table)
        count, size = count + table.num_rows, size + table.nbytes
    if count:
        yield _split(waiting)


def _split(tables: Sequence[pa.Table]) -> tuple[pa.Int64Array, pa.Table]:
    whole = pa.concat_tables(tables)
    schema = pa.schema([*RECORD_SCHEMA, *typed_fields(whole.schema)])
    return whole.column("offset").combine_chunks(), whole.select(schema.names).cast(schema)


def _tables(fetcher: Fetcher, slices: Iterable[Slice]) -> Iterator[pa.Table]:
    for inline, pieces in groupby(slices, key=lambda piece: piece.data is not None):
        if inline:
            yield from _inline_tables(pieces)
            continue
        for piece in pieces:
            copied = piece.columns.fields if piece.columns is not None and has_present_columns(piece) else None
            schema = read_schema(True, _READ if copied is None else (*_READ, *copied.names), copied)
            for batch in fetcher.read([piece], schema):
                yield pa.Table.from_batches([batch])


def _inline_tables(blobs: Iterable[Slice]) -> Iterator[pa.Table]:
    """Yield the records of blobs, many blobs in one table: thousands of chunks would cost more than the copy.

    A table has at most ROW_GROUP_BYTES or one blob: Arrow cannot join headers of more than 2 GiB.
    """
    tables: list[pa.Table] = []
    offsets: list[npt.NDArray[np.int64]] = []
    count = size = 0
    for blob in blobs:
        assert blob.data is not None
        bytes_here = decoded_bytes(blob.data)
        if tables and (count >= _TABLE_RECORDS or size + bytes_here > ROW_GROUP_BYTES):
            yield _joined(tables, offsets)
            tables, offsets, count, size = [], [], 0, 0
        tables.append(decode_inline(blob.data, blob.checksum, blob.record_count))
        offsets.append(np.arange(blob.base_offset, blob.end, dtype=np.int64))
        count, size = count + blob.record_count, size + bytes_here
    if tables:
        yield _joined(tables, offsets)


def _joined(tables: Sequence[pa.Table], offsets: Sequence[npt.NDArray[np.int64]]) -> pa.Table:
    whole = pa.concat_tables(tables).combine_chunks()
    return whole.append_column(pa.field("offset", pa.int64()), from_numpy(np.concatenate(offsets)))


def swap(
    cluster: Cluster,
    write_id: str,
    rewriting: Rewriting,
    written: Written,
    fence: Fence = unfenced,
    *,
    erases: bool = False,
) -> bool:
    """Replace the inputs with the file. Returns False if the swap is refused: then the file is deleted.

    It is refused if the inputs are no longer in the log, the ISR has changed, too few of the ISR have the file, or the
    write id has expired (see `replication_rules.rewrite`). Unless it `erases`, it is also refused if a table lists one
    of the inputs above a tail. An erase waits for no table: streams of such a table may see the other records again.
    """
    for broker_id in written.failed:
        report_failure(cluster.store, rewriting.log_dirs[broker_id], written.facts.bytes)
    try:
        swapped = cluster.store.transact(
            lambda connection: _swap(connection, cluster, write_id, rewriting, written, erases), fence=fence
        )
    except WriteIdExpiredError:
        swapped = False
    if not swapped:
        discard(cluster, rewriting, written)
    return swapped


def write_and_swap(
    cluster: Cluster, writer: Writer, rewriting: Rewriting, fence: Fence, points: str, write_file: Write | None = None
) -> Written | None:
    """Write the file, by default in this process, and `swap` it in. Returns None if that is refused. `points` is the
    first part of the names of the failpoints.
    """
    write_id, name = writer.file_name()
    written = (write_file or partial(write, open_=cluster.log_dir))(rewriting, name, cluster.log_dirs())
    failpoint(f"{points}.file-written")
    if not swap(cluster, write_id, rewriting, written, fence):
        return None
    failpoint(f"{points}.committed")
    return written


def discard(cluster: Cluster, rewriting: Rewriting, written: Written) -> None:
    """Delete a file that no metadata names and none will name: written under a live write id, but not swapped in."""
    path = segment_path(rewriting.topic.folder, rewriting.partition, written.name)
    infos = cluster.log_dirs()
    for broker_id in written.brokers:
        if rewriting.log_dirs[broker_id] in infos:
            cluster.log_dir(infos[rewriting.log_dirs[broker_id]]).delete(path)


def _swap(
    connection: sa.Connection,
    cluster: Cluster,
    write_id: str,
    rewriting: Rewriting,
    written: Written,
    erases: bool,
) -> bool:
    topic, inputs = rewriting.topic, rewriting.inputs
    key = topic.topic_id, rewriting.partition
    before = lock_partitions(connection, [key])
    if key not in before:
        return False
    have_it = [rewriting.log_dirs[broker_id] for broker_id in written.brokers]
    start, end = rewriting.base_offset, rewriting.end_offset
    after = rewrite(before[key], start, end, have_it, rewriting.partition_epoch)
    if after is None:
        return False
    here = (
        (SEGMENT.topic_id == key[0])
        & (SEGMENT.partition == key[1])
        & (SEGMENT.base_offset >= start)
        & (SEGMENT.base_offset < end)
    )
    query = sa.select(SEGMENT.name, SEGMENT.appended_ms).where(here).order_by(SEGMENT.base_offset)
    appended_ms: dict[str, int] = dict(tuple(row) for row in connection.execute(query))
    names = list(appended_ms)
    if names != [segment.name for segment in inputs]:
        return False
    if any(start < offset < end for offset in seen_offsets(connection, topic, key[1])):
        return False  # for the stream of a Delta table, some records of the file would be new and some not
    if not inputs[0].inline and not erases:
        listed = listed_above_tail(connection, topic, key[1])
        if overlaps(start, end, listed):
            return False  # the same, or all of them would be new again
    check_write_id(connection, write_id, release=False)
    delete_segments(connection, *key, start, end)
    if inputs[0].inline:
        delete_blobs(connection, names)
        after = after._replace(tail_bytes=after.tail_bytes - sum(segment.bytes for segment in inputs))
    else:
        now = cluster.store.clock(connection)
        fresh = {name for name in names if is_fresh(appended_ms[name], now)}
        retire_files(connection, topic, key[1], names, after.change, now, fresh=fresh)
    save_partitions(connection, before, {key: after})
    insert_segments(connection, [_row(rewriting, written, after.change)])
    return True


def _row(rewriting: Rewriting, written: Written, change: int) -> dict[str, Any]:
    inputs = rewriting.inputs
    return {
        "topic_id": rewriting.topic.topic_id,
        "partition": rewriting.partition,
        "base_offset": rewriting.base_offset,
        "end_offset": rewriting.end_offset,
        "timestamp_type": inputs[0].timestamp_type,
        "leader_epoch": inputs[-1].leader_epoch,
        "name": written.name,
        "inline": False,
        "change": change,
        "rewritten": not inputs[0].inline,
        "appended_ms": max(each.appended_ms for each in inputs),
        **vars(written.facts),
    }
