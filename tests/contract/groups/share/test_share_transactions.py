"""Transactions that acknowledge records of a share group (KIP-1289): output and acknowledgements, both or none."""

import signal
from contextlib import closing

import pytest

from spark_log import AcknowledgeType, Consumer, Producer, ShareConsumer
from spark_log.cluster.settings import alter_settings
from spark_log.errors import (
    CommitFailedError,
    IllegalStateError,
    MetadataStoreUnavailableError,
    TransactionAbortableError,
)
from spark_log.groups.share import rows
from spark_log.groups.share.looks import look
from spark_log.maintenance.client_log import ClientLog
from spark_log.metadata import tables as t
from spark_log.replication.controller.topic_operations import create_topic
from spark_log.spark.streams import TransactionalLoop
from tests.support.python_process import PythonProcess
from tests.support.records import read_all
from tests.support.share_members import move_lock_ends
from tests.support.stores import each_on_sqlite_last_on_postgres
from tests.support.waiting import LIMIT_S, wait_until

NOTHING_MS = 300
"""How long a test waits for records that must not come."""
TRANSACTION_MS = 60_000
"""The default of transaction_timeout_ms, which is how long the locks of a transaction last."""
ACCEPT, REJECT = AcknowledgeType.ACCEPT, AcknowledgeType.REJECT


@pytest.fixture
def lock_ms():
    """How long locks last, by default longer than a test."""
    return 60_000


@pytest.fixture
def topics(cluster, lock_ms):
    """Topics jobs and results."""
    alter_settings(
        cluster,
        {"group.share.min.record.lock.duration.ms": "1", "group.share.record.lock.duration.ms": str(lock_ms)},
    )
    cluster.store.transact(
        lambda connection: rows.save_configs(connection, "workers", {"share.auto.offset.reset": "earliest"})
    )
    create_topic(cluster, "jobs")
    create_topic(cluster, "results")


def explicit_worker(cluster_address, **settings):
    given = {"group_id": "workers", "share_acknowledgement_mode": "explicit", **settings}
    return ShareConsumer("jobs", cluster=cluster_address, **given)


@pytest.fixture
def worker(cluster_address, topics):
    with explicit_worker(cluster_address) as consumer:
        yield consumer


@pytest.fixture
def producer(cluster_address, topics):
    with Producer(cluster=cluster_address, transactional_id="results") as producer:
        producer.init_transactions()
        yield producer


def send(produce, *values):
    producer = produce()
    for value in values:
        producer.send("jobs", value).get()


def take(consumer, count=1):
    found = []

    def has_all():  # a poll returns nothing if locks have ended before it returns
        found.extend(record for records in consumer.poll(1000).values() for record in records)
        return len(found) >= count

    wait_until(has_all)
    return found


def results(cluster):
    with closing(ClientLog(cluster)) as log:
        return [value.encode() for *_, value in read_all(log, log.find_topic("results"))]


def work(worker, producer, records, kind=ACCEPT):
    """Send a result of each record, and acknowledge the records with the open transaction."""
    for record in records:
        producer.send("results", record.value.upper())
        worker.acknowledge(record, kind)
    producer.send_share_acknowledgements_to_transaction(
        worker.acknowledgements_for_transaction(), worker.share_group_metadata()
    )


def unfinished(cluster):
    return sum(offer.unfinished for offer in look(cluster.store, "workers").offers.values())


def test_TransactionalShareAckCommitAccept(cluster, cluster_address, produce, worker, producer):
    send(produce, b"a", b"b")
    producer.begin_transaction()
    work(worker, producer, take(worker, 2))
    assert results(cluster) == []
    assert unfinished(cluster) == 2
    producer.commit_transaction()
    assert results(cluster) == [b"A", b"B"]
    assert unfinished(cluster) == 0
    assert worker.poll(NOTHING_MS) == {}


