"""Heartbeats of classic members say what the store says at that moment, whichever gateway they reach."""

import asyncio
from dataclasses import replace
from threading import Event, Thread

import pytest

from spark_log.gateway.groups.heartbeat_sharing import Heartbeats
from spark_log.groups.batch_rows import MEMBERS_MAX
from spark_log.groups.classic.group import Joining
from spark_log.groups.classic.service import join_classic
from spark_log.groups.consumer import rows
from spark_log.groups.consumer.rows import CLASSIC
from spark_log.groups.heartbeat_batches import Heartbeat, answer_heartbeats, renew_sessions
from spark_log.metadata import tables as t
from spark_log.replication.controller.topic_operations import add_partitions
from tests.support.classic_members import ClassicMember, settle
from tests.support.consumer_members import ConsumerMember, topic_ids
from tests.support.group_members import LONG_MS, Reader, move_session_end, session_until_ms
from tests.support.group_members import settle as settle_readers
from tests.support.topics import make
from tests.support.waiting import Worker, wait_until

NONE, ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, REBALANCE_IN_PROGRESS, FENCED_INSTANCE_ID = 0, 22, 25, 27, 82


@pytest.fixture
def translated(cluster, connect):
    """The group g has a member of the consumer protocol, of another topic: the cluster assigns."""
    make(cluster, "other", 1)
    ids = topic_ids(connect(), "other")
    assert ConsumerMember(connect(), "g", ids, subscribed_topic_names=["other"]).join().error_code == NONE


def join_beside(member, new):
    """A new member joins the classic group of another one, whose heartbeats tell it so."""
    new.send_join()
    while (code := member.beat()) == NONE:
        pass
    assert code == REBALANCE_IN_PROGRESS
    member.send_join()
    assert member.joined() == new.joined() == NONE
    for each in (member, new):
        each.send_sync()
    assert member.synced() == new.synced() == NONE


def test_each_change_of_a_classic_group_is_in_the_next_heartbeat(cluster, connect):
    make(cluster, "t", 4)
    first = ClassicMember(connect(), "g", ["t"])
    assert first.beat() == UNKNOWN_MEMBER_ID
    assert (first.join(), first.sync()) == (NONE, NONE)
    other_gateway = connect()
    assert [first.beat(), first.beat(other_gateway)] * 2 == [NONE] * 4
    second = ClassicMember(connect(), "g", ["t"])
    second.reserve()
    join_beside(first, second)
    settle(first, second)
    assert [len(member.owned["t"]) for member in (first, second)] == [2, 2]
    first.generation -= 1
    assert first.beat() == ILLEGAL_GENERATION
    first.generation += 1
    assert second.leave() == NONE
    assert (first.beat(), second.beat()) == (REBALANCE_IN_PROGRESS, UNKNOWN_MEMBER_ID)
    settle(first)
    assert first.owned == {"t": list(range(4))}
    static, successor = (ClassicMember(connect(), "g", ["t"], instance_id="i") for _ in range(2))
    join_beside(first, static)
    settle(first, static)
    assert successor.join() == NONE
    assert static.beat() == FENCED_INSTANCE_ID
    assert (successor.beat(), first.beat()) == (NONE, NONE)


def test_each_change_of_a_group_is_in_the_next_heartbeat(cluster, connect, translated):
    make(cluster, "t", 4)
    first = ClassicMember(connect(), "g", ["t"])
    assert first.beat() == UNKNOWN_MEMBER_ID
    assert (first.join(), first.sync()) == (NONE, NONE)
    other_gateway = connect()
    assert [first.beat(), first.beat(other_gateway)] * 2 == [NONE] * 4
    second = ClassicMember(connect(), "g", ["t"])
    assert second.join() == NONE
    assert first.beat() == REBALANCE_IN_PROGRESS
    settle(first, second)
    assert [len(member.owned["t"]) for member in (first, second)] == [2, 2]
    add_partitions(cluster, "t", 6)
    assert [member.beat() for member in (first, second)] == [REBALANCE_IN_PROGRESS] * 2
    settle(first, second)
    assert second.leave() == NONE
    assert (first.beat(), second.beat()) == (REBALANCE_IN_PROGRESS, UNKNOWN_MEMBER_ID)
    settle(first)
    assert first.owned == {"t": list(range(6))}
    static, successor = (ClassicMember(connect(), "g", ["t"], instance_id="i") for _ in range(2))
    assert static.join() == NONE
    settle(first, static)
    assert successor.join() == NONE
    assert static.beat() == FENCED_INSTANCE_ID
    settle(first, successor)


