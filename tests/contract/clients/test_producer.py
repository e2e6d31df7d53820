"""The producer on a real log: kafka-python's behaviour, and its improvements."""

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import kafka.errors
import numpy as np
import pytest
import sqlalchemy as sa
from kafka.partitioner import DefaultPartitioner, Partitioner, StickyPartitioner
from kafka.producer.future import FutureRecordMetadata
from kafka.structs import TopicPartition

import spark_log.errors
from spark_log.cluster.topics import list_topics
from spark_log.log.append import append_transaction
from spark_log.log.append.partitioner import partition_of_key
from spark_log.metadata import tables as t
from spark_log.replication.controller.topic_operations import add_partitions, create_topic
from tests.support.records import NOON_MS
from tests.support.stores import topics_view
from tests.support.topics import contents, dense_rows
from tests.support.waiting import LIMIT_S

# -- results of send ------------------------------------------------------------------------------------------


def test_a_record_with_everything(produce, log, cluster):
    create_topic(cluster, "t", 3)
    future = produce().send("t", b"value", b"key", [("h", b"x"), ("h", b"")], 2, NOON_MS)
    assert isinstance(future, FutureRecordMetadata)
    metadata = future.get(timeout=LIMIT_S)
    assert tuple(metadata) == ("t", 2, TopicPartition("t", 2), 0, NOON_MS, None, 3, 5, 3)
    (row,) = dense_rows(log, "t")
    assert (row["key"], row["value"], row["partition"]) == (b"key", b"value", 2)
    assert row["headers"] == [{"key": "h", "value": b"x"}, {"key": "h", "value": b""}]
    assert round(row["timestamp"].timestamp() * 1000) == NOON_MS


@pytest.mark.on_sqlite
def test_futures_resolve_with_callbacks_in_the_senders_thread(produce):
    producer = produce(linger_ms=1)
    told = []
    for number in range(3):
        future = producer.send("t", b"%d" % number)
        future.add_callback(lambda metadata: told.append((metadata.offset, threading.current_thread().name)))
        future.add_errback(told.append)
    producer.flush()
    assert [offset for offset, _ in told] == [0, 1, 2]
    assert {name for _, name in told} == {f"{producer.config['client_id']} sender"}
    assert future.succeeded() and future.value.offset == 2


@pytest.mark.on_sqlite
def test_a_callback_that_calls_exit_ends_nothing(produce, log):
    producer = produce()
    futures = [producer.send("t", b"%d" % number).add_callback(lambda _: sys.exit(1)) for number in range(3)]
    producer.flush(timeout=30)
    assert [future.get(timeout=LIMIT_S).offset for future in futures] == [0, 1, 2]
    assert producer.send("t", b"more").get(timeout=LIMIT_S).offset == 3


@pytest.mark.on_sqlite
def test_callbacks_may_send_and_may_not_wait_for_themselves(produce, log):
    producer = produce(buffer_memory=500)
    told = []

    def send_more(metadata):
        if metadata.offset < 20:
            producer.send("t", b"x" * 300).add_callback(send_more)
        else:
            try:
                producer.flush()
            except kafka.errors.IllegalStateError as error:
                told.append(error)
            producer.close()

    producer.send("t", b"first").add_callback(send_more)
    producer._sender.join(timeout=30)
    assert len(told) == 1 and len(dense_rows(log, "t")) == 21


def test_acks_0_resolves_without_an_offset_and_before_the_store_has_it(produce, log, cluster, monkeypatch):
    create_topic(cluster, "t", 2)
    may_commit = threading.Event()
    monkeypatch.setattr(
        append_transaction, "failpoint", lambda name: name == "append.decided" and may_commit.wait(LIMIT_S)
    )
    producer = produce(acks=0)
    metadata = producer.send("t", b"v", partition=1).get(timeout=LIMIT_S)
    assert (metadata.offset, metadata.partition, metadata.serialized_value_size) == (-1, 1, 1)
    assert dense_rows(log, "t") == []
    may_commit.set()
    producer.flush(timeout=30)
    assert contents(log, "t") == {1: [b"v"]}


