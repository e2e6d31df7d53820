"""The loop of consume, transform, produce: the results of each record exactly once, after any failure."""

import threading
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from kafka import errors as kafka_errors
from kafka.structs import TopicPartition

from spark_log import Consumer
from spark_log.errors import IllegalStateError, InvalidRecordError, MetadataStoreUnavailableError
from spark_log.facts.groups import describe_groups
from spark_log.groups.committed_offsets import committed_offsets
from spark_log.maintenance.task_list import run_tasks
from spark_log.spark.streams import TransactionalLoop
from spark_log.spark.streams.transactional_loop import Totals
from spark_log.transactions import transaction_store
from tests.support.topics import all_stored, append, fill, make, stored

pytestmark = [pytest.mark.on_sqlite, pytest.mark.on_data_store]

ALL = ["0/0", "0/1", "0/2", "0/3", "1/0", "1/1", "1/2"]


@pytest.fixture
def consume(consume):
    return partial(consume, "in", consumer_timeout_ms=300, retry_backoff_ms=1, heartbeat_interval_ms=100)


@pytest.fixture
def filled(cluster, log):
    """Topic "in" with ALL in two partitions, and an empty topic "out" with two partitions."""
    fill(log, make(cluster, "in", 2), [4, 3])
    make(cluster, "out", 2)


def copy(records, producer):
    for record in records:
        producer.send("out", record.value, partition=record.partition)


def committed(cluster):
    return {number: offset for (name, number), offset in committed_offsets(cluster.store, "g").items() if name == "in"}


def test_records_or_tables_are_copied_once_and_in_order(cluster, log, filled, consume, produce):
    loop = TransactionalLoop(consume(max_poll_records=2), produce(transactional_id="t"))
    assert loop.run(copy) == Totals(records=7, transactions=4)
    assert stored(cluster, "out") == {0: ALL[:4], 1: ALL[4:]}
    assert committed(cluster) == {0: 4, 1: 3}

    append(log, "in", "0/4")
    make(cluster, "upper", 2)

    def copy_table(table, producer):
        assert table.schema.names[:4] == ["key", "value", "topic", "partition"]
        values = pc.binary_join_element_wise(table["value"].cast(pa.string()), "!", "")
        producer.send_table("upper", pa.table({"value": values, "partition": table["partition"]}))

    assert loop.run_arrow(copy_table) == Totals(records=8, transactions=5), "it continues at its position"
    assert stored(cluster, "upper") == {0: ["0/4!"]}
    assert TransactionalLoop(consume(group_id="h"), produce(transactional_id="u")).run_arrow(copy_table).records == 8
    assert sorted(all_stored(cluster, "upper")) == sorted(f"{value}!" for value in [*ALL, "0/4", "0/4"])


