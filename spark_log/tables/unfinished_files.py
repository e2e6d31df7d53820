"""Deletes temporary files of publishers that were killed while they wrote metadata of a table. A file gets its own name
only when it is whole (`cluster.files.new_file`), so no reader needs a temporary file.
"""

from collections.abc import Mapping, Sequence

from spark_log.cluster.log_dir import LogDir
from spark_log.config.values import DAY_MS


def is_unfinished(name: str) -> bool:
    """Whether the name is that of a temporary file."""
    return name.startswith(".") and name.endswith(".tmp")


def delete_unfinished(log_dir: LogDir, folders: Sequence[str], now_ms: int) -> Mapping[str, int]:
    """Delete the temporary files in these folders a day after the last write. Object stores have none.

    Returns the number of files in each folder of a local log dir.
    """
    if not log_dir.local:
        return {}
    counts: dict[str, int] = {}
    for folder in folders:
        names = log_dir.names(folder)
        counts[folder] = len(names)
        if not any(map(is_unfinished, names)):
            continue
        for entry in log_dir.entries(folder):
            if is_unfinished(entry.name) and entry.modified_ms < now_ms - DAY_MS:
                log_dir.delete(entry.path)
    return counts
