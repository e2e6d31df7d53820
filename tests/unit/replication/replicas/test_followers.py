"""The order in which replicas catch up, and the back-off after a failure."""

from spark_log.replication.replicas.followers import (
    COPIES_MAX,
    OUT_OF_SYNC_COPIES_MAX,
    back_off_s,
    in_turn,
    ready_pause_s,
    take_next,
)
from spark_log.replication.replicas.replicas_to_copy import LaggingReplica


def one(number, in_sync=True):
    return LaggingReplica("t", 1, number, 1, 5, in_sync, None)


def choose(behind, under_way, waiting, turns):
    return take_next(in_turn(behind, under_way.keys() | waiting, turns), under_way.values())


def numbers(chosen):
    return [lagging.partition for lagging in chosen]


def test_members_of_the_isr_come_first_and_the_others_leave_room_for_them():
    behind = [one(n, in_sync=False) for n in range(5)] + [one(n) for n in range(5, 7)]
    assert numbers(choose(behind, {}, set(), {})) == [5, 6, 0, 1]
    assert len(choose(behind[:5], {}, set(), {})) == OUT_OF_SYNC_COPIES_MAX
    assert numbers(choose(behind, {(1, 0, 1): False, (1, 1, 1): False}, set(), {})) == [5, 6]


def test_each_replica_has_its_turn():
    behind, turns, seen = [one(n) for n in range(10)], {}, []
    for _ in range(5):
        chosen = choose(behind, {}, set(), turns)
        assert len(chosen) == COPIES_MAX
        seen += numbers(chosen)
        turns.update({lagging.key: len(seen) + place for place, lagging in enumerate(chosen)})
    assert {seen.count(n) for n in range(10)} == {2}


def test_a_replica_is_not_copied_twice_at_a_time_nor_just_after_a_failure():
    behind = [one(n) for n in range(4)]
    assert numbers(choose(behind, {(1, 0, 1): True}, {(1, 2, 1)}, {})) == [1, 3]


def test_backing_off_grows_to_some_seconds():
    waits = [back_off_s(failures) for failures in range(1, 100)]
    assert waits == sorted(waits)
    assert (waits[0], waits[-1]) == (0.1, 5.0)


def test_a_poll_that_takes_long_is_soon_followed_by_the_next_although_copies_are_left():
    assert (ready_pause_s(0.01), ready_pause_s(60.0)) == (0.1, 2.0)
