"""Inserts a row that may exist already."""

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa


def insert_if_missing(connection: sa.Connection, table: sa.Table, values: Mapping[str, Any]) -> None:
    """INSERT ... ON CONFLICT DO NOTHING. Only the dialect in use is imported, which saves time."""
    if connection.dialect.name == "postgresql":
        from sqlalchemy.dialects import postgresql

        connection.execute(postgresql.insert(table).values(values).on_conflict_do_nothing())
    else:
        from sqlalchemy.dialects import sqlite

        connection.execute(sqlite.insert(table).values(values).on_conflict_do_nothing())
