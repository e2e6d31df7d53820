"""Topics of a data store: they are created, changed, appended to, read and deleted like those of the home store."""

from dataclasses import replace

import pytest

from spark_log import AcknowledgeType, Consumer, Producer, ShareConsumer
from spark_log.cluster.settings import alter_settings
from spark_log.cluster.topics import CREATING, find_topics, insert_topic_row, set_deleting, topics_of_store
from spark_log.errors import (
    CrossStoreTransactionError,
    DeadLetterTopicError,
    IllegalArgumentError,
    InvalidConfigurationError,
    MetadataStoreError,
    MetadataStoreUnavailableError,
    OutOfOrderSequenceNumberError,
    StoreNotFoundError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from spark_log.groups.group_operations import Latest
from spark_log.groups.share import members
from spark_log.groups.share.administration import reset_share_offsets
from spark_log.groups.share.dead_letters import usable_topic
from spark_log.groups.share.members import ShareHeartbeat, share_heartbeat
from spark_log.groups.share.rows import save_configs
from spark_log.ids import HOME, TopicPartition
from spark_log.log.append.producer_expiry import expire_producers
from spark_log.log.append.producer_rows import register_producer
from spark_log.log.append.rules import Appended
from spark_log.log.append.sequence_rules import ProducerSequence
from spark_log.log.log import Records
from spark_log.metadata import tables as t
from spark_log.replication.controller import topic_copies, topic_operations
from spark_log.replication.controller.topic_copies import follow_all
from spark_log.replication.controller.topic_moves import move_topic
from spark_log.replication.controller.topic_operations import add_partitions, alter_configs, create_topic, delete_topic
from tests.support.records import table
from tests.support.share_members import ShareMember
from tests.support.topics import append_to, consume_all, stored
from tests.support.waiting import LIMIT_S, wait_until

EAST = 1


def there(stores):
    """The topics of the data store, as it has them."""
    return stores.at(EAST).store.read(find_topics)


def test_a_topic_is_whole_in_its_store(stores, log):
    created = create_topic(stores, "t", 2, configs={"retention.ms": "-1"}, store="east")
    assert log.find_topic("t") == created == there(stores)["t"]
    assert created.store_id == EAST
    log.append(created, [Records(0, table("a", "b")), Records(1, table("c"))])
    assert stored(stores, "t") == {0: ["a", "b"], 1: ["c"]}
    with pytest.raises(TopicAlreadyExistsError):
        create_topic(stores, "t")
    with pytest.raises(StoreNotFoundError, match="the stores are: home, east"):
        create_topic(stores, "u", store="west")


def test_the_log_of_a_store_writes_to_its_own_topics(stores, log):
    created = create_topic(stores, "t", store="east")
    with pytest.raises(CrossStoreTransactionError, match=r"'t' is in store 1: .* of one store, here of store 0"):
        log.write_each([(created, Records(0, table("a")))])


def test_changes_reach_both_stores(stores, log):
    create_topic(stores, "t", store="east")
    alter_configs(stores, "t", {"retention.ms": "1000"})
    add_partitions(stores, "t", 3)
    assert log.find_topic("t") == there(stores)["t"]
    assert there(stores)["t"].partition_count == 3
    assert there(stores)["t"].overrides == {"retention.ms": "1000"}
    log.append(log.find_topic("t"), [Records(2, table("x"))])
    delete_topic(stores, "t")
    assert there(stores) == {} == stores.store.read(find_topics)
    again = create_topic(stores, "t")
    assert again.store_id == 0
    assert stored(stores, "t") == {}


def test_a_producer_that_used_one_store_alone_may_use_another_later(stores, log):
    """Home, which sees none of its appends, forgets it after producer.id.expiration.ms."""
    near, far = create_topic(stores, "near"), create_topic(stores, "far", store="east")
    who = register_producer(stores.store, 10_000)

    def send(topic, first):
        [outcome] = log.append(topic, [Records(0, table("x"), ProducerSequence(who, 0, first))])
        return outcome

    def expire(store, **options):
        now_ms = store.now().wall_ms
        wait_until(lambda: store.now().wall_ms > now_ms + 1)
        return expire_producers(store, replace(stores.store.settings, producer_id_expiration_ms=1), **options)

    def expire_there():
        return expire(stores.at(EAST).store, home=stores.store)

    assert send(far, 0) == Appended(0, 1)
    register_producer(stores.store, 10_000)
    assert expire(stores.store) == 1
    assert send(far, 1) == Appended(1, 2)
    assert expire_there() == 1, "home has none"
    assert send(far, 9) == Appended(2, 3), "any sequence is the next one"
    assert isinstance(send(far, 11).error, OutOfOrderSequenceNumberError)
    assert send(near, 0) == Appended(0, 1)
    assert send(near, 0) == Appended(0, 1, duplicate=True)
    assert send(far, 10) == Appended(3, 4)
    assert expire_there() == 0, "home has it"
    assert send(far, 15) == Appended(4, 5)
    assert expire(stores.store) == 1
    assert expire_there() == 1
    assert send(far, 20) == Appended(5, 6)


def test_clients_use_topics_of_all_stores(stores):
    address = stores.store.address.with_password
    create_topic(stores, "near")
    create_topic(stores, "far", 2, store="east")
    with Producer(cluster=address, linger_ms=20) as producer:
        sent = [producer.send(topic, b"%d" % n, partition=0) for n in range(100) for topic in ("near", "far")]
        offsets = [(each.get(LIMIT_S).topic, each.get(LIMIT_S).offset) for each in sent]
    assert offsets == [(topic, n) for n in range(100) for topic in ("near", "far")]
    with Consumer("near", "far", cluster=address, group_id="g", auto_offset_reset="earliest") as consumer:
        read = {}
        while sum(map(len, read.values())) < 200:
            for partition, records in consumer.poll(1_000).items():
                read.setdefault(partition, []).extend(int(record.value) for record in records)
        consumer.commit()
    assert read == {TopicPartition(topic, 0): list(range(100)) for topic in ("near", "far")}


def test_share_groups_refuse_topics_of_data_stores(stores):
    create_topic(stores, "far", store="east")
    address = stores.store.address.with_password
    with ShareConsumer("far", cluster=address, group_id="s") as consumer, pytest.raises(IllegalArgumentError):
        consumer.poll(60_000)
    for dry_run in (True, False):
        with pytest.raises(IllegalArgumentError, match="topics of the home store only"):
            reset_share_offsets(stores, "s2", {TopicPartition("far", 0): Latest()}, dry_run=dry_run)


@pytest.mark.parametrize("reset", ["latest", "by_duration:PT1H"])
def test_a_share_group_does_not_read_a_topic_that_is_created_in_a_data_store(stores, monkeypatch, reset):
    """Its members subscribed to the name before. Their heartbeats go on, and write nothing."""
    stores.store.transact(lambda connection: save_configs(connection, "s", {"share.auto.offset.reset": reset}))
    member = ShareMember(stores, ["far"], "s")
    create_topic(stores, "far", store="east")
    monkeypatch.delattr(members, "_change")
    answer = share_heartbeat(stores, ShareHeartbeat("s", "m1", member.answer.epoch))
    assert (answer.epoch, answer.assignment, answer.by_time) == (member.answer.epoch, None, {})


def test_dead_letters_stay_in_the_home_store(stores):
    """Also if new topics are created in a data store."""
    create_topic(stores, "jobs")
    alter_settings(stores, {"topic.default.store": "east", "errors.deadletterqueue.auto.create.topics.enable": "true"})
    configs = {"share.auto.offset.reset": "earliest", "errors.deadletterqueue.topic.name": "dlq.jobs"}
    stores.store.transact(lambda connection: save_configs(connection, "workers", configs))
    append_to(stores, "jobs", "bad")
    address = stores.store.address.with_password
    with ShareConsumer("jobs", cluster=address, group_id="workers", share_acknowledgement_mode="explicit") as consumer:
        [[record]] = consumer.poll(60_000).values()
        consumer.acknowledge(record, AcknowledgeType.REJECT)
        consumer.commit_sync()
    assert [letter.value for letter in consume_all(address, 1, "dlq.jobs")] == [b"bad"]
    assert stores.store.read(find_topics)["dlq.jobs"].store_id == HOME
    with pytest.raises(InvalidConfigurationError, match="dead letters"):
        move_topic(stores, "dlq.jobs", "east")


def test_a_dead_letter_topic_in_a_data_store_is_refused_by_name(stores, log):
    create_topic(stores, "dlq.jobs", configs={"errors.deadletterqueue.group.enable": "true"}, store="east")
    with pytest.raises(DeadLetterTopicError, match="--store home"):
        usable_topic(log, "dlq.jobs")


def test_readers_do_not_poll_while_the_changes_of_a_data_store_are_not_received(stores):
    changes = stores.store.changes
    east = stores.at(EAST).store.changes
    changes.current()
    while not (changes._listening and east._listening):
        changes.wait(changes.current(), 0.1)
    listener = east._listener
    east.close()  # its listener ends, as after the loss of its connection, and tells home at last
    listener.join(LIMIT_S)
    assert not changes.wait(changes.current(), 0.3)


def test_a_topic_that_cannot_be_created_does_not_stop_the_others(stores, monkeypatch):
    """The rows of three killed creations. A coordinator removes the topic for which the store has too few brokers."""
    create = topic_copies._create

    def insert(connection):
        for name, replicas in {"needs-two-brokers": 2, "fails": 1, "created": 1}.items():
            insert_topic_row(connection, name, 1, replicas, {}, stores.store.clock(connection), store_id=EAST)

    def failing(data, topic):
        if topic.name == "fails":
            raise MetadataStoreError("damaged")
        create(data, topic)

    stores.store.transact(insert)
    monkeypatch.setattr(topic_copies, "_create", failing)
    follow_all(stores)
    states = stores.store.read(lambda connection: topics_of_store(connection, EAST))
    assert {each.topic.name: each.state for each in states.values()} == {"fails": "creating", "created": "live"}


def test_a_creation_whose_topic_a_coordinator_removes_meanwhile_fails(stores, monkeypatch):
    def removed(home, _, topic_id):
        home.store.transact(lambda connection: set_deleting(connection, topic_id, CREATING))

    monkeypatch.setattr(topic_operations, "follow", removed)
    with pytest.raises(UnknownTopicOrPartitionError):
        create_topic(stores, "t", store="east")


def test_a_creation_that_failed_late_leaves_no_copy(stores, monkeypatch):
    """The data store has committed the topic, and its answer was lost."""

    def lost(home, store_id, topic_id):
        topic_copies.follow(home, store_id, topic_id)
        home.store.transact(lambda connection: connection.execute(t.topic.update().values(state=CREATING)))
        raise MetadataStoreUnavailableError("no answer")

    monkeypatch.setattr(topic_operations, "follow", lost)
    with pytest.raises(MetadataStoreUnavailableError):
        create_topic(stores, "t", store="east")
    assert stores.store.read(find_topics) == {}
    follow_all(stores)
    for store in (stores.store, stores.at(EAST).store):
        assert store.read(lambda connection: topics_of_store(connection, EAST)) == {}
