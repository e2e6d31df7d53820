"""Commits of consumers: by hand, automatic, in the background, and at the end; their callbacks; and first positions."""

import threading
import time
from functools import partial
from itertools import groupby

import pytest
from kafka.errors import IllegalArgumentError, IllegalStateError
from kafka.structs import OffsetAndMetadata, TopicPartition

from spark_log import Consumer
from spark_log.facts.groups import describe_groups
from spark_log.groups.committed_offsets import committed_offsets
from spark_log.groups.membership import ConsumerMembership
from tests.support.group_members import settle_consumers
from tests.support.topics import append, fill, make
from tests.support.waiting import wait_until

P0, P1, P2, P3 = (TopicPartition("t", number) for number in range(4))


@pytest.fixture
def consume(consume):
    return partial(consume, enable_auto_commit=True, heartbeat_interval_ms=100)


def committed(cluster, group="g"):
    return {(name, number): offset for (name, number), offset in committed_offsets(cluster.store, group).items()}


def test_commits_positions_and_the_first_position_of_the_next_consumer(cluster, log, consume):
    make(cluster, "t", 1)
    fill(log, "t", [10])
    consumer = consume("t", enable_auto_commit=False, max_poll_records=4)
    settle_consumers(consumer, until=lambda: (consumer.assignment() and consumer.position(P0)) == 4)
    assert consumer.committed(P0) is None
    consumer.commit()
    assert consumer.committed(P0) == 4
    consumer.commit({P0: OffsetAndMetadata(6, "here", 3)})
    assert consumer.committed(P0, metadata=True) == OffsetAndMetadata(6, "here", 3)
    for wrong in (-1, 1.5, None, True):
        with pytest.raises(IllegalArgumentError):
            consumer.commit({P0: OffsetAndMetadata(wrong, "", -1)})
    with pytest.raises(TypeError):
        consumer.commit({P0: 3})
    consumer.close()
    after = consume("t")
    [[first, *_]] = settle_consumers(after, until=lambda: (after.assignment() and after.position(P0)) == 10)
    assert first == "0/6"


@pytest.mark.on_sqlite
def test_callbacks_of_background_commits_run_inside_poll(cluster, log, consume):
    make(cluster, "t", 1)
    fill(log, "t", [2])
    consumer = consume("t", enable_auto_commit=False)
    settle_consumers(consumer, until=lambda: (consumer.assignment() and consumer.position(P0)) == 2)
    told = []

    def callback(offsets, outcome):
        told.append((offsets, outcome, threading.get_ident()))

    offsets = {P0: OffsetAndMetadata(1, "", -1)}
    for number in range(3):
        future = consumer.commit_async(offsets, callback)
        wait_until(lambda future=future: future.is_done)
        assert len(told) == number
        consumer.poll(0)
        assert told == [(offsets, None, threading.get_ident())] * (number + 1)
    assert consumer.committed(P0) == 1


def members(cluster, group="g"):
    [described] = describe_groups(cluster.store, [group])
    return described.members


@pytest.mark.on_sqlite
def test_a_commit_callback_may_close_the_consumer(cluster, log, consume):
    fill(log, make(cluster, "t", 1), [2])
    consumer = consume("t")
    settle_consumers(consumer, share=[1])
    commit = consumer.commit_async(callback=lambda *_: consumer.close())
    wait_until(lambda: commit.is_done)
    assert consumer.poll(0) == {}
    assert members(cluster) == () and consumer.assignment() == set()
    with pytest.raises(IllegalStateError, match="closed"):
        consumer.poll(0)


@pytest.mark.on_sqlite
def test_close_without_an_automatic_commit_waits_for_commits_in_the_background(cluster, log, consume):
    fill(log, make(cluster, "t", 1), [2])
    consumer = consume("t", auto_commit_interval_ms=60_000)
    settle_consumers(consumer, share=[1])
    begin = threading.Event()
    consumer._background.submit(lambda: begin.wait(60))
    commit = consumer.commit_async({P0: OffsetAndMetadata(1, "", -1)})
    closing = threading.Thread(target=consumer.close, kwargs={"autocommit": False})
    closing.start()
    wait_until(lambda: consumer._background._tasks.qsize() == 2, "it waits behind the commit")
    begin.set()
    closing.join(60)
    assert commit.succeeded()
    with consume("t") as after:
        assert after.committed(P0) == 1


@pytest.mark.on_sqlite
def test_close_commits_and_leaves_the_group_although_a_commit_callback_fails(cluster, log, consume):
    fill(log, make(cluster, "t", 1), [2])
    consumer = consume("t", auto_commit_interval_ms=60_000)
    settle_consumers(consumer, share=[1])
    wait_until(lambda: consumer.position(P0) == 2 or consumer.poll(100) is None)
    commit = consumer.commit_async({P0: OffsetAndMetadata(1, "", -1)}, callback=lambda *_: 1 / 0)
    wait_until(lambda: commit.is_done)
    with pytest.raises(ZeroDivisionError):
        consumer.close()
    assert members(cluster) == ()
    with consume("t") as after:
        assert after.committed(P0) == 2


@pytest.mark.on_sqlite
def test_automatic_commits(cluster, log, consume):
    make(cluster, "t", 1)
    fill(log, "t", [3])
    consumer = consume("t", auto_commit_interval_ms=50)
    settle_consumers(consumer, until=lambda: committed(cluster) == {P0: 3})
    append(log, "t", "more")
    settle_consumers(consumer, until=lambda: consumer.position(P0) == 4)
    consumer.close()
    assert committed(cluster) == {P0: 4}


@pytest.mark.on_sqlite
def test_an_error_in_the_with_block_commits_nothing(cluster, log, cluster_address):
    make(cluster, "t", 1)
    fill(log, "t", [3])

    def work():
        with Consumer("t", cluster=cluster_address, group_id="g", auto_offset_reset="earliest") as consumer:
            next(consumer)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert committed(cluster) == {}


@pytest.mark.on_sqlite
def test_offsets_of_manually_assigned_partitions(cluster, log, consume):
    make(cluster, "t", 1)
    fill(log, "t", [5])
    consumer = consume(max_poll_records=2, enable_auto_commit=False)
    consumer.assign([P0])
    consumer.poll(60_000)
    consumer.commit()
    assert consumer.committed(P0) == 2
    consumer.close()
    again = consume()
    again.assign([P0])
    assert again.position(P0) == 2
    with pytest.raises(IllegalStateError):
        again.subscribe(["t"])


@pytest.mark.on_sqlite
def test_a_backlog_of_commits_delays_no_heartbeat(cluster, log, consume, monkeypatch):
    fill(log, make(cluster, "t", 1), [3])
    done, keep_alive = [], ConsumerMembership.keep_alive
    monkeypatch.setattr(ConsumerMembership, "keep_alive", lambda self: done.append("heartbeat") or keep_alive(self))
    consumer = consume("t", heartbeat_interval_ms=10, enable_auto_commit=False)
    settle_consumers(consumer, share=[1])
    write = consumer._polling.commits._write

    def write_slowly(offsets):
        done.append("commit")
        time.sleep(0.02)  # so that a heartbeat is due after each commit
        write(offsets)

    monkeypatch.setattr(consumer._polling.commits, "_write", write_slowly)
    commits = [consumer.commit_async() for _ in range(25)]
    consumer.commit()
    assert all(commit.succeeded() for commit in commits)
    in_a_row = [len(list(same)) for what, same in groupby(done) if what == "commit"]
    assert sum(in_a_row) > 20 and max(in_a_row) <= 2, done
