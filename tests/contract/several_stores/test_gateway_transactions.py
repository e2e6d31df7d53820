"""Transactions of Kafka clients over the home store and a data store, whose gateway is killed at each step."""

from unittest.mock import Mock

import confluent_kafka
import pytest
from kafka import KafkaProducer

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.settings import alter_settings
from spark_log.cluster.stores import add_store
from spark_log.cluster.topics import find_topic, set_deleting
from spark_log.errors import UnknownTopicOrPartitionError
from spark_log.gateway.records.topic_cache import TopicCache
from spark_log.gateway.topic_stores import TopicStores
from spark_log.gateway.transactions.pending_records import commit
from spark_log.groups.committed_offsets import Commit, committed_offsets
from spark_log.groups.pending_offsets import add_offsets
from spark_log.groups.transacted_offsets import Committer
from spark_log.ids import TopicPartition
from spark_log.metadata import tables as t
from spark_log.replication.controller.topic_operations import create_topic
from spark_log.transactions import wire_transactions
from spark_log.transactions.fencing_rules import Role
from spark_log.transactions.transaction_store import init_producer
from spark_log.transactions.wire_transactions import WireProducer, take_fencing_token
from tests.support.python_process import killed_at
from tests.support.server_processes import GatewayProcess, killed_at_each
from tests.support.stores import count_rows
from tests.support.topics import TRANSACTION, stored
from tests.support.waiting import LIMIT_S

STEPS = [
    "part.joined",
    "part.registered",
    "part.prepared",
    "part.decided",
    "part.rolled-forward",
]
TRANSACTIONS = 12


@pytest.fixture
def both(stores):
    """A topic in each of two stores; transactions may use both."""
    alter_settings(stores, {"transaction.cross.store": "allow"})
    create_topic(stores, "near", store="home")
    create_topic(stores, "far", store="east")
    return stores


@pytest.mark.slow
def test_a_gateway_is_killed_at_each_step(both, tmp_path):
    gateway = GatewayProcess(tmp_path, both.store.address.with_password)
    committed = []
    with killed_at_each(gateway, STEPS):
        producer = confluent_kafka.Producer({"bootstrap.servers": gateway.address, "transactional.id": "t"})
        producer.init_transactions(60)
        for number in range(TRANSACTIONS):
            producer.begin_transaction()
            for topic in ("near", "far"):
                producer.produce(topic, b"%d" % number)
            if ended(producer, commit=number % 3 != 2):
                committed.append(f"{number}")
    assert stored(both, "near") == stored(both, "far") == {0: committed}


def ended(producer, commit):
    """End the transaction, and return whether it was committed. A call is repeated after an error that allows it."""
    while True:
        try:
            (producer.commit_transaction if commit else producer.abort_transaction)(20)
        except confluent_kafka.KafkaException as error:
            [reason] = error.args
            commit = commit and not reason.txn_requires_abort()
            if not reason.txn_requires_abort() and not reason.retriable():
                raise
        else:
            return commit


def test_the_next_producer_drops_the_pending_records_of_the_older_one_in_the_data_store(both, tmp_path):
    with GatewayProcess(tmp_path, both.store.address.with_password) as gateway:
        older, newer = (KafkaProducer(bootstrap_servers=gateway.address, transactional_id="t") for _ in range(2))
        older.init_transactions()
        older.begin_transaction()
        older.send("far", b"never").get(LIMIT_S)
        counts = [count_rows(both.at(1).store, t.transaction_segment)]
        newer.init_transactions()
        counts.append(count_rows(both.at(1).store, t.transaction_segment))
        assert counts == [1, 0]
        newer.close()
        older.close(timeout=0)
    assert stored(both, "far") == {}


@pytest.fixture
def end_of_offsets(both, log):
    """A function that ends a client's transaction with an offset of group g in each topic."""
    ref, token, _ = init_producer(both, "x", 60_000)
    producer = WireProducer("x", ref.producer_id, ref.epoch)
    wire_transactions.begin(both.store, producer, token)
    offsets = {TopicPartition(name, 0): Commit(1) for name in ("near", "far")}
    offsets_token = take_fencing_token(both.store, producer, Role.OFFSETS)
    assert not add_offsets(both.store, producer, offsets_token, Committer("g", unfenced=True), offsets)
    stores = TopicStores(both, TopicCache(both))
    yield lambda: commit(log, stores, producer, token, timeout_ms=10_000)
    stores.close()


def test_a_commit_drops_the_offset_of_a_topic_that_is_being_deleted(both, end_of_offsets):
    """It came while the topic was deleted, whose data store is down: home keeps the topic's row."""
    both.store.transact(lambda connection: set_deleting(connection, find_topic(connection, "far").topic_id))
    end_of_offsets()
    assert committed_offsets(both.store, "g") == {TopicPartition("near", 0): 1}


def test_a_commit_whose_topic_stays_unknown_fails(end_of_offsets, log, monkeypatch):
    monkeypatch.setattr(log, "append_whole", Mock(side_effect=UnknownTopicOrPartitionError("far")))
    with pytest.raises(UnknownTopicOrPartitionError):
        end_of_offsets()


@pytest.mark.slow
def test_clients_repeat_the_end_of_a_transaction_until_the_data_store_is_back(
    postgres_server, own_postgres_server, tmp_path
):
    """It is down before the decision, so that the transaction stays open, and after it."""
    with Cluster.init(postgres_server.create_prepared_database(), log_dir=str(tmp_path / "log-dir")) as cluster:
        add_store(cluster, "east", own_postgres_server.create_database())
        create_topic(cluster, "t", store="east")
        address = cluster.store.address.with_password
        with GatewayProcess(tmp_path, address) as gateway:
            config = {"bootstrap.servers": gateway.address, "transactional.id": "x"}
            producer = confluent_kafka.Producer(config)
            producer.init_transactions(60)
            producer.begin_transaction()
            producer.produce("t", b"first", partition=0)
            assert producer.flush(60) == 0
            own_postgres_server.stop()
            with pytest.raises(confluent_kafka.KafkaException) as refused:
                producer.commit_transaction(2)
            assert refused.value.args[0].retriable()
            own_postgres_server.start()
            producer.commit_transaction(60)
            killed_at("part.decided", "-c", TRANSACTION, address)
            own_postgres_server.stop()
            producer = confluent_kafka.Producer(config)
            with pytest.raises(confluent_kafka.KafkaException) as refused:
                producer.init_transactions(2)
            assert refused.value.args[0].retriable()
            own_postgres_server.start()
            producer.init_transactions(60)
            assert stored(cluster, "t") == {0: ["first", "committed"]}
