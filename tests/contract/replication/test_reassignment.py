"""Reassignment: start, cancellation, completion, and retired replicas; on both stores."""

import pytest
import sqlalchemy as sa

from spark_log.cluster.lease import unfenced
from spark_log.cluster.log_dir import LogDir
from spark_log.errors import (
    InvalidConfigurationError,
    InvalidReplicationAssignmentError,
    NoReassignmentInProgressError,
    NotControllerError,
    PolicyViolationError,
    UnknownTopicOrPartitionError,
)
from spark_log.facts.topics import describe_topics
from spark_log.ids import TopicPartition
from spark_log.log.partitions import retired_replicas
from spark_log.log.partitions.retired_replicas import delete_retired_replicas
from spark_log.metadata import tables as t
from spark_log.replication.controller.controller import elect_leaders
from spark_log.replication.controller.reassignment_rows import list_reassignments
from spark_log.replication.controller.reassignments import begin_reassignments, finish_reassignments
from spark_log.replication.controller.topic_operations import alter_configs, create_topic, delete_topic
from spark_log.replication.replicas.catch_up import catch_up
from spark_log.replication.replicas.replica_moves import switch_reassignments
from tests.support.records import read_all
from tests.support.replicas import add_brokers, assigned, bring_back, folder_of, take_away, topic_on
from tests.support.stores import change
from tests.support.table_checks import assert_delta_is_the_log
from tests.support.topics import append

T0 = TopicPartition("t", 0)
FILES = {"inline_max_bytes": "0"}


@pytest.fixture
def brokers(cluster, tmp_path):
    """Brokers 1 to 4."""
    add_brokers(cluster, tmp_path, 2, 3, 4)
    return cluster


def partition_of(cluster, name="t", number=0):
    return describe_topics(cluster, [name])[0].partitions[number]


def copy(cluster, topic, *broker_ids, partition=0):
    for broker_id in broker_ids:
        catch_up(cluster, topic, partition, broker_id)


def finish(cluster):
    return finish_reassignments(cluster.store, unfenced)


def rows(cluster, table_):
    return cluster.store.read(lambda connection: connection.execute(sa.select(table_)).all())


def files(tmp_path, broker_id):
    return sorted(path.name for path in (tmp_path / f"broker-{broker_id}").rglob("_segments/*/*.parquet"))


def test_a_partition_moves(brokers, log, tmp_path):
    topic = topic_on(brokers, "t", [[1, 2]], **FILES)
    append(log, topic, "a", "b")
    append(log, topic, "c")
    before = partition_of(brokers)
    begin_reassignments(brokers, {T0: [2, 3]}, throttle_bytes_per_s=10_000_000)

    status = list_reassignments(brokers.store)[T0]
    assert (status.reassignment.target, status.reassignment.original) == ((2, 3), (1, 2))
    assert (status.replicas, status.in_sync, status.adding, status.removing) == ((1, 2, 3), (1, 2), (3,), (1,))
    assert status.throttle_bytes_per_s == 10_000_000
    assert status.bytes_left == sum(f.stat().st_size for f in (tmp_path / "broker-2").rglob("_segments/*/*.parquet"))
    assert finish(brokers) == [], "not before it is in sync"
    assert assigned(brokers, "t") == [[1, 2, 3]]

    copy(brokers, topic, 3)
    assert list_reassignments(brokers.store)[T0].bytes_left == 0
    assert finish(brokers) == [(topic.topic_id, 0)]
    after = partition_of(brokers)
    assert (assigned(brokers, "t"), after.isr, after.leader) == ([[2, 3]], (2, 3), 2)
    assert after.leader_epoch > before.leader_epoch
    assert (after.high_watermark, after.log_end_offset) == (3, 3)
    assert list_reassignments(brokers.store) == {}
    assert finish(brokers) == []
    assert files(tmp_path, 3) == files(tmp_path, 2)
    assert [value for _, _, value in read_all(log, topic)] == ["a", "b", "c"]
    append(log, topic, "d")
    assert len(files(tmp_path, 3)) == 3


def test_the_replication_factor_follows_partition_0(brokers, log):
    topic = topic_on(brokers, "t", [[1], [2]], **FILES)
    for partition, target in ((1, [2, 3]), (0, [1, 3])):
        begin_reassignments(brokers, {TopicPartition("t", partition): target})
        copy(brokers, topic, 3, partition=partition)
        finish(brokers)
        factor = describe_topics(brokers, ["t"])[0].topic.replication_factor
        assert factor == (1 if partition else 2), "it follows partition 0"


