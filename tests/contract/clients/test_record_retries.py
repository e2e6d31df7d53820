"""A TransactionalLoop with attempts: a record that keeps failing becomes a dead letter, and order by key holds."""

import signal
from functools import partial
from types import SimpleNamespace

import pytest
from kafka import TopicPartition

from spark_log import Consumer
from spark_log.errors import IllegalStateError, ProducerFencedError, UnknownTopicOrPartitionError
from spark_log.groups.committed_offsets import Commit, committed_offsets
from spark_log.metadata import tables as t
from spark_log.replication.controller.topic_operations import alter_configs
from spark_log.spark.streams import TransactionalLoop, record_retries
from spark_log.spark.streams.record_retries import NextPoll, Polled, RecordRetries
from spark_log.spark.streams.redrive import Redrive
from tests.support.python_process import PythonProcess
from tests.support.stores import change
from tests.support.topics import all_stored, append, consume_all, make, stored

SETTINGS = {
    "group_id": "g", "auto_offset_reset": "earliest", "enable_auto_commit": False, "consumer_timeout_ms": 300,
    "retry_backoff_ms": 1, "heartbeat_interval_ms": 100,
}  # fmt: skip
letters = partial(consume_all, topic="dlq.in")
RETRIES = {"attempts": 3, "backoff_ms": (1, 4), "dead_letter_topic": "dlq.in"}
KILLED = """
import os, signal, sys
from spark_log import Consumer, Producer
from spark_log.spark.streams import TransactionalLoop
from spark_log.spark.streams.record_retries import RecordRetries

address, before_commit = sys.argv[1], sys.argv[2] == "True"
letter, succeeded = RecordRetries.letter, RecordRetries.succeeded

def send_and_be_killed(retries, polled):
    send = letter(retries, polled)

    def killed(records, producer):
        send(records, producer)
        if before_commit:
            producer.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        RecordRetries.succeeded = lambda *_: os.kill(os.getpid(), signal.SIGKILL)

    return send and killed

RecordRetries.letter = send_and_be_killed

def copy(records, producer):
    for record in records:
        producer.send("out", record.value, partition=0)
        assert record.value != b"bad"

settings = {"auto_offset_reset": "earliest", "enable_auto_commit": False, "session_timeout_ms": 1000}
consumer = Consumer("in", cluster=address, group_id="g", heartbeat_interval_ms=200, **settings)
loop = TransactionalLoop(consumer, Producer(cluster=address, transactional_id="t"))
loop.run(copy, attempts=2, backoff_ms=(1, 1), dead_letter_topic="dlq.in")
"""


@pytest.fixture
def loop(cluster, cluster_address, produce):
    """A function that makes loops over topic `in`, which has two partitions; `out` and `dlq.in` have one."""
    for name, partitions in (("in", 2), ("out", 1), ("dlq.in", 1)):
        make(cluster, name, partitions)
    made = []

    def make_loop(name="t", **settings):
        made.append(Consumer("in", cluster=cluster_address, **{**SETTINGS, **settings}))
        return TransactionalLoop(made[-1], produce(transactional_id=name))

    yield make_loop
    for consumer in made:
        consumer.close(autocommit=False)


def fail_at(*bad, calls=None):
    """A function that copies records, and fails at these values after it has sent their copies."""

    def copy(records, producer):
        if calls is not None:
            calls.append([record.value.decode() for record in records])
        for record in records:
            producer.send("out", record.value, partition=0)
            if record.value.decode() in bad:
                raise ZeroDivisionError(record.value.decode())

    return copy


def committed(cluster):
    return {number: offset for (name, number), offset in committed_offsets(cluster.store, "g").items() if name == "in"}


@pytest.mark.on_sqlite
@pytest.mark.on_data_store
def test_the_failing_record_is_a_dead_letter_and_the_others_stay_in_order(cluster, cluster_address, log, loop):
    append(log, "in", "a", "bad", "c", "d", headers=[("mine", b"kept")])
    append(log, "in", "e", partition=1)
    calls = []
    totals = loop().run(fail_at("bad", calls=calls), **RETRIES)
    assert (totals.records, totals.dead_letters) == (5, 1)
    copied = stored(cluster, "out")[0]
    assert [value for value in copied if value != "e"] == ["a", "c", "d"] and copied.count("e") == 1
    assert calls.count(["bad"]) == 3, "alone, after the tries of its poll"
    assert calls.index(["c"]) > max(at for at, call in enumerate(calls) if call == ["bad"])
    [letter] = letters(cluster_address, 1)
    facts = {name.removeprefix("__dlq.errors."): value.decode() for name, value in letter.headers}
    assert letter.value == b"bad"
    assert facts == {
        "mine": "kept", "topic": "in", "partition": "0", "offset": "1", "group": "g", "delivery.count": "3",
        "message": "ZeroDivisionError: bad", "spark-log.dlq.cause": "failed",
    }  # fmt: skip
    assert committed(cluster) == {0: 4, 1: 1}


