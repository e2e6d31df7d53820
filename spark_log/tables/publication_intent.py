"""Records the intent of a publication before its commit: the state of the table after it.

    note      one SQL transaction stores the new cursor of each changed partition under a new version
    commit    the commit of the table has that version, in Delta as an app transaction
    settle    the table has this version, so this intent was carried out: its cursors become the recorded state

A publisher that dies after its commit leaves an intent, which the next publisher finds by the version in the table.
Until the intent is settled, no new file crosses its seen offsets (`tables/seen_offsets.py`). A note is always forced to
disk, and with it everything that was committed before: a table never lists a segment that the metadata could still
lose. Settling is not forced to disk: if a power loss reverts it, the next publication settles again.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from spark_log.cluster.topics import Topic
from spark_log.ids import TopicId
from spark_log.log.partitions.partition_rows import lock_partitions
from spark_log.metadata import tables as t
from spark_log.metadata.sql_columns import PUBLICATION_INTENT, SEGMENT
from spark_log.tables import publication_state
from spark_log.tables.publication_state import Cursor, Due, PublishedFile, TableKey

_FILES_AT_ONCE = 1_000
"""The number of rows of VALUES in a query. PostgreSQL looks each up in the primary key, but not a long list in IN."""

_SETTLED = tuple(
    table.delete().where(
        table.c.topic_id == sa.bindparam("of_topic"),
        table.c.log_dir_id == sa.bindparam("in_log_dir"),
        table.c.target == sa.bindparam("to_target"),
        table.c.transaction_version <= sa.bindparam("up_to"),
    )
    for table in (t.publication_intent, t.publication_intent_cursor)
)
"""The statements that delete the intents of a table up to a version."""


@dataclass(frozen=True)
class Intent:
    """A commit that is to be made: it adds these files to a table, whose cursors are then those of `due`.

    `recorded` is the recorded state. `compared` has the versions of our app transaction and of the table at the
    comparison.
    """

    topic: Topic
    key: TableKey
    recorded: tuple[int, int] | None
    compared: tuple[int, int]
    add: Sequence[PublishedFile]
    due: Due


def note(connection: sa.Connection, intents: Sequence[Intent]) -> dict[TableKey, int]:
    """Note intents, of different tables. Returns for each table the version for its app transaction.

    Tables are left out if their metadata has changed since they were compared: they must be compared again.
    """
    existing = publication_state.existing(connection, [intent.topic for intent in intents])
    recorded = publication_state.recorded_of(connection, existing)
    lost = _not_in_log(connection, [intent for intent in intents if intent.topic.topic_id in existing])
    intents = [
        intent
        for intent in intents
        if intent.topic.topic_id in existing and intent.key not in lost and recorded.get(intent.key) == intent.recorded
    ]
    known = _last_versions(connection, existing)
    versions = {
        intent.key: 1 + max(intent.compared[0], intent.recorded[0] if intent.recorded else 0, known.get(intent.key, 0))
        for intent in intents
    }
    rows: list[dict[str, Any]] = []
    cursors: list[dict[str, Any]] = []
    for intent in intents:
        keys = {**intent.key._asdict(), "transaction_version": versions[intent.key]}
        rows.append(
            {
                **keys,
                "table_version": intent.compared[1] + 1,
                "recorded_table_version": intent.recorded[1] if intent.recorded else None,
                "has_replicas": intent.due.has_replicas,
            }
        )
        cursors += [
            {**keys, "partition": number, **publication_state.values(cursor)}
            for number, cursor in intent.due.cursors.items()
        ]
    for table, of_table in ((t.publication_intent, rows), (t.publication_intent_cursor, cursors)):
        if of_table:
            connection.execute(table.insert(), of_table)
    return versions


def withdraw(connection: sa.Connection, key: TableKey, version: int) -> None:
    """Delete an intent that was certainly not carried out, and never will be. Otherwise a table whose commits always
    fail would get ever more intents, and no file could be merged across their seen offsets.
    """
    for table in (t.publication_intent, t.publication_intent_cursor):
        here = (table.c[name] == value for name, value in key._asdict().items())
        connection.execute(table.delete().where(*here, table.c.transaction_version == version))


def _last_versions(connection: sa.Connection, topic_ids: Collection[TopicId]) -> dict[TableKey, int]:
    """Return the highest version of the intents of each of these topics' tables."""
    keys = [PUBLICATION_INTENT[name] for name in TableKey._fields]
    query = sa.select(*keys, sa.func.max(PUBLICATION_INTENT.transaction_version)).group_by(*keys)
    rows = connection.execute(query.where(PUBLICATION_INTENT.topic_id.in_(topic_ids)))
    return {TableKey(*key): version for *key, version in rows}


