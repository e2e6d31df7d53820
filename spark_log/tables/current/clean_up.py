"""Deletes files of deletion vectors that the newest version of a current-state table does not need."""

import re

from spark_log.cluster.log_dir import LogDir
from spark_log.cluster.topics import Topic
from spark_log.tables.current.table import open_table
from spark_log.tables.publication_state import CURRENT, table_folder

_COMMIT_MS = 3_600_000
"""More time than a commit takes after it has written its vectors."""
_VECTORS = re.compile(r"deletion_vector_.*\.bin")


def clean_up(log_dir: LogDir, topic: Topic, now_ms: int) -> int:
    """Delete the files that have no vector of the table, file.delete.delay.fresh.ms after their last change. Returns
    their number.

    Before a commit replaces vectors, it updates the modification time of their files (`OpenCurrent`).
    """
    folder, config = table_folder(topic, CURRENT), topic.config
    delay_ms = max(_COMMIT_MS, min(config.file_delete_delay_fresh_ms, config.file_delete_delay_ms))
    needed = {file.vector.name for file in open_table(log_dir, folder, "").files.values() if file.vector is not None}
    # listed after the table was opened: files of a later commit, and those that it replaces, have a later time
    unneeded = [
        entry
        for entry in log_dir.entries(folder)
        if _VECTORS.fullmatch(entry.name) and entry.name not in needed and entry.modified_ms < now_ms - delay_ms
    ]
    for entry in unneeded:
        log_dir.delete(entry.path)
    return len(unneeded)
