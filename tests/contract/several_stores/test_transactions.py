"""Transactions of the Producer over several stores: all of a transaction becomes readable, or nothing of it."""

import pytest
import sqlalchemy as sa
from kafka.admin import AbortTransactionSpec
from kafka.structs import OffsetAndMetadata, TopicPartition

from spark_log import Admin, Consumer, Producer
from spark_log.cluster.settings import alter_settings
from spark_log.cluster.stores import add_store
from spark_log.errors import (
    CrossStoreTransactionError,
    InvalidTxnStateError,
    ProducerFencedError,
    TransactionAbortableError,
    TransactionCommitPendingError,
)
from spark_log.facts.transactions import describe_transactions, list_transactions
from spark_log.maintenance.client_log import ClientLog
from spark_log.maintenance.task_list import run_tasks
from spark_log.metadata import tables as t
from spark_log.metadata.sql_columns import TRANSACTION_PART, TRANSACTION_SEGMENT
from spark_log.replication.controller.topic_operations import create_topic, delete_topic
from spark_log.spark.streams.transactional_loop import TransactionalLoop
from spark_log.transactions import transaction_parts, transaction_store
from spark_log.transactions.transaction_expiry import expire_parts
from spark_log.transactions.transaction_rows import PendingBatch
from tests.support.stores import change
from tests.support.topics import append_to, stored
from tests.support.waiting import LIMIT_S

EAST, WEST = 1, 2


@pytest.fixture
def two(stores, postgres_server):
    """A topic in each of three stores; transactions may use all of them."""
    add_store(stores, "west", postgres_server.create_prepared_database())
    alter_settings(stores, {"transaction.cross.store": "allow"})
    for name, store in (("near", "home"), ("east", "east"), ("west", "west")):
        create_topic(stores, name, 2, store=store)
    return stores


def producer_of(cluster, **settings):
    return Producer(cluster=cluster.store.address.with_password, transactional_id="t", **settings)


def values(cluster):
    """The records of each topic, over all of its partitions."""
    return {
        name: sorted(value for part in stored(cluster, name).values() for value in part)
        for name in ("near", "east", "west")
    }


def parts(cluster):
    """The states of the parts in the data stores, and the number of their pending batches."""
    states = {}
    for store_id in cluster.store_ids()[1:]:
        store = cluster.at(store_id).store
        found = store.read(lambda c: c.execute(sa.select(TRANSACTION_PART.state)).scalars().all())
        pending = store.read(lambda c: c.execute(sa.select(sa.func.count(TRANSACTION_SEGMENT.name))).scalar_one())
        states[store_id] = (*found, pending)
    return states


def test_one_data_store_and_offsets(stores):
    create_topic(stores, "in", store="home")
    create_topic(stores, "far", 2, store="east")
    with producer_of(stores) as producer:
        producer.init_transactions()
        for n in range(3):
            producer.begin_transaction()
            futures = [producer.send("far", b"%d" % n, partition=partition) for partition in (0, 1)]
            producer.send_offsets_to_transaction({TopicPartition("in", 0): OffsetAndMetadata(n + 1, "", -1)}, "g")
            written = producer.commit_transaction()
            assert written == [(TopicPartition("far", partition), n, n + 1) for partition in (0, 1)]
            assert [future.get().offset for future in futures] == [n, n]
        producer.begin_transaction()
        producer.send("far", b"never", partition=0).get(LIMIT_S)
        producer.abort_transaction()
    assert stored(stores, "far") == {0: ["0", "1", "2"], 1: ["0", "1", "2"]}
    assert parts(stores) == {EAST: ("aborted", 0)}
    with Consumer(cluster=stores.store.address.with_password, group_id="g") as consumer:
        assert consumer.committed(TopicPartition("in", 0)) == 3


def test_topics_of_several_stores_need_a_setting(stores):
    create_topic(stores, "near")
    create_topic(stores, "far", store="east")
    with producer_of(stores) as producer:
        producer.init_transactions()
        for first, second in (("near", "far"), ("far", "near")):
            producer.begin_transaction()
            producer.send(first, b"x").get(LIMIT_S)
            with pytest.raises(CrossStoreTransactionError, match=r"transaction\.cross\.store=allow"):
                producer.send(second, b"x").get(LIMIT_S)
            producer.abort_transaction()
    assert stored(stores, "near") == stored(stores, "far") == {}


