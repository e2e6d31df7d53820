"""Transactions through the producer's API: fencing, timeouts, lost partitions, and failures between send and commit."""

import gc

import kafka.errors
import pytest
import sqlalchemy as sa
from kafka.errors import IllegalStateError
from kafka.structs import TopicPartition

from spark_log import Consumer, Producer
from spark_log.errors import (
    CommitFailedError,
    InvalidProducerIdMappingError,
    PolicyViolationError,
    ProducerFencedError,
    TransactionAbortableError,
)
from spark_log.groups.committed_offsets import committed_offsets
from spark_log.maintenance import run_tasks
from spark_log.metadata import tables as t
from spark_log.replication.controller.topic_operations import create_topic, delete_topic
from spark_log.transactions import rules, transaction_parts, transaction_store
from spark_log.transactions.rules import ProducerRef
from tests.contract.transactions.transaction_state import (
    FILES,
    LARGE,
    commits,
    expire,
    group,
    name_of,
    nothing_is_pending,
    offsets,
    row_of,
    rows,
    segment_files,
)
from tests.support.s3 import also_on_s3
from tests.support.stores import change
from tests.support.topics import contents
from tests.support.waiting import LIMIT_S

pytestmark = pytest.mark.usefixtures("resource_oracle")

# Fencing ------------------------------------------------------------------------------------------------------------


def test_the_older_producer_is_fenced_at_its_next_call(cluster, log, topic, begin):
    name, large, mine = topic(), topic(**FILES), group()
    calls = {
        "begin": lambda old: (old.abort_transaction, old.begin_transaction),
        "send": lambda old: (lambda: old.send(name, b"zombie").get(timeout=LIMIT_S),),
        "send a file": lambda old: (lambda: old.send(large, LARGE).get(timeout=LIMIT_S),),
        "offsets": lambda old: (lambda: old.send_offsets_to_transaction(commits(name), mine),),
        "commit": lambda old: (old.commit_transaction,),
        "abort": lambda old: (old.abort_transaction,),
    }
    for in_flight in (False, True):
        for case, of in calls.items():
            old = begin(f"{name}-{case}-{in_flight}")
            if in_flight:
                old.send(name, b"in flight").get(timeout=LIMIT_S)
                old.send_offsets_to_transaction(commits(name), mine)
                old.send(name, b"perhaps not registered")
            new = begin(f"{name}-{case}-{in_flight}")
            try:
                for call in of(old):
                    call()
                assert case == "abort" and not in_flight, "there was nothing to abort: it did not ask"
                continue
            except ProducerFencedError:
                pass
            fenced = r"transactional_id '.+': epoch 0 of producer \d+ is fenced by 1"
            for again in (old.begin_transaction, old.commit_transaction, old.abort_transaction, old.init_transactions):
                with pytest.raises(kafka.errors.ProducerFencedError, match=fenced):
                    again()
            old.close()
            new.send(name, b"new")
            new.commit_transaction()
            new.close()
    assert set(contents(log, name)[0]) == {b"new"} and contents(log, large) == {}
    assert committed_offsets(cluster.store, mine) == {}


def test_a_late_call_of_an_older_transaction_changes_nothing(cluster, log, topic, begin):
    name = topic()
    producer = begin()
    producer.send(name, b"0")
    producer.commit_transaction()
    producer.begin_transaction()
    producer.send(name, b"1").get(timeout=LIMIT_S)
    row = row_of(cluster, producer)
    older = ProducerRef(row.producer_id, row.producer_epoch - 1)
    late = [
        lambda: transaction_store.abort(cluster, older),
        lambda: transaction_parts.register(cluster, older, None, [], {}),
        lambda: cluster.store.transact(
            lambda c: transaction_store.commit_transaction_hook(older, 0)(c, cluster.store.clock(c))
        ),
    ]
    for call in late:
        with pytest.raises(ProducerFencedError, match=f"is fenced by {row.producer_epoch}"):
            call()
    assert row_of(cluster, producer) == row
    producer.commit_transaction()
    assert contents(log, name) == {0: [b"0", b"1"]}


# Time ---------------------------------------------------------------------------------------------------------------


