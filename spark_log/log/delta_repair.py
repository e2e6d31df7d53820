"""Repair of a Delta log that a power loss has torn.

Neither deltalake nor Spark forces a commit or a checkpoint to disk. Publication does so after its own commits, before
it records them; what was written and not forced may be found cut off or full of zeros, and no reader opens the table.

    a torn checkpoint     is deleted: the commits before it are still there, since none is deleted before it is forced
    a torn commit         becomes an empty one, so that versions stay without a gap; publication adds what it has lost
    what stays unreadable (the first commit is torn, or commits are missing) is deleted as a whole and made again
"""

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from spark_log import clock
from spark_log.cluster.log_dir import LogDir
from spark_log.cluster.topics import Topic

_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\..*parquet")
_HINT = "_last_checkpoint"


@dataclass(frozen=True)
class Repair:
    """Files of a Delta log to delete, and to make empty commits."""

    delete: tuple[str, ...] = ()
    empty: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.delete or self.empty)


def plan_repair(whole: Mapping[str, bool]) -> Repair:
    """What makes a Delta log readable, given its files, and which of them are whole."""
    torn = [name for name, good in whole.items() if not good]
    if not torn:
        return Repair()
    commits = {int(match[1]) for name in whole if (match := _COMMIT.fullmatch(name))}
    checkpoints = {int(match[1]) for name, good in whole.items() if good and (match := _CHECKPOINT.fullmatch(name))}
    if not _readable(commits, checkpoints, first_is_whole=whole.get(f"{0:020d}.json", False)):
        return Repair(delete=tuple(whole))
    empty = tuple(name for name in torn if _COMMIT.fullmatch(name))
    checksums = {f".{name}.crc" for name in empty} | {f"{name[:20]}.crc" for name in empty}
    delete = {name for name in torn if _CHECKPOINT.fullmatch(name)}
    if delete:
        checksums |= {f".{name}.crc" for name in (*delete, _HINT)}
        delete.add(_HINT)
    return Repair(tuple(sorted((delete | checksums) & whole.keys())), empty)


def _readable(commits: Collection[int], checkpoints: Collection[int], *, first_is_whole: bool) -> bool:
    """Whether there is a checkpoint, or the first commit, and every commit after it."""
    start = max(checkpoints, default=-1)
    last = max(commits, default=start)
    return (start >= 0 or first_is_whole) and all(version in commits for version in range(start + 1, last + 1))


def repair(log_dir: LogDir, topic: Topic) -> bool:
    """Repair what is torn in the topic's Delta log; False if nothing is. Object stores tear nothing."""
    if not log_dir.local:
        return False
    folder = f"{topic.folder}/_delta_log"
    names = [path[len(folder) + 1 :] for path in log_dir.list_files(folder)]
    plan = plan_repair({name: _is_whole(log_dir, f"{folder}/{name}") for name in names})
    for name in plan.empty:
        file = log_dir.replace(f"{folder}/{name}")
        file.write(_empty_commit())
        file.commit()
    for name in plan.delete:
        log_dir.delete(f"{folder}/{name}")
    return bool(plan)


def _empty_commit() -> bytes:
    info = {"timestamp": clock.wall_ms(), "operation": "REPAIR", "operationParameters": {}}
    return json.dumps({"commitInfo": info}).encode() + b"\n"


def _is_whole(log_dir: LogDir, path: str) -> bool:
    """Whether a commit or a checkpoint can be read to its end; other files are of no account."""
    name = path.rpartition("/")[2]
    if _COMMIT.fullmatch(name):
        content = b"".join(bytes(block) for block in log_dir.read_blocks(path))
        try:
            return bool(content) and all(isinstance(json.loads(line), dict) for line in content.splitlines())
        except ValueError:
            return False
    if _CHECKPOINT.fullmatch(name):
        try:
            pq.read_table(log_dir.open(path))
        except (pa.ArrowException, OSError):
            return False
    return True
