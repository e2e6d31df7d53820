"""ShareConsumer: each record is delivered to one member, until one has accepted it."""

import pyarrow.compute as pc
import pytest
from kafka.errors import KafkaConfigurationError, KafkaError
from kafka.structs import TopicPartition

from spark_log import AcknowledgeType, ShareConsumer, clock
from spark_log.cluster.settings import alter_settings
from spark_log.errors import (
    GroupIdNotFoundError,
    GroupMaxSizeReachedError,
    IllegalStateError,
    InvalidRecordStateError,
)
from spark_log.maintenance.removal.retention import delete_records
from spark_log.replication.controller.topic_operations import create_topic, delete_topic
from tests.support.share_members import move_lock_ends, only_offer, take
from tests.support.waiting import LIMIT_S

pytestmark = pytest.mark.on_sqlite


LOCK_MS = 45_000
"""Longer than a test: its locks end because it moves their ends."""


@pytest.fixture(autouse=True)
def jobs(cluster):
    """Topic `jobs`, with one partition."""
    create_topic(cluster, "jobs")


def send(produce, *values, topic="jobs", partition=0):
    producer = produce()
    for value in values:
        producer.send(topic, value.encode(), partition=partition).get()


def values_of(polled):
    return [record.value.decode() for records in polled.values() for record in records]


def test_members_share_the_records_of_one_partition(cluster, produce, worker):
    send(produce, *"abcdef")
    first, second = (worker(share_acquire_mode="record_limit", max_poll_records=2) for _ in range(2))
    got = [values_of(first.poll(60_000)), values_of(second.poll(60_000)), values_of(first.poll(60_000))]
    assert got == [["a", "b"], ["c", "d"], ["e", "f"]]
    assert second.poll() == {} == first.poll()
    first.commit_sync()
    second.close()
    assert values_of(first.poll()) == []  # close accepts in implicit mode


def test_released_records_come_again_and_rejected_ones_do_not(cluster, produce, worker):
    send(produce, *"abc")
    consumer = worker(share_acknowledgement_mode="explicit")
    first, second, third = take(consumer, 3)
    consumer.acknowledge(first, AcknowledgeType.RELEASE)
    consumer.acknowledge(second, AcknowledgeType.REJECT)
    consumer.acknowledge_offset("jobs", 0, third.offset, AcknowledgeType.ACCEPT)
    assert consumer.commit_sync() == {TopicPartition("jobs", 0): None}
    [again] = take(consumer, 1)
    assert (again.value, again.delivery_count) == (b"a", 2)
    consumer.acknowledge(again)
    assert consumer.poll() == {}


def test_a_record_is_archived_after_the_last_delivery(cluster, produce, worker, configure):
    configure(share_delivery_count_limit=2)
    send(produce, "a")
    consumer = worker(share_acknowledgement_mode="explicit")
    for delivery in (1, 2):
        [record] = take(consumer, 1)
        assert record.delivery_count == delivery
        consumer.acknowledge(record, AcknowledgeType.RELEASE)
    assert consumer.poll() == {}


def test_a_lock_ends_and_its_late_acknowledgement_is_refused(cluster, produce, worker, configure):
    configure(share_record_lock_duration_ms=LOCK_MS)
    send(produce, "a")
    slow, other = (worker(share_acknowledgement_mode="explicit") for _ in range(2))
    [record] = take(slow, 1)
    assert slow.acquisition_lock_timeout_ms() == LOCK_MS
    move_lock_ends(cluster, LOCK_MS - 500)
    [again] = take(other, 1)  # waits until the lock of `slow` has ended
    assert again.delivery_count == 2
    slow.acknowledge(record, AcknowledgeType.REJECT)
    [error] = slow.commit_sync().values()
    assert isinstance(error, InvalidRecordStateError)
    assert isinstance(error, KafkaError)
    other.acknowledge(again)
    assert list(other.commit_sync().values()) == [None]


def test_a_renewed_lock_lasts(cluster, produce, worker):
    send(produce, "a")
    slow, other = (worker(share_acknowledgement_mode="explicit") for _ in range(2))
    [record] = take(slow, 1)
    for _ in range(2):
        ends_ms = first_end_ms(cluster)
        clock.sleep_s(0.05)
        slow.acknowledge(record, AcknowledgeType.RENEW)
        assert list(slow.commit_sync().values()) == [None]
        assert first_end_ms(cluster) >= ends_ms + 50
    slow.acknowledge(record)
    assert list(slow.commit_sync().values()) == [None]
    assert other.poll(100) == {}


