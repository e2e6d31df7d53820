"""Encodes small appends as blobs for the metadata store, and decodes blobs. A record's offset is base_offset + row.

A blob is a header and one Arrow IPC record batch message of RECORD_SCHEMA. A blob does not contain the schema, which
would be most of a small blob: `_MAGIC` identifies the schema, and a change of the schema needs another magic.

    4 bytes magic | 1 byte codec (0 none, 1 zstd) | 3 bytes 0 | 8 bytes length of the message, little-endian | message

The message is compressed as a whole, so that a too large message can be refused before it is decompressed.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa
import xxhash

from spark_log.errors import CorruptRecordError, InvalidConfigurationError, InvalidRecordError
from spark_log.log.records.arrow_numpy import to_numpy
from spark_log.log.records.read_shape import BATCH_RECORDS, ReadShape
from spark_log.log.records.schema import MICROSECONDS_PER_MILLISECOND, RECORD_SCHEMA
from spark_log.log.records.segment_open import corrupt_on_bad_bytes
from spark_log.log.records.segment_write import NO_TIMESTAMP_MS, SegmentFacts

BLOB_BYTES_MAX = 256 * 1024 * 1024
"""Default limit of a blob's decompressed size."""

COMPRESS_BYTES_MIN = 4096
"""Smaller messages are not compressed: it would take time and save few bytes."""

_TIMESTAMP_COLUMN = RECORD_SCHEMA.get_field_index("timestamp")
_MAGIC = b"SLB1"
_HEADER = struct.Struct("<4sB3xQ")
_CODECS = ("none", "zstd")


class InlineBlob(NamedTuple):
    """An encoded blob and its metadata."""

    data: bytes
    facts: SegmentFacts


def encode(records: pa.Table, codec: str = "zstd") -> InlineBlob:
    """Return `records` (RECORD_SCHEMA, timestamps not null) as a blob.

    `codec` is none or zstd; with zstd, messages that are small or do not shrink by an eighth stay uncompressed. Raises
    InvalidRecordError for another schema or a null timestamp, InvalidConfigurationError for another codec.
    """
    if codec not in _CODECS:
        raise InvalidConfigurationError(f"codec: expected one of {', '.join(_CODECS)}, got {codec!r}")
    if not records.schema.equals(RECORD_SCHEMA):
        raise InvalidRecordError(f"records: expected columns {RECORD_SCHEMA}, got {records.schema}")
    batch = _owned(records)
    timestamps = batch.column(_TIMESTAMP_COLUMN)
    if timestamps.null_count:
        raise InvalidRecordError(f"timestamp: null in {timestamps.null_count} records")
    body = batch.serialize()
    length, used = body.size, 0
    if codec == "zstd" and length >= COMPRESS_BYTES_MIN:
        packed = pa.compress(body, codec="zstd")
        # Bytes that do not shrink by an eighth are not worth decompressing on every read.
        if packed.size <= length - length // 8:
            body, used = packed, 1
    data = b"".join((_HEADER.pack(_MAGIC, used, length), body))
    low = high = NO_TIMESTAMP_MS
    if records.num_rows:
        # Read as integers: creating datetime objects takes longer than the rest of a small blob.
        micros = to_numpy(timestamps)
        # a single record needs no reductions of NumPy, which would take a fifth of the time of its blob
        least, most = (micros.min(), micros.max()) if len(micros) > 1 else (micros[0], micros[0])
        low = int(least) // MICROSECONDS_PER_MILLISECOND
        high = int(most) // MICROSECONDS_PER_MILLISECOND
    facts = SegmentFacts(records.num_rows, len(data), low, high, _CODECS[used], xxhash.xxh3_128_hexdigest(data))
    return InlineBlob(data, facts)


def decode(data: bytes, checksum: str, record_count: int, max_bytes: int = BLOB_BYTES_MAX) -> pa.Table:
    """Return the records of a blob as a table of RECORD_SCHEMA. The table of an uncompressed blob shares its memory.

    `checksum` is the blob's xxh3_128 in hex. Raises CorruptRecordError unless checksum and record count match, the
    decompressed size is at most `max_bytes` and the content is valid Arrow data.
    """
    found = xxhash.xxh3_128_hexdigest(data)
    if found != checksum:
        raise CorruptRecordError(f"inline blob: checksum {found}, expected {checksum}")
    if len(data) < _HEADER.size:
        raise CorruptRecordError(f"inline blob: {len(data)} bytes are too few")
    magic, codec, length = _HEADER.unpack_from(data)
    if magic != _MAGIC or codec >= len(_CODECS):
        raise CorruptRecordError(f"inline blob: starts with {data[:5]!r}, expected {_MAGIC!r} and a known codec")
    if length > max_bytes:
        raise CorruptRecordError(f"inline blob: {length} bytes decompressed, at most {max_bytes} are allowed")
    with corrupt_on_bad_bytes("inline blob"):
        body = pa.py_buffer(data).slice(_HEADER.size)
        if codec:
            body = pa.decompress(body, decompressed_size=length, codec=_CODECS[codec])
        if body.size != length:
            raise CorruptRecordError(f"inline blob: a message of {body.size} bytes, expected {length}")
        batch = pa.ipc.read_record_batch(body, RECORD_SCHEMA)
        batch.validate(full=True)
    if batch.num_rows != record_count:
        raise CorruptRecordError(f"inline blob: {batch.num_rows} records, expected {record_count}")
    return pa.Table.from_batches([batch])


def decoded_bytes(data: bytes) -> int:
    """Return the size in bytes of a blob's records in memory, as its header states it; 0 for a blob without header."""
    return _HEADER.unpack_from(data)[2] if len(data) >= _HEADER.size else 0


def slice_batches(records: pa.Table, shape: ReadShape, *, start: int, end: int) -> Iterator[pa.RecordBatch]:
    """Yield the decoded blob's records with start <= offset < end, as `read_slice` does for a segment file."""
    stored = _as_batch(records.select(shape.stored_columns))
    first, last = max(0, start - shape.base_offset), min(records.num_rows, end - shape.base_offset)
    for begin in range(first, last, BATCH_RECORDS):
        yield shape.batch(stored, 0, begin, min(begin + BATCH_RECORDS, last))


def _owned(table: pa.Table) -> pa.RecordBatch:
    """Return the table as a batch that owns its buffers.

    Arrow pads the buffers of a message to 64 bytes. In a slice it pads with the bytes that follow, which belong to
    other records, perhaps of another client and topic.
    """
    batches = _batches(table)
    # a single batch would not be copied
    return pa.concat_batches([*batches, batches[0].slice(0, 0)])


def _as_batch(table: pa.Table) -> pa.RecordBatch:
    batches = _batches(table)
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _batches(table: pa.Table) -> list[pa.RecordBatch]:
    return table.to_batches() or [pa.RecordBatch.from_pylist([], schema=table.schema)]
