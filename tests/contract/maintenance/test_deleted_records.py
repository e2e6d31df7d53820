"""Records that delete_records deletes, and replicas and leaders that lack them."""

import functools

import pytest
import sqlalchemy as sa

from spark_log import clock
from spark_log.errors import (
    OffsetOutOfRangeError,
    PolicyViolationError,
    UnknownTopicOrPartitionError,
)
from spark_log.ids import TopicPartition
from spark_log.log.append.rules import Appended
from spark_log.log.log import Records
from spark_log.log.partitions.partition_rows import read_partition
from spark_log.maintenance.client_log import ClientLog
from spark_log.maintenance.removal import retention
from spark_log.maintenance.removal.retention import apply_retention, delete_records
from spark_log.metadata import tables as t
from spark_log.replication.controller.topic_operations import create_topic, delete_topic
from spark_log.replication.replicas.catch_up import catch_up
from tests.support import topics
from tests.support.records import read_all, table
from tests.support.replicas import bring_back, copied_segments, inspect_and_elect, take_away
from tests.support.stores import change, topics_view
from tests.support.table_checks import everything_fits

FILES = {"inline.max.bytes": "0"}


OLD_MS = 1_000_000_000_000


append = functools.partial(topics.append, timestamp_ms=OLD_MS)


def state_of(cluster, topic, partition=0):
    return topics_view(cluster).store.read(lambda connection: read_partition(connection, (topic.topic_id, partition)))


def rows_of(cluster, table_):
    return topics_view(cluster).store.read(lambda connection: connection.execute(sa.select(table_)).all())


def values(log, topic):
    return [value for _, _, value in read_all(log, topic)]


def test_records_are_deleted_in_short_transactions(cluster, log, monkeypatch):
    """So that appends to other topics wait for one of them at most."""
    monkeypatch.setattr(retention, "SEGMENTS_MAX", 4)
    counts, move_log_start = [], retention._move_log_start

    def counted(*arguments):
        dropped = move_log_start(*arguments)
        counts.append(dropped.segments)
        return dropped

    monkeypatch.setattr(retention, "_move_log_start", counted)
    topic = create_topic(cluster, "t", 2, configs=FILES)
    for number in range(7):
        append(log, topic, str(number), partition=0)
    append(log, topic, "a", "b", partition=1)
    zero, one = TopicPartition("t", 0), TopicPartition("t", 1)
    with pytest.raises(OffsetOutOfRangeError):
        delete_records(cluster, {zero: 5, one: 9})
    assert not counts
    assert delete_records(cluster, {zero: 6, one: 1}) == {zero: 6, one: 1}
    assert counts == [2, 4, 0], "two for each of the two partitions, then four of one"
    assert [state_of(cluster, topic, number).log_start_offset for number in (0, 1)] == [6, 1]
    assert len(rows_of(cluster, t.retired_file)) == 6
    assert values(log, topic) == ["6", "b"]


def test_records_of_a_new_topic_are_not_deleted_with_those_of_the_old_one(cluster, log, monkeypatch):
    monkeypatch.setattr(retention, "SEGMENTS_MAX", 1)
    topic = create_topic(cluster, "t", configs=FILES)
    for number in range(3):
        append(log, topic, str(number))
    made = []

    def replace_topic(name):
        if name == "retention.committed" and not made:
            delete_topic(cluster, "t")
            new = create_topic(cluster, "t", configs=FILES)
            for number in range(5):
                append(log, new, f"new {number}")
            made.append(new)

    monkeypatch.setattr(retention, "failpoint", replace_topic)
    with pytest.raises(UnknownTopicOrPartitionError, match="was deleted or moved while its records were"):
        delete_records(cluster, {TopicPartition("t", 0): -1})
    assert values(log, made[0]) == [f"new {number}" for number in range(5)]


