"""Sends while another thread commits, and registrations whose response is lost: each record is in exactly one
transaction, or its future has an error.
"""

import contextlib
import threading

import pyarrow as pa
import pytest
from kafka.errors import IllegalStateError, KafkaConnectionError
from kafka.structs import TopicPartition

from spark_log.clients.produce.future import Written
from spark_log.errors import InvalidTxnStateError, MetadataStoreUnavailableError, TransactionAbortableError
from spark_log.maintenance import run_tasks
from spark_log.transactions import transaction_parts, transaction_rows
from tests.contract.transactions.transaction_state import (
    FILES,
    LARGE,
    nothing_is_pending,
    row_of,
)
from tests.support.stores import topics_view
from tests.support.topics import contents
from tests.support.waiting import LIMIT_S

pytestmark = pytest.mark.usefixtures("resource_oracle")


def test_a_thread_sends_while_another_one_commits(log, topic, begin):
    name = topic(2)
    producer, rounds, halves, sent = begin(), threading.Semaphore(0), threading.Semaphore(0), []

    def work():
        for number in range(20 * 100):
            if number % 100 == 0:
                rounds.acquire(timeout=60)
            if number % 100 == 50:
                halves.release()
            value = b"%d" % number
            with contextlib.suppress(IllegalStateError):  # between two transactions
                sent.append((value, producer.send(name, value, partition=number % 2)))

    thread = threading.Thread(target=work)
    thread.start()
    for _ in range(20):
        rounds.release()
        halves.acquire(timeout=60)
        producer.commit_transaction()
        producer.begin_transaction()
    thread.join()
    producer.commit_transaction()
    values = contents(log, name)
    committed = [(future.get().partition, future.get().offset, value) for value, future in sent if not future.exception]
    assert committed and all(offset >= 0 for _, offset, _ in committed)
    assert {partition: list(found) for partition, found in values.items()} == {
        partition: [value for _, value in sorted((o, v) for p, o, v in committed if p == partition)]
        for partition in values
    }
    assert all(isinstance(future.exception, IllegalStateError | None) for _, future in sent)


@pytest.fixture
def past_the_check(monkeypatch):
    """A function that lets sends of a producer skip their state check, as if the check had passed before the commit."""

    def of(producer):
        check = producer._transaction.check
        monkeypatch.setattr(producer._transaction, "check", lambda call: None if call == "send" else check(call))

    return of


def test_a_record_sent_after_the_commit_is_in_no_transaction(log, topic, begin, past_the_check):
    name = topic()
    producer = begin()
    producer.send(name, b"1")
    producer.commit_transaction()
    past_the_check(producer)
    with pytest.raises(IllegalStateError, match="READY"):
        producer.send(name, b"late").get(timeout=LIMIT_S)
    producer.begin_transaction()
    producer.send(name, b"2")
    producer.commit_transaction()
    assert contents(log, name) == {0: [b"1", b"2"]}


def test_a_record_sent_after_the_abort_is_not_in_the_next_transaction(log, topic, begin, past_the_check):
    name, large = topic(), topic(**FILES)
    producer = begin(linger_ms=60_000)
    producer.send(name, b"aborted")
    producer.abort_transaction()
    past_the_check(producer)
    late = [producer.send(name, b"late"), producer.send(large, LARGE)]
    producer.begin_transaction()
    for future in late:
        with pytest.raises(IllegalStateError, match="READY"):
            future.get(timeout=LIMIT_S)
    # no row names the file of the record, and its write id is not renewed
    assert producer._log._writer._write_id is None
    producer.send(name, b"sent")
    producer.commit_transaction()
    assert contents(log, name) == {0: [b"sent"]} and contents(log, large) == {}


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_a_late_thread_does_not_end_the_next_transaction(log, topic, begin, end):
    """It waited for its records; meanwhile another thread has ended the transaction and started the next."""
    name = topic()
    producer = begin()
    transaction = producer._transaction
    producer.send(name, b"1")
    number = getattr(transaction, f"begin_{end}")()
    producer.flush()
    if end == "commit":
        producer.commit_transaction()
    else:
        producer.abort_transaction()
    producer.begin_transaction()
    producer.send(name, b"2")
    late = (
        (lambda: transaction.commit(producer._log, number)) if end == "commit" else (lambda: transaction.abort(number))
    )
    with pytest.raises(IllegalStateError, match="another thread"):
        late()
    producer.commit_transaction()
    assert contents(log, name) == {0: [b"1", b"2"] if end == "commit" else [b"2"]}


