"""Finds segment files that the metadata does not name, such as files that are newer than a restored store."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby

import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.each_store import ask_stores, store_names
from spark_log.cluster.files.log_dir_folder import Entry
from spark_log.cluster.log_dir import LogDir, is_topic_folder
from spark_log.cluster.topics import find_topics
from spark_log.errors import SparkLogError, redact
from spark_log.ids import LogDirId, StoreId
from spark_log.maintenance.removal.cleanable_log_dirs import CleanableLogDirs
from spark_log.metadata.sql_columns import RETIRED_COPY, RETIRED_FILE, SEGMENT, TRANSACTION_SEGMENT


@dataclass(frozen=True)
class Unnamed:
    """The unnamed files of one topic's folder in one log dir."""

    log_dir: str
    folder: str
    files: int
    bytes: int
    newest: str | None
    """Time at which the last of them was written, by the file system's clock, in ISO 8601."""


@dataclass(frozen=True)
class UnnamedFile:
    """A segment file that the metadata does not name."""

    log_dir: str
    folder: str
    location: str
    """Path or URI, without passwords."""
    bytes: int
    modified_ms: int
    """When it was written, by the file system's clock; 0 if that is not known."""


@dataclass(frozen=True)
class UnnamedFiles:
    """Unnamed files, by log dir, topic folder and time. `stores_away` has the names of the stores that do not
    answer: the files of their topics are left out.
    """

    files: list[UnnamedFile]
    stores_away: tuple[str, ...]


def by_folder(files: Iterable[UnnamedFile]) -> list[Unnamed]:
    """Return the numbers of unnamed files in each folder. `files` are in the order of `find_unnamed_files`."""
    groups: list[Unnamed] = []
    for (log_dir, folder), same in groupby(files, lambda file: (file.log_dir, file.folder)):
        rest = list(same)
        newest_ms = max(file.modified_ms for file in rest)
        newest = datetime.fromtimestamp(newest_ms / 1000, UTC).isoformat() if newest_ms else None
        groups.append(Unnamed(log_dir, folder, len(rest), sum(file.bytes for file in rest), newest))
    return groups


def find_unnamed_files(cluster: Cluster, topic: str | None = None) -> UnnamedFiles:
    """Return the segment files of one topic, or of all, that the metadata does not name. Log dirs that do not answer
    are left out, and so are topics whose store does not answer.

    It lists every file, which takes minutes for millions. A file with replicas is listed in each of their log dirs. If
    the topic was deleted, or the store does not know it, the folders of this name are searched too.
    """
    log_dirs = CleanableLogDirs.of(cluster.home)
    unnamed: list[UnnamedFile] = []
    away: set[StoreId] = set()
    for log_dir_id, log_dir in log_dirs.opened():
        try:
            listed = {
                entry.name: _segment_files(log_dir, entry.name)
                for entry in log_dir.entries()
                if entry.folder
                and not entry.name.startswith(".")
                and (topic is None or is_topic_folder(entry.name, topic))
            }
        except (SparkLogError, OSError) as error:
            log_dirs.leave_alone(LogDirId(log_dir_id), error)
            continue
        # after the listing: files that were appended meanwhile are named by now
        answers = ask_stores(cluster, lambda data: data.store.read(_named))
        named = set().union(*answers.results.values())
        away |= answers.failures.keys()
        if answers.failures:  # the files of a store that does not answer are not known
            known = cluster.home.store.read(find_topics).values()
            answered = {each.folder for each in known if not answers.unavailable(each)}
            listed = {folder: files for folder, files in listed.items() if folder in answered}
        for folder, files in sorted(listed.items()):
            unnamed += [
                UnnamedFile(
                    redact(log_dir.uri), folder, redact(log_dir.location(file.path)), file.bytes, file.modified_ms
                )
                for file in sorted(files, key=lambda file: (file.modified_ms, file.path))
                if file.path not in named
            ]
    names = store_names(cluster) if away else {}
    return UnnamedFiles(unnamed, tuple(names[store_id] for store_id in sorted(away)))


def _segment_files(log_dir: LogDir, folder: str) -> list[Entry]:
    partitions = [entry for entry in log_dir.entries(f"{folder}/_segments") if entry.folder]
    return [file for each in partitions for file in log_dir.entries(each.path) if file.name.endswith(".parquet")]


def _named(connection: sa.Connection) -> set[str]:
    folders = {topic.topic_id: topic.folder for topic in find_topics(connection).values()}
    named: set[str] = set()
    for c in (SEGMENT, TRANSACTION_SEGMENT):
        rows = connection.execute(sa.select(c.topic_id, c.partition, c.name).where(~c.inline))
        named |= {f"{folders[i]}/_segments/{partition}/{name}" for i, partition, name in rows if i in folders}
    named |= set(connection.execute(sa.select(RETIRED_FILE.path).where(RETIRED_FILE.partition.is_not(None))).scalars())
    return named | set(connection.execute(sa.select(RETIRED_COPY.path)).scalars())