def test_other_acks_give_offsets(produce):
    for position, acks in enumerate((1, "all", -1)):
        producer = produce(acks=acks, enable_idempotence=False)
        assert [producer.send("t", b"v").get(timeout=LIMIT_S).offset - 3 * position for _ in range(3)] == [0, 1, 2]


def test_log_append_time(produce, cluster, log):
    create_topic(cluster, "t", configs={"message.timestamp.type": "LogAppendTime"})
    metadata = produce().send("t", b"v", timestamp_ms=5).get(timeout=LIMIT_S)
    (row,) = dense_rows(log, "t")
    assert row["timestampType"] == 1
    assert metadata.timestamp == round(row["timestamp"].timestamp() * 1000) > NOON_MS


# -- records that send refuses --------------------------------------------------------------------------------


BAD_RECORDS = [
    ({}, ValueError, "Need at least one"),
    ({"value": "text"}, TypeError, "serialized value"),
    ({"value": b"v", "key": 7}, TypeError, "serialized key"),
    ({"value": b"v", "headers": {"a": b"b"}}, TypeError, "list"),
    ({"value": b"v", "headers": [("a", "b")]}, TypeError, "str, bytes"),
    ({"value": b"v", "headers": [(None, b"b")]}, TypeError, "str, bytes"),
    ({"value": b"v", "headers": [["a", b"b"]]}, TypeError, "str, bytes"),
    ({"value": b"v", "headers": [("\ud800", b"b")]}, ValueError, "UTF-8"),
    ({"value": b"v", "headers": [("a", b"")] * 1_000_000}, kafka.errors.KafkaError, "at most 10000"),
    ({"value": b"v", "timestamp_ms": -1}, kafka.errors.InvalidTimestampError, "-1 is outside"),
    ({"value": b"v", "timestamp_ms": 2**63}, spark_log.errors.InvalidTimestampError, "is outside"),
    ({"value": b"v", "timestamp_ms": "now"}, TypeError, "timestamp_ms"),
    ({"value": b"v", "timestamp_ms": 1.5}, TypeError, "timestamp_ms"),
    ({"value": b"v", "timestamp_ms": True}, TypeError, "timestamp_ms"),
    ({"value": b"v", "partition": -1}, ValueError, "must be >= 0"),
    ({"value": b"v", "partition": 2}, ValueError, "Unrecognized partition 2"),
    ({"value": b"v", "partition": 2**70}, ValueError, "Unrecognized partition"),
    ({"value": b"v", "partition": True}, TypeError, "partition"),
    ({"value": b"v", "partition": "0"}, TypeError, "partition"),
    ({"value": b"v", "partition": 0.0}, TypeError, "partition"),
    ({"value": bytes(1_048_576)}, kafka.errors.MessageSizeTooLargeError, "max_request_size is 1048576"),
    ({"value": b"v", "key": bytes(2_000_000)}, spark_log.errors.MessageSizeTooLargeError, "max_request_size"),
    ({"value": b"v", "headers": [("a", bytes(2_000_000))]}, kafka.errors.MessageSizeTooLargeError, "max_request"),
]  # fmt: skip


@pytest.mark.on_sqlite
def test_bad_records_are_refused_and_the_next_is_appended(produce, cluster, log):
    create_topic(cluster, "t", 2)
    producer = produce()
    for number, (record, error, text) in enumerate(BAD_RECORDS):
        with pytest.raises(error, match=text):
            producer.send("t", **record)
        assert producer.send("t", b"good", partition=0).get(timeout=LIMIT_S).offset == number
    assert contents(log, "t") == {0: [b"good"] * len(BAD_RECORDS)}


ILLEGAL = ["", ".", "..", "../x", "a/b", "/abs", "a\\b", "a\0b", "x" * 250, "a\n", "%2e%2e", "a b", "{a,b}", "k=v", "*"]


@pytest.mark.on_sqlite
def test_illegal_topic_names_are_refused_at_once(produce, cluster):
    producer = produce()
    for name in ILLEGAL:
        for wanted in (kafka.errors.InvalidTopicError, spark_log.errors.InvalidTopicError, ValueError):
            with pytest.raises(wanted, match="topic"):
                producer.send(name, b"v")
        with pytest.raises(kafka.errors.InvalidTopicError):
            producer.partitions_for(name)
    assert list_topics(cluster) == []