@pytest.mark.parametrize("reset", ["earliest", "latest"])
def test_an_error_of_the_function_consumes_and_skips_no_record(cluster, log, consume, produce, reset):
    make(cluster, "in")
    make(cluster, "out")
    consumer = consume(auto_offset_reset=reset)
    loop = TransactionalLoop(consumer, produce(transactional_id="t"))
    assert loop.run(copy) == Totals(), "now a member with a position"
    append(log, "in", "a", "bad", "c")

    def fail(records, producer):
        copy(records, producer)
        producer.flush()
        raise ZeroDivisionError(records[1].value)

    with pytest.raises(ZeroDivisionError, match="bad"):
        loop.run(fail)
    assert loop.totals == Totals(aborted=1)
    assert all_stored(cluster, "out") == [] and committed(cluster) == {}
    with pytest.raises(KeyboardInterrupt):
        loop.run(lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(TypeError, match="returned a generator, which was not run"):
        loop.run(lambda records, producer: (producer.send("out", record.value) for record in records))
    assert loop.run(copy) == Totals(records=3, transactions=1, aborted=3)
    assert stored(cluster, "out") == {0: ["a", "bad", "c"]}


def test_an_aborted_transaction_is_repeated(cluster, filled, consume, produce):
    """Aborted by an operator: the second try begins at the same records."""
    producer, seen = produce(transactional_id="t"), []

    def copy_and_be_aborted_once(records, producer):
        copy(records, producer)
        producer.flush()
        seen.append([record.value.decode() for record in records])
        if len(seen) == 1:
            transaction_store.abort(cluster, producer._transaction._ref)

    assert TransactionalLoop(consume(), producer).run(copy_and_be_aborted_once) == Totals(7, 1, aborted=1)
    assert seen == [ALL, ALL]
    assert all_stored(cluster, "out") == ALL


def test_retriable_errors_are_retried_up_to_the_limit_and_others_are_raised(cluster, filled, consume, produce):
    make(cluster, "compacted", cleanup_policy="compact")
    calls = []

    def never_works(records, _):
        calls.append(records[0].offset)
        raise kafka_errors.KafkaTimeoutError("no room")

    loop = TransactionalLoop(consume(), produce(transactional_id="t"), retries=2)
    with pytest.raises(kafka_errors.KafkaTimeoutError, match="no room"):
        loop.run(never_works)
    assert calls == [0, 0, 0]

    def without_keys(records, producer):
        calls.append("without keys")
        producer.send("out", records[0].value)
        producer.send("compacted", records[0].value)

    with pytest.raises(kafka_errors.TransactionAbortableError) as raised:
        loop.run(without_keys)
    assert isinstance(raised.value.__cause__, InvalidRecordError)
    assert calls[3:] == ["without keys"]
    assert all_stored(cluster, "out") == []
    assert loop.run(copy).records == 7


def test_a_slow_member_commits_nothing_even_if_its_group_is_empty(cluster, filled, consume, produce):
    """It loses its membership during its work. Another member processes the records and leaves before it commits."""
    slow, calls = consume(max_poll_interval_ms=500, heartbeat_interval_ms=50), []

    def copy_slowly(records, producer):
        calls.append(len(records))
        copy(records, producer)
        producer.flush()
        waiting = threading.Event()
        while describe_groups(cluster.store, ["g"])[0].members:
            assert not waiting.wait(0.02)
        with consume() as other:
            assert TransactionalLoop(other, produce(transactional_id="other")).run(copy).records == 7

    totals = TransactionalLoop(slow, produce(transactional_id="slow")).run(copy_slowly)
    assert (calls, totals) == ([7], Totals(aborted=1))
    assert all_stored(cluster, "out") == ALL


def test_a_lost_session_aborts_and_both_members_continue(cluster, log, filled, consume, produce):
    """Another member takes over during a transaction, and revokes a partition when this one rejoins."""
    silent = consume(heartbeat_interval_ms=60_000, session_timeout_ms=70_000)
    first = TransactionalLoop(silent, produce(transactional_id="first"))
    second = TransactionalLoop(consume(consumer_timeout_ms=-1), produce(transactional_id="second"))
    taking_over, calls = threading.Thread(target=second.run, args=(copy,)), []

    def lose_the_session_once(records, producer):
        copy(records, producer)
        calls.append(len(records))
        if len(calls) == 1:
            silent._polling.group.member.leave()
            taking_over.start()
            waiting = threading.Event()
            while second.totals.records < 7:
                assert not waiting.wait(0.02)
            append(log, "in", "0/4", "0/5")
            append(log, "in", "1/3", partition=1)

    try:
        assert first.run(lose_the_session_once).aborted == 1
    finally:
        second.stop()
        taking_over.join()
    assert first.totals.records + second.totals.records == 10
    assert all_stored(cluster, "out") == sorted([*ALL, "0/4", "0/5", "1/3"])


def test_a_second_producer_with_the_same_id_ends_the_loop(cluster, filled, consume, produce):
    def copy_and_be_fenced(records, producer):
        copy(records, producer)
        producer.flush()
        produce(transactional_id="t").init_transactions()

    loop = TransactionalLoop(consume(), produce(transactional_id="t"))
    with pytest.raises(kafka_errors.ProducerFencedError, match="another producer has the same transactional_id"):
        loop.run(copy_and_be_fenced)
    assert loop.totals == Totals(aborted=1)
    assert all_stored(cluster, "out") == [] and committed(cluster) == {}


@pytest.mark.parametrize("done", [True, False])
def test_a_commit_whose_response_is_lost_is_resolved(cluster, filled, consume, produce, done):
    producer = produce(transactional_id="t")
    commit, calls = producer._log.append_batches, []

    def commit_without_a_response(*arguments, **named):
        calls.append(len(calls))
        if len(calls) > 1:
            return commit(*arguments, **named)
        if done:
            commit(*arguments, **named)
        raise MetadataStoreUnavailableError("the connection went away")

    producer._log.append_batches = commit_without_a_response
    totals = TransactionalLoop(consume(), producer).run(copy)
    assert totals == Totals(7, 1, aborted=0 if done else 1)
    assert len(calls) == (1 if done else 2)
    list(run_tasks(cluster, ["transactions"]))  # a data store follows what home has committed, also without the loop
    assert all_stored(cluster, "out") == ALL
    assert committed(cluster) == {0: 4, 1: 3}


def test_stop_finishes_the_current_transaction(cluster, filled, consume, produce):
    loop = TransactionalLoop(consume(max_poll_records=2, consumer_timeout_ms=-1), produce(transactional_id="t"))

    def copy_and_stop(records, producer):
        stopper = threading.Thread(target=loop.stop)
        stopper.start()
        stopper.join()
        copy(records, producer)

    assert loop.run(copy_and_stop) == Totals(2, 1)
    assert all_stored(cluster, "out") == ALL[:2]
    assert loop.run(copy) == Totals(2, 1), "stop is permanent"


def test_unsuitable_settings_are_named(cluster, cluster_address, filled, consume, produce):
    producer = produce(transactional_id="t")
    assigned = Consumer(cluster=cluster_address, group_id="g", enable_auto_commit=False)
    assigned.assign([TopicPartition("in", 0)])
    with assigned, Consumer("in", cluster=cluster_address) as without_group:
        for consumer, made, said in (
            (without_group, producer, "group_id: None"),
            (consume(enable_auto_commit=True), producer, "enable_auto_commit: True"),
            (assigned, producer, "subscription: None"),
            (consume(), produce(), "transactional_id: None"),
        ):
            with pytest.raises(ValueError, match=said):
                TransactionalLoop(consumer, made)
        with pytest.raises(ValueError, match="retries: -1"):
            TransactionalLoop(consume(), producer, retries=-1)
        with pytest.raises(TypeError, match="consumer: expected a"):
            TransactionalLoop(producer, consume())
        with pytest.raises(TypeError, match="transform: expected a function"):
            TransactionalLoop(consume(), producer).run(None)


def test_the_function_cannot_end_the_transaction(cluster, filled, consume, produce):
    """It would commit its records without the offsets of their input."""
    loop = TransactionalLoop(consume(), produce(transactional_id="t"))
    for call in ("commit_transaction", "abort_transaction", "begin_transaction"):

        def ends(records, producer, call=call):
            producer.send("out", b"half")
            getattr(producer, call)()

        with pytest.raises(IllegalStateError, match=f"{call}: the loop does this"):
            loop.run(ends)
    assert all_stored(cluster, "out") == []
