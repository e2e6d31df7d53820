"""Stores the state of open tables in the metadata: the files that each must list, and the files that it is known to
list.

A table of the topic in a log dir lists the sealed segments of the replicas there, each up to min(high watermark, the
replica's LEO). A cursor for each partition records the last publication, so that only later changes are compared.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import sqlalchemy as sa

from spark_log.cluster.topics import Topic, find_topics
from spark_log.ids import LogDirId, TopicId
from spark_log.log.partitions.partition_rows import frozen_topics
from spark_log.metadata import tables as t
from spark_log.metadata.insert import insert_or_replace
from spark_log.metadata.sql_columns import PARTITION, PUBLICATION, PUBLICATION_CURSOR, REPLICA, RETIRED_FILE, SEGMENT

REPLICA_LIMIT = sa.case(
    (PARTITION.high_watermark < REPLICA.log_end_offset, PARTITION.high_watermark), else_=REPLICA.log_end_offset
)
"""The offset up to which this replica's segments may be published: they are complete and below the high watermark."""

DELTA, ICEBERG, CURRENT = "delta", "iceberg", "current"


class TableKey(NamedTuple):
    """A table of a topic: the log dir in which it is, and its format."""

    topic_id: TopicId
    log_dir_id: LogDirId
    target: str = DELTA


def table_folder(topic: Topic, target: str) -> str:
    """Return the folder of a topic's table, relative to the log dir."""
    return f"{topic.folder}/_current" if target == CURRENT else topic.folder


# The statements are built once, because a publication runs a dozen of them after each append that writes files.

_TOPIC: sa.BindParameter[int] = sa.bindparam("in_topic")
_LOG_DIR: sa.BindParameter[int] = sa.bindparam("in_log_dir")
_TARGET: sa.BindParameter[str] = sa.bindparam("to_target")

_IN_LOG_DIR = REPLICA.log_dir_id + 0 == _LOG_DIR
"""+ 0 prevents the use of the index of log_dir_id, which would read the replicas of all topics in the log dir."""

_REPLICAS = t.partition.join(
    t.replica,
    (REPLICA.topic_id == PARTITION.topic_id) & (REPLICA.partition == PARTITION.partition) & _IN_LOG_DIR,
).outerjoin(
    t.publication_cursor,
    (PUBLICATION_CURSOR.topic_id == PARTITION.topic_id)
    & (PUBLICATION_CURSOR.partition == PARTITION.partition)
    & (PUBLICATION_CURSOR.log_dir_id == _LOG_DIR)
    & (PUBLICATION_CURSOR.target == _TARGET),
)
"""Joins each partition with its replica in the log dir and its cursor. Statements limit it to the topic."""

_STALE = (PARTITION.topic_id == _TOPIC) & (PARTITION.change > sa.func.coalesce(PUBLICATION_CURSOR.change, 0))
"""Partitions of the topic that have changed since they were published."""

_FEW = 500
_THESE = (PARTITION.topic_id == _TOPIC) & PARTITION.partition.in_(sa.bindparam("numbers", expanding=True))
"""Some partitions of the topic. Usually few are stale: only the statement that finds them reads all partitions."""


def rows_of_partitions(
    connection: sa.Connection, statement: Any, table: TableKey, numbers: Collection[int]
) -> list[Any]:
    """Return the rows of a statement about _THESE partitions, those with these `numbers`."""
    asked, rows = list(numbers), list[Any]()
    for first in range(0, len(asked), _FEW):
        some = asked[first : first + _FEW]
        rows += connection.execute(statement, {**parameters_of(table), "numbers": some}).all()
    return rows


_SEGMENTS = (SEGMENT.topic_id == PARTITION.topic_id) & (SEGMENT.partition == PARTITION.partition)

_FILE_COLUMNS = (
    SEGMENT.partition, SEGMENT.base_offset, SEGMENT.end_offset, SEGMENT.bytes, SEGMENT.record_count, SEGMENT.change,
    SEGMENT.rewritten, SEGMENT.name, SEGMENT.stats
)  # fmt: skip

