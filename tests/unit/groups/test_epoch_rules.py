"""The rules of the consumer protocol: what a heartbeat with a member epoch changes."""

from dataclasses import replace

import pytest

from spark_log.errors import (
    FencedInstanceIdError,
    FencedMemberEpochError,
    GroupMaxSizeReachedError,
    UnknownMemberIdError,
    UnreleasedInstanceIdError,
)
from spark_log.groups.consumer.rules import (
    LEAVING_FOR_A_WHILE,
    EpochRequest,
    EpochState,
    Group,
    Member,
    check_instance,
    check_released,
    check_size,
    decide_epoch_heartbeat,
    join_epoch,
    leave_for_a_while,
)
from spark_log.ids import TopicPartition

T = frozenset({"t"})
P0, P1 = (TopicPartition("t", number) for number in range(2))
NOW_MS = 1_000
STABLE = Member(T, target=frozenset({P0, P1}), assigned=frozenset({P0, P1}), generation=3)
STATE = EpochState("c", 500, previous=2, current=STABLE.assigned)


def some(*partitions):
    return frozenset(partitions)


def beat(group, member, state, epoch, owned=None, *, connection_id="c", taken=(), now_ms=NOW_MS):
    return decide_epoch_heartbeat(group, member, state, EpochRequest(epoch, owned, connection_id, True), taken, now_ms)


def test_partition_is_released_after_the_member_was_told_and_reports():
    member = replace(STABLE, target=some(P0))
    current = beat(Group(4, 4), member, STATE, 3)
    assert (current.state.current, current.member.assigned, current.member.generation) == (some(P0), some(P0, P1), 3)
    assert current.state.revoke_by_ms == NOW_MS + 500
    early = beat(Group(4, 4), member, STATE, 3, some(P0))
    assert early.member.assigned == some(P0, P1), "it was not told yet, and may be about to begin with the partition"
    silent = beat(Group(4, 4), current.member, current.state, 3, now_ms=NOW_MS + 100)
    assert (silent.member.assigned, silent.state.revoke_by_ms) == (some(P0, P1), NOW_MS + 500)
    done = beat(Group(4, 4), current.member, current.state, 3, some(P0))
    assert (done.member.assigned, done.member.generation, done.state.previous) == (some(P0), 4, 3)
    assert done.state.revoke_by_ms is None


def test_session_is_renewed_after_a_third_and_not_beyond_the_deadline_of_a_revocation():
    assert (STATE.until_ms(NOW_MS, 300), STATE.renewal_due_ms(1_300, 300)) == (1_300, 1_100)
    late = replace(STATE, revoke_by_ms=1_200)
    assert (late.until_ms(NOW_MS, 300), late.renewal_due_ms(1_200, 300)) == (1_200, 1_200)


def test_deadline_of_a_revocation_begins_again_with_more_partitions():
    current = beat(Group(4, 4), replace(STABLE, target=some(P0)), STATE, 3)
    more = beat(Group(5, 5), replace(current.member, target=some()), current.state, 3, now_ms=NOW_MS + 400)
    assert more.state.revoke_by_ms == NOW_MS + 900
    assert more.state.until_ms(NOW_MS + 800, 45_000) == NOW_MS + 900, "no heartbeat prolongs the session beyond it"


def test_stale_target_changes_neither_epoch_nor_partitions():
    member = replace(STABLE, assigned=some(P0))
    state = replace(STATE, current=some(P0))
    waits = beat(Group(5, 4), member, state, 3)
    assert (waits.member.assigned, waits.member.generation) == (some(P0), 3)
    keeps = beat(Group(5, 4), replace(STABLE, target=some()), replace(STATE, current=some()), 3)
    assert (keeps.member.generation, keeps.member.assigned) == (3, some(P0, P1))
    gets = beat(Group(5, 5), member, state, 3)
    assert (gets.member.assigned, gets.member.generation) == (some(P0, P1), 5)


