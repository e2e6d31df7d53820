"""A store is restored to an earlier time while a transaction over several stores is between its steps."""

import shutil
from functools import partial

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from spark_log import Producer
from spark_log.cli.main import app
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.settings import alter_settings
from spark_log.cluster.stores import add_store
from spark_log.cluster.topics import find_topics, set_store, topics_of_store
from spark_log.errors import InvalidConfigurationError, MetadataStoreUnavailableError, StoreChangedError
from spark_log.maintenance.client_log import ClientLog
from spark_log.maintenance.task_list import run_tasks
from spark_log.metadata import tables as t
from spark_log.replication.controller.store_acceptance import accept_store
from spark_log.replication.controller.topic_copies import follow_all
from spark_log.replication.controller.topic_moves import begin_move, cancel_move, move_topic
from spark_log.replication.controller.topic_operations import create_topic, delete_topic
from spark_log.transactions import transaction_parts
from spark_log.transactions.left_over_parts import find_unresolved
from spark_log.transactions.part_rows import unfinished_parts
from spark_log.transactions.rules import ONGOING
from spark_log.transactions.transaction_expiry import abort_timed_out
from spark_log.transactions.transaction_store import init_producer
from tests.support.python_process import killed_at
from tests.support.topics import TRANSACTION, append_to, stored

EAST, WEST = 1, 2
TO_BOTH = TRANSACTION.replace(
    "    producer.commit",
    """    producer.send("w", b"committed", partition=0)
    producer.commit""",
)


MOVE = """
import sys
from spark_log.cluster.cluster import Cluster
from spark_log.replication.controller.topic_moves import move_topic
with Cluster.open(sys.argv[1]) as cluster:
    move_topic(cluster, sys.argv[2], "west")
"""


@pytest.fixture
def both(stores, postgres_server):
    add_store(stores, "west", postgres_server.create_prepared_database())
    alter_settings(stores, {"transaction.cross.store": "allow"})
    create_topic(stores, "t", store="east")
    create_topic(stores, "w", store="west")
    return stores


def commit_next(cluster):
    with Producer(cluster=cluster.store.address.with_password, transactional_id="x") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", b"next", partition=0)
        producer.commit_transaction()


def restore_home(cluster, rows):
    """Give home the rows of producers and transactions that it had earlier."""

    def restore(connection):
        for table in (t.transaction, t.producer):
            connection.execute(table.delete())
        for table in (t.producer, t.transaction):
            for row in rows[table]:
                connection.execute(table.insert().values(**row._mapping))

    cluster.store.transact(restore)


def rows_of_home(cluster):
    return {
        table: cluster.store.read(lambda connection, table=table: connection.execute(sa.select(table)).all())
        for table in (t.producer, t.transaction)
    }


@pytest.mark.parametrize("backup", ["without the producer", "of an earlier transaction"])
@pytest.mark.parametrize("decided", [False, True])
def test_home_from_before_the_decision(both, decided, backup):
    """A part that is committed proves the decision; without one, all parts are aborted."""
    expected = []
    if backup == "of an earlier transaction":
        commit_next(both)
        expected.append("next")
    rows = rows_of_home(both)
    killed_at("part.decided" if decided else "part.prepared:2", "-c", TO_BOTH, both.store.address.with_password)
    if decided:
        expected.append("committed")
        [part] = both.at(EAST).store.read(unfinished_parts)
        log = ClientLog(both)
        transaction_parts.roll_forward(log.at(EAST), part.producer_id, part.number)
        log.close()
    restore_home(both, rows)
    accept_store(both)
    commit_next(both)
    list(run_tasks(both, ["transactions"]))
    assert list(run_tasks(both, ["transactions"], dry_run=True)) == []
    assert stored(both, "w") == ({0: ["committed"]} if decided else {})
    assert stored(both, "t") == {0: [*expected, "next"]}


def commit_in_east_only(cluster):
    """A producer is killed after the decision, and only store `east` follows. Returns its part, as it was prepared."""
    killed_at("part.decided", "-c", TO_BOTH, cluster.store.address.with_password)
    [part] = cluster.at(EAST).store.read(unfinished_parts)
    log = ClientLog(cluster)
    transaction_parts.roll_forward(log.at(EAST), part.producer_id, part.number)
    log.close()
    return part


