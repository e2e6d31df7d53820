"""Sessions of processes that are stopped inside a transaction on PostgreSQL, and copies of rows, which are not."""

import contextlib
import itertools
import threading
import time

import psycopg
import pytest
import sqlalchemy as sa

from spark_log.errors import (
    MetadataStoreUnavailableError,
)
from spark_log.maintenance.coordinator.coordinator import Coordinator
from spark_log.metadata import store as store_module
from spark_log.metadata import tables as t
from spark_log.metadata.cascade import copy_rows_of_topic
from spark_log.metadata.connections.engine import pid_of
from spark_log.metadata.prepared import Prepared, one_message
from spark_log.replication.controller.topic_operations import create_topic
from tests.support.stores import rows_of
from tests.support.waiting import wait_until


def test_process_stopped_while_it_sends_statements_is_ended_by_one_that_waits(
    postgres_cluster, postgres_url, monkeypatch
):
    """The server itself would wait for the rest of the message, and keep the locks, for ever."""
    monkeypatch.setattr(store_module, "LOCKING_SILENT_MS", 50)
    store = postgres_cluster.store
    create_topic(postgres_cluster, "t")
    change = Prepared(sa.text("UPDATE partition SET change = change + 1"))

    def change_soon(connection):
        connection.execute(sa.text("SET LOCAL lock_timeout = 100"))  # instead of 3 s
        change.run(connection, [{}])

    other = threading.Thread(target=lambda: store.transact(change_soon))

    attempts = itertools.count()

    def stopped(connection):
        attempt = next(attempts)
        with one_message(connection):
            change.run(connection, [{}])
            if attempt == 0:
                with sa.create_engine(postgres_url).connect() as watching:
                    while watching.execute(sa.text("SELECT 1 FROM partition FOR UPDATE SKIP LOCKED")).all():
                        watching.rollback()  # the server has not executed the statement yet
                other.start()
                other.join(timeout=60)
                assert not other.is_alive()
        return attempt

    number = sa.select(t.partition.c.change)
    with store.snapshot() as reading:  # it has been silent for as long, and keeps no lock of a row
        before = reading.execute(number).scalar_one()
        assert store.transact(stopped) == 1, "the second try is the one that counts"
        assert reading.execute(number).scalar_one() == before
    assert store.read(lambda c: c.execute(number).scalar_one()) == 2


@pytest.mark.parametrize("last", ["a statement", "one message", "several rows", "several rows by SQLAlchemy"])
def test_locks_of_a_process_stopped_inside_a_transaction_expire(postgres_cluster, last, monkeypatch):
    """The server ends its transaction, or a process that waits does; here after 50 ms instead of seconds.

    `last`: what it did last. All but a statement are sent in a pipeline, which ends with a Flush if its statements take
    longer than sending them. After that, the server counts no time.
    """
    store = postgres_cluster.store
    topic = create_topic(postgres_cluster, "t")
    settings = sa.text("SELECT current_setting('idle_in_transaction_session_timeout'), current_setting('lock_timeout')")
    assert store.read(lambda connection: connection.execute(settings).one()) == ("10s", "3s")
    here = t.partition.c.topic_id == topic.topic_id
    change = t.partition.update().where(here).values(change=t.partition.c.change + 1)
    slow = sa.text("UPDATE partition SET change = change FROM pg_sleep(:seconds)")

    def change_soon(connection):
        if last != "a statement":
            connection.execute(sa.text("SET LOCAL lock_timeout = 200"))  # instead of 3 s
        connection.execute(change)

    if last != "a statement":
        monkeypatch.setattr(store_module, "LOCKING_SILENT_MS", 50)
    other = threading.Thread(target=lambda: store.transact(change_soon))

    attempts = itertools.count()

    def stopped(connection):
        attempt = next(attempts)
        if attempt == 0:
            connection.execute(sa.text("SET LOCAL idle_in_transaction_session_timeout = 50"))
        rows = [{"seconds": 0.1}] * (2 if last.startswith("several") else 1)
        if last.endswith("SQLAlchemy"):
            connection.execute(slow, rows)
        else:
            with one_message(connection) if last == "one message" else contextlib.nullcontext():
                Prepared(slow).run(connection, rows)
        if attempt == 0:
            other.start()
            other.join(timeout=60)  # it gets the lock only when the server has ended our transaction
        return connection.execute(change).rowcount, attempt

    assert store.transact(stopped) == (1, 1), "the second try is the one that counts"
    assert store.read(lambda c: c.execute(sa.select(t.partition.c.change)).scalar_one()) == 2


