"""Copies a segment file from one log dir to another and verifies its checksum. Runs on executors too."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import xxhash

from spark_log.cluster.files.disk_calls import DiskCalls, Use
from spark_log.cluster.log_dir import LogDir
from spark_log.errors import CorruptRecordError, SparkLogError, redact

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
    """Return whether the log dir has the file with this size and checksum, which reads all of it.

    Raises StorageUnavailableError if the file cannot be read, or the log dir hangs.
    """
    if log_dir.sizes([file.path]) != [file.bytes]:
        return False
    digest, blocks = xxhash.xxh3_128(), log_dir.read_blocks(file.path)
    while block := log_dir.in_time(Use.READS, partial(next, blocks, None)):
        digest.update(block)
    return digest.hexdigest() == file.checksum


def copy_segment(sources: Iterable[LogDir], target: LogDir, file: SegmentFile, pace: Pace) -> None:
    """Copy the file durably to `target`, from the first source that has it whole. It replaces a file of that name.

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
    calls = DiskCalls(source.uri, Use.READS) if source.local else None
    try:
        # Read first, so that a source without the file, which is the usual failure, leaves the target unchanged.
        block = _next(blocks, calls)
        copy = target.replace(file.path)
        try:
            while block is not None:
                copied += len(block)
                if copied > file.bytes:
                    break
                digest.update(block)
                pace(len(block))
                copy.write(block)
                block = _next(blocks, calls) if copied < file.bytes else None  # each call is one of another thread
            if (copied, digest.hexdigest()) != (file.bytes, file.checksum):
                raise _BadSourceError(f"{source.location(file.path)} is not what was written ({copied} bytes)")
            copy.commit()
        except BaseException:
            copy.abort()
            raise
    finally:
        with contextlib.suppress(ValueError):  # a call that hangs still reads
            blocks.close()


def _next(blocks: Iterator[memoryview], calls: DiskCalls | None) -> memoryview | None:
    def read() -> memoryview | None:
        return next(blocks, None)

    try:
        return read() if calls is None else calls.run(read)
    except SparkLogError as error:
        raise _BadSourceError(str(error)) from error
