"""A topic that is deleted and created again under its name: positions in the old topic do not apply to the new one."""

import itertools
import uuid

import kafka.errors
import pytest
from kafka.structs import OffsetAndMetadata, TopicPartition

from spark_log import Admin, ids
from spark_log.clients.admin import topics
from spark_log.cluster.topics import list_topics
from spark_log.errors import UnknownTopicOrPartitionError
from spark_log.groups import group_operations
from spark_log.groups.committed_offsets import committed_offsets
from spark_log.groups.share.administration import alter_group_configs
from spark_log.groups.share.rules import AcknowledgeType
from spark_log.metadata import tables as t
from spark_log.replication.controller.topic_operations import delete_topic
from spark_log.spark.streams import TransactionalLoop
from tests.support.share_members import ShareMember, overtaken_member
from tests.support.stores import each_on_sqlite_last_on_postgres, rows_of
from tests.support.topics import fill, make

P0 = TopicPartition("t", 0)


@pytest.fixture
def recreate(cluster, log):
    """Delete topic "t", create it again and append 3 records."""

    def again():
        delete_topic(cluster, "t")
        fill(log, make(cluster, "t"), [3])

    return again


def read_all(consumer, count):
    """Read `count` records, or stop after a second without one."""
    found = []
    while len(found) < count:
        polled = consumer.poll(1000)
        if not polled:
            break
        found += [record for records in polled.values() for record in records]
    return found


def refused(call):
    with pytest.raises(UnknownTopicOrPartitionError, match="t-0"):
        call()


def commit_its_position(consumer):
    refused(consumer.commit)


def commit_given_offsets(consumer):
    refused(lambda: consumer.commit({P0: OffsetAndMetadata(2, "", -1)}))


def commit_in_the_background(consumer):
    future = consumer.commit_async()
    refused(consumer.commit)  # after the background commit
    assert isinstance(future.exception, UnknownTopicOrPartitionError)


def close(consumer):
    consumer.close()


def unsubscribe(consumer):
    consumer.unsubscribe()


WAYS = [commit_given_offsets, commit_in_the_background, close, unsubscribe, commit_its_position]


@each_on_sqlite_last_on_postgres("way, assigned", list(itertools.product(WAYS, [True, False])))
def test_position_in_the_old_topic_is_not_committed_into_the_new_one(cluster, log, consume, recreate, way, assigned):
    fill(log, make(cluster, "t"), [5])
    consumer = consume(enable_auto_commit=way in (close, unsubscribe), auto_commit_interval_ms=3_600_000)
    consumer.assign([P0]) if assigned else consumer.subscribe(["t"])
    read_all(consumer, 5)
    recreate()
    way(consumer)
    assert committed_offsets(cluster.store, "g") == {}
    consumer.close(autocommit=False)
    assert [record.offset for record in read_all(consume("t"), 3)] == [0, 1, 2]


def test_position_in_the_old_topic_is_not_committed_when_its_partition_is_revoked(cluster, log, consume, recreate):
    fill(log, make(cluster, "t"), [5])
    make(cluster, "other")
    consumer = consume("t", enable_auto_commit=True, auto_commit_interval_ms=3_600_000)
    read_all(consumer, 5)
    recreate()
    consumer.subscribe(["other"])
    while P0 in consumer.assignment():
        consumer.poll(20)
    assert committed_offsets(cluster.store, "g") == {}


def test_a_commit_read_before_a_recreation_is_not_the_position_in_the_new_topic(
    cluster, log, consume, recreate, monkeypatch
):
    fill(log, make(cluster, "t"), [5])
    consumer = consume("t")
    read_all(consumer, 5)
    consumer.commit({P0: OffsetAndMetadata(2, "", -1)})
    consumer.close()
    second = consume("t")
    find = second._polling.fetching.fetch

    def recreate_first(*args):
        monkeypatch.undo()
        recreate()
        return find(*args)

    monkeypatch.setattr(second._polling.fetching, "fetch", recreate_first)
    assert [record.offset for record in read_all(second, 3)] == [0, 1, 2]


@pytest.mark.parametrize("when", ["before the offsets are sent", "before the commit"])
def test_offsets_of_the_old_topic_fail_a_transaction(cluster, log, consume, produce, recreate, when):
    fill(log, make(cluster, "t"), [5])
    make(cluster, "out")
    consumer, producer = consume("t"), produce(transactional_id="x")
    read_all(consumer, 5)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("out", b"result")
    who, offsets = consumer.group_metadata(), {P0: OffsetAndMetadata(2, "", -1)}
    if when == "before the offsets are sent":
        recreate()
        refused(lambda: producer.send_offsets_to_transaction(offsets, who))
    else:
        producer.send_offsets_to_transaction(offsets, who)
        recreate()
        refused(producer.commit_transaction)
    producer.abort_transaction()
    assert committed_offsets(cluster.store, "g") == {}


