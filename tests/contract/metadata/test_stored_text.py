"""Text that a store cannot keep is refused at the API, with the name of the field; other text is kept."""

import kafka.errors
import pytest
from kafka import TopicPartition
from kafka.structs import OffsetAndMetadata

from spark_log import Admin, Consumer, Producer
from spark_log.cluster.brokers import add_broker
from spark_log.errors import InvalidConfigurationError, InvalidOptionError
from spark_log.log.append.append_transaction import AppendRequest, run_append_transaction
from spark_log.log.append.spark_batch_rules import SparkBatch
from spark_log.log.append.spark_batches import append_once_hook
from spark_log.replication.controller.topic_operations import create_topic
from spark_log.spark.datasource.options.source_options import TXN_APP_ID_LENGTH_MAX, WriteOptions

PARTITION = TopicPartition("t", 0)
BAD = ["a\0b", "a\ud800b"]


def consume(address, **settings):
    with Consumer("t", cluster=address, **{"group_id": "g", **settings}) as consumer:
        consumer.poll(timeout_ms=0)
        return consumer.config


def produce(address, **settings):
    with Producer(cluster=address, **settings) as producer:
        return producer.send("t", b"v").get(timeout=60)


SETTINGS = [
    (produce, "client_id"),
    (produce, "transactional_id"),
    (consume, "client_id"),
    (consume, "client_rack"),
    (consume, "group_id"),
    (consume, "group_instance_id"),
    (lambda address, **settings: Admin(cluster=address, **settings), "client_id"),
]


@pytest.mark.parametrize("text", BAD)
def test_settings_of_the_clients(cluster, cluster_address, text):
    create_topic(cluster, "t")
    for use, name in SETTINGS:
        with pytest.raises(kafka.errors.KafkaError, match=name):
            use(cluster_address, **{name: text})


@pytest.mark.parametrize("text", BAD)
def test_a_rack(cluster, tmp_path, text):
    with pytest.raises(InvalidConfigurationError, match="rack"):
        add_broker(cluster, 2, [str(tmp_path / "d2")], rack=text)


def test_a_client_id_may_be_long_and_have_any_letters(cluster, cluster_address):
    create_topic(cluster, "t")
    for client_id in ("x" * 5_000, "é" * 300, "a b%'\"\\{}"):
        produce(cluster_address, client_id=client_id)
        consume(cluster_address, client_id=client_id)


def options(app_id, **more):
    return WriteOptions.parse(
        {"cluster": "/c", "txnAppId": app_id, "txnVersion": "1", **more}, streaming=False, environ={}
    )


def test_an_application_of_a_write(cluster):
    for text in ("x" * (TXN_APP_ID_LENGTH_MAX + 1), "a\0b", "a\ud800b"):
        with pytest.raises(InvalidOptionError, match="txnAppId"):
            options(text)
    longest = options("é" * TXN_APP_ID_LENGTH_MAX).txn.app_id
    for replayed in (False, True):
        batch = SparkBatch(f"txn:{longest}", "t" * 249, 1, 0, "", strict=False)
        request = AppendRequest([], hooks=[append_once_hook(batch, [])])
        assert run_append_transaction(cluster.store, request).committed_before == replayed


def test_metadata_of_a_commit_may_have_any_characters(cluster, cluster_address):
    create_topic(cluster, "t")
    with Consumer(cluster=cluster_address, group_id="g") as consumer:
        consumer.assign([PARTITION])
        consumer.commit({PARTITION: OffsetAndMetadata(0, "a\0é\U0001f600", -1)})
        assert consumer.committed(PARTITION, metadata=True).metadata == "a\0é\U0001f600"
        with pytest.raises(kafka.errors.KafkaError, match="UTF-8"):
            consumer.commit({PARTITION: OffsetAndMetadata(0, "a\ud800b", -1)})
