"""Stores the completed compactions of partitions."""

from collections.abc import Collection, Sequence
from typing import Any

import sqlalchemy as sa

from spark_log.log.partitions.partition_rows import Key
from spark_log.metadata import tables as t
from spark_log.metadata.sql_columns import COMPACTION


def delete_compactions_above(connection: sa.Connection, key: Key, offset: int) -> None:
    """Delete the compactions that end above `offset`: a truncation has removed some of their records."""
    connection.execute(t.compaction.delete().where(_of(key), COMPACTION.end_offset > offset))


def replace_compactions(
    connection: sa.Connection, key: Key, gone: Collection[int], new: Sequence[dict[str, Any]]
) -> None:
    """Delete the compactions that end at the offsets `gone`, and insert the rows `new`."""
    connection.execute(t.compaction.delete().where(_of(key), COMPACTION.end_offset.in_(gone)))
    if new:
        connection.execute(t.compaction.insert(), new)


def _of(key: Key) -> sa.ColumnElement[bool]:
    return (COMPACTION.topic_id == key[0]) & (COMPACTION.partition == key[1])
