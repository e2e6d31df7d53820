"""A row that may be there already."""

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa


def insert_if_missing(connection: sa.Connection, table: sa.Table, values: Mapping[str, Any]) -> None:
    """INSERT ... ON CONFLICT DO NOTHING, which each dialect has for itself; importing another's takes its time."""
    if connection.dialect.name == "postgresql":
        from sqlalchemy.dialects import postgresql

        connection.execute(postgresql.insert(table).values(values).on_conflict_do_nothing())
    else:
        from sqlalchemy.dialects import sqlite

        connection.execute(sqlite.insert(table).values(values).on_conflict_do_nothing())
