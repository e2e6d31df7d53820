"""Every rule of replication by example. Replicas are written as (broker, LEO, in sync); broker 1 has log dir 10."""

import pytest

from spark_log.errors import NotLeaderForPartitionError
from spark_log.log.partitions.replication_rules import (
    CopiedRange,
    PartitionState,
    Replica,
    Truncation,
    advance_follower,
    advanced_high_watermark,
    elect_preferred,
    fail_over,
    fence_writers,
    lose_files,
    rewrite,
    shrink_isr,
    with_replicas,
)


def partition(*replicas, leader=1, end=10, watermark=None, **facts):
    """Leader epoch 4, partition epoch 7; the high watermark where the ISR puts it unless it is given."""
    there = tuple(Replica(broker, leo, in_sync, 10 * broker) for broker, leo, in_sync in replicas)
    if watermark is None:
        watermark = advanced_high_watermark(0, there)
    return PartitionState(leader, 4, end, watermark, end, 0, 20, there, partition_epoch=7, **facts)


def shown(state):
    """(broker, LEO, in sync) of each replica."""
    return [(replica.broker_id, replica.log_end_offset, replica.in_sync) for replica in state.replicas]


FULL = partition((1, 10, True), (2, 10, True), (3, 10, True))
AFTER_ACKS_1 = partition((1, 10, True), (2, 6, True), (3, 8, True))
EVERYBODY = {10, 20, 30}


# The high watermark and the ISR


@pytest.mark.parametrize(
    ("current", "replicas", "expected"),
    [
        (5, [(1, 9, True)], 9),
        (5, [(1, 9, True), (2, 7, True)], 7),
        (5, [(1, 9, True), (2, 7, False)], 9),
        (5, [(1, 3, True)], 5),
        (5, [(1, 9, False)], 5),
        (5, [], 5),
    ],
)
def test_the_watermark_is_the_least_end_of_the_isr_and_never_falls(current, replicas, expected):
    assert advanced_high_watermark(current, [Replica(*replica) for replica in replicas]) == expected


def test_other_replicas_settle_the_watermark_and_only_another_isr_is_another_partition_epoch():
    assert with_replicas(FULL, FULL.replicas) is FULL
    moved = with_replicas(AFTER_ACKS_1, partition((1, 10, True), (2, 9, True), (3, 8, True)).replicas)
    assert (moved.high_watermark, moved.partition_epoch, moved.change) == (8, 7, 21)
    shrunk = with_replicas(AFTER_ACKS_1, partition((1, 10, True), (2, 6, False), (3, 8, True)).replicas)
    assert (shrunk.high_watermark, shrunk.partition_epoch, shrunk.change) == (8, 8, 21)


# Elections


def test_without_dead_replicas_nothing_changes():
    assert fail_over(FULL, EVERYBODY) == (FULL, None)
    assert fail_over(FULL, EVERYBODY)[0] is FULL


def test_dead_followers_leave_the_isr_and_the_leader_stays():
    after, truncation = fail_over(AFTER_ACKS_1, {10, 30})
    assert (after.leader, after.leader_epoch, after.partition_epoch, truncation) == (1, 4, 8, None)
    assert shown(after) == [(1, 10, True), (2, 6, False), (3, 8, True)]
    assert after.high_watermark == 8


def test_the_first_live_member_of_the_isr_leads_and_nothing_is_lost():
    after, truncation = fail_over(FULL, {20, 30})
    assert (after.leader, after.leader_epoch, truncation) == (2, 5, None)
    assert after.partition_epoch > 7
    assert shown(after) == [(1, 10, False), (2, 10, True), (3, 10, True)]
    assert (after.high_watermark, after.log_end_offset) == (10, 10)


def test_records_acknowledged_with_acks_1_above_the_new_leader_are_truncated_in_all_replicas():
    after, truncation = fail_over(AFTER_ACKS_1, {20, 30})
    assert truncation == Truncation(5, 6)
    assert shown(after) == [(1, 6, False), (2, 6, True), (3, 6, True)]
    assert (after.log_end_offset, after.high_watermark, after.recovery_point) == (6, 6, 6)


def test_the_order_of_ar_decides_not_the_number_of_records():
    after, truncation = fail_over(AFTER_ACKS_1._replace(replicas=AFTER_ACKS_1.replicas[::-1]), {20, 30})
    assert (after.leader, truncation) == (3, Truncation(5, 8))
    assert after.high_watermark == 6, "broker 2 is in sync and has no more"


def test_without_a_live_member_of_the_isr_the_partition_is_offline_and_the_isr_stays():
    state = partition((1, 10, True), (2, 10, True), (3, 9, False))
    after, truncation = fail_over(state, {30})
    assert (after.leader, after.leader_epoch, after.partition_epoch, truncation) == (None, 5, 8, None)
    assert after.replicas == state.replicas
    assert fail_over(after, {30}) == (after, None), "the rule applied again changes nothing"