def test_admin_shows_and_aborts_what_is_open_in_all_stores(two):
    places = [TopicPartition(name, 0) for name in ("east", "near", "west")]
    with Admin(cluster=two.store.address.with_password) as admin, producer_of(two) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        for place in places:
            producer.send(place.topic, b"pending", partition=0).get(LIMIT_S)
        [listed] = list_transactions(two)
        assert (listed.state, listed.batches) == ("Ongoing", 3)
        assert [(each.topic, each.records) for each in describe_transactions(two, ["t"])[0].pending] == [
            ("east", 1), ("near", 1), ("west", 1),
        ]  # fmt: skip
        assert admin.describe_transactions(["t"])["t"].topic_partitions == set(places)
        for place, found in admin.describe_producers([*places, TopicPartition("east", 1)]).items():
            open_here = [(each.producer_id, each.current_transaction_start_offset) for each in found.active_producers]
            assert open_here == ([(listed.producer_id, 0)] if place.partition == 0 else [])
        admin.abort_transaction(AbortTransactionSpec(places[0], listed.producer_id, listed.producer_epoch))
        with pytest.raises(TransactionAbortableError):
            producer.commit_transaction()
    assert values(two) == {"near": [], "east": [], "west": []}


def test_all_stores_together(two):
    with producer_of(two) as producer:
        producer.init_transactions()
        for n in range(2):
            producer.begin_transaction()
            for name in ("near", "east", "west"):
                producer.send(name, b"%d" % n)
            producer.flush()
            for name in ("east", "near"):
                producer.send(name, b"%d more" % n)
            assert all(f"{n}" not in found for found in values(two).values())
            assert len(producer.commit_transaction()) >= 3
        producer.begin_transaction()
        for name in ("near", "east", "west"):
            producer.send(name, b"never")
        producer.flush()
        producer.abort_transaction()
    assert values(two) == {
        "near": ["0", "0 more", "1", "1 more"],
        "east": ["0", "0 more", "1", "1 more"],
        "west": ["0", "1"],
    }
    assert parts(two) == {EAST: ("aborted", 0), WEST: ("aborted", 0)}


def decided(producer, cluster, patch):
    """Commit, and let home decide; the stores do not follow. Return the error of the commit."""
    with patch.context() as broken:

        def lost(*_, **__):
            raise TransactionCommitPendingError("the process was killed")

        broken.setattr(transaction_parts, "complete", lost)
        with pytest.raises(TransactionCommitPendingError) as raised:
            producer.commit_transaction()
    return raised.value


def begun(cluster, *names, value=b"x"):
    producer = producer_of(cluster)
    producer.init_transactions()
    producer.begin_transaction()
    for name in names:
        producer.send(name, value)
    producer.flush()
    return producer


def test_a_repeated_commit_completes(two, monkeypatch):
    with begun(two, "near", "east", "west") as producer:
        assert decided(producer, two, monkeypatch).retriable
        assert values(two) == {"near": ["x"], "east": [], "west": []}, "home is first"
        assert len(producer.commit_transaction()) == 3
        producer.begin_transaction()
        producer.send("west", b"y")
        producer.commit_transaction()
    assert values(two) == {"near": ["x"], "east": ["x"], "west": ["x", "y"]}


@pytest.mark.parametrize("by", ["same producer", "next producer", "coordinator"])
def test_a_decided_transaction_is_completed_by_the(two, monkeypatch, by):
    first = begun(two, "near", "east", "west")
    decided(first, two, monkeypatch)
    with pytest.raises(InvalidTxnStateError, match="CompleteCommit"):
        first.abort_transaction()
    with pytest.raises(TransactionCommitPendingError, match="repeat the call"):
        transaction_store.init_producer(two, "t", 60_000)
    if by == "coordinator":
        [east, west] = run_tasks(two, ["transactions"], dry_run=True)
        assert east.notes == west.notes == ("commits the part of t, as the home store has decided",)
        assert len(list(run_tasks(two, ["transactions"]))) == 2
        assert list(run_tasks(two, ["transactions"])) == []
    elif by == "same producer":
        first.begin_transaction()
    else:
        with producer_of(two) as second:
            second.init_transactions()
    assert values(two) == {"near": ["x"], "east": ["x"], "west": ["x"]}
    first.close()


def test_parts_of_an_aborted_transaction_are_dropped(two):
    producer = begun(two, "east", "west")
    assert parts(two) == {EAST: ("open", 1), WEST: ("open", 1)}
    transaction_store.init_producer(two, "t", 60_000)  # another producer, which is then killed
    east, _ = run_tasks(two, ["transactions"])
    assert east.notes == ("aborted the part of t, as the home store has decided",)
    assert parts(two) == {EAST: ("aborted", 0), WEST: ("aborted", 0)}
    producer.close()
    assert values(two) == {"near": [], "east": [], "west": []}


