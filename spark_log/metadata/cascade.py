"""Deletes the rows of a topic or a log dir from the tables whose definition says so (`deleted_with`)."""

from collections.abc import Iterable

import sqlalchemy as sa

from spark_log.metadata import tables as t
from spark_log.metadata.sql_columns import BLOB, SEGMENT


def delete_rows_of_topic(connection: sa.Connection, topic_id: int) -> None:
    """Delete the topic's rows from the tables that are `deleted_with` topics, and the blobs of its segments.

    The rows in tables topic, retired_file and transaction_segment stay.
    """
    inline = sa.select(SEGMENT.name).where(SEGMENT.topic_id == topic_id, SEGMENT.inline)
    connection.execute(t.blob.delete().where(BLOB.name.in_(inline)))
    for table in _deleted_with("topic"):
        connection.execute(table.delete().where(table.c.topic_id == topic_id))


def delete_rows_of_log_dirs(connection: sa.Connection, log_dir_ids: sa.Select[tuple[int]]) -> None:
    """Delete the rows of these log dirs from the tables that are `deleted_with` log dirs.

    The log dirs must have no replicas: their rows in tables log_dir and replica stay.
    """
    for table in _deleted_with("log_dir"):
        connection.execute(table.delete().where(table.c.log_dir_id.in_(log_dir_ids)))


def _deleted_with(name: str) -> Iterable[sa.Table]:
    return [table for table in t.metadata.tables.values() if name in table.info["deleted_with"]]
