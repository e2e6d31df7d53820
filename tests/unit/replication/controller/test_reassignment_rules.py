"""Reassignment by example: begin, finish, cancel. Replicas are written as (broker, LEO, in sync)."""

import pytest

from spark_log.errors import InvalidReplicationAssignmentError
from spark_log.log.partitions.replication_rules import Replica
from spark_log.replication.controller.reassignment_rules import Reassignment, begin, cancel, finish
from tests.unit.log.partitions.test_replication_rules import partition, shown

STATE = partition((1, 10, True), (2, 10, True))
LOG_DIRS = {3: 30, 4: 40}
ALIVE = {10, 20, 30, 40}


def test_new_replicas_stand_behind_the_others_and_have_nothing():
    after, started = begin(STATE, [2, 3], LOG_DIRS)
    assert started == Reassignment(target=(2, 3), original=(1, 2))
    assert after.replicas == (*STATE.replicas, Replica(3, 0, False, 30))
    assert (after.leader, after.leader_epoch, after.partition_epoch, after.high_watermark) == (1, 4, 8, 10)


@pytest.mark.parametrize(
    ("target", "named"),
    [([], r"\[\]"), ([3, 2, 3], r"\[3, 2, 3\]"), ([1, 9], r"\[9\]")],
    ids=["none", "twice", "unknown"],
)
def test_invalid_assignments_are_refused(target, named):
    with pytest.raises(InvalidReplicationAssignmentError, match=f"replicas: .*{named}"):
        begin(STATE, target, LOG_DIRS)


def test_another_target_keeps_the_original_and_what_is_in_sync():
    first = Reassignment((3, 4), (1, 2))
    state = partition((1, 10, True), (2, 10, True), (3, 10, True), (4, 6, False))
    after, started = begin(state, [2, 5], {5: 50}, first)
    assert started == Reassignment(target=(2, 5), original=(1, 2))
    assert shown(after) == [(1, 10, True), (2, 10, True), (3, 10, True), (5, 0, False)]
    assert after.leader_epoch == 5, "one has left: what writers put there must not count"


def test_the_switch_the_leader_stays_if_it_can():
    state = partition((1, 10, True), (2, 10, True), (3, 10, True))
    after = finish(state, Reassignment((3, 1), (1, 2)), ALIVE)
    assert shown(after) == [(3, 10, True), (1, 10, True)]
    assert (after.leader, after.leader_epoch, after.partition_epoch) == (1, 5, 8)


def test_only_another_order_is_no_new_leader_epoch():
    after = finish(STATE, Reassignment((2, 1), (1, 2)), ALIVE)
    assert shown(after) == [(2, 10, True), (1, 10, True)]
    assert (after.leader, after.leader_epoch, after.partition_epoch) == (1, 4, 8)


def test_the_first_of_the_target_that_has_every_record_leads():
    state = partition((1, 10, True), (2, 10, True), (3, 6, True), (4, 10, True))
    after = finish(state, Reassignment((3, 4), (1, 2)), ALIVE)
    assert shown(after) == [(3, 6, True), (4, 10, True)]
    assert (after.leader, after.leader_epoch, after.high_watermark, after.log_end_offset) == (4, 5, 6, 10)


def test_the_watermark_follows_when_the_slowest_leaves():
    state = partition((1, 10, True), (2, 6, True), (3, 10, True))
    assert finish(state, Reassignment((1, 3), (1, 2)), ALIVE).high_watermark == 10


@pytest.mark.parametrize("target", [(3,), (1, 3)])
@pytest.mark.parametrize(
    ("third", "alive"),
    [([(3, 10, False)], ALIVE), ([(3, 10, True)], {10, 20}), ([], ALIVE)],
    ids=["not in sync", "dead", "no replica"],
)
def test_a_switch_waits_for_the_whole_target(third, alive, target):
    state = partition((1, 10, True), (2, 10, True), *third)
    assert finish(state, Reassignment(target, (1, 2)), alive) is None


def test_a_switch_waits_for_a_replica_that_can_lead_without_loss():
    state = partition((1, 10, True), (2, 10, True), (3, 6, True))
    assert finish(state, Reassignment((3,), (1, 2)), ALIVE) is None
    assert finish(state, Reassignment((3, 2), (1, 2)), ALIVE).leader == 2


def test_an_offline_partition_gets_a_leader_by_the_switch():
    state = partition((1, 10, True), (3, 10, True), leader=None)
    assert finish(state, Reassignment((3,), (1,)), ALIVE).leader == 3


def test_a_new_leader_is_a_new_epoch_even_if_no_replica_leaves():
    after = finish(STATE._replace(leader=None), Reassignment((1, 2), (1, 2)), ALIVE)
    assert (after.leader, after.leader_epoch) == (1, 5)


def test_cancel_removes_added_replicas():
    state = partition((1, 10, True), (2, 6, False), (3, 4, False))
    after = cancel(state, Reassignment((2, 3), (2, 1)), ALIVE)
    assert shown(after) == [(2, 6, False), (1, 10, True)]
    assert (after.leader, after.leader_epoch, after.partition_epoch) == (1, 5, 8)


def test_cancel_gives_leadership_back_to_the_first_that_has_every_record():
    state = partition((1, 6, True), (2, 10, True), (3, 10, True), leader=3)
    after = cancel(state, Reassignment((3,), (1, 2)), ALIVE)
    assert (after.leader, after.leader_epoch, after.high_watermark, after.log_end_offset) == (2, 5, 6, 10)


@pytest.mark.parametrize(
    ("state", "alive"),
    [
        (partition((1, 6, True), (3, 10, True), leader=3), ALIVE),
        (partition((1, 10, False), (3, 10, True), leader=3), ALIVE),
        (partition((1, 10, True), (3, 10, True), leader=3), {30}),
        (partition((1, 10, True), (3, 10, True), leader=1), {30}),
    ],
    ids=["lacks records", "out of sync", "dead", "leads, dead"],
)
def test_cancel_is_refused_where_it_could_lose_records(state, alive):
    with pytest.raises(InvalidReplicationAssignmentError, match=r"original \[1\]"):
        cancel(state, Reassignment((3,), (1,)), alive)


def test_a_cancelled_reassignment_may_begin_again():
    under_way, started = begin(STATE, [3], LOG_DIRS)
    back = cancel(under_way, started, ALIVE)
    assert back._replace(leader_epoch=4, partition_epoch=7, change=STATE.change) == STATE
    assert begin(back, [3], LOG_DIRS)[1] == started
