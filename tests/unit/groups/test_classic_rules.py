"""The rules of classic groups, beside those of Kafka's GroupCoordinator."""

from dataclasses import replace

import pytest

from spark_log.errors import (
    FencedInstanceIdError,
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from spark_log.groups.classic.group import ClassicGroup, Joining, Phase, State
from spark_log.groups.classic.rules import (
    advance,
    check_commit,
    check_protocol,
    heartbeat,
    join,
    join_answer,
    leave,
    next_change_ms,
    sync,
    sync_answer,
)

EMPTY = ClassicGroup("g", 0)
SESSION_MS, REBALANCE_MS = 30, 100


def joining(name, *, member_id=None, instance_id=None, protocols=(("p", b""),), kind="connect", id_required=False):
    member_id = name if member_id is None else member_id
    metadata = tuple((protocol, data or name.encode()) for protocol, data in protocols)
    return Joining(
        member_id, name, instance_id, "client", "host", kind, metadata, SESSION_MS, REBALANCE_MS, id_required
    )


def joined(group, name, now=0, **facts):
    return join(group, joining(name, member_id="", **facts), now)


def pair(now=0):
    """A stable group of the members a (the leader) and b, in generation 2."""
    group = joined(EMPTY, "a", now)
    group = join(joined(group, "b", now), joining("a"), now)
    group = sync(group, "b", None, 2, {}, now)
    return sync(group, "a", None, 2, {"a": b"1", "b": b"2"}, now)


def test_the_leader_gets_all_metadata_and_its_assignment_reaches_all():
    group = joined(EMPTY, "a")
    assert (group.state, group.generation, group.leader) == (State.COMPLETING, 1, "a")
    group = joined(group, "b")
    assert (group.state, join_answer(group, "b", None)) == (State.PREPARING, None)
    with pytest.raises(RebalanceInProgressError):
        sync(group, "a", None, 1, {"a": b""}, 0)
    group = join(group, joining("a"), 0)
    answers = {name: join_answer(group, name, None) for name in "ab"}
    assert answers["a"].members == (("a", None, b"a"), ("b", None, b"b"))
    assert answers["b"].members == ()
    assert {(answer.generation, answer.leader) for answer in answers.values()} == {(2, "a")}
    group = sync(group, "b", None, 2, {"a": b"no", "b": b"no"}, 0)
    assert sync_answer(group, "b") is None, "only the leader assigns"
    group = sync(group, "a", None, 2, {"a": b"1", "stranger": b"3"}, 0)
    assert (group.state, sync_answer(group, "a"), sync_answer(group, "b")) == (State.STABLE, b"1", b"")
    assert group.deadline_ms is None


def test_repeated_requests_get_the_same_answers():
    group = pair()
    assert join(group, joining("b"), 0) == group, "a follower with the same metadata"
    again = sync(group, "a", None, 2, {"a": b"other", "b": b"other"}, 0)
    assert again == group
    completing = join(joined(joined(EMPTY, "a"), "b"), joining("a"), 0)
    assert join(completing, joining("a"), 0) == completing
    assert join(group, joining("a"), 0).state is State.PREPARING, "a leader that joins again wants a rebalance"
    assert join(group, joining("b", protocols=(("p", b"new"),)), 0).state is State.PREPARING


def test_requests_of_others_are_refused():
    group = pair()
    for request in (
        lambda member_id, generation: sync(group, member_id, None, generation, {}, 0),
        lambda member_id, generation: heartbeat(group, member_id, None, generation, 0),
        lambda member_id, generation: check_commit(group, member_id, None, generation, transactional=False),
    ):
        with pytest.raises(IllegalGenerationError):
            request("a", 1)
        with pytest.raises(UnknownMemberIdError):
            request("stranger", 2)
    with pytest.raises(UnknownMemberIdError):
        join(group, joining("stranger"), 0)
    with pytest.raises(UnknownMemberIdError):
        leave(group, "stranger", None, 0)
    for wrong in (joining("c", member_id="", kind="consumer"), joining("c", member_id="", protocols=(("q", b""),))):
        with pytest.raises(InconsistentGroupProtocolError):
            join(group, wrong, 0)
    check_protocol(group, "connect", "p")
    check_protocol(group, None, None)
    with pytest.raises(InconsistentGroupProtocolError):
        check_protocol(group, "connect", "q")


def test_commits_wait_for_the_assignment_except_in_transactions():
    completing = joined(EMPTY, "a")
    with pytest.raises(RebalanceInProgressError):
        check_commit(completing, "a", None, 1, transactional=False)
    check_commit(completing, "a", None, 1, transactional=True)
    preparing = joined(pair(), "c")
    check_commit(preparing, "a", None, 2, transactional=False)
    after = advance(preparing, REBALANCE_MS)
    with pytest.raises((IllegalGenerationError, UnknownMemberIdError)):
        check_commit(after, "a", None, 2, transactional=False)


def test_members_that_do_not_join_again_are_dropped_at_the_rebalance_timeout():
    group = joined(pair(), "c")
    group = replace(group, members={key: replace(each, until_ms=1000) for key, each in group.members.items()})
    assert advance(group, REBALANCE_MS - 1) == group
    group = advance(group, REBALANCE_MS)
    assert (list(group.members), group.leader, group.generation) == (["c"], "c", 3)


def test_members_that_do_not_sync_are_dropped():
    group = join(joined(joined(EMPTY, "a"), "b"), joining("a"), 0)
    group = replace(group, members={key: replace(each, until_ms=1000) for key, each in group.members.items()})
    group = sync(group, "b", None, 2, {}, 0)
    group = advance(group, REBALANCE_MS)
    assert (list(group.members), group.state) == (["b"], State.PREPARING)
    assert next_change_ms(group) is not None


def test_ended_sessions_begin_a_rebalance_and_the_last_one_empties_the_group():
    group = heartbeat(pair(), "a", None, 2, SESSION_MS - 1)
    group = advance(group, SESSION_MS)
    assert (list(group.members), group.state) == (["a"], State.PREPARING)
    group = advance(group, SESSION_MS * 2)
    assert (group.state, group.generation, dict(group.members)) == (State.EMPTY, 3, {})
    assert joined(group, "x", 100, kind="other").protocol_type == "other", "an empty group takes any type"


def test_a_member_id_is_required_once_and_the_rebalance_waits_for_it():
    group = join(pair(), joining("c", member_id="", id_required=True), 0)
    assert (group.state, group.members["c"].phase) == (State.STABLE, Phase.PENDING)
    with pytest.raises(UnknownMemberIdError):
        heartbeat(group, "c", None, 2, 0)
    group = joined(group, "d")
    group = join(join(group, joining("a"), 0), joining("b"), 0)
    assert group.state is State.PREPARING, "c is still to come"
    assert join(group, joining("c"), 0).state is State.COMPLETING
    assert leave(group, "c", None, 0).state is State.COMPLETING
    assert advance(group, SESSION_MS - 1).state is State.PREPARING


def test_a_static_member_that_starts_again_takes_its_place_without_a_rebalance():
    group = joined(joined(EMPTY, "a", instance_id="i"), "b")
    group = join(group, joining("a", instance_id="i"), 0)
    group = sync(sync(group, "b", None, 2, {}, 0), "a", "i", 2, {"a": b"1", "b": b"2"}, 0)
    again = joined(group, "a2", instance_id="i")
    answer = join_answer(again, "a2", "i")
    assert (again.state, again.generation, answer.leader, answer.skip_assignment) == (State.STABLE, 2, "a2", True)
    assert sync_answer(sync(again, "a2", "i", 2, {}, 0), "a2") == b"1"
    for request in (
        lambda: heartbeat(again, "a", "i", 2, 0),
        lambda: join(again, joining("a", instance_id="i"), 0),
        lambda: check_commit(again, "a", "i", 2, transactional=True),
        lambda: leave(again, "a", "i", 0),
    ):
        with pytest.raises(FencedInstanceIdError):
            request()
    assert joined(group, "a2", instance_id="i", protocols=(("q", b""), ("p", b""))).state is State.STABLE
    assert list(leave(again, "", "i", 0).members) == ["b"]
    completing = join(joined(joined(EMPTY, "a", instance_id="i"), "b"), joining("a", instance_id="i"), 0)
    assert joined(completing, "a2", instance_id="i").state is State.PREPARING


def test_static_members_keep_their_place_in_a_rebalance_until_their_sessions_end():
    group = joined(joined(EMPTY, "a", instance_id="i"), "b")
    group = replace(group, members={key: replace(each, until_ms=1000) for key, each in group.members.items()})
    group = advance(group, REBALANCE_MS)
    assert (group.state, sorted(group.members), group.leader) == (State.COMPLETING, ["a", "b"], "b")


def test_the_protocol_that_most_members_prefer_is_chosen():
    group = joined(EMPTY, "a", protocols=(("x", b""), ("y", b"")))
    group = joined(group, "b", protocols=(("y", b""), ("z", b""), ("x", b"")))
    group = joined(group, "c", protocols=(("y", b""), ("x", b"")))
    group = join(group, joining("a", protocols=(("x", b""), ("y", b""))), 0)
    assert group.protocol == "y"
