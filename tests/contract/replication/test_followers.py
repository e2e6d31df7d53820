"""Followers in the background: the replicas that they find, the order and the limits of their copies, and their end."""

import logging
import os
import threading

import pytest

from spark_log.cluster.lease import COORDINATOR, Lease
from spark_log.config.values import LEASE_MS_MAX
from spark_log.errors import (
    StorageUnavailableError,
)
from spark_log.metadata import tables as t
from spark_log.replication.controller.topic_operations import create_topic
from spark_log.replication.replicas import followers as followers_module
from spark_log.replication.replicas.catch_up import ReplicaCopy
from spark_log.replication.replicas.followers import COPIES_MAX, OUT_OF_SYNC_COPIES_MAX, Followers
from spark_log.replication.replicas.replicas_to_copy import find_lagging_replicas
from spark_log.replication.replicas.throttle import Throttle
from tests.support.replicas import CONFIGS, Replicated
from tests.support.table_checks import assert_delta_is_the_log, assert_replicas_are_whole
from tests.support.topics import append, append_to
from tests.support.waiting import LIMIT_S, wait_until

pytestmark = [pytest.mark.delta, pytest.mark.on_sqlite]


def large(text):
    return text + os.urandom(2_000).hex()


@pytest.fixture
def replicated(cluster, log, tmp_path):
    return Replicated(cluster, log, tmp_path)


# In the background


def behind(cluster, broker=None):
    with cluster.store.snapshot() as connection:
        found = find_lagging_replicas(connection, cluster.store.clock(connection), broker)
    return [(one.partition, one.broker_id, one.behind, one.in_sync, one.throttle_bytes_per_s) for one in found]


def test_lagging_replicas_are_found(cluster, log, tmp_path):
    replicated = Replicated(cluster, log, tmp_path, partitions=2)
    assert behind(cluster, 2) == behind(cluster, 3) == []
    replicated.append(large("a"), large("b"), partition=1)
    assert behind(cluster) == [], "no embedded broker's"
    assert behind(cluster, 3) == [(1, 3, 2, True, None)]
    replicated.leave(3)
    values = {"target": "[1, 3]", "original": "[1, 2, 3]", "throttle_bytes_per_s": 5, "began_ms": 0}
    replicated.sql(t.reassignment.insert().values(topic_id=replicated.topic.topic_id, partition=1, **values))
    replicated.sql(t.broker.update().where(t.broker.c.broker_id == 2).values(lease_until_ms=0))
    assert behind(cluster, 2) == [], "its process is dead"
    replicated.embed()
    assert behind(cluster) == [(0, 3, 0, False, None), (1, 2, 2, True, None), (1, 3, 2, False, 5)]
    assert behind(cluster, 2) == [(1, 2, 2, True, None)]
    replicated.sql(t.log_dir.update().where(t.log_dir.c.broker_id == 3).values(online=False))
    assert behind(cluster) == [(1, 2, 2, True, None)]
    replicated.sql(t.topic.update().where(t.topic.c.topic_id == replicated.topic.topic_id).values(state="deleting"))
    assert behind(cluster) == []


@pytest.fixture
def followers(cluster):
    """Followers of broker 3."""
    followers = Followers(cluster, broker_id=3)
    yield followers
    followers.close(30)
    assert not [thread for thread in threading.enumerate() if thread.name == "spark-log-followers-3"]


def test_the_background_worker_catches_up_its_broker(cluster, log, tmp_path, followers):
    replicated = Replicated(cluster, log, tmp_path, partitions=6)
    assert followers.drain(60)
    for number in range(30):
        replicated.append(large("x"), partition=number % 6)
        followers.wake()
    assert followers.drain(60)
    assert behind(cluster, 3) == []
    assert [replicated.ends(number) for number in range(6)] == [{1: 5, 2: 0, 3: 5}] * 6
    assert_delta_is_the_log(cluster)
    assert_replicas_are_whole(cluster)


def test_followers_without_a_broker_id_serve_all_embedded_brokers(cluster, log, tmp_path):
    replicated = Replicated(cluster, log, tmp_path, partitions=3)
    for number in range(12):
        replicated.append(large("x"), partition=number % 3)
    replicated.embed()
    all_brokers = Followers(cluster)
    assert all_brokers.drain(60)
    all_brokers.close(30)
    assert [replicated.ends(number) for number in range(3)] == [{1: 4, 2: 4, 3: 4}] * 3
    replicated.is_whole()


def test_processes_that_append_leave_the_copies_to_a_living_coordinator(cluster, log, tmp_path):
    replicated = Replicated(cluster, log, tmp_path)
    replicated.embed()
    coordinator = Lease(cluster.store, COORDINATOR, LEASE_MS_MAX)
    assert coordinator.take_or_renew()
    append_to(cluster, replicated.topic, large("a"), acks=1)
    lagging = behind(cluster)
    coordinator.give_back()
    append_to(cluster, replicated.topic, large("b"), acks=1)
    assert (lagging, behind(cluster)) == ([(0, 2, 1, True, None), (0, 3, 1, True, None)], [])


def test_a_process_that_appends_looks_seldom_whether_a_coordinator_lives(cluster, monkeypatch):
    polls, read_lease = [], followers_module.read_lease

    def counted(*given):
        polls.append(given)
        return read_lease(*given)

    monkeypatch.setattr(followers_module, "read_lease", counted)
    monkeypatch.setattr(followers_module, "_STAND_IN_PAUSE_S", 3_600.0)
    assert Lease(cluster.store, COORDINATOR, LEASE_MS_MAX).take_or_renew()
    stands_in = Followers(cluster, stands_in=True)
    assert stands_in.drain(60) and len(polls) == 1
    stands_in.wake()
    with stands_in._changed:
        assert not stands_in._changed.wait_for(lambda: len(polls) > 1, 0.2)
    assert stands_in.drain(60) and len(polls) == 2
    stands_in.close(30)


