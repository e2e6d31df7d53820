"""Deletes orphans: segment files that are not needed and cannot be appended any more. They are left by writers that
were killed or whose append failed, by log dirs that were offline when a file was retired, and by readers that repaired
a file which had just been deleted.

    a segment file          is deleted when no segment, retired file or open transaction names it and its write id is
    gone; for file.delete.delay.ms after an older store was accepted, only if it cannot be of a lost append
    .<name>.tmp             of a writer: is deleted when its write id is gone: nothing can be appended under it any more
    .<name>-<random>.tmp    of a copy (followers, repair), which has no write id: is deleted a day after the last write

The write id shows whether a process may still append a file, so the rule for it does not depend on time: expired ids
are deleted first (`write_ids.expire`), then files are listed, and then the metadata is read, from the primary
(`Store.read_as_primary`). The read finds every file that was named before it; after it, no file whose id is gone can be
named. Files that are not named like spark-log's are kept.
"""

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

import sqlalchemy as sa

from spark_log import clock
from spark_log.cluster import promotion as acceptance
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.each_store import in_each_store, store_names
from spark_log.cluster.files.log_dir_folder import Entry
from spark_log.cluster.log_dir import LogDir
from spark_log.cluster.topics import Topic, find_topics
from spark_log.config import TopicConfig
from spark_log.errors import SparkLogError, UnsafePathError, redact
from spark_log.failpoints import failpoint
from spark_log.ids import HOME, LogDirId, StoreId
from spark_log.log.append.encoding import LOG_DIR_FAILURES
from spark_log.log.partitions.partition_rows import topic_here
from spark_log.maintenance.removal.cleanable_log_dirs import CleanableLogDirs, Deleted
from spark_log.maintenance.removal.retired_file_clean_up import TOPIC_FOLDER
from spark_log.metadata.connections.server_identity import check_identity
from spark_log.metadata.prepared import in_list
from spark_log.metadata.sql_columns import RETIRED_FILE, SEGMENT, TRANSACTION_SEGMENT, WRITE_ID

GRACE_MS = 24 * 60 * 60 * 1000
"""The age after which an unfinished copy is deleted, from the last write by the file system's clock until now by the
clock of this host. The difference of the clocks must be smaller than this."""

_FILES_MAX = 5_000
"""Number of files after which the metadata is read; the files of one more partition may exceed it."""

_WRITE_ID = r"([0-9a-f]{32})-[A-Za-z0-9-]{1,48}\.parquet"
_SEGMENT = re.compile(_WRITE_ID)
_WRITING = re.compile(rf"\.{_WRITE_ID}\.tmp")
_COPYING = re.compile(rf"\.{_WRITE_ID}-[0-9a-f]{{12}}\.tmp")
_NUMBER = re.compile(r"[0-9]{1,10}")


# The rule -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Needed:
    """The metadata about some files: the file names that each partition needs, and the registered write ids."""

    names: Collection[tuple[int, str]] = frozenset()
    write_ids: Collection[str] = frozenset()
    kept_since_ms: int | None = None
    """Segment files that were modified at this time or later are kept, since the store may lack their appends
    (`cluster.promotion`). None means that no file is kept for this reason."""


def write_id_of(name: str) -> str | None:
    """Return the write id in a file's name; None if the name is not one that spark-log gives."""
    found = _SEGMENT.fullmatch(name) or _WRITING.fullmatch(name) or _COPYING.fullmatch(name)
    return found[1] if found else None


def is_copy(name: str) -> bool:
    """Whether the name is that of an unfinished copy."""
    return _COPYING.fullmatch(name) is not None


def is_orphan(partition: int, name: str, modified_ms: int, needed: Needed, now_ms: int) -> bool:
    """Whether a file in the folder of this partition is an orphan."""
    if _SEGMENT.fullmatch(name):
        kept = needed.kept_since_ms is not None and modified_ms >= needed.kept_since_ms
        return (partition, name) not in needed.names and write_id_of(name) not in needed.write_ids and not kept
    if _WRITING.fullmatch(name):
        return write_id_of(name) not in needed.write_ids
    if _COPYING.fullmatch(name):
        return now_ms - modified_ms > GRACE_MS
    return False


# In the log dirs ----------------------------------------------------------------------------------------------------


def delete_orphans(cluster: Cluster, log_dirs: CleanableLogDirs, topic: Topic) -> Deleted:
    """Delete the orphans among the topic's files, in every log dir."""
    deleted = Deleted()
    for log_dir_id, log_dir in log_dirs.opened():
        try:
            deleted += _delete_in(cluster, log_dirs, log_dir_id, log_dir, topic)
        except UnsafePathError as error:  # the path contains a symbolic link
            deleted += Deleted(notes=(redact(f"{log_dir.uri}: {error}"),))
        except LOG_DIR_FAILURES as error:
            log_dirs.leave_alone(log_dir_id, error)
    return deleted