_RECORDED = sa.select(
    PUBLICATION.topic_id,
    PUBLICATION.log_dir_id,
    PUBLICATION.target,
    PUBLICATION.transaction_version,
    PUBLICATION.table_version,
).where(PUBLICATION.topic_id.in_(sa.bindparam("topics", expanding=True)))
PARTITIONS = (
    sa.select(
        PARTITION.partition,
        PARTITION.change,
        REPLICA_LIMIT,
        PUBLICATION_CURSOR.high_watermark,
        PUBLICATION_CURSOR.seen_offset,
        sa.func.coalesce(PUBLICATION_CURSOR.change, 0),
    )
    .select_from(_REPLICAS)
    .where(PARTITION.topic_id == _TOPIC)
)
_STALE_PARTITIONS = PARTITIONS.where(PARTITION.change > sa.func.coalesce(PUBLICATION_CURSOR.change, 0))
_ANY_REPLICA = sa.select(REPLICA.partition).where(REPLICA.topic_id == _TOPIC, _IN_LOG_DIR).limit(1)
FIRST_BLOBS = (
    sa.select(PARTITION.partition, sa.func.min(SEGMENT.base_offset))
    .select_from(_REPLICAS.join(t.segment, _SEGMENTS & SEGMENT.inline))
    .where(_THESE)
    .group_by(PARTITION.partition)
)
_CURSORS_HERE = (
    (PUBLICATION_CURSOR.topic_id == _TOPIC)
    & (PUBLICATION_CURSOR.log_dir_id == _LOG_DIR)
    & (PUBLICATION_CURSOR.target == _TARGET)
)
LISTS_FILES = (PUBLICATION_CURSOR.high_watermark > 0) | (
    (PUBLICATION_CURSOR.target == CURRENT) & (PUBLICATION_CURSOR.seen_offset > 0)
)
"""Whether the table of a cursor may list files of its partition. A current-state table also lists the file at the limit
(`due_below_cut`).
"""
_CURSORS = sa.select(
    PUBLICATION_CURSOR.partition,
    PUBLICATION_CURSOR.change,
    PUBLICATION_CURSOR.high_watermark,
    PUBLICATION_CURSOR.seen_offset,
).where(_CURSORS_HERE)
LOST = (
    sa.select(PUBLICATION_CURSOR.partition, PUBLICATION_CURSOR.change, PUBLICATION_CURSOR.seen_offset)
    .where(_CURSORS_HERE, LISTS_FILES)
    # not a correlated EXISTS, with which SQLite would search all replicas of the log dir for each partition
    .where(
        PUBLICATION_CURSOR.partition.not_in(sa.select(REPLICA.partition).where(REPLICA.topic_id == _TOPIC, _IN_LOG_DIR))
    )
)
_ALL_SEGMENTS = (
    sa.select(*_FILE_COLUMNS)
    .select_from(_REPLICAS.join(t.segment, _SEGMENTS))
    .where(PARTITION.topic_id == _TOPIC, ~SEGMENT.inline, SEGMENT.end_offset <= REPLICA_LIMIT)
    .order_by(SEGMENT.partition, SEGMENT.base_offset)
)
_CHANGED_SEGMENTS = sa.union(  # two index scans are faster than one OR
    *(
        sa.select(*_FILE_COLUMNS)
        .select_from(_REPLICAS.join(t.segment, _SEGMENTS & condition))
        .where(_THESE, ~SEGMENT.inline, SEGMENT.end_offset <= REPLICA_LIMIT)
        for condition in (
            SEGMENT.change > sa.func.coalesce(PUBLICATION_CURSOR.change, 0),
            SEGMENT.base_offset >= sa.func.coalesce(PUBLICATION_CURSOR.high_watermark, 0),
        )
    )
)
_RETIRED_PATHS = (
    sa.select(RETIRED_FILE.path)
    .select_from(
        _REPLICAS.join(
            t.retired_file,
            (RETIRED_FILE.topic_id == PARTITION.topic_id)
            & (RETIRED_FILE.partition == PARTITION.partition)
            & (RETIRED_FILE.change > sa.func.coalesce(PUBLICATION_CURSOR.change, 0)),
        )
    )
    .where(_THESE)
)


def parameters_of(table: TableKey) -> dict[str, Any]:
    return dict(zip((_TOPIC.key, _LOG_DIR.key, _TARGET.key), table, strict=True))


