"""Reads and writes the header of a record batch, and computes the checksum."""

import struct
from enum import IntEnum
from typing import NamedTuple

import google_crc32c

from spark_log.errors import CorruptRecordError, InvalidRecordError
from spark_log.log.records.schema import TimestampType

_HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES = _HEADER.size
_LENGTH_END = 12
"""Bytes of a batch that its field batchLength does not count: baseOffset and batchLength itself."""
_CHECKED_FROM = 21
"""The checksum covers the bytes from the attributes to the end of the batch."""
RECORD_BYTES_MIN = 6
MAGIC = 2
NO_PRODUCER_ID = -1
NO_SEQUENCE = -1
NO_TIMESTAMP = -1

_CODEC_MASK, _LOG_APPEND_TIME, _TRANSACTIONAL, _CONTROL = 0x07, 0x08, 0x10, 0x20


class CompressionType(IntEnum):
    """Kafka's CompressionType, with its numbers."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class BatchHeader(NamedTuple):
    """The header fields of a record batch, in their order on the wire."""

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def end(self) -> int:
        """Size of the whole batch in bytes."""
        return self.batch_length + _LENGTH_END

    @property
    def compression(self) -> CompressionType:
        """The compression type. Raises InvalidRecordError for a number that Kafka does not define."""
        try:
            return CompressionType(self.attributes & _CODEC_MASK)
        except ValueError:
            raise InvalidRecordError(f"unknown compression type {self.attributes & _CODEC_MASK}") from None

    @property
    def timestamp_type(self) -> TimestampType:
        return TimestampType.LOG_APPEND_TIME if self.attributes & _LOG_APPEND_TIME else TimestampType.CREATE_TIME

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & _TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & _CONTROL)


def read_header(batch: memoryview) -> BatchHeader:
    """Verify the checksum of `batch`, which must be exactly one record batch, and return its header.

    Raises CorruptRecordError for a batch that is cut off or damaged, InvalidRecordError for another format version or
    for bytes after the batch.
    """
    if len(batch) <= 16:
        raise CorruptRecordError(f"a record batch of {len(batch)} bytes is too short")
    magic = batch[16]
    if magic != MAGIC:
        raise InvalidRecordError(f"record batches of format version {magic}: only version {MAGIC} is accepted")
    if len(batch) < HEADER_BYTES:
        raise CorruptRecordError(f"a record batch of {len(batch)} bytes is too short")
    header = BatchHeader(*_HEADER.unpack_from(batch))
    if header.end > len(batch) or header.batch_length < HEADER_BYTES - _LENGTH_END:
        raise CorruptRecordError(f"the length in a record batch is {header.end} bytes, but the batch has {len(batch)}")
    if header.end < len(batch):
        raise InvalidRecordError("more than one record batch for a partition")
    if checksum(batch[_CHECKED_FROM:]) != header.crc:
        raise CorruptRecordError("the checksum of a record batch does not match")
    return header


def claimed_compression(batch: memoryview | bytes) -> int:
    """Return the compression type in the header of a batch that is not verified, 0 if the batch is too short."""
    return batch[_CHECKED_FROM + 1] & _CODEC_MASK if len(batch) >= HEADER_BYTES else 0


def claimed_records(batch: memoryview | bytes) -> int:
    """Return the number of records in the header of a batch that is not verified, but at most as many as its bytes can
    hold uncompressed; 0 if the batch is too short.
    """
    if len(batch) < HEADER_BYTES:
        return 0
    count = int.from_bytes(batch[HEADER_BYTES - 4 : HEADER_BYTES], "big", signed=True)
    return max(0, min(count, len(batch) // RECORD_BYTES_MIN))


def checksum(data: memoryview | bytes) -> int:
    """Return the CRC-32C of the bytes."""
    return int(google_crc32c.value(bytes(data)))


def packed(
    records: bytes,
    *,
    base_offset: int,
    last_offset: int,
    leader_epoch: int,
    timestamp_type: TimestampType,
    base_timestamp_ms: int = NO_TIMESTAMP,
    max_timestamp_ms: int = NO_TIMESTAMP,
    record_count: int = 0,
) -> bytes:
    """Return a whole batch without a producer id and without compression. `records` are its encoded records."""
    attributes = _LOG_APPEND_TIME if timestamp_type == TimestampType.LOG_APPEND_TIME else 0
    tail = struct.pack(
        ">hiqqqhii",
        attributes,
        last_offset - base_offset,
        base_timestamp_ms,
        max_timestamp_ms,
        NO_PRODUCER_ID,
        -1,
        NO_SEQUENCE,
        record_count,
    )
    crc = google_crc32c.extend(google_crc32c.value(tail), records)
    length = HEADER_BYTES - _LENGTH_END + len(records)
    return struct.pack(">qiibI", base_offset, length, leader_epoch, MAGIC, crc) + tail + records