def is_noted(connection: sa.Connection, table: TableKey, version: int) -> bool:
    """Whether there is an intent with this version of our app transaction."""
    query = sa.select(PUBLICATION_INTENT.transaction_version).where(
        *(PUBLICATION_INTENT[name] == value for name, value in table._asdict().items()),
        PUBLICATION_INTENT.transaction_version == version,
    )
    return connection.execute(query).first() is not None


def settle(connection: sa.Connection, commits: Sequence[tuple[Topic, TableKey, int]]) -> None:
    """Record commits of different tables as published, and delete the intents up to them. Each commit is given by the
    version of its app transaction, which the table has.
    """
    existing = publication_state.existing(connection, [topic for topic, _, _ in commits])
    recorded = publication_state.recorded_of(connection, existing)
    intents = {
        (row.topic_id, row.log_dir_id, row.target, row.transaction_version): row
        for row in _rows(connection, t.publication_intent, existing)
    }
    cursors: dict[tuple[int, int, str, int], dict[int, Cursor]] = {}
    for row in _rows(connection, t.publication_intent_cursor, existing):
        of_table = cursors.setdefault((row.topic_id, row.log_dir_id, row.target, row.transaction_version), {})
        of_table[row.partition] = Cursor(row.change, row.high_watermark, row.seen_offset)
    after: dict[TableKey, tuple[tuple[int, int], Due]] = {}
    done: list[dict[str, Any]] = []
    for _, key, version in commits:
        intent = intents.get((*key, version))
        if intent is None:
            continue
        before = recorded.get(key)
        if before is None or before[0] < version:
            # the log has changed since the note: the next publication compares the whole table (`compare_whole_tables`)
            unknown = before is not None and before[1] < 0 and before[1] != intent.recorded_table_version
            table_version = before[1] if before is not None and unknown else intent.table_version
            due = Due(cursors.get((*key, version), {}), False, intent.has_replicas)
            after[key] = ((version, table_version), due)
        done.append({"of_topic": key[0], "in_log_dir": key[1], "to_target": key[2], "up_to": version})
    publication_state.replace(connection, after)
    if done:
        for statement in _SETTLED:
            connection.execute(statement, done)


def _not_in_log(connection: sa.Connection, intents: Sequence[Intent]) -> set[TableKey]:
    """Return the tables whose intent adds a file that is not a segment of the log. Locks the partitions, so that no
    rewrite replaces a file meanwhile.
    """
    added_files = sorted(
        (intent.topic.topic_id, file.partition, file.base_offset) for intent in intents for file in intent.add
    )
    lock_partitions(connection, sorted({(topic_id, partition) for topic_id, partition, _ in added_files}))
    in_log: set[tuple[int, str]] = set()
    for first in range(0, len(added_files), _FILES_AT_ONCE):
        names = {"topic_id": sa.BigInteger, "partition": sa.Integer, "base_offset": sa.BigInteger}
        given = sa.values(*(sa.column(name, kind) for name, kind in names.items()), name="given")
        files = given.data(added_files[first : first + _FILES_AT_ONCE]).cte("files")
        same = sa.and_(*(SEGMENT[name] == files.c[name] for name in names))
        query = sa.select(SEGMENT.topic_id, SEGMENT.partition, SEGMENT.name).select_from(files.join(t.segment, same))
        rows = connection.execute(query.where(~SEGMENT.inline))
        in_log |= {(topic_id, f"_segments/{partition}/{name}") for topic_id, partition, name in rows}
    return {
        intent.key for intent in intents if any((intent.topic.topic_id, file.path) not in in_log for file in intent.add)
    }


def _rows(connection: sa.Connection, table: sa.Table, topic_ids: Collection[TopicId]) -> sa.CursorResult[Any]:
    return connection.execute(sa.select(table).where(table.c.topic_id.in_(topic_ids)))
