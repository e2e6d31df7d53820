"""Makes a Delta commit without opening the table. The cost does not grow with the files that the table lists.

Opening a table reads the actions of all its files, and deltalake's commit reads them again. Neither is needed if the
newest version is the one that publication recorded: then the metadata says which files the table lists. The commit
creates the next file of the log, which fails if another process was first, as Delta's protocol demands of every writer.
In an object store this needs a conditional put (`LogDir.create_whole`).
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from spark_log.cluster.log_dir import LogDir
from spark_log.tables.publication_state import Cursor, PublishedFile

_COMMIT = re.compile(r"(\d{20})\.json")


def is_newest(log_dir: LogDir, folder: str, version: int) -> bool:
    """Whether this is the newest version of the table in this folder, and its commit file exists."""
    if version < 0:
        return False
    # the next version first: clean-up deletes commits in order, and never the newest
    following, this = (log_dir.sizes([commit_path(folder, number)])[0] for number in (version + 1, version))
    return following is None and this is not None


def commit_path(folder: str, version: int) -> str:
    """Return the path of the commit file of a version of the table in this folder, relative to the log dir."""
    return f"{folder}/_delta_log/{version:020d}.json"


def force_commits(log_dir: LogDir, folder: str, after: int) -> None:
    """Force the commit files after this version, and the folders above them, to disk."""
    if log_dir.local:
        for name in log_dir.names(f"{folder}/_delta_log"):
            if (match := _COMMIT.fullmatch(name)) and int(match[1]) > after:
                log_dir.sync(f"{folder}/_delta_log/{name}", ancestors=True)


def partition_values(partition: int | None, base_offset: int | None) -> dict[str, str | None]:
    """Return a file's values of the table's partition columns, as text."""
    return {
        "partition": None if partition is None else str(partition),
        "base_offset": None if base_offset is None else str(base_offset),
    }


def is_data_change(file: PublishedFile, cursors: Mapping[int, Cursor]) -> bool:
    """Whether streams of the table must read an added file, because the table has not shown its records before."""
    return not cursors.get(file.partition, Cursor()).has_seen(file)


def statistics(file: PublishedFile) -> str:
    """Return `stats` of the add action, by which readers skip files that their filters exclude."""
    number = f'"numRecords":{file.record_count}'
    return f"{{{number}}}" if file.stats is None else f"{{{number},{file.stats[1:]}"


def commit_content(
    add: Sequence[PublishedFile],
    remove: Sequence[str],
    cursors: Mapping[int, Cursor],
    applications: Sequence[str],
    transaction_version: int,
    now_ms: int,
) -> bytes:
    """Return the content of the commit file, as in Delta's protocol."""
    info = {"timestamp": now_ms, "operation": "WRITE", "operationParameters": {"mode": "Append"}}
    actions: list[dict[str, Any]] = [{"commitInfo": {**info, "engineInfo": "spark-log"}}]
    # never a data change: that would end every stream that reads the table
    actions += [{"remove": {"path": path, "deletionTimestamp": now_ms, "dataChange": False}} for path in remove]
    actions += [
        {
            "add": {
                "path": file.path,
                "partitionValues": partition_values(file.partition, file.base_offset),
                "size": file.bytes,
                "modificationTime": now_ms,
                "dataChange": is_data_change(file, cursors),
                "stats": statistics(file),
            }
        }
        for file in add
    ]
    actions += [{"txn": {"appId": each, "version": transaction_version}} for each in applications]
    return as_lines(actions)


def as_lines(actions: Iterable[Mapping[str, Any]]) -> bytes:
    """Return the content of a commit file: one action a line."""
    return b"".join(json.dumps(action).encode() + b"\n" for action in actions)