@pytest.mark.on_sqlite
def test_TransactionalShareAckCommitAcrossMultiplePolls(cluster, cluster_address, produce, worker, producer):
    producer.begin_transaction()
    for value in (b"a", b"b", b"c"):
        send(produce, value)
        work(worker, producer, take(worker))
    producer.commit_transaction()
    assert results(cluster) == [b"A", b"B", b"C"]
    assert unfinished(cluster) == 0


def test_TransactionalShareAckAbortAccept(cluster, cluster_address, produce, worker, producer):
    send(produce, b"a")
    producer.begin_transaction()
    work(worker, producer, take(worker))
    producer.abort_transaction()
    [again] = take(worker)
    assert (again.value, again.delivery_count) == (b"a", 2)
    assert results(cluster) == []
    worker.acknowledge(again)


@each_on_sqlite_last_on_postgres("dead_letters", [(False,), (True,)])
def test_TransactionalShareAckCommitReject(
    cluster, cluster_address, produce, topics, producer, monkeypatch, dead_letters
):
    monkeypatch.setattr("spark_log.groups.share.dead_letters._AGAIN_S", 0.05)
    if dead_letters:
        create_topic(cluster, "dlq.jobs", configs={"errors.deadletterqueue.group.enable": "true"})
        configs = {"share.auto.offset.reset": "earliest", "errors.deadletterqueue.topic.name": "dlq.jobs"}
        cluster.store.transact(lambda connection: rows.save_configs(connection, "workers", configs))
    send(produce, b"a")
    with explicit_worker(cluster_address) as worker:
        producer.begin_transaction()
        work(worker, producer, take(worker), REJECT)
        producer.commit_transaction()
        assert unfinished(cluster) == int(dead_letters)
        while unfinished(cluster):  # a poll writes the letter, after `_AGAIN_S`
            assert worker.poll(200) == {}
    if dead_letters:
        with Consumer("dlq.jobs", cluster=cluster_address, auto_offset_reset="earliest") as consumer:
            assert [r.value for found in consumer.poll(1000 * LIMIT_S).values() for r in found] == [b"a"]


@pytest.mark.on_sqlite
def test_TransactionalShareAckCommitSubsetAccept(cluster, cluster_address, produce, worker, producer):
    send(produce, b"a", b"b", b"c")
    producer.begin_transaction()
    first, second, third = take(worker, 3)
    work(worker, producer, [first, third])
    producer.commit_transaction()
    worker.acknowledge(second, AcknowledgeType.RELEASE)
    [again] = take(worker)
    assert (again.value, again.delivery_count) == (b"b", 2)
    worker.acknowledge(again)
    assert results(cluster) == [b"A", b"C"]


@pytest.mark.parametrize("lock_ms", [30_000])
def test_work_may_outlast_a_lock_and_the_consumer(cluster, cluster_address, produce, topics, producer, lock_ms):
    send(produce, b"a")
    with explicit_worker(cluster_address) as worker:
        producer.begin_transaction()
        work(worker, producer, take(worker))
    move_lock_ends(cluster, lock_ms)  # those of the transaction last for its time, 60 s
    with ShareConsumer("jobs", cluster=cluster_address, group_id="workers") as other:
        assert other.poll(NOTHING_MS) == {}
        producer.commit_transaction()
        assert other.poll(NOTHING_MS) == {}
    assert results(cluster) == [b"A"]


@pytest.mark.parametrize("lock_ms", [300])
def test_an_ended_lock_fails_the_call(cluster, cluster_address, produce, worker, producer):
    send(produce, b"a")
    producer.begin_transaction()
    [record] = take(worker)
    with ShareConsumer("jobs", cluster=cluster_address, group_id="workers") as other:
        assert take(other)[0].delivery_count >= 2
        with pytest.raises(CommitFailedError, match="not acquired"):
            work(worker, producer, [record])
        producer.abort_transaction()
    assert results(cluster) == []