def _delete_in(
    cluster: Cluster, log_dirs: CleanableLogDirs, log_dir_id: LogDirId, log_dir: LogDir, topic: Topic
) -> Deleted:
    deleted = Deleted()
    published = False
    for files in _segment_files(log_dir, topic.folder):
        if log_dirs.stopping():
            break
        numbers = sorted({partition for partition, _ in files})
        needed = log_dirs.decide(lambda c, n=numbers, f=files: _needed(c, log_dirs, topic, n, f))  # type: ignore[misc]
        if needed is None:
            break
        orphans = _orphans(files, needed)
        if orphans and not published:
            try:  # its Delta table may still list a file that was retired while the log dir was offline
                log_dirs.publish(topic)
            except SparkLogError as error:
                return deleted + Deleted(notes=(redact(f"orphans stay until the topic is published: {error}"),))
            published = True
        failpoint("clean_up.orphans-found")
        deleted += log_dirs.delete(log_dir_id, orphans)
    return deleted


def _segment_files(log_dir: LogDir, folder: str) -> Iterator[list[tuple[int, Entry]]]:
    """Yield segment files and temporary files below a topic's folder with their partitions, many at a time."""
    files_of_partitions: list[tuple[int, Entry]] = []
    for entry in log_dir.entries(f"{folder}/_segments"):
        if entry.folder and _NUMBER.fullmatch(entry.name):
            files = (file for file in log_dir.entries(entry.path) if not file.folder and write_id_of(file.name))
            files_of_partitions += [(int(entry.name), file) for file in files]
            if len(files_of_partitions) >= _FILES_MAX:
                yield files_of_partitions
                files_of_partitions = []
    if files_of_partitions:
        yield files_of_partitions


def _orphans(found: Sequence[tuple[int, Entry]], needed: Needed) -> list[str]:
    now_ms = clock.wall_ms()
    return [file.path for number, file in found if is_orphan(number, file.name, file.modified_ms, needed, now_ms)]


def _needed(
    connection: sa.Connection,
    log_dirs: CleanableLogDirs,
    topic: Topic,
    numbers: Sequence[int],
    files: Sequence[tuple[int, Entry]],
) -> Needed | None:
    """Read the metadata about these files, in one snapshot. None if the topic was deleted: the clean-up
    of deleted topics removes its files. Also None if another store has it or gets it: then files may be named there.
    """
    topic_id = topic.topic_id
    if topic_here(connection, topic) is None:
        return None
    names: set[tuple[int, str]] = set()
    for c in (SEGMENT, TRANSACTION_SEGMENT):
        partitions = (c.topic_id == topic_id, in_list(c.partition, numbers))
        query = sa.select(c.partition, c.name).where(*partitions, ~c.inline)
        names.update((number, name) for number, name in connection.execute(query))
    retired = sa.select(RETIRED_FILE.partition, RETIRED_FILE.path).where(
        RETIRED_FILE.topic_id == topic_id, in_list(RETIRED_FILE.partition, numbers)
    )
    names.update((number, path.rpartition("/")[2]) for number, path in connection.execute(retired))
    kept_since_ms = acceptance.kept_since_ms(connection, log_dirs.cluster.store, topic.config.file_delete_delay_ms)
    return Needed(names, _registered(connection, files).difference(log_dirs.expired), kept_since_ms)


def _registered(connection: sa.Connection, found: Sequence[tuple[int, Entry]]) -> set[str]:
    """Return the write ids of these files that are registered."""
    ids = {write_id for _, file in found if (write_id := write_id_of(file.name))}
    query = sa.select(WRITE_ID.write_id).where(in_list(WRITE_ID.write_id, ids))
    return set(connection.execute(query).scalars())


# Folders of unknown topics ------------------------------------------------------------------------------------------


@dataclass
class _Content:
    """The content of a topic's folder in a log dir: segment files and temporary files, and the folders that hold
    them.
    """

    files: list[tuple[int, Entry]] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)


