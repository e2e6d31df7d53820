"""Resets the recorded state of a topic's tables after changes of its log, or of all tables of an accepted store."""

import sqlalchemy as sa

from spark_log.cluster.topics import find_topics, undamaged
from spark_log.ids import LogDirId
from spark_log.metadata import tables as t
from spark_log.metadata.insert import insert_if_missing
from spark_log.metadata.sql_columns import PUBLICATION, REPLICA
from spark_log.tables.publication_state import ICEBERG, TableKey
from spark_log.tables.topic_tables import tables_of_topic, targets

VERSIONS_SKIPPED = 100_000_000
"""More commits of a table than are made between a backup and the loss of the store."""

_UNKNOWN = sa.case((PUBLICATION.table_version < 0, PUBLICATION.table_version - 1), else_=-1)
"""A number that is no version of a table, and another one at each reset: a publication between two changes of the log
must not take the second for the first.
"""


def lower_seen_offsets(connection: sa.Connection, key: tuple[int, int], offset: int) -> None:
    """Lower the seen offsets of a partition (topic id, number) after its truncation at `offset`.

    Tables have not shown the records that will get the offsets from there on.
    """
    for table in (t.publication_cursor, t.publication_intent_cursor):
        c = table.c
        above = (c.topic_id == key[0]) & (c.partition == key[1]) & (c.seen_offset > offset)
        connection.execute(table.update().where(above).values(seen_offset=offset))
    # A publication that read the offsets before this change is refused when it records them, since the recorded state
    # is another one. A current-state table may have hidden earlier records for the sake of those that are gone.
    compare_whole_tables(connection, key[0], sa.true())


def compare_whole_tables(connection: sa.Connection, topic_id: int, where: sa.ColumnElement[bool]) -> None:
    """Make the next publication compare the whole tables of the topic whose publication rows fulfil `where`, as they
    may list files that do not exist.
    """
    here = (PUBLICATION.topic_id == topic_id) & where
    connection.execute(t.publication.update().where(here).values(table_version=_UNKNOWN))


def use_up_versions(connection: sa.Connection) -> None:
    """Skip the versions that commits of a lost store may have, in each table of each topic. The next publication then
    compares the whole table, and may remove files that the metadata does not name (`publication`).
    """
    new = [{**key._asdict(), "transaction_version": 0, "table_version": -1} for key in _unpublished(connection)]
    insert_if_missing(connection, t.publication, new)  # a publication may insert the same row meanwhile
    versions = {"transaction_version": PUBLICATION.transaction_version + VERSIONS_SKIPPED, "table_version": _UNKNOWN}
    connection.execute(t.publication.update().values(versions))


def _unpublished(connection: sa.Connection) -> list[TableKey]:
    """Return the tables that the metadata does not know yet: the lost store may have made them."""
    columns = (PUBLICATION[name] for name in TableKey._fields)
    published = {TableKey(*row) for row in connection.execute(sa.select(*columns))}
    log_dirs: dict[int, list[int]] = {}
    for topic_id, log_dir_id in connection.execute(sa.select(REPLICA.topic_id, REPLICA.log_dir_id).distinct()):
        log_dirs.setdefault(topic_id, []).append(log_dir_id)
    unpublished: list[TableKey] = []
    for topic in undamaged(find_topics(connection).values()):
        formats = targets(topic)
        keys = {
            TableKey(topic.topic_id, LogDirId(i), target)
            for i in log_dirs.get(topic.topic_id, [])
            for target in formats
        }
        if ICEBERG in formats and keys - published:
            keys = set(tables_of_topic(connection, topic))
        unpublished += sorted(keys - published)
    return unpublished