def test_topics_that_cannot_be_written(produce, cluster):
    create_topic(cluster, "a.b")
    producer = produce()
    for bad in (None, 7, b"t"):
        with pytest.raises(TypeError, match="topic"):
            producer.send(bad, b"v")
    with pytest.raises(kafka.errors.PolicyViolationError, match="internal"):
        producer.send("__consumer_offsets", b"v")
    with pytest.raises(kafka.errors.TopicAlreadyExistsError, match="collides"):
        producer.send("a_b", b"v")


def test_missing_topics_are_created_or_awaited(produce, cluster):
    assert produce().partitions_for("made") == {0}
    strict = produce(allow_auto_create_topics=False, max_block_ms=50)
    for error in (kafka.errors.UnknownTopicOrPartitionError, kafka.errors.KafkaTimeoutError):
        with pytest.raises(error, match="'missing'"):
            strict.send("missing", b"v")
    assert [topic.name for topic in list_topics(cluster)] == ["made"]
    patient = produce(allow_auto_create_topics=False, max_block_ms=30_000)
    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(lambda: patient.send("missing", b"v").get(timeout=LIMIT_S))
        create_topic(cluster, "missing", 2)
    assert sent.result().topic == "missing"


@pytest.mark.on_sqlite
@pytest.mark.parametrize("endless", [float("inf"), 2**63 - 1], ids=["infinity", "the largest of Java"])
def test_times_may_be_endless(produce, cluster, endless):
    create_topic(cluster, "t")
    times = dict.fromkeys(("max_block_ms", "delivery_timeout_ms", "request_timeout_ms"), endless)
    producer = produce(buffer_memory=250, linger_ms=1, **times)
    futures = [producer.send("t", b"v" * 100) for _ in range(3)]  # the second one waits for room
    assert [future.get(timeout=LIMIT_S).offset for future in futures] == [0, 1, 2]
    lingering = produce(linger_ms=endless, delivery_timeout_ms=endless)
    waiting = lingering.send("t", b"v")
    lingering._accumulator.wake()
    lingering.flush(endless)
    assert waiting.get(timeout=LIMIT_S).offset == 3
    assert producer.send("t", b"v").get(timeout=endless).offset == 4


def test_new_partitions_are_found(produce, cluster):
    create_topic(cluster, "t")
    producer = produce()
    producer.send("t", b"v", partition=0).get(timeout=LIMIT_S)
    add_partitions(cluster, "t", 3)
    assert producer.send("t", b"v", partition=2).get(timeout=LIMIT_S).offset == 0


# -- one bad record among good ones ---------------------------------------------------------------------------


def test_records_that_the_topic_refuses_fail_alone(produce, cluster, log):
    configs = {"max.message.bytes": "1000", "cleanup.policy": "compact", "message.timestamp.after.max.ms": "1000"}
    create_topic(cluster, "t", 2, configs=configs)
    create_topic(cluster, "other")
    producer = produce(linger_ms=60_000)
    good = [producer.send("t", b"%d" % n, b"k", partition=n % 2) for n in range(6)]
    large = producer.send("t", bytes(2000), b"k", partition=0)
    null = producer.send("t", b"v", partition=0)
    late = producer.send("t", b"v", b"k", timestamp_ms=10**13)
    good += [producer.send("t", b"6", b"k", partition=0), producer.send("other", b"o")]
    producer.flush(timeout=30)
    for future, theirs, ours in (
        (large, kafka.errors.MessageSizeTooLargeError, spark_log.errors.MessageSizeTooLargeError),
        (null, kafka.errors.KafkaError, spark_log.errors.InvalidRecordError),
        (late, kafka.errors.InvalidTimestampError, spark_log.errors.InvalidTimestampError),
    ):
        assert isinstance(future.exception, theirs) and isinstance(future.exception, ours)
    assert [future.get().offset for future in good] == [0, 0, 1, 1, 2, 2, 3, 0]
    assert contents(log, "t") == {0: [b"0", b"2", b"4", b"6"], 1: [b"1", b"3", b"5"]}
    future = producer.send("t", b"goes on", b"k")
    producer.flush(timeout=30)
    assert future.get().offset >= 3
    assert producer.metrics()["producer-metrics"]["record-error-total"] == 3