def test_an_offline_partition_is_led_by_the_first_member_that_returns():
    offline, _ = fail_over(FULL, set())
    after, truncation = fail_over(offline, {30})
    assert (after.leader, after.leader_epoch, truncation) == (3, 6, None)
    assert after.isr == {3}


@pytest.mark.parametrize("by_topic", [True, False])
def test_in_an_unclean_election_the_live_replica_with_most_records_leads_and_truncates(by_topic):
    state = partition((1, 10, True), (2, 4, False), (3, 7, False), unclean_election=by_topic)
    after, truncation = fail_over(state, {20, 30}, unclean=not by_topic)
    assert truncation == Truncation(5, 7)
    assert (after.leader, after.isr, after.high_watermark, after.log_end_offset) == (3, {3}, 7, 7)
    assert shown(after) == [(1, 7, False), (2, 4, False), (3, 7, True)]


def test_an_unclean_election_is_not_held_while_a_clean_one_can_be():
    state = partition((1, 10, True), (2, 6, True), (3, 9, False))
    after, truncation = fail_over(state, {20, 30}, unclean=True)
    assert (after.leader, truncation) == (2, Truncation(5, 6))


def test_an_unclean_leader_with_every_record_loses_nothing():
    after, truncation = fail_over(partition((1, 10, True), (2, 10, False)), {20}, unclean=True)
    assert (after.leader, after.isr, truncation) == (2, {2}, None)


@pytest.mark.parametrize(
    ("log_start", "truncation"), [(5, Truncation(5, 5)), (10, None)], ids=["some deleted", "all deleted"]
)
def test_a_leader_without_deleted_records_is_complete_and_no_offset_is_assigned_twice(log_start, truncation):
    state = partition((1, 10, True), (2, 0, False), log_start_offset=log_start)
    after, found = fail_over(state, {20}, unclean=True)
    assert found == truncation
    assert after.log_end_offset == after.replica(2).log_end_offset == after.high_watermark == log_start


@pytest.mark.parametrize(
    ("state", "alive", "leader"),
    [
        (FULL._replace(leader=2), EVERYBODY, 1),
        (FULL._replace(leader=2), {20, 30}, 2),
        (AFTER_ACKS_1._replace(leader=1), EVERYBODY, 1),
        (partition((1, 6, True), (2, 10, True), leader=2), EVERYBODY, 2),
        (partition((1, 10, False), (2, 10, True), leader=2), EVERYBODY, 2),
        (FULL._replace(leader=None), EVERYBODY, None),
    ],
    ids=["ready", "dead", "leads", "lacks records", "out of sync", "offline"],
)
def test_the_preferred_leader_leads_where_nothing_is_lost(state, alive, leader):
    after = elect_preferred(state, alive)
    assert after.leader == leader
    assert after.replicas == state.replicas
    if leader == state.leader:
        assert after is state
    else:
        assert (after.leader_epoch, after.partition_epoch) == (5, 8)


# Catching up


def copied(start, end, *names, broker=2, epoch=4, log_dir=20):
    return CopiedRange(broker, epoch, start, end, names, log_dir)


def test_a_copy_moves_the_end_and_the_watermark_follows():
    after = advance_follower(AFTER_ACKS_1, copied(6, 8, "a"), ["a"], 8, alive=True)
    assert shown(after) == [(1, 10, True), (2, 8, True), (3, 8, True)]
    assert (after.high_watermark, after.partition_epoch) == (8, 7)


def test_the_end_moves_over_the_blobs_that_follow():
    assert advance_follower(AFTER_ACKS_1, copied(6, 8, "a"), ["a"], 10, alive=True).replica(2).log_end_offset == 10


def test_a_new_replica_skips_deleted_offsets():
    state = partition((1, 10, True), (2, 0, False), log_start_offset=8)
    after = advance_follower(state, copied(0, 10, "a"), ["a"], 10, alive=True)
    assert shown(after) == [(1, 10, True), (2, 10, True)]
    nothing_left = state._replace(log_start_offset=10)
    assert advance_follower(nothing_left, copied(0, 0), [], 10, alive=True).isr == {1, 2}


@pytest.mark.parametrize(("end", "alive", "joins"), [(10, True, True), (10, False, False), (9, True, False)])
def test_a_live_replica_with_every_record_joins_the_isr(end, alive, joins):
    state = partition((1, 10, True), (2, 6, False))
    after = advance_follower(state, copied(6, end, "a"), ["a"], end, alive=alive)
    assert shown(after) == [(1, 10, True), (2, end, joins)]
    assert after.partition_epoch == 7 + joins


def test_blobs_alone_bring_a_replica_back():
    after = advance_follower(partition((1, 10, True), (2, 10, False)), copied(10, 10), [], 10, alive=True)
    assert after.isr == {1, 2}


