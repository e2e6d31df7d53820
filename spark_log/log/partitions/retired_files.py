"""Stores the files that left the log. They are kept for file.delete.delay.ms, since readers may still use them.

A file that was replaced within minutes, because small files are merged, is fresh, and kept for a shorter time: a topic
that is always active makes tens of thousands of them a day.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from spark_log.cluster.log_dir import segment_path
from spark_log.cluster.topics import Topic
from spark_log.config.values import INT64_MAX
from spark_log.ids import LogDirId
from spark_log.metadata import tables as t
from spark_log.metadata.prepared import in_list
from spark_log.metadata.sql_columns import RETIRED_COPY, RETIRED_FILE
from spark_log.metadata.store_clock import StoreClock

DUE_MS = -INT64_MAX
"""The retired_ms of files to delete now, whatever file.delete.delay.ms is."""
_FRESH_MS = 600_000


def retire_files(
    connection: sa.Connection,
    topic: Topic,
    partition: int,
    names: Sequence[str],
    change: int,
    now: StoreClock,
    *,
    fresh: Collection[str] = (),
) -> None:
    """Record that these segment files left the log with the partition's change number `change`. The `fresh` ones among
    them are kept for file.delete.delay.fresh.ms only.
    """
    rows = retired_rows(topic, partition, names, change, now)
    insert_retired(connection, [{**row, "fresh": name in fresh} for row, name in zip(rows, names, strict=True)])


def is_fresh(appended_ms: int, now: StoreClock) -> bool:
    """Whether a file whose last record was appended at `appended_ms` is fresh if it is replaced now."""
    return 0 <= now.wall_ms - appended_ms <= _FRESH_MS


def retire_folder(connection: sa.Connection, topic: Topic, now: StoreClock) -> None:
    """Record that the topic is deleted, so that its folder in every log dir is deleted too."""
    insert_retired(connection, [{"path": topic.folder, "topic_id": topic.topic_id, "retired_ms": now.wall_ms}])


def retired_rows(
    topic: Topic, partition: int, names: Sequence[str], change: int, now: StoreClock
) -> list[dict[str, Any]]:
    """Return the rows that record retired files. The rows of many partitions can be inserted at once."""
    facts = {"topic_id": topic.topic_id, "partition": partition, "change": change, "retired_ms": now.wall_ms}
    return [{"path": segment_path(topic.folder, partition, name), **facts} for name in names]


def insert_retired(connection: sa.Connection, rows: Sequence[dict[str, Any]]) -> None:
    if rows:
        connection.execute(t.retired_file.insert(), rows)


def make_due(connection: sa.Connection, paths: Sequence[str]) -> None:
    """Let the next clean-up delete these files, however recently they were retired."""
    if paths:
        connection.execute(t.retired_file.update().where(in_list(RETIRED_FILE.path, paths)).values(retired_ms=DUE_MS))


def forget_files(
    connection: sa.Connection, topic: Topic, paths: Sequence[str], left: Mapping[LogDirId, Sequence[str]]
) -> None:
    """Delete the rows of files that were deleted, and record the log dirs that still have some of them (`left`)."""
    delete = t.retired_file.delete().where(in_list(RETIRED_FILE.path, paths)).returning(RETIRED_FILE.path)
    forgotten = set(connection.execute(delete).scalars())  # fewer if another clean-up was first
    copies = [
        {"topic_id": topic.topic_id, "log_dir_id": log_dir_id, "path": path}
        for log_dir_id, there in left.items()
        for path in there
        if path in forgotten
    ]
    if copies:
        connection.execute(t.retired_copy.insert(), copies)


def forget_copies(connection: sa.Connection, topic: Topic, log_dir_id: LogDirId, paths: Sequence[str]) -> None:
    """Delete the rows of copies that were deleted from a log dir."""
    here = (RETIRED_COPY.topic_id == topic.topic_id, RETIRED_COPY.log_dir_id == log_dir_id)
    connection.execute(t.retired_copy.delete().where(*here, in_list(RETIRED_COPY.path, paths)))


def forget_folder(connection: sa.Connection, folder: str) -> None:
    """Delete the rows of a deleted topic's folder and of the files in it."""
    topic_id = connection.execute(sa.select(RETIRED_FILE.topic_id).where(RETIRED_FILE.path == folder)).scalar()
    # found by the index of topic_id; rows of the first releases have topic_id 0
    inside = RETIRED_FILE.topic_id.in_((topic_id, 0)) & RETIRED_FILE.path.startswith(f"{folder}/", autoescape=True)
    connection.execute(t.retired_file.delete().where((RETIRED_FILE.path == folder) | inside))