# -- partitions -----------------------------------------------------------------------------------------------


@pytest.mark.on_sqlite
def test_keys_map_to_the_same_partitions_as_in_kafka_clients(produce, cluster):
    create_topic(cluster, "t", 5)
    keys = [b"", b"a", *(b"key-%d" % n for n in range(100))]
    for partitioner in (None, DefaultPartitioner(), StickyPartitioner()):
        producer = produce(linger_ms=60_000, **({"partitioner": partitioner} if partitioner else {}))
        futures = [producer.send("t", b"v", key) for key in keys]
        producer.flush()
        assert [future.get().partition for future in futures] == [partition_of_key(key, 5) for key in keys]


def test_the_codec_of_the_producer_applies_to_topics_without_their_own(produce, cluster):
    create_topic(cluster, "free", 1)
    create_topic(cluster, "fixed", 1, configs={"compression.type": "snappy"})
    producer = produce(compression_type="gzip", linger_ms=1000)
    for topic in ("free", "fixed"):  # too large for the inline tail: segment files
        for _ in range(3):
            producer.send(topic, os.urandom(900_000))
    producer.flush()
    query = sa.select(t.topic.c.name, t.segment.c.codec).join(t.segment, t.segment.c.topic_id == t.topic.c.topic_id)
    query = query.where(sa.not_(t.segment.c.inline))
    codecs = topics_view(cluster).store.read(lambda connection: set(map(tuple, connection.execute(query))))
    assert codecs == {("free", "gzip"), ("fixed", "snappy")}


@pytest.mark.on_sqlite
def test_null_keys_use_one_partition_per_batch(produce, cluster):
    create_topic(cluster, "t", 3)
    producer = produce(linger_ms=60_000)
    batches = []
    for _ in range(3):
        futures = [producer.send("t", b"v") for _ in range(10)]
        producer.flush()
        batches.append({future.get().partition for future in futures})
    assert all(len(batch) == 1 for batch in batches) and set.union(*batches) == {0, 1, 2}


@pytest.mark.on_sqlite
def test_custom_partitioners(produce, cluster):
    create_topic(cluster, "t", 4)
    seen = []

    class Last(Partitioner):
        def partition(self, topic, key, serialized_key, value, serialized_value, cluster):
            seen.append((topic, key, serialized_key, value, serialized_value, sorted(cluster.topics())))
            assert cluster.available_partitions_for_topic("nobody") is None
            return max(cluster.partitions_for_topic(topic))

    class Third:
        def partition(self, topic, serialized_key, cluster):
            return np.int64(2)

    producer = produce(partitioner=Last(), key_serializer=str.encode)
    assert producer.send("t", b"v", "k").get(timeout=LIMIT_S).partition == 3
    assert seen == [("t", "k", b"k", b"v", b"v", ["t"])]
    assert producer.send("t", b"v", "k", partition=1).get(timeout=LIMIT_S).partition == 1 and len(seen) == 1
    assert produce(partitioner=Third()).send("t", b"v").get(timeout=LIMIT_S).partition == 2
    old = produce(partitioner=lambda key, every, available: every[len(key)])
    assert old.send("t", b"v", b"k").get(timeout=LIMIT_S).partition == 1


@pytest.mark.on_sqlite
def test_an_invalid_result_of_a_partitioner_is_an_error(produce, cluster):
    create_topic(cluster, "t", 4)
    misses = [
        (4, ValueError, "Unrecognized partition 4"),
        (-1, ValueError, ">= 0"),
        (None, ValueError, "did not assign"),
        ("1", TypeError, "partition"),
    ]
    for number, (choice, error, text) in enumerate(misses):
        producer = produce(partitioner=lambda *_, choice=choice: choice)
        with pytest.raises(error, match=text):
            producer.send("t", b"v")
        assert producer.send("t", b"v", partition=0).get(timeout=LIMIT_S).offset == number
    with pytest.raises(kafka.errors.KafkaConfigurationError, match="partitioner"):
        produce(partitioner=7)
