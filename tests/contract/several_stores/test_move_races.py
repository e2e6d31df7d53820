"""What else happens while a topic moves, or after a store was restored: nothing is lost without a word."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa

from spark_log import Producer
from spark_log.cluster.store_directory import lock_active_store
from spark_log.cluster.stores import add_store, remove_store
from spark_log.cluster.topics import (
    TopicMove,
    delete_topic_rows,
    find_topic,
    insert_topic_row,
    set_move,
    stated_topic,
)
from spark_log.errors import (
    IllegalArgumentError,
    IllegalStateError,
    InvalidConfigurationError,
    TopicMovedError,
    UnknownTopicOrPartitionError,
)
from spark_log.groups.group_operations import Latest
from spark_log.groups.share import members, rows
from spark_log.groups.share.administration import reset_share_offsets
from spark_log.ids import HOME, TopicPartition
from spark_log.log.append.append_transaction import AppendRequest
from spark_log.log.append.failed_append_files import InDoubt, settle
from spark_log.log.log import Records
from spark_log.log.partitions.partition_rows import frozen_topics, read_partition
from spark_log.maintenance.erase.erase import erase
from spark_log.maintenance.erase.workers import ThreadWorkers
from spark_log.metadata import tables as t
from spark_log.replication.controller import topic_moves, topic_operations
from spark_log.replication.controller.store_acceptance import EPOCHS_SKIPPED, accept_store
from spark_log.replication.controller.topic_copies import follow_all
from spark_log.replication.controller.topic_moves import begin_move, cancel_move, move_topic
from spark_log.replication.controller.topic_operations import add_partitions, create_topic
from spark_log.transactions import rules, transaction_parts, wire_transactions
from spark_log.transactions.fencing_rules import Role
from spark_log.transactions.transaction_store import init_producer
from spark_log.transactions.wire_transactions import WireProducer
from tests.support.records import table
from tests.support.share_members import ShareMember
from tests.support.topics import append, stored
from tests.support.waiting import LIMIT_S, wait_until

EAST = 1
FILES = {"inline.max.bytes": "0", "retention.ms": "-1"}


def test_the_number_of_a_removed_store_is_not_used_again(stores, postgres_server):
    remove_store(stores, "east")
    assert stores.store_ids() == [HOME]
    assert add_store(stores, "east", postgres_server.create_prepared_database()).store_id == EAST + 1


def test_a_store_does_not_get_a_topic_back_empty(stores, log):
    """As after a restore of the data store to a time before the topic was moved there."""
    topic = create_topic(stores, "t", configs=FILES)
    append(log, "t", "a")
    move_topic(stores, "t", "east")
    east = stores.at(EAST).store
    east.transact(lambda connection: delete_topic_rows(connection, topic.topic_id))
    follow_all(stores)
    assert east.read(lambda connection: stated_topic(connection, topic.topic_id)) is None
    assert log.find_topic("t").store_id == EAST


def test_an_erase_of_a_topic_that_moves_fails(stores, log):
    create_topic(stores, "t", configs=FILES)
    append(log, "t", "a")

    def workers(keys):
        move_topic(stores, "t", "east")
        return ThreadWorkers(keys)

    with pytest.raises(TopicMovedError):
        erase(stores, "t", [b"key"], workers=workers)


def test_a_failed_append_leaves_the_files_of_a_moved_topic(stores, log):
    """The append was committed, and its answer lost; the topic has moved before the files are looked at."""
    topic = create_topic(stores, "t", configs=FILES)
    written = log.write_batches([(topic, Records(0, table("a")))])
    request = AppendRequest(written.batches, written.blobs, write_id=written.write_id)
    log.append_batches(request, {topic.topic_id: topic})
    move_topic(stores, "t", "east")
    settle(stores, InDoubt(written.batches, {topic.topic_id: topic}, written.write_id), timeout_ms=10_000)
    assert stored(stores, "t") == {0: ["a"]}


def test_partitions_that_home_does_not_know_yet_move_too(stores, log, monkeypatch):
    create_topic(stores, "t", store="east")
    monkeypatch.setattr(topic_operations, "_followed", lambda cluster, topic: topic)  # as if killed before it
    add_partitions(stores, "t", 3)
    move_topic(stores, "t", "home")
    assert log.find_topic("t").partition_count == 3
    log.append(log.find_topic("t"), [Records(2, table("a"))])
    assert stored(stores, "t") == {2: ["a"]}


def test_what_an_ended_transaction_left_in_the_other_store_does_not_stop_a_move(stores, log):
    topic = create_topic(stores, "t", configs=FILES, store="east")
    with Producer(cluster=stores.store.address.with_password, enable_idempotence=True) as producer:
        producer.send("t", b"a", partition=0).get(timeout=LIMIT_S)
    query = t.producer_batch.select().where(t.producer_batch.c.topic_id == topic.topic_id)
    rows = stores.at(EAST).store.read(lambda c: [dict(row._mapping) for row in c.execute(query)])
    assert rows
    stores.store.transact(lambda connection: connection.execute(t.producer_batch.insert(), rows))
    move_topic(stores, "t", "home")
    assert stored(stores, "t") == {0: ["a"]}


def test_files_from_before_a_move_there_and_back_are_checked_again(stores, log):
    """Meanwhile the clean-up of the other store may have deleted them."""
    topic = create_topic(stores, "t", configs=FILES)
    epochs = sa.select(t.partition.c.leader_epoch).where(t.partition.c.topic_id == topic.topic_id)
    before = stores.store.read(lambda connection: connection.execute(epochs).scalar())
    for store in ("east", "home"):
        move_topic(stores, "t", store)
    assert stores.store.read(lambda connection: connection.execute(epochs).scalar()) == before + 2


def test_a_restored_store_begins_epochs_of_partitions_that_are_frozen(stores, log, monkeypatch):
    """A move is cancelled after the restore: positions in the lost log must be known as such."""
    create_topic(stores, "t", configs=FILES, store="east")
    append(log, "t", "a")
    monkeypatch.setattr(topic_moves, "_copy", lambda *_: None)  # it stops after the freeze
    with pytest.raises(IllegalStateError):
        move_topic(stores, "t", "home")
    accept_store(stores.at(EAST))
    assert stores.at(EAST).store.read(frozen_topics) == [log.find_topic("t").topic_id]
    cancel_move(stores, "t")
    append(log, "t", "b")
    key = (log.find_topic("t").topic_id, 0)
    assert stores.at(EAST).store.read(lambda c: read_partition(c, key)).leader_epoch >= EPOCHS_SKIPPED
    assert stored(stores, "t") == {0: ["a", "b"]}


@pytest.mark.parametrize("comes", ["move", "creation"])
def test_a_store_is_not_removed_while_it_gets_a_topic(stores, comes):
    """`remove_store` looks for topics while the one that gets there is not committed yet."""
    if comes == "move":
        create_topic(stores, "t")
    home = stores.store
    removals = []

    def begin(connection):
        lock_active_store(connection, "east")
        if comes == "move":
            topic = find_topic(connection, "t")
            set_move(connection, topic.topic_id, TopicMove("1", EAST, 0))
        else:
            insert_topic_row(connection, "t", 1, 1, {}, home.clock(connection), None, EAST)
        removals.append(pool.submit(remove_store, stores, "east"))
        wait_until(lambda: home.read(lambda c: c.execute(sa.text(WAITING)).scalar()))

    with ThreadPoolExecutor(1) as pool:
        home.transact(begin)
    assert [type(each.exception()) for each in removals] == [InvalidConfigurationError]
    assert EAST in stores.store_ids()


def share_rows(stores):
    return stores.store.read(lambda c: c.execute(sa.select(t.share_partition.c.group_id)).scalars().all())


def test_no_share_group_begins_to_read_a_topic_that_moves(stores):
    create_topic(stores, "t")
    begin_move(stores, "t", "east")
    for begin in (
        lambda: ShareMember(stores),
        lambda: reset_share_offsets(stores, "workers", {TopicPartition("t", 0): Latest()}),
        lambda: reset_share_offsets(stores, "workers", {TopicPartition("t", 0): Latest()}, dry_run=True),
    ):
        with pytest.raises(IllegalArgumentError, match="is being moved"):
            begin()
    cancel_move(stores, "t")
    ShareMember(stores)
    assert share_rows(stores) == ["workers"]


def test_a_member_of_a_share_group_finds_a_topic_that_moves(stores, monkeypatch):
    """It has subscribed to the topic before there was one, and the move begins during its heartbeat."""
    member = ShareMember(stores)
    create_topic(stores, "t")
    find = members.find_starts

    def moved(*arguments):
        starts = find(*arguments)
        begin_move(stores, "t", "east")
        return starts

    monkeypatch.setattr(members, "find_starts", moved)
    heartbeat = members.ShareHeartbeat("workers", "m1", member.answer.epoch)
    answer = members.share_heartbeat(stores, heartbeat)
    assert (answer.epoch, answer.assignment) == (member.answer.epoch, None)
    assert share_rows(stores) == []
    move_topic(stores, "t", "east")


def test_a_move_waits_for_a_share_group_that_begins_to_read_the_topic(stores, monkeypatch):
    create_topic(stores, "t")
    insert, moves = rows.insert_rows, []

    def insert_rows(*arguments):
        moves.append(pool.submit(begin_move, stores, "t", "east"))
        wait_until(lambda: moves[0].done() or stores.store.read(waiting))
        insert(*arguments)

    def waiting(connection):
        return connection.execute(sa.text(WAITING)).scalar()

    monkeypatch.setattr(rows, "insert_rows", insert_rows)
    with ThreadPoolExecutor(1) as pool:
        ShareMember(stores)
    assert [type(each.exception()) for each in moves] == [InvalidConfigurationError]
    assert share_rows(stores) == ["workers"]


@pytest.mark.parametrize("client", ["producer", "Kafka"])
def test_a_store_is_not_removed_while_a_transaction_joins_it(stores, client, monkeypatch):
    home = stores.store
    removals, rule = [], rules.join

    def join_slowly(*arguments, **options):
        if not removals:
            removals.append(pool.submit(remove_store, stores, "east"))
            wait_until(lambda: home.read(lambda c: c.execute(sa.text(WAITING)).scalar()))
        return rule(*arguments, **options)

    def join():
        ref = init_producer(stores, "x", 60_000).ref
        if client == "producer":
            transaction_parts.join(stores, ref, EAST)
        else:
            wire = WireProducer("x", ref.producer_id, ref.epoch)
            token = wire_transactions.take_fencing_token(home, wire, Role.COORDINATOR)
            wire_transactions.begin(home, wire, token, [EAST])
        return ref

    monkeypatch.setattr(rules, "join", join_slowly)
    with ThreadPoolExecutor(1) as pool:
        ref = join()
    with pytest.raises(InvalidConfigurationError, match="a transaction that has not ended writes to it"):
        removals[0].result()
    transaction_parts.abort(stores, ref)
    remove_store(stores, "east")
    with pytest.raises(UnknownTopicOrPartitionError):
        join()


WAITING = """SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%store%'"""
