"""Topics move between stores: no record is lost, none is twice, and each keeps its offset."""

import threading
from contextlib import contextmanager, suppress
from itertools import count

import pytest
import sqlalchemy as sa
from kafka.structs import TopicPartition
from typer.testing import CliRunner

from spark_log import Consumer, Producer
from spark_log.cli.main import app
from spark_log.cluster.stores import remove_store
from spark_log.cluster.topics import find_topic, list_topics, moving_topics, set_deleting
from spark_log.errors import (
    IllegalStateError,
    InvalidConfigurationError,
    SparkLogError,
)  # fmt: skip
from spark_log.ids import HOME
from spark_log.maintenance import run_tasks
from spark_log.metadata import tables as t
from spark_log.replication.controller.store_acceptance import accept_store
from spark_log.replication.controller.topic_copies import follow_all
from spark_log.replication.controller.topic_moves import (
    begin_move,
    cancel_move,
    continue_move,
    continue_moves,
    drain_store,
    move_topic,
)
from spark_log.replication.controller.topic_operations import create_topic, delete_topic
from spark_log.tables.publication import publish
from tests.support.python_process import forkserver, killed_at
from tests.support.table_checks import assert_delta_is_the_log, assert_replicas_are_whole
from tests.support.topics import TRANSACTION, append_to, stored
from tests.support.waiting import LIMIT_S, Worker, wait_until

STORES = ("home", "east")


MIXED = {"inline.max.bytes": "100", "inline.tail.bytes": "400", "retired.file.retention.ms": "0", "retention.ms": "-1"}
"""Configs with which a topic has both files and blobs."""


LONG = "x" * 200


PROGRAM = """
import sys
from spark_log.cluster.cluster import Cluster
from spark_log.replication.controller.topic_moves import move_topic
address, store = sys.argv[1:]
with Cluster.open(address) as cluster:
    move_topic(cluster, "t", store)
"""


WAYS = [("home", "east"), ("east", "home")]


def create(stores, store="home", partitions=2):
    return create_topic(stores, "t", partitions, configs=MIXED, store=store)


def store_of(stores):
    return STORES[stores.store.read(lambda connection: find_topic(connection, "t")).store_id]


def tables_with(stores, store, topic):
    """The tables of the log that have rows of the topic in this store."""
    found = set()
    with stores.at(STORES.index(store)).store.snapshot() as connection:
        for each in t.metadata.tables.values():
            if "topic_id" in each.c and each.info["owner"] not in ("groups", "transactions"):
                rows = sa.select(sa.func.count()).select_from(each).where(each.c.topic_id == topic.topic_id)
                found |= {each.name} if connection.execute(rows).scalar() else set()
    return found


def assert_is_in(stores, store, topic):
    """The topic is in this store, its partitions may change, and nothing of it is in the other one."""
    assert store_of(stores) == store
    view = stores.at(STORES.index(store))
    frozen = sa.select(sa.func.count()).where(t.partition.c.frozen)
    assert view.store.read(lambda connection: connection.execute(frozen).scalar()) == 0
    other = STORES[1 - STORES.index(store)]
    assert tables_with(stores, other, topic) == ({"topic"} if other == "home" else set())


@contextmanager
def load(address):
    """An idempotent producer that sends numbers to both partitions inside the block. Yields the acknowledged ones."""
    acknowledged = {0: [], 1: []}

    def send(stop):
        with Producer(cluster=address, enable_idempotence=True, retry_backoff_ms=10) as producer:
            for number in count():
                if stop.is_set():
                    return
                text = f"{number}{LONG if number % 7 == 0 else ''}"
                sent = {partition: producer.send("t", text.encode(), partition=partition) for partition in (0, 1)}
                for partition, future in sent.items():
                    assert future.get(timeout=60).offset == number
                    acknowledged[partition].append(text)

    sending = Worker(send)
    try:
        yield acknowledged
    finally:
        sending.finish()


def test_clients_follow_a_topic_there_and_back(stores, address):
    topic = create(stores)
    with (
        Producer(cluster=address, enable_idempotence=True) as producer,
        Consumer("t", cluster=address, group_id="g", auto_offset_reset="earliest") as consumer,
    ):
        for number, store in enumerate(("home", "east", "home")):
            if number:
                move_topic(stores, "t", store)
                assert_is_in(stores, store, topic)
            sent = [f"{number}-{i}{LONG if i % 7 == 0 else ''}" for i in range(50)]
            for i, text in enumerate(sent):
                producer.send("t", text.encode(), partition=i % 2)
            producer.flush()
            read = []
            while len(read) < 50:
                read += [record.value.decode() for records in consumer.poll(500).values() for record in records]
            assert sorted(read) == sorted(sent)
        assert [consumer.position(TopicPartition("t", number)) for number in (0, 1)] == [75, 75]


