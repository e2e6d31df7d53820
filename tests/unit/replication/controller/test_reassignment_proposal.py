"""Plans that move as little as they can."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_log.errors import InvalidReplicationAssignmentError
from spark_log.ids import TopicPartition
from spark_log.replication.controller.placement import BrokerLoad, place_replicas
from spark_log.replication.controller.reassignment_proposal import moved_bytes, propose


def on(*broker_ids, racks=None, load=0):
    return [BrokerLoad(b, (racks or {}).get(b), {10 * b: load}) for b in broker_ids]


def of(*assignments, topic="t"):
    return {TopicPartition(topic, number): tuple(replicas) for number, replicas in enumerate(assignments)}


def moves(before, after):
    return moved_bytes(before, after, dict.fromkeys(after, 1))


def test_an_even_assignment_stays():
    even = of((1, 2), (2, 3), (3, 1))
    assert propose(even, on(1, 2, 3)) == even


def test_only_replicas_of_the_leaving_broker_move():
    before = of((1, 2), (2, 3), (3, 1))
    after = propose(before, on(2, 3, 4))
    assert moves(before, after) == 2
    assert Counter(ar[0] for ar in after.values()) == {2: 1, 3: 1, 4: 1}


def test_a_new_broker_gets_its_share_and_no_more():
    before = of(*[(1 + n % 3, 1 + (n + 1) % 3) for n in range(12)])
    after = propose(before, on(1, 2, 3, 4))
    assert Counter(broker for ar in after.values() for broker in ar) == dict.fromkeys((1, 2, 3, 4), 6)
    assert Counter(ar[0] for ar in after.values()) == dict.fromkeys((1, 2, 3, 4), 3)
    assert moves(before, after) == 6


def test_another_factor():
    before = of((1,), (2,), (3,))
    wider = propose(before, on(1, 2, 3), 3)
    assert [ar[0] for ar in wider.values()] == [1, 2, 3]
    assert moves(before, wider) == 6
    assert moves(wider, propose(wider, on(1, 2, 3), 1)) == 0


def test_a_rack_gives_up_its_second_replica():
    racks = {1: "a", 2: "a", 3: "b", 4: "b"}
    after = propose(of((1, 2), (3, 4)), on(1, 2, 3, 4, racks=racks))
    assert all(len({racks[broker] for broker in ar}) == 2 for ar in after.values())
    assert moves(of((1, 2), (3, 4)), after) == 2


def test_single_partitions_of_many_topics_spread():
    before = {TopicPartition(f"t{n}", 0): (1,) for n in range(9)}
    after = propose(before, on(2, 3, 4))
    assert Counter(ar[0] for ar in after.values()) == {2: 3, 3: 3, 4: 3}


def test_too_few_brokers():
    with pytest.raises(InvalidReplicationAssignmentError, match=r"t-0 needs 2 of them, got \[3\]"):
        propose(of((1, 2)), on(3))
    with pytest.raises(InvalidReplicationAssignmentError):
        propose(of((1, 2)), on(1, 2), 0)


def test_bytes():
    sizes = {TopicPartition("t", 0): 10, TopicPartition("t", 1): 1}
    assert moved_bytes(of((1, 2), (1, 2)), of((2, 3), (3, 4)), sizes) == 12


@settings(max_examples=200)
@given(
    st.integers(1, 30),
    st.integers(1, 4),
    st.integers(4, 7),
    st.integers(4, 7),
    st.lists(st.sampled_from(["a", "b", None]), min_size=10, max_size=10),
    st.integers(0, 5),
)
def test_any_plan_is_even_and_keeps_racks_apart(partitions, factor, before_count, after_count, rack_of, offset):
    old = [BrokerLoad(b, None, {b: 0}) for b in range(1, before_count + 1)]
    before = of(*[[broker for broker, _ in ar] for ar in place_replicas(old, partitions, factor)])
    chosen = range(1 + offset % 3, 1 + offset % 3 + after_count)
    racks = {b: rack_of[b % 10] for b in chosen}
    after = propose(before, on(*chosen, racks=racks))
    assert after.keys() == before.keys()
    for ar in after.values():
        assert len(set(ar)) == len(ar) == factor
        assert set(ar) <= set(chosen)
        assert len({racks[b] for b in ar}) == min(factor, len(set(racks.values())))
    replicas = Counter(dict.fromkeys(chosen, 0))
    for ar in after.values():
        replicas.update(ar)
    if len(set(racks.values())) == 1:
        assert max(replicas.values()) - min(replicas.values()) <= 1
    assert propose(after, on(*chosen, racks=racks)) == after, "a plan of a plan moves nothing"
