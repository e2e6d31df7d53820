"""Copies records from one cluster to another with the same offsets. This runs on executors: it needs the log dirs of
both clusters, and no metadata store.

A piece of a partition becomes one batch: a segment file in the log dirs of the target's ISR, or, if it is small and
without gaps, a blob. The append accepts the batch only at its offsets (`Batch.offsets`).
"""

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_log.cluster.log_dir import open_log_dir, segment_path
from spark_log.errors import LogDirMismatchError, SourceUnavailableError, StorageUnavailableError
from spark_log.ids import OffsetRange
from spark_log.log.append.encoding import Encoding, SegmentFiles, Target, blob_batch, encode_inline, segment_batch
from spark_log.log.append.rules import Batch
from spark_log.log.records.schema import RECORD_SCHEMA, read_schema
from spark_log.log.segments.fetcher import Fetcher
from spark_log.log.segments.slices import LogDirs, Slice

PIECE_OFFSETS_MAX = 2**31
"""The maximum number of offsets in a piece, because offset_delta is an int32."""

_SCHEMA = read_schema(True, ["offset", *RECORD_SCHEMA.names])


@dataclass(frozen=True)
class Piece:
    """Records with start <= offset < end of a partition, all of one timestamp type. There may be fewer than
    end - start, or none, because compaction has removed records.
    """

    start: int
    end: int
    timestamp_type: int
    slices: tuple[Slice, ...]


@dataclass(frozen=True)
class Transfer:
    """The task to copy a piece to `target`. It can be pickled. `write_id` is the prefix of the file's name."""

    write_id: str
    target: Target
    encoding: Encoding
    piece: Piece
    source_log_dirs: LogDirs
    target_log_dirs: LogDirs


@dataclass(frozen=True)
class Transferred:
    """The batch to append, with its bytes if it is inline. `record_bytes` is the size of keys and values."""

    batch: Batch
    blob: bytes | None
    record_bytes: int


def cut_pieces(slices: Sequence[Slice], where: OffsetRange, bytes_max: int) -> list[Piece]:
    """Cut the range into adjacent pieces of about `bytes_max` bytes (more if one slice is larger) and at most
    PIECE_OFFSETS_MAX offsets each. `slices` has the range's slices by offset, possibly with gaps before and between.
    """
    pieces: list[Piece] = []
    waiting: list[Slice] = []
    waiting_bytes = 0
    start = where.start

    def close(end: int) -> None:
        nonlocal start, waiting, waiting_bytes
        if start < end:
            pieces.append(Piece(start, end, waiting[0].timestamp_type if waiting else 0, tuple(waiting)))
        start, waiting, waiting_bytes = end, [], 0

    for piece in slices:
        size = _share(piece)
        if waiting and (
            piece.timestamp_type != waiting[0].timestamp_type
            or waiting_bytes + size > bytes_max
            or piece.end - start > PIECE_OFFSETS_MAX
        ):
            close(waiting[-1].end)
        while piece.end - start > PIECE_OFFSETS_MAX:
            close(min(piece.start, start + PIECE_OFFSETS_MAX))
        waiting.append(piece)
        waiting_bytes += size
    close(where.end)
    return pieces


def _share(piece: Slice) -> int:
    """Estimate the bytes of the slice by its share of the segment's offsets."""
    return -(-piece.size * (piece.end - piece.start) // max(piece.record_count, piece.end - piece.base_offset))


def transfer(task: Transfer) -> Transferred:
    """Write the piece to the target. Deletes the file if that fails.

    Raises CorruptRecordError or SourceUnavailableError if no replica of the source can be read, StorageUnavailableError
    or LogDirMismatchError if no log dir of the target can be written, and NotLeaderForPartitionError if the target
    partition is offline.
    """
    target, piece, encoding = task.target, task.piece, task.encoding
    batches = _batches(task)
    first, few = _few(batches, 16 * encoding.inline_max_bytes)
    if few and sum(batch.num_rows for batch in first) == piece.end - piece.start:  # a blob has no gaps
        blob = encode_inline(_records(first), encoding)
        if blob is not None:
            batch = blob_batch(target.topic_id, target.partition, uuid.uuid4().hex, blob.facts, encoding)
            return Transferred(_placed(batch, piece), blob.data, _record_bytes(first))
    name = f"{task.write_id}-{uuid.uuid4().hex}.parquet"
    path = segment_path(target.folder, target.partition, name)
    files = SegmentFiles(target.choose(task.target_log_dirs), open_log_dir, path, encoding)
    record_bytes = 0
    try:
        while first:
            record_bytes += _record_bytes(first)
            deltas = np.concatenate([batch.column("offset").to_numpy() for batch in first]) - piece.start
            files.append(_records(first), pa.array(deltas))
            first = list(islice(batches, 1))
        written = files.commit()
    except BaseException:
        files.abort()
        raise
    batch = segment_batch(target, name, written, encoding, files.brokers)
    return Transferred(_placed(batch, piece), None, record_bytes)


def _placed(batch: Batch, piece: Piece) -> Batch:
    return batch._replace(timestamp_type=piece.timestamp_type, offsets=OffsetRange(piece.start, piece.end))


def _batches(task: Transfer) -> Iterator[pa.RecordBatch]:
    try:
        for batch in Fetcher(task.source_log_dirs).read(task.piece.slices, _SCHEMA):
            if batch.num_rows:
                yield batch
    except (StorageUnavailableError, LogDirMismatchError) as error:
        raise SourceUnavailableError(f"the source cannot be read: {error}") from error


def _few(batches: Iterator[pa.RecordBatch], bytes_max: int) -> tuple[list[pa.RecordBatch], bool]:
    """Return the first batches, of about `bytes_max` bytes, and whether these are all batches."""
    first: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        first.append(batch)
        size += batch.nbytes
        if size > bytes_max:
            return first, False
    return first, True


def _records(batches: Sequence[pa.RecordBatch]) -> pa.Table:
    return pa.Table.from_batches(batches).select(RECORD_SCHEMA.names).cast(RECORD_SCHEMA)


def _record_bytes(batches: Sequence[pa.RecordBatch]) -> int:
    return sum(
        pc.sum(pc.binary_length(batch.column(name))).as_py() or 0 for batch in batches for name in ("key", "value")
    )
