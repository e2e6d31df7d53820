"""Load balance of a cluster, and the partitions that are due for an election of the preferred leader. Pure."""

import pytest

from spark_log.ids import TopicPartition
from spark_log.replication.controller.balance import Load, Preference, ReplicaFacts, balance, partitions_to_elect


def replica(number, broker_id, *, size=10, records=1, preferred=True, leads=True, topic="t"):
    return ReplicaFacts(TopicPartition(topic, number), broker_id, 10 * broker_id, preferred, leads, size, records)


def test_a_cluster_without_replicas_is_even():
    report = balance([], {10: 1, 20: 2})
    assert [broker.load for broker in report.brokers] == [Load(), Load()]
    assert [broker.bytes_deviation_percent for broker in report.brokers] == [0.0, 0.0]
    assert report.skewed == ()


def test_loads_and_deviations():
    replicas = [replica(0, 1, size=30, records=3), replica(0, 2, size=10, records=1, preferred=False, leads=False)]
    first, second = balance(replicas, {10: 1, 11: 1, 20: 2}).brokers
    assert first.load == Load(30, 3, 1, 1, 1)
    assert first.log_dirs == {10: Load(30, 3, 1, 1, 1), 11: Load()}
    assert (first.bytes_deviation_percent, second.bytes_deviation_percent) == (50.0, -50.0)
    assert second.load == Load(10, 1, 1, 0, 0)
    assert [facts.tp.partition for facts in first.largest] == [0]
    assert second.largest == ()


def test_imbalance_is_the_share_of_preferred_partitions_led_elsewhere():
    replicas = [replica(number, 1, leads=number > 0) for number in range(4)]
    replicas += [replica(0, 2, preferred=False, leads=True)]
    first, second = balance(replicas, {10: 1, 20: 2}).brokers
    assert (first.imbalance_percent, first.led_elsewhere) == (25.0, (TopicPartition("t", 0),))
    assert (second.imbalance_percent, second.led_elsewhere) == (0.0, ())


def test_the_causes_come_largest_first():
    replicas = [replica(number, 1, size=number, records=0) for number in range(1, 8)]
    (first, _) = balance(replicas, {10: 1, 20: 2}).brokers
    assert [facts.tp.partition for facts in first.largest] == [7, 6, 5, 4, 3]
    # 6 and 7 are 1.5 and 1.75 times the mean of 4
    assert [(skew.tp.partition, skew.ratio) for skew in balance(replicas, {10: 1, 20: 2}).skewed] == [
        (7, 1.75),
        (6, 1.5),
    ]


def test_a_partition_is_skewed_within_its_own_topic():
    replicas = [replica(0, 1, size=1_000_000, topic="large"), replica(0, 1, size=1), replica(1, 1, size=1, records=9)]
    [skew] = balance(replicas, {10: 1}).skewed
    assert (skew.tp, skew.ratio) == (TopicPartition("t", 1), 1.8)


@pytest.mark.parametrize(("threshold", "expected"), [(0, [0, 5]), (24, [0, 5]), (25, [5]), (99, [5]), (100, [])])
def test_only_brokers_above_the_threshold_get_their_leaders_back(threshold, expected):
    preferences = [Preference((1, number), 1, 2 if number == 0 else 1) for number in range(4)]
    preferences += [Preference((1, 5), 3, None)]
    assert partitions_to_elect(preferences, threshold) == [(1, number) for number in expected]
