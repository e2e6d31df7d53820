"""The generators of ids that are never reused: SQLite's AUTOINCREMENT, PostgreSQL's sequences."""

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql


def last_id(connection: sa.Connection, column: sa.Column[int]) -> int:
    """Return the last id that a generated column has assigned or left out on PostgreSQL, 0 if none."""
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