@pytest.mark.on_sqlite
@pytest.mark.on_data_store
def test_an_error_that_passes_makes_no_letter(cluster, cluster_address, log, loop):
    append(log, "in", "a", "b", "c")
    failures = iter([True, True, True, True, True, False])

    def fail_at_first(records, producer):
        if next(failures, False):
            raise ZeroDivisionError
        fail_at()(records, producer)

    assert loop().run(fail_at_first, **RETRIES).dead_letters == 0
    assert stored(cluster, "out") == {0: ["a", "b", "c"]}


@pytest.mark.on_sqlite
@pytest.mark.on_data_store
def test_all_records_of_a_poll_may_fail_and_later_polls_are_whole_again(cluster, cluster_address, log, loop):
    append(log, "in", "bad", "bad", "bad")
    append(log, "in", *"abcdef")
    calls = []
    totals = loop(max_poll_records=3).run(fail_at("bad", calls=calls), **RETRIES)
    assert (totals.records, totals.dead_letters) == (9, 3)
    assert calls[-2:] == [["a", "b", "c"], ["d", "e", "f"]]
    assert [letter.value for letter in letters(cluster_address, 3)] == [b"bad"] * 3
    with Redrive(cluster, "dlq.in") as again:
        assert again.run().copied == {"in": 3}


@pytest.mark.on_sqlite
@pytest.mark.on_data_store
def test_a_record_that_the_output_refuses_is_a_dead_letter(cluster, cluster_address, log, loop):
    make(cluster, "compacted", cleanup_policy="compact")
    append(log, "in", "a", key=None)
    append(log, "in", "b", key=b"key")
    totals = loop().run(lambda records, p: [p.send("compacted", r.value, key=r.key) for r in records], **RETRIES)
    assert (totals.records, totals.dead_letters) == (2, 1)
    [letter] = letters(cluster_address, 1)
    assert letter.value == b"a" and all_stored(cluster, "compacted") == ["b"]


@pytest.mark.on_sqlite
def test_the_letter_of_a_record_that_is_too_large_with_its_headers_says_where_it_is(
    cluster, cluster_address, log, loop
):
    made = loop()
    alter_configs(cluster, "dlq.in", {"max.message.bytes": "2000"})
    append(log, "in", "x" * 1_900, "b")
    totals = made.run(fail_at("x" * 1_900), **RETRIES)
    assert (totals.records, totals.dead_letters) == (2, 1)
    [letter] = letters(cluster_address, 1)
    headers = dict(letter.headers)
    assert (letter.value, headers["__dlq.errors.offset"], headers["__dlq.errors.topic"]) == (None, b"0", b"in")


@pytest.mark.on_sqlite
@pytest.mark.on_data_store
def test_without_a_topic_the_error_of_the_record_is_raised(cluster, log, loop):
    append(log, "in", "a", "bad", "c")
    calls = []
    with pytest.raises(ZeroDivisionError, match="bad"):
        loop().run(fail_at("bad", calls=calls), attempts=2, backoff_ms=(1, 1))
    assert (calls.count(["a", "bad", "c"]), calls.count(["bad"])) == (2, 2)
    assert stored(cluster, "out") == {0: ["a"]} and committed(cluster) == {0: 1}


@pytest.mark.on_sqlite
@pytest.mark.on_data_store
def test_errors_of_the_program_make_no_letter(cluster, log, loop, produce):
    append(log, "in", "a")
    made = loop()

    def fence(records, producer):
        produce(transactional_id="t").init_transactions()
        producer.send("out", b"x").get()

    def generate(records, producer):
        yield

    def interrupt(records, producer):
        raise KeyboardInterrupt

    def commits(records, producer):
        producer.commit_transaction()

    for function, expected in (
        (generate, TypeError),
        (interrupt, KeyboardInterrupt),
        (commits, IllegalStateError),
        (fence, ProducerFencedError),
    ):
        with pytest.raises(expected):
            made.run(function, **RETRIES)
    assert all_stored(cluster, "dlq.in") == [] and committed(cluster) == {}


