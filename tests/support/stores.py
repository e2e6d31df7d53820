"""Parameters for tests that run most cases on SQLite only."""

from collections.abc import Sequence
from typing import Any

import pytest


def each_on_sqlite_last_on_postgres(names: str, cases: Sequence[tuple[Any, ...]]) -> pytest.MarkDecorator:
    """Cases that differ in a rule of the client, but not in the SQL: all on SQLite, the last one on PostgreSQL too."""
    found = [("sqlite", *case) for case in cases] + [("postgres", *cases[-1])]
    return pytest.mark.parametrize(f"cluster_address, {names}", found, indirect=["cluster_address"])
