"""Finds the records to erase and the files that hold one, and writes the new file of a segment.

It needs log dirs, not the metadata store: it also runs on executors. Keys are personal data: no message here shows
one.
"""

import logging
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_log.cluster.log_dir import LogDirInfo, open_log_dir
from spark_log.errors import SparkLogError, redact
from spark_log.log.records.key_set import KeySet
from spark_log.log.records.schema import read_schema
from spark_log.log.segments.fetcher import Fetcher
from spark_log.log.segments.slices import LogDirs, Slice
from spark_log.maintenance.rewrite.rewrite_plan import Rewriting
from spark_log.maintenance.rewrite.segment_rewrite import Keep, Written, write

logger = logging.getLogger(__name__)

_OFFSETS_AND_KEYS = read_schema(columns=["offset", "key"])


def to_erase(offsets: pa.Array, keys: pa.Array, erased: KeySet, end: int) -> pa.BooleanArray:
    """Mark the records to erase: their key is one of `erased`, and they lie below `end`."""
    return pc.and_(erased.contains(keys), pc.less(offsets, end))


def keep_others(erased: KeySet, end: int) -> Keep:
    """Return the argument `keep` for `segment_rewrite.write` that keeps all other records, also tombstones."""

    def keep(offsets: pa.Int64Array, records: pa.Table) -> pa.BooleanArray:
        return pc.invert(to_erase(offsets, records.column("key").combine_chunks(), erased, end))

    return keep


@dataclass(frozen=True)
class Scan:
    """A segment file to scan; sent to executors."""

    piece: Slice
    end: int
    log_dirs: LogDirs


@dataclass(frozen=True)
class Write:
    """A segment file to rewrite; sent to executors. `prefix` of the new file's name begins with the write id."""

    rewriting: Rewriting
    prefix: str
    end: int
    log_dirs: LogDirs


@dataclass(frozen=True)
class OldFile:
    """A file that the metadata does not name any more, and the log dirs that have it; sent to executors."""

    path: str
    log_dirs: Sequence[LogDirInfo]


def holds(item: Scan, erased: KeySet) -> bool | SparkLogError:
    """Whether the segment has a record to erase. Reads only the keys; returns an error instead of raising it."""
    try:
        for batch in Fetcher(item.log_dirs).read([item.piece], _OFFSETS_AND_KEYS):
            if pc.any(to_erase(batch.column("offset"), batch.column("key"), erased, item.end)).as_py():
                return True
    except SparkLogError as error:
        return error
    return False


def write_without(item: Write, erased: KeySet) -> Written | SparkLogError:
    """Write the records to keep to a new file with a unique name. Returns an error instead of raising it."""
    name = f"{item.prefix}-{uuid.uuid4().hex[:12]}.parquet"
    try:
        return write(item.rewriting, name, item.log_dirs, open_log_dir, keep_others(erased, item.end))
    except SparkLogError as error:
        return error


def old_file_holds(item: OldFile, erased: KeySet) -> bool:
    """Whether the file has a record with such a key, at any offset. True if none of its copies can be read."""
    for info in item.log_dirs:
        try:
            with pq.ParquetFile(open_log_dir(info).open(item.path), page_checksum_verification=True) as file:
                for batch in file.iter_batches(columns=["key"]):
                    if pc.any(erased.contains(batch.column("key"))).as_py():
                        return True
            return False
        except (SparkLogError, OSError, pa.ArrowException, IndexError, KeyError) as error:
            logger.warning("%s: a retired file cannot be read, and goes: %s", item.path, redact(str(error)))
    return True
