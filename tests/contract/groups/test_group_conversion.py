"""A group of consumers changes its type while it has members (`group.consumer.migration.policy`)."""

import asyncio
import contextlib
import gc
import json
import tracemalloc
import weakref
from dataclasses import replace

import pytest
from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription

from spark_log import Consumer
from spark_log.cluster.settings import alter_settings
from spark_log.errors import (
    GroupMaxSizeReachedError,
    IllegalArgumentError,
    InconsistentGroupProtocolError,
    NonEmptyGroupError,
)
from spark_log.facts.groups import describe_groups, list_groups
from spark_log.gateway.groups import translated_members
from spark_log.gateway.groups.heartbeat_sharing import Heartbeats
from spark_log.gateway.groups.translated_members import Joining
from spark_log.groups.assignors import known_assignors
from spark_log.groups.classic import rules
from spark_log.groups.classic.limits import BYTES_MAX
from spark_log.groups.classic.service import join_classic
from spark_log.groups.consumer.heartbeat import ConsumerHeartbeat
from spark_log.groups.consumer.reconciliation import reconcile_group
from spark_log.groups.consumer.rules import NO_PARTITIONS, TOPICS_MAX
from spark_log.groups.consumer.service import consumer_heartbeat
from spark_log.groups.consumer.stored_values import subscription_of
from spark_log.groups.group_operations import delete_offsets
from spark_log.groups.heartbeat_batches import Heartbeat, answer_heartbeats
from spark_log.groups.identity import Identity
from spark_log.ids import TopicPartition
from spark_log.metadata import tables as t
from tests.support.classic_members import ClassicMember, rebalance, settle
from tests.support.consumer_members import ConsumerMember, topic_ids
from tests.support.gateway_wire import WireConnection
from tests.support.server_processes import GatewayProcess
from tests.support.topics import make

NONE, UNKNOWN_MEMBER_ID, REBALANCE_IN_PROGRESS, GROUP_ID_NOT_FOUND = 0, 25, 27, 69
PARTITIONS = 6


@pytest.fixture
def connect(cluster, gateway):
    make(cluster, "t", PARTITIONS)
    with contextlib.ExitStack() as stack:
        yield lambda: stack.enter_context(WireConnection(gateway.port))


@pytest.fixture
def classic(connect):
    """Two classic members with three partitions each."""
    members = [ClassicMember(connect(), "g", ["t"]) for _ in range(2)]
    rebalance(*members)
    settle(*members)
    assert sorted(len(member.owned["t"]) for member in members) == [3, 3]
    return members


def new_member(connect):
    return ConsumerMember(connect(), "g", topic_ids(connect(), "t"), subscribed_topic_names=["t"])


def described(cluster):
    [group] = describe_groups(cluster.store, ["g"])
    return group


def numbers(*members):
    return sorted(number for member in members for number in member.owned.get("t", ()))


def join_again(*members):
    """As clients do that a heartbeat tells so."""
    for member in members:
        if member.beat() == REBALANCE_IN_PROGRESS:
            assert member.join() == NONE
            assert member.sync() in (NONE, REBALANCE_IN_PROGRESS)


def test_members_of_a_classic_group_go_on_when_it_is_upgraded(cluster, connect, classic):
    generation = classic[0].generation
    new = new_member(connect)
    assert new.join().error_code == NONE
    group = described(cluster)
    assert (group.type, {each.protocol for each in group.members}) == ("consumer", {"classic", "consumer"})
    assert {each.member_id for each in group.members} == {new.member_id, *(each.member_id for each in classic)}
    assert group.generation > generation
    assert new.owned == {}, "the others may still read everything"
    while not len(new.owned.get("t", ())) == 2 == len(classic[0].owned["t"]) == len(classic[1].owned["t"]):
        join_again(*classic)
        assert new.beat(owned=True).error_code == NONE
        assert len(numbers(new, *classic)) == len(set(numbers(new, *classic)))
    assert numbers(new, *classic) == list(range(PARTITIONS))
    settle(*classic)


def test_a_group_is_downgraded_when_its_last_other_member_leaves(cluster, connect, classic):
    new = new_member(connect)
    assert new.join().error_code == NONE
    while len(new.owned.get("t", ())) < 2:
        join_again(*classic)
        assert new.beat(owned=True).error_code == NONE
    settle(*classic)
    before = [member.owned for member in classic]
    assert new.leave().error_code == NONE
    group = described(cluster)
    assert (group.type, group.state, group.generation) == ("classic", "PreparingRebalance", classic[0].generation)
    assert [member.beat() for member in classic] == [REBALANCE_IN_PROGRESS] * 2, "in the epoch that they know"
    assert [member.owned for member in classic] == before
    settle(*classic)
    assert numbers(*classic) == list(range(PARTITIONS))
    group = described(cluster)
    assert group.state == "Stable"
    reconcile_group(cluster.store, "g", known_assignors())
    assert described(cluster).generation == group.generation, "it is left to its leader"
    assert [member.beat() for member in classic] == [NONE, NONE]