@dataclass(frozen=True)
class PublishedFile:
    """A file that a table should list. `path` is relative to the table; `bytes` is the size of the file."""

    path: str
    partition: int
    base_offset: int
    end_offset: int
    bytes: int
    record_count: int
    change: int
    rewritten: bool
    stats: str | None = None
    """The statistics of the typed columns in the file, as JSON."""


class ListedFile(NamedTuple):
    """A file that a table lists. `path` is relative to the topic's folder, `bytes` is the size of the file."""

    path: str
    partition: int
    base_offset: int
    bytes: int
    record_count: int


@dataclass(frozen=True)
class Cursor:
    """The state of a partition in a publication.

    When partition.change was `change`, the files below `limit` were listed. Every record below `seen_offset` has been
    in the table at some time, in some file.
    """

    change: int = 0
    limit: int = 0
    seen_offset: int = 0

    def has_seen(self, file: PublishedFile) -> bool:
        """Whether the records of an added file have been in the table before, perhaps in other files."""
        known = file.change <= self.change
        listed = known and file.base_offset < self.limit
        # the replica lost the file, or was replaced, and has it again; or the file was rewritten from others
        returned = file.end_offset <= self.seen_offset and (known or file.rewritten)
        return listed or returned


@dataclass(frozen=True)
class Due:
    """The new cursors of the partitions that have changed since the last publication.

    With `fallen`, the table may have to remove files that are not retired. Without `has_replicas`, it must list no file
    any more.
    """

    cursors: dict[int, Cursor]
    fallen: bool
    has_replicas: bool


def recorded(connection: sa.Connection, table: TableKey) -> tuple[int, int] | None:
    """Return (our transaction version, table version) of the last recorded publication; None before the first."""
    return recorded_of(connection, [table.topic_id]).get(table)


def recorded_of(connection: sa.Connection, topic_ids: Collection[TopicId]) -> dict[TableKey, tuple[int, int]]:
    """Return (our transaction version, table version) of the last recorded publication of each table of the topics."""
    rows = connection.execute(_RECORDED, {"topics": list(topic_ids)})
    return {TableKey(*key): tuple(versions) for *key, versions in ((*row[:3], row[3:]) for row in rows)}


def due(connection: sa.Connection, table: TableKey) -> Due:
    """Return the partitions of the topic that have changed since the last publication to this table."""
    here = parameters_of(table)
    stale = connection.execute(_STALE_PARTITIONS, here).all()
    blobs = rows_of_partitions(connection, FIRST_BLOBS, table, [row.partition for row in stale]) if stale else ()
    blobs_from: dict[int, int] = dict(tuple(row) for row in blobs)
    cursors: dict[int, Cursor] = {}
    fallen = False
    for partition, change, limit, limit_before, seen_before, _ in stale:
        seen = max(seen_before or 0, min(limit, blobs_from.get(partition, limit)))
        cursors[partition] = Cursor(change, limit, seen)
        fallen = fallen or limit < (limit_before or 0)
    has_replicas = connection.execute(_ANY_REPLICA, here).first() is not None
    # partitions that were published but have no replica in this log dir any more
    lost = {partition: Cursor(change, 0, seen) for partition, change, seen in connection.execute(LOST, here)}
    return Due({**cursors, **lost}, fallen or bool(lost), has_replicas)


def all_gone(connection: sa.Connection, table: TableKey) -> Due:
    """Return the new cursors of a table that must list no file, although the log dir may have replicas."""
    before = cursors(connection, table)
    return Due({number: Cursor(each.change, 0, each.seen_offset) for number, each in before.items()}, True, False)


def cursors(connection: sa.Connection, table: TableKey, numbers: Collection[int] | None = None) -> dict[int, Cursor]:
    """Return the recorded cursors: all if `numbers` is None, otherwise at least those of these partitions."""
    query, parameters = _CURSORS, parameters_of(table)
    if numbers is not None and len(numbers) <= _FEW:
        query = _CURSORS.where(PUBLICATION_CURSOR.partition.in_(list(numbers)))
    return {partition: Cursor(*facts) for partition, *facts in connection.execute(query, parameters)}


def all_segments(connection: sa.Connection, table: TableKey) -> list[PublishedFile]:
    """Return all files that the table must list."""
    return _files(connection.execute(_ALL_SEGMENTS, parameters_of(table)))


