"""The facts of the balance report, and elections of preferred leaders; on both stores."""

import pytest

from spark_log.cluster.lease import unfenced
from spark_log.cluster.usage import usage
from spark_log.errors import NotControllerError
from spark_log.ids import TopicPartition
from spark_log.metadata import tables as t
from spark_log.metadata.sql_columns import PARTITION
from spark_log.replication.controller import controller
from spark_log.replication.controller.balance import auto_rebalance, load_balance, load_replicas
from spark_log.replication.controller.reassignments import begin_reassignments
from tests.support.replicas import add_brokers, topic_on
from tests.support.stores import change
from tests.support.topics import append


@pytest.fixture
def brokers(cluster, tmp_path):
    add_brokers(cluster, tmp_path, 2, 3)
    return cluster


def test_bytes_and_records_of_each_replica(brokers, log, tmp_path):
    topic_on(brokers, "t", [[1, 2], [3]], inline_max_bytes="3000")
    append(log, "t", *map(str, range(1_000)))
    append(log, "t", "a")
    change(brokers, t.replica.update().where(t.replica.c.broker_id == 2).values(log_end_offset=0))
    facts = {(f.tp.partition, f.broker_id): f for f in brokers.store.read(load_replicas)}
    [path] = (tmp_path / "broker-2").rglob("_segments/0/*.parquet")
    assert (facts[0, 1].file_bytes, facts[0, 1].records, facts[0, 1].offset_lag) == (path.stat().st_size, 1_001, 0)
    assert (facts[0, 2].bytes, facts[0, 2].records, facts[0, 2].offset_lag) == (0, 0, 1_001)
    used = brokers.store.read(usage)[log.find_topic("t").topic_id, 0]
    assert (facts[0, 1].bytes, facts[0, 1].records) == (used.bytes, used.records)
    assert facts[0, 1].bytes > facts[0, 1].file_bytes
    assert (facts[1, 3].bytes, facts[1, 3].records, facts[1, 3].preferred, facts[1, 3].leads) == (0, 0, True, True)
    report = load_balance(brokers)
    assert [broker.load.leaders for broker in report.brokers] == [1, 0, 1]
    assert [skew.tp for skew in report.skewed] == [TopicPartition("t", 0)]


def leaders(cluster, topic):
    rows = cluster.store.read(
        lambda connection: connection.execute(PARTITION.leader.table.select().order_by(PARTITION.partition)).all()
    )
    return [row.leader for row in rows if row.topic_id == topic.topic_id]


def test_preferred_leaders_are_elected_above_the_threshold(brokers):
    topic = topic_on(brokers, "t", [[1, 2]] * 10)
    change(brokers, t.partition.update().where(t.partition.c.partition == 0).values(leader=2))
    assert auto_rebalance(brokers.store, unfenced, 10) == []
    change(brokers, t.partition.update().where(t.partition.c.partition < 2).values(leader=2))
    assert auto_rebalance(brokers.store, unfenced, 10) == [(topic.topic_id, 0), (topic.topic_id, 1)]
    assert leaders(brokers, topic) == [1] * 10
    assert auto_rebalance(brokers.store, unfenced, 0) == []


def test_one_transaction_changes_a_limited_number_of_partitions(brokers, monkeypatch):
    """Appends to them wait for it."""
    topic = topic_on(brokers, "t", [[1, 2]] * 3)
    keys, locked = [(topic.topic_id, partition) for partition in range(3)], []
    lock = controller.lock_partitions
    monkeypatch.setattr(controller, "_PARTITIONS_PER_TRANSACTION", 2)
    monkeypatch.setattr(
        controller, "lock_partitions", lambda c, portion: locked.append(len(portion)) or lock(c, portion)
    )
    change(brokers, t.partition.update().values(leader=2, log_end_offset=5))
    change(brokers, t.replica.update().where(t.replica.c.broker_id == 1).values(log_end_offset=5))
    assert controller.elect_preferred_leaders(brokers.store, unfenced, keys) == keys
    assert controller.shrink_isrs(brokers.store, unfenced, [(key, 2) for key in keys]) == keys
    assert locked == [2, 1, 2, 1]


def test_replicas_that_cannot_lead_or_are_moving_are_not_elected(brokers):
    topic = topic_on(brokers, "t", [[1, 2], [1, 2], [1, 2]])
    change(brokers, t.partition.update().values(leader=2))
    change(
        brokers, t.replica.update().where(t.replica.c.partition == 1, t.replica.c.broker_id == 1).values(in_sync=False)
    )
    begin_reassignments(brokers, {TopicPartition("t", 2): [1, 3]})
    assert auto_rebalance(brokers.store, unfenced, 10) == [(topic.topic_id, 0)]
    assert leaders(brokers, topic) == [1, 2, 2]


def test_a_stale_controller_elects_no_leader(brokers):
    def refuses(_connection):
        raise NotControllerError("over")

    topic = topic_on(brokers, "t", [[1, 2]])
    change(brokers, t.partition.update().values(leader=2))
    with pytest.raises(NotControllerError):
        auto_rebalance(brokers.store, refuses, 10)
    assert leaders(brokers, topic) == [2]