@pytest.mark.parametrize("accepted", [False, True])
@pytest.mark.parametrize("its_id", ["is unknown", "belongs to another"])
def test_a_restored_home_store_aborts_no_transaction_that_a_data_store_has_committed(both, its_id, accepted):
    """One part is committed, which proves the decision."""
    rows = rows_of_home(both)
    part = commit_in_east_only(both)
    restore_home(both, rows)
    if its_id == "belongs to another":
        restored = sa.text("SELECT setval(pg_get_serial_sequence('producer', 'producer_id'), :last, :last > 1)")
        both.store.transact(lambda c: c.execute(restored, {"last": max(1, part.producer_id - 1)}))
        assert init_producer(both, "y", 60_000).ref.producer_id == part.producer_id
    if accepted:
        accept_store(both)
    list(run_tasks(both, ["transactions"]))
    assert both.at(WEST).store.read(unfinished_parts) == []
    assert stored(both, "w") == {0: ["committed"]}


@pytest.mark.parametrize("accepted", [False, True])
def test_a_transaction_that_times_out_at_a_restored_home_store(both, accepted):
    """It is open in the backup, and the data stores have committed it or were about to."""
    commit_in_east_only(both)
    reopened = t.transaction.update().values(state=ONGOING.value, part_stores=f"{EAST} {WEST}", until_ms=1)
    both.store.transact(lambda connection: connection.execute(reopened))
    assert list(abort_timed_out(both)) == ["x"]
    if accepted:
        accept_store(both)
    list(run_tasks(both, ["transactions"]))
    assert find_unresolved(both.at(WEST)) == []
    assert (stored(both, "t"), stored(both, "w")) == ({0: ["committed"]}, {0: ["committed"]})
    commit_next(both)
    assert stored(both, "t") == {0: ["committed", "next"]}


def test_a_prepared_part_is_not_aborted_while_a_store_does_not_answer(both, monkeypatch, caplog):
    """The other parts of the store are."""
    killed_at("part.prepared:2", "-c", TO_BOTH, both.store.address.with_password)
    [part] = both.at(WEST).store.read(unfinished_parts)
    both.store.transact(lambda connection: connection.execute(t.transaction.update().values(until_ms=1)))
    assert list(abort_timed_out(both)) == ["x"]
    opened = {"producer_id": part.producer_id + 1, "number": 1, "state": "open", "pending": 0, "changed_ms": 0}
    both.at(WEST).store.transact(lambda connection: connection.execute(t.transaction_part.insert(), opened))

    def away(_body):
        raise MetadataStoreUnavailableError("away")

    with monkeypatch.context() as east:
        east.setattr(both.at(EAST).store, "read_as_primary", away)
        assert [(each.producer_id, each.committed) for each in find_unresolved(both.at(WEST))] == [
            (part.producer_id + 1, False)
        ]
    assert "not aborted before store 1 answers" in caplog.text
    assert {each.producer_id for each in find_unresolved(both.at(WEST))} == {part.producer_id, part.producer_id + 1}


def test_home_that_has_lost_nothing(both):
    """As after a promotion that is accepted: decided transactions go on."""
    killed_at("part.decided", "-c", TO_BOTH, both.store.address.with_password)
    accept_store(both)
    commit_next(both)
    assert (stored(both, "t"), stored(both, "w")) == ({0: ["committed", "next"]}, {0: ["committed"]})


def test_an_open_part_of_a_transaction_that_is_over_is_dropped(both):
    """A data store is restored to a time between a registration and the commit."""
    killed_at("part.decided", "-c", TRANSACTION, both.store.address.with_password)
    east = both.at(EAST)
    east.store.transact(lambda connection: connection.execute(t.transaction_part.update().values(state="open")))
    accept_store(east)
    list(run_tasks(both, ["transactions"]))
    assert east.store.read(unfinished_parts) == []
    assert east.store.read(lambda connection: connection.execute(sa.select(t.transaction_segment)).all()) == []
    assert stored(both, "t") == {}


def test_producers_of_a_restored_home_store_get_other_ids(both):
    """Its epochs are given out again, and the data stores have seen them."""
    before = init_producer(both, "x", 60_000).ref
    accept_store(both.at(EAST))
    again = init_producer(both, "x", 60_000).ref
    assert again.producer_id == before.producer_id
    accept_store(both)
    after = init_producer(both, "x", 60_000).ref
    assert after.producer_id > before.producer_id
    commit_next(both)
    assert stored(both, "t") == {0: ["next"]}


