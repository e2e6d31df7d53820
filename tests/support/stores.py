"""The metadata stores in tests: on which ones a test runs, and the rows of a store.

Some contract tests do not run in a cluster of two stores (SPARK_LOG_TEST_STORES=two): `ONE_STORE_FILES` and
`ONE_STORE_TESTS`. Share groups read topics of the home store only. For the tests of transactions, appends and
maintenance the reason is in the list. The other tests read or change rows of the home store, which in that cluster are
those of the data store, or expect one snapshot or one transaction of all.

Tests that are `on_sqlite` run there only with the mark `on_data_store`: those left out are of encoding, planning or the
client, whose rules do not depend on the store, or have a cluster of their own.
"""

import itertools
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.each_store import in_each_store
from spark_log.cluster.settings import alter_settings
from spark_log.cluster.stores import add_store
from spark_log.errors import MetadataStoreUnavailableError
from spark_log.metadata import tables as t
from spark_log.metadata.store import Store
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


def count_rows(store: Store, table: sa.Table) -> int:
    """Return the number of rows of a table."""
    query = sa.select(sa.func.count()).select_from(table)
    return int(store.read(lambda connection: connection.execute(query).scalar_one()))


ONE_STORE_FILES = frozenset(
    {
        "gateway/test_gateway_error_messages.py",
        "gateway/test_group_watches.py",
        "gateway/test_polls_together.py",
        "groups/test_dead_letters.py",
        "groups/test_facts.py",
        "groups/test_redrive.py",
        "share/test_share_admin.py",
        "share/test_share_resets.py",
        "share/test_share_crashes.py",
        "share/test_share_failover.py",
        "share/test_share_growth.py",
        "share/test_share_members.py",
        "share/test_share_pauses.py",
        "share/test_share_polls.py",
        "share/test_share_reads.py",
        "share/test_share_retention.py",
        "share/test_share_rewrites.py",
        "share/test_share_transactions.py",
    }
)
"""In tests/contract."""
ONE_STORE_TESTS = frozenset(
    {
        # of settings, or of offsets and fencing tokens only, which are at home
        "test_abort_wakes_those_who_wait_for_its_offsets",
        "test_deleted_offsets_are_not_committed_by_an_open_transaction",
        "test_empty_transactions_and_transactions_of_offsets_only",
        "test_offset_is_unstable_until_a_transaction_that_has_timed_out_is_aborted",
        "test_offsets_of_a_request_are_written_by_one_statement",
        "test_only_the_newest_fencing_token_may_act",
        "test_position_waits_for_the_end_of_the_transaction",
        "test_settings_that_exclude_transactions_are_refused",
        "test_the_earlier_setting_is_accepted_and_has_no_effect",
        # a random search of rules of the Consumer, which do not depend on the store
        "test_a_consumer_sees_a_prefix_of_one_lineage_or_reports_a_truncation",
        # one snapshot of records and offsets
        "test_a_reader_never_sees_part_of_a_transaction",
        # only home knows the time-outs of transactions: a data store takes records until home has aborted
        "test_a_transaction_beyond_its_timeout_takes_no_record",
        # one report of a task for the work of all stores, and the rows of the home store
        "test_a_dry_run_reports_the_work_of_a_run_and_changes_nothing",
        # producer ids that are forgotten at home only
        "test_an_id_that_was_forgotten_belongs_to_nobody",
    }
)


def change(cluster: Cluster, statement: Any) -> None:
    """Run a statement on each metadata store: the rows of a table are in the store of their topic, or at home."""
    in_each_store(cluster, lambda view: view.store.transact(lambda connection: connection.execute(statement)))


@contextmanager
def scanned_tables(cluster: Cluster) -> Iterator[set[str]]:
    """Yield the tables of which statements in the block read all rows. The cluster must be on SQLite."""
    scanned: set[str] = set()

    def explain(connection: Any, cursor: Any, statement: str, parameters: Any, _context: Any, many: bool) -> None:
        if not many and statement.startswith(("SELECT", "DELETE", "UPDATE")):
            steps = cursor.execute(f"EXPLAIN QUERY PLAN {statement}", parameters).fetchall()
            scanned.update(str(step[3]).split()[1] for step in steps if str(step[3]).startswith("SCAN "))

    sa.event.listen(cluster.store.engine, "before_cursor_execute", explain)
    try:
        yield scanned
    finally:
        sa.event.remove(cluster.store.engine, "before_cursor_execute", explain)


def refuse_first_reads(patch: pytest.MonkeyPatch) -> None:
    """Let stores refuse the first attempt of each read of this thread, as during a failover."""
    snapshot, thread, first = Store.snapshot, threading.current_thread(), itertools.cycle([True, False])

    @contextmanager
    def refusing_first(store: Store) -> Iterator[sa.Connection]:
        if threading.current_thread() is thread and next(first):
            raise MetadataStoreUnavailableError("a failover is in progress")
        with snapshot(store) as connection:
            yield connection

    patch.setattr(Store, "snapshot", refusing_first)
