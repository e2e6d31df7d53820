"""Opens an Iceberg table in a topic's folder, and commits to it.

A commit creates `metadata/v<N>.metadata.json`, which fails if another process was first. Then it updates
`version-hint.text`: a reader with an old hint sees an older snapshot.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from spark_log.cluster.log_dir import LogDir
from spark_log.errors import CorruptRecordError, InvalidConfigurationError
from spark_log.failpoints import failpoint
from spark_log.tables.iceberg.table import ANEW, IcebergTable

_METADATA = re.compile(r"v(\d+)\.metadata\.json")


def open_table(log_dir: LogDir, folder: str, table_id: str) -> IcebergTable:
    """Return the newest version of the table in a topic's folder; version 0 if there is none yet."""
    if not log_dir.creates_whole:
        raise InvalidConfigurationError(
            f"table.formats=iceberg: {log_dir!r} is neither a folder nor in S3 with obstore"
        )
    version = newest_version(log_dir, folder)
    if version == 0:
        return IcebergTable(log_dir, folder, table_id, 0, None)
    path = _metadata_path(folder, version)
    try:
        metadata = json.loads(log_dir.read(path))
    except ValueError as error:  # another program has written it
        raise CorruptRecordError(f"the Iceberg table's file {log_dir.location(path)} is torn. {ANEW}") from error
    return IcebergTable(log_dir, folder, table_id, version, metadata)


def commit(table: IcebergTable, metadata: Mapping[str, Any]) -> bool:
    """Make these metadata the next version of the table. Returns False if another process has made that version."""
    version = table.version + 1
    content = json.dumps(metadata).encode()
    if not table.log_dir.create_whole(_metadata_path(table.folder, version), content):
        return False
    failpoint("iceberg.committed")
    # a publisher that was stopped for long may create a version that has been cleaned up meanwhile
    return point_readers(table.log_dir, table.folder, version) == version


def force_versions(log_dir: LogDir, folder: str, after: int) -> None:
    """Force the metadata files after this version, and the folders above them, to disk."""
    if log_dir.local:
        for name in log_dir.names(f"{folder}/metadata"):
            if (match := _METADATA.fullmatch(name)) and int(match[1]) > after:
                log_dir.sync(f"{folder}/metadata/{name}", ancestors=True)


def delete_versions(log_dir: LogDir, folder: str) -> None:
    """Delete the metadata files of a table that is in a catalog now: readers must not take them for the newest ones."""
    log_dir.delete(f"{folder}/metadata/version-hint.text")
    for name in log_dir.names(f"{folder}/metadata"):
        if _METADATA.fullmatch(name):
            log_dir.delete(f"{folder}/metadata/{name}")


def point_readers(log_dir: LogDir, folder: str, version: int = 0) -> int:
    """Make the hint name the newest version, and return this version. The hint is never lowered: publishers may call
    this in any order.

    `version` exists. If it is below the hint, its publisher was stopped until clean-up deleted another one of this
    number.
    """
    hinted = _hinted(log_dir, folder)
    newest = newest_version(log_dir, folder) if hinted >= version else _last_from(log_dir, folder, version)
    while newest > hinted:
        log_dir.put(f"{folder}/metadata/version-hint.text", str(newest).encode())
        # this process may have been stopped meanwhile, and the versions after `newest` cleaned up
        hinted, newest = newest, _last_listed(log_dir, folder)
    return newest


def _metadata_path(folder: str, version: int) -> str:
    return f"{folder}/metadata/v{version}.metadata.json"


def newest_version(log_dir: LogDir, folder: str) -> int:
    """Return the newest version of the table, 0 if there is none."""
    hinted = _hinted(log_dir, folder)
    if hinted and _exists(log_dir, folder, hinted):
        return _last_from(log_dir, folder, hinted)
    return _last_listed(log_dir, folder)


def _last_listed(log_dir: LogDir, folder: str) -> int:
    names = log_dir.names(f"{folder}/metadata")
    return max((int(match[1]) for match in map(_METADATA.fullmatch, names) if match), default=0)


def _last_from(log_dir: LogDir, folder: str, version: int) -> int:
    """Return the last version that follows `version`, which exists, without a gap: a hint may be missing or late."""
    while _exists(log_dir, folder, version + 1):
        version += 1
    return version


def _exists(log_dir: LogDir, folder: str, version: int) -> bool:
    return log_dir.sizes([_metadata_path(folder, version)]) != [None]


def _hinted(log_dir: LogDir, folder: str) -> int:
    """Return the version of the hint, 0 if there is none or it is damaged."""
    try:
        content = log_dir.read(f"{folder}/metadata/version-hint.text")
    except CorruptRecordError:  # there is none
        return 0
    return int(content) if content.isdigit() else 0
