"""Resets the recorded state of a topic's Delta tables after changes of the log."""

import sqlalchemy as sa

from spark_log.metadata import tables as t
from spark_log.metadata.sql_columns import PUBLICATION


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
    """Make the next publication compare whole Delta tables: those of the topic whose publication row fulfils `where`.

    They may list files that do not exist.
    """
    here = (PUBLICATION.topic_id == topic_id) & where
    # another number each time: a publication between two changes of the log must not take the second for the first
    unknown = sa.case((PUBLICATION.table_version < 0, PUBLICATION.table_version - 1), else_=-1)
    connection.execute(t.publication.update().where(here).values(table_version=unknown))
