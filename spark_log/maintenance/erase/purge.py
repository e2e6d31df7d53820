"""Purges files that have left the log and hold records of erased keys: they are deleted at once, instead of
file.delete.delay.ms later.

Purging marks them in the metadata as if they had been retired long ago, and then runs clean-up for the topic: retired
files, replicas that a reassignment left behind (completely), and orphans. It also deletes such files of deleted topics
of the same name. It reports the places that it cannot reach (`remaining_records`), which are purged when the same erase
is run again; clean-up also deletes such files in a log dir that was offline, when it is back. Readers of a purged file
fail, and earlier versions of the Delta table cannot be read any more: that is the purpose of a purge.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.lease import unfenced
from spark_log.cluster.log_dir import LogDirInfo
from spark_log.cluster.topics import Topic, find_topics
from spark_log.errors import SparkLogError, UnsafePathError, redact
from spark_log.failpoints import failpoint
from spark_log.log.append import write_ids
from spark_log.log.append.encoding import LOG_DIR_FAILURES
from spark_log.log.partitions.partition_rows import check_here
from spark_log.log.partitions.retired_files import make_due
from spark_log.log.partitions.retired_replicas import delete_retired_replicas, make_replicas_due
from spark_log.maintenance.erase.key_matches import OldFile, old_file_holds
from spark_log.maintenance.erase.remaining_records import after_purge, previous_folders
from spark_log.maintenance.erase.workers import Workers
from spark_log.maintenance.removal.cleanable_log_dirs import CleanableLogDirs, Deleted
from spark_log.maintenance.removal.orphans import delete_orphans
from spark_log.maintenance.removal.retired_file_clean_up import delete_left_copies, delete_retired_files
from spark_log.metadata.scrub import scrub
from spark_log.metadata.sql_columns import RETIRED_FILE
from spark_log.text import count_of


@dataclass(frozen=True)
class Purged:
    """The result of a purge. `files` and `bytes` count each copy; `replicas` counts those that were moved away."""

    files: int
    bytes: int
    replicas: int
    waiting: int
    """Number of retired files that clean-up still has to delete in some log dir."""
    unreachable: tuple[str, ...]
    """Log dirs that did not answer."""
    notes: tuple[str, ...]


def purge_old_files(cluster: Cluster, topic: Topic, workers: Workers, paths_with_keys: Collection[str]) -> Purged:
    """Purge the topic's retired files that hold such keys. `paths_with_keys` are the paths of files that are known to
    hold such keys.

    A file that cannot be read is deleted too. So are such files of deleted topics of the same name.
    """
    store = cluster.store
    log_dirs = CleanableLogDirs.of(cluster)
    paths = store.read(lambda connection: _retired(connection, topic))
    copies = _copies(log_dirs, paths)
    unknown = [path for path in paths if path not in paths_with_keys and copies[path]]
    items = [OldFile(path, tuple(copies[path])) for path in unknown]
    holding = {path for path, verdict in zip(unknown, workers.run(old_file_holds, items), strict=True) if verdict}
    # a file whose only copies are in an unreachable log dir cannot be checked
    due = [
        path for path in paths if path in paths_with_keys or path in holding or (log_dirs.failures and not copies[path])
    ]
    store.transact(lambda connection: _mark(connection, topic, due))
    failpoint("erase.marked")
    deleted = delete_retired_files(cluster, log_dirs, topic)
    deleted += delete_left_copies(cluster, log_dirs, topic)
    write_ids.expire(store)
    deleted += delete_orphans(cluster, log_dirs, topic)
    deleted += _delete_of_previous_topics(cluster, log_dirs, topic, workers)
    replicas = delete_retired_replicas(cluster, unfenced)
    check_here(cluster, topic)
    waiting = len({*store.read(lambda connection: _retired(connection, topic))} & {*due})
    notes = [*deleted.notes, *after_purge(cluster, log_dirs, topic, workers)]
    if waiting:
        notes.append(f"not deleted yet in some log dir: {count_of(waiting, 'retired file')}: erase again")
    in_store = scrub(store)
    if in_store is not None:
        notes.append(in_store)
    unreachable = tuple(redact(log_dirs.infos[each].uri) for each in sorted(log_dirs.failures))
    return Purged(deleted.files, deleted.bytes, replicas, waiting, unreachable, tuple(notes))


def _retired(connection: sa.Connection, topic: Topic) -> list[str]:
    here = (RETIRED_FILE.topic_id == topic.topic_id) & RETIRED_FILE.partition.is_not(None)
    return list(connection.execute(sa.select(RETIRED_FILE.path).where(here).order_by(RETIRED_FILE.path)).scalars())


def _copies(log_dirs: CleanableLogDirs, paths: Sequence[str]) -> dict[str, list[LogDirInfo]]:
    """Return for each file the log dirs that have it, among those that answer."""
    copies: dict[str, list[LogDirInfo]] = {path: [] for path in paths}
    for log_dir_id, info in log_dirs.infos.items():
        log_dir = log_dirs.open(log_dir_id)
        try:
            sizes = log_dir.sizes(paths) if log_dir is not None else [None] * len(paths)
        except (SparkLogError, OSError) as error:
            log_dirs.leave_alone(log_dir_id, error)
            continue
        for path, size in zip(paths, sizes, strict=True):
            if size is not None:
                copies[path].append(info)
    return copies


def _mark(connection: sa.Connection, topic: Topic, paths: Sequence[str]) -> None:
    make_due(connection, paths)
    make_replicas_due(connection, topic)


def _live_folders(cluster: Cluster, log_dirs: CleanableLogDirs) -> set[str]:
    """Return the folders of the topics of this store, and of all that the home store knows."""
    topics = list(log_dirs.decide(find_topics).values())
    if cluster is not cluster.home:
        topics += cluster.home.store.read_as_primary(find_topics).values()
    return {each.folder for each in topics}


def _delete_of_previous_topics(cluster: Cluster, log_dirs: CleanableLogDirs, topic: Topic, workers: Workers) -> Deleted:
    """Delete the segment files that hold such keys in the folders of deleted topics of the same name.

    No partition names them any more, and their writers cannot append them.
    """
    deleted = Deleted()
    for log_dir_id, info in log_dirs.infos.items():
        try:
            folders = previous_folders(log_dirs, log_dir_id, topic)
            live = _live_folders(cluster, log_dirs) if folders else set()  # after the listing
            for folder in folders:
                log_dir = log_dirs.open(log_dir_id)
                if log_dir is None or folder in live:
                    continue
                files = [path for path in log_dir.list_files(f"{folder}/_segments") if path.endswith(".parquet")]
                verdicts = workers.run(old_file_holds, [OldFile(path, (info,)) for path in files])
                deleted += log_dirs.delete(
                    log_dir_id, [path for path, held in zip(files, verdicts, strict=True) if held]
                )
        except UnsafePathError as error:
            deleted += Deleted(notes=(f"{redact(info.uri)} may still hold such records: {redact(str(error))}",))
        except LOG_DIR_FAILURES as error:
            log_dirs.leave_alone(log_dir_id, error)
    return deleted