def test_offsets_sent_under_a_group_id_are_of_the_topic_of_that_moment(cluster, log, produce, recreate):
    fill(log, make(cluster, "t"), [5])
    producer = produce(transactional_id="x")
    producer.init_transactions()
    producer.begin_transaction()
    producer.send_offsets_to_transaction({P0: OffsetAndMetadata(2, "", -1)}, "g")
    recreate()
    refused(producer.commit_transaction)
    assert committed_offsets(cluster.store, "g") == {}


def test_transactional_loop_reads_a_recreated_topic_from_its_start(cluster, log, consume, produce, recreate):
    fill(log, make(cluster, "t"), [5])
    make(cluster, "out")
    consumer = consume("t", consumer_timeout_ms=300, retry_backoff_ms=1)
    seen = []

    def recreate_once(records, producer):
        if not seen:
            recreate()
        seen.append([record.offset for record in records])

    TransactionalLoop(consumer, produce(transactional_id="x")).run(recreate_once)
    assert seen == [[0, 1, 2, 3, 4], [0, 1, 2]]
    assert committed_offsets(cluster.store, "g") == {P0: 3}


def test_reset_that_found_its_offsets_in_the_old_topic_changes_nothing(cluster, log, recreate, monkeypatch):
    fill(log, make(cluster, "t"), [5])
    find = cluster.store.read

    def recreate_after_the_read(query):
        found = find(query)
        monkeypatch.undo()
        recreate()
        return found

    monkeypatch.setattr(cluster.store, "read", recreate_after_the_read)
    refused(
        lambda: group_operations.reset_offsets(cluster, "g", {ids.TopicPartition("t", 0): group_operations.Latest()})
    )
    assert committed_offsets(cluster.store, "g") == {}


def test_state_of_a_share_group_in_the_old_topic_does_not_apply_to_the_new_one(cluster, log, recreate):
    alter_group_configs(cluster.store, "workers", {"share.auto.offset.reset": "earliest"})
    fill(log, make(cluster, "t"), [5])
    member = ShareMember(cluster)
    member.acknowledge(member.poll(1), AcknowledgeType.RELEASE, delay_ms=3_600_000)
    member.acknowledge(member.poll(1), AcknowledgeType.RELEASE)
    old = member.poll(2)
    recreate()
    [error] = member.acknowledge(old, AcknowledgeType.ACCEPT).errors.values()
    assert isinstance(error, UnknownTopicOrPartitionError)
    assert member.poll() == {}, "its assignment is of the old topic"
    member.join()
    assert [(r.first, r.end, r.lock, r.deliveries) for ranges in member.poll().values() for r in ranges] == [
        (0, 3, 1, 1)
    ]
    [error] = member.acknowledge(old, AcknowledgeType.ACCEPT).errors.values()
    assert isinstance(error, UnknownTopicOrPartitionError)
    stored = rows_of(cluster, t.share_partition, t.share_delayed)
    assert (len(stored["share_partition"]), stored["share_delayed"]) == (1, [])


def test_a_topic_is_created_again_between_the_read_of_a_share_group_and_its_acquisition(cluster, log, recreate):
    alter_group_configs(cluster.store, "workers", {"share.auto.offset.reset": "earliest"})
    fill(log, make(cluster, "t"), [5])
    with overtaken_member(cluster, recreate) as member:
        assert member.poll() == {}
    member.join()
    member.poll()
    assert sorted(member.values()) == [(0, 0), (0, 1), (0, 2)]


def test_offset_of_a_topic_that_does_not_exist_is_not_committed(cluster, consume):
    consumer = consume(allow_auto_create_topics=False)
    consumer.assign([P0])
    refused(lambda: consumer.commit({P0: OffsetAndMetadata(2, "", -1)}))


def test_a_deletion_by_topic_id_leaves_a_new_topic_of_that_name(cluster, cluster_address, recreate, monkeypatch):
    old = make(cluster, "t")

    def list_before(opened):
        found = list_topics(opened)
        recreate()
        return found

    monkeypatch.setattr(topics, "list_topics", list_before)
    with Admin(cluster=cluster_address) as admin:
        [answer] = admin.delete_topics([uuid.UUID(old.uuid)], raise_errors=False)["topics"]
    assert answer["error_code"] == kafka.errors.UnknownTopicOrPartitionError.errno
    assert [topic.name for topic in list_topics(cluster)] == ["t"]
