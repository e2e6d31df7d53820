"""Deletes files in an Iceberg table's folder `metadata` that no snapshot needs any more."""

import re
from collections.abc import Collection

from spark_log.tables.iceberg.table import METADATA_FILES, IcebergTable

_KEPT_MS = 3_600_000
"""Files are deleted this long after the metadata have dropped the last snapshot that needs them, because readers that
began before may still use them.
"""
_SNAPSHOT_LIST = re.compile(r"snap-(\d+)-.*\.avro")
_METADATA = re.compile(r"v(\d+)\.metadata\.json")
_METADATA_OF_CATALOG = re.compile(r"\d+-[0-9a-f-]+\.metadata\.json")


def clean_up(table: IcebergTable, of_catalog: Collection[str], now_ms: int) -> int:
    """Delete the files of a topic's Iceberg table that are not needed. Returns their number. `of_catalog` are the
    names of the metadata files that its catalog needs.

    A manifest is in the lists of consecutive snapshots. So a manifest that is older than all remaining snapshots, and
    in the list of neither the first nor the last of them, is in no list. Snapshots may have the time of a clock that
    was ahead; their lists have the time of the file system.
    """
    log_dir, folder = table.log_dir, table.folder
    if table.metadata is None or not table.metadata["snapshots"]:
        return 0
    snapshots = sorted(table.metadata["snapshots"], key=lambda snapshot: snapshot["sequence-number"])
    ids = {snapshot["snapshot-id"] for snapshot in snapshots}
    manifests = {
        manifest["manifest_path"].rpartition("/")[2]
        for snapshot in (snapshots[0], snapshots[-1])
        for manifest in table.manifests_of(snapshot)
    }
    deleted = 0
    # metadata files in the order of their versions: those that are left have no gap
    entries = sorted(log_dir.entries(f"{folder}/metadata"), key=lambda file: (len(file.name), file.name))
    lists = {snapshot["manifest-list"].rpartition("/")[2] for snapshot in snapshots}
    oldest_ms = min([snapshots[0]["timestamp-ms"], *(entry.modified_ms for entry in entries if entry.name in lists)])
    for entry in entries:
        if entry.modified_ms > now_ms - _KEPT_MS:  # a commit may be about to name it
            continue
        if match := _METADATA.fullmatch(entry.name):
            needed = int(match[1]) >= table.version - METADATA_FILES
        elif _METADATA_OF_CATALOG.fullmatch(entry.name):
            needed = entry.name in of_catalog
        elif not entry.name.endswith(".avro") or entry.modified_ms > oldest_ms - _KEPT_MS:
            needed = True
        else:
            match = _SNAPSHOT_LIST.fullmatch(entry.name)
            needed = entry.name in manifests if match is None else int(match[1]) in ids
        if not needed:
            log_dir.delete(entry.path)
            deleted += 1
    return deleted
