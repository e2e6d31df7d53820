"""Inserts rows that may exist already. Only the SQLAlchemy dialect in use is imported, which saves time."""

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa


def insert_if_missing(
    connection: sa.Connection, table: sa.Table, values: Mapping[str, Any] | Sequence[Mapping[str, Any]]
) -> None:
    """Insert a row, or several in one statement, unless it violates a unique key (ON CONFLICT DO NOTHING)."""
    connection.execute(_insert(connection, table).values(values).on_conflict_do_nothing())


def insert_or_replace(connection: sa.Connection, table: sa.Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows in one statement. A row whose primary key exists updates the existing row.

    All rows have the same columns. Columns that they do not have keep their values in existing rows.
    """
    statement = _insert(connection, table).values(list(rows))
    keys = list(table.primary_key.columns)
    values = {name: statement.excluded[name] for name in rows[0] if name not in {key.name for key in keys}}
    connection.execute(statement.on_conflict_do_update(index_elements=keys, set_=values))


def _insert(connection: sa.Connection, table: sa.Table) -> Any:
    if connection.dialect.name == "postgresql":
        from sqlalchemy.dialects import postgresql

        return postgresql.insert(table)
    from sqlalchemy.dialects import sqlite

    return sqlite.insert(table)