def test_no_record_is_added_to_a_transaction_whose_commit_was_tried(
    cluster, log, topic, begin, past_the_check, monkeypatch
):
    """The commit may have succeeded: a retry would then report the new record as committed too."""
    name = topic()
    producer = begin()
    commit = producer._log.append_batches

    def losing(*arguments, **options):
        commit(*arguments, **options)
        raise MetadataStoreUnavailableError("the answer is lost")

    producer.send(name, b"1")
    with monkeypatch.context() as patch:
        patch.setattr(producer._log, "append_batches", losing)
        with pytest.raises(KafkaConnectionError):
            producer.commit_transaction()
    past_the_check(producer)
    with pytest.raises(IllegalStateError, match="which has been tried"):
        producer.send(name, b"late").get(timeout=LIMIT_S)
    with pytest.raises(TransactionAbortableError):
        producer.commit_transaction()
    with pytest.raises(InvalidTxnStateError, match="CompleteCommit"):
        producer.abort_transaction()
    list(run_tasks(cluster, ["transactions"]))  # a data store follows the commit
    assert contents(log, name) == {0: [b"1"]}


@pytest.mark.parametrize("done", [True, False], ids=["it was done", "it was not"])
def test_a_lost_registration_response_repeats_no_record(cluster, log, topic, begin, monkeypatch, done):
    name, large = topic(2), topic(**FILES)
    producer = begin(linger_ms=60_000)
    register, lost = transaction_parts.register, iter([True, True])

    def losing(*arguments, **options):
        if next(lost, False):
            if done:
                register(*arguments, **options)
            raise MetadataStoreUnavailableError("the answer is lost")
        return register(*arguments, **options)

    monkeypatch.setattr(transaction_parts, "register", losing)
    futures = [producer.send(name, b"%d" % n, partition=n % 2) for n in range(4)]
    producer.send_table(name, pa.table({"value": [b"4", b"5"], "partition": [0, 1]}))
    futures.append(producer.send(large, LARGE))
    producer.flush()
    assert producer.metrics(raw=True)["record-retry-total"] > 0
    producer.send_table(name, pa.table({"value": [b"6", b"7"], "partition": [0, 1]}))
    producer.commit_transaction()
    assert [future.get().offset for future in futures] == [0, 0, 1, 1, 0]
    assert contents(log, name) == {0: [b"0", b"2", b"4", b"6"], 1: [b"1", b"3", b"5", b"7"]}
    assert contents(log, large) == {0: [LARGE]}
    assert nothing_is_pending(cluster, producer)


def test_records_that_wait_together_are_one_batch(cluster, log, topic, begin, monkeypatch):
    name = topic()
    producer = begin()
    register, entered, gate = transaction_parts.register, threading.Event(), threading.Event()

    def slow(*arguments, **options):
        entered.set()
        assert gate.wait(timeout=60)
        return register(*arguments, **options)

    monkeypatch.setattr(transaction_parts, "register", slow)
    first = producer.send(name, b"0")
    assert entered.wait(timeout=60)
    second = producer.send_table(name, pa.table({"value": [b"1", b"2"]}))
    third = producer.send_table(name, pa.table({"value": [b"3"]}))
    gate.set()
    producer.flush()
    assert [each.record_count for each in pending(cluster, producer)] == [1, 3]
    producer.commit_transaction()
    here = TopicPartition(name, 0)
    assert (first.get().offset, second.get(), third.get()) == (0, [Written(here, 1, 3)], [Written(here, 3, 4)])
    assert contents(log, name) == {0: [b"0", b"1", b"2", b"3"]}


def pending(cluster, producer):
    producer_id = row_of(cluster, producer).producer_id
    found = topics_view(cluster).store.read(lambda connection: transaction_rows.read_pending(connection, producer_id))
    return [each.batch for each in found]
