"""Transactions with three replicas: after any event before the commit, it is complete or has no effect."""

import random
import shutil

import kafka.errors
import pytest
from kafka.structs import OffsetAndMetadata, TopicPartition

from spark_log.cluster.lease import unfenced
from spark_log.facts.topics import describe_topics
from spark_log.groups.committed_offsets import committed_offsets
from spark_log.replication.controller.reassignments import begin_reassignments
from spark_log.replication.replicas.catch_up import catch_up
from spark_log.replication.replicas.replica_moves import switch_reassignments
from tests.support.replicas import add_brokers, bring_back, inspect_and_elect, take_away, topic_on
from tests.support.table_checks import assert_replicas_are_whole
from tests.support.topics import contents
from tests.support.waiting import LIMIT_S

pytestmark = [pytest.mark.usefixtures("resource_oracle"), pytest.mark.on_sqlite]

LARGE = random.Random(0).randbytes(20_000)
FILE, BLOB = "file", "blob"
INPUT = TopicPartition(BLOB, 0)


@pytest.fixture
def cluster(three_brokers):
    topic_on(three_brokers, FILE, [[1, 2, 3]], inline_max_bytes="1000", min_insync_replicas="2")
    topic_on(three_brokers, BLOB, [[2, 3, 1]])
    return three_brokers


@pytest.fixture
def producer(cluster, produce):
    producer = produce(transactional_id="t", max_block_ms=2_000)
    producer.init_transactions()
    return producer


def send(producer, number):
    """A transaction before its commit: a file and a blob are pending, and another blob is not sent yet."""
    producer.begin_transaction()
    producer.send(FILE, LARGE + b"%d" % number).get(timeout=LIMIT_S)
    producer.send(BLOB, b"%d" % number).get(timeout=LIMIT_S)
    producer.send_offsets_to_transaction({INPUT: OffsetAndMetadata(number, "", -1)}, "g")


def committed_up_to(cluster, log, number):
    assert contents(log, FILE) == {0: [LARGE + b"%d" % n for n in range(1, number + 1)]}
    assert contents(log, BLOB) == {0: [b"%d" % n for n in range(1, number + 1)]}
    assert committed_offsets(cluster.store, "g") == {INPUT: number}
    assert_replicas_are_whole(cluster)


def isr(cluster):
    return sorted(describe_topics(cluster, [FILE])[0].partitions[0].isr)


def test_replicas_leave_and_return_before_the_commit(cluster, log, producer, tmp_path):
    send(producer, 1)
    take_away(cluster, 1)
    assert isr(cluster) == [2, 3], "another one leads"
    producer.commit_transaction()
    committed_up_to(cluster, log, 1)

    send(producer, 2)
    bring_back(cluster, 1)
    for name in (FILE, BLOB):
        catch_up(cluster, log.find_topic(name), 0, 1)
    assert isr(cluster) == [1, 2, 3]
    producer.commit_transaction()  # the file is copied to the replica that has returned
    committed_up_to(cluster, log, 2)

    send(producer, 3)
    shutil.rmtree(tmp_path / "d2")
    (tmp_path / "d2").mkdir()
    inspect_and_elect(cluster)
    producer.commit_transaction()
    committed_up_to(cluster, log, 3)

    send(producer, 4)
    (tmp_path / "d3").rename(tmp_path / "gone")  # not detected yet
    producer.commit_transaction()
    inspect_and_elect(cluster)
    committed_up_to(cluster, log, 4)


def test_a_partition_is_reassigned_before_the_commit(cluster, log, producer, tmp_path):
    add_brokers(cluster, tmp_path, 4)
    send(producer, 1)
    producer.commit_transaction()
    send(producer, 2)
    begin_reassignments(cluster, {TopicPartition(FILE, 0): [4, 3], TopicPartition(BLOB, 0): [4, 1]})
    for name in (FILE, BLOB):
        for broker in (4, 3, 1):
            if broker in assigned_to(cluster, name):
                catch_up(cluster, log.find_topic(name), 0, broker)
    switch_reassignments(cluster, unfenced)
    assert (assigned_to(cluster, FILE), assigned_to(cluster, BLOB)) == ({4, 3}, {4, 1})
    producer.commit_transaction()
    committed_up_to(cluster, log, 2)


def assigned_to(cluster, name):
    return {replica.broker_id for replica in describe_topics(cluster, [name])[0].partitions[0].replicas}


@pytest.mark.parametrize("lost", [(1, 2), (1, 2, 3)], ids=["too few are left", "none is left"])
def test_a_commit_that_fails_without_replicas_can_be_retried(cluster, log, producer, lost):
    for number in (1, 2):
        send(producer, number)
        for broker in lost:
            take_away(cluster, broker)
        with pytest.raises(kafka.errors.KafkaError) as raised:
            producer.commit_transaction()
        assert raised.value.retriable
        assert committed_offsets(cluster.store, "g") == ({} if number == 1 else {INPUT: 1})
        for broker in lost:
            bring_back(cluster, broker)
        inspect_and_elect(cluster)
        for name in (FILE, BLOB):
            for broker in lost:
                catch_up(cluster, log.find_topic(name), 0, broker)
        if number == 1:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
    committed_up_to(cluster, log, 1)