def test_a_new_order_of_replicas_changes_the_preferred_leader(brokers):
    topic_on(brokers, "t", [[1, 2]])
    begin_reassignments(brokers, {T0: [2, 1]})
    finish(brokers)
    assert (assigned(brokers, "t"), partition_of(brokers).leader) == ([[2, 1]], 1)


def test_a_reassignment_is_cancelled_half_way(brokers, log, tmp_path):
    topic = topic_on(brokers, "t", [[1, 2]], **FILES)
    append(log, topic, "a")
    begin_reassignments(brokers, {T0: [3, 4]})
    copy(brokers, topic, 3)
    append(log, topic, "b")
    begin_reassignments(brokers, {T0: None})
    assert (assigned(brokers, "t"), list_reassignments(brokers.store)) == ([[1, 2]], {})
    append(log, topic, "c")
    assert [value for _, _, value in read_all(log, topic)] == ["a", "b", "c"]
    assert {row.log_dir_id for row in rows(brokers, t.retired_replica)} == log_dirs_of(brokers, 3, 4)
    with pytest.raises(NoReassignmentInProgressError, match="t-0"):
        begin_reassignments(brokers, {T0: None})


def log_dirs_of(cluster, *broker_ids):
    return {info.log_dir_id for info in cluster.log_dirs().values() if info.broker_id in broker_ids}


def test_a_new_target_replaces_the_current_one(brokers, log):
    topic = topic_on(brokers, "t", [[1, 2]], **FILES)
    append(log, topic, "a")
    begin_reassignments(brokers, {T0: [2, 3]})
    begin_reassignments(brokers, {T0: [2, 4]})
    status = list_reassignments(brokers.store)[T0]
    assert (status.reassignment.target, status.reassignment.original) == ((2, 4), (1, 2))
    copy(brokers, topic, 4)
    finish(brokers)
    assert assigned(brokers, "t") == [[2, 4]]


def test_a_refused_reassignment_changes_nothing(brokers, log):
    topic_on(brokers, "t", [[1, 2], [1, 2]], min_insync_replicas="2")
    change(brokers, t.log_dir.update().where(t.log_dir.c.broker_id == 4).values(online=False))
    before = (rows(brokers, t.replica), rows(brokers, t.partition), rows(brokers, t.retired_replica))
    for target, message in (
        ([2, 9], r"t-0: replicas: there is no broker 9 in this cluster; there are 1, 2, 3, 4"),
        ([2, 4], r"t-0: replicas: broker 4 is not alive"),
        ([3, 3], r"t-0: replicas: .*\[3, 3\]"),
        ([], r"t-0: replicas: .*\[\]"),
        ([3], r"t-0: replicas: \[3\] are fewer than min\.insync\.replicas"),
        (["3", 1], r"t-0: replicas: '3' is not a broker id"),
        ([True, 2], r"True"),
        ([-1, 2], r"-1"),
        ("12", r"'12'"),
        (3, r"expected a list of broker ids, got 3"),
    ):
        with pytest.raises(InvalidReplicationAssignmentError, match=message):
            begin_reassignments(brokers, {TopicPartition("t", 1): [2, 3], T0: target})
    for partition in (TopicPartition("nope", 0), TopicPartition("t", 2), TopicPartition("t", -1)):
        with pytest.raises(UnknownTopicOrPartitionError, match=partition.topic):
            begin_reassignments(brokers, {partition: [1, 2]})
    with pytest.raises(PolicyViolationError, match="__consumer_offsets"):
        begin_reassignments(brokers, {TopicPartition("__consumer_offsets", 0): [1]})
    for throttle in (0, -1, True, "50MB", 2**63):
        with pytest.raises(InvalidConfigurationError, match="throttle_bytes_per_s"):
            begin_reassignments(brokers, {T0: [2, 3]}, throttle)
    assert list_reassignments(brokers.store) == {}
    assert (rows(brokers, t.replica), rows(brokers, t.partition), rows(brokers, t.retired_replica)) == before


def test_a_replica_is_placed_in_the_log_dir_with_the_fewest_replicas(brokers, tmp_path):
    first = log_dirs_of(brokers, 3)
    brokers.add_log_dir(3, str(tmp_path / "broker-3-more"))
    second = log_dirs_of(brokers, 3) - first
    topic_on(brokers, "t", [[3], [1], [1], [1]])
    assert {r.log_dir_id for r in partition_of(brokers).replicas} == first
    begin_reassignments(brokers, {TopicPartition("t", number): [3] for number in (1, 2, 3)})
    counts = [
        sum(replica.log_dir_id in dirs for row in range(4) for replica in partition_of(brokers, "t", row).replicas)
        for dirs in (first, second)
    ]
    assert counts == [2, 2]


