"""Records the intent of a publication before its commit: the state of the Delta table after it.

    note      one SQL transaction stores the new cursor of each changed partition under a new version
    commit    the commit of the Delta table has that version in its app transaction
    settle    the table has this version, so this intent was carried out: its cursors become the recorded state

A publisher that dies after its commit leaves an intent, which the next one finds by the version in the table. Until it
is settled, no new file crosses its seen offsets (`publication_state.seen_offsets`). A note is always forced to disk,
and with it everything that was committed before: a Delta table never lists a segment that the metadata could still
lose. Settling is not forced to disk: if a power loss reverts it, the next publication settles again.
"""

from collections.abc import Sequence

import sqlalchemy as sa

from spark_log.cluster.log_dir import LogDirInfo
from spark_log.cluster.topics import Topic, find_topics
from spark_log.log.partitions.partition_rows import lock_partitions
from spark_log.metadata import tables as t
from spark_log.metadata.sql_columns import PUBLICATION_INTENT, PUBLICATION_INTENT_CURSOR, SEGMENT
from spark_log.tables import publication_state
from spark_log.tables.publication_state import Cursor, Due, PublishedFile

_FILES_AT_ONCE = 1_000
"""The number of rows of VALUES in a query. PostgreSQL looks each up in the primary key, but not a long list in IN."""

_UNKNOWN = -1
"""Value of publication.delta_version that makes the next publication compare the whole table."""


def note(
    connection: sa.Connection,
    topic: Topic,
    info: LogDirInfo,
    before: tuple[int, int] | None,
    in_table: tuple[int, int],
    add: Sequence[PublishedFile],
    due: Due,
) -> int | None:
    """Note that a commit adds these files and has the cursors of `due`. Returns the version for its app transaction.

    `before` is the recorded state, and `in_table` our version and the Delta version of the table, when the two were
    compared. Returns None if the metadata has changed since then, so that they must be compared again.
    """
    now = find_topics(connection, [topic.name], lock=True).get(topic.name)
    if now is None or now.topic_id != topic.topic_id or publication_state.recorded(connection, topic, info) != before:
        return None
    if not _all_in_log(connection, topic, add):
        return None
    known = connection.execute(
        sa.select(sa.func.max(PUBLICATION_INTENT.transaction_version)).where(_here(topic, info))
    ).scalar_one()
    version = 1 + max(in_table[0], before[0] if before else 0, known or 0)
    keys = {"topic_id": topic.topic_id, "log_dir_id": info.log_dir_id, "transaction_version": version}
    intent = {
        **keys,
        "delta_version": in_table[1] + 1,
        "recorded_delta_version": before[1] if before else None,
        "has_replicas": due.has_replicas,
    }
    connection.execute(t.publication_intent.insert(), intent)
    rows = [{**keys, "partition": number, **publication_state.values(cursor)} for number, cursor in due.cursors.items()]
    if rows:
        connection.execute(t.publication_intent_cursor.insert(), rows)
    return version


def is_noted(connection: sa.Connection, topic: Topic, info: LogDirInfo, version: int) -> bool:
    """Whether there is an intent with this version of our app transaction."""
    query = sa.select(PUBLICATION_INTENT.transaction_version).where(
        _here(topic, info), PUBLICATION_INTENT.transaction_version == version
    )
    return connection.execute(query).first() is not None


def settle(connection: sa.Connection, topic: Topic, info: LogDirInfo, version: int) -> None:
    """Record our commit with this version, which the Delta table has, as published, and delete the intents up to it."""
    now = find_topics(connection, [topic.name], lock=True).get(topic.name)
    if now is None or now.topic_id != topic.topic_id:
        return
    columns = (
        PUBLICATION_INTENT.delta_version,
        PUBLICATION_INTENT.recorded_delta_version,
        PUBLICATION_INTENT.has_replicas,
    )
    this = _here(topic, info) & (PUBLICATION_INTENT.transaction_version == version)
    intent = connection.execute(sa.select(*columns).where(this)).one_or_none()
    if intent is None:
        return
    recorded = publication_state.recorded(connection, topic, info)
    if recorded is None or recorded[0] < version:
        found_unknown = recorded is not None and recorded[1] == _UNKNOWN != intent.recorded_delta_version
        cursors = sa.select(
            PUBLICATION_INTENT_CURSOR.partition,
            PUBLICATION_INTENT_CURSOR.change,
            PUBLICATION_INTENT_CURSOR.high_watermark,
            PUBLICATION_INTENT_CURSOR.seen_offset,
        ).where(
            PUBLICATION_INTENT_CURSOR.topic_id == topic.topic_id,
            PUBLICATION_INTENT_CURSOR.log_dir_id == info.log_dir_id,
            PUBLICATION_INTENT_CURSOR.transaction_version == version,
        )
        due = Due(
            {number: Cursor(*facts) for number, *facts in connection.execute(cursors)}, False, intent.has_replicas
        )
        after = (version, _UNKNOWN if found_unknown else intent.delta_version)
        publication_state.replace(connection, topic, info, recorded, after, due)
    for table in (t.publication_intent, t.publication_intent_cursor):
        c = table.c
        here = (c.topic_id == topic.topic_id) & (c.log_dir_id == info.log_dir_id)
        connection.execute(table.delete().where(here, c.transaction_version <= version))


def _all_in_log(connection: sa.Connection, topic: Topic, files: Sequence[PublishedFile]) -> bool:
    """Whether every file is a segment of the log. Locks the partitions, so that no rewrite replaces one meanwhile."""
    lock_partitions(connection, sorted({(topic.topic_id, file.partition) for file in files}))
    wanted = sorted((file.partition, file.base_offset, file.path) for file in files)
    for first in range(0, len(wanted), _FILES_AT_ONCE):
        chunk = wanted[first : first + _FILES_AT_ONCE]
        given = sa.values(sa.column("partition", sa.Integer), sa.column("base_offset", sa.BigInteger), name="given")
        pairs = given.data([(partition, base) for partition, base, _ in chunk]).cte("pairs")
        same = (SEGMENT.partition == pairs.c.partition) & (SEGMENT.base_offset == pairs.c.base_offset)
        query = sa.select(SEGMENT.partition, SEGMENT.name).select_from(pairs.join(t.segment, same))
        query = query.where(SEGMENT.topic_id == topic.topic_id, ~SEGMENT.inline)
        found = {f"_segments/{partition}/{name}" for partition, name in connection.execute(query)}
        if any(path not in found for *_, path in chunk):
            return False
    return True


def _here(topic: Topic, info: LogDirInfo) -> sa.ColumnElement[bool]:
    return (PUBLICATION_INTENT.topic_id == topic.topic_id) & (PUBLICATION_INTENT.log_dir_id == info.log_dir_id)