def first_end_ms(cluster):
    """When the first lock of the partition ends."""
    return only_offer(cluster).wake_ms


def test_a_renewal_of_one_record_does_not_renew_those_in_memory(cluster, produce, worker, configure):
    configure(share_record_lock_duration_ms=LOCK_MS)
    send(produce, *"abc")
    first, second = (worker(share_acknowledgement_mode="explicit") for _ in range(2))
    [[record]] = first.poll(1000 * LIMIT_S, max_records=1).values()
    for delivery in first._polling.deliveries:  # also by the consumer's clock, only a renewal makes the locks last
        delivery.lock_ends_s = clock.monotonic_s()
    alter_settings(cluster, {"group.share.max.record.lock.duration.ms": "600000"})
    configure(share_record_lock_duration_ms=600_000)
    first.acknowledge(record, AcknowledgeType.RENEW)
    assert first.commit_sync() == {TopicPartition("jobs", 0): None}
    move_lock_ends(cluster, LOCK_MS)
    assert [record.value for record in take(second, 2)] == [b"b", b"c"]
    assert first.poll(0, max_records=1) == {}


def test_only_the_last_delivery_of_a_record_to_a_consumer_is_held(cluster, produce, worker, configure):
    configure(share_record_lock_duration_ms=LOCK_MS)
    send(produce, *"ab")
    consumer = worker(share_acknowledgement_mode="explicit")
    for _ in range(2):
        [table] = consumer.poll_arrow(1000 * LIMIT_S).values()
        consumer.acknowledge(table, AcknowledgeType.RENEW)
        assert list(consumer.commit_sync().values()) == [None]
        move_lock_ends(cluster, LOCK_MS)
    [table] = consumer.poll_arrow(1000 * LIMIT_S).values()
    consumer.acknowledge(table.slice(0, 1))
    consumer.acknowledge_rest()
    assert list(consumer.commit_sync().values()) == [None]
    assert list(consumer._polling.deliveries) == []


def test_a_later_release_without_a_delay_counts(cluster, produce, worker):
    send(produce, "a")
    consumer = worker(share_acknowledgement_mode="explicit")
    [record] = take(consumer, 1)
    consumer.acknowledge(record, AcknowledgeType.RELEASE, delay_ms=60_000)
    consumer.acknowledge(record, AcknowledgeType.RELEASE)
    assert [again.value for again in take(consumer, 1)] == [b"a"]


def test_single_records_are_taken_from_those_in_memory(cluster, produce, worker):
    send(produce, *"abcd")
    consumer, other = worker(), worker()
    assert [values_of(consumer.poll(60_000, max_records=1)) for _ in range(3)] == [["a"], ["b"], ["c"]]
    assert other.poll() == {}  # all four are locked
    consumer.close()
    assert values_of(other.poll(60_000)) == ["d"]


def test_arrow_tables_are_acknowledged_whole_or_in_part(cluster, produce, worker):
    send(produce, *"abcd")
    consumer = worker(share_acknowledgement_mode="explicit")
    [table] = consumer.poll_arrow(60_000).values()
    assert table.column("value").to_pylist() == [b"a", b"b", b"c", b"d"]
    assert table.column("delivery_count").to_pylist() == [1, 1, 1, 1]
    bad = pc.equal(table.column("value"), b"b")
    consumer.acknowledge(table.filter(bad), AcknowledgeType.RELEASE)
    with pytest.raises(IllegalStateError, match="must be acknowledged"):
        consumer.poll_arrow()
    consumer.acknowledge(table.filter(pc.invert(bad)))
    [again] = consumer.poll_arrow(60_000).values()
    assert (again.column("value").to_pylist(), again.column("delivery_count").to_pylist()) == ([b"b"], [2])


def test_a_record_that_cannot_be_deserialized_is_released_and_raised(cluster, produce, worker):
    send(produce, "1", "x", "3")
    consumer = worker(value_deserializer=int)
    assert [record.value for record in take(consumer, 1)] == [1]
    with pytest.raises(ValueError, match="invalid literal"):
        consumer.poll(60_000)
    assert [record.value for record in take(consumer, 1)] == [3]
    with pytest.raises(ValueError, match="invalid literal"):  # it is delivered again
        consumer.poll(60_000)


