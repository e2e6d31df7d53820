"""Elections on both stores: records that they may lose, brokers that are dead, and terms that have ended."""

from pathlib import Path

import pytest
import sqlalchemy as sa

from spark_log.cluster.brokers import BrokerSession
from spark_log.cluster.lease import unfenced
from spark_log.cluster.topics import delete_topic_rows, set_deleting
from spark_log.config import ClusterSettings
from spark_log.config.values import LEASE_MS_MAX
from spark_log.errors import (
    InvalidReplicationFactorError,
    NotControllerError,
    NotLeaderForPartitionError,
    UnsafePathError,
)
from spark_log.facts.topics import describe_topics
from spark_log.log.append.rules import (
    Appended,
)
from spark_log.log.log import Records
from spark_log.log.partitions.truncations import list_truncations
from spark_log.maintenance.client_log import ClientLog
from spark_log.maintenance.coordinator.coordinator import Coordinator
from spark_log.metadata import tables as t
from spark_log.replication.controller.controller import elect_leaders, fallback_term
from spark_log.replication.controller.log_dir_inspection import inspect_log_dirs
from spark_log.replication.controller.topic_operations import create_topic, delete_topic
from tests.support.records import read_all, table
from tests.support.waiting import wait_until

FILES = {"inline.max.bytes": "0"}
"""Every append is a file."""


@pytest.fixture
def cluster(three_brokers):
    return three_brokers


@pytest.fixture
def topic(cluster):
    """A topic with a replica on each broker."""
    return create_topic(cluster, "t", replication_factor=3, configs=FILES)


def partition(cluster, topic, number=0):
    return describe_topics(cluster, [topic.name])[0].partitions[number]


def inspect_and_elect(cluster):
    inspect_log_dirs(cluster, unfenced)
    return elect_leaders(cluster.store, unfenced)


def append(log, topic, *values, acks="all"):
    (outcome,) = log.append(topic, [Records(0, table(*values))], acks=acks)
    return outcome


def lose(cluster, broker, tmp_path) -> Path:
    gone = tmp_path / f"away{broker}"
    (tmp_path / f"d{broker}").rename(gone)
    return gone


def test_truncated_records_of_acks_1_are_recorded_when_the_leader_is_lost(cluster, topic, tmp_path):
    log = ClientLog(cluster)
    append(log, topic, "a")
    leader = partition(cluster, topic).leader
    cluster.store.transact(
        lambda c: c.execute(t.broker.update().values(served=True, lease_until_ms=0, lease_clock_epoch=""))
    )
    cluster.store.transact(
        lambda c: c.execute(t.broker.update().where(t.broker.c.broker_id == leader).values(served=False))
    )
    append(log, topic, "lost 1", "lost 2", acks=1)
    assert partition(cluster, topic).high_watermark == 1, (
        "no process copies it to the followers: they are served and dead"
    )
    lose(cluster, leader, tmp_path)  # before the followers are embedded again: the log would copy the records to them
    cluster.store.transact(lambda c: c.execute(t.broker.update().values(served=False)))
    done = inspect_and_elect(cluster)
    assert len(done.truncations) == 1
    state = partition(cluster, topic)
    assert state.leader != leader and (state.log_end_offset, state.high_watermark) == (1, 1)
    with cluster.store.snapshot() as connection:
        (row,) = connection.execute(sa.select(t.truncation)).all()
    assert (row.start_offset, row.end_offset, row.record_count, row.unclean) == (1, 3, 2, False)
    assert append(log, topic, "b") == Appended(1, 2)
    assert [value for _, _, value in read_all(log, topic)] == ["a", "b"]
    log.close()


@pytest.mark.parametrize("allowed", [False, True])
def test_only_an_unclean_election_may_lose_acknowledged_records(cluster, log, tmp_path, allowed):
    configs = {**FILES, "unclean.leader.election.enable": str(allowed).lower()}
    topic = create_topic(cluster, "t", replication_factor=2, configs=configs)
    append(log, topic, "a")
    first, second = (replica.broker_id for replica in partition(cluster, topic).replicas)
    away = lose(cluster, second, tmp_path)
    append(log, topic, "b")
    lose(cluster, first, tmp_path)
    away.rename(tmp_path / f"d{second}")
    inspect_and_elect(cluster)
    state = partition(cluster, topic)
    if allowed:
        assert state.leader == second and (state.log_end_offset, state.high_watermark) == (1, 1)
        [truncation] = list_truncations(cluster.store)
        assert truncation.unclean and truncation.seen_count == 1
        assert append(log, topic, "c") == Appended(1, 2)
        assert [value for _, _, value in read_all(log, topic)] == ["a", "c"]
    else:
        assert state.leader is None and state.isr == (first,)
        with pytest.raises(NotLeaderForPartitionError, match="no leader"):
            append(log, topic, "c")
        (tmp_path / f"away{first}").rename(tmp_path / f"d{first}")
        inspect_and_elect(cluster)
        assert isinstance(append(log, topic, "c"), Appended)
        assert [value for _, _, value in read_all(log, topic)] == ["a", "b", "c"]


