"""The two metadata stores in tests: cases that run mostly on SQLite, and the rows of a store."""

from collections.abc import Sequence
from typing import Any

import pytest
import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.metadata import tables as t


def each_on_sqlite_last_on_postgres(names: str, cases: Sequence[tuple[Any, ...]]) -> pytest.MarkDecorator:
    """Cases that differ in a rule of the client, but not in the SQL: all on SQLite, the last one on PostgreSQL too."""
    found = [("sqlite", *case) for case in cases] + [("postgres", *cases[-1])]
    return pytest.mark.parametrize(f"cluster_address, {names}", found, indirect=["cluster_address"])


also_on_two_stores = pytest.mark.parametrize("cluster_address", ["sqlite", "postgres", "two_stores"], indirect=True)
"""For contract tests: one more run, with the topics of `cluster` and `three_brokers` in a data store."""


def rows_of(cluster: Cluster, *tables: sa.Table) -> dict[str, list[str]]:
    """All rows of these tables (by default all tables except the commit tokens), to show that nothing was written."""
    with cluster.store.snapshot() as connection:
        return {
            found.name: sorted(map(repr, connection.execute(sa.select(found)).all()))
            for found in tables or set(t.metadata.sorted_tables) - {t.commit_token}
        }
