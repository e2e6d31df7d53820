"""A Consumer that is closed by another thread, by a signal handler or during a call; and one consumer per thread."""

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from kafka import ConsumerRebalanceListener
from kafka.errors import (
    IllegalStateError,
)
from kafka.structs import TopicPartition

from spark_log import Consumer
from tests.support.group_members import poll_values
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
def test_another_thread_gets_a_clear_error_and_may_close(cluster, consume):
    make(cluster, "t", 1)
    consumer = consume("t")
    consumer.poll(0)
    results = []
    inside = threading.Event()
    original = consumer._polling._wait

    def wait(left_s):
        inside.set()
        original(left_s)

    consumer._polling._wait = wait
    polling = threading.Thread(target=lambda: results.append(consumer.poll(60_000)))
    polling.start()
    assert inside.wait(LIMIT_S)
    with pytest.raises(IllegalStateError, match="another thread"):
        consumer.poll()
    consumer.close()
    polling.join(LIMIT_S)
    assert results == [{}]


@pytest.mark.on_sqlite
def test_a_signal_handler_may_close_the_consumer_whatever_poll_holds(cluster, consume, monkeypatch):
    """A handler runs between two steps of the main thread, which may hold a lock that `close` needs."""
    make(cluster, "t", 1)
    consumer = consume("t")
    consumer.poll(0)
    changes = consumer.cluster.store.changes
    interrupted = changes._connection

    class Interrupting:
        def execute(self, statement):
            consumer.close()
            return interrupted.execute(statement)

    monkeypatch.setattr(changes, "_connection", Interrupting())
    monkeypatch.setattr(Interrupting, "close", interrupted.close, raising=False)
    assert consumer.poll(60_000) == {}
    with pytest.raises(IllegalStateError, match="closed"):
        consumer.poll(0)


@pytest.mark.on_sqlite
@pytest.mark.parametrize("call", ["commit", "commit_async", "end_offsets", "pause", "close"])
def test_a_signal_handler_may_close_the_consumer_in_each_of_its_calls(cluster, consume, monkeypatch, call):
    """The interrupted step holds a lock that `close` needs, and that is not reentrant."""
    make(cluster, "t", 1)
    consumer = consume("t", group_id="g")
    consumer.poll(0)
    held, closed_inside = threading.Lock(), []

    def interrupted(*arguments):
        with held:
            consumer.close()
            closed_inside.append(consumer._closed)
        return original(*arguments)

    owner, name = {
        "commit": (consumer._background, "submit"),
        "commit_async": (consumer._background, "submit"),
        "end_offsets": (consumer, "_ends"),
        "pause": (consumer._subscription, "state"),
        "close": (consumer._polling.commits, "finish"),
    }[call]
    original = getattr(owner, name)
    release = consumer._release

    def release_with_lock(timeout_s):
        assert held.acquire(timeout=0), "deadlock"
        release(timeout_s)

    monkeypatch.setattr(owner, name, interrupted)
    monkeypatch.setattr(consumer, "_release", release_with_lock)
    getattr(consumer, call)(*{"end_offsets": [[P0]], "pause": [P0]}.get(call, []))
    assert closed_inside[0] is False
    assert consumer._closed


@pytest.mark.on_sqlite
@pytest.mark.parametrize("form", ["poll", "poll_arrow", "iteration"])
def test_a_close_during_a_poll_commits_no_record_that_the_poll_does_not_return(
    cluster, log, consume, monkeypatch, form
):
    make(cluster, "t", 1)
    append(log, "t", "a", "b")
    consumer = consume("t", group_id="g")
    fetched = consumer._polling.poll

    def interrupted(timeout_s, rows_max):
        found = fetched(timeout_s, rows_max)
        if found:
            consumer.close()
        return found

    monkeypatch.setattr(consumer._polling, "poll", interrupted)
    polled = {"poll": consumer.poll, "poll_arrow": consumer.poll_arrow, "iteration": lambda _: list(consumer)}[form]
    assert not polled(SOON_MS)
    assert consumer._closed
    assert poll_values(consume("t", group_id="g"), 2) == {0: ["a", "b"]}


@pytest.mark.on_sqlite
def test_an_error_of_a_close_does_not_replace_the_result_of_the_call_that_it_ends(cluster, consume, caplog):
    make(cluster, "t", 1)

    class Listener(ConsumerRebalanceListener):
        def on_partitions_assigned(self, assigned):
            pass

        def on_partitions_revoked(self, revoked):
            raise RuntimeError("while it is closed")

    consumer = consume(group_id="g")
    consumer.subscribe(["t"], listener=Listener())
    while not consumer.assignment():
        consumer.poll(SOON_MS / 100)
    consumer._subscription.state(P0).offset = None
    resolve = consumer._polling.resolve_positions
    consumer._polling.resolve_positions = lambda *arguments: (consumer.close(), resolve(*arguments))
    assert consumer.position(P0) == 0
    assert consumer._closed
    assert "while it is closed" in caplog.text


@pytest.mark.on_sqlite
def test_a_closed_client_does_not_open_the_cluster_again(cluster, consume, produce):
    make(cluster, "t", 1)
    consumer, producer = consume("t", group_id="g"), produce()
    consumer.poll(0)
    consumer.close()
    producer.close()
    calls = {"commit": (), "commit_async": (), "topics": (), "partitions_for_topic": ("t",), "committed": (P0,)}
    for call, arguments in {**calls, "end_offsets": ([P0],), "offsets_for_times": ({P0: 0},)}.items():
        with pytest.raises(IllegalStateError, match="closed"):
            getattr(consumer, call)(*arguments)
    assert consumer.bootstrap_connected() is producer.bootstrap_connected() is False
    for closed in (consumer.cluster, producer._cluster):
        assert closed.store.engine.pool.checkedin() == 0


@pytest.mark.on_sqlite
@pytest.mark.parametrize("endless", [float("inf"), 2**63 - 1], ids=["infinity", "the largest of Java"])
def test_times_may_be_endless(cluster, log, consume, endless):
    make(cluster, "t", 1)
    append(log, "t", "a")
    consumer = consume("t", group_id="g", request_timeout_ms=2**63 - 1)
    assert poll_values(consumer, 1) == {0: ["a"]}
    consumer.commit()
    consumer.commit(timeout_ms=endless)
    assert consumer.committed(P0) == 1
    consumer.close(timeout_ms=endless)
    assert consumer._closed


@pytest.mark.on_sqlite
def test_one_consumer_per_thread(cluster, log, cluster_address):
    make(cluster, "t", 4)
    fill(log, "t", [5] * 4)
    seen = []

    def work(number):
        with Consumer(cluster=cluster_address, auto_offset_reset="earliest", consumer_timeout_ms=500) as consumer:
            consumer.assign([TopicPartition("t", number)])
            seen.extend(record.value.decode() for record in consumer)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert sorted(seen) == [f"{p}/{n}" for p in range(4) for n in range(5)]