@pytest.mark.parametrize(
    ("way", "point"),
    [
        pytest.param(way, point, id="-".join((*way, point)))
        for way in WAYS
        for point in ("begun", "frozen", "copying", "copied", "decided", "followed")
        if (point, way[1]) != ("decided", "home")  # in the same transaction as "copied"
    ],
    indirect=["way"],
)
def test_an_interrupted_move_is_continued(stores, address, way, point):
    source, target = way
    topic = create(stores, source)
    with load(address) as acknowledged:
        wait_until(lambda: len(acknowledged[1]) >= 10, "records before the move")
        killed_at(f"move.{point}", "-c", PROGRAM, address, target)
        follow_all(stores)
        continue_moves(stores)
        follow_all(stores)
        reached = len(acknowledged[1])
        wait_until(lambda: len(acknowledged[1]) >= reached + 10, "records after the move")
    assert_is_in(stores, target, topic)
    assert stored(stores, "t") == acknowledged


@pytest.mark.parametrize("point", ["begun", "frozen", "copied"])
def test_a_move_is_cancelled(stores, address, way, point):
    source, target = way
    if (point, target) == ("copied", "home"):
        point = "copying"  # then it is decided
    topic = create(stores, source)
    append_to(stores, "t", "a", LONG)
    killed_at(f"move.{point}", "-c", PROGRAM, address, target)
    assert cancel_move(stores, "t")
    assert not cancel_move(stores, "t")
    append_to(stores, "t", "b")
    assert_is_in(stores, source, topic)
    assert stored(stores, "t") == {0: ["a", LONG, "b"]}


def test_a_process_that_stood_still_does_not_end_another_move(stores, way):
    source, target = way
    topic = create(stores, source)
    append_to(stores, "t", "a")
    stale = begin_move(stores, "t", target)
    cancel_move(stores, "t")
    append_to(stores, "t", "b")
    now = begin_move(stores, "t", target)
    with pytest.raises(IllegalStateError, match="cancelled"):
        continue_move(stores, *stale)
    append_to(stores, "t", "c")
    continue_move(stores, *now)
    append_to(stores, "t", "d")
    for move in (stale, now):
        continue_move(stores, *move)
    assert_is_in(stores, target, topic)
    assert stored(stores, "t") == {0: ["a", "b", "c", "d"]}


def move_to_and_fro(address, start):
    from spark_log.cluster.cluster import Cluster

    with Cluster.open(address) as cluster:
        start.wait(timeout=60)
        for store in ("east", "home", "east"):
            with suppress(InvalidConfigurationError, IllegalStateError):  # another process moves it the other way
                move_topic(cluster, "t", store)


@pytest.mark.slow
def test_processes_move_a_topic_at_once_while_it_is_written(stores, address):
    topic = create(stores)
    start = forkserver.Barrier(3)
    processes = [forkserver.Process(target=move_to_and_fro, args=(address, start)) for _ in range(2)]
    with load(address) as acknowledged:
        for process in processes:
            process.start()
        start.wait(timeout=60)
        for process in processes:
            process.join(timeout=120)
        assert [process.exitcode for process in processes] == [0, 0]
        continue_moves(stores)
        follow_all(stores)
        reached = len(acknowledged[1])
        wait_until(lambda: len(acknowledged[1]) >= reached + 5, "records after the moves")
    assert_is_in(stores, store_of(stores), topic)
    assert stored(stores, "t") == acknowledged


@pytest.mark.parametrize("point", ["frozen", "copied"])
def test_a_topic_is_deleted_while_it_is_moved(stores, address, way, point):
    source, target = way
    if (point, target) == ("copied", "home"):
        point = "copying"  # then it is decided
    topic = create(stores, source)
    append_to(stores, "t", "a")
    killed_at(f"move.{point}", "-c", PROGRAM, address, target)
    delete_topic(stores, "t")
    other = create(stores, target, partitions=1)
    continue_moves(stores)
    follow_all(stores)
    for store in STORES:
        assert tables_with(stores, store, topic) <= {"retired_file"}
    append_to(stores, "t", "new")
    assert_is_in(stores, target, other)
    assert stored(stores, "t") == {0: ["new"]}


def test_a_topic_that_is_deleted_during_its_move_is_not_in_the_list_of_moves(stores, address, caplog):
    topic = create(stores)
    begin_move(stores, "t", "east")
    stores.store.transact(lambda connection: set_deleting(connection, topic.topic_id))
    listed = CliRunner().invoke(app, ["topic", "moves", "--cluster", address])
    assert (listed.exit_code, listed.output) == (0, "No topic is being moved.\n")
    continue_moves(stores)
    assert caplog.text == ""