def test_a_data_store_from_before_its_part(stores):
    """A store that has lost its part of a committed transaction does not block the transactional id."""
    create_topic(stores, "t", store="east")
    killed_at("part.decided", "-c", TRANSACTION, stores.store.address.with_password)
    for table in (t.transaction_part, t.transaction_segment):
        stores.at(EAST).store.transact(lambda connection, table=table: connection.execute(table.delete()))
    accept_store(stores.at(EAST))
    commit_next(stores)
    assert stored(stores, "t") == {0: ["next"]}


@pytest.mark.parametrize("home_is_restored", [False, True])
def test_the_newest_copy_of_a_moved_topic_stays(both, home_is_restored):
    """The first store is restored to a time before the move, so that both stores have the topic."""
    tables = (t.topic, t.partition, t.replica, t.segment, t.blob)
    append_to(both, "t", "before")
    east, topic_id = both.at(EAST), both.store.read(find_topics)["t"].topic_id
    rows = {table: east.store.read(lambda c, table=table: c.execute(sa.select(table)).all()) for table in tables}
    move_topic(both, "t", "west")
    append_to(both, "t", "after")

    def restore(connection):
        for table in tables:
            for row in rows[table]:
                connection.execute(table.insert().values(**row._mapping))

    east.store.transact(restore)
    if home_is_restored:
        both.store.transact(lambda connection: set_store(connection, topic_id, EAST, 0))
    accept_store(east)
    accept_store(both)
    follow_all(both)
    assert stored(both, "t") == {0: ["before", "after"]}
    assert east.store.read(lambda connection: topics_of_store(connection, EAST)) == {}


@pytest.mark.parametrize("step", ["frozen", "copied"])
def test_a_topic_that_was_being_moved_is_taken_back(both, step):
    """Home is restored to a time before it was created, or before it was moved to the store that was giving it away."""
    east = both.at(EAST)
    append_to(both, "t", "a")
    topic = both.store.read(find_topics)["t"]
    create_topic(both, "u")
    move_topic(both, "u", "east")
    append_to(both, "u", "b")
    for name in ("t", "u"):
        killed_at(f"move.{step}", "-c", MOVE, both.store.address.with_password, name)

    def restore(connection):
        connection.execute(t.topic.delete().where(t.topic.c.topic_id == topic.topic_id))
        connection.execute(t.topic.update().where(t.topic.c.name == "u").values(store_id=0, move=None, move_epoch=0))

    both.store.transact(restore)
    accept_store(both)
    follow_all(both)
    assert (stored(both, "t"), stored(both, "u")) == ({0: ["a"]}, {0: ["b"]})
    assert {each.topic.name for each in east.store.read(partial(topics_of_store, store_id=EAST)).values()} == {"t", "u"}
    append_to(both, "t", "next")
    append_to(both, "u", "next")
    assert (stored(both, "t"), stored(both, "u")) == ({0: ["a", "next"]}, {0: ["b", "next"]})


def test_home_from_a_time_at_which_the_topic_was_being_moved(both):
    """That move was cancelled since, and a later one was interrupted."""
    append_to(both, "t", "a")
    topic, _ = begin_move(both, "t", "west")
    here = t.topic.c.topic_id == topic.topic_id
    [row] = both.store.read(lambda c: c.execute(sa.select(t.topic).where(here)).all())
    assert cancel_move(both, "t")
    killed_at("move.copied", "-c", MOVE, both.store.address.with_password, "t")
    both.store.transact(lambda connection: connection.execute(t.topic.update().where(here).values(row._mapping)))
    accept_store(both)
    move_topic(both, "t", "west")
    append_to(both, "t", "next")
    assert stored(both, "t") == {0: ["a", "next"]}
    assert both.at(EAST).store.read(lambda connection: topics_of_store(connection, EAST)) == {}