def test_a_broker_fails_during_a_reassignment(brokers, log):
    topic = topic_on(brokers, "t", [[1, 2]], **FILES)
    append(log, topic, "a")
    begin_reassignments(brokers, {T0: [2, 3]})
    copy(brokers, topic, 3)
    dies = t.log_dir.update().where(t.log_dir.c.broker_id == 3)
    change(brokers, dies.values(online=False))
    assert finish(brokers) == [], "in sync by the rows, but dead"
    elect_leaders(brokers.store, unfenced)
    append(log, topic, "b")
    change(brokers, dies.values(online=True))
    assert finish(brokers) == []
    copy(brokers, topic, 3)
    finish(brokers)
    assert assigned(brokers, "t") == [[2, 3]]
    assert [value for _, _, value in read_all(log, topic)] == ["a", "b"]


def test_the_leaving_leader_fails_during_a_reassignment(brokers, log):
    topic = topic_on(brokers, "t", [[1, 2]], **FILES)
    append(log, topic, "a")
    begin_reassignments(brokers, {T0: [2, 3]})
    change(brokers, t.log_dir.update().where(t.log_dir.c.broker_id == 1).values(online=False))
    elect_leaders(brokers.store, unfenced)
    append(log, topic, "b")
    copy(brokers, topic, 3)
    finish(brokers)
    assert (assigned(brokers, "t"), partition_of(brokers).isr) == ([[2, 3]], (2, 3))
    assert [value for _, _, value in read_all(log, topic)] == ["a", "b"]


def test_a_stale_controller_switches_nothing(brokers):
    def refuses(_connection):
        raise NotControllerError("over")

    topic = topic_on(brokers, "t", [[1]])
    begin_reassignments(brokers, {T0: [2]})
    copy(brokers, topic, 2)
    with pytest.raises(NotControllerError):
        finish_reassignments(brokers.store, refuses)
    assert assigned(brokers, "t") == [[1, 2]]
    finish(brokers)
    alter_configs(brokers, "t", {"retired.file.retention.ms": "0"})
    with pytest.raises(NotControllerError):
        delete_retired_replicas(brokers, refuses)
    assert [row.deleting for row in rows(brokers, t.retired_replica)] == [False]


# retired replicas -----------------------------------------------------------------------------------------------------


@pytest.fixture
def moved(brokers, log):
    """Topic t moved from broker 3 to broker 4, with a file; a second partition stays at broker 3."""
    topic = topic_on(brokers, "t", [[3], [3]], **FILES)
    append(log, topic, "a")
    append(log, topic, "stays", partition=1)
    begin_reassignments(brokers, {T0: [4]})
    copy(brokers, topic, 4)
    finish(brokers)
    return topic


def test_files_are_kept_for_readers_and_deleted_later(brokers, moved, tmp_path):
    assert len(files(tmp_path, 3)) == 2
    assert delete_retired_replicas(brokers, unfenced) == 0
    alter_configs(brokers, "t", {"retired.file.retention.ms": "0"})
    assert delete_retired_replicas(brokers, unfenced, stopping=lambda: True) == 0
    assert len(files(tmp_path, 3)) == 2
    assert delete_retired_replicas(brokers, unfenced) == 1
    assert rows(brokers, t.retired_replica) == []
    [kept] = (tmp_path / "broker-3").rglob("_segments/*/*.parquet")
    assert kept.parent.name == "1", "the other partition's"
    assert not (kept.parents[1] / "0").exists()
    assert delete_retired_replicas(brokers, unfenced) == 0


def test_one_transaction_claims_a_limited_number_of_replicas(brokers, log, monkeypatch):
    """Appends wait for the locks of its partitions."""
    topic = topic_on(brokers, "t", [[3]] * 3, **FILES, retired_file_retention_ms="0")
    begin_reassignments(brokers, {TopicPartition("t", number): [4] for number in range(3)})
    for number in range(3):
        copy(brokers, topic, 4, partition=number)
    finish(brokers)
    lock_partitions, locked = retired_replicas.lock_partitions, []

    def lock(connection, keys):
        locked.append(len(keys))
        return lock_partitions(connection, keys)

    monkeypatch.setattr(retired_replicas, "lock_partitions", lock)
    monkeypatch.setattr(retired_replicas, "_CLAIMED_MAX", 2)
    assert delete_retired_replicas(brokers, unfenced) == 3
    assert locked == [2, 1]
    assert rows(brokers, t.retired_replica) == []


