"""Kafka clients on a gateway process: librdkafka (confluent-kafka) and kafka-python, on both stores."""

import contextlib
import itertools
import json
import os
import socket
import struct
from concurrent.futures import ThreadPoolExecutor

import confluent_kafka as rdkafka
import kafka
import pytest

from spark_log import Consumer, Producer
from spark_log.maintenance import run_tasks
from tests.support.records import NOON_MS, topic_rows
from tests.support.server_processes import GatewayProcess
from tests.support.topics import make

pytestmark = pytest.mark.on_sqlite

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


def rd_producer(*gateways, **settings):
    servers = ",".join(each.address for each in gateways)
    return rdkafka.Producer({"bootstrap.servers": servers, "linger.ms": 5, **dotted(settings)})


def rd_consumer(*gateways, group="g", **settings):
    servers = ",".join(each.address for each in gateways)
    defaults = {"auto.offset.reset": "earliest", "enable.auto.commit": False, "session.timeout.ms": 6_000}
    quick = {"heartbeat.interval.ms": 200, "fetch.wait.max.ms": 100}
    return rdkafka.Consumer({"bootstrap.servers": servers, "group.id": group, **defaults, **quick, **dotted(settings)})


def dotted(settings):
    return {name.replace("_", "."): value for name, value in settings.items()}


def send(client, topic, records, **where):
    """Send (key, value) pairs, and wait for all acknowledgements; returns the errors."""
    errors = []
    for key, value in records:
        client.produce(topic, value, key, on_delivery=lambda error, _: error and errors.append(error), **where)
    assert client.flush(30) == 0
    return errors


def consumed(consumer, count):
    """The next `count` messages."""
    found = []
    while len(found) < count:
        for message in consumer.consume(count - len(found), 10):
            assert message.error() is None, message.error()
            found.append(message)
    return found


def test_every_codec_key_header_and_timestamp_arrives_unchanged(cluster, gateway):
    make(cluster, "t", retention_ms="-1")
    sent = []
    for number, codec in enumerate(CODECS):
        client = rd_producer(gateway, compression_type=codec, enable_idempotence=number % 2 == 0)
        for count in (1, 100):
            for row in range(count):
                key = None if row % 3 == 0 else b"%d" % row
                value = None if row % 7 == 5 else b"%s %d " % (codec.encode(), row) * (1 + row)
                headers = [("a", b"\x00"), ("b", None)] if row % 4 == 0 else []
                client.produce("t", value, key, timestamp=NOON_MS + len(sent), headers=headers)
                sent.append((key, value, headers, NOON_MS + len(sent)))
            assert client.flush(30) == 0
    rows = topic_rows(cluster, "t")
    assert [row["offset"] for row in rows] == list(range(len(sent)))
    assert [
        (
            row["key"],
            row["value"],
            [(header["key"], header["value"]) for header in row["headers"] or ()],
            round(row["timestamp"].timestamp() * 1000),
        )
        for row in rows
    ] == sent
    consumer = rd_consumer(gateway)
    consumer.assign([rdkafka.TopicPartition("t", 0, 0)])
    found = [(m.key(), m.value(), m.headers() or [], m.timestamp()[1]) for m in consumed(consumer, len(sent))]
    assert found == sent
    consumer.close()


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_kafka_python_produces_and_consumes(cluster, gateway, acks):
    make(cluster, "t", 3)
    producer = kafka.KafkaProducer(bootstrap_servers=gateway.address, acks=acks, enable_idempotence=acks == "all")
    futures = [producer.send("t", key=b"%d" % number, value=b"v%d" % number) for number in range(50)]
    producer.flush()
    if acks != 0:
        assert {future.get().offset >= 0 for future in futures} == {True}
    consumer = kafka.KafkaConsumer(
        "t", bootstrap_servers=gateway.address, group_id="g", auto_offset_reset="earliest", enable_auto_commit=False
    )
    values = {record.value for record in itertools.islice(consumer, 50)}
    assert values == {b"v%d" % number for number in range(50)}
    consumer.commit()
    consumer.close()
    producer.close()
    with Consumer(cluster=str(cluster.store.address), group_id="g") as ours:
        committed = [ours.committed(kafka.TopicPartition("t", number)) or 0 for number in range(3)]
    assert sum(committed) == 50


