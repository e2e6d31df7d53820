"""Inserts rows that may exist already, and reads and advances the generators of ids that are never reused: SQLite's
AUTOINCREMENT, PostgreSQL's sequences. Only the SQLAlchemy dialect in use is imported, which saves time.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

_ROWS_A_STATEMENT = 1_000
"""Stores limit the parameters of a statement: SQLite 32,766, PostgreSQL 65,535."""


def insert_if_missing(
    connection: sa.Connection, table: sa.Table, values: Mapping[str, Any] | Sequence[Mapping[str, Any]]
) -> None:
    """Insert rows, except those that violate a unique key (ON CONFLICT DO NOTHING)."""
    # SQLAlchemy caches the statement of a single row only
    for rows in [values] if isinstance(values, Mapping) else _statements(values):
        connection.execute(_insert(connection, table).values(rows).on_conflict_do_nothing())


def insert_or_replace(connection: sa.Connection, table: sa.Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows. One whose primary key exists updates the existing row.

    All rows have the same columns. Columns that they do not have keep their values in existing rows.
    """
    keys = list(table.primary_key.columns)
    for some in _statements(rows):
        statement = _insert(connection, table).values(some)
        values = {name: statement.excluded[name] for name in rows[0] if name not in {key.name for key in keys}}
        connection.execute(statement.on_conflict_do_update(index_elements=keys, set_=values))


def _statements(rows: Sequence[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    for first in range(0, len(rows), _ROWS_A_STATEMENT):
        yield list(rows[first : first + _ROWS_A_STATEMENT])


def _insert(connection: sa.Connection, table: sa.Table) -> Any:
    if connection.dialect.name == "postgresql":
        from sqlalchemy.dialects import postgresql

        return postgresql.insert(table)
    from sqlalchemy.dialects import sqlite

    return sqlite.insert(table)


def last_id(connection: sa.Connection, column: sa.Column[int]) -> int:
    """Return the last id that a generated column has assigned or left out on PostgreSQL, 0 if none."""
    from sqlalchemy.dialects import postgresql

    sequence = sa.func.pg_get_serial_sequence(f'"{column.table.name}"', column.name)
    last = sa.select(sa.func.pg_sequence_last_value(sa.cast(sequence, postgresql.REGCLASS)))
    return connection.execute(last).scalar() or 0


def skip_ids(connection: sa.Connection, column: sa.Column[int], count: int) -> None:
    """Leave out the next `count` ids of a generated column."""
    table, name = column.table.name, column.name
    if connection.dialect.name == "postgresql":
        sequence = sa.func.pg_get_serial_sequence(f'"{table}"', name)
        connection.execute(sa.select(sa.func.setval(sequence, sa.func.nextval(sequence) + count)))
        return
    skip = sa.text("UPDATE sqlite_sequence SET seq = seq + :count WHERE name = :table")
    if connection.execute(skip, {"count": count, "table": table}).rowcount == 0:  # no id was assigned yet
        connection.execute(
            sa.text("INSERT INTO sqlite_sequence (name, seq) VALUES (:table, :count)"), {"count": count, "table": table}
        )
