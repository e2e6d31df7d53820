"""The records of a batch, decompressed, with a bound on what a small frame may become."""

import pyarrow as pa

from spark_log.errors import InvalidRecordError, MessageSizeTooLargeError
from spark_log.records.kafka_batch.header import CompressionType

DECOMPRESSED_BYTES_MAX = 128 * 1024 * 1024

_STREAMS: dict[CompressionType, str] = {
    CompressionType.GZIP: "gzip",
    CompressionType.LZ4: "lz4",
    CompressionType.ZSTD: "zstd",
}
_XERIAL = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES = 16
"""The magic, then two version numbers of 4 bytes."""


def decompress(
    data: memoryview, compression: CompressionType, bytes_max: int = DECOMPRESSED_BYTES_MAX
) -> memoryview | bytes:
    """The records in `data`. InvalidRecordError if it cannot be decompressed, MessageSizeTooLargeError above
    `bytes_max`, of which not more than that is held in memory.
    """
    if compression is CompressionType.NONE:
        return data
    try:
        if compression is CompressionType.SNAPPY:
            found = _snappy(data, bytes_max)
        else:
            found = _stream(data, _STREAMS[compression], bytes_max)
    except (OSError, pa.ArrowException, ValueError) as error:
        raise InvalidRecordError(f"records cannot be decompressed as {compression.name.lower()}: {error}") from None
    if len(found) > bytes_max:
        raise MessageSizeTooLargeError(f"records have more than {bytes_max} bytes when they are decompressed")
    return found


def _stream(data: memoryview, codec: str, bytes_max: int) -> bytes:
    with pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(data)), codec) as stream:
        return stream.read(bytes_max + 1)  # type: ignore[no-any-return]


def _snappy(data: memoryview, bytes_max: int) -> bytes:
    if bytes(data[: len(_XERIAL)]) != _XERIAL:
        return _block(data, bytes_max)
    blocks, size, at = [], 0, _XERIAL_HEADER_BYTES
    while at < len(data):
        length = int.from_bytes(data[at : at + 4], "big")
        block = data[at + 4 : at + 4 + length]
        if len(block) < length or not length:
            raise ValueError("a block is cut off")
        blocks.append(_block(block, bytes_max - size))
        size += len(blocks[-1])
        at += 4 + length
        if size > bytes_max:
            break
    return b"".join(blocks)


def _block(block: memoryview, bytes_max: int) -> bytes:
    """A raw snappy block; it begins with its decompressed size as a varint."""
    size = shift = 0
    for byte in block[:5]:
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    else:
        raise ValueError("a block without its size")
    if size > bytes_max:
        raise MessageSizeTooLargeError(f"records have more than {bytes_max} bytes when they are decompressed")
    return pa.decompress(pa.py_buffer(block), decompressed_size=size, codec="snappy", asbytes=True)  # type: ignore[no-any-return]