def test_gaps_of_compaction_are_passed_over(cluster, gateway):
    make(
        cluster, "t", cleanup_policy="compact", min_cleanable_dirty_ratio="0", segment_bytes="14", inline_max_bytes="0"
    )
    with Producer(cluster=str(cluster.store.address), linger_ms=0) as producer:
        for number in range(6):
            producer.send("t", key=b"a" if number < 5 else b"b", value=b"%d" % number).get()
    list(run_tasks(cluster, ["compact"], now=True))
    left = [row["offset"] for row in topic_rows(cluster, "t")]
    assert left == [4, 5]
    consumer = rd_consumer(gateway)
    for begin in range(6):
        consumer.assign([rdkafka.TopicPartition("t", 0, begin)])
        wanted = [offset for offset in left if offset >= begin]
        assert [message.offset() for message in consumed(consumer, len(wanted))] == wanted
    consumer.close()


def test_records_of_one_segment_keep_their_append_times(cluster, gateway):
    make(cluster, "t", message_timestamp_type="LogAppendTime")
    with Producer(cluster=str(cluster.store.address), linger_ms=0) as producer:
        for number in range(3):
            producer.send("t", value=b"%d" % number).get()
    wanted = [int(row["timestamp"].timestamp() * 1000) for row in topic_rows(cluster, "t")]
    assert len(set(wanted)) > 1
    list(run_tasks(cluster, ["seal"], now=True))
    consumer = rd_consumer(gateway)
    consumer.subscribe(["t"])
    append_time = rdkafka.TIMESTAMP_LOG_APPEND_TIME
    assert [message.timestamp() for message in consumed(consumer, 3)] == [(append_time, time) for time in wanted]
    consumer.close()


def test_the_members_of_a_group_are_of_any_kind(cluster, gateway):
    make(cluster, "t", 6)
    seen = []
    # nothing is committed, so a member that is removed after a pause would have its records again
    rd = rd_consumer(gateway, partition_assignment_strategy="range", session_timeout_ms=60_000)
    rd.subscribe(["t"])
    python = kafka.KafkaConsumer(
        "t", bootstrap_servers=gateway.address, group_id="g", auto_offset_reset="earliest", heartbeat_interval_ms=200,
        partition_assignment_strategy=[kafka.coordinator.assignors.range.RangePartitionAssignor],
    )  # fmt: skip
    ours = Consumer(
        cluster=str(cluster.store.address), group_id="g", auto_offset_reset="earliest", heartbeat_interval_ms=200,
        partition_assignment_strategy=[kafka.coordinator.assignors.range.RangePartitionAssignor],
    )  # fmt: skip
    ours.subscribe(["t"])

    def assigned():
        return [len(rd.assignment()), len(python.assignment()), len(ours.assignment())]

    def poll():
        for message in rd.consume(100, 0.05):
            if message.error() is None:
                seen.append((message.partition(), message.offset()))
            else:  # as on a broker, the JoinGroup that waits while `ours` upgrades the group
                assert message.error().code() == rdkafka.KafkaError.REBALANCE_IN_PROGRESS, message.error()
        for client in (python, ours):
            for records in client.poll(50).values():
                seen.extend((record.partition, record.offset) for record in records)

    while assigned() != [2, 2, 2]:
        poll()
    errors = send(rd_producer(gateway), "t", [(b"%d" % number, b"v") for number in range(300)])
    assert errors == []
    while len(seen) < 300:
        poll()
    assert len(seen) == len(set(seen)) == 300
    rd.close()
    python.close()
    while len(ours.assignment()) < 6:
        ours.poll(50)
    ours.close()


