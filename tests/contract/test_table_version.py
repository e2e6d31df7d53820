"""What a table knows of its topic: the same while its records are there, another once one is taken out."""

import pytest

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.topics import Topic, create_topic, delete_topic
from spark_log.errors import UnknownTopicOrPartitionError
from spark_log.ids import OffsetRange, TopicPartition
from spark_log.log.log import Log
from spark_log.maintenance.removal.log_start import delete_records
from spark_log.streams.table_version import Mark, look
from tests.support.keyed_log import append_keyed
from tests.support.table_topics import compact_now
from tests.support.truncation import truncate


@pytest.fixture
def planes(cluster: Cluster, log: Log) -> Topic:
    """Partition 0: a, b, a in the tail; partition 1: nothing."""
    topic = create_topic(cluster, "planes", 2, configs={"cleanup.policy": "compact,delete"})
    assert topic is not None
    append_keyed(log, topic, (b"a", b"1"), (b"b", b"1"))
    append_keyed(log, topic, (b"a", b"2"))
    return topic


def test_appending_and_sealing_take_nothing_out(cluster: Cluster, log: Log, planes: Topic) -> None:
    found, first = look(log, "planes")
    assert (found.name, first.marks, first.records) == ("planes", {0: Mark(0, 3, 0), 1: Mark(0, 0, 0)}, 3)
    append_keyed(log, planes, (b"c", b"1"))
    append_keyed(log, planes, (b"m", b"1"), partition=1)
    assert log.seal(planes, [0, 1]) == 2  # one file goes on beyond what was seen first
    assert look(log, "planes", first)[1] == first
    second = look(log, "planes")[1]
    assert second.since(first) == {0: OffsetRange(3, 4), 1: OffsetRange(0, 1)}


def test_compaction_takes_records_out(cluster: Cluster, log: Log, planes: Topic) -> None:
    first = look(log, "planes")[1]
    append_keyed(log, planes, (b"c", b"1"))
    compact_now(cluster, "planes")
    gone = look(log, "planes", first)[1]
    assert gone.marks == {0: Mark(0, 3, 1), 1: Mark(0, 0, 0)}
    second = look(log, "planes")[1]
    assert (second.since(first), second.records) == (None, 3)
    append_keyed(log, planes, (b"d", b"1"))
    log.seal(planes, [0])
    assert look(log, "planes", second)[1] == second
    assert look(log, "planes")[1].since(second) == {0: OffsetRange(4, 5)}, "from then on, appends are known again"


def test_the_log_start_moves(cluster: Cluster, log: Log, planes: Topic) -> None:
    first = look(log, "planes")[1]
    delete_records(cluster, {TopicPartition("planes", 0): 1})
    assert look(log, "planes", first)[1] != first
    assert look(log, "planes")[1].since(first) is None
    delete_records(cluster, {TopicPartition("planes", 0): 3})
    assert look(log, "planes", first)[1].marks[0] == Mark(3, 3, 0)


def test_a_topic_that_is_made_again_is_another(cluster: Cluster, log: Log, planes: Topic) -> None:
    first = look(log, "planes")[1]
    delete_topic(cluster, "planes")
    with pytest.raises(UnknownTopicOrPartitionError):
        look(log, "planes", first)
    again = create_topic(cluster, "planes", 1)
    assert again is not None
    append_keyed(log, again, (b"a", b"1"), (b"b", b"1"), (b"a", b"2"))
    assert look(log, "planes", first)[1] != first
    assert look(log, "planes")[1].since(first) is None


@pytest.mark.parametrize("regrown", [0, 1, 4], ids=["shorter", "as long", "longer"])
def test_a_truncated_log_is_another(cluster: Cluster, log: Log, planes: Topic, regrown: int) -> None:
    first = look(log, "planes")[1]
    truncate(cluster, "planes", 2)
    for number in range(regrown):
        append_keyed(log, planes, (b"a", b"new %d" % number))
    assert look(log, "planes", first)[1] != first
    second = look(log, "planes")[1]
    assert second != first
    assert second.since(first) is None
    assert second.diverges_from(first)
    append_keyed(log, planes, (b"b", b"2"))
    assert look(log, "planes", second)[1] == second
    third = look(log, "planes")[1]
    assert third.since(second) == {0: OffsetRange(2 + regrown, 3 + regrown)}
    assert not third.diverges_from(second)


def test_a_log_truncated_above_a_version_has_the_same_rows(cluster: Cluster, log: Log, planes: Topic) -> None:
    first = look(log, "planes")[1]
    append_keyed(log, planes, (b"a", b"lost"))
    truncate(cluster, "planes", 3)
    append_keyed(log, planes, (b"a", b"3"))
    assert look(log, "planes", first)[1] == first
    assert look(log, "planes")[1].since(first) == {0: OffsetRange(3, 4)}
