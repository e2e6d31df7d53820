"""Decompresses the records of a batch, with a limit of the decompressed size."""

import pyarrow as pa

from spark_log.errors import InvalidRecordError, MessageSizeTooLargeError
from spark_log.log.records.kafka_batch.header import CompressionType

DECOMPRESSED_BYTES_MAX = 128 * 1024 * 1024
_PART_BYTES = 1024 * 1024

_STREAMS: dict[CompressionType, str] = {
    CompressionType.GZIP: "gzip",
    CompressionType.LZ4: "lz4",
    CompressionType.ZSTD: "zstd",
}
_XERIAL = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES = 16
"""The magic number, then two version numbers of 4 bytes each."""
_BLOCK_BYTES = 1024
"""The bytes that a block of xerial counts at least, because each takes time. Clients make blocks of 32 KiB."""


class Budget:
    """The number of bytes to which the batches of one call may still be decompressed. A malformed batch counts too,
    because its decompression took time.
    """

    def __init__(self, bytes_max: int = DECOMPRESSED_BYTES_MAX) -> None:
        self.bytes_max = self.left = bytes_max

    def spend(self, size: int) -> None:
        """Subtract `size` bytes. Raise MessageSizeTooLargeError if fewer are left."""
        self.left -= size
        if self.left < 0:
            self.left = 0
            raise MessageSizeTooLargeError(f"records have more than {self.bytes_max} bytes when they are decompressed")


def decompress(data: memoryview, compression: CompressionType, budget: Budget) -> memoryview | bytes:
    """Return the decompressed records in `data`. Data without compression does not count for the budget.

    Raises InvalidRecordError if the data cannot be decompressed; MessageSizeTooLargeError as soon as the budget is
    exceeded, so that memory is bounded.
    """
    if compression is CompressionType.NONE:
        return data
    try:
        if compression is CompressionType.SNAPPY:
            return _snappy(data, budget)
        return _stream(data, _STREAMS[compression], budget)
    except (OSError, pa.ArrowException, ValueError) as error:
        raise InvalidRecordError(f"records cannot be decompressed as {compression.name.lower()}: {error}") from None


def _stream(data: memoryview, codec: str, budget: Budget) -> memoryview | bytes:
    parts: list[pa.Buffer] = []
    with pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(data)), codec) as stream:
        # not read(), which never frees its bytes if the stream is malformed (pyarrow 26)
        while len(part := stream.read_buffer(_PART_BYTES)):
            budget.spend(len(part))
            parts.append(part)
    return memoryview(parts[0]).cast("B") if len(parts) == 1 else b"".join(parts)


def _snappy(data: memoryview, budget: Budget) -> bytes:
    if bytes(data[: len(_XERIAL)]) != _XERIAL:
        return _block(data, budget)
    blocks, at = [], _XERIAL_HEADER_BYTES
    while at < len(data):
        length = int.from_bytes(data[at : at + 4], "big")
        block = data[at + 4 : at + 4 + length]
        if len(block) < length or not length:
            raise ValueError("a block is cut off")
        blocks.append(_block(block, budget, _BLOCK_BYTES))
        at += 4 + length
    return b"".join(blocks)


def _block(block: memoryview, budget: Budget, bytes_min: int = 0) -> bytes:
    """Decompress a raw snappy block, which begins with its decompressed size as a varint. It counts `bytes_min` bytes
    at least.
    """
    size = shift = 0
    for byte in block[:5]:
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    else:
        raise ValueError("a block without its size")
    budget.spend(max(size, bytes_min))
    return pa.decompress(pa.py_buffer(block), decompressed_size=size, codec="snappy", asbytes=True)  # type: ignore[no-any-return]