def test_open_transactions_are_waited_for(stores, address):
    topic = create(stores)
    with Producer(cluster=address, transactional_id="x") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", LONG.encode(), partition=0).get(timeout=LIMIT_S)
        mover = threading.Thread(target=move_topic, args=(stores, "t", "east"))
        mover.start()
        wait_until(lambda: stores.store.read(moving_topics), "the move begins")
        producer.commit_transaction()
        mover.join(timeout=60)
    assert_is_in(stores, "east", topic)
    assert stored(stores, "t") == {0: [LONG]}


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr("spark_log.replication.controller.topic_moves.PATIENCE_MS", 0)


def test_a_transaction_that_a_move_does_not_wait_for_fails_and_leaves_nothing(stores, address, way, impatient):
    source, target = way
    topic = create(stores, source)
    with Producer(cluster=address, transactional_id="x") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", LONG.encode(), partition=0).get(timeout=LIMIT_S)
        move_topic(stores, "t", target)
        with pytest.raises(Exception, match="moved to another"):
            producer.commit_transaction()
        producer.abort_transaction()
    append_to(stores, "t", "a")
    assert_is_in(stores, target, topic)
    assert stored(stores, "t") == {0: ["a"]}


def test_a_move_waits_for_a_part_that_is_prepared(stores, address, impatient):
    topic = create(stores, "east")
    killed_at("part.decided", "-c", TRANSACTION, address)
    moved = threading.Event()
    mover = threading.Thread(target=lambda: (move_topic(stores, "t", "home"), moved.set()))
    mover.start()
    wait_until(lambda: stores.store.read(moving_topics), "the move begins")
    list(run_tasks(stores, ["seal"]))
    assert not moved.is_set()
    list(run_tasks(stores, ["transactions"]))
    mover.join(timeout=60)
    append_to(stores, "t", "a")
    assert_is_in(stores, "home", topic)
    assert stored(stores, "t") == {0: ["committed", "a"]}


def test_a_restored_home_store_learns_where_a_topic_is(stores):
    """Home's rows are those from before the move; the data store has the topic, and more records."""
    topic = create(stores)
    append_to(stores, "t", "a", LONG)
    with stores.store.snapshot() as connection:
        rows = {
            name: [dict(row._mapping) for row in connection.execute(t.metadata.tables[name].select())]
            for name in tables_with(stores, "home", topic) - {"topic"}
        }
    move_topic(stores, "t", "east")
    append_to(stores, "t", "b")

    def restore(connection):
        for name, of_table in rows.items():
            connection.execute(t.metadata.tables[name].insert(), of_table)
        connection.execute(t.topic.update().values(store_id=HOME, move_epoch=0))

    stores.store.transact(restore)
    accept_store(stores)
    follow_all(stores)
    append_to(stores, "t", "c")
    assert_is_in(stores, "east", topic)
    assert stored(stores, "t") == {0: ["a", LONG, "b", "c"]}


@pytest.mark.delta
def test_tables_and_files_stay_whole(stores, address, way):
    """Each store's maintenance runs between the steps of a move, and after it, with the topic as it was before it."""
    source, target = way
    topic = create(stores, source)
    append_to(stores, "t", "a", LONG)
    publish(stores, topic)
    append_to(stores, "t", LONG, "b")
    killed_at("move.frozen", "-c", PROGRAM, address, target)
    list(run_tasks(stores, ["seal", "retention", "files"]))
    publish(stores, topic)
    continue_moves(stores)
    append_to(stores, "t", "c", LONG)
    list(run_tasks(stores, ["seal", "retention", "files"]))
    moved = stores.store.read(lambda connection: find_topic(connection, "t"))
    publish(stores, moved)
    publish(stores, topic)  # of the store that had it
    list(run_tasks(stores, ["files"]))
    assert stored(stores, "t") == {0: ["a", LONG, LONG, "b", "c", LONG]}
    assert_replicas_are_whole(stores.of(moved))
    assert_delta_is_the_log(stores)


def test_a_store_is_drained_and_removed(stores):
    for name in ("a", "b"):
        create_topic(stores, name, store="east")
    with pytest.raises(InvalidConfigurationError, match="store drain"):
        remove_store(stores, "east")
    assert list(drain_store(stores, "east", "home")) == [("b", 1), ("a", 0)]
    with pytest.raises(InvalidConfigurationError, match="draining"):
        create_topic(stores, "c", store="east")
    remove_store(stores, "east")
    assert {topic.store_id for topic in list_topics(stores)} == {HOME}


def test_moves_that_cannot_be_made_are_refused(stores):
    create(stores)
    for name, store, problem in [
        ("t", "west", "no such store"),
        ("u", "east", "unknown topic"),
        ("__consumer_offsets", "east", "move"),
    ]:
        with pytest.raises(SparkLogError, match=problem):
            move_topic(stores, name, store)
    move_topic(stores, "t", "home")
    begin_move(stores, "t", "east")
    with pytest.raises(InvalidConfigurationError, match="is being moved to another store"):
        move_topic(stores, "t", "home")
    with pytest.raises(InvalidConfigurationError, match="'t' is being moved to it"):
        remove_store(stores, "east")
