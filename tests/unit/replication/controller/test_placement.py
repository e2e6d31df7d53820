"""Placement of replicas on brokers and log dirs."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_log.errors import InvalidReplicationFactorError
from spark_log.replication.controller.placement import BrokerLoad, place_replicas


def brokers(*racks, dirs=1):
    """Brokers 1, 2, … in these racks; their log dirs have the ids 10, 11, …, 20, 21, …"""
    return [
        BrokerLoad(number, rack, {10 * number + i: 0 for i in range(dirs)})
        for number, rack in enumerate(racks, start=1)
    ]


def broker_ids(placement):
    return [[broker for broker, _ in ar] for ar in placement]


def test_leaders_are_round_robin_and_followers_shift_each_round_as_in_kafka():
    assert broker_ids(place_replicas(brokers(None, None, None), 7, 2)) == [
        [1, 2], [2, 3], [3, 1],
        [1, 3], [2, 1], [3, 2],
        [1, 2],
    ]  # fmt: skip


def test_a_single_broker_leads_everything():
    assert place_replicas(brokers(None), 3, 1) == [[(1, 10)], [(1, 10)], [(1, 10)]]


def test_the_broker_with_the_fewest_replicas_is_first():
    loads = [BrokerLoad(1, None, {10: 5}), BrokerLoad(2, None, {20: 1}), BrokerLoad(3, None, {30: 9})]
    assert broker_ids(place_replicas(loads, 2, 1)) == [[2], [3]]


def test_the_log_dir_with_the_fewest_replicas_is_taken():
    loads = [BrokerLoad(1, None, {10: 2, 11: 0})]
    assert place_replicas(loads, 4, 1) == [[(1, 11)], [(1, 11)], [(1, 10)], [(1, 11)]]


@pytest.mark.parametrize("factor", [0, -1, 4, True, "2", 1.0, None])
def test_bad_replication_factors(factor):
    with pytest.raises(InvalidReplicationFactorError, match="replication_factor"):
        place_replicas(brokers(None, None, None), 1, factor)


def test_no_broker_at_all():
    with pytest.raises(InvalidReplicationFactorError):
        place_replicas([], 1, 1)


racks = st.lists(st.sampled_from([None, "a", "b", "c"]), min_size=1, max_size=7)


@given(racks, st.integers(1, 40), st.data())
def test_replicas_are_on_different_brokers_and_on_as_many_racks_as_can_be(names, partitions, data):
    loads = brokers(*names, dirs=2)
    factor = data.draw(st.integers(1, len(loads)))
    placement = place_replicas(loads, partitions, factor)
    rack_of = {load.broker_id: load.rack for load in loads}
    assert len(placement) == partitions
    for ar in placement:
        assert len({broker for broker, _ in ar}) == factor
        assert all(log_dir // 10 == broker for broker, log_dir in ar)
        assert len({rack_of[broker] for broker, _ in ar}) == min(factor, len(set(names)))
    leaders = Counter(ar[0][0] for ar in placement)
    assert max(leaders.values()) - min(leaders[load.broker_id] for load in loads) <= 1
    dirs = Counter(log_dir for ar in placement for _, log_dir in ar)
    for load in loads:
        counts = [dirs[log_dir] for log_dir in load.replicas_by_log_dir]
        assert max(counts) - min(counts) <= 1
