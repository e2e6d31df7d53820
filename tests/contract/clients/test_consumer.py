"""Reading with a Consumer without a group: the behaviour of kafka-python's."""

from functools import partial

import kafka
import pyarrow as pa
import pytest
from kafka.errors import (
    IllegalStateError,
    KafkaConfigurationError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from kafka.structs import OffsetAndTimestamp, TopicPartition

from spark_log import Consumer
from spark_log.ids import TopicPartition as OurPartition
from spark_log.log.records.schema import read_schema
from spark_log.maintenance.removal.retention import delete_records
from tests.support.group_members import poll_values
from tests.support.records import NOON_MS
from tests.support.topics import append, fill, make
from tests.support.waiting import LIMIT_S

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


SOON_MS = int(1000 * LIMIT_S)
"""Longest wait for an expected event."""


@pytest.fixture
def consume(consume):
    """A function that creates consumers without a group by default."""
    return partial(consume, group_id=None, enable_auto_commit=True)


@pytest.mark.on_sqlite
def test_a_program_written_for_kafka_python(cluster, log, cluster_address):
    """It passes kafka-python's settings and gets kafka-python's structs."""
    make(cluster, "my_favorite_topic", 2)
    fill(log, "my_favorite_topic", [3, 2])
    seen = []
    consumer = Consumer(
        "my_favorite_topic",
        bootstrap_servers=[cluster_address],
        auto_offset_reset="earliest",
        consumer_timeout_ms=500,
        group_id=None,
        value_deserializer=lambda value: value.decode("utf-8"),
    )
    for message in consumer:
        assert isinstance(message, kafka.consumer.fetcher.ConsumerRecord)
        seen.append((message.topic, message.partition, message.offset, message.key, message.value))
    assert sorted(seen) == [
        ("my_favorite_topic", p, o, None, f"{p}/{o}") for p, n in ((0, 3), (1, 2)) for o in range(n)
    ]
    assert consumer.assignment() == {kafka.TopicPartition("my_favorite_topic", p) for p in (0, 1)}
    assert consumer.subscription() == {"my_favorite_topic"}
    assert consumer.topics() == {"my_favorite_topic"}
    assert consumer.partitions_for_topic("my_favorite_topic") == {0, 1}
    assert consumer.partitions_for_topic("another") == set()
    assert consumer.metrics()["consumer-fetch-manager-metrics"]["records-consumed-total"] == 5
    consumer.close()
    consumer.close()
    assert list(consumer) == []
    with pytest.raises(IllegalStateError):
        consumer.poll()


@pytest.mark.on_sqlite
def test_polls_keep_the_order_and_the_limit(cluster, log, consume):
    make(cluster, "t", 2)
    fill(log, "t", [12, 7])
    consumer = consume(max_poll_records=5)
    consumer.assign([P0, P1])
    seen = {P0: [], P1: []}
    for _ in range(4):
        polled = consumer.poll(SOON_MS)
        assert 1 <= sum(map(len, polled.values())) <= 5
        for partition, records in polled.items():
            seen[partition] += [record.offset for record in records]
            assert consumer.position(partition) == records[-1].offset + 1
    assert seen == {P0: list(range(12)), P1: list(range(7))}
    assert consumer.poll(0) == {}
    assert consumer.highwater(P0) == 12


@pytest.mark.on_sqlite
def test_a_record_has_all_its_fields(cluster, log, consume):
    make(cluster, "t", 1)
    append(log, "t", "v", key=b"key", headers=[("h", b"12"), ("é", None)], timestamp_ms=NOON_MS)
    consumer = consume("t")
    [[record]] = consumer.poll(SOON_MS).values()
    assert record == ("t", 0, 0, 0, NOON_MS, 0, b"key", b"v", [("h", b"12"), ("é", None)], None, 3, 1, 5)


@pytest.mark.on_sqlite
def test_arguments_of_poll(cluster, consume):
    consumer = consume()
    for wrong, error in (
        ({"timeout_ms": -1}, ValueError),
        ({"timeout_ms": "1"}, TypeError),
        ({"max_records": 0}, ValueError),
        ({"max_records": 1.5}, TypeError),
    ):
        with pytest.raises(error):
            consumer.poll(**wrong)
    assert consumer.poll(0) == {}


@pytest.mark.on_sqlite
def test_pause_seek_and_replay(cluster, log, consume):
    make(cluster, "t", 2)
    fill(log, "t", [6, 6])
    consumer = consume(max_poll_records=4)
    consumer.assign([P0, P1])
    consumer.pause(P0)
    assert consumer.paused() == {P0}
    assert poll_values(consumer, 6) == {1: [f"1/{n}" for n in range(6)]}
    assert consumer.poll(0) == {}
    consumer.resume(P0)
    assert poll_values(consumer, 6) == {0: [f"0/{n}" for n in range(6)]}
    consumer.seek(P0, 4)
    assert consumer.position(P0) == 4
    assert poll_values(consumer, 2) == {0: ["0/4", "0/5"]}
    consumer.seek_to_beginning(P1)
    assert consumer.position(P1) == 0
    assert poll_values(consumer, 6) == {1: [f"1/{n}" for n in range(6)]}
    consumer.seek_to_beginning()
    consumer.poll(SOON_MS, max_records=1)
    consumer.seek_to_end()
    append(log, "t", "new", partition=1)
    assert consumer.position(P0) == 6
    for wrong in (
        lambda: consumer.seek(P0, -1),
        lambda: consumer.seek(P0, True),
        lambda: consumer.seek(TopicPartition("t", 9), 0),
    ):
        with pytest.raises(ValueError):  # noqa: PT011 - as kafka-python
            wrong()
    with pytest.raises(TypeError):
        consumer.seek(("t", 0), 1)
    with pytest.raises(IllegalStateError):
        consumer.position(TopicPartition("t", 9))


@pytest.mark.on_sqlite
def test_iteration_moves_the_position_record_by_record(cluster, log, consume):
    make(cluster, "t", 1)
    fill(log, "t", [10])
    consumer = consume(consumer_timeout_ms=300)
    consumer.assign([P0])
    assert [next(consumer).offset for _ in range(3)] == [0, 1, 2]
    assert consumer.position(P0) == 3
    consumer.seek(P0, 8)
    assert [record.offset for record in consumer] == [8, 9]
    consumer.seek(P0, 5)
    assert next(consumer).offset == 5
    consumer.pause(P0)
    assert list(consumer) == []
    consumer.resume(P0)
    assert [record.offset for record in consumer] == [6, 7, 8, 9]


@pytest.mark.on_sqlite
def test_the_first_position_of_a_consumer(cluster, log, consume):
    make(cluster, "t", 1)
    fill(log, "t", [5])
    latest = consume(auto_offset_reset="latest")
    latest.assign([P0])
    assert latest.poll(0) == {} and latest.position(P0) == 5
    append(log, "t", "new")
    assert poll_values(latest, 1) == {0: ["new"]}
    none = consume(auto_offset_reset="none")
    none.assign([P0])
    with pytest.raises(NoOffsetForPartitionError) as missing:
        none.poll(0)
    assert missing.value.args == ({P0},)
    none.seek(P0, 3)
    assert poll_values(none, 3) == {0: ["0/3", "0/4", "new"]}
    with pytest.raises(KafkaConfigurationError):
        consume(auto_offset_reset="sometimes")


@pytest.mark.on_sqlite
@pytest.mark.parametrize(("policy", "first"), [("earliest", 3), ("latest", 5)])
def test_out_of_range_positions_follow_the_policy(policy, first, cluster, log, consume):
    make(cluster, "t", 1)
    fill(log, "t", [5])
    delete_records(cluster, {OurPartition("t", 0): 3})
    consumer = consume(auto_offset_reset=policy)
    consumer.assign([P0])
    for out in (0, 77):
        consumer.seek(P0, out)
        consumer.poll(0, max_records=1)
        assert consumer.position(P0) in (first, first + 1)
    none = consume(auto_offset_reset="none")
    none.assign([P0])
    for out in (2, 6):
        none.seek(P0, out)
        with pytest.raises(OffsetOutOfRangeError) as raised:
            none.poll(0)
        assert raised.value.args == ({P0: out},)
    none.seek(P0, 5)
    assert none.poll(0) == {}


def test_queries_about_offsets(cluster, log, consume):
    make(cluster, "t", 2)
    fill(log, "t", [5, 1])
    delete_records(cluster, {OurPartition("t", 0): 2})
    consumer = consume()
    assert consumer.beginning_offsets([P0, P1]) == {P0: 2, P1: 0}
    assert consumer.end_offsets([P0, P1]) == {P0: 5, P1: 1}
    assert consumer.offsets_for_times({P0: NOON_MS + 2_500, P1: NOON_MS + 1}) == {
        P0: OffsetAndTimestamp(3, NOON_MS + 3_000, -1),
        P1: None,
    }
    with pytest.raises(ValueError, match="negative"):
        consumer.offsets_for_times({P0: -1})
    for missing in (TopicPartition("t", 9), TopicPartition("u", 0), TopicPartition("a/b", 0)):
        with pytest.raises(UnknownTopicOrPartitionError):
            consumer.end_offsets([missing])
    for what in (lambda: consumer.commit(), lambda: consumer.committed(P0), lambda: consumer.commit_async()):
        with pytest.raises(IllegalStateError, match="group_id"):
            what()
    assert consumer.group_metadata().group_id is None


@pytest.mark.on_sqlite
def test_arrow_tables_in_order_and_mixed_with_polls(cluster, log, consume):
    make(cluster, "t", 2)
    fill(log, "t", [6, 3])
    log.seal(log.find_topic("t"), [0])
    fill(log, "t", [3, 0], first=6)
    consumer = consume()
    consumer.assign([P0, P1])
    first = consumer.poll_arrow(SOON_MS, max_records=2)
    [(partition, found)] = first.items()
    assert isinstance(found, pa.Table) and found.schema == read_schema(include_headers=True)
    assert consumer.position(partition) == 2
    consumer.poll(SOON_MS, max_records=1)
    seen = {P0: consumer.position(P0), P1: consumer.position(P1)}
    assert sum(seen.values()) == 3
    while sum(seen.values()) < 12:
        for partition, found in consumer.poll_arrow(SOON_MS).items():
            assert found.column("offset").to_pylist() == list(range(seen[partition], seen[partition] + found.num_rows))
            assert found.column("value")[0].as_py() == f"{partition.partition}/{seen[partition]}".encode()
            seen[partition] += found.num_rows
    assert consumer.poll_arrow(0) == {}


@pytest.mark.on_sqlite
def test_the_error_of_a_deserializer_comes_when_its_record_is_the_next_one(cluster, log, consume):
    make(cluster, "t", 1)
    append(log, "t", "1", "2", "x", "4")
    append(log, make(cluster, "u", 1).name, "5")
    consumer = consume("t", value_deserializer=int)
    assert next(consumer).value == 1
    consumer.pause(P0)
    assert consumer.poll(0) == {}  # as a program does that must not lose its membership
    consumer.resume(P0)
    assert next(consumer).value == 2
    with pytest.raises(ValueError, match="x"):
        next(consumer)
    assert consumer.position(P0) == 2
    consumer.seek(P0, 0)
    assert len(consumer.poll(SOON_MS)[P0]) == 2
    consumer.subscribe(["u"])
    [[record]] = consumer.poll(SOON_MS).values()
    assert record.value == 5


@pytest.mark.on_sqlite
def test_deserializers_and_records_that_they_refuse(cluster, log, consume):
    make(cluster, "t", 1)
    append(log, "t", "1", "2", "x", "4")

    class Objects(kafka.Deserializer):
        def deserialize(self, topic, headers, data):
            return (topic, headers, data)

    consumer = consume("t", key_deserializer=Objects(), value_deserializer=int)
    [records] = consumer.poll(SOON_MS).values()
    assert [(record.key, record.value) for record in records] == [(("t", [], None), 1), (("t", [], None), 2)]
    for _ in range(2):
        with pytest.raises(ValueError, match="x"):
            consumer.poll(0)
        assert consumer.position(P0) == 2
    consumer.seek(P0, 3)
    [[record]] = consumer.poll(SOON_MS).values()
    assert record.value == 4
