"""Dead letters of share groups: one for each record that is rejected or was delivered too often, and none is lost."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from spark_log import AcknowledgeType, ShareConsumer
from spark_log.cluster.settings import alter_settings
from spark_log.groups.share import rows
from spark_log.groups.share.dead_letters import DeadLetters
from spark_log.groups.share.looks import look
from spark_log.ids import TopicPartition
from spark_log.maintenance.client_log import ClientLog
from spark_log.maintenance.removal.retention import delete_records
from spark_log.replication.controller.topic_operations import alter_configs, create_topic, delete_topic
from tests.support.share_members import finish
from tests.support.topics import consume_all

letters = partial(consume_all, topic="dlq.jobs")

ENABLED = {"errors.deadletterqueue.group.enable": "true"}


@pytest.fixture
def configure(cluster):
    """Set configs of group `workers`, whose dead letters go to topic dlq.jobs."""

    def set_configs(**configs):
        named = {name.replace("_", "."): str(value) for name, value in configs.items()}
        base = {"share.auto.offset.reset": "earliest", "errors.deadletterqueue.topic.name": "dlq.jobs"}
        cluster.store.transact(lambda connection: rows.save_configs(connection, "workers", {**base, **named}))

    set_configs()
    return set_configs


@pytest.fixture
def worker(cluster_address, configure):
    with ShareConsumer(
        "jobs", cluster=cluster_address, group_id="workers", share_acknowledgement_mode="explicit"
    ) as consumer:
        yield consumer


def send(produce, *values, partition=0):
    producer = produce()
    for value in values:
        producer.send("jobs", value, key=b"key", headers=[("mine", b"kept")], partition=partition).get()


def facts_of(letter):
    return {name.removeprefix("__dlq.errors."): value.decode() for name, value in letter.headers}


def archiving(cluster):
    return sum(offer.archiving for offer in look(cluster.store, "workers").offers.values())


def test_a_rejected_record_is_copied_with_its_headers(cluster, cluster_address, produce, worker):
    create_topic(cluster, "jobs", partitions=3)
    create_topic(cluster, "dlq.jobs", partitions=2, configs=ENABLED)
    send(produce, b"bad", partition=1)
    finish(worker, AcknowledgeType.REJECT)
    [letter] = letters(cluster_address, 1)
    assert (letter.key, letter.value, letter.partition) == (b"key", b"bad", 1)
    assert facts_of(letter) == {
        "mine": "kept", "topic": "jobs", "partition": "1", "offset": "0", "group": "workers", "delivery.count": "1",
        "message": "Offset rejected by client.", "spark-log.dlq.cause": "rejected",
    }  # fmt: skip
    assert archiving(cluster) == 0


@pytest.mark.on_sqlite
def test_a_record_that_is_released_too_often_has_a_letter(cluster, cluster_address, produce, worker, configure):
    configure(share_delivery_count_limit=2, errors_deadletterqueue_copy_record_enable="false")
    create_topic(cluster, "jobs")
    create_topic(cluster, "dlq.jobs", configs=ENABLED)
    send(produce, b"poison")
    finish(worker, AcknowledgeType.RELEASE, 2)
    [letter] = letters(cluster_address, 1)
    assert (letter.key, letter.value) == (None, None)
    facts = facts_of(letter)
    assert facts["message"] == "Offset delivery count exceeded the threshold."
    assert (facts["delivery.count"], facts["spark-log.dlq.cause"]) == ("2", "delivery-count")


@pytest.mark.on_sqlite
def test_a_record_that_is_too_large_with_its_letter_leaves_a_pointer(cluster, cluster_address, produce, worker):
    """It does not keep the letters of the others."""
    most = {"max.message.bytes": "1000"}
    create_topic(cluster, "jobs", configs=most)
    create_topic(cluster, "dlq.jobs", configs={**ENABLED, **most})
    send(produce, b"first", b"x" * 900, b"last")
    finish(worker, AcknowledgeType.REJECT, 3)
    found = letters(cluster_address, 3)
    assert [letter.value for letter in found] == [b"first", None, b"last"]
    assert [facts_of(letter)["offset"] for letter in found] == ["0", "1", "2"]
    assert archiving(cluster) == 0


@pytest.mark.parametrize(
    "trouble",
    [
        "missing",
        pytest.param("not enabled", marks=pytest.mark.on_sqlite),
        pytest.param("wrong prefix", marks=pytest.mark.on_sqlite),
    ],
)
def test_records_wait_while_the_topic_cannot_be_used(
    cluster, cluster_address, produce, worker, configure, caplog, trouble
):
    create_topic(cluster, "jobs")
    if trouble == "not enabled":
        create_topic(cluster, "dlq.jobs")
    if trouble == "wrong prefix":
        alter_settings(cluster, {"errors.deadletterqueue.topic.name.prefix": "letters."})
        worker.cluster.store.forget_settings()
        create_topic(cluster, "dlq.jobs", configs=ENABLED)
    send(produce, b"bad")
    finish(worker, AcknowledgeType.REJECT)
    assert archiving(cluster) == 1
    assert "dead letters wait" in caplog.text
    assert worker.poll() == {}
    if trouble == "missing":
        create_topic(cluster, "dlq.jobs", configs=ENABLED)
    if trouble == "not enabled":
        alter_configs(cluster, "dlq.jobs", ENABLED)
    if trouble == "wrong prefix":
        alter_settings(cluster, {"errors.deadletterqueue.topic.name.prefix": None})
    letter_writer = DeadLetters(lambda: ClientLog(cluster))
    [key] = look(cluster.store, "workers").offers
    assert letter_writer.write("workers", key) == 1
    letter_writer.close()
    [letter] = letters(cluster_address, 1)
    assert letter.value == b"bad"


@pytest.mark.on_sqlite
def test_clearing_the_config_archives_waiting_records(cluster, produce, worker, configure):
    create_topic(cluster, "jobs")
    send(produce, b"bad", b"good")
    finish(worker, AcknowledgeType.REJECT, 2)
    assert archiving(cluster) == 2
    configure(errors_deadletterqueue_topic_name="")
    send(produce, b"next")
    finish(worker, AcknowledgeType.ACCEPT)
    assert archiving(cluster) == 0


@pytest.mark.on_sqlite
def test_a_missing_topic_is_created_if_the_cluster_allows_it(cluster, cluster_address, produce, worker):
    alter_settings(cluster, {"errors.deadletterqueue.auto.create.topics.enable": "true"})
    worker.cluster.store.forget_settings()
    create_topic(cluster, "jobs")
    send(produce, b"bad")
    finish(worker, AcknowledgeType.REJECT)
    assert [letter.value for letter in letters(cluster_address, 1)] == [b"bad"]


def test_a_record_that_is_gone_leaves_a_pointer(cluster, cluster_address, produce, worker):
    create_topic(cluster, "jobs")
    send(produce, b"bad", b"worse")
    finish(worker, AcknowledgeType.REJECT, 2)  # no topic yet
    delete_records(cluster, {TopicPartition("jobs", 0): 1})
    create_topic(cluster, "dlq.jobs", configs=ENABLED)
    writer = DeadLetters(lambda: ClientLog(cluster))
    [key] = look(cluster.store, "workers").offers
    assert writer.write("workers", key) == 2
    writer.close()
    gone, copied = letters(cluster_address, 2)
    assert (gone.value, facts_of(gone)["spark-log.dlq.cause"]) == (None, "missing")
    assert (copied.value, facts_of(copied)["spark-log.dlq.cause"]) == (b"worse", "rejected")


def test_letters_of_a_deleted_topic_are_not_written(cluster, produce, worker):
    create_topic(cluster, "jobs")
    send(produce, b"bad")
    finish(worker, AcknowledgeType.REJECT)
    [key] = look(cluster.store, "workers").offers
    delete_topic(cluster, "jobs")
    create_topic(cluster, "dlq.jobs", configs=ENABLED)
    writer = DeadLetters(lambda: ClientLog(cluster))
    assert writer.write("workers", key) == 0
    writer.close()


@pytest.mark.on_sqlite
def test_a_dead_letter_topic_has_no_letters_of_its_own(cluster, cluster_address, configure):
    create_topic(cluster, "dlq.jobs", configs=ENABLED)
    log = ClientLog(cluster)
    from spark_log import Producer

    with Producer(cluster=cluster_address) as producer:
        producer.send("dlq.jobs", b"bad").get()
    log.close()
    with ShareConsumer(
        "dlq.jobs", cluster=cluster_address, group_id="workers", share_acknowledgement_mode="explicit"
    ) as consumer:
        finish(consumer, AcknowledgeType.REJECT)
    assert archiving(cluster) == 0
    assert len(letters(cluster_address, 1)) == 1


def test_two_writers_of_the_same_letters_append_them_once(cluster, cluster_address, produce, worker):
    create_topic(cluster, "jobs")
    send(produce, *(b"%d" % number for number in range(20)))
    finish(worker, AcknowledgeType.REJECT, 20)
    create_topic(cluster, "dlq.jobs", configs={**ENABLED, "inline.max.bytes": "0"})  # files, of which one is deleted
    [key] = look(cluster.store, "workers").offers
    writers = [DeadLetters(lambda: ClientLog(cluster)) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda writer: writer.write("workers", key), writers))
    for writer in writers:
        writer.close()
    found = letters(cluster_address, 20)
    assert sorted(int(letter.value) for letter in found) == list(range(20))
    assert archiving(cluster) == 0