def test_a_transaction_beyond_its_timeout_can_only_be_aborted(cluster, log, topic, begin):
    name = topic()
    producer = begin()
    maintenance_first = [False, True]
    for coordinated in maintenance_first:
        producer.send(name, b"late").get(timeout=LIMIT_S)
        expire(cluster, producer)
        if coordinated:
            report, *of_parts = run_tasks(cluster, ["transactions"])
            assert len(of_parts) == len(cluster.store_ids()) - 1
            assert name_of(producer) in report.notes[0] and row_of(cluster, producer).state == "CompleteAbort"
            assert nothing_is_pending(cluster, producer) and list(run_tasks(cluster, ["transactions"])) == []
        with pytest.raises(kafka.errors.TransactionAbortableError, match="transaction_timeout_ms"):
            producer.commit_transaction()
        producer.abort_transaction()
        assert nothing_is_pending(cluster, producer)
        producer.begin_transaction()
    producer.send(name, b"late too").get(timeout=LIMIT_S)
    expire(cluster, producer)
    successor = begin(name_of(producer))
    assert nothing_is_pending(cluster, producer)
    successor.send(name, b"in time")
    successor.commit_transaction()
    assert contents(log, name) == {0: [b"in time"]}


def test_a_transaction_beyond_its_timeout_takes_no_record(cluster, topic, begin):
    name = topic()
    producer = begin()
    producer.send(name, b"late too").get(timeout=LIMIT_S)
    expire(cluster, producer)
    with pytest.raises(TransactionAbortableError):
        producer.send(name, b"later still").get(timeout=LIMIT_S)


@pytest.mark.parametrize("since", ["nobody", "another producer"])
def test_transactional_ids_expire(cluster, topic, begin, since):
    """A producer that is idle for that long goes on, unless another one has taken its id since."""
    name = topic()
    old, open_, young = begin(), begin(), begin()
    old.send(name, b"v")
    old.commit_transaction()
    open_.send(name, b"v").get(timeout=LIMIT_S)
    ids = [row_of(cluster, producer).producer_id for producer in (old, open_)]
    change(cluster, t.producer.update().where(t.producer.c.producer_id.in_(ids)).values(last_used_ms=0))
    change(cluster, t.transaction.update().where(t.transaction.c.producer_id.in_(ids)).values(began_ms=0))
    list(run_tasks(cluster, ["expire"]))
    open_.commit_transaction()
    young.commit_transaction()
    if since == "nobody":
        old.begin_transaction()
        old.send(name, b"goes on")
        old.commit_transaction()
        again = old
    else:
        again = begin(name_of(old))
        for _ in range(2):
            with pytest.raises(InvalidProducerIdMappingError, match="has expired") as raised:
                old.begin_transaction()
            assert isinstance(raised.value, kafka.errors.InvalidProducerIdMappingError)
    assert row_of(cluster, again).producer_id > max(ids), "never used again"


# Groups -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", ["before the offsets are sent", "before the commit"])
def test_offsets_of_a_consumer_that_lost_its_partitions(cluster, cluster_address, log, topic, begin, lost):
    name, out, mine = topic(), topic(), group()
    consumer = Consumer(name, cluster=cluster_address, group_id=mine, enable_auto_commit=False)
    while not consumer.assignment():
        consumer.poll(100)
    who = consumer.group_metadata()
    producer = begin()
    producer.send(out, b"v")
    with pytest.raises(CommitFailedError, match="members"):
        producer.send_offsets_to_transaction(commits(name), mine)  # with group metadata that names no member
    producer.abort_transaction()
    producer.begin_transaction()
    producer.send(out, b"good")
    producer.send_offsets_to_transaction(commits(name), who)
    producer.commit_transaction()
    producer.begin_transaction()
    producer.send(out, b"lost")
    if lost == "before the commit":
        producer.send_offsets_to_transaction(commits(name, 2), who)
    consumer.close(autocommit=False)
    call = (
        producer.commit_transaction
        if lost == "before the commit"
        else lambda: producer.send_offsets_to_transaction(commits(name, 2), who)
    )
    with pytest.raises(kafka.errors.CommitFailedError):
        call()
    producer.abort_transaction()
    assert contents(log, out) == {0: [b"good"]}
    assert committed_offsets(cluster.store, mine) == {TopicPartition(name, 0): 1}