def test_a_part_never_decides_alone(two):
    """No task ends it while the transaction is open at home; the time-out there does."""
    with begun(two, "east") as producer:
        ref = producer._transactional()._ref
        query = sa.text("SELECT part_number FROM transaction")
        number = two.store.read(lambda connection: connection.execute(query).scalar())
        transaction_parts.prepare(ClientLog(two).at(EAST), ref.producer_id, number, 1)
        assert list(run_tasks(two, ["transactions", "expire"])) == []
        assert parts(two)[EAST] == ("prepared", 1)
        past = sa.text("UPDATE transaction SET until_ms = 0")
        two.store.transact(lambda connection: connection.execute(past))
        at_home, _ = run_tasks(two, ["transactions"])
        assert "transaction.timeout.ms has passed" in at_home.notes[0]
        with pytest.raises(TransactionAbortableError):
            producer.commit_transaction()
        producer.abort_transaction()
        producer.begin_transaction()
        producer.send("east", b"y")
        producer.commit_transaction()
    assert values(two)["east"] == ["y"]


def test_a_fenced_producer_does_not_see_the_parts_of_the_next_one(two):
    """It could prepare them, and the next one could not write any more."""
    with begun(two, "east") as first:
        fenced = first._transactional()._ref
        with begun(two, "east") as second:
            with pytest.raises(ProducerFencedError):
                transaction_parts.read_open(two.store, fenced)
            ref = second._transactional()._ref
            assert transaction_parts.read_open(two.store, ref)[1].stores == {EAST}
            second.abort_transaction()


def test_the_home_store_is_another_store_too(two):
    alter_settings(two, {"transaction.cross.store": "refuse"})
    with begun(two, "east") as producer:
        ref = producer._transactional()._ref
        with pytest.raises(CrossStoreTransactionError, match="spark-log topic move"):
            transaction_parts.register(two, ref, None, [PendingBatch(0, None)], {})
        producer.abort_transaction()


def test_parts_of_many_expired_ids_are_deleted_in_several_transactions(stores):
    """Appends to the data store may wait for the locks of each one."""
    east, left = stores.at(EAST), []
    part = {"number": 1, "state": "committed", "pending": 0, "changed_ms": 1}
    change(east, t.transaction_part.insert().values([{**part, "producer_id": 7 + number} for number in range(1_500)]))

    def fence(connection):
        left.append(connection.execute(sa.select(sa.func.count()).select_from(t.transaction_part)).scalar_one())

    assert expire_parts(east, fence=fence) == 1_500
    assert left == [1_500, 500]
    assert parts(stores) == {EAST: (0,)}


def test_a_deleted_topic_does_not_stop_a_decided_commit(two, monkeypatch):
    with begun(two, "east", "west") as producer:
        decided(producer, two, monkeypatch)
        delete_topic(two, "west")
        assert [each.base_offset for each in producer.commit_transaction()] == [0, -1]
    assert stored(two, "east") == {0: ["x"]} or stored(two, "east") == {1: ["x"]}
    assert parts(two)[WEST] == ("committed", 0)


@pytest.mark.parametrize("failures", [1, 3])
def test_a_loop_waits_until_the_data_store_has_followed_a_commit(stores, monkeypatch, failures):
    """With more failures than tries the next transaction waits for that."""
    address = stores.store.address.with_password
    create_topic(stores, "orders")
    create_topic(stores, "bills", store="east")
    append_to(stores, "orders", "a", "b")
    complete, left = transaction_parts.complete, ["not all stores followed"] * failures

    def complete_later(*arguments, **options):
        if left:
            raise TransactionCommitPendingError(left.pop())
        complete(*arguments, **options)

    monkeypatch.setattr(transaction_parts, "complete", complete_later)
    with (
        Consumer(
            "orders", cluster=address, group_id="g", enable_auto_commit=False, auto_offset_reset="earliest",
            consumer_timeout_ms=500, max_poll_records=1,
        ) as consumer,
        Producer(cluster=address, transactional_id="loop", retry_backoff_ms=1) as producer,
    ):  # fmt: skip
        totals = TransactionalLoop(consumer, producer, retries=1).run(
            lambda records, producer: [producer.send("bills", record.value) for record in records]
        )
        assert (left, totals.records) == ([], 2)
        assert stored(stores, "bills") == {0: ["a", "b"]}
