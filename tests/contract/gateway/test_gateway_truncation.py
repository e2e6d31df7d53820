"""Kafka consumers that have read past the end of a log that is truncated then go back to it (KIP-320)."""

import confluent_kafka as rdkafka
import kafka
import pytest
from kafka.protocol.consumer import ListOffsetsRequest

from spark_log.log.log import Records
from tests.support.gateway_wire import WireConnection, fetch_request
from tests.support.records import table
from tests.support.replicas import truncate
from tests.support.topics import make
from tests.support.waiting import wait_until

pytestmark = pytest.mark.parametrize("cluster_address", ["sqlite"], indirect=True)
"""Gateways compare epochs that they read as ever: one store is enough."""
FENCED_LEADER_EPOCH, OFFSET_OUT_OF_RANGE = 74, 1
LATEST = -1


@pytest.fixture
def topic(cluster):
    return make(cluster, "flights", 1, **{"delta.max.lag.ms": "-1"})


def append(log, topic, *values):
    for value in values:  # a log is truncated between two appends, and its end is sealed when it is closed
        log.append(topic, [Records(0, table(value))])


class Librdkafka:
    def __init__(self, address):
        self.client = rdkafka.Consumer(
            {"bootstrap.servers": address, "group.id": "g", "auto.offset.reset": "latest", "enable.auto.commit": False}
        )
        self.client.assign([rdkafka.TopicPartition("flights", 0, 0)])
        self.close = self.client.close

    def poll(self):
        message = self.client.poll(0.1)
        return [message.value().decode()] if message is not None and message.error() is None else []


class KafkaPython:
    def __init__(self, address):
        self.client = kafka.KafkaConsumer(
            bootstrap_servers=address, auto_offset_reset="latest", enable_auto_commit=False
        )
        place = kafka.TopicPartition("flights", 0)
        self.client.assign([place])
        self.client.seek(place, 0)
        self.close = self.client.close

    def poll(self):
        return [record.value.decode() for records in self.client.poll(100).values() for record in records]


@pytest.mark.parametrize("client", [Librdkafka, KafkaPython])
@pytest.mark.parametrize("longer", [True, False], ids=["longer", "shorter"])
def test_no_record_after_a_truncation_is_skipped(cluster, log, topic, gateway, client, longer):
    append(log, topic, *(f"old {number}" for number in range(10)))
    consumer, read = client(gateway.address), []

    def reads(last):
        read.extend(consumer.poll())
        return last in read

    wait_until(lambda: reads("old 9"))
    truncate(cluster, "flights", 5)
    new = [f"new {number}" for number in range(5, 15 if longer else 7)]
    append(log, topic, *new)
    wait_until(lambda: reads(new[-1]))
    consumer.close()
    assert read[10:] == new


def test_a_fetch_is_refused_if_the_client_knows_an_older_leader_epoch(cluster, log, topic, gateway):
    append(log, topic, *"abcdef")
    truncate(cluster, "flights", 3)

    def fetched(connection, epoch, offset):
        request = fetch_request("flights", offset, max_bytes=1_000_000, leader_epoch=epoch)
        [answer] = connection.exchange(request, 12).responses[0].partitions
        return answer.error_code, bool(answer.records)

    with WireConnection(gateway.port) as connection:
        kind = ListOffsetsRequest.ListOffsetsTopic
        part = kind.ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=LATEST)
        request = ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=[kind(name="flights", partitions=[part])])
        [latest] = connection.exchange(request, 5).topics[0].partitions
        epoch = latest.leader_epoch
        assert (latest.offset, epoch >= 1) == (3, True)
        assert fetched(connection, epoch, 1) == fetched(connection, -1, 1) == (0, True)
        for offset in (1, 6):
            assert fetched(connection, epoch - 1, offset) == (FENCED_LEADER_EPOCH, False)
        for later in (epoch, epoch + 1):
            assert fetched(connection, later, 1) == (0, True)
            assert fetched(connection, later, 6) == (OFFSET_OUT_OF_RANGE, False)
