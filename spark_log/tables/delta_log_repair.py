"""Repairs a Delta log whose files were torn by a power loss.

Neither deltalake nor Spark forces a commit or a checkpoint to disk. Publication does so after its own commits, before
it records them. A file that was written and not forced may be truncated or full of zeros after a power loss; then no
reader can open the table.

    a torn checkpoint     is deleted: the commits before it still exist, since they are deleted after it is forced
    a torn commit         becomes an empty one, so that versions have no gap; publication adds the lost changes again
    an unreadable log     (the first commit is torn, or commits are missing) is deleted as a whole and written again

A file is torn only if it was read and its content is not valid. A file that cannot be read is a failure of the storage:
then nothing is deleted. A repair that is interrupted leaves a log that opens, or one that the next repair makes
readable.

Publication repairs only a log that does not open. These logs open, and are not changed: a torn commit below an intact
checkpoint (readers of older versions fail on it), a commit other than the first without bytes (it acts as an empty
commit), and a hint that is not JSON.
"""

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from spark_log import clock
from spark_log.cluster.log_dir import LogDir
from spark_log.errors import CorruptRecordError, StorageUnavailableError

_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.(?:.*\.)?(?:parquet|json)")
_HINT = "_last_checkpoint"


@dataclass(frozen=True)
class Repair:
    """The files of a Delta log to delete, in this order, and then the files to replace with empty commits."""

    delete: tuple[str, ...] = ()
    empty: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.delete or self.empty)


def plan_repair(whole: Mapping[str, bool]) -> Repair:
    """Return the repair that makes an unreadable Delta log readable. `whole` has for each file whether it is intact.

    The repair may end after any step, so the order matters: a file is deleted after its checksums, which Spark would
    apply to the next file of the same name, a checkpoint after the hint that names it, and torn files last.
    """
    torn = {name for name, good in whole.items() if not good}
    commits = {int(match[1]) for name in whole if (match := _COMMIT.fullmatch(name))}
    checkpoints = {int(match[1]) for name in whole.keys() - torn if (match := _CHECKPOINT.fullmatch(name))}
    start = max(checkpoints, default=-1)
    if not _readable(commits, start, first_is_whole=whole.get(f"{0:020d}.json", False)):
        return Repair(delete=_in_order(whole, torn))
    # opening the table reads nothing below a checkpoint
    empty = {name for name in torn if (match := _COMMIT.fullmatch(name)) and int(match[1]) > start}
    delete = {name for name in torn if _CHECKPOINT.fullmatch(name)}
    if delete or _HINT in torn:
        delete.add(_HINT)
    checksums = {f".{name}.crc" for name in empty | delete} | {f"{name[:20]}.crc" for name in empty}
    return Repair(_in_order((delete | checksums) & whole.keys(), torn), tuple(sorted(empty)))


def _in_order(names: Collection[str], torn: Collection[str]) -> tuple[str, ...]:
    """Sort the names: checksums, the hint, intact files, torn files."""
    return tuple(sorted(names, key=lambda name: (not name.endswith(".crc"), name != _HINT, name in torn, name)))


def _readable(commits: Collection[int], start: int, *, first_is_whole: bool) -> bool:
    """Whether there is a checkpoint (of version `start`) or the first commit, and every commit after it."""
    last = max(commits, default=start)
    return (start >= 0 or first_is_whole) and all(version in commits for version in range(start + 1, last + 1))


class TornLogError(Exception):
    """A Delta log cannot be read, since a power loss has torn its files."""


def repair(log_dir: LogDir, folder: str) -> bool:
    """Make the log of the Delta table in this folder readable. Returns False if its files are not the reason that the
    table does not open.

    Raises StorageUnavailableError if a file cannot be read, or if another process is writing to the log. Object stores
    never tear a file, so their logs are not repaired.
    """
    if not log_dir.local:
        return False
    folder = f"{folder}/_delta_log"
    files = log_dir.list_files(folder)
    names = [path[len(folder) + 1 :] for path in files]
    try:
        whole = {name: is_whole(name, _content(log_dir, folder, name), names) for name in names}
    except (MemoryError, CorruptRecordError) as error:
        raise StorageUnavailableError(f"{folder} cannot be read: {error}") from error
    if log_dir.list_files(folder) != files:
        raise StorageUnavailableError(f"{folder} is being written to")
    plan = plan_repair(whole)
    for name in plan.delete:
        log_dir.delete(f"{folder}/{name}")
    for name in plan.empty:
        log_dir.put(f"{folder}/{name}", _empty_commit())
    return bool(plan)


def _empty_commit() -> bytes:
    info = {"timestamp": clock.wall_ms(), "operation": "REPAIR", "operationParameters": {}}
    return json.dumps({"commitInfo": info}).encode() + b"\n"


def is_whole(name: str, content: bytes, names: Collection[str]) -> bool:
    """Whether a file of a Delta log is complete, given the names of all files. The hint is complete if it names a
    checkpoint among them.
    """
    if name == _HINT:
        return _names_a_checkpoint(content, names)
    if _COMMIT.fullmatch(name) or (_CHECKPOINT.fullmatch(name) and name.endswith(".json")):
        return _is_whole_json(content, first=name == f"{0:020d}.json")
    if _CHECKPOINT.fullmatch(name):
        return _is_whole_parquet(content)
    return True


def _names_a_checkpoint(hint: bytes, names: Collection[str]) -> bool:
    try:
        version = int(json.loads(hint)["version"])
    except (ValueError, TypeError, KeyError):
        return False
    return any((match := _CHECKPOINT.fullmatch(name)) and int(match[1]) == version for name in names)


def _is_whole_json(content: bytes, *, first: bool) -> bool:
    try:
        actions = [json.loads(line) for line in content.splitlines()]
    except ValueError:
        return False
    if not actions or not all(isinstance(action, dict) for action in actions):
        return False
    return not first or {"protocol", "metaData"} <= set().union(*actions)


def _is_whole_parquet(content: bytes) -> bool:
    try:
        pq.read_table(pa.BufferReader(content))
    except (pa.ArrowNotImplementedError, pa.ArrowCapacityError):
        return True  # other readers may be able to read it
    except MemoryError:
        raise
    except OSError as error:
        if error.errno is not None:
            raise StorageUnavailableError(f"a checkpoint cannot be read: {error}") from error
        return False
    except (pa.ArrowException, ValueError):
        return False
    return True


def _content(log_dir: LogDir, folder: str, name: str) -> bytes:
    """Return the content of a file whose completeness is judged by its content; empty for other files."""
    judged = name == _HINT or _COMMIT.fullmatch(name) or _CHECKPOINT.fullmatch(name)
    return log_dir.read(f"{folder}/{name}") if judged else b""
