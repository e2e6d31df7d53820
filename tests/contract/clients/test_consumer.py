"""Reading with a Consumer without a group: the behaviour of kafka-python's, and the cost for store and disk."""

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import kafka
import pyarrow as pa
import pytest
import sqlalchemy as sa
from kafka import ConsumerRebalanceListener
from kafka.errors import (
    CorruptRecordError,
    IllegalStateError,
    KafkaConfigurationError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from kafka.structs import OffsetAndTimestamp, TopicPartition

from spark_log import Consumer
from spark_log.clients.consume import partition_reads
from spark_log.ids import TopicPartition as OurPartition
from spark_log.log.log import Records
from spark_log.log.records import segment_open
from spark_log.log.records.schema import read_schema
from spark_log.maintenance.removal.retention import delete_records
from spark_log.replication.controller.topic_operations import add_partitions, delete_topic
from tests.support.records import NOON_MS, table
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


def values(records):
    return [record.value.decode() for record in records]


def read(consumer, count):
    """The next `count` values, by partition number."""
    seen = {}
    deadline = time.monotonic() + SOON_MS / 1000
    while sum(map(len, seen.values())) < count:
        assert time.monotonic() < deadline, seen
        for partition, records in consumer.poll(1_000).items():
            seen.setdefault(partition.partition, []).extend(values(records))
    return seen


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
    assert read(consumer, 6) == {1: [f"1/{n}" for n in range(6)]}
    assert consumer.poll(0) == {}
    consumer.resume(P0)
    assert read(consumer, 6) == {0: [f"0/{n}" for n in range(6)]}
    consumer.seek(P0, 4)
    assert consumer.position(P0) == 4
    assert read(consumer, 2) == {0: ["0/4", "0/5"]}
    consumer.seek_to_beginning(P1)
    assert consumer.position(P1) == 0
    assert read(consumer, 6) == {1: [f"1/{n}" for n in range(6)]}
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
    assert read(latest, 1) == {0: ["new"]}
    none = consume(auto_offset_reset="none")
    none.assign([P0])
    with pytest.raises(NoOffsetForPartitionError) as missing:
        none.poll(0)
    assert missing.value.args == ({P0},)
    none.seek(P0, 3)
    assert read(none, 3) == {0: ["0/3", "0/4", "new"]}
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
    assert sum(map(len, read(consumer, 3).values())) == 3
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
    assert read(consumer, 1) == {0: ["v"]}
    writer.join()


@pytest.mark.on_sqlite
def test_a_fetch_waits_for_enough_bytes(cluster, log, consume):
    make(cluster, "t", 1)
    append(log, "t", "few")
    slow = consume("t", fetch_min_bytes=5_000, **LONG_WAIT)
    assert slow.poll(100) == slow.poll(100) == {}
    assert read(consume("t", fetch_min_bytes=5_000, fetch_max_wait_ms=100), 1) == {0: ["few"]}
    append(log, "t", os.urandom(6_000).hex())
    assert len(read(slow, 2)[0]) == 2


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
    assert len(read(consumer, 50)[0]) == 50


def test_a_deleted_topic_is_no_error_and_a_recreated_one_is_read_from_its_start(cluster, log, consume):
    make(cluster, "t", 1)
    make(cluster, "u", 1)
    fill(log, "t", [3])
    consumer = consume()
    consumer.assign([P0, TopicPartition("u", 0)])
    assert len(read(consumer, 3)[0]) == 3
    delete_topic(cluster, "t")
    assert consumer.poll(100) == {}
    append(log, "u", "still here")
    assert read(consumer, 1) == {0: ["still here"]}
    make(cluster, "t", 1)
    fill(log, "t", [5])
    assert read(consumer, 5) == {0: [f"0/{n}" for n in range(5)]}


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
    assert read(consumer, 5 - to) == {0: [f"new {n}" for n in range(to, 5)]}


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
    assert read(consumer, 1) == {0: ["b"]}
    add_partitions(cluster, "orders-a", 3)
    append(log, "orders-a", "second", partition=2)
    assert read(consumer, 1) == {2: ["second"]}
    delete_topic(cluster, "orders-a")
    wait_until(lambda: consumer.poll(50) == {} and consumer.subscription() == {"orders-b"})
    assert consumer.assignment() == {TopicPartition("orders-b", 0)}


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
    assert read(consume("t", group_id="g"), 2) == {0: ["a", "b"]}


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
    assert len(read(consumer, 60)[0]) == 60
    assert max(map(len, planned)) == 8
