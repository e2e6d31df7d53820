"""The end of a ShareConsumer: by close, by an error, by another thread, in its callback, or without references."""

import gc
import threading
import weakref

import pytest
from kafka.structs import TopicPartition

from spark_log import ShareConsumer
from spark_log.clients.consume import share_membership
from spark_log.errors import (
    IllegalStateError,
    MetadataStoreUnavailableError,
    WakeupError,
)
from spark_log.facts.groups import describe_groups
from spark_log.facts.share_groups import describe_share_group
from spark_log.replication.controller.topic_operations import create_topic
from tests.support.share_members import take
from tests.support.waiting import LIMIT_S

pytestmark = pytest.mark.on_sqlite


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


def test_a_heartbeat_that_waits_while_the_consumer_leaves_does_not_join_again(cluster, produce, worker, monkeypatch):
    consumer = worker()
    consumer.poll()
    heartbeat, leave = threading.Thread(target=consumer._membership.keep_alive), share_membership.leave_share_group

    def leave_meanwhile(*arguments):
        heartbeat.start()
        heartbeat.join(0.1)  # it waits until the consumer has left
        leave(*arguments)

    monkeypatch.setattr(share_membership, "leave_share_group", leave_meanwhile)
    consumer.unsubscribe()
    heartbeat.join()
    [group] = describe_groups(cluster.store, ["workers"])
    assert group.members == ()


def test_a_share_consumer_that_closes_after_a_join_without_an_answer_leaves_the_group(cluster, worker, monkeypatch):
    consumer, share_heartbeat = worker(), share_membership.share_heartbeat

    def join_without_answer(*arguments):
        share_heartbeat(*arguments)
        raise MetadataStoreUnavailableError("the answer is lost")

    with monkeypatch.context() as patch:
        patch.setattr(share_membership, "share_heartbeat", join_without_answer)
        assert consumer.poll() == {}
    assert [len(group.members) for group in describe_groups(cluster.store, ["workers"])] == [1]
    consumer.close()
    assert [group.members for group in describe_groups(cluster.store, ["workers"])] == [()]


def test_records_of_a_member_that_closes_in_explicit_mode_are_delivered_again(cluster, produce, worker):
    send(produce, *"abc")
    first, second = (worker(share_acknowledgement_mode="explicit") for _ in range(2))
    polled = take(first, 3)
    assert [record.delivery_count for record in polled] == [1, 1, 1]
    first.acknowledge(polled[1])
    first.close()
    assert [(r.value, r.delivery_count) for r in take(second, 2)] == [(b"a", 2), (b"c", 2)]


@pytest.mark.parametrize("form", ["poll", "poll_arrow", "iteration"])
def test_a_close_during_a_poll_accepts_no_record_that_the_poll_does_not_return(cluster, produce, worker, form):
    send(produce, *"ab")
    consumer = worker()
    buffered = consumer._polling.take

    def interrupted(rows_max):
        found = list(buffered(rows_max))
        if found:
            consumer.close()
        return iter(found)

    consumer._polling.take = interrupted
    polled = {"poll": consumer.poll, "poll_arrow": consumer.poll_arrow, "iteration": lambda _: list(consumer)}[form]
    assert not polled(1000 * LIMIT_S)
    assert consumer._closed
    assert [(record.value, record.delivery_count) for record in take(worker(), 2)] == [(b"a", 2), (b"b", 2)]


def test_callbacks_get_offsets_and_must_not_call_the_consumer(cluster, produce, worker):
    send(produce, *"ab")
    consumer, calls = worker(), []
    consumer.set_acknowledgement_commit_callback(lambda offsets, error: calls.append((offsets, error)))
    consumer.poll(60_000)
    consumer.commit_async()
    assert calls == [({TopicPartition("jobs", 0): [0, 1]}, None)]
    consumer.set_acknowledgement_commit_callback(lambda offsets, error: consumer.poll())
    send(produce, "c")
    consumer.poll(60_000)
    with pytest.raises(IllegalStateError, match="must not call"):
        consumer.commit_sync()


def _fail(_offsets, _error):
    raise ValueError("the callback failed")


def test_records_that_a_poll_acquired_before_its_callback_failed_come_with_the_next_poll(cluster, produce, worker):
    send(produce, *"abcd")
    consumer = worker(share_acquire_mode="record_limit", max_poll_records=2)
    take(consumer, 2)
    consumer.set_acknowledgement_commit_callback(_fail)
    with pytest.raises(ValueError, match="the callback failed"):
        consumer.poll(60_000)
    consumer.set_acknowledgement_commit_callback(None)
    assert values_of(consumer.poll()) == ["c", "d"]


def test_close_leaves_the_group_although_its_callback_fails(cluster, produce, worker):
    send(produce, "a")
    consumer = worker()
    take(consumer, 1)
    consumer.set_acknowledgement_commit_callback(_fail)
    with pytest.raises(ValueError, match="the callback failed"):
        consumer.close()
    assert describe_share_group(cluster.store, "workers").group.state == "Empty"


def test_a_callback_must_not_close_its_consumer(cluster, produce, worker):
    send(produce, *"abcd")
    consumer, errors = worker(share_acquire_mode="record_limit", max_poll_records=2), []

    def close(_offsets, _error):
        with pytest.raises(IllegalStateError, match="must not call its consumer"):
            consumer.close()
        errors.append(_error)

    take(consumer, 2)
    consumer.set_acknowledgement_commit_callback(close)
    assert values_of(consumer.poll(60_000)) == ["c", "d"]
    assert errors == [None]


def test_a_consumer_without_references_is_collected(cluster, cluster_address, configure):
    consumer = ShareConsumer("jobs", cluster=cluster_address, group_id="workers")
    consumer.poll()
    there = weakref.ref(consumer)
    del consumer
    gc.collect()
    assert there() is None
    for thread in threading.enumerate():
        if thread.name == "spark-log-share-consumer-workers":
            thread.join(60)
            assert not thread.is_alive()


def test_wakeup_ends_a_poll(cluster, worker):
    consumer = worker()
    threading.Timer(0.2, consumer.wakeup).start()
    with pytest.raises(WakeupError):
        consumer.poll(60_000)
    assert consumer.poll() == {}


def test_iteration_ends_with_close_by_another_thread(cluster, produce, worker):
    send(produce, *"ab")
    consumer, got = worker(), []
    for record in consumer:
        got.append(record.value)
        if len(got) == 2:
            threading.Timer(0.1, consumer.close).start()
    assert got == [b"a", b"b"]


@pytest.mark.parametrize("ended_by", ["close", "commit"])
def test_iteration_accepts_only_records_that_the_program_has_seen(cluster, produce, worker, ended_by):
    send(produce, *"abc")
    with worker() as consumer:
        assert next(consumer).value == b"a"
        if ended_by == "commit":
            consumer.commit_sync()
            assert next(consumer).value == b"b"
    assert values_of(worker().poll(60_000)) == (["c"] if ended_by == "commit" else ["b", "c"])
