"""Finds the offsets up to which tables have shown the records of a partition: no rewritten file may cross one of them.

A stream of such a table would get both old and new records from a file that crosses its offset.
"""

from collections.abc import Iterable

import sqlalchemy as sa

from spark_log.cluster.topics import Topic
from spark_log.metadata import tables as t
from spark_log.metadata.sql_columns import LOG_DIR
from spark_log.tables.publication_state import CURRENT


def seen_offsets(connection: sa.Connection, topic: Topic, partition: int) -> list[int]:
    """Return the distinct offsets up to which the topic's tables have shown the partition's records, or may have shown
    them after a commit that was noted and not recorded.

    If a file crossed such an offset, only some of its records would be new to that table.
    """
    recorded, noted = (
        sa.select(table.c.seen_offset).where(
            table.c.topic_id == topic.topic_id, table.c.partition == partition, table.c.target != CURRENT
        )
        for table in (t.publication_cursor, t.publication_intent_cursor)
    )
    return list(connection.execute(sa.union(recorded, noted)).scalars())


def listed_above_tail(
    connection: sa.Connection, topic: Topic, partition: int | None = None, *, online: bool | None = None
) -> list[tuple[int, int]]:
    """Return the ranges [seen offset, limit) of the topic's tables, including commits that were noted and not recorded.
    `partition` limits them to one partition, and `online` to tables in online (True) or offline (False) log dirs. No
    publication can end ranges of offline log dirs now.

    The tables list the files in such a range, above records that were inline then and may be in a file now. For a
    stream of the table, a merge of two of these files would hold both old and new records, and a rewritten file would
    be new (`Cursor.has_seen`). So only an erase rewrites such files.
    """
    numbers = sa.true() if partition is None else sa.column("partition") == partition
    log_dirs = sa.select(LOG_DIR.log_dir_id).where(LOG_DIR.online == online)
    recorded, noted = (
        sa.select(table.c.seen_offset, table.c.high_watermark).where(
            table.c.topic_id == topic.topic_id,
            numbers,
            sa.true() if online is None else table.c.log_dir_id.in_(log_dirs),
            table.c.target != CURRENT,
            table.c.seen_offset < table.c.high_watermark,
        )
        for table in (t.publication_cursor, t.publication_intent_cursor)
    )
    return [(seen, limit) for seen, limit in connection.execute(sa.union(recorded, noted))]


def overlaps(base_offset: int, end_offset: int, ranges: Iterable[tuple[int, int]]) -> bool:
    """Whether a file with these offsets is partly in one of the ranges [first, limit)."""
    return any(base_offset < limit and end_offset > first for first, limit in ranges)
