"""Record batches that clients send, and what the other clients of the gateway notice of them."""

import pytest
from kafka.protocol.producer.produce import ProduceRequest

from spark_log.log.log import Log
from spark_log.records.kafka_batch.decode import FEW
from spark_log.records.kafka_batch.encode import encode
from spark_log.records.kafka_batch.header import HEADER_BYTES
from spark_log.records.kafka_batch.varint import varint
from tests.support.gateway_process import GatewayProcess
from tests.support.gateway_wire import WireConnection
from tests.support.kafka_batches import stored, with_checksum
from tests.support.records import ranges_of
from tests.support.topics import make

NONE, UNKNOWN_TOPIC_OR_PARTITION, INVALID_RECORD = 0, 3, 87


@pytest.fixture
def gateway(cluster, cluster_address, tmp_path):
    make(cluster, "flights", 1)
    with GatewayProcess(tmp_path, cluster_address, "--no-auto-create-topics") as running:
        yield running


def values(cluster, name):
    log = Log(cluster)
    rows = [row["value"] for batch in log.read(ranges_of(log, log.find_topic(name))) for row in batch.to_pylist()]
    log.close()
    return rows


def batch(*records):
    rows = [(1_000, None, value, []) for value in records]
    return encode(stored(rows), base_offset=0, last_offset=len(rows) - 1, leader_epoch=0)


def batch_with_a_wrong_header_length(count):
    """The length of the only header key points before the beginning of the request."""
    bodies = [b"\0\0" + varint(number) + varint(-1) + varint(-1) for number in range(count)]
    bodies = [*(body + varint(0) for body in bodies[:-1]), bodies[-1] + varint(1) + varint(-(2**31)) + varint(0)]
    return with_checksum(batch(*[b""] * count)[:HEADER_BYTES] + b"".join(varint(len(body)) + body for body in bodies))


def produce(connection, batches, acks=-1, transactional_id=None):
    """The error code of each topic."""
    kind = ProduceRequest.TopicProduceData
    topics = [
        kind(name=name, partition_data=[kind.PartitionProduceData(index=0, records=data)])
        for name, data in batches.items()
    ]
    request = ProduceRequest(transactional_id=transactional_id, acks=acks, timeout_ms=30_000, topic_data=topics)
    answer = connection.exchange(request, 7)
    return {topic.name: topic.partition_responses[0].error_code for topic in answer.responses}


@pytest.mark.parametrize("count", [1, FEW + 1])
@pytest.mark.parametrize("topic", ["flights", "missing"])
def test_a_malformed_batch_does_not_affect_the_others_of_its_append(cluster, gateway, count, topic):
    make(cluster, "other", 1)
    with WireConnection(gateway.port) as connection:
        codes = produce(connection, {topic: batch_with_a_wrong_header_length(count), "other": batch(b"v")})
    assert codes == {topic: INVALID_RECORD, "other": NONE}
    assert (values(cluster, "flights"), values(cluster, "other")) == ([], [b"v"])