@pytest.mark.on_sqlite
@pytest.mark.parametrize("notices", ["a coordinator", "a member that joins"])
def test_a_group_is_downgraded_when_its_last_other_member_has_died(cluster, connect, classic, notices):
    new = new_member(connect)
    assert new.join().error_code == NONE
    settle(*classic)
    ended = t.group_member.update().where(t.group_member.c.member_id == new.member_id).values(until_ms=0)
    cluster.store.transact(lambda connection: connection.execute(ended), announce=True)
    if notices == "a coordinator":
        reconcile_group(cluster.store, "g", known_assignors())
        assert described(cluster).type == "classic"
    settle(*classic)
    assert described(cluster).type == "classic"
    assert numbers(*classic) == list(range(PARTITIONS))


@pytest.mark.on_sqlite
def test_a_join_that_waits_is_told_of_the_upgrade(cluster, connect, classic):
    late = ClassicMember(connect(), "g", ["t"])
    late.reserve()
    late.send_join()
    while classic[0].beat() != REBALANCE_IN_PROGRESS:
        pass
    assert new_member(connect).join().error_code == NONE
    assert late.joined() == REBALANCE_IN_PROGRESS
    assert late.join() == NONE, "with the same member id"
    assert late.member_id in {each.member_id for each in described(cluster).members}


@pytest.mark.on_sqlite
@pytest.mark.parametrize(
    ("policy", "code", "types"),
    [("disabled", GROUP_ID_NOT_FOUND, ["classic"]), ("upgrade", NONE, ["consumer", "consumer"]),
     ("downgrade", GROUP_ID_NOT_FOUND, ["classic"])],
)  # fmt: skip
def test_policy_says_which_change_is_allowed(cluster, cluster_address, tmp_path, policy, code, types):
    make(cluster, "t", PARTITIONS)
    alter_settings(cluster, {"group.consumer.migration.policy": policy})
    with GatewayProcess(tmp_path, cluster_address) as gateway, contextlib.ExitStack() as stack:
        old = ClassicMember(stack.enter_context(WireConnection(gateway.port)), "g", ["t"])
        old.settle()
        new = new_member(lambda: stack.enter_context(WireConnection(gateway.port)))
        assert new.join().error_code == code
        assert described(cluster).type == types[0]
        if code == NONE:
            assert new.leave().error_code == NONE
            settle(old)
            assert described(cluster).type == types[1]
        assert numbers(old) == list(range(PARTITIONS))


@pytest.mark.on_sqlite
def test_consumers_of_spark_log_upgrade_a_group(cluster, connect, classic, cluster_address):
    with Consumer("t", cluster=cluster_address, group_id="g") as ours:
        while len(ours.assignment()) < 2:
            ours.poll(timeout_ms=50)
            join_again(*classic)
        assert described(cluster).type == "consumer"
    assert described(cluster).type == "classic"
    settle(*classic)
    assert numbers(*classic) == list(range(PARTITIONS))


@pytest.mark.on_sqlite
def test_group_with_a_custom_assignor_is_not_upgraded(cluster, connect):
    old = ClassicMember(connect(), "g", ["t"], assignor="custom")
    old.settle()
    assert new_member(connect).join().error_code == GROUP_ID_NOT_FOUND
    assert (old.beat(), described(cluster).type) == (NONE, "classic")


def test_names_and_partitions_that_cannot_be_are_not_taken_over(cluster, connect):
    """A member may claim anything; what others share with it must not fail for that."""
    hostile = ClassicMember(connect(), "g", ["t", "a\0b"])
    hostile.owned = {"t": [*range(-3, 0), 0, PARTITIONS]}
    assert (hostile.join(), hostile.sync()) == (NONE, NONE)
    hostile.owned = {"t": [*range(-3, 0), 0, PARTITIONS]}
    assert hostile.join() == NONE, "the leader joins again, and has not assigned yet"
    new = new_member(connect)
    assert new.join().error_code == NONE
    [old] = [each for each in described(cluster).members if each.member_id == hostile.member_id]
    assert old.topics == {"t"}
    assert {each.partition for each in old.assignment} <= set(range(PARTITIONS))
    assert hostile.beat() == REBALANCE_IN_PROGRESS