def test_new_groups_begin_at_the_end_unless_configured(cluster, cluster_address, produce):
    send(produce, "before")
    with ShareConsumer("jobs", cluster=cluster_address, group_id="late") as consumer:
        assert consumer.poll() == {}
        send(produce, "after")
        assert values_of(consumer.poll(60_000)) == ["after"]


def test_a_topic_that_is_made_again_has_no_old_state(cluster, produce, worker):
    alter_settings(cluster, {"group.share.heartbeat.interval.ms": "50", "group.share.min.heartbeat.interval.ms": "1"})
    send(produce, "old")
    consumer = worker(share_acknowledgement_mode="explicit")
    [old] = take(consumer, 1)
    delete_topic(cluster, "jobs")
    create_topic(cluster, "jobs")
    send(produce, "new")
    consumer.acknowledge(old)
    [new] = take(consumer, 1)
    assert (new.value, new.offset, new.delivery_count) == (b"new", 0, 1)


def test_retention_drops_records_and_their_acknowledgements_are_ignored(cluster, produce, worker):
    send(produce, *"abcd")
    first = worker(share_acknowledgement_mode="explicit", share_acquire_mode="record_limit", max_poll_records=2)
    polled = take(first, 2)
    delete_records(cluster, {TopicPartition("jobs", 0): 3})
    for record in polled:
        first.acknowledge(record)
    assert list(first.commit_sync().values()) == [None]
    assert values_of(first.poll(60_000)) == ["d"]


def test_mistakes_are_named(cluster, cluster_address, worker, produce):
    with pytest.raises(KafkaConfigurationError, match="group_id"):
        ShareConsumer("jobs", cluster=cluster_address)
    with pytest.raises(KafkaConfigurationError, match="share_acknowledgement_mode"):
        worker(share_acknowledgement_mode="both")
    with pytest.raises(KafkaConfigurationError, match="did you mean max_poll_records"):
        worker(max_pol_records=3)
    with ShareConsumer(cluster=cluster_address, group_id="workers") as idle, pytest.raises(IllegalStateError):
        idle.poll()
    send(produce, "a")
    implicit = worker()
    [record] = take(implicit, 1)
    with pytest.raises(IllegalStateError, match="Implicit"):
        implicit.acknowledge(record)
    explicit = worker(group_id="others", share_acknowledgement_mode="explicit")
    with pytest.raises(IllegalStateError, match="not held"):
        explicit.acknowledge(record)


def test_a_group_of_another_type_is_refused(cluster, cluster_address, worker, produce):
    from spark_log import Consumer

    send(produce, "a")
    with Consumer("jobs", cluster=cluster_address, group_id="readers", auto_offset_reset="earliest") as consumer:
        assert consumer.poll(60_000)
        with pytest.raises(GroupIdNotFoundError, match="is not a share group"):
            worker(group_id="readers").poll()


def test_a_group_has_a_largest_size(cluster, worker):
    alter_settings(cluster, {"group.share.max.size": "1"})
    worker().poll()
    with pytest.raises(GroupMaxSizeReachedError, match="maximum capacity of 1"):
        worker().poll()


@pytest.mark.parametrize("delay", ["release", "header"])
def test_delayed_records_wait(cluster, produce, worker, delay):
    due_ms = cluster.store.now().wall_ms + 700
    headers = [("spark-log.deliver-at", str(due_ms).encode())] if delay == "header" else []
    produce().send("jobs", b"later", headers=headers).get()
    send(produce, "now")
    consumer = worker(share_acknowledgement_mode="explicit")
    if delay == "release":
        for record in take(consumer, 2):
            later = record.value == b"later"
            consumer.acknowledge(record, AcknowledgeType.RELEASE if later else AcknowledgeType.ACCEPT,
                                 delay_ms=700 if later else 0)  # fmt: skip
        due_ms = cluster.store.now().wall_ms + 690
        consumer.commit_sync()
        [late] = take(consumer, 1)
    else:
        by_value = {}
        while b"later" not in by_value:
            for record in take(consumer, 1):
                by_value[record.value] = record
                consumer.acknowledge(record)
        assert by_value.keys() == {b"now", b"later"}
        late = by_value[b"later"]
    assert cluster.store.now().wall_ms >= due_ms - 5
    assert (late.value, late.delivery_count) == (b"later", 2 if delay == "release" else 1)