@pytest.mark.delta
def test_delete_records_drops_whole_segments_and_keeps_the_one_that_contains_the_offset(cluster, log, incremental):
    topic = create_topic(cluster, "t", 2, configs={**FILES, "retention.ms": "-1"})
    for first in (0, 3, 6):
        append(log, topic, f"{first}", f"{first + 1}", f"{first + 2}")
    append(log, topic, "x", partition=1)
    zero, one = TopicPartition("t", 0), TopicPartition("t", 1)
    incremental()
    assert delete_records(cluster, {zero: 2}) == {zero: 2}
    assert len(rows_of(cluster, t.segment)) == 4, "a segment goes whole or not at all"
    assert delete_records(cluster, {zero: 4, one: -1}) == {zero: 4, one: 1}
    assert [(row.partition, row.base_offset) for row in rows_of(cluster, t.segment)] == [(0, 3), (0, 6)]
    assert values(log, topic) == ["4", "5", "6", "7", "8"]
    everything_fits(cluster)
    assert delete_records(cluster, {zero: 3, one: 0}) == {zero: 4, one: 1}, "it never goes back"
    with pytest.raises(OffsetOutOfRangeError, match="9"):
        delete_records(cluster, {zero: 9, one: 9})
    assert delete_records(cluster, {zero: 9}) == {zero: 9}
    assert append(log, topic, "9") == Appended(9, 10)
    everything_fits(cluster)
    create_topic(cluster, "compacted", configs={"cleanup.policy": "compact"})
    with pytest.raises(PolicyViolationError, match=r"compacted.*cleanup\.policy"):
        delete_records(cluster, {TopicPartition("compacted", 0): 0})


@pytest.mark.delta
def test_segments_of_older_versions_below_the_log_start_are_dropped(cluster, log):
    topic = create_topic(cluster, "t", 2, configs={**FILES, "cleanup.policy": "compact"})
    for number in range(4):
        log.append(topic, [Records(0, table(f"{number}", key=b"k")), Records(1, table("x", key=b"k"))])
    change(cluster, t.partition.update().where(t.partition.c.partition == 0).values(log_start_offset=3))
    assert apply_retention(topics_view(cluster), topic).segments == 3
    assert [value for number, _, value in read_all(log, topic) if number == 0] == ["3"]
    everything_fits(cluster)


@pytest.mark.delta
def test_a_replica_that_was_offline_skips_deleted_segments(three_brokers, incremental):
    cluster = three_brokers
    log = ClientLog(cluster)
    topic = create_topic(cluster, "t", 1, 3, FILES)
    append(log, topic, "0")
    away = state_of(cluster, topic).replicas[-1].broker_id
    take_away(cluster, away)
    for number in range(1, 4):
        append(log, topic, f"{number}")
    append(log, topic, "young", timestamp_ms=clock.wall_ms())
    incremental()
    assert apply_retention(topics_view(cluster), topic).segments == 4
    state = state_of(cluster, topic)
    assert (state.log_start_offset, state.replica(away).log_end_offset) == (4, 1)
    bring_back(cluster, away)
    with copied_segments() as copied:
        replica = catch_up(cluster.of(topic), topic, 0, away)
    assert (replica.log_end_offset, replica.in_sync, len(copied)) == (5, True, 1)
    assert values(log, topic) == ["young"]
    everything_fits(cluster)
    log.close()


@pytest.mark.delta
def test_a_leader_without_the_deleted_segments_begins_at_the_log_start(three_brokers):
    """It leads by unclean election without these records, and offsets are not used twice."""
    cluster = three_brokers
    log = ClientLog(cluster)
    topic = create_topic(cluster, "t", 1, 3, {**FILES, "unclean.leader.election.enable": "true"})
    append(log, topic, "0", "1")
    *others, late = [replica.broker_id for replica in state_of(cluster, topic).replicas]
    take_away(cluster, late)
    append(log, topic, "2", "3")
    append(log, topic, "4", "5", "6")
    delete_records(cluster, {TopicPartition("t", 0): 5})
    bring_back(cluster, late)
    for broker_id in others:  # at once, before the late broker has copied anything
        take_away(cluster, broker_id)
    inspect_and_elect(cluster)
    state = state_of(cluster, topic)
    assert (state.leader, state.log_start_offset, state.log_end_offset) == (late, 5, 5)
    assert rows_of(cluster, t.segment) == []
    assert append(log, topic, "again") == Appended(5, 6)
    for broker_id in others:
        bring_back(cluster, broker_id)
        catch_up(cluster.of(topic), topic, 0, broker_id)
    assert values(log, topic) == ["again"]
    everything_fits(cluster)
    log.close()