@pytest.mark.delta
def test_the_delta_table_drops_a_replica_that_left(brokers, log):
    topic = topic_on(brokers, "t", [[3], [3]], **FILES)
    for partition in (0, 1):
        append(log, topic, "a", partition=partition)
    begin_reassignments(brokers, {T0: [4]})
    copy(brokers, topic, 4)
    assert_delta_is_the_log(brokers)
    assert switch_reassignments(brokers, unfenced) == [T0]
    assert_delta_is_the_log(brokers)
    begin_reassignments(brokers, {T0: [3]})
    copy(brokers, topic, 3)
    switch_reassignments(brokers, unfenced)
    assert_delta_is_the_log(brokers)


def test_a_replica_that_returns_reuses_its_files(brokers, moved, log, tmp_path):
    begin_reassignments(brokers, {T0: [3]})
    assert rows(brokers, t.retired_replica) == []
    alter_configs(brokers, "t", {"retired.file.retention.ms": "0"})
    assert delete_retired_replicas(brokers, unfenced) == 0
    copied = catch_up(brokers, moved, 0, 3)
    assert copied.in_sync
    finish(brokers)
    assert assigned(brokers, "t") == [[3], [3]]
    assert sorted(value for _, _, value in read_all(log, moved)) == ["a", "stays"]


def test_no_replica_is_placed_in_a_log_dir_that_is_deleting_its_files(brokers, moved, tmp_path):
    change(brokers, t.retired_replica.update().values(deleting=True))
    with pytest.raises(InvalidReplicationAssignmentError, match="broker 3 is still deleting"):
        begin_reassignments(brokers, {T0: [3]})
    brokers.add_log_dir(3, str(tmp_path / "broker-3-more"))
    begin_reassignments(brokers, {T0: [3]})
    assert len(rows(brokers, t.retired_replica)) == 1
    assert delete_retired_replicas(brokers, unfenced) == 1, "the process that claimed it died: the next one continues"
    assert len(files(tmp_path, 3)) == 1


def test_an_offline_log_dir_does_not_stop_the_cleaning_of_others(brokers, moved, log, tmp_path, caplog):
    begin_reassignments(brokers, {TopicPartition("t", 1): [4], T0: [1]})
    copy(brokers, moved, 4, partition=1)
    copy(brokers, moved, 1)
    assert len(finish(brokers)) == 2
    alter_configs(brokers, "t", {"retired.file.retention.ms": "0"})
    (tmp_path / "broker-3").rename(tmp_path / "away")
    assert delete_retired_replicas(brokers, unfenced) == 1
    assert "broker-3" in caplog.text
    (tmp_path / "away").rename(tmp_path / "broker-3")
    assert delete_retired_replicas(brokers, unfenced) == 2
    assert files(tmp_path, 3) == []


def test_a_log_dir_that_is_marked_offline_is_cleaned_when_it_is_back(brokers, moved, tmp_path, monkeypatch):
    """It may hang, and is not touched: then nothing else would be cleaned."""
    begin_reassignments(brokers, {T0: [1]})
    copy(brokers, moved, 1)
    finish(brokers)
    alter_configs(brokers, "t", {"retired.file.retention.ms": "0"})
    take_away(brokers, 3)
    verified, verify = [], LogDir.verify
    monkeypatch.setattr(LogDir, "verify", lambda self, uuid: verified.append(self.uri) or verify(self, uuid))
    assert delete_retired_replicas(brokers, unfenced) == 1
    assert verified == [folder_of(brokers, 4).as_uri()]
    bring_back(brokers, 3)
    assert delete_retired_replicas(brokers, unfenced) == 1
    assert len(files(tmp_path, 3)) == 1, "the other partition's"


def test_a_topic_deleted_during_its_reassignment_stays_deleted(brokers, log, moved):
    begin_reassignments(brokers, {T0: [1, 2]})
    delete_topic(brokers, "t")
    assert finish(brokers) == []
    assert list_reassignments(brokers.store) == {}
    assert rows(brokers, t.retired_replica) == rows(brokers, t.reassignment) == rows(brokers, t.replica) == []
    create_topic(brokers, "t")
    with pytest.raises(NoReassignmentInProgressError):
        begin_reassignments(brokers, {T0: None})


def test_a_thousand_partitions_are_reassigned(brokers):
    create_topic(brokers, "t", 1_000)
    targets = {TopicPartition("t", number): [1 + number % 4] for number in range(1_000)}
    begin_reassignments(brokers, targets)
    change(
        brokers,
        t.replica.update().values(in_sync=True),  # the partitions are empty: nothing to copy
    )
    assert len(finish(brokers)) == 1_000
    assert assigned(brokers, "t") == [[1 + number % 4] for number in range(1_000)]
    assert list_reassignments(brokers.store) == {}
