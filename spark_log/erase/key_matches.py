"""Erasing by key: which records go, which files hold one, and the file that takes a segment's place.

Needs log dirs, not the metadata store: on executors too. Keys are personal data: no message here repeats one.
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
from spark_log.maintenance.rewrite.rewrite import Keep, Rewriting, Written, write
from spark_log.records.key_set import KeySet
from spark_log.records.schema import read_schema
from spark_log.segments.fetcher import Fetcher
from spark_log.segments.slices import LogDirs, Slice

logger = logging.getLogger(__name__)

_OFFSETS_AND_KEYS = read_schema(columns=["offset", "key"])


def to_erase(offsets: pa.Array, keys: pa.Array, erased: KeySet, end: int) -> pa.BooleanArray:
    """Which of the records go: their key is one of `erased`, and they lie below `end`."""
    return pc.and_(erased.contains(keys), pc.less(offsets, end))


def keep_others(erased: KeySet, end: int) -> Keep:
    """What `rewriting.write` is to keep: every other record, tombstones and headers as they are."""

    def keep(offsets: pa.Int64Array, records: pa.Table) -> pa.BooleanArray:
        return pc.invert(to_erase(offsets, records.column("key").combine_chunks(), erased, end))

    return keep


@dataclass(frozen=True)
class Scan:
    """A segment file to be looked through; it travels."""

    piece: Slice
    end: int
    log_dirs: LogDirs


@dataclass(frozen=True)
class Write:
    """A segment file to be written again; it travels. `prefix` of its new name begins with the write id."""

    rewriting: Rewriting
    prefix: str
    end: int
    log_dirs: LogDirs


@dataclass(frozen=True)
class OldFile:
    """A file that the metadata does not name any more, and the log dirs that have it; it travels."""

    path: str
    log_dirs: Sequence[LogDirInfo]


def holds(item: Scan, erased: KeySet) -> bool | SparkLogError:
    """Whether the segment has a record to erase. Only its keys are read; an error is the value, not raised."""
    try:
        for batch in Fetcher(item.log_dirs).read([item.piece], _OFFSETS_AND_KEYS):
            if pc.any(to_erase(batch.column("offset"), batch.column("key"), erased, item.end)).as_py():
                return True
    except SparkLogError as error:
        return error
    return False


def write_without(item: Write, erased: KeySet) -> Written | SparkLogError:
    """The segment's new file, under a name of this attempt's own. An error is the value, not raised."""
    name = f"{item.prefix}-{uuid.uuid4().hex[:12]}.parquet"
    try:
        return write(item.rewriting, name, item.log_dirs, open_log_dir, keep_others(erased, item.end))
    except SparkLogError as error:
        return error


def old_file_holds(item: OldFile, erased: KeySet) -> bool:
    """Whether the file has a record with such a key, at any offset; also if none of its copies can be read."""
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
