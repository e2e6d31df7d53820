from dataclasses import replace

import pytest

from spark_log.errors import GroupAssignmentTooLargeError, GroupMaxSizeReachedError, RebalanceInProgressError
from spark_log.groups.classic.group import ClassicGroup, Joining, Phase, State
from spark_log.groups.classic.limits import (
    BYTES_MAX,
    MEMBERS_MAX,
    check_assignment,
    check_join,
    check_request,
)
from spark_log.groups.classic.rules import begin_again, join, sync, wait_for_assignment

MIB = 1024 * 1024


def joining(name, metadata=b"", *, instance_id=None, again=False, id_required=False):
    return Joining(
        name if again else "", name, instance_id, "client", "host", "connect", (("p", metadata),), 30, 100, id_required
    )


def join_checked(group, request):
    after = join(group, request, 0)
    check_join(group, request, after)
    return after


def test_metadata_of_all_members_together_is_bounded():
    group = ClassicGroup("g", 0)
    for name in "abc":
        group = join_checked(group, joining(name, bytes(MIB)))
    group = join_checked(group, joining("d", bytes(MIB - 500)))
    with pytest.raises(GroupMaxSizeReachedError, match="1048577 bytes of metadata"):
        join_checked(group, joining("e", bytes(MIB)))
    with pytest.raises(GroupMaxSizeReachedError):
        join_checked(group, joining("d", bytes(MIB + 1), again=True))
    group = join_checked(group, joining("d", again=True))
    join_checked(group, joining("e", bytes(MIB - 500)))


def test_a_member_of_a_group_that_is_too_large_already_may_stay_and_shrink():
    group = join(join(ClassicGroup("g", 0), joining("a", bytes(3 * MIB)), 0), joining("b", bytes(3 * MIB)), 0)
    join_checked(group, joining("b", bytes(3 * MIB), again=True))
    join_checked(group, joining("b", bytes(2 * MIB), again=True))
    with pytest.raises(GroupMaxSizeReachedError):
        join_checked(group, joining("b", bytes(3 * MIB + 1), again=True))


def test_metadata_that_no_group_has_room_for_is_refused_before_it_is_read():
    check_request(joining("a", bytes(BYTES_MAX - 1)))
    with pytest.raises(GroupMaxSizeReachedError):
        check_request(joining("a", bytes(BYTES_MAX)))


def test_the_number_of_members_is_bounded_with_those_that_have_only_got_an_id():
    group = ClassicGroup("g", 0)
    group = join_checked(group, joining("static", instance_id="i"))
    [static] = group.members.values()
    members = {f"m{number}": replace(static, member_id=f"m{number}") for number in range(MEMBERS_MAX - 2)}
    group = replace(
        group, members={"static": static, **{key: replace(m, instance_id=None) for key, m in members.items()}}
    )
    group = join_checked(group, joining("last", id_required=True))
    assert len(group.members) == MEMBERS_MAX
    assert group.members["last"].phase is Phase.PENDING
    for request in (joining("more"), joining("more", id_required=True), joining("more", instance_id="j")):
        with pytest.raises(GroupMaxSizeReachedError):
            join_checked(group, request)
    join_checked(group, joining("last", again=True))
    join_checked(group, joining("new", instance_id="i"))


def test_the_assignment_of_a_leader_is_bounded_and_the_group_then_begins_again():
    group = join(ClassicGroup("g", 0), joining("a", bytes(MIB)), 0)
    check_assignment(group, sync(group, "a", None, 1, {"a": bytes(3 * MIB - 100)}, 0))
    with pytest.raises(GroupAssignmentTooLargeError):
        check_assignment(group, sync(group, "a", None, 1, {"a": bytes(3 * MIB)}, 0))
    check_assignment(group, sync(group, "a", None, 1, {"a": b"", "stranger": bytes(9 * MIB)}, 0))
    group = join(join(group, joining("b"), 0), joining("a", again=True), 0)
    group = sync(group, "b", None, 2, {}, 0)
    assert wait_for_assignment(group, "b", None, 2, 0) == group
    assert begin_again(group, 1, 0) == group, "of an older generation"
    again = begin_again(group, 2, 0)
    assert again.state is State.PREPARING
    with pytest.raises(RebalanceInProgressError):
        wait_for_assignment(again, "b", None, 2, 0)
    assert begin_again(again, 2, 0) == again