@pytest.mark.parametrize("created_before", [False, True])
def test_a_restored_home_store_deletes_no_topic_before_it_is_accepted(both, created_before, caplog):
    """It does not know that topics were created, or moved, since the backup, and nothing shows that it was restored."""
    if created_before:
        move_topic(both, "t", "west")
    for topic in ("t", "w"):
        append_to(both, topic, "acknowledged")

    def restore(connection):
        if created_before:
            connection.execute(t.topic.update().where(t.topic.c.name == "t").values(store_id=EAST, move_epoch=0))
        else:
            connection.execute(t.topic.delete())

    both.store.transact(restore)
    follow_all(both)
    assert "one of them was restored from an older copy" in caplog.text
    if not created_before:
        with pytest.raises(StoreChangedError, match="topic 't': a data store has it"):
            create_topic(both, "t", store="east")
        follow_all(both)
    accept_store(both)
    follow_all(both)
    assert (stored(both, "t"), stored(both, "w")) == ({0: ["acknowledged"]}, {0: ["acknowledged"]})


@pytest.mark.parametrize("store", ["home", "east"])
def test_the_id_of_a_lost_topic_is_given_to_another_one(stores, store):
    """It is created after home was restored, and before that is accepted."""
    create_topic(stores, "lost", store="east")
    append_to(stores, "lost", "acknowledged")

    def restore(connection):
        connection.execute(t.topic.delete())
        connection.execute(sa.text("SELECT setval(pg_get_serial_sequence('topic', 'topic_id'), 1, false)"))

    stores.store.transact(restore)
    if store == "home":
        create_topic(stores, "new")
    else:
        with pytest.raises(StoreChangedError, match="topic 'lost'"):
            create_topic(stores, "new", store="east")
    follow_all(stores)
    if store == "home":
        with pytest.raises(InvalidConfigurationError, match="'lost' of store 1 has the id of topic 'new'"):
            accept_store(stores)
        delete_topic(stores, "new")
    accept_store(stores)
    follow_all(stores)
    assert stored(stores, "lost") == {0: ["acknowledged"]}


def test_a_topic_that_was_deleted_after_the_backup_of_its_data_store(both):
    """It is back in that store, and is deleted there again when this store is accepted, and not before."""
    east = both.at(EAST)
    rows = east.store.read(lambda connection: connection.execute(sa.select(t.topic)).all())
    delete_topic(both, "t")

    def restore(connection):
        for row in rows:
            connection.execute(t.topic.insert().values(**row._mapping))

    def names():
        return [each.topic.name for each in east.store.read(partial(topics_of_store, store_id=EAST)).values()]

    east.store.transact(restore)
    follow_all(both)
    assert names() == ["t"]
    accept_store(east)
    follow_all(both)
    assert names() == []
    assert set(both.store.read(find_topics)) == {"w"}


def test_a_cluster_is_restored_from_backups_of_different_times(postgres_server, tmp_path, monkeypatch):
    """As the guide says: a topic is moved between the dumps of the two stores, and more is written after the last."""
    address, east = postgres_server.create_prepared_database(), postgres_server.create_prepared_database()
    log_dir, kept = tmp_path / "log-dir", tmp_path / "kept"
    with Cluster.init(address, log_dir=str(log_dir)) as cluster:
        add_store(cluster, "east", east)
        for topic, store in (("near", "home"), ("far", "east"), ("moved", "east")):
            create_topic(cluster, topic, configs={"inline.max.bytes": "0"}, store=store)
            append_to(cluster, topic, "first")
    east = postgres_server.create_copy(east)
    with Cluster.open(address) as cluster:
        move_topic(cluster, "moved", "home")
        append_to(cluster, "moved", "second")
    address = postgres_server.create_copy(address)
    shutil.copytree(log_dir, kept)
    shutil.rmtree(log_dir)
    shutil.copytree(kept, log_dir)

    monkeypatch.setenv("SPARK_LOG_STORE_EAST", east)
    cli = CliRunner()
    for arguments in (["--store", "east"], []):
        result = cli.invoke(app, ["store", "accept", *arguments, "--cluster", address, "--yes"])
        assert result.exit_code == 0, result.output
    with Cluster.open(address) as cluster:
        for topic in ("near", "far", "moved"):
            append_to(cluster, topic, "next")
        assert stored(cluster, "near") == stored(cluster, "far") == {0: ["first", "next"]}
        assert stored(cluster, "moved") == {0: ["first", "second", "next"]}
        follow_all(cluster)
        assert [
            each.topic.name for each in cluster.at(EAST).store.read(partial(topics_of_store, store_id=EAST)).values()
        ] == ["far"]
    result = cli.invoke(app, ["store", "verify-files", "--checksums", "--cluster", address])
    assert result.exit_code == 0, result.output