@pytest.mark.on_sqlite
def test_metadata_of_translated_members_is_bounded(cluster):
    make(cluster, "t", 1)
    with Consumer("t", cluster=str(cluster.store.address), group_id="g") as ours:
        while not ours.assignment():
            ours.poll(timeout_ms=50)
        topics = frozenset({"t"})

        def join(member_id, size):
            me = Identity("g", member_id, None, "c", "here", 30_000)
            joining = Joining(me, topics, (("range", b"x" * size),), frozenset(), 30_000)
            translated_members.join(cluster.store, joining)

        join("first", BYTES_MAX // 2)
        with pytest.raises(GroupMaxSizeReachedError):
            join("second", BYTES_MAX // 2)
        join("second", 1_000)
        join("first", BYTES_MAX // 2 - 1)


@pytest.mark.on_sqlite
def test_unknown_member_of_an_emptied_group_takes_a_new_id(cluster, connect):
    """The type of a group without members stays until one joins."""
    new = new_member(connect)
    assert (new.join().error_code, new.leave().error_code) == (NONE, NONE)
    assert described(cluster).type == "consumer"
    old = ClassicMember(connect(), "g", ["t"])
    old.member_id = "of-an-earlier-life"
    assert old.join() == UNKNOWN_MEMBER_ID


def large_groups(cluster, count):
    """Classic groups of consumers with 1 MB of metadata each."""
    metadata = ConsumerProtocolSubscription(version=0, topics=["t"], user_data=b"x" * 1_000_000).encode()
    for number in range(count):
        joining = rules.Joining("", "a", None, "c", "h", "consumer", (("range", metadata),), 60_000, 60_000)
        join_classic(cluster.store, f"g{number}", joining)


def joining_with(names):
    me = Identity("g0", "b", None, "c", "h")
    return ConsumerHeartbeat(
        me, "connection", 0, rebalance_timeout_ms=1_000, names=frozenset(names), owned=NO_PARTITIONS
    )


def test_large_metadata_is_not_decoded_in_a_transaction(cluster, monkeypatch):
    """Others may wait for the transaction, and the request that costs it is small."""
    large_groups(cluster, 1)
    with monkeypatch.context() as patched:
        patched.setattr(cluster.store, "transact", None)
        with pytest.raises(InconsistentGroupProtocolError, match="too much metadata"):
            consumer_heartbeat(cluster.store, joining_with(["t"]), known_assignors())
    with pytest.raises(NonEmptyGroupError):
        delete_offsets(cluster.store, "g0", [TopicPartition("t", 0)])


@pytest.mark.on_sqlite
def test_a_member_subscribes_to_a_limited_number_of_names(cluster):
    names = [f"t{number}" for number in range(TOPICS_MAX + 1)]
    with pytest.raises(IllegalArgumentError, match="5001 names"):
        consumer_heartbeat(cluster.store, joining_with(names), known_assignors())
    assert consumer_heartbeat(cluster.store, joining_with(names[1:]), known_assignors()).epoch == 2


@pytest.mark.on_sqlite
def test_different_subscriptions_of_a_group_are_limited(cluster):
    """They are all read for each change of the group; those that are equal are one."""

    def join(member, names):
        beat = joining_with(f"{names}{'x' * 230}{number}" for number in range(TOPICS_MAX))
        consumer_heartbeat(cluster.store, replace(beat, me=replace(beat.me, member_id=member)), known_assignors())

    for number in range(6):
        join(f"same{number}", "t")
    join("other", "u")
    join("third", "v")
    with pytest.raises(GroupMaxSizeReachedError, match="subscriptions"):
        join("fourth", "w")


@pytest.mark.on_sqlite
def test_a_read_for_heartbeats_decodes_a_limited_number_of_characters(cluster):
    """The others wait for it; members with much are asked for in later reads."""
    beats = []
    for number, names in enumerate((TOPICS_MAX, TOPICS_MAX, TOPICS_MAX, 1)):
        beat = joining_with(f"{number}{'x' * 230}{each}" for each in range(names))
        beat = replace(beat, me=replace(beat.me, group_id=f"g{number}"))
        epoch = consumer_heartbeat(cluster.store, beat, known_assignors()).epoch
        beats.append(Heartbeat(beat.me.group_id, beat.me.member_id, None, epoch, beat.connection_id))
    assert [each.later for each in answer_heartbeats(cluster.store, beats)] == [False, True, True, False]

    async def answers():
        heartbeats = Heartbeats(cluster.store, asyncio.to_thread)
        return await asyncio.gather(*map(heartbeats.answer, beats))

    assert not any(each.later or each.alone for each in asyncio.run(answers()))


def test_a_list_of_groups_has_no_metadata_in_memory(cluster):
    large_groups(cluster, 8)
    tracemalloc.start()
    try:
        assert len(list_groups(cluster.store)) == 8
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
        assert {group.topics for group in list_groups(cluster.store, with_topics=True)} == {frozenset(["t"])}
    finally:
        tracemalloc.stop()


def test_long_subscriptions_are_not_remembered_without_end():
    first, *others = (json.dumps({"topics": [f"{n}" * 1_000_000], "assignors": []}) for n in range(4))
    found = weakref.ref(subscription_of(first))
    assert subscription_of(first) is found()
    for text in others:
        subscription_of(text)
    gc.collect()
    assert found() is None
