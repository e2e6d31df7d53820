"""Mirrors of topics whose records were truncated, or that were made again, in the source or in the target."""

import pytest

from spark_log.cluster.settings import alter_settings
from spark_log.errors import (
    DataLossError,
    OffsetOutOfRangeError,
)
from spark_log.groups.committed_offsets import Commit, commit_offsets, committed_offsets
from spark_log.ids import TopicPartition
from spark_log.replication.controller.topic_operations import create_topic, delete_topic
from spark_log.spark.datasource.options.topic_choice import SubscribeTopics
from spark_log.spark.mirror.mirror_groups import copy_groups
from tests.support.mirroring import everything, mirror_all, without_spark
from tests.support.replicas import truncate
from tests.support.share_members import ShareMember
from tests.support.topics import append_to

pytestmark = pytest.mark.on_sqlite


def append(cluster, partition, *values, topic="t", **columns):
    append_to(cluster, topic, *values, partition=partition, **columns)


@pytest.fixture
def copied(source, target, mirrors):
    """A mirror that has copied records 0 to 4, one segment each, into partition 3."""
    mirror = mirrors(source, target)
    for number in range(5):
        append(source, 3, f"{number}", timestamp_ms=number)
        mirror_all(mirror)
    return mirror


def in_partition_3(cluster):
    return [row["value"].decode() for row in everything(cluster) if row["partition"] == 3]


def regrow(source, *values, first=2):
    truncate(source, "t", first, partition=3)
    for number, value in enumerate(values, first):
        append(source, 3, value, timestamp_ms=number)


@pytest.mark.parametrize("values", [(), ("new",), ("new", "3", "4", "5", "6")], ids=["empty", "shorter", "longer"])
@pytest.mark.parametrize("restarted", [False, True])
def test_records_truncated_in_the_source_after_they_were_copied_are_data_loss(
    source, target, mirrors, copied, restarted, values, monkeypatch
):
    monkeypatch.setattr(
        "spark_log.spark.mirror.mirror_comparison._COMPARED_OFFSETS", 1
    )  # the last record is the same in both lineages
    regrow(source, *values)
    mirror = mirrors(source, target) if restarted else copied
    with pytest.raises(
        DataLossError, match=r"t-3: .* \[2, 5\) .* truncated in the source by an unclean leader election"
    ):
        mirror.step(without_spark)
    assert in_partition_3(target) == ["0", "1", "2", "3", "4"]
    allowing = mirrors(source, target, allow_data_loss=True)
    mirror_all(allowing)
    assert in_partition_3(target) == ["0", "1", "2", "3", "4", *values[3:]]
    for number in range(2 + len(values), 7):
        append(source, 3, f"{number}")
    mirror_all(allowing)
    mirror_all(mirrors(source, target))
    assert in_partition_3(target) == ["0", "1", "2", "3", "4", "5", "6"]


def test_records_truncated_in_the_source_before_they_were_copied_are_not_missed(source, target, mirrors, copied):
    append(source, 3, "never copied")
    regrow(source, "5", "6", first=5)
    mirror_all(copied)
    assert in_partition_3(target) == in_partition_3(source) == [f"{number}" for number in range(7)]


def test_a_truncation_of_the_source_during_a_step(source, target, mirrors, copied):
    def slow(transfers):
        done = without_spark(transfers)
        if in_partition_3(source)[-1] == "6":
            regrow(source, "6 anew", "7 anew", first=6)
        return done

    append(source, 3, "5")
    append(source, 3, "6")
    while copied.step(slow):
        pass
    assert in_partition_3(target) == in_partition_3(source) == ["0", "1", "2", "3", "4", "5", "6 anew", "7 anew"]


def test_records_truncated_in_the_target_are_copied_again(source, target, mirrors, copied):
    append(source, 3, "5")
    truncate(target, "t", 2, partition=3)
    mirror_all(copied)
    assert in_partition_3(target) == in_partition_3(source) == [f"{number}" for number in range(6)]
    truncate(target, "t", 2, partition=3)
    for value in ("a", "b", "c", "d"):
        append(target, 3, f"foreign {value}")
    with pytest.raises(OffsetOutOfRangeError, match="t-3: the record at offset 2 of the target is not the source's"):
        copied.step(without_spark)


def test_a_source_topic_recreated_while_no_mirror_ran(source, target, mirrors, copied):
    delete_topic(source, "t")
    create_topic(source, "t", 4)
    for number in range(9):
        append(source, 3, f"{number}", timestamp_ms=number)  # the compared records are equal
    with pytest.raises(DataLossError, match="t-0: the source's topic was deleted and created again"):
        mirrors(source, target).step(without_spark)
    assert in_partition_3(target) == ["0", "1", "2", "3", "4"]


def test_group_offsets_of_recreated_topics_are_not_copied(source, target, mirrors, copied):
    partition = TopicPartition("t", 3)
    commit_offsets(source.store, "g", {partition: 4})
    pairs = copied.topics.pairs()
    delete_topic(source, "t")
    create_topic(source, "t", 4)
    commit_offsets(source.store, "g", {partition: 5})
    assert copy_groups(source, target, pairs) == {}, "of the source"
    commit_offsets(source.store, "g", {partition: 1})
    create_topic(source, "u", 4)
    new = mirrors(source, target, SubscribeTopics(("u",))).topics.pairs()
    commit_offsets(source.store, "g", {TopicPartition("u", 3): 0})
    delete_topic(target, "u")
    assert copy_groups(source, target, new) == {}, "deleted"
    create_topic(target, "u", 4)
    assert copy_groups(source, target, new) == {}, "of the target"
    assert committed_offsets(target.store, "g") == {}


def test_a_group_that_the_target_cannot_take_stops_no_other_group(source, target, mirrors, copied, caplog):
    partition = TopicPartition("t", 3)
    ShareMember(target, group="a share group")
    alter_settings(target, {"offset.metadata.max.bytes": "10"})
    commit_offsets(source.store, "a share group", {partition: 4})
    commit_offsets(source.store, "metadata", {partition: Commit(4, "x" * 11)})
    commit_offsets(source.store, "z", {partition: 4})
    for copies in ({"z": 1}, {}):
        assert copy_groups(source, target, copied.topics.pairs()) == copies
    assert [text.partition(": ")[0] for text in caplog.messages] == ["group 'a share group'", "group 'metadata'"]
    assert committed_offsets(target.store, "z") == {partition: 4}