@pytest.mark.parametrize(
    ("progress", "names_now"),
    [
        (copied(6, 8, "a", epoch=3), ["a"]),
        (copied(6, 8, "a", epoch=5), ["a"]),
        (copied(4, 8, "a"), ["a"]),
        (copied(6, 8, "a", log_dir=21), ["a"]),
        (copied(6, 8, "a", broker=9), ["a"]),
        (copied(6, 8, "a"), ["merged"]),
        (copied(6, 8, "a"), []),
    ],
    ids=["older epoch", "newer epoch", "another end", "another log dir", "no replica", "rewritten", "truncated"],
)
def test_an_outdated_copy_moves_nothing(progress, names_now):
    with pytest.raises(NotLeaderForPartitionError, match=r"leader epoch|broker [29]"):
        advance_follower(AFTER_ACKS_1, progress, names_now, 8, alive=True)


# Leaving the ISR


def test_lagging_members_leave_but_neither_the_leader_nor_complete_ones():
    after = shrink_isr(partition((1, 10, True), (2, 6, True), (3, 10, True)), {1, 2, 3})
    assert shown(after) == [(1, 10, True), (2, 6, False), (3, 10, True)]
    assert (after.high_watermark, after.partition_epoch) == (10, 8)
    assert shrink_isr(FULL, {2}) is FULL


def test_without_a_leader_no_member_leaves_for_lagging():
    state = partition((1, 4, False), (2, 6, True), (3, 8, True), leader=None)
    assert shrink_isr(state, {2, 3}) is state


@pytest.mark.parametrize(
    ("broker", "first_missing", "expected", "watermark", "leader"),
    [
        (2, 4, [(1, 10, True), (2, 4, False), (3, 8, True)], 8, 1),
        (3, 7, [(1, 10, True), (2, 6, True), (3, 7, True)], 6, 1),
        (3, 6, [(1, 10, True), (2, 6, True), (3, 6, True)], 6, 1),
        (1, 0, [(1, 0, False), (2, 6, True), (3, 8, True)], 6, None),
        (1, 8, [(1, 8, True), (2, 6, True), (3, 8, True)], 6, None),
    ],
    ids=["below HW", "above HW", "at HW", "the leader", "the leader, above HW"],
)
def test_a_replica_that_lost_files_ends_before_the_first_and_leaves_the_isr_below_the_watermark(
    broker, first_missing, expected, watermark, leader
):
    after = lose_files(AFTER_ACKS_1, broker, first_missing)
    assert shown(after) == expected
    assert (after.high_watermark, after.leader, after.log_end_offset) == (watermark, leader, 10)
    assert after.leader_epoch == (4 if leader else 5)


def test_the_last_member_that_lost_files_leaves_too():
    after = lose_files(partition((1, 10, True), (2, 8, False)), 1, 4)
    assert (after.isr, after.leader, after.high_watermark) == (frozenset(), None, 10)
    assert fail_over(after, {10, 20})[0].leader is None


@pytest.mark.parametrize(("broker", "first_missing"), [(2, 6), (2, 10), (1, 10), (9, 0)])
def test_files_that_no_end_covers_are_not_missed(broker, first_missing):
    assert lose_files(AFTER_ACKS_1, broker, first_missing) is AFTER_ACKS_1


def test_a_fence_begins_both_epochs_and_changes_nothing_else():
    assert fence_writers(FULL) == FULL._replace(leader_epoch=5, partition_epoch=8)


# Rewriting


def test_a_replica_without_the_rewritten_file_ends_before_it():
    state = partition((1, 10, True), (2, 10, True), (3, 8, False))
    after = rewrite(state, 2, 6, {10, 20}, 7)
    assert shown(after) == [(1, 10, True), (2, 10, True), (3, 2, False)]
    assert (after.change, after.partition_epoch, after.high_watermark) == (21, 7, 10)


@pytest.mark.parametrize(("end", "becomes"), [(8, 8), (6, 6), (4, 2), (2, 2), (0, 0)])
def test_an_end_within_the_rewritten_file_falls_to_where_it_begins(end, becomes):
    state = partition((1, 10, True), (2, end, False))
    assert rewrite(state, 2, 6, {10, 20}, 7).replica(2).log_end_offset == becomes


@pytest.mark.parametrize(
    ("state", "end", "log_dirs", "epoch"),
    [
        (FULL, 6, EVERYBODY, 6),
        (AFTER_ACKS_1, 8, EVERYBODY, 7),
        (FULL, 6, {10, 30}, 7),
        (partition((1, 4, False), leader=None, watermark=10), 6, {10}, 7),
        (partition((1, 10, True), (2, 6, False), min_insync_replicas=2), 6, {10}, 7),
    ],
    ids=["ISR changed", "above HW", "not everywhere", "empty ISR", "fewer copies than promised"],
)
def test_rewrites_that_are_refused(state, end, log_dirs, epoch):
    assert rewrite(state, 4, end, log_dirs, epoch) is None


def test_a_topic_with_fewer_replicas_than_min_insync_replicas_is_rewritten_once_all_are_in_sync():
    assert rewrite(partition((1, 10, True), min_insync_replicas=2), 4, 6, {10}, 7) is not None
