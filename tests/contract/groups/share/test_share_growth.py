"""Partitions are added to a topic while share groups read it: no record is missed, and each is accepted once."""

import threading
from concurrent.futures import ThreadPoolExecutor, wait

import pytest

from spark_log import ShareConsumer
from spark_log.cluster.settings import alter_settings
from spark_log.groups.share.administration import alter_group_configs
from spark_log.groups.share.looks import look
from spark_log.maintenance.client_log import ClientLog
from spark_log.replication.controller.topic_operations import add_partitions
from tests.support.share_members import ShareMember
from tests.support.stores import each_on_sqlite_last_on_postgres
from tests.support.topics import append, make

STEPS = (1, 3, 4, 8)
EACH = 5


@pytest.fixture
def quick(cluster):
    """Heartbeats are frequent, so that members notice new partitions soon."""
    names = ("group.share.min.heartbeat.interval.ms", "group.share.heartbeat.interval.ms")
    alter_settings(cluster, dict.fromkeys(names, "50"))


@each_on_sqlite_last_on_postgres("reset", [("earliest",), ("latest",)])
def test_partitions_are_added_under_load(cluster, cluster_address, quick, reset):
    """Records of a new partition may be written before any member knows it."""
    make(cluster, "t")
    alter_group_configs(cluster.store, "workers", {"share.auto.offset.reset": reset})
    consumers = [ShareConsumer("t", cluster=cluster_address, group_id="workers") for _ in range(2)]
    for consumer in consumers:
        consumer.poll()  # with `latest`, the group begins here
    accepted, written, failed = [], [], []
    expected = sum(STEPS) * EACH
    done = threading.Event()

    def consume(consumer):
        with consumer:
            consumer.set_acknowledgement_commit_callback(
                lambda offsets, error: (
                    accepted.extend(
                        (partition.partition, offset) for partition, found in offsets.items() for offset in found
                    )
                    if error is None
                    else failed.append(error)
                )
            )
            while not done.is_set() and len(accepted) < expected:
                consumer.poll(100)

    with ThreadPoolExecutor(2) as pool:
        consuming = [pool.submit(consume, consumer) for consumer in consumers]
        log = ClientLog(cluster)
        for partitions in STEPS:
            if partitions > 1:
                add_partitions(cluster, "t", partitions)
            for partition in range(partitions):
                append(log, "t", *(f"{partition}-{n}" for n in range(EACH)), partition=partition)
                before = sum(partition < count for count in STEPS if count < partitions) * EACH
                written += [(partition, before + n) for n in range(EACH)]
        log.close()
        wait(consuming, timeout=60)
        done.set()
    assert [each.result() for each in consuming] == [None, None] and not failed
    assert sorted(accepted) == sorted(written)


@each_on_sqlite_last_on_postgres("first", [("records",), ("heartbeat",)])
def test_a_partition_that_is_added_later_is_read_from_its_beginning(cluster, log, first):
    make(cluster, "t")
    append(log, "t", "not read")
    member = ShareMember(cluster)
    assert member.poll() == {}, "share.auto.offset.reset is latest"
    add_partitions(cluster, "t", 2)
    if first == "heartbeat":
        member.join()
    append(log, "t", "new", partition=1)
    member.join()
    assert len(look(cluster.store, "workers").offers) == 2
    member.poll()
    assert member.values() == {(1, 0): "new"}


@pytest.mark.on_sqlite
def test_a_member_that_does_not_know_a_partition_leaves_it_to_others(cluster, log):
    make(cluster, "t")
    old = ShareMember(cluster, member="m1")
    add_partitions(cluster, "t", 2)
    new = ShareMember(cluster, member="m2")
    append(log, "t", "new", partition=1)
    assert old.poll() == {}
    new.poll()
    assert new.values() == {(1, 0): "new"}
