"""Repairs a segment file that is missing or damaged in one log dir with the file of another. Runs on executors too.

A repair needs no lock and changes no metadata: the name of a segment is never used again and its content never changes,
so its checksum identifies the right bytes.

- Two readers that repair at the same time write the same bytes, each to its own temporary file.
- A reader that has the bad file open keeps it, because a rename or a PUT gives the name to the good file.
- If the segment and its file are deleted at the same time, the repair creates a file that no metadata names. It is
  never read, no other segment gets its name, and clean-up deletes it like any orphan.
"""

import logging

from spark_log.cluster.log_dir import LogDir
from spark_log.errors import CorruptRecordError, SparkLogError, redact
from spark_log.log.segments.segment_copy import SegmentFile, copy_segment, is_whole

logger = logging.getLogger(__name__)


def repair(bad: LogDir, good: LogDir, path: str, size: int, checksum: str) -> bool:
    """Repair the file of `size` bytes and xxh3_128 `checksum` (hex) in `bad`, and return whether it is whole now. The
    reason for a failure is logged.

    The caller must just have verified the id of `bad`, so that no other log dir is written. Only bytes with the
    checksum are written.
    """
    file = SegmentFile(path, size, checksum)
    try:
        if _can_be_read(bad, file):  # another reader has repaired it, or the error was temporary
            return True
        # checked before the copy too: an upload to an object store, once begun, always creates an object
        if not is_whole(good, file):
            raise CorruptRecordError(f"segment {good.location(path)} is not whole itself")
        copy_segment([good], bad, file, _at_full_speed)
    except SparkLogError as error:
        logger.warning("segment %s is not repaired: %s", bad.location(path), redact(str(error)))
        return False
    return True


def _can_be_read(log_dir: LogDir, file: SegmentFile) -> bool:
    """Return whether the file is whole. A read error (bad sector, missing permissions) counts as damage."""
    try:
        return is_whole(log_dir, file)
    except SparkLogError:
        return False


def _at_full_speed(_bytes: int) -> None:
    pass
