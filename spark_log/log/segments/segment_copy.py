"""Copies a segment file from one log dir to another and verifies its checksum. This also repairs a file that is missing
or damaged. It runs on executors too.

A repair needs no lock and changes no metadata: the name of a segment is never used again and its content never changes,
so its checksum identifies the right bytes.

- Two readers that repair at the same time write the same bytes, each to its own temporary file.
- A reader that has the bad file open keeps it, because a rename or a PUT gives the name to the good file.
- If the segment and its file are deleted at the same time, the repair creates a file that no metadata names. It is
  never read, no other segment gets its name, and clean-up deletes it like any orphan.
"""

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import xxhash

from spark_log.cluster.files.disk_calls import Use
from spark_log.cluster.log_dir import LogDir
from spark_log.errors import CorruptRecordError, SparkLogError, redact

logger = logging.getLogger(__name__)

Pace = Callable[[int], None]
"""Called with the size in bytes of each block before it is written. It may wait, count, or raise to abandon the copy.
"""


@dataclass(frozen=True)
class SegmentFile:
    """A segment file as its row describes it. `path` is relative to the log dirs; `checksum` is the xxh3_128 in hex."""

    path: str
    bytes: int
    checksum: str


def is_whole(log_dir: LogDir, file: SegmentFile) -> bool:
    """Read the whole file, and return whether the log dir has it with this size and checksum.

    Raises StorageUnavailableError if the file cannot be read, or the log dir hangs.
    """
    if log_dir.sizes([file.path]) != [file.bytes]:
        return False
    digest, blocks = xxhash.xxh3_128(), log_dir.read_blocks(file.path)
    while block := log_dir.in_time(Use.READS, partial(next, blocks, None)):
        digest.update(block)
    return digest.hexdigest() == file.checksum


def copy_segment(sources: Iterable[LogDir], target: LogDir, file: SegmentFile, pace: Pace) -> None:
    """Copy the file durably to `target`, from the first source that has it whole. A file of that name is replaced.

    A copy that fails changes nothing. Raises CorruptRecordError if no source has the whole file,
    StorageUnavailableError if the target cannot be written, and the errors of `pace`.
    """
    refused: list[str] = []
    for source in sources:
        try:
            _copy(source, target, file, pace)
            return
        except _BadSourceError as error:
            refused.append(redact(str(error)))
    raise CorruptRecordError(f"{file.path}: no other replica has it whole{': ' if refused else ''}{'; '.join(refused)}")


class _BadSourceError(Exception):
    pass


def _copy(source: LogDir, target: LogDir, file: SegmentFile, pace: Pace) -> None:
    digest, copied = xxhash.xxh3_128(), 0
    blocks = source.read_blocks(file.path)
    try:
        # Read first, so that a source without the file, which is the usual failure, leaves the target unchanged.
        block = _next(source, blocks)
        copy = target.replace(file.path)
        try:
            while block is not None:
                copied += len(block)
                if copied > file.bytes:
                    break
                digest.update(block)
                pace(len(block))
                copy.write(block)
                block = _next(source, blocks) if copied < file.bytes else None
            if (copied, digest.hexdigest()) != (file.bytes, file.checksum):
                raise _BadSourceError(f"{source.location(file.path)} is not what was written ({copied} bytes)")
            copy.commit()
        except BaseException:
            copy.abort()
            raise
    finally:
        with contextlib.suppress(ValueError):  # a read that hangs still uses the generator
            blocks.close()


def _next(source: LogDir, blocks: Iterator[memoryview]) -> memoryview | None:
    try:
        return source.in_time(Use.READS, lambda: next(blocks, None))
    except SparkLogError as error:
        raise _BadSourceError(str(error)) from error


def repair(bad: LogDir, good: LogDir, file: SegmentFile) -> bool:
    """Repair the file in `bad`, and return whether it is whole now. The reason for a failure is logged.

    The caller must just have verified the id of `bad`, so that no other log dir is written. Only bytes with the
    checksum are written.
    """
    try:
        with contextlib.suppress(SparkLogError):  # a bad sector or missing permissions count as damage
            if is_whole(bad, file):  # another reader has repaired it, or the error was temporary
                return True
        # checked before the copy too: an upload to an object store, once begun, always creates an object
        if not is_whole(good, file):
            raise CorruptRecordError(f"segment {good.location(file.path)} is not whole itself")
        copy_segment([good], bad, file, lambda _bytes: None)
    except SparkLogError as error:
        logger.warning("segment %s is not repaired: %s", bad.location(file.path), redact(str(error)))
        return False
    return True
