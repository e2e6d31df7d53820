"""Transactions of Kafka clients on gateways: librdkafka, kafka-python and Java, on both stores."""

import contextlib
import operator

import confluent_kafka as rdkafka
import kafka
import pytest
import sqlalchemy as sa
from kafka.structs import OffsetAndMetadata, TopicPartition

from spark_log import Consumer, Producer
from spark_log.cluster.cluster import Cluster
from spark_log.facts.transactions import list_transactions
from spark_log.groups.committed_offsets import committed_offsets
from spark_log.metadata import tables as t
from spark_log.metadata.sql_columns import PRODUCER
from spark_log.replication.controller.topic_operations import delete_topic
from spark_log.transactions.transaction_expiry import abort_timed_out
from tests.support.kafka_programs import java_producer
from tests.support.records import topic_values
from tests.support.server_processes import GatewayProcess, killed_at_each
from tests.support.stores import change
from tests.support.topics import make
from tests.support.waiting import LIMIT_S

WAIT_S = LIMIT_S


ONE_BROKER = {
    "metadata.recovery.strategy": "none",
    "reconnect.backoff.ms": 10,
    "reconnect.backoff.max.ms": 200,
    "retry.backoff.ms": 10,
    "retry.backoff.max.ms": 200,
}
"""librdkafka 2.16 forgets its only broker while that is away, and then waits for the forgotten one. It should come back
soon after the broker does."""


class Librdkafka:
    """The calls of these tests, by confluent-kafka."""

    def __init__(self, address, transactional_id, **settings):
        named = {name.replace("_", "."): value for name, value in settings.items()}
        self.address = address
        self.client = rdkafka.Producer(
            {"bootstrap.servers": address, "transactional.id": transactional_id, **ONE_BROKER, **named}
        )
        self.client.init_transactions(WAIT_S)
        self.offsets = []

    def begin(self):
        self.client.begin_transaction()

    def send(self, topic, *values, partition=0):
        for value in values:
            self.client.produce(
                topic, value, b"k", partition, on_delivery=lambda _, sent: self.offsets.append(sent.offset())
            )
        assert self.client.flush(WAIT_S) == 0

    def commit(self):
        self.client.commit_transaction(WAIT_S)

    def abort(self):
        self.client.abort_transaction(WAIT_S)

    def add_offsets(self, topic, offset, group):
        with contextlib.closing(rdkafka.Consumer({"bootstrap.servers": self.address, "group.id": group})) as consumer:
            metadata = consumer.consumer_group_metadata()
            self.client.send_offsets_to_transaction([rdkafka.TopicPartition(topic, 0, offset)], metadata, WAIT_S)

    def close(self):
        self.client.flush(1)


class KafkaPython:
    def __init__(self, address, transactional_id):
        self.client = kafka.KafkaProducer(bootstrap_servers=address, transactional_id=transactional_id)
        self.client.init_transactions()
        self.offsets = []
        self.begin, self.commit, self.abort = (
            self.client.begin_transaction, self.client.commit_transaction, self.client.abort_transaction,
        )  # fmt: skip

    def send(self, topic, *values, partition=0):
        sent = [self.client.send(topic, value, b"k", partition=partition) for value in values]
        self.offsets += [each.get(WAIT_S).offset for each in sent]

    def add_offsets(self, topic, offset, group):
        self.client.send_offsets_to_transaction({TopicPartition(topic, 0): OffsetAndMetadata(offset, "", -1)}, group)

    def close(self):
        self.client.close(1)


class Java:
    def __init__(self, address, transactional_id):
        self._stack = contextlib.ExitStack()
        settings = {"bootstrap.servers": address, "transactional.id": transactional_id}
        producer = self._stack.enter_context(java_producer(settings))
        self.client, self._jvm = producer.java, producer.jvm
        self.client.initTransactions()
        self.offsets = []
        self.begin, self.commit, self.abort = (
            self.client.beginTransaction, self.client.commitTransaction, self.client.abortTransaction,
        )  # fmt: skip

    def send(self, topic, *values, partition=0):
        record = self._jvm.org.apache.kafka.clients.producer.ProducerRecord
        sent = [self.client.send(record(topic, partition, b"k", value)) for value in values]
        self.client.flush()
        self.offsets += [each.get().offset() for each in sent]

    def add_offsets(self, topic, offset, group):
        clients = self._jvm.org.apache.kafka.clients.consumer
        offsets = self._jvm.java.util.HashMap()
        offsets.put(self._jvm.org.apache.kafka.common.TopicPartition(topic, 0), clients.OffsetAndMetadata(offset))
        self.client.sendOffsetsToTransaction(offsets, clients.ConsumerGroupMetadata(group))

    def close(self):
        self._stack.close()


CLIENTS = {"librdkafka": (Librdkafka, -1001), "kafka-python": (KafkaPython, -1), "Java": (Java, -1)}