def only_a_late_replica(cluster, log, tmp_path, *names):
    """Topics whose only live replica, of broker 3, lacks their last record; it may be elected."""
    configs = {**FILES, "unclean.leader.election.enable": "true"}
    topics = [create_topic(cluster, name, replication_factor=3, configs=configs) for name in names]
    for topic in topics:
        append(log, topic, "a")
    away = lose(cluster, 3, tmp_path)
    for topic in topics:
        append(log, topic, "b")
    for broker in (1, 2):
        lose(cluster, broker, tmp_path)
    away.rename(tmp_path / "d3")
    return topics


def test_an_unclean_election_leaves_out_a_topic_that_is_being_deleted(cluster, log, tmp_path):
    """As a data store has them: their rows are deleted later."""
    topics = only_a_late_replica(cluster, log, tmp_path, "deleted", "t")
    cluster.store.transact(lambda connection: set_deleting(connection, topics[0].topic_id))
    done = inspect_and_elect(cluster)
    assert [key for key, _ in done.truncations] == [(topics[1].topic_id, 0)]
    assert partition(cluster, topics[1]).leader == 3
    # a log that closes would wait for its replica
    cluster.store.transact(lambda connection: delete_topic_rows(connection, topics[0].topic_id))


def test_a_damaged_segment_row_stops_the_election_of_its_partition_alone(cluster, log, tmp_path):
    topics = only_a_late_replica(cluster, log, tmp_path, "damaged", "t")
    damage = t.segment.update().where(t.segment.c.topic_id == topics[0].topic_id, t.segment.c.base_offset == 1)
    cluster.store.transact(lambda connection: connection.execute(damage.values(name="bad name")))
    with pytest.raises(UnsafePathError, match="damaged"):
        inspect_and_elect(cluster)
    assert partition(cluster, topics[1]).leader == 3
    assert partition(cluster, topics[0]).leader != 3
    delete_topic(cluster, topics[0].name)  # closing the log would wait for its replicas


def test_a_served_broker_is_dead_when_its_lease_has_expired(cluster, log):
    topic = create_topic(cluster, "t", 6, replication_factor=3, configs=FILES)
    session = BrokerSession(cluster.store, 2, LEASE_MS_MAX)
    session.register()
    assert not elect_leaders(cluster.store, unfenced)
    session.end()
    done = elect_leaders(cluster.store, unfenced)
    assert len(done.elected) == 2 and len(done.shrunk) == 4
    assert all(part.leader != 2 and 2 not in part.isr for part in describe_topics(cluster, ["t"])[0].partitions)
    assert isinstance(append(log, topic, "a"), Appended)


def test_a_replica_that_lags_too_long_leaves_the_isr_and_readers_continue(cluster, cluster_address, tmp_path):
    topic = create_topic(cluster, "t", replication_factor=3, configs={**FILES, "retention.ms": "-1"})
    for broker in (1, 2, 3):  # alive, but no process copies
        BrokerSession(cluster.store, broker, LEASE_MS_MAX).register()
    log = ClientLog(cluster)
    append(log, topic, "a", acks=1)
    assert partition(cluster, topic).high_watermark == 0 and len(partition(cluster, topic).isr) == 3
    leader = partition(cluster, topic).leader
    with Coordinator(cluster, settings=ClusterSettings(replica_lag_time_max_ms=100)):
        wait_until(lambda: partition(cluster, topic).isr == (leader,))
    assert [value for _, _, value in read_all(log, topic)] == ["a"]
    log.close()


def test_a_new_topic_is_placed_on_brokers_that_are_alive(cluster, tmp_path):
    session = BrokerSession(cluster.store, 2, LEASE_MS_MAX)
    session.register()
    session.end()
    topic = create_topic(cluster, "t", 3, replication_factor=2)
    assert all(set(part.isr) == {1, 3} for part in describe_topics(cluster, [topic.name])[0].partitions)
    with pytest.raises(InvalidReplicationFactorError, match="3 is more than the 2 live broker"):
        create_topic(cluster, "u", replication_factor=3)


def test_a_controller_whose_term_has_ended_changes_nothing(cluster, tmp_path):
    topic = create_topic(cluster, "t", replication_factor=3)
    settings = ClusterSettings()
    with fallback_term(cluster.store, settings) as stale:
        assert stale is not None
        cluster.store.transact(lambda c: c.execute(t.lease.update().values(epoch=t.lease.c.epoch + 1, holder="new")))
        lose(cluster, 1, tmp_path)
        with pytest.raises(NotControllerError):
            inspect_log_dirs(cluster, stale)
        cluster.store.transact(lambda c: c.execute(t.log_dir.update().values(online=False)))
        with pytest.raises(NotControllerError):
            elect_leaders(cluster.store, stale)
    assert set(partition(cluster, topic).isr) == {1, 2, 3}
