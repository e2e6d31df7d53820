"""Deletes files that the log no longer needs: retired files, and the folders of deleted topics.

A retired file is deleted when the time for its readers (file.delete.delay.ms of its topic, or for a fresh file
file.delete.delay.fresh.ms) is over and no table lists it any more. It is deleted in the log dirs of its
partition's replicas; then its row is deleted. For a log dir that is offline, a row of `retired_copy` remains: when the
log dir is back, its whole Delta table is compared with the log, and the file is deleted. The folder of a deleted topic
is deleted with all its content, but its one row stays until this is done in every log dir: the row says that no writer
uses the folder.

Files that a retired replica left in its old log dir are deleted by `log.partitions.retired_replicas`.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.lease import Fence, unfenced
from spark_log.cluster.log_dir import LogDir
from spark_log.cluster.topics import DELETING, Topic, find_topics
from spark_log.config import TopicConfig
from spark_log.errors import SparkLogError, UnsafePathError, redact
from spark_log.failpoints import failpoint
from spark_log.ids import LogDirId
from spark_log.log.append.encoding import LOG_DIR_FAILURES
from spark_log.log.partitions.retired_files import forget_copies, forget_files, forget_folder
from spark_log.maintenance.removal.cleanable_log_dirs import CleanableLogDirs, Deleted
from spark_log.metadata import tables as t
from spark_log.metadata.sql_columns import (
    LOG_DIR,
    PUBLICATION,
    PUBLICATION_CURSOR,
    REPLICA,
    RETIRED_COPY,
    RETIRED_FILE,
    TOPIC,
)
from spark_log.tables.publication_resets import compare_whole_tables
from spark_log.tables.publication_state import LISTS_FILES
from spark_log.text import count_of

TOPIC_FOLDER = re.compile(r"[A-Za-z0-9._-]{1,249}-[0-9a-f]{8}")

_FILES_MAX = 1_000
"""Maximum number of retired files per transaction."""


# Retired files ------------------------------------------------------------------------------------------------------

_LISTED = (
    sa.exists()
    .where(
        PUBLICATION_CURSOR.topic_id == RETIRED_FILE.topic_id,
        PUBLICATION_CURSOR.partition == RETIRED_FILE.partition,
        PUBLICATION_CURSOR.change < RETIRED_FILE.change,
        LISTS_FILES,
    )
    .where(LOG_DIR.log_dir_id == PUBLICATION_CURSOR.log_dir_id, LOG_DIR.online)
)
"""A table in an online log dir still lists the file."""


def delete_retired_files(
    cluster: Cluster, log_dirs: CleanableLogDirs, topic: Topic, fence: Fence = unfenced
) -> Deleted:
    """Delete the topic's retired files that readers no longer need, and then their rows."""
    store, kept_ms = cluster.store, topic.config.file_delete_delay_ms
    fresh_kept_ms = min(topic.config.file_delete_delay_fresh_ms, kept_ms)

    def due(connection: sa.Connection) -> tuple[sa.ColumnElement[bool], ...]:
        now_ms = store.clock(connection).wall_ms
        return (
            RETIRED_FILE.topic_id == topic.topic_id,
            RETIRED_FILE.partition.is_not(None),
            RETIRED_FILE.retired_ms <= now_ms - fresh_kept_ms,  # by the index
            RETIRED_FILE.retired_ms <= sa.case((RETIRED_FILE.fresh, now_ms - fresh_kept_ms), else_=now_ms - kept_ms),
        )

    def count_listed(connection: sa.Connection) -> int:
        return connection.execute(sa.select(sa.func.count()).where(*due(connection), _LISTED)).scalar_one()

    def next_files(connection: sa.Connection, after: str) -> tuple[list[str], dict[LogDirId, list[str]]] | None:
        query = sa.select(RETIRED_FILE.path).where(*due(connection), ~_LISTED, RETIRED_FILE.path > after)
        query = query.order_by(RETIRED_FILE.path).limit(_FILES_MAX)
        paths = list(connection.execute(query).scalars())
        if not paths:
            return None
        replicas = (
            sa.select(REPLICA.log_dir_id, RETIRED_FILE.path)
            .join(
                t.retired_file,
                (RETIRED_FILE.topic_id == REPLICA.topic_id) & (RETIRED_FILE.partition == REPLICA.partition),
            )
            .where(RETIRED_FILE.path.in_(paths), REPLICA.topic_id == topic.topic_id)
            .order_by(REPLICA.log_dir_id, RETIRED_FILE.path)
        )
        where: dict[LogDirId, list[str]] = {}
        for log_dir_id, path in connection.execute(replicas):
            where.setdefault(LogDirId(log_dir_id), []).append(path)
        return paths, where

    def forget(paths: Sequence[str], away: Mapping[LogDirId, Sequence[str]], connection: sa.Connection) -> None:
        # a Delta table in an offline log dir still lists them: compare the whole table when it is back
        listed = sa.exists().where(
            RETIRED_FILE.path.in_(paths), RETIRED_FILE.partition == PUBLICATION_CURSOR.partition, RETIRED_FILE.change
            > PUBLICATION_CURSOR.change, LISTS_FILES,
            PUBLICATION_CURSOR.topic_id == PUBLICATION.topic_id, PUBLICATION_CURSOR.log_dir_id ==
            PUBLICATION.log_dir_id, PUBLICATION_CURSOR.target == PUBLICATION.target,
        )  # fmt: skip
        compare_whole_tables(connection, topic.topic_id, listed)
        forget_files(connection, topic, paths, away)

    if not log_dirs.stopping() and store.read(count_listed):
        log_dirs.try_publish(topic)
    deleted, after = Deleted(), ""
    while not log_dirs.stopping() and (due_files := log_dirs.decide(partial(next_files, after=after))):
        paths, where = due_files
        for log_dir_id, here in where.items():
            deleted += log_dirs.delete(log_dir_id, here)
        failpoint("clean_up.retired-deleted")
        away = {log_dir_id: here for log_dir_id, here in where.items() if log_dir_id in log_dirs.failures}
        log_dirs.forget(partial(forget, paths, away), fence)
        failpoint("clean_up.retired-forgotten")
        after = paths[-1]
    waiting = store.read(count_listed)
    if waiting:
        files, wait = count_of(waiting, "retired file"), "waits" if waiting == 1 else "wait"
        deleted += Deleted(notes=(f"{files} {wait} until no table lists {'it' if waiting == 1 else 'them'}",))
    return deleted