@pytest.mark.parametrize(
    ("cluster_address", "client"),
    [("sqlite", "librdkafka"), ("sqlite", "kafka-python"), ("postgres", "Java")],
    indirect=["cluster_address"],
)
def test_readers_see_committed_transactions_only(request, cluster, gateway, client):
    make(cluster, "t", 2)
    make(cluster, "input", 1)
    kind, no_offset = CLIENTS[client]
    producer = kind(gateway.address, "id")
    request.addfinalizer(producer.close)
    expected = []
    for number in range(4):
        aborted = number % 2 == 1
        producer.begin()
        first, second = b"%d-0" % number, b"%d-1" % number
        producer.send("t", first, first)
        producer.send("t", second, partition=1)
        producer.add_offsets("input", 0 if aborted else number + 1, "g")
        assert topic_values(cluster, "t") == expected, "records of an open transaction are not visible"
        (producer.abort if aborted else producer.commit)()
        if not aborted:
            expected = sorted([*expected, first, first, second], key=lambda each: (each[-1:], each))
        assert topic_values(cluster, "t") == expected
        assert committed_offsets(cluster.store, "g") == {("input", 0): number if aborted else number + 1}
    producer.begin()  # only offsets
    producer.add_offsets("input", 7, "g")
    producer.commit()
    assert committed_offsets(cluster.store, "g") == {("input", 0): 7}
    assert [each for each in producer.offsets if each is not None] in ([no_offset] * 12, [])
    [found] = list_transactions(cluster)
    assert (found.transactional_id, found.state.value, found.batches) == ("id", "CompleteCommit", 0)


@pytest.mark.on_sqlite
@pytest.mark.on_data_store
def test_newer_producer_fences_the_older_one(cluster, cluster_address, gateway):
    make(cluster, "t", 1)
    older = Librdkafka(gateway.address, "id")
    older.begin()
    older.send("t", b"first")
    older.commit()
    older.begin()
    older.send("t", b"lost")
    newer = Librdkafka(gateway.address, "id")
    newer.begin()
    newer.send("t", b"kept")
    with pytest.raises(rdkafka.KafkaException) as refused:
        older.commit()
    assert refused.value.args[0].fatal()
    newer.abort()  # its sequences are those of the older one, whose epoch is over
    newer.begin()
    newer.send("t", b"kept")
    newer.commit()
    assert topic_values(cluster, "t") == [b"first", b"kept"]
    own = Producer(cluster=cluster_address, transactional_id="id")  # and so does one of spark-log
    own.init_transactions()
    newer.begin()
    with pytest.raises(rdkafka.KafkaException) as refused:
        newer.add_offsets("t", 1, "g")
    assert refused.value.args[0].fatal()
    own.begin_transaction()
    own.send("t", b"own")
    own.commit_transaction()
    own.close()
    assert topic_values(cluster, "t") == [b"first", b"kept", b"own"]


@pytest.mark.on_sqlite
@pytest.mark.on_data_store
def test_transaction_that_is_open_for_too_long_is_aborted_and_its_client_fenced(cluster, gateway):
    make(cluster, "t", 1)
    producer = Librdkafka(gateway.address, "id", transaction_timeout_ms=70_000)
    producer.begin()
    producer.send("t", b"lost")
    until_ms = cluster.store.read(lambda c: c.execute(sa.select(t.transaction.c.until_ms)).scalar_one())
    assert 60_000 < until_ms - cluster.store.now().lease_ms <= 70_000
    change(cluster, t.transaction.update().values(until_ms=0))
    assert list(abort_timed_out(cluster)) == ["id"]
    with pytest.raises(rdkafka.KafkaException) as refused:
        producer.commit()
    assert refused.value.args[0].fatal()
    assert topic_values(cluster, "t") == []


@pytest.mark.parametrize(
    ("cluster_address", "kind"),
    [("sqlite", "spark-log"), ("postgres", "librdkafka")],
    indirect=["cluster_address"],
)
def test_next_member_waits_for_the_offset_that_an_open_transaction_may_commit(cluster, cluster_address, gateway, kind):
    for name in ("input", "t"):
        make(cluster, name, 1)
    own = Producer(cluster=cluster_address)
    own.send("input", b"v").get()
    first = group_consumer(gateway.address)
    first.subscribe(["input"])
    assert first.poll(WAIT_S).value() == b"v"
    producer = Librdkafka(gateway.address, "id")
    producer.begin()
    offsets, metadata = first.position(first.assignment()), first.consumer_group_metadata()
    producer.client.send_offsets_to_transaction(offsets, metadata, WAIT_S)
    first.close()
    if kind == "librdkafka":
        second = group_consumer(gateway.address)
        second.subscribe(["input"])
        poll = second.consume
        value_of = rdkafka.Message.value
    else:
        second = Consumer("input", cluster=cluster_address, group_id="g", auto_offset_reset="earliest")
        poll = lambda _, timeout_s: [r for rs in second.poll(timeout_s * 1000).values() for r in rs]  # noqa: E731
        value_of = operator.attrgetter("value")
    assert poll(1, 1.5) == []
    producer.commit()
    own.send("input", b"w").get()
    assert [value_of(each) for each in poll(1, WAIT_S)] == [b"w"]
    producer.begin()  # the first member has left
    with pytest.raises(rdkafka.KafkaException) as refused:
        producer.client.send_offsets_to_transaction(offsets, metadata, WAIT_S)
    assert refused.value.args[0].txn_requires_abort()
    producer.abort()
    producer.begin()
    producer.send("t", b"kept")
    producer.commit()
    assert topic_values(cluster, "t") == [b"kept"]
    second.close()
    own.close()