def test_a_failing_replica_does_not_delay_the_others_and_is_logged_once(cluster, log, tmp_path, followers, caplog):
    replicated = Replicated(cluster, log, tmp_path, partitions=3)
    folder = tmp_path / "broker-3" / replicated.topic.folder / "_segments" / "1"
    folder.parent.mkdir(parents=True)
    folder.write_bytes(b"in the way")
    with caplog.at_level(logging.WARNING):
        for partition in range(3):
            replicated.append(large("x"), partition=partition)
        assert not followers.drain(0.3)
        for partition in range(3):
            replicated.append(large("x"), partition=partition)
        wait_until(lambda: behind(cluster, 3) == [(1, 3, 2, True, None)])
        assert not followers.drain(0.3)
    assert [record for record in caplog.records if "t-1 on broker 3 does not catch up" in record.getMessage()]
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == len(set(told)), "each error once"
    folder.unlink()
    assert followers.drain(60)
    assert behind(cluster, 3) == []


def test_replicas_catch_up_one_after_the_other_while_a_poll_takes_long(cluster, log, tmp_path, followers, monkeypatch):
    replicated = Replicated(cluster, log, tmp_path, partitions=8)
    replicated.leave(3)
    find, polls, answers = followers_module.find_lagging_replicas, [], threading.Event()

    def slow_after_the_first(*given):
        polls.append(given)
        if len(polls) > 1:
            answers.wait()
        return find(*given)

    monkeypatch.setattr(followers_module, "find_lagging_replicas", slow_after_the_first)
    followers.wake()
    try:
        wait_until(lambda: behind(cluster, 3) == [])
    finally:
        answers.set()
    assert followers.drain(60)


def test_copies_that_fail_at_once_wait_for_the_next_poll_and_it_for_none_of_them(
    cluster, log, tmp_path, followers, monkeypatch
):
    replicated = Replicated(cluster, log, tmp_path, partitions=3 * COPIES_MAX)
    replicated.leave(3)
    find, polls, tried = followers_module.find_lagging_replicas, [], []

    def found(*given):
        polls.append(given)
        return find(*given)

    def fail(copying):
        tried.append(copying.partition)
        raise StorageUnavailableError("no answer")

    monkeypatch.setattr(followers_module, "find_lagging_replicas", found)
    monkeypatch.setattr(followers_module, "ready_pause_s", lambda _: 3_600.0)
    with monkeypatch.context() as patch:
        patch.setattr(ReplicaCopy, "run", fail)
        followers.wake()
        wait_until(lambda: len(set(tried)) == 3 * COPIES_MAX)
        copies = len(tried)
        assert copies <= OUT_OF_SYNC_COPIES_MAX * len(polls)


def test_copies_wait_while_many_topics_are_published(cluster, log, tmp_path, followers, monkeypatch):
    replicated = Replicated(cluster, log, tmp_path)
    topics = [create_topic(cluster, f"t-{number}", 1, 3, CONFIGS) for number in range(3 * COPIES_MAX)]
    replicated.sql(t.partition.update().values(leader=1))
    replicated.sql(t.replica.update().where(t.replica.c.broker_id == 1).values(preference=-1))
    for topic in topics:
        append(log, topic, large("x"), acks=1)
    answers, publish = threading.Event(), followers_module.try_publish

    def slow(*given):
        assert answers.wait(LIMIT_S)
        publish(*given)

    monkeypatch.setattr(followers_module, "try_publish", slow)
    followers.wake()

    def all_publish():
        with followers._changed:
            return not followers._under_way and len(followers._publishing) >= COPIES_MAX

    try:
        wait_until(all_publish)
        assert len(followers._copies) < 2 * COPIES_MAX
    finally:
        answers.set()
    assert followers.drain(60)
    assert behind(cluster, 3) == []


def test_copies_and_rounds_wait_for_threads_at_their_limit(cluster, log, tmp_path, followers, monkeypatch):
    replicated = Replicated(cluster, log, tmp_path, partitions=2)
    for partition in range(2):
        replicated.append(large("x"), partition=partition)
    refused = [True, False, True, True]  # the loop's thread once, and the first two copies
    start = followers_module.start_thread
    monkeypatch.setattr(
        followers_module, "start_thread", lambda *given: None if refused and refused.pop(0) else start(*given)
    )
    assert not followers.drain(60)
    assert followers.drain(60) and not refused
    assert behind(cluster, 3) == []


def test_closing_stops_a_throttled_copy(cluster, log, tmp_path, monkeypatch):
    replicated = Replicated(cluster, log, tmp_path)
    replicated.leave(3)
    replicated.append(large("a"), large("b"), acks=1)
    values = {"target": "[1, 3]", "original": "[1, 2, 3]", "throttle_bytes_per_s": 1, "began_ms": 0}
    replicated.sql(t.reassignment.insert().values(topic_id=replicated.topic.topic_id, partition=0, **values))
    begun = threading.Event()

    class Watched(Throttle):
        def take(self, size):
            begun.set()
            return super().take(size)

    monkeypatch.setattr(followers_module, "Throttle", Watched)
    slow = Followers(cluster, broker_id=3)
    slow.wake()
    assert begun.wait(60)
    outcomes = []
    draining = threading.Thread(target=lambda: outcomes.append(slow.drain(120)))
    draining.start()
    slow.close(60)
    draining.join(60)
    assert replicated.ends()[3] == 0 and outcomes == [False]
    assert not list((tmp_path / "broker-3").rglob("*.tmp"))
