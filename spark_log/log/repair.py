"""Repair: a segment file that is missing or damaged in one log dir is put right from another. On executors too.

Nobody is asked, and no metadata changes: a segment's name is unique for ever and its content never changes, so whoever
holds its checksum knows what belongs there.

- Two readers at once put the same bytes there, each under a temporary name of its own.
- Who has the bad file open keeps it: the good one takes its name (a rename, or a PUT), not its place.
- If the segment was retired and its file deleted meanwhile, the repair brings back a file that no metadata names.
  Nobody reads it, no other segment will have its name, and clean-up takes it away like any orphan.
"""

import logging

import xxhash

from spark_log.cluster.log_dir import LogDir
from spark_log.errors import CorruptRecordError, SparkLogError, redact

logger = logging.getLogger(__name__)


def repair(bad: LogDir, good: LogDir, path: str, size: int, checksum: str) -> bool:
    """Whether the file of `size` bytes and xxh3_128 `checksum` (hex) is whole in `bad` now; else it is logged why not.

    `bad` has been verified just before: a log dir that is not the one that is meant gets nothing. Nothing is written
    that does not have the checksum.
    """
    try:
        if _is_whole(bad, path, size, checksum):  # another reader was faster, or it could not be read for a moment
            return True
        # Before, not only on the way: an object store's upload, once begun, ends with an object, right or wrong.
        if not _is_whole(good, path, size, checksum):
            raise CorruptRecordError(f"segment {good.location(path)} is not whole itself")
        _copy(good, bad, path, checksum)
    except SparkLogError as error:
        logger.warning("segment %s is not repaired: %s", bad.location(path), redact(str(error)))
        return False
    return True


def _is_whole(log_dir: LogDir, path: str, size: int, checksum: str) -> bool:
    """Errors of a file that cannot be read count as damage: writing tells whether the log dir is to blame."""
    try:
        if log_dir.sizes([path]) != [size]:
            return False
        content = xxhash.xxh3_128()
        for block in log_dir.read_blocks(path):
            content.update(block)
    except SparkLogError:
        return False
    return content.hexdigest() == checksum


def _copy(source: LogDir, target: LogDir, path: str, checksum: str) -> None:
    file = target.replace(path)
    try:
        content = xxhash.xxh3_128()
        for block in source.read_blocks(path):
            content.update(block)
            file.write(block)
        if content.hexdigest() != checksum:
            raise CorruptRecordError(f"segment {source.location(path)} has changed while it was copied")
    except BaseException:
        file.abort()
        raise
    file.commit()