def test_commit_goes_on_without_a_topic_that_was_deleted(cluster, gateway):
    for name in ("gone", "t"):
        make(cluster, name, 1)
    producer = Librdkafka(gateway.address, "id")
    producer.begin()
    producer.send("gone", b"lost")
    producer.send("t", b"kept")
    delete_topic(cluster, "gone")
    producer.commit()
    assert topic_values(cluster, "t") == [b"kept"]
    blobs, segments = (
        cluster.store.read(lambda c, table=table: set(c.execute(sa.select(table.c.name)).scalars()))
        for table in (t.blob, t.segment)
    )
    assert blobs <= segments, "no blob of the deleted topic is left"


def test_transactional_id_gets_another_producer_when_its_epochs_are_used_up(cluster, gateway):
    make(cluster, "t", 1)
    Librdkafka(gateway.address, "id")
    [before] = list_transactions(cluster)
    with cluster.store.engine.begin() as connection:
        connection.execute(sa.update(t.producer).where(PRODUCER.transactional_id == "id").values(epoch=2**15 - 2))
    producer = Librdkafka(gateway.address, "id")
    [after] = list_transactions(cluster)
    assert after.producer_id > before.producer_id and after.producer_epoch == 0
    producer.begin()
    producer.send("t", b"v")
    producer.commit()
    assert topic_values(cluster, "t") == [b"v"]


STEPS = [
    "gateway.transaction-begun", "transaction.registered", "gateway.offsets-added", "append.decided",
    "append.committed", "transaction.committed", "transaction.aborted", "transaction.initialized",
]  # fmt: skip


RECORDS = 40


@pytest.mark.slow
def test_each_record_is_transformed_once_when_the_gateway_is_killed_at_each_step(postgres_server, tmp_path):
    """It is killed at one step after the other. Each fifth transaction is aborted and done again."""
    address = postgres_server.create_prepared_database()
    with Cluster.init(address, log_dir=str(tmp_path / "log-dir")) as cluster:
        check_transform(cluster, address, tmp_path)


def check_transform(cluster, address, tmp_path):
    make(cluster, "input", 1)
    make(cluster, "output", 2)
    with Producer(cluster=address) as own:
        for number in range(RECORDS):
            own.send("input", b"%d" % number)
    gateway = GatewayProcess(tmp_path, address)
    with killed_at_each(gateway, STEPS):
        transform(gateway.address)
        Librdkafka(gateway.address, "id")
    assert sorted(topic_values(cluster, "output"), key=int) == [b"%d" % number for number in range(RECORDS)]
    assert committed_offsets(cluster.store, "g") == {("input", 0): RECORDS}


def transform(servers):
    """Copies records, two in a transaction; after an error that allows it, from the last committed offset again."""
    consumer = group_consumer(servers)
    consumer.subscribe(["input"])
    producer = Librdkafka(servers, "id")
    done, turn = 0, 0
    while done < RECORDS:
        messages = consumer.consume(2, WAIT_S)
        assert messages and not any(each.error() for each in messages), [each.error() for each in messages]
        turn += 1
        try:
            producer.begin()
            for each in messages:
                producer.send("output", each.value(), partition=each.offset() % 2)
            offsets = [rdkafka.TopicPartition("input", 0, messages[-1].offset() + 1)]
            producer.client.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), WAIT_S)
            if turn % 5 == 0:
                raise rdkafka.KafkaException(None)
            while True:
                try:
                    producer.commit()
                    break
                except rdkafka.KafkaException as error:
                    if not error.args[0].retriable():
                        raise
            done = messages[-1].offset() + 1
        except rdkafka.KafkaException as error:
            assert error.args[0] is None or error.args[0].txn_requires_abort(), error
            producer.abort()
            consumer.seek(rdkafka.TopicPartition("input", 0, messages[0].offset()))
    consumer.close()


def group_consumer(servers):
    return rdkafka.Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "g",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            **ONE_BROKER,
            "session.timeout.ms": 20_000,
            "heartbeat.interval.ms": 500,
            "fetch.wait.max.ms": 100,
        }
    )