def test_a_coordinator_ends_the_session_of_a_stopped_process_for_which_nobody_waits(postgres_cluster, monkeypatch):
    """Its open transaction would keep VACUUM from removing rows."""
    monkeypatch.setattr(store_module, "SILENT_MS", 50)
    store = postgres_cluster.store
    create_topic(postgres_cluster, "t")
    slow = sa.text("UPDATE partition SET change = change FROM pg_sleep(:seconds)")
    sessions = sa.text("SELECT count(*) FROM pg_stat_activity WHERE pid = :pid")

    attempts = itertools.count()

    def stopped(connection):
        attempt = next(attempts)
        if attempt == 0:
            pid = connection.connection.dbapi_connection.info.backend_pid
            connection.execute(slow, [{"seconds": 0.1}] * 2)
            is_there = lambda other: other.execute(sessions, {"pid": pid}).scalar_one()  # noqa: E731
            with Coordinator(postgres_cluster):
                wait_until(lambda: not store.read(is_there))
        return connection.execute(sa.text("SELECT 1")).scalar_one(), attempt

    assert store.transact(stopped) == (1, 1), "the first try has lost its session"


@pytest.mark.parametrize("goes_on", [True, False])
def test_the_session_of_a_copy_of_rows_is_ended_only_if_it_receives_no_more(postgres_cluster, monkeypatch, goes_on):
    """A COPY is one statement, for whose rows the server waits now and then: else no large topic could be moved."""
    monkeypatch.setattr(store_module, "SILENT_MS", 50)
    store = postgres_cluster.store
    received = sa.text(
        "SELECT bytes_processed FROM pg_stat_progress_copy JOIN pg_stat_activity USING (pid)"
        " WHERE pid = :pid AND wait_event = 'ClientRead'"
    )

    def bytes_of(pid):
        return store.read(lambda connection: connection.execute(received, {"pid": pid}).scalar())

    def copy(connection):
        pid = pid_of(connection)
        with connection.connection.dbapi_connection.cursor().copy("COPY blob (name, data) FROM STDIN") as rows:
            for number in range(4):
                before = bytes_of(pid) or 0
                rows.write_row((f"{number}", bytes(500_000)))
                wait_until(lambda before=before: (bytes_of(pid) or 0) > before)
                store.end_silent_sessions(50)
                time.sleep(0.06)  # longer than SILENT_MS
            if not goes_on:
                wait_until(lambda: store.end_silent_sessions(50) or bytes_of(pid) is None)

    with contextlib.nullcontext() if goes_on else pytest.raises(psycopg.OperationalError):
        store.transact(copy)
    [blobs] = rows_of(postgres_cluster, t.blob).values()
    assert len(blobs) == (4 if goes_on else 0)


def test_a_connection_that_is_lost_in_a_copy_of_rows_is_an_error_of_the_store(postgres_cluster):
    store = postgres_cluster.store
    end = sa.text("SELECT pg_terminate_backend(:pid, 60000)")

    def copy(connection):
        pid = pid_of(connection)
        with store.snapshot_as_primary() as reading:
            store.read(lambda other: other.execute(end, {"pid": pid}).all())
            copy_rows_of_topic(reading, connection, 1)

    with pytest.raises(MetadataStoreUnavailableError):
        store.transact(copy, timeout_ms=1)