def test_a_lock_that_ends_with_the_transaction_fails_its_commit(cluster, produce, worker, producer):
    send(produce, b"a")
    producer.begin_transaction()
    work(worker, producer, take(worker))
    cluster.store.transact(lambda connection: connection.execute(t.transaction.update().values(until_ms=0)))
    move_lock_ends(cluster, TRANSACTION_MS)
    [again] = take(worker)
    assert again.delivery_count == 2
    with pytest.raises((CommitFailedError, TransactionAbortableError)):  # the transaction's time is over too
        producer.commit_transaction()
    producer.abort_transaction()
    assert results(cluster) == []
    worker.acknowledge(again)


def test_mistakes_are_named(cluster, cluster_address, produce, worker, producer):
    send(produce, b"a")
    [record] = take(worker)
    worker.acknowledge(record, AcknowledgeType.RENEW)
    with pytest.raises(IllegalStateError, match="RENEW"):
        worker.acknowledgements_for_transaction()
    worker.commit_sync()
    worker.acknowledge(record)
    given = worker.acknowledgements_for_transaction()
    with pytest.raises(IllegalStateError, match="begin_transaction"):
        producer.send_share_acknowledgements_to_transaction(given, worker.share_group_metadata())


PROGRAM = """
import sys
from spark_log import AcknowledgeType, Producer, ShareConsumer
address = sys.argv[1]
with ShareConsumer("jobs", cluster=address, group_id="workers", share_acknowledgement_mode="explicit") as worker:
    with Producer(cluster=address, transactional_id="results", transaction_timeout_ms=60_000) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        [records] = worker.poll(60_000).values()
        for record in records:
            producer.send("results", record.value.upper())
            worker.acknowledge(record)
        producer.send_share_acknowledgements_to_transaction(
            worker.acknowledgements_for_transaction(), worker.share_group_metadata())
        producer.commit_transaction()
"""


@pytest.mark.parametrize("point", ["share.locks-moved", "append.decided", "transaction.committed"])
def test_a_killed_worker_has_done_both_or_none(cluster, cluster_address, produce, topics, point):
    send(produce, b"a", b"b")
    with PythonProcess("-c", PROGRAM, cluster_address, failpoint=point) as process:
        assert process.wait(LIMIT_S) == -signal.SIGKILL
    move_lock_ends(cluster, TRANSACTION_MS)
    with Producer(cluster=cluster_address, transactional_id="results") as producer:
        producer.init_transactions()  # aborts the transaction of the killed one
        with explicit_worker(cluster_address) as worker:
            if point != "transaction.committed":
                producer.begin_transaction()
                again = take(worker, 2)
                assert {record.delivery_count for record in again} == {2}
                work(worker, producer, again)
                producer.commit_transaction()
            assert worker.poll(NOTHING_MS) == {}
    assert results(cluster) == [b"A", b"B"]
    assert unfinished(cluster) == 0


@pytest.mark.on_sqlite
@pytest.mark.parametrize("arrow", [False, True])
def test_a_loop_processes_each_record_exactly_once(cluster, cluster_address, produce, topics, arrow):
    """The function fails now and then, after it has sent something, and rejects a record."""
    send(produce, *(b"%d" % number for number in range(20)))
    failures = iter([True, False, True, *[False] * 100])
    with (
        explicit_worker(
            cluster_address, max_poll_records=7, share_acquire_mode="record_limit", consumer_timeout_ms=1_000
        ) as worker,
        Producer(cluster=cluster_address, transactional_id="loop") as producer,
    ):  # fmt: skip
        loop = TransactionalLoop(worker, producer)

        def work(records, producer):
            values = records.column("value").to_pylist() if arrow else [record.value for record in records]
            for value in values:
                producer.send("results", value)
            if b"3" in values and not arrow:
                worker.acknowledge(records[values.index(b"3")], REJECT)
            if next(failures):
                raise MetadataStoreUnavailableError("a retriable failure")

        totals = loop.run_arrow(work) if arrow else loop.run(work)
        assert (totals.records, totals.aborted) == (20, 2)
        with pytest.raises(ValueError, match="attempts"):
            loop.run(work, attempts=3)
    assert sorted(map(int, results(cluster))) == list(range(20))
    assert unfinished(cluster) == 0
