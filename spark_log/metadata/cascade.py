"""Deletes the rows of a topic or a log dir from the tables whose definition says so (`deleted_with`), and copies the
rows of a topic to another store.
"""

from collections.abc import Iterable

import sqlalchemy as sa

from spark_log.metadata import tables as t
from spark_log.metadata.prepared import driver_of
from spark_log.metadata.sql_columns import BLOB, SEGMENT

_OF_HOME = ("groups", "transactions")
"""The owners of tables of a topic that only the home store has."""


def delete_rows_of_topic(connection: sa.Connection, topic_id: int) -> None:
    """Delete the topic's rows from the tables that are `deleted_with` topics, and the blobs of its segments.

    The rows in tables topic, retired_file and transaction_segment stay.
    """
    _delete_blobs(connection, topic_id)
    for table in _deleted_with("topic"):
        connection.execute(table.delete().where(table.c.topic_id == topic_id))


def delete_moved_rows(connection: sa.Connection, topic_id: int) -> None:
    """Delete the rows that `copy_rows_of_topic` copies."""
    _delete_blobs(connection, topic_id)
    for table in (*_moved_tables(), t.retired_file):
        connection.execute(table.delete().where(table.c.topic_id == topic_id))


def copy_rows_of_topic(source: sa.Connection, target: sa.Connection, topic_id: int) -> None:
    """Copy the rows of a topic from one PostgreSQL store to another: partitions, segments, blobs, publications, and
    all others. The topic's own row is left out, and rows of groups and transactions, which are in the home store.
    """
    for table in (*_moved_tables(), t.retired_file):
        _copy(source, target, table, table.c.topic_id == topic_id)
    inline = sa.select(SEGMENT.name).where(SEGMENT.topic_id == topic_id, SEGMENT.inline)
    _copy(source, target, t.blob, BLOB.name.in_(inline))


def delete_rows_of_log_dirs(connection: sa.Connection, log_dir_ids: sa.Select[tuple[int]]) -> None:
    """Delete the rows of these log dirs from the tables that are `deleted_with` log dirs.

    The log dirs must have no replicas: their rows in tables log_dir and replica stay.
    """
    for table in _deleted_with("log_dir"):
        connection.execute(table.delete().where(table.c.log_dir_id.in_(log_dir_ids)))


def _deleted_with(name: str) -> Iterable[sa.Table]:
    return [table for table in t.metadata.tables.values() if name in table.info["deleted_with"]]


def _moved_tables() -> Iterable[sa.Table]:
    return [table for table in _deleted_with("topic") if table.info["owner"] not in _OF_HOME]


def _delete_blobs(connection: sa.Connection, topic_id: int) -> None:
    inline = sa.select(SEGMENT.name).where(SEGMENT.topic_id == topic_id, SEGMENT.inline)
    connection.execute(t.blob.delete().where(BLOB.name.in_(inline)))


def _copy(source: sa.Connection, target: sa.Connection, table: sa.Table, where: sa.ColumnElement[bool]) -> None:
    columns = ", ".join(f'"{column.name}"' for column in table.columns)
    query = sa.select(table).where(where).compile(dialect=source.dialect, compile_kwargs={"literal_binds": True})
    try:
        with (
            driver_of(source).cursor().copy(f"COPY ({query}) TO STDOUT (FORMAT BINARY)") as rows,
            driver_of(target).cursor().copy(f'COPY "{table.name}" ({columns}) FROM STDIN (FORMAT BINARY)') as copied,
        ):
            for data in rows:
                copied.write(data)
    except source.dialect.loaded_dbapi.OperationalError as error:  # SQLAlchemy does not see the driver's errors here
        raise sa.exc.OperationalError("COPY", None, error, connection_invalidated=True) from error
