"""Opens a segment file and checks everything that can be checked before a page is decoded.

A file is opened only if its size, row count, schema and footer digest are as expected, and its declared uncompressed
sizes do not exceed the limits below. Pages are verified by their CRC-32 when they are read.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from spark_log.errors import CorruptRecordError, StorageUnavailableError
from spark_log.log.columns.key_and_value import PARTS
from spark_log.log.records import segment_footer
from spark_log.log.records.schema import SEGMENT_SCHEMA, segment_schema

ROW_GROUP_BYTES_MAX = 256 * 1024 * 1024
"""Limit of a row group's uncompressed size. A writer's row group, of 64 MiB in Arrow or one record of 128 MiB, stays
below it.
"""

COLUMN_BYTES_MAX = ROW_GROUP_BYTES_MAX
"""Limit of one column's uncompressed size in a row group. It also keeps Arrow's 32-bit offsets from overflowing."""

ROW_GROUP_RECORDS_MAX = 1 << 20
FOOTER_BYTES_MAX = 64 * 1024 * 1024
_TAIL_BYTES = 64 * 1024
"""Bytes of the first read, from the end of the file. Most footers are smaller, so one request opens a remote file."""

_READ_BYTES = 256 * 1024
"""Buffer size for reading a column of a local file. The file is not memory-mapped: the mapped pages would count as
memory of the process while the file is open, and an input/output error in them would end the process.
"""

_OBJECT_STORE_SIGNS = ("AWS Error", "google::cloud::Status", "Azure Error")
"""Every error of Arrow's file systems for S3, GCS and Azure contains one of these texts."""


@dataclass(frozen=True)
class ExpectedSegment:
    """The metadata that a segment file must match. `path` is only for messages; the file is not opened by it."""

    path: str
    bytes: int
    record_count: int


def open_segment(source: str | Path | pa.NativeFile, expected: ExpectedSegment) -> pq.ParquetFile:
    """Open and verify a segment file, given as a local path or as an opened random-access file of pyarrow.fs.

    Raises CorruptRecordError, which names the path and the difference, and StorageUnavailableError if the file cannot
    be read for a reason other than its content (no such file, no permission, an I/O error).
    """
    with corrupt_on_bad_bytes(expected.path):
        local = not isinstance(source, pa.NativeFile)
        if local and Path(source).stat().st_size != expected.bytes:
            raise CorruptRecordError(f"{expected.path}: {Path(source).stat().st_size} bytes, expected {expected.bytes}")
        if expected.bytes < segment_footer.TRAILER_BYTES:
            raise CorruptRecordError(f"{expected.path}: {expected.bytes} bytes are too few for a segment")
        file = pa.OSFile(str(source)) if local else source
        metadata = pq.read_metadata(pa.BufferReader(_verified_footer(file, expected)))
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


def check_footer(source: str | pa.NativeFile, expected: ExpectedSegment) -> None:
    """Verify the size and the footer of a segment file for a reader that does not do so. Raises like `open_segment`."""
    with corrupt_on_bad_bytes(expected.path), pa.OSFile(source) if isinstance(source, str) else source as file:
        _verified_footer(file, expected)


def _is_segment(schema: pa.Schema) -> bool:
    """Return whether the schema is SEGMENT_SCHEMA, with or without typed columns."""
    typed: list[pa.Field] = []
    for part in PARTS:
        if part.record in schema.names:
            typed += [pa.field(part.error, pa.string()), schema.field(part.record)]
    return bool(schema.equals(segment_schema(pa.struct(typed))))


@contextmanager
def corrupt_on_bad_bytes(path: str) -> Iterator[None]:
    """Convert pyarrow's exceptions to CorruptRecordError, or to StorageUnavailableError if the storage failed."""
    try:
        yield
    except OSError as error:
        # pyarrow raises OSError without errno both for bytes that it cannot decode or whose checksum is wrong, and for
        # errors of an object store. Only the text of the error distinguishes them.
        if error.errno is not None or any(sign in str(error) for sign in _OBJECT_STORE_SIGNS):
            raise StorageUnavailableError(f"{path}: {error}") from error
        raise CorruptRecordError(f"{path}: {error}") from error
    except (pa.ArrowException, ValueError, OverflowError, MemoryError) as error:
        raise CorruptRecordError(f"{path}: {error}") from error


def _verified_footer(file: pa.NativeFile, expected: ExpectedSegment) -> bytes:
    size = file.size()
    if size != expected.bytes:
        raise CorruptRecordError(f"{expected.path}: {size} bytes, expected {expected.bytes}")
    tail: bytes = file.read_at(min(size, _TAIL_BYTES), max(0, size - _TAIL_BYTES))
    announced = segment_footer.footer_length(tail[-segment_footer.TRAILER_BYTES :], expected.path)
    length = announced + segment_footer.TRAILER_BYTES
    if length > size or length > FOOTER_BYTES_MAX:
        raise CorruptRecordError(
            f"{expected.path}: a footer of {length} bytes in a file of {size}, at most {FOOTER_BYTES_MAX} are allowed"
        )
    footer = tail[-length:] if length <= len(tail) else file.read_at(length, size - length)
    segment_footer.verify(footer, expected.path)
    return footer


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