def changed_segments(connection: sa.Connection, table: TableKey, changed: Collection[int]) -> list[PublishedFile]:
    """Return the files to list that were added after the cursors, or lay above their limits.

    `changed` are the partitions of `due`.
    """
    return _files(sorted(rows_of_partitions(connection, _CHANGED_SEGMENTS, table, changed)))


def named_paths(connection: sa.Connection, topic: Topic) -> set[str]:
    """Return the paths, relative to the topic's folder, of all segment files and retired files in the metadata."""
    live = sa.select(SEGMENT.partition, SEGMENT.name).where(SEGMENT.topic_id == topic.topic_id, ~SEGMENT.inline)
    named = {f"_segments/{partition}/{name}" for partition, name in connection.execute(live)}
    retired = sa.select(RETIRED_FILE.path).where(
        RETIRED_FILE.topic_id == topic.topic_id, RETIRED_FILE.partition.is_not(None)
    )
    return named | {path[len(topic.folder) + 1 :] for path in connection.execute(retired).scalars()}


def retired_paths(connection: sa.Connection, topic: Topic, table: TableKey, changed: Collection[int]) -> list[str]:
    """Return the paths of the files that were retired after the cursors, relative to the topic's table.

    `changed` are the partitions of `due`.
    """
    return [path[len(topic.folder) + 1 :] for (path,) in rows_of_partitions(connection, _RETIRED_PATHS, table, changed)]


def record(
    connection: sa.Connection,
    topic: Topic,
    table: TableKey,
    before: tuple[int, int] | None,
    after: tuple[int, int],
    what: Due,
) -> None:
    """Record a publication, unless the topic was deleted, or another publication was recorded after `before`."""
    # the topic's lock serializes publishers, and a deleted topic gets no rows
    if existing(connection, [topic]) and recorded(connection, table) == before:
        replace(connection, {table: (after, what)})


def existing(connection: sa.Connection, topics: Iterable[Topic]) -> set[TopicId]:
    """Lock the rows of the topics, and return the ids of those that exist and are not moved to another store. If there
    are several, topics that another transaction has locked, for example to delete them, are left out: they must not
    delay the others.
    """
    before = {topic.name: topic for topic in topics}
    found = find_topics(connection, before, lock=True, skip_locked=len(before) > 1)
    moving = set(frozen_topics(connection))
    return {
        now.topic_id
        for now in found.values()
        if (now.topic_id, now.store_id) == (before[now.name].topic_id, before[now.name].store_id)
        and now.topic_id not in moving
    }


def replace(connection: sa.Connection, states: Mapping[TableKey, tuple[tuple[int, int], Due]]) -> None:
    """Record publications: the versions and new cursors of each table. The transaction has locked the topics and
    checked that the tables' states are unchanged.
    """
    publications: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    for key, ((transaction_version, table_version), what) in states.items():
        keys = key._asdict()
        if what.has_replicas or key.target == DELTA:
            rows += [{**keys, "partition": partition, **values(cursor)} for partition, cursor in what.cursors.items()]
        if what.has_replicas:
            publications.append({**keys, "transaction_version": transaction_version, "table_version": table_version})
        else:
            forget(connection, key)
    insert_or_replace(connection, t.publication, publications)
    insert_or_replace(connection, t.publication_cursor, rows)


def forget(connection: sa.Connection, key: TableKey) -> None:
    """Delete the state of a table that lists no file. The cursors of a Delta table stay: if it lists files again, their
    seen offsets tell which records are new to its streams. A table of another format begins anew then.
    """
    for table in (t.publication,) if key.target == DELTA else (t.publication, t.publication_cursor):
        connection.execute(table.delete().where(*(table.c[name] == value for name, value in key._asdict().items())))


def values(cursor: Cursor) -> dict[str, int]:
    """Return the columns of a cursor with their values."""
    return {"change": cursor.change, "high_watermark": cursor.limit, "seen_offset": cursor.seen_offset}


def _files(rows: Iterable[Any]) -> list[PublishedFile]:
    return [
        PublishedFile(f"_segments/{partition}/{name}", partition, base, end, size, count, change, rewritten, stats)
        for partition, base, end, size, count, change, rewritten, name, stats in rows
    ]
