"""A Consumer without a group and topics that are damaged, deleted, created again, missing or matched by a pattern."""

from functools import partial

import pytest
from kafka.errors import (
    CorruptRecordError,
)
from kafka.structs import TopicPartition

from spark_log.replication.controller.topic_operations import add_partitions, delete_topic
from tests.support.group_members import poll_values
from tests.support.topics import append, fill, make
from tests.support.waiting import LIMIT_S, wait_until

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


SOON_MS = int(1000 * LIMIT_S)
"""Longest wait for an expected event."""


@pytest.fixture
def consume(consume):
    """A function that creates consumers without a group by default."""
    return partial(consume, group_id=None, enable_auto_commit=True)


@pytest.mark.on_sqlite
def test_a_consumer_keeps_nothing_of_topics_that_are_not_assigned_any_more(cluster, log, consume):
    consumer = consume()
    for number in range(5):
        topic = f"job-{number}"
        make(cluster, topic, value_format="json", value_schema="n INT")
        fill(log, topic, [1])
        consumer.assign([TopicPartition(topic, 0)])
        [found] = consumer.poll_arrow(SOON_MS, columns=["value", "record_error"]).values()
        assert found.column("value").to_pylist() == [b"0/0"]
    polling = consumer._polling
    assert len(polling.fetching._known) <= 2
    assert len(polling.fetching._typed) <= 2
    assert polling.fetching._stores._of_topics.keys() == {"job-4"}
    assert polling.topics._known <= {"job-4"}


@pytest.mark.on_sqlite
def test_damage_is_an_error_that_names_the_segment_and_can_be_skipped(cluster, log, consume, tmp_path):
    topic = make(cluster, "t", 2, inline_max_bytes="0")
    for _ in range(2):
        append(log, "t", *map(str, range(50)), partition=0)
    append(log, "t", "other", partition=1)
    [first, _] = sorted(
        (path for path in tmp_path.rglob(f"{topic.folder}/_segments/0/*.parquet")),
        key=lambda path: path.stat().st_mtime_ns,
    )
    damaged = bytearray(first.read_bytes())
    damaged[100 : len(damaged) // 2] = bytes(len(damaged) // 2 - 100)
    first.write_bytes(damaged)
    consumer = consume()
    consumer.assign([P0, P1])
    outcomes = []
    for _ in range(4):
        try:
            outcomes += [(name.partition, len(found)) for name, found in consumer.poll(0).items()]
        except CorruptRecordError as error:
            outcomes.append(first.name in str(error))
    assert sorted(map(str, set(outcomes))) == ["(1, 1)", "True"]
    assert consumer.position(P0) == 0
    consumer.seek(P0, 50)
    assert len(poll_values(consumer, 50)[0]) == 50


def test_a_deleted_topic_is_no_error_and_a_recreated_one_is_read_from_its_start(cluster, log, consume):
    make(cluster, "t", 1)
    make(cluster, "u", 1)
    fill(log, "t", [3])
    consumer = consume()
    consumer.assign([P0, TopicPartition("u", 0)])
    assert len(poll_values(consumer, 3)[0]) == 3
    delete_topic(cluster, "t")
    assert consumer.poll(100) == {}
    append(log, "u", "still here")
    assert poll_values(consumer, 1) == {0: ["still here"]}
    make(cluster, "t", 1)
    fill(log, "t", [5])
    assert poll_values(consumer, 5) == {0: [f"0/{n}" for n in range(5)]}


@pytest.mark.parametrize("to", [0, 2])
@pytest.mark.on_sqlite
def test_a_seek_after_a_topic_was_created_again_is_the_position_in_the_new_topic(cluster, log, consume, to):
    """Records of the deleted topic that are buffered from offset 2 on are not returned."""
    make(cluster, "t", 1)
    fill(log, "t", [5])
    consumer = consume(auto_offset_reset="latest")
    consumer.assign([P0])
    consumer.seek(P0, 0)
    assert len(consumer.poll(SOON_MS, max_records=2)[P0]) == 2
    delete_topic(cluster, "t")
    make(cluster, "t", 1)
    append(log, "t", *(f"new {n}" for n in range(5)))
    consumer.seek(P0, to)
    assert poll_values(consumer, 5 - to) == {0: [f"new {n}" for n in range(to, 5)]}


@pytest.mark.on_sqlite
def test_missing_topics_are_created_once(cluster, log, consume):
    consumer = consume("fresh")
    assert consumer.poll(100) == {}
    assert consumer.partitions_for_topic("fresh") == {0}
    delete_topic(cluster, "fresh")
    assert consumer.poll(600) == {}
    assert consumer.topics() == set()
    other = consume("other", allow_auto_create_topics=False)
    assert other.poll(100) == {} and other.topics() == set()


def test_patterns_follow_topics_and_partitions_that_are_added_or_deleted(cluster, log, consume):
    make(cluster, "orders-a", 1)
    make(cluster, "other", 1)
    consumer = consume()
    consumer.subscribe(pattern="^orders-")
    consumer.poll(0)
    assert consumer.subscription() == {"orders-a"}
    make(cluster, "orders-b", 1)
    append(log, "orders-b", "b")
    assert poll_values(consumer, 1) == {0: ["b"]}
    add_partitions(cluster, "orders-a", 3)
    append(log, "orders-a", "second", partition=2)
    assert poll_values(consumer, 1) == {2: ["second"]}
    delete_topic(cluster, "orders-a")
    wait_until(lambda: consumer.poll(50) == {} and consumer.subscription() == {"orders-b"})
    assert consumer.assignment() == {TopicPartition("orders-b", 0)}