@pytest.mark.parametrize("before_commit", [True, False])
def test_a_letter_and_its_offset_are_one_transaction(cluster, cluster_address, log, loop, before_commit):
    append(log, "in", "a", "bad", "c")
    process = PythonProcess("-c", KILLED, cluster_address, before_commit)
    assert process.wait(timeout=60) == -signal.SIGKILL
    change(cluster, t.group_member.update().values(until_ms=0))  # the session of the killed one has ended
    assert all_stored(cluster, "dlq.in") == ([] if before_commit else ["bad"])
    assert committed(cluster) == {0: 1 if before_commit else 2}
    totals = loop().run(fail_at("bad"), **RETRIES)
    assert totals.records == (2 if before_commit else 1)
    assert stored(cluster, "out") == {0: ["a", "c"]} and all_stored(cluster, "dlq.in") == ["bad"]


def test_pauses_double_up_to_the_largest_and_the_partitions_take_turns(monkeypatch):
    now_s = [0.0]
    monkeypatch.setattr(record_retries.clock, "monotonic_s", lambda: now_s[0])
    settings = SimpleNamespace(max_poll_interval_ms=300_000, group_id="g")
    retries, bad, other = (
        RecordRetries(settings, 4, (1000, 3000), None),
        TopicPartition("in", 0),
        TopicPartition("in", 1),
    )
    polled = Polled([], 2, {bad: 0}, {bad: Commit(2, "", -1)})
    for pause_s in (1, 2, 3, 3):
        assert retries.failed(polled, ZeroDivisionError())
        assert retries.next_poll({bad, other}) == NextPoll({bad}, 200)
        now_s[0] += pause_s - 0.125
        assert retries.next_poll({bad, other}).timeout_ms == 125
        now_s[0] += 0.125
        assert retries.next_poll({bad, other}).tried == bad
        assert retries.next_poll({bad, other}) == NextPoll({bad}, 0), "the turn of the others"
    assert retries.next_poll({bad, other}) == NextPoll({other}, 200, 1, bad), "record by record"
    assert retries.next_poll({bad}).tried == retries.next_poll({bad}).tried == bad, "there are no others"
    assert retries.next_poll({other}) == NextPoll(set(), 200) and not retries.waits, "it was lost"


@pytest.mark.on_sqlite
def test_other_partitions_go_on_while_a_record_is_tried_again(cluster, log, loop):
    append(log, "in", "bad", "after")
    append(log, "in", "a", partition=1)
    made, calls = loop(max_poll_records=1), []

    def copy(records, producer):
        fail_at("bad", calls=calls)(records, producer)
        if calls[-1] == ["a"]:
            append(log, "in", "b", partition=1)
        if calls[-1] == ["b"]:
            made.stop()

    made.run(copy, attempts=3, backoff_ms=(200_000, 200_000), dead_letter_topic="dlq.in")
    assert calls in ([["bad"], ["a"], ["b"]], [["a"], ["bad"], ["b"]]), "none waits for the next try, nor goes before"


@pytest.mark.on_sqlite
def test_settings_that_do_not_fit_are_named(cluster, loop):
    made = loop()
    for settings, expected in (
        ({"dead_letter_topic": "dlq.in"}, "expected attempts="),
        ({**RETRIES, "attempts": 0}, "attempts: 0"),
        ({**RETRIES, "backoff_ms": (5, 1)}, "backoff_ms"),
        ({**RETRIES, "backoff_ms": (1, 300_000)}, "below max_poll_interval_ms"),
        ({**RETRIES, "dead_letter_topic": "in"}, "expected another topic"),
    ):
        with pytest.raises(ValueError, match=expected):
            made.run(fail_at(), **settings)
    with pytest.raises(ValueError, match="value_deserializer"):
        loop(value_deserializer=bytes.decode).run(fail_at(), **RETRIES)
    with pytest.raises(UnknownTopicOrPartitionError):
        made.run(fail_at(), attempts=3, dead_letter_topic="nowhere")