def test_a_producer_adds_offsets_of_a_limited_number_of_groups(cluster, topic, begin, monkeypatch):
    name, groups = topic(), [group() for _ in range(3)]
    monkeypatch.setattr(rules, "GROUPS_MAX", 2)
    producer = begin()
    for mine in [*groups[:2], groups[0]]:
        producer.send_offsets_to_transaction(commits(name), mine)
    with pytest.raises(PolicyViolationError, match="of more than 2 groups"):
        producer.send_offsets_to_transaction(commits(name), groups[2])
    producer.abort_transaction()
    producer.begin_transaction()
    producer.send_offsets_to_transaction(commits(name), groups[2])
    producer.commit_transaction()
    assert [len(committed_offsets(cluster.store, mine)) for mine in groups] == [0, 0, 1]


# Failures between send and commit -----------------------------------------------------------------------------------


def test_a_topic_is_deleted_before_the_commit(cluster, log, topic, begin):
    stays = topic()
    producer = begin()
    for again, sent in ((False, True), (True, True), (False, False)):
        goes = topic()
        producer.send(stays, b"with it").get(timeout=LIMIT_S)
        if sent:
            producer.send(goes, b"gone").get(timeout=LIMIT_S)
        else:
            offsets(producer, goes)
        delete_topic(cluster, goes)
        if again:
            create_topic(cluster, goes)
        with pytest.raises((TransactionAbortableError, kafka.errors.UnknownTopicOrPartitionError)):
            producer.commit_transaction()
        with pytest.raises(TransactionAbortableError, match="abort it"):
            producer.commit_transaction()
        producer.abort_transaction()
        producer.begin_transaction()
        assert not again or contents(log, goes) == {}
    assert contents(log, stays) == {}
    blobs = {name for (name,) in rows(cluster, sa.select(t.blob.c.name).subquery())}
    assert blobs <= {name for (name,) in rows(cluster, sa.select(t.segment.c.name).subquery())}


def test_a_topic_is_deleted_while_records_wait_for_the_commit(cluster, log, topic, begin):
    stays, goes, mine = topic(), topic(), group()
    producer = begin(linger_ms=60_000)
    futures = [producer.send(name, b"v") for name in (stays, goes)]
    producer.send_offsets_to_transaction(commits(stays), mine)
    delete_topic(cluster, goes)
    with pytest.raises(kafka.errors.UnknownTopicOrPartitionError):
        producer.commit_transaction()
    producer.abort_transaction()
    assert contents(log, stays) == {} and committed_offsets(cluster.store, mine) == {}
    assert [future.get().offset for future in futures] == [-1, -1]


@also_on_s3
def test_clean_up_keeps_pending_files(cluster, log, topic, begin):
    name = topic(**FILES)
    producer = begin()
    producer.send(name, LARGE).get(timeout=LIMIT_S)
    change(cluster, t.write_id.delete())
    list(run_tasks(cluster, ["files"]))
    producer.send(name, LARGE + b"2")  # under a write id that no longer exists
    producer.commit_transaction()
    assert contents(log, name) == {0: [LARGE, LARGE + b"2"]}
    producer.begin_transaction()
    producer.send(name, LARGE).get(timeout=LIMIT_S)
    change(cluster, t.transaction_segment.delete())  # as a crash of the store would
    for table in (t.transaction, t.transaction_part):
        change(cluster, table.update().values(pending=0))
    with pytest.raises(TransactionAbortableError, match="1 batches were sent and 0 are there"):
        producer.commit_transaction()
    producer.abort_transaction()
    change(cluster, t.write_id.delete())
    list(run_tasks(cluster, ["files"]))
    assert len(segment_files(cluster, log.find_topic(name))) == 2


def test_closing_or_dropping_a_producer_aborts_its_transaction(cluster, log, topic, begin, cluster_address):
    name = topic()
    producer = begin(linger_ms=60_000)
    producer.send(name, b"v")
    producer.close()
    assert row_of(cluster, producer).state == "CompleteAbort" and nothing_is_pending(cluster, producer)
    with pytest.raises(IllegalStateError, match="already closed"):
        producer.commit_transaction()
    forgotten = Producer(cluster=cluster_address, transactional_id=name_of(producer))
    forgotten.init_transactions()
    forgotten.begin_transaction()
    forgotten.send(name, b"v").get(timeout=LIMIT_S)
    sender = forgotten._sender
    assert row_of(cluster, producer).state == "Ongoing"
    del forgotten
    gc.collect()
    sender.join(timeout=30)
    assert row_of(cluster, producer).state == "CompleteAbort" and contents(log, name) == {}