def test_new_partitions_come_after_the_revocation_and_when_they_are_free():
    member = Member(T, target=some(P1), assigned=some(P0), generation=3)
    current = beat(Group(4, 4), member, replace(STATE, current=some(P0)), 3)
    assert (current.state.current, current.member.generation) == (some(), 3)
    waits = beat(Group(4, 4), current.member, current.state, 3, some(), taken=[P1])
    assert (waits.state.current, waits.member.assigned, waits.member.generation) == (some(), some(), 4)
    gets = beat(Group(4, 4), waits.member, waits.state, 4)
    assert (gets.state.current, gets.member.assigned) == (some(P1), some(P1))


def test_heartbeat_on_another_connection_releases_nothing_until_it_is_repeated():
    current = beat(Group(4, 4), replace(STABLE, target=some(P0)), STATE, 3)
    late = beat(Group(4, 4), current.member, current.state, 3, some(P0), connection_id="late")
    assert (late.member.assigned, late.state.connection_id, late.repeat) == (some(P0, P1), "late", False)
    here = beat(Group(4, 4), late.member, late.state, 3, connection_id="c")
    assert (here.state.connection_id, here.state.current, here.repeat) == ("c", some(P0), False)
    asked = beat(Group(4, 4), here.member, here.state, 3)
    assert asked.repeat
    done = beat(Group(4, 4), asked.member, asked.state, 3, some(P0))
    assert done.member.assigned == some(P0)


def test_member_is_told_of_a_revocation_after_a_change_of_its_connection():
    moved = beat(Group(3, 3), STABLE, STATE, 3, STABLE.assigned, connection_id="new")
    assert not moved.state.reported
    current = beat(Group(4, 4), replace(moved.member, target=some(P0)), moved.state, 3, connection_id="new")
    assert (current.state.current, current.state.reported, current.repeat) == (some(P0), True, False)
    waits = beat(Group(4, 4), current.member, current.state, 3, connection_id="new")
    assert (waits.member.assigned, waits.repeat) == (some(P0, P1), False), "the client is about to report"
    done = beat(Group(4, 4), current.member, current.state, 3, some(P0), connection_id="new")
    assert done.member.assigned == some(P0)


@pytest.mark.parametrize(("epoch", "owned"), [(4, None), (1, some()), (2, None), (2, some(P0, TopicPartition("u", 0)))])
def test_other_epochs_are_fenced(epoch, owned):
    with pytest.raises(FencedMemberEpochError):
        beat(Group(3, 3), STABLE, STATE, epoch, owned)


def test_repetition_with_the_epoch_before_gets_the_lost_answer_and_releases_nothing():
    member, state = replace(STABLE, target=some(P0)), replace(STATE, current=some(P0))
    found = beat(Group(3, 3), member, state, 2, some())
    assert (found.member.generation, found.member.assigned) == (3, some(P0, P1))


def test_static_member_leaves_for_a_while_and_another_takes_its_place():
    away, state = leave_for_a_while(STABLE, STATE)
    assert (away.generation, away.assigned) == (LEAVING_FOR_A_WHILE, STABLE.assigned)
    with pytest.raises(FencedMemberEpochError):
        beat(Group(3, 3), away, state, 3)
    assert join_epoch(Group(3, 3), T, away) == (Group(3, 3), replace(STABLE, generation=0))
    assert join_epoch(Group(3, 3), frozenset("u"), away)[0] == Group(4, 3)
    assert join_epoch(Group(3, 3), T, away, same_assignors=False)[0] == Group(4, 3)
    assert join_epoch(Group(4, 3), T, away)[0] == Group(5, 3), "a target may be on its way to the old member"
    group, new = join_epoch(Group(3, 3), T, away)
    back = beat(group, new, EpochState("d", 500), 0, some(), connection_id="d")
    assert (back.member.generation, back.state.current) == (3, STABLE.assigned)


def test_instance_ids_and_sizes():
    check_instance("g", "m", None, None)
    check_instance("g", "m", "i", "m")
    with pytest.raises(UnknownMemberIdError):
        check_instance("g", "m", "i", None)
    with pytest.raises(FencedInstanceIdError):
        check_instance("g", "m", "i", "other")
    check_released("m", "i", "other", LEAVING_FOR_A_WHILE)
    with pytest.raises(UnreleasedInstanceIdError):
        check_released("m", "i", "other", 3)
    check_size(1, 2)
    with pytest.raises(GroupMaxSizeReachedError):
        check_size(2, 2)
