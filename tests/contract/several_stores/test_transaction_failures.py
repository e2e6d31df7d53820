"""A data store is down in a transaction, or crashes and loses what was not forced to disk, or home's answer is lost."""

import os
import signal
from contextlib import contextmanager

import pytest

from spark_log import Producer
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.stores import add_store
from spark_log.errors import (
    MetadataStoreUnavailableError,
    TransactionAbortableError,
    TransactionCommitPendingError,
)
from spark_log.replication.controller.topic_operations import create_topic
from spark_log.transactions import transaction_parts
from tests.support.postgres_proxy import PostgresProxy
from tests.support.topics import stored
from tests.support.waiting import LIMIT_S

UNFLUSHED = {"commit_delay": 0, "wal_writer_delay": "10s"}
"""Only durable commits reach the disk: a crash loses the others."""
SHORT_MS = 500


@pytest.fixture
def far(postgres_server, own_postgres_server, tmp_path):
    """A cluster whose data store is in a server of its own, with a topic there."""
    own_postgres_server.stop()
    own_postgres_server.start(**UNFLUSHED)
    with Cluster.init(postgres_server.create_prepared_database(), log_dir=str(tmp_path / "log-dir")) as cluster:
        add_store(cluster, "far", own_postgres_server.create_database())
        create_topic(cluster, "there", store="far")
        yield cluster


def begun(cluster, value):
    producer = Producer(cluster=cluster.store.address.with_password, transactional_id="t")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("there", value).get(LIMIT_S)
    return producer


@contextmanager
def impatient(producer):
    """The producer waits for a store that is down for a short time only."""
    transaction = producer._transaction
    before, transaction._timeout_ms = transaction._timeout_ms, SHORT_MS
    yield
    transaction._timeout_ms = before


def test_a_store_that_is_down(far, own_postgres_server, monkeypatch):
    server = own_postgres_server
    with begun(far, b"a") as producer:
        server.stop()
        with impatient(producer), pytest.raises(MetadataStoreUnavailableError):  # not prepared: it is still open
            producer.commit_transaction()
        server.start(**UNFLUSHED)
        complete = transaction_parts.complete

        def stopped_before(*arguments, **options):
            monkeypatch.undo()
            server.kill()  # what is prepared survives that
            complete(*arguments, **{**options, "timeout_ms": SHORT_MS})

        monkeypatch.setattr(transaction_parts, "complete", stopped_before)
        with pytest.raises(TransactionCommitPendingError):  # it is committed
            producer.commit_transaction()
        with impatient(producer), pytest.raises(TransactionCommitPendingError):
            producer.commit_transaction()
        server.start(**UNFLUSHED)
        [written] = producer.commit_transaction()
        assert written.base_offset == 0
    assert stored(far, "there") == {0: ["a"]}


@pytest.mark.slow
def test_a_crash_that_loses_registrations(far, own_postgres_server):
    writer = own_postgres_server.query("SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'")
    os.kill(int(writer), signal.SIGSTOP)  # it would flush the registration if its 10 s are over just now
    with begun(far, b"a") as producer:
        own_postgres_server.kill()
        own_postgres_server.start(**UNFLUSHED)
        with pytest.raises(TransactionAbortableError, match="1 batches were sent and 0 are there"):
            producer.commit_transaction()
        producer.abort_transaction()
        producer.begin_transaction()
        producer.send("there", b"b").get(LIMIT_S)
        producer.commit_transaction()
    assert stored(far, "there") == {0: ["b"]}


@pytest.mark.parametrize("moment", ["before", "during", "after"])
def test_a_connection_to_a_data_store_is_lost_in_each_step(postgres_server, tmp_path, moment):
    with (
        PostgresProxy(postgres_server.port) as proxy,
        Cluster.init(postgres_server.create_prepared_database(), log_dir=str(tmp_path / "log-dir")) as cluster,
    ):
        add_store(cluster, "far", proxy.address(postgres_server.create_prepared_database()))
        create_topic(cluster, "there", store="far")
        address = cluster.store.address.with_password
        with Producer(cluster=address, transactional_id="t") as producer:
            producer.init_transactions()
            for value, passed in (("registers", 0), ("prepares", 1), ("rolls forward", 2)):
                producer.begin_transaction()
                cut = proxy.cut(moment, "transaction_part", passed=passed)
                producer.send("there", value.encode()).get(LIMIT_S)
                assert cut.done.is_set() == (passed == 0)
                producer.commit_transaction()
                assert cut.done.is_set()
        assert stored(cluster, "there") == {0: ["registers", "prepares", "rolls forward"]}


@pytest.mark.parametrize("moment", ["before", "during", "after"])
def test_a_connection_to_home_is_lost_in_the_decision(stores, postgres_server, moment):
    create_topic(stores, "there", store="east")
    with PostgresProxy(postgres_server.port) as proxy:
        address = proxy.address(stores.store.address.with_password)
        with Producer(cluster=address, transactional_id="t") as producer:
            producer.init_transactions()
            for value in (b"a", b"b"):
                producer.begin_transaction()
                producer.send("there", value).get(LIMIT_S)
                cut = proxy.cut(moment, "UPDATE transaction SET")
                producer.commit_transaction()
                assert cut.done.is_set()
    assert stored(stores, "there") == {0: ["a", "b"]}
