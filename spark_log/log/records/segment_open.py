"""Opens a segment file and checks everything that can be checked before a page is decoded.

A file is opened only if its size, its footer's digest, its schema, its row count and its declared uncompressed sizes
are what the metadata and the caps below say; pages are verified by their CRC-32 while they are read.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from spark_log.errors import CorruptRecordError, StorageUnavailableError
from spark_log.log.columns.key_and_value import PARTS
from spark_log.log.records import segment_footer
from spark_log.log.records.schema import SEGMENT_SCHEMA, segment_schema

ROW_GROUP_BYTES_MAX = 256 * 1024 * 1024
"""Cap of a row group's uncompressed size: more than a writer's 64 MiB, or one record of 128 MiB, can become."""

COLUMN_BYTES_MAX = ROW_GROUP_BYTES_MAX
"""Cap of one column's uncompressed size in a row group; it also keeps Arrow's 32-bit offsets from overflowing."""

ROW_GROUP_RECORDS_MAX = 1 << 20
FOOTER_BYTES_MAX = 64 * 1024 * 1024
_TAIL_BYTES = 64 * 1024
"""Read at once from the end: footers are mostly smaller, so a remote file is opened with one request."""

_COPY_BYTES = 1024 * 1024

_READ_BYTES = 256 * 1024
"""Read at once of a column of a local file. The file is not mapped: the pages of a mapping count as memory of the
process as long as the file is open, and an input/output error there ends the process.
"""

_OBJECT_STORE_SIGNS = ("AWS Error", "google::cloud::Status", "Azure Error")
"""Text that occurs in every error of Arrow's file systems for S3, GCS and Azure."""


@dataclass(frozen=True)
class ExpectedSegment:
    """The metadata of a segment file. `path` is only for messages; the file is not opened by this name."""

    path: str
    bytes: int
    record_count: int


def open_segment(source: str | Path | pa.NativeFile, expected: ExpectedSegment) -> pq.ParquetFile:
    """The verified file at a local path or behind an opened random-access file of pyarrow.fs.

    Raises CorruptRecordError, naming the path and what differs, and StorageUnavailableError if the file cannot be
    read for a reason that is not in its bytes (missing, permissions, input/output).
    """
    with corrupt_on_bad_bytes(expected.path):
        local = not isinstance(source, pa.NativeFile)
        if local and Path(source).stat().st_size != expected.bytes:
            raise CorruptRecordError(f"{expected.path}: {Path(source).stat().st_size} bytes, expected {expected.bytes}")
        if expected.bytes < segment_footer.TRAILER_BYTES:
            raise CorruptRecordError(f"{expected.path}: {expected.bytes} bytes are too few for a segment")
        file = pa.OSFile(str(source)) if local else source
        metadata = _read_footer(file, expected)
        _check_sizes(metadata, expected)
        parquet = pq.ParquetFile(
            file,
            metadata=metadata,
            pre_buffer=not local,
            page_checksum_verification=True,
            buffer_size=_READ_BYTES if local else 0,
        )
        if not _is_segment(parquet.schema_arrow):
            raise CorruptRecordError(f"{expected.path}: schema is {parquet.schema_arrow}, expected {SEGMENT_SCHEMA}")
    return parquet


def _is_segment(schema: pa.Schema) -> bool:
    """Whether it is SEGMENT_SCHEMA, or that and typed columns."""
    typed: list[pa.Field] = []
    for part in PARTS:
        if part.record in schema.names:
            typed += [pa.field(part.error, pa.string()), schema.field(part.record)]
    return bool(schema.equals(segment_schema(pa.struct(typed))))


def verify_checksum(source: pa.NativeFile, path: str, checksum: str) -> None:
    """Read a whole file and compare its xxh3_128 (hex) with `checksum`: for replica copies and repair."""
    content = xxhash.xxh3_128()
    with corrupt_on_bad_bytes(path):
        source.seek(0)
        while block := source.read(_COPY_BYTES):
            content.update(block)
    if content.hexdigest() != checksum:
        raise CorruptRecordError(f"{path}: checksum {content.hexdigest()}, expected {checksum}")


@contextmanager
def corrupt_on_bad_bytes(path: str) -> Iterator[None]:
    """Turn what pyarrow raises into CorruptRecordError, or into StorageUnavailableError if the system failed."""
    try:
        yield
    except OSError as error:
        # pyarrow raises OSError without errno for bytes that it cannot decode or whose checksum is wrong, and for what
        # an object store answers, which only the text tells apart.
        if error.errno is not None or any(sign in str(error) for sign in _OBJECT_STORE_SIGNS):
            raise StorageUnavailableError(f"{path}: {error}") from error
        raise CorruptRecordError(f"{path}: {error}") from error
    except (pa.ArrowException, ValueError, OverflowError, MemoryError) as error:
        raise CorruptRecordError(f"{path}: {error}") from error


def _read_footer(file: pa.NativeFile, expected: ExpectedSegment) -> pq.FileMetaData:
    size = file.size()
    if size != expected.bytes:
        raise CorruptRecordError(f"{expected.path}: {size} bytes, expected {expected.bytes}")
    tail = file.read_at(min(size, _TAIL_BYTES), max(0, size - _TAIL_BYTES))
    announced = segment_footer.footer_length(tail[-segment_footer.TRAILER_BYTES :], expected.path)
    length = announced + segment_footer.TRAILER_BYTES
    if length > size or length > FOOTER_BYTES_MAX:
        raise CorruptRecordError(
            f"{expected.path}: a footer of {length} bytes in a file of {size}, at most {FOOTER_BYTES_MAX} are allowed"
        )
    footer = tail[-length:] if length <= len(tail) else file.read_at(length, size - length)
    segment_footer.verify(footer, expected.path)
    return pq.read_metadata(pa.BufferReader(footer))


def _check_sizes(metadata: pq.FileMetaData, expected: ExpectedSegment) -> None:
    if metadata.num_rows != expected.record_count:
        raise CorruptRecordError(f"{expected.path}: {metadata.num_rows} records, expected {expected.record_count}")
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    if sum(group.num_rows for group in groups) != metadata.num_rows:
        raise CorruptRecordError(f"{expected.path}: row groups do not add up to {metadata.num_rows} records")
    for number, group in enumerate(groups):
        columns = [group.column(i).total_uncompressed_size for i in range(group.num_columns)]
        total = max(sum(columns), group.total_byte_size)
        if min(columns, default=0) < 0 or max(columns, default=0) > COLUMN_BYTES_MAX or total > ROW_GROUP_BYTES_MAX:
            raise CorruptRecordError(
                f"{expected.path}: row group {number} has {total} bytes uncompressed, at most {ROW_GROUP_BYTES_MAX} "
                f"are allowed"
            )
        if not 0 <= group.num_rows <= ROW_GROUP_RECORDS_MAX:
            raise CorruptRecordError(
                f"{expected.path}: row group {number} has {group.num_rows} records, at most {ROW_GROUP_RECORDS_MAX}"
            )