def delete_left_copies(cluster: Cluster, log_dirs: CleanableLogDirs, topic: Topic, fence: Fence = unfenced) -> Deleted:
    """Delete retired files in log dirs that were offline when the other copies were deleted, and are back now."""
    store = cluster.store

    def waiting(connection: sa.Connection) -> list[LogDirId]:
        query = (
            sa.select(RETIRED_COPY.log_dir_id)
            .distinct()
            .where(RETIRED_COPY.topic_id == topic.topic_id)
            .order_by(RETIRED_COPY.log_dir_id)
        )
        return [LogDirId(log_dir_id) for log_dir_id in connection.execute(query).scalars()]

    def next_files(connection: sa.Connection, log_dir_id: LogDirId, after: str) -> list[str] | None:
        here = (
            (RETIRED_COPY.topic_id == topic.topic_id)
            & (RETIRED_COPY.log_dir_id == log_dir_id)
            & (RETIRED_COPY.path > after)
        )
        query = sa.select(RETIRED_COPY.path).where(here).order_by(RETIRED_COPY.path).limit(_FILES_MAX)
        return list(connection.execute(query).scalars()) or None

    back = [log_dir_id for log_dir_id in store.read(waiting) if log_dirs.open(log_dir_id) is not None]
    if not back or log_dirs.stopping():
        return Deleted()
    try:  # their Delta tables may still list the files
        log_dirs.publish(topic)
    except (SparkLogError, OSError) as error:
        return Deleted(notes=(redact(f"retired files stay until the topic is published: {error}"),))
    deleted = Deleted()
    for log_dir_id in back:
        after = ""
        read = partial(next_files, log_dir_id=log_dir_id)
        while not log_dirs.stopping() and (paths := log_dirs.decide(partial(read, after=after))):
            deleted += log_dirs.delete(log_dir_id, paths)
            if log_dir_id in log_dirs.failures:
                break
            log_dirs.forget(partial(forget_copies, topic=topic, log_dir_id=log_dir_id, paths=paths), fence)
            after = paths[-1]
    return deleted


# Deleted topics -----------------------------------------------------------------------------------------------------


def delete_retired_topics(cluster: Cluster, log_dirs: CleanableLogDirs, fence: Fence = unfenced) -> Deleted:
    """Delete the folders of topics that were deleted longer ago than the default of file.delete.delay.ms."""
    store = cluster.store

    def due(connection: sa.Connection) -> tuple[list[str], set[str]] | None:
        before_ms = store.clock(connection).wall_ms - TopicConfig().file_delete_delay_ms
        query = (
            sa.select(RETIRED_FILE.path)
            .where(RETIRED_FILE.partition.is_(None), RETIRED_FILE.retired_ms <= before_ms)
            .order_by(RETIRED_FILE.path)
        )
        folders = list(connection.execute(query).scalars())
        if not folders:
            return None
        # a data store that did not answer since then may still have the topic, and publish it
        unfinished = set(connection.execute(sa.select(TOPIC.uuid).where(TOPIC.state == DELETING)).scalars())
        ids = {uuid[:8] for uuid in unfinished}
        deleted = [folder for folder in folders if folder.rpartition("-")[2] not in ids]
        return deleted, {topic.folder for topic in find_topics(connection).values()}

    deleted = Deleted()
    folders, live = log_dirs.decide(due) or ([], set())
    for folder in folders:
        if log_dirs.stopping():
            break
        if folder in live or not TOPIC_FOLDER.fullmatch(folder):
            deleted += Deleted(notes=(f"{folder!r} is no deleted topic's folder",))
            continue
        everywhere = True
        for log_dir_id in log_dirs.infos:
            here, complete = _delete_folder(log_dirs, log_dir_id, folder)
            deleted += here
            everywhere = everywhere and complete
        deleted += log_dirs.use_again()
        failpoint("clean_up.topic-deleted")
        if everywhere:
            log_dirs.forget(partial(forget_folder, folder=folder), fence)
    return deleted


def _delete_folder(log_dirs: CleanableLogDirs, log_dir_id: LogDirId, folder: str) -> tuple[Deleted, bool]:
    """Delete the folder. Return the deleted files, and whether the folder is gone."""
    log_dir = log_dirs.open(log_dir_id)
    if log_dir is None:
        return Deleted(), False
    files = size = 0
    try:
        for one in _sizes(log_dir, folder):
            files, size = files + 1, size + one
        log_dirs.delete_folder(log_dir, folder)
    except UnsafePathError as error:  # the path contains a symbolic link
        return Deleted(notes=(redact(f"{log_dir.uri}: {error}"),)), False
    except LOG_DIR_FAILURES as error:
        log_dirs.leave_alone(log_dir_id, error)
        return Deleted(), False
    return Deleted(files, size), True


def _sizes(log_dir: LogDir, folder: str) -> Iterator[int]:
    for entry in log_dir.entries(folder):
        if entry.folder:
            yield from _sizes(log_dir, entry.path)
        else:
            yield entry.bytes