@pytest.mark.on_sqlite
def test_heartbeats_keep_a_session_and_notice_its_end(cluster, connect, translated):
    make(cluster, "t", 4)
    lively, silent = (ClassicMember(connect(), "g", ["t"], session_timeout_ms=LONG_MS) for _ in range(2))
    other_gateway = connect()
    for member in (lively, silent):
        assert member.join() == NONE
    settle(lively, silent)
    ends_ms = session_until_ms(cluster.store, lively.member_id)
    move_session_end(cluster.store, lively.member_id, ends_ms - LONG_MS // 2)
    wait_until(lambda: lively.beat() == NONE and session_until_ms(cluster.store, lively.member_id) >= ends_ms)
    move_session_end(cluster.store, silent.member_id, 0)
    wait_until(lambda: lively.beat(other_gateway) == REBALANCE_IN_PROGRESS)
    assert silent.beat() == UNKNOWN_MEMBER_ID
    settle(lively)
    assert len(lively.owned["t"]) == 4


@pytest.mark.parametrize(
    ("cluster_address", "assignor"),
    [("sqlite", "cooperative-sticky"), ("postgres", "range")],
    indirect=["cluster_address"],
)
def test_member_that_only_heartbeats_loses_its_partitions_at_its_rebalance_timeout(
    cluster, connect, translated, assignor
):
    """Its session would go on."""
    make(cluster, "t", 2)
    timeouts = {"session_timeout_ms": LONG_MS, "rebalance_timeout_ms": LONG_MS // 2}
    stuck = ClassicMember(connect(), "g", ["t"], assignor=assignor, **timeouts)
    assert (stuck.join(), stuck.sync()) == (NONE, NONE)
    settle(stuck)
    assert (stuck.owned, rejoin_by(cluster, stuck)) == ({"t": [0, 1]}, None)
    codes, ends_ms, ended = set(), [], Event()

    def beat():
        while not ended.is_set():
            codes.add(stuck.beat())
            if REBALANCE_IN_PROGRESS in codes and not ends_ms:  # the JoinGroup of `other` waits
                ends_ms.extend((session_until_ms(cluster.store, stuck.member_id), rejoin_by(cluster, stuck)))
                end_time_to_rejoin(cluster, stuck)

    thread = Thread(target=beat)
    thread.start()
    try:
        other = ClassicMember(connect(), "g", ["t"], assignor=assignor, rebalance_timeout_ms=30_000)
        assert other.join() == NONE
        while other.owned != {"t": [0, 1]}:
            other.sync()
            if other.beat() == REBALANCE_IN_PROGRESS:
                assert other.join() == NONE
    finally:
        ended.set()
        thread.join()
    session_ms, rejoin_ms = ends_ms
    assert session_ms == rejoin_ms
    assert {REBALANCE_IN_PROGRESS} <= codes <= {NONE, REBALANCE_IN_PROGRESS, UNKNOWN_MEMBER_ID}
    assert stuck.beat() == UNKNOWN_MEMBER_ID
    settle(other)
    assert rejoin_by(cluster, other) is None


def rejoin_by(cluster, member):
    found = cluster.store.read(lambda connection: rows.read_member(connection, "g", member.member_id))
    return found.epochs.revoke_by_ms


def end_time_to_rejoin(cluster, member):
    """Let the member's rebalance timeout be over."""

    def end(connection):
        found = rows.read_member(connection, "g", member.member_id)
        assert found.epochs.revoke_by_ms is not None
        epochs = replace(found.epochs, revoke_by_ms=0)
        rows.save_member(connection, "g", replace(found, epochs=epochs, until_ms=0))

    cluster.store.transact(end, announce=True)


@pytest.mark.on_sqlite
def test_member_that_joins_again_in_time_stays(cluster, connect, translated):
    make(cluster, "t", 2)
    slow = ClassicMember(connect(), "g", ["t"], rebalance_timeout_ms=60_000)
    assert (slow.join(), slow.sync()) == (NONE, NONE)
    other = ClassicMember(connect(), "g", ["t"])
    assert other.join() == NONE
    assert slow.beat() == REBALANCE_IN_PROGRESS
    by_ms = rejoin_by(cluster, slow)
    assert by_ms is not None
    assert slow.beat() == REBALANCE_IN_PROGRESS
    assert rejoin_by(cluster, slow) == by_ms, "a heartbeat gives it no more time"
    settle(slow, other)
    assert [len(member.owned["t"]) for member in (slow, other)] == [1, 1]
    assert (rejoin_by(cluster, slow), rejoin_by(cluster, other)) == (None, None)


def test_heartbeats_at_the_same_time_have_answers_of_their_own(cluster, connect):
    """Also while something is committed all the time, which lets no earlier answer be used again. NUL is a character
    that PostgreSQL refuses.
    """
    make(cluster, "t", 1)
    members = [ClassicMember(connect(), f"g{number}", ["t"]) for number in range(12)]
    for member in members:
        assert (member.join(), member.sync()) == (NONE, NONE)
    others = [f"other{number}" for number in range(1_000)]

    def commit(stop):
        while not stop.is_set() and others:
            make(cluster, others.pop())

    committing = Worker(commit)
    try:
        for member in members[::4]:
            member.generation -= 1
        for member in members[1::4]:
            member.member_id = "unknown\0"
        wanted = [ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, NONE, NONE] * 3
        for _ in range(20):
            for member in members:
                member.send_beat()
            assert [member.receive_beat() for member in members] == wanted
    finally:
        committing.finish()


@pytest.mark.parametrize("group_type", ["classic", "consumer"])
def test_many_members_are_read_and_renewed_together(cluster, connect, group_type, request):
    if group_type == "consumer":
        request.getfixturevalue("translated")
    make(cluster, "t", 1)
    member = ClassicMember(connect(), "g", ["t"])
    assert (member.join(), member.sync()) == (NONE, NONE)
    known = Heartbeat("g", member.member_id, None, member.generation, member.member_id, CLASSIC)
    for count in (1, 2, 3, MEMBERS_MAX):
        beats = [known, *(Heartbeat(f"g{number}", "m", "i", 1, "m") for number in range(count - 1))]
        answers = answer_heartbeats(cluster.store, beats)
        assert [answer.error is None for answer in answers] == [True] + [False] * (count - 1)
        assert renew_sessions(cluster.store, beats) == [True] + [False] * (count - 1)


def heartbeat_of_a_member(cluster, group_id, group_type):
    """A heartbeat of the only member of a group."""
    if group_type == "classic":
        join_classic(cluster.store, group_id, Joining("", "m", None, "", "", "p", (("p", b""),), LONG_MS, LONG_MS))
        return Heartbeat(group_id, "m", None, 1, "m", CLASSIC)
    reader = Reader(cluster, group=group_id)
    settle_readers(reader)
    return Heartbeat(group_id, reader.member.member_id, None, reader.member.generation, reader.member.member_id)


@pytest.mark.parametrize(
    ("group_type", "table", "column"),
    [("consumer", t.group_member, "subscription"), ("classic", t.classic_group, "state")],
)
async def test_a_damaged_row_of_a_group_fails_no_heartbeat_of_another_group(cluster, group_type, table, column):
    make(cluster, "t", 1)
    beats = [heartbeat_of_a_member(cluster, group_id, group_type) for group_id in ("bad", "good")]
    damage = table.update().where(table.c.group_id == "bad").values({column: "{"})
    cluster.store.transact(lambda connection: connection.execute(damage))
    heartbeats = Heartbeats(cluster.store, asyncio.to_thread)
    bad, good = await asyncio.gather(*map(heartbeats.answer, beats), return_exceptions=True)
    assert isinstance(bad, ValueError)
    assert (good.error, good.alone, good.rejoin) == (None, False, False)
