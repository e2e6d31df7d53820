"""Repair: a segment file that is missing or damaged in one log dir is put right from another. On executors too.

Nobody is asked, and no metadata changes: a segment's name is unique for ever and its content never changes, so whoever
holds its checksum knows what belongs there.

- Two readers at once put the same bytes there, each under a temporary name of its own.
- Who has the bad file open keeps it: the good one takes its name (a rename, or a PUT), not its place.
- If the segment was retired and its file deleted meanwhile, the repair brings back a file that no metadata names.
  Nobody reads it, no other segment will have its name, and clean-up takes it away like any orphan.
"""

import logging

from spark_log.cluster.log_dir import LogDir
from spark_log.errors import CorruptRecordError, SparkLogError, redact
from spark_log.segments.segment_copy import SegmentFile, copy_segment, is_whole

logger = logging.getLogger(__name__)


def repair(bad: LogDir, good: LogDir, path: str, size: int, checksum: str) -> bool:
    """Whether the file of `size` bytes and xxh3_128 `checksum` (hex) is whole in `bad` now; else it is logged why not.

    `bad` has shown its id just before: a log dir that is not the one that is meant gets nothing. Nothing is written
    that does not have the checksum.
    """
    file = SegmentFile(path, size, checksum)
    try:
        if _can_be_read(bad, file):  # another reader was faster, or it could not be read for a moment
            return True
        # Before, not only on the way: an object store's upload, once begun, ends with an object, right or wrong.
        if not is_whole(good, file):
            raise CorruptRecordError(f"segment {good.location(path)} is not whole itself")
        copy_segment([good], bad, file, _at_full_speed)
    except SparkLogError as error:
        logger.warning("segment %s is not repaired: %s", bad.location(path), redact(str(error)))
        return False
    return True


def _can_be_read(log_dir: LogDir, file: SegmentFile) -> bool:
    """Whole, and no error on the way: a bad sector, or a file without permissions, is replaced like any damage."""
    try:
        return is_whole(log_dir, file)
    except SparkLogError:
        return False


def _at_full_speed(_bytes: int) -> None:
    pass
