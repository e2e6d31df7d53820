"""Segment files in the log dirs that the metadata does not name, such as files that are newer than a restored store."""

from dataclasses import dataclass
from datetime import UTC, datetime

import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.log_dir import Entry, LogDir
from spark_log.cluster.topics import find_topics
from spark_log.errors import SparkLogError, redact
from spark_log.ids import LogDirId
from spark_log.maintenance.removal.retired_file_clean_up import CleanableLogDirs
from spark_log.metadata.columns import RETIRED_COPY, RETIRED_FILE, SEGMENT


@dataclass(frozen=True)
class Unnamed:
    """The unnamed files of one topic's folder in one log dir."""

    log_dir: str
    folder: str
    files: int
    bytes: int
    newest: str | None
    """Time at which the last of them was written, by the file system's clock, in ISO 8601."""


def unnamed_files(cluster: Cluster) -> list[Unnamed]:
    """The unnamed files of all log dirs that answer, by log dir and topic folder. Lists every file: minutes for
    millions.
    """
    log_dirs = CleanableLogDirs.of(cluster)
    found: list[Unnamed] = []
    for log_dir_id, log_dir in log_dirs.opened():
        try:
            listed = {
                entry.name: _segment_files(log_dir, entry.name)
                for entry in log_dir.entries()
                if entry.folder and not entry.name.startswith(".")
            }
        except (SparkLogError, OSError) as error:
            log_dirs.leave_alone(LogDirId(log_dir_id), error)
            continue
        named = cluster.store.read(_named)  # after the listing: files that were appended meanwhile are named by now
        for folder, files in sorted(listed.items()):
            rest = [file for file in files if file.path not in named]
            if rest:
                newest_ms = max(file.modified_ms for file in rest)
                newest = datetime.fromtimestamp(newest_ms / 1000, UTC).isoformat() if newest_ms else None
                size = sum(file.bytes for file in rest)
                found.append(Unnamed(redact(log_dir.uri), folder, len(rest), size, newest))
    return found


def _segment_files(log_dir: LogDir, folder: str) -> list[Entry]:
    partitions = [entry for entry in log_dir.entries(f"{folder}/_segments") if entry.folder]
    return [file for each in partitions for file in log_dir.entries(each.path) if not file.folder]


def _named(connection: sa.Connection) -> set[str]:
    folders = {topic.topic_id: topic.folder for topic in find_topics(connection).values()}
    live = connection.execute(sa.select(SEGMENT.topic_id, SEGMENT.partition, SEGMENT.name).where(~SEGMENT.inline))
    named = {f"{folders[topic_id]}/_segments/{partition}/{name}" for topic_id, partition, name in live}
    named |= set(connection.execute(sa.select(RETIRED_FILE.path).where(RETIRED_FILE.partition.is_not(None))).scalars())
    return named | set(connection.execute(sa.select(RETIRED_COPY.path)).scalars())