def test_a_killed_gateway_loses_and_doubles_nothing(cluster, gateways):
    make(cluster, "t", 4)
    first, second = gateways
    client = rd_producer(first, second, enable_idempotence=True, message_timeout_ms=60_000)
    errors, acknowledged = [], []

    def delivered(error, message):
        (errors if error else acknowledged).append(error or message.value())

    for number in range(3_000):
        client.produce("t", b"%d" % number, b"k%d" % (number % 7), on_delivery=delivered)
        client.poll(0)
        if number in (1_000, 2_000):
            while len(acknowledged) < number // 2:
                client.poll(0.05)
            first.kill()
            first.start()
    assert client.flush(60) == 0
    assert errors == []
    rows = topic_rows(cluster, "t")
    assert sorted(int(row["value"]) for row in rows) == list(range(3_000))
    for key in {row["key"] for row in rows}:
        numbers = [int(row["value"]) for row in rows if row["key"] == key]
        assert numbers == sorted(numbers)


def test_refused_records_have_kafkas_errors(cluster, gateway):
    make(cluster, "small", max_message_bytes="1000")
    make(cluster, "compacted", cleanup_policy="compact")
    make(cluster, "typed", value_format="json", value_schema="n BIGINT", value_bad_records="reject")
    make(cluster, "keyed", key_format="json", key_schema="n BIGINT", key_bad_records="reject")
    client = rd_producer(gateway)
    [large] = send(client, "small", [(b"k", os.urandom(2_000))])
    assert large.code() == rdkafka.KafkaError.MSG_SIZE_TOO_LARGE
    [without_key] = send(client, "compacted", [(None, b"v")])
    assert without_key.code() == rdkafka.KafkaError.INVALID_RECORD
    [bad] = send(client, "typed", [(None, json.dumps({"n": "one"}).encode())])
    assert bad.code() == rdkafka.KafkaError.INVALID_RECORD
    assert send(client, "typed", [(None, b'{"n": 1}')]) == []
    [bad] = send(client, "keyed", [(b"1", b"v")])
    assert bad.code() == rdkafka.KafkaError.INVALID_RECORD


def test_a_topic_is_created_by_its_first_use(cluster, cluster_address, tmp_path):
    with GatewayProcess(tmp_path, cluster_address, "--partitions", "3") as gateway:
        assert send(rd_producer(gateway), "new", [(b"k", b"v")]) == []
        [metadata] = rd_consumer(gateway).list_topics("new").topics.values()
        assert sorted(metadata.partitions) == [0, 1, 2]


HOSTILE = {
    "not Kafka": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "negative length": struct.pack(">i", -5),
    "a large request of a small API": struct.pack(">ihhi", 50_000_000, 3, 9, 1),
    "too large": struct.pack(">ihhi", 2_000_000_000, 0, 9, 1),
    "unknown API": struct.pack(">ihhih", 10, 999, 0, 1, -1),
    "cut off": struct.pack(">ihhih", 14, 3, 1, 1, -1) + struct.pack(">i", 1_000_000),
    "name beyond the frame": struct.pack(">ihhihih", 16, 3, 1, 1, -1, 1, 30_000),
    "nothing": b"",
    "half a frame": struct.pack(">ihhi", 5_000, 0, 9, 1) + b"x" * 100,
}


def test_hostile_connections_are_closed_and_others_are_served(cluster, gateway):
    make(cluster, "t")
    idle = []
    for name, data in HOSTILE.items():
        connection = socket.create_connection(("127.0.0.1", gateway.port), timeout=30)
        connection.sendall(data)
        if name in ("nothing", "half a frame"):
            idle.append(connection)
            continue
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(1) == b"", name
        connection.close()
    idle += [socket.create_connection(("127.0.0.1", gateway.port), timeout=30) for _ in range(200)]
    client = rd_producer(gateway)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda number: send(client, "t", [(b"", b"%d" % number)]), range(4))) == [[]] * 4
    assert len(topic_rows(cluster, "t")) == 4
    for connection in idle:
        connection.close()
    assert gateway.end() == 0