def delete_unknown_folders(cluster: Cluster, log_dirs: CleanableLogDirs) -> Deleted:
    """Delete topics' folders that are not in the metadata any more: a writer or a repair created them again after the
    clean-up of the topic.

    Deletes a folder only if it has nothing but segment files and temporary files whose write ids are gone, and none of
    these was modified for a day. A home store that was restored may not know a topic, or even a store: so every store
    must know none of the folders, and every store with a marker in the log dir must be in the cluster.
    """
    deleted = Deleted()
    stores = store_names(cluster).keys()
    data_stores = sorted(stores - {HOME})
    for log_dir_id, log_dir in log_dirs.opened():
        try:
            found = [entry.name for entry in log_dir.entries() if entry.folder and TOPIC_FOLDER.fullmatch(entry.name)]
            unknown = set(found) - cluster.store.read(_known_folders)
            if unknown and (foreign := log_dir.marked_stores() - stores):
                numbers = ", ".join(map(str, sorted(foreign)))
                why = f"it has the marker of store {numbers}, which is not in the cluster"
                deleted += Deleted(notes=(redact(f"{log_dir.uri}: folders of unknown topics stay: {why}"),))
                continue
            if unknown and data_stores:
                try:
                    unknown -= _in_stores(cluster, data_stores, _known_folders)
                except SparkLogError as error:
                    return deleted + Deleted(notes=(redact(f"folders of unknown topics stay: {error}"),))
            for folder in sorted(unknown):
                deleted += _delete_unknown(cluster, data_stores, log_dirs, log_dir_id, log_dir, folder)
                deleted += log_dirs.use_again()
                if log_dir_id in log_dirs.failures or log_dirs.stopping():
                    break
        except LOG_DIR_FAILURES as error:
            log_dirs.leave_alone(log_dir_id, error)
    return deleted


def _in_stores(cluster: Cluster, data_stores: Sequence[StoreId], find: Callable[[sa.Connection], set[str]]) -> set[str]:
    """Return the union of what `find` returns in the data stores. Raises the error of a store that does not answer."""

    def read(connection: sa.Connection) -> set[str]:
        check_identity(connection)
        return find(connection)

    names_by_store = in_each_store(cluster, lambda data: data.store.read_as_primary(read), data_stores)
    return set().union(*names_by_store.values())


def _needed_of_unknown(
    connection: sa.Connection,
    log_dirs: CleanableLogDirs,
    folder: str,
    files: Sequence[tuple[int, Entry]],
    write_ids: Collection[str],
) -> Needed | None:
    """Return the metadata about the files of this folder; None if the metadata knows the folder. `write_ids` are
    registered in data stores.
    """
    if folder in _known_folders(connection):
        return None
    kept_since_ms = acceptance.kept_since_ms(connection, log_dirs.cluster.store, TopicConfig().file_delete_delay_ms)
    registered = _registered(connection, files).difference(log_dirs.expired).union(write_ids)
    return Needed(write_ids=registered, kept_since_ms=kept_since_ms)


def _known_folders(connection: sa.Connection) -> set[str]:
    retired = sa.select(RETIRED_FILE.path).where(RETIRED_FILE.partition.is_(None))
    return {topic.folder for topic in find_topics(connection).values()} | set(connection.execute(retired).scalars())


def _delete_unknown(
    cluster: Cluster,
    data_stores: Sequence[StoreId],
    log_dirs: CleanableLogDirs,
    log_dir_id: LogDirId,
    log_dir: LogDir,
    folder: str,
) -> Deleted:
    try:
        content = _content(log_dir, folder)
    except UnsafePathError:
        return Deleted()
    except LOG_DIR_FAILURES as error:
        log_dirs.leave_alone(log_dir_id, error)
        return Deleted()
    if content is None:
        return Deleted()
    files = content.files
    try:
        elsewhere = _in_stores(cluster, data_stores, lambda connection: _registered(connection, files))
    except SparkLogError as error:
        return Deleted(notes=(redact(f"folder {folder} of an unknown topic stays: {error}"),))
    needed = log_dirs.decide(lambda connection: _needed_of_unknown(connection, log_dirs, folder, files, elsewhere))
    if needed is None:
        return Deleted()
    now_ms = clock.wall_ms()
    young = any(now_ms - file.modified_ms <= GRACE_MS for _, file in content.files)
    paths = [file.path for _, file in content.files]
    if young or len(_orphans(content.files, needed)) < len(paths):
        return Deleted()
    deleted = log_dirs.delete(log_dir_id, paths)
    for path in reversed(content.folders):  # a folder that has got a new file meanwhile stays
        log_dirs.delete_empty_folder(log_dir, path)
    return deleted


def _content(log_dir: LogDir, folder: str) -> _Content | None:
    """Return the content, or None if the folder has anything but segment files and temporary files in their places."""
    content = _Content(folders=[folder, f"{folder}/_segments"])
    if [(entry.name, entry.folder) for entry in log_dir.entries(folder)] != [("_segments", True)]:
        return None
    for partition in log_dir.entries(f"{folder}/_segments"):
        if not partition.folder or not _NUMBER.fullmatch(partition.name):
            return None
        content.folders.append(partition.path)
        for file in log_dir.entries(partition.path):
            if file.folder or write_id_of(file.name) is None:
                return None
            content.files.append((int(partition.name), file))
    return content
