"""Idempotent Kafka producers that pause for longer than producer.id.expiration.ms go on as with a broker (KIP-360)."""

import contextlib
from dataclasses import replace

import confluent_kafka as rdkafka
import kafka
import pytest
import sqlalchemy as sa
from kafka.protocol.producer.transaction import InitProducerIdRequest

from spark_log.facts.transactions import list_transactions
from spark_log.log.append.producer_expiry import count_silent_producers, expire_producers
from spark_log.log.append.producer_rows import register_producer
from spark_log.metadata import tables as t
from spark_log.metadata.sql_columns import PRODUCER
from spark_log.replication.controller.topic_operations import delete_topic
from spark_log.transactions.transaction_expiry import expire_ids
from spark_log.transactions.transaction_store import init_producer
from tests.support.gateway_wire import WireConnection, produced, transactional_batch
from tests.support.kafka_programs import java_producer
from tests.support.topics import make
from tests.support.waiting import LIMIT_S, wait_until

OUT_OF_ORDER_SEQUENCE_NUMBER, UNKNOWN_PRODUCER_ID = 45, 59


@pytest.fixture
def gateway(cluster, gateway):
    make(cluster, "flights", 2)
    return gateway


def forget(cluster, newer_producers=0):
    """What a day without an append does."""
    for _ in range(newer_producers):
        register_producer(cluster.store, 10_000)
    now_ms = cluster.store.now().wall_ms
    wait_until(lambda: cluster.store.now().wall_ms > now_ms)
    settings = replace(cluster.store.settings, producer_id_expiration_ms=1)
    expire_producers(cluster.store, settings)
    assert count_silent_producers(cluster.store, settings) == 0
    with cluster.store.snapshot() as connection:
        assert not connection.execute(sa.select(t.producer_batch)).all()


class Librdkafka:
    def __init__(self, address):
        self.client = rdkafka.Producer({"bootstrap.servers": address, "enable.idempotence": True})

    def sent(self, partition, value):
        """Send a record, and return its offset."""
        found = []
        self.client.produce("flights", value, partition=partition, on_delivery=lambda *each: found.append(each))
        assert self.client.flush(LIMIT_S) == 0
        [(error, message)] = found
        assert error is None
        return message.offset()


class KafkaPython:
    def __init__(self, address):
        self.client = kafka.KafkaProducer(bootstrap_servers=address)
        self.close = self.client.close

    def sent(self, partition, value):
        return self.client.send("flights", value, partition=partition).get(LIMIT_S).offset


class Java:
    def __init__(self, producer):
        self.producer = producer

    def sent(self, partition, value):
        jvm = self.producer.jvm
        record = jvm.org.apache.kafka.clients.producer.ProducerRecord("flights", partition, b"", value)
        return self.producer.java.send(record).get().offset()


@pytest.fixture
def producer(request, gateway):
    """With their defaults: Java's producer is idempotent since 3.0, kafka-python's too."""
    if request.param == "librdkafka":
        yield Librdkafka(gateway.address)
        return
    if request.param == "kafka-python":
        with contextlib.closing(KafkaPython(gateway.address)) as client:
            yield client
        return
    with java_producer({"bootstrap.servers": gateway.address}) as java:
        yield Java(java)


@pytest.mark.parametrize(
    ("cluster_address", "producer"),
    [("sqlite", "librdkafka"), ("sqlite", "kafka-python"), ("postgres", "java")],
    indirect=True,
)
def test_an_idle_client_goes_on(cluster, producer):
    """First only its sequences are forgotten, since it has the last id; then its id too."""
    for number, newer_producers in enumerate((0, 1, 0)):
        assert [producer.sent(0, b"a"), producer.sent(0, b"b")] == [2 * number, 2 * number + 1]
        assert producer.sent(1, b"c") == number
        forget(cluster, newer_producers)


@pytest.mark.on_sqlite
@pytest.mark.parametrize("producer", ["java"], indirect=True)
def test_a_client_goes_on_in_a_topic_that_was_created_again(cluster, producer):
    assert [producer.sent(0, b"a"), producer.sent(0, b"b")] == [0, 1]
    delete_topic(cluster, "flights")
    make(cluster, "flights", 2)
    assert [producer.sent(0, b"a"), producer.sent(0, b"b")] == [0, 1]


def test_the_last_id_is_not_deleted(cluster):
    """It shows which ids were assigned, also if it has been a transactional one."""
    register_producer(cluster.store, 10_000)
    ref, *_ = init_producer(cluster, "t", 10_000)
    forget(cluster)
    settings = replace(cluster.store.settings, transactional_id_expiration_ms=1)
    assert expire_ids(cluster.store, settings) == 1
    assert list_transactions(cluster) == []
    forget(cluster)
    with cluster.store.snapshot() as connection:
        assert connection.execute(sa.select(PRODUCER.producer_id)).scalars().all() == [ref.producer_id]
    register_producer(cluster.store, 10_000)
    forget(cluster)
    with cluster.store.snapshot() as connection:
        assert connection.execute(sa.select(PRODUCER.producer_id)).scalars().all() == [ref.producer_id + 1]


def test_an_id_that_was_forgotten_belongs_to_nobody(cluster, gateway):
    """An epoch in one partition does not fence the producer of another one. Other ids are not made known."""

    def appended(partition, epoch, sequence, producer_id):
        batch = transactional_batch(b"x", producer_id, epoch, sequence, flag=0)
        answer = produced(connection, "flights", batch, partition=partition)
        return answer.error_code, answer.base_offset

    with WireConnection(gateway.port) as connection:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1_000)
        producer_id = connection.exchange(request, 4).producer_id
        never_assigned = producer_id + 1_000
        assert appended(0, 0, 0, never_assigned)[0] == UNKNOWN_PRODUCER_ID
        assert appended(0, 0, 0, producer_id) == (0, 0)
        forget(cluster, newer_producers=1)
        assert appended(1, 9, 5, producer_id) == (0, 0)
        assert appended(0, 1, 3, producer_id) == (0, 1)
        assert appended(0, 1, 3, producer_id) == (0, 1), "a repetition"
        assert appended(0, 1, 5, producer_id)[0] == OUT_OF_ORDER_SEQUENCE_NUMBER
        assert appended(0, 2, 5, producer_id)[0] == UNKNOWN_PRODUCER_ID, "an epoch begins with 0"
    with cluster.store.snapshot() as connection:
        assert connection.execute(sa.select(sa.func.max(PRODUCER.producer_id))).scalar_one() < never_assigned
