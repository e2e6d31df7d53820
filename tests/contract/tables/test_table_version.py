"""The version of a table: equal while its records are in the log, different once one has been removed."""

import pytest

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.topics import Topic
from spark_log.errors import UnknownTopicOrPartitionError
from spark_log.ids import OffsetRange, TopicPartition
from spark_log.maintenance.client_log import ClientLog
from spark_log.maintenance.removal.retention import delete_records
from spark_log.replication.controller.topic_operations import create_topic, delete_topic
from spark_log.spark.streams.table_version import PartitionVersion, read_version
from tests.support.records import append_keyed
from tests.support.replicas import truncate
from tests.support.topics import compact_now

pytestmark = pytest.mark.on_sqlite


@pytest.fixture
def planes(cluster: Cluster, log: ClientLog) -> Topic:
    """Partition 0: a, b, a in the tail; partition 1: nothing."""
    configs = {"cleanup.policy": "compact,delete", "delta.max.lag.ms": "-1"}  # only the tests seal the tail
    topic = create_topic(cluster, "planes", 2, configs=configs)
    assert topic is not None
    append_keyed(log, topic, (b"a", b"1"), (b"b", b"1"))
    append_keyed(log, topic, (b"a", b"2"))
    return topic


def test_appends_and_seals_keep_a_version_equal(cluster: Cluster, log: ClientLog, planes: Topic) -> None:
    first = read_version(log, "planes")
    assert (first.topic_uuid, first.partitions, first.records) == (
        planes.uuid,
        {0: PartitionVersion(0, 3, 0), 1: PartitionVersion(0, 0, 0)},
        3,
    )
    append_keyed(log, planes, (b"c", b"1"))
    append_keyed(log, planes, (b"m", b"1"), partition=1)
    assert log.seal(planes, [0, 1]) == 2  # one file extends beyond the first version
    assert read_version(log, "planes", first) == first
    second = read_version(log, "planes")
    assert second.since(first) == {0: OffsetRange(3, 4), 1: OffsetRange(0, 1)}


def test_compaction_changes_the_version(cluster: Cluster, log: ClientLog, planes: Topic) -> None:
    first = read_version(log, "planes")
    append_keyed(log, planes, (b"c", b"1"))
    compact_now(cluster, "planes")
    gone = read_version(log, "planes", first)
    assert gone.partitions == {0: PartitionVersion(0, 3, 1), 1: PartitionVersion(0, 0, 0)}
    second = read_version(log, "planes")
    assert (second.since(first), second.records) == (None, 3)
    append_keyed(log, planes, (b"d", b"1"))
    log.seal(planes, [0])
    assert read_version(log, "planes", second) == second
    assert read_version(log, "planes").since(second) == {0: OffsetRange(4, 5)}, (
        "new records are known again after compaction"
    )


def test_a_new_log_start_changes_the_version(cluster: Cluster, log: ClientLog, planes: Topic) -> None:
    first = read_version(log, "planes")
    delete_records(cluster, {TopicPartition("planes", 0): 1})
    assert read_version(log, "planes", first) != first
    assert read_version(log, "planes").since(first) is None
    delete_records(cluster, {TopicPartition("planes", 0): 3})
    assert read_version(log, "planes", first).partitions[0] == PartitionVersion(3, 3, 0)


def test_a_recreated_topic_has_a_different_version(cluster: Cluster, log: ClientLog, planes: Topic) -> None:
    first = read_version(log, "planes")
    delete_topic(cluster, "planes")
    with pytest.raises(UnknownTopicOrPartitionError):
        read_version(log, "planes", first)
    again = create_topic(cluster, "planes", 1)
    assert again is not None
    append_keyed(log, again, (b"a", b"1"), (b"b", b"1"), (b"a", b"2"))
    assert read_version(log, "planes", first) != first
    assert read_version(log, "planes").since(first) is None


@pytest.mark.parametrize("regrown", [0, 1, 4], ids=["shorter", "as long", "longer"])
def test_a_truncation_changes_the_version(cluster: Cluster, log: ClientLog, planes: Topic, regrown: int) -> None:
    first = read_version(log, "planes")
    truncate(cluster, "planes", 2)
    for number in range(regrown):
        append_keyed(log, planes, (b"a", b"new %d" % number))
    assert read_version(log, "planes", first) != first
    second = read_version(log, "planes")
    assert second != first
    assert second.since(first) is None
    assert second.diverges_from(first)
    append_keyed(log, planes, (b"b", b"2"))
    assert read_version(log, "planes", second) == second
    third = read_version(log, "planes")
    assert third.since(second) == {0: OffsetRange(2 + regrown, 3 + regrown)}
    assert not third.diverges_from(second)


def test_a_truncation_above_a_version_keeps_it_equal(cluster: Cluster, log: ClientLog, planes: Topic) -> None:
    first = read_version(log, "planes")
    append_keyed(log, planes, (b"a", b"lost"))
    truncate(cluster, "planes", 3)
    append_keyed(log, planes, (b"a", b"3"))
    assert read_version(log, "planes", first) == first
    assert read_version(log, "planes").since(first) == {0: OffsetRange(3, 4)}
