"""The cost of a Consumer without a group: statements, opened files, waits and memory."""

import os
import threading
from functools import partial
from pathlib import Path

import pytest
import sqlalchemy as sa
from kafka.structs import TopicPartition

from spark_log.clients.consume import partition_reads
from spark_log.log.log import Records
from spark_log.log.records import segment_open
from tests.support.group_members import poll_values
from tests.support.records import table
from tests.support.topics import append, fill, make
from tests.support.waiting import LIMIT_S, wait_until

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


SOON_MS = int(1000 * LIMIT_S)
"""Longest wait for an expected event."""


LONG_WAIT = {"fetch_max_wait_ms": 10 * SOON_MS, "request_timeout_ms": 20 * SOON_MS}


@pytest.fixture
def consume(consume):
    """A function that creates consumers without a group by default."""
    return partial(consume, group_id=None, enable_auto_commit=True)


class Counted:
    """Counts SQL statements and opened segments while it is active."""

    def __init__(self, consumer, monkeypatch):
        self.statements = []
        self.opened = []
        sa.event.listen(
            consumer.cluster.store.engine,
            "before_cursor_execute",
            lambda _c, _cursor, statement, *_: self.statements.append(statement),
        )
        original = segment_open.open_segment

        def open_segment(file, expected, *rest):
            self.opened.append(Path(expected.path).name)
            return original(file, expected, *rest)

        monkeypatch.setattr(segment_open, "open_segment", open_segment)


def test_a_segment_is_opened_once_and_polls_from_memory_need_no_store(cluster, log, consume, monkeypatch):
    topic = make(cluster, "t", 1)
    for begin in (0, 3_000):
        append(log, "t", *(f"0/{n}" for n in range(begin, begin + 3_000)))
        log.seal(topic, [0])
    consumer = consume(max_poll_records=100)
    consumer.assign([P0])
    counted = Counted(consumer, monkeypatch)
    assert consumer.poll(SOON_MS)
    first = len(counted.statements)
    seen = [record.offset for _ in range(59) for records in consumer.poll(SOON_MS).values() for record in records]
    assert seen == list(range(100, 6_000))
    assert len(counted.opened) == 2 == len(set(counted.opened))
    assert len(counted.statements) - first <= 12


def test_an_idle_consumer_does_not_query_the_store(cluster, log, consume, monkeypatch):
    make(cluster, "t", 3)
    fill(log, "t", [1, 1, 1])
    consumer = consume("t", group_id="g", enable_auto_commit=False)
    assert sum(map(len, poll_values(consumer, 3).values())) == 3
    changes = consumer.cluster.store.changes
    wait_until(lambda: not changes.wait(changes.current(), 0.2))  # PostgreSQL's listener is connected
    consumer.poll(500)  # the group is stable
    counted = Counted(consumer, monkeypatch)
    assert consumer.poll(1_500) == {}
    for _ in range(50):
        assert consumer.poll(0) == {}
    begun = [statement for statement in counted.statements if "SELECT" in statement]
    assert len(begun) <= 20, counted.statements


def test_a_waiting_consumer_gets_a_record_at_once(cluster, log, consume):
    make(cluster, "t", 1)
    consumer = consume("t", **LONG_WAIT)  # the next fetch would be then
    assert consumer.poll(300) == {}
    writer = threading.Timer(0.2, append, (log, "t", "v"))
    writer.start()
    assert poll_values(consumer, 1) == {0: ["v"]}
    writer.join()


@pytest.mark.on_sqlite
def test_a_fetch_waits_for_enough_bytes(cluster, log, consume):
    make(cluster, "t", 1)
    append(log, "t", "few")
    slow = consume("t", fetch_min_bytes=5_000, **LONG_WAIT)
    assert slow.poll(100) == slow.poll(100) == {}
    assert poll_values(consume("t", fetch_min_bytes=5_000, fetch_max_wait_ms=100), 1) == {0: ["few"]}
    append(log, "t", os.urandom(6_000).hex())
    assert len(poll_values(slow, 2)[0]) == 2


@pytest.mark.on_sqlite
def test_memory_is_bounded_over_partitions(cluster, log, consume):
    topic = make(cluster, "t", 6, **{"inline_max_bytes": "0"})
    records = table(*(os.urandom(500).hex() for _ in range(1_000)))
    log.append(topic, [Records(number, records) for number in range(6)])
    consumer = consume("t", fetch_max_bytes=2_500_000, max_poll_records=50)
    held = []
    seen = {}
    for _ in range(6 * 1_000 // 50 + 6):
        for partition, found in consumer.poll(SOON_MS if sum(seen.values()) < 6_000 else 0).items():
            seen[partition.partition] = seen.get(partition.partition, 0) + len(found)
        held.append(consumer.metrics()["consumer-fetch-manager-metrics"]["buffered-bytes"])
    assert seen == dict.fromkeys(range(6), 1_000)
    assert 1_000_000 < max(held) <= 2_500_000 + 1_200_000


def test_a_long_partition_does_not_delay_the_others(cluster, log, consume):
    make(cluster, "t", 2)
    append(log, "t", *(f"0/{n}" for n in range(20_000)), partition=0)
    consumer = consume(max_poll_records=10)
    consumer.assign([P0, P1])
    consumer.poll(SOON_MS)
    changes = consumer._polling.cluster.store.changes
    seen = changes.current()
    append(log, "t", "late", partition=1)
    assert changes.wait(seen, SOON_MS / 1000)  # on PostgreSQL a thread tells of it, which polls do not wait for
    while P1 not in consumer.poll(SOON_MS):
        assert consumer.position(P0) < 10_000


@pytest.mark.on_sqlite
def test_plans_of_long_tails_are_bounded(cluster, log, consume, monkeypatch):
    make(cluster, "t", 1, delta_max_lag_ms="-1")  # no append seals the tail
    fill(log, "t", [60])
    monkeypatch.setattr(partition_reads, "_SEGMENTS_MIN", 8)
    monkeypatch.setattr(partition_reads, "_SEGMENTS_MAX", 8)
    planned, plan = [], partition_reads.planner.plan

    def counted(*arguments, **limits):
        planned.append(plan(*arguments, **limits))
        return planned[-1]

    monkeypatch.setattr(partition_reads.planner, "plan", counted)
    consumer = consume(max_poll_records=1_000)
    consumer.assign([P0])
    assert len(poll_values(consumer, 60)[0]) == 60
    assert max(map(len, planned)) == 8
