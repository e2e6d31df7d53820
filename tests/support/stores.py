"""The metadata stores in tests: on which ones a test runs, and the rows of a store."""

import os
from collections.abc import Sequence
from typing import Any

import pytest
import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.settings import alter_settings
from spark_log.cluster.stores import add_store
from spark_log.metadata import tables as t
from tests.support.postgres import PostgresServer

TWO_STORES = os.environ.get("SPARK_LOG_TEST_STORES") == "two"
"""Whether all tests run in a cluster of two stores (`make test-two-stores`)."""
STORES = ["two_stores"] if TWO_STORES else ["sqlite", "postgres"]
"""The stores on which each contract test runs."""


def each_on_sqlite_last_on_postgres(names: str, cases: Sequence[tuple[Any, ...]]) -> pytest.MarkDecorator:
    """Cases that differ in a rule of the client, but not in the SQL: all on SQLite, the last one on PostgreSQL too."""
    found = [("sqlite", *case) for case in cases] + [("postgres", *cases[-1])]
    return pytest.mark.parametrize(f"cluster_address, {names}", found, indirect=["cluster_address"])


also_on_two_stores = pytest.mark.parametrize("cluster_address", ["sqlite", "postgres", "two_stores"], indirect=True)
"""For contract tests: one more run, with the topics of `cluster` and `three_brokers` in a data store."""


def put_topics_in_a_data_store(cluster: Cluster, server: PostgresServer) -> None:
    """Add the data store `east` on the server. It gets all new topics."""
    add_store(cluster, "east", server.create_prepared_database())
    alter_settings(cluster, {"topic.default.store": "east"})


def topics_view(cluster: Cluster) -> Cluster:
    """The cluster as the store has it that has the topics of the contract tests: of two stores the data store."""
    return cluster.at(cluster.store_ids()[-1])


def rows_of(cluster: Cluster, *tables: sa.Table) -> dict[str, list[str]]:
    """All rows of these tables (by default all tables except the commit tokens) in all stores, to show that nothing
    was written.
    """
    rows: dict[str, list[str]] = {}
    for store_id in cluster.store_ids():
        with cluster.at(store_id).store.snapshot() as connection:
            for found in tables or set(t.metadata.sorted_tables) - {t.commit_token}:
                rows.setdefault(found.name, []).extend(map(repr, connection.execute(sa.select(found)).all()))
    return {name: sorted(found) for name, found in rows.items()}
