"""The consumer protocol (KIP-848), request by request through two gateways."""

import contextlib
import json
from dataclasses import replace

import pytest
from kafka.protocol.admin import DescribeGroupsRequest, ListGroupsRequest
from typer.testing import CliRunner

from spark_log import Admin
from spark_log.cli.main import app
from spark_log.cluster.settings import alter_settings
from spark_log.gateway.protocol.schemas import ConsumerGroupDescribeRequest
from spark_log.groups.consumer import rows
from spark_log.groups.heartbeat_batches import Heartbeat, answer_heartbeats
from spark_log.replication.controller.topic_operations import add_partitions, delete_topic
from tests.support.classic_members import ClassicMember
from tests.support.consumer_members import (
    LEAVE_AND_RETURN,
    MEMBERS_MAX,
    TOPICS,
    ConsumerMember,
    observations,
    topic_ids,
)
from tests.support.gateway_wire import WireConnection
from tests.support.group_members import LONG_MS, move_session_end, session_until_ms
from tests.support.server_processes import GatewayProcess
from tests.support.topics import make
from tests.support.waiting import wait_until

NONE, NOT_AVAILABLE, UNKNOWN_MEMBER_ID, GROUP_ID_NOT_FOUND = 0, 15, 25, 69


FENCED_INSTANCE_ID, UNRELEASED_INSTANCE_ID = 82, 111


# Recorded with `python -m scripts.conformance consumer-groups` on a broker of Kafka 4.4.0 that assigns at once.
OBSERVED = """\
joins: epoch 2, 4 of t
joins again: epoch 2, 4 of t
says everything: epoch 2, 4 of t
says nothing: epoch 2, unchanged
second joins: epoch 3, none
first must revoke: epoch 2, 4 of t
first says nothing: epoch 2, unchanged
second waits: epoch 3, unchanged
first says that it has all: epoch 2, 2 of t
first has revoked: epoch 3, unchanged
second gets its part: epoch 3, 2 of t
second reports: epoch 3, unchanged
last epoch, answer lost: epoch 3, unchanged
last epoch, reports nothing: error 110
greater epoch: error 110
commits: [0, 0, 113, 113]
fetches: [(0, 5), (113, None), (113, None), (113, None)]
not a member commits and fetches: (25, (25, None))
group is full: error 81
not a member leaves: error 25
unknown group: ('error 69', 'error 69')
first subscribes another topic: epoch 3, none
and has revoked: epoch 4, 2 of u
second gets all: epoch 4, 4 of t
first subscribes nothing: epoch 4, none
and has revoked: epoch 5, unchanged
invalid expression: error 128
assignor: epoch 6, unchanged
unknown assignor: error 112
leaves: epoch -1, unchanged
leaves again: error 25
second stays: epoch 7, unchanged
second leaves: epoch -1, unchanged
joins with no rebalance timeout: error 42
joins with no subscription: error 42
joins with owned left out: error 42
joins with no member id: error 42
joins with no group id: error 42
joins with empty instance id: error 42
joins with empty rack: error 42
joins with epoch -3: error 42
joins with epoch -2 without instance id: error 42
joins with unknown assignor: error 112
joins with an empty expression: epoch 1, none
version 0 without member id: ('epoch 2, 4 of t', True)
static member joins: epoch 2, 4 of t
another with its instance id: error 111
leaves for a while: epoch -2, unchanged
heartbeat after that: error 110
another with its instance id now: epoch 2, 4 of t
heartbeat of the other: epoch 2, unchanged
heartbeat of the first: error 25
heartbeat of the first with instance id: error 82
first leaves: error 82
other leaves for a while: epoch -2, unchanged
and returns: epoch 2, 4 of t
leaves for good: epoch -1, unchanged
joins again: epoch 4, 4 of t
"""


def test_gateway_answers_each_request_as_a_broker_does(cluster, cluster_address, tmp_path):
    alter_settings(cluster, {"group.consumer.max.size": str(MEMBERS_MAX)})
    for name, partitions in TOPICS.items():
        make(cluster, name, partitions)
    with GatewayProcess(tmp_path, cluster_address) as gateway:
        assert "\n".join(observations(gateway.port)) == OBSERVED.strip()
        assert "Traceback" not in gateway.output


def settle(*members):
    """Heartbeats, with what they own, until all have the epoch of the group and nothing changes."""
    for _ in range(20):
        before = [(each.epoch, each.owned) for each in members]
        for each in members:
            while each.beat(owned=True).error_code == NOT_AVAILABLE:
                pass
        if before == [(each.epoch, each.owned) for each in members] and len({each.epoch for each in members}) == 1:
            return
    raise AssertionError("the group does not settle")


def partitions_of(*members):
    return sorted((topic, number) for each in members for topic, found in each.owned.items() for number in found)


def test_each_heartbeat_may_reach_another_gateway(cluster, connect):
    make(cluster, "t", 6)
    ids = topic_ids(connect(), "t")
    members = [ConsumerMember(connect(), "g", ids, subscribed_topic_names=["t"]) for _ in range(3)]
    for each in members:
        assert each.join().error_code == NONE
    settle(*members)
    for _ in range(2):
        for each in members:
            each.wire = connect()
        settle(*members)
    assert partitions_of(*members) == [("t", number) for number in range(6)]
    assert [len(each.owned["t"]) for each in members] == [2, 2, 2]
    add_partitions(cluster, "t", 9)
    for each in members:
        each.wire = connect()
    settle(*members)
    assert [len(each.owned["t"]) for each in members] == [3, 3, 3]


@pytest.mark.on_sqlite
def test_heartbeat_that_comes_late_through_another_gateway_releases_nothing(cluster, connect):
    make(cluster, "t", 2)
    ids = topic_ids(connect(), "t")
    first, second = (ConsumerMember(connect(), "g", ids, subscribed_topic_names=["t"]) for _ in range(2))
    assert first.join().error_code == NONE
    first.full()
    late = first.request(topic_partitions=[], **first.subscription)
    late_wire, first.wire = first.wire, connect()
    first.full()
    second.join()
    told = first.beat(accept=False)
    assert len(told.assignment.topic_partitions[0].partitions) == 1
    late_wire.exchange(late, 1)
    assert second.beat().assignment is None, "the first member still has its partitions"
    assert first.beat(accept=False).error_code == NONE
    first.accept(told)
    assert first.beat().error_code == NOT_AVAILABLE, "it must say again what it owns"
    assert first.full().error_code == NONE
    assert first.epoch == second.epoch
    settle(first, second)
    assert partitions_of(first, second) == [("t", 0), ("t", 1)]


@pytest.mark.on_sqlite
def test_member_gives_up_partitions_after_a_change_of_its_connection(cluster, connect):
    """Its heartbeats say nothing new until it is told of the change."""
    make(cluster, "t", 2)
    ids = topic_ids(connect(), "t")
    first, second = (ConsumerMember(connect(), "g", ids, subscribed_topic_names=["t"]) for _ in range(2))
    first.join()
    first.wire = connect()
    assert first.full().error_code == first.beat().error_code == NONE
    second.join()
    assert len(partitions_of(first)) == 2
    assert first.beat().error_code == NONE
    assert len(partitions_of(first)) == 1
    assert first.beat(owned=True).error_code == second.beat().error_code == NONE
    assert partitions_of(first, second) == [("t", 0), ("t", 1)]


@pytest.mark.on_sqlite
def test_member_that_does_not_revoke_in_time_is_removed(cluster, connect):
    make(cluster, "t", 2)
    ids = topic_ids(connect(), "t")
    busy = ConsumerMember(connect(), "g", ids, subscribed_topic_names=["t"], rebalance_timeout_ms=700)
    other = ConsumerMember(connect(), "g", ids, subscribed_topic_names=["t"])
    assert (busy.join().error_code, other.join().error_code) == (NONE, NONE)
    wait_until(lambda: other.beat() and busy.beat(accept=False).error_code == UNKNOWN_MEMBER_ID, "its end")
    settle(other)
    assert partitions_of(other) == [("t", 0), ("t", 1)]


def test_session_ends_without_heartbeats_and_is_kept_by_them(cluster, cluster_address, tmp_path):
    alter_settings(cluster, {"group.consumer.session.timeout.ms": f"{LONG_MS}"})
    make(cluster, "t", 2)
    with GatewayProcess(tmp_path, cluster_address) as gateway, contextlib.ExitStack() as stack:
        lively, silent, static = (
            ConsumerMember(
                stack.enter_context(WireConnection(gateway.port)), "g", topic_ids(WireConnection(gateway.port), "t"),
                subscribed_topic_names=["t"], instance_id=instance,
            )
            for instance in (None, None, "i")
        )  # fmt: skip
        for each in (lively, silent, static):
            assert each.join().error_code == NONE
        settle(lively, silent, static)
        assert len(partitions_of(lively)) == 1
        assert static.leave(LEAVE_AND_RETURN).member_epoch == LEAVE_AND_RETURN

        def beats():
            assert lively.beat(owned=True).error_code == NONE
            return True

        ends_ms = session_until_ms(cluster.store, lively.member_id)
        move_session_end(cluster.store, lively.member_id, ends_ms - LONG_MS // 2)
        wait_until(lambda: beats() and session_until_ms(cluster.store, lively.member_id) >= ends_ms)
        for each in (silent, static):
            move_session_end(cluster.store, each.member_id, 0)
        wait_until(lambda: beats() and len(partitions_of(lively)) == 2)
        assert silent.beat().error_code == UNKNOWN_MEMBER_ID


def test_heartbeats_that_say_nothing_new_are_answered_beside_others(cluster, connect):
    """Only those that are accepted renew the session."""
    make(cluster, "t", 1)
    member = ConsumerMember(connect(), "g", topic_ids(connect(), "t"), subscribed_topic_names=["t"], instance_id="i")
    member.join()
    settle(member)

    def answer(connection_id, instance_id):
        [found] = answer_heartbeats(
            cluster.store, [Heartbeat("g", member.member_id, instance_id, member.epoch, connection_id)]
        )
        return found.alone, found.renewal_due

    def write(connection):
        row = rows.read_member(connection, "g", member.member_id)
        rows.save_member(connection, "g", replace(row, until_ms=cluster.store.clock(connection).lease_ms + 10_000))
        return row.epochs.connection_id

    own = cluster.store.transact(write)
    assert [answer(own, instance) for instance in (None, "i", "j")] == [(False, True), (False, True), (True, False)]
    assert answer("another", "i") == (True, False)


@pytest.mark.on_sqlite
def test_names_that_cannot_be_stored_are_refused(cluster, connect):
    make(cluster, "t", 1)
    ids = topic_ids(connect(), "t")

    def joins(**fields):
        member = ConsumerMember(connect(), "g", ids, subscribed_topic_names=["t"])
        return member.join(**fields).error_code

    assert [joins(**{name: text}) for name in ("member_id", "rack_id") for text in ("\0", "m" * 250)] == [42] * 4
    assert [joins(subscribed_topic_regex=text) for text in ("\0", "m" * 4_097)] == [128] * 2
    assert joins(member_id="m" * 249, rack_id="r" * 249, subscribed_topic_regex="m" * 4_096) == NONE
    member = ConsumerMember(connect(), "g", ids)
    member.member_id, member.epoch = "\0", 1
    assert member.beat().error_code == 42


@pytest.mark.on_sqlite
def test_expression_finds_new_topics_and_forgets_deleted_ones(cluster, connect):
    make(cluster, "orders-1", 1)
    ids = topic_ids(connect(), "orders-1")
    member = ConsumerMember(connect(), "g", ids, subscribed_topic_regex="orders-.*")
    assert member.join().error_code == NONE
    assert partitions_of(member) == [("orders-1", 0)]
    make(cluster, "orders-2", 2)
    make(cluster, "other-orders-3", 2)
    member.learn(topic_ids(connect(), "orders-2"))
    settle(member)
    assert partitions_of(member) == [("orders-1", 0), ("orders-2", 0), ("orders-2", 1)]
    delete_topic(cluster, "orders-1")
    settle(member)
    assert partitions_of(member) == [("orders-2", 0), ("orders-2", 1)]


@pytest.mark.on_sqlite
def test_topic_that_is_created_again_is_told_with_its_new_id(cluster, connect):
    make(cluster, "t", 1)
    ids = topic_ids(connect(), "t")
    member = ConsumerMember(connect(), "g", ids, subscribed_topic_names=["t"])
    member.join()
    settle(member)
    delete_topic(cluster, "t")
    make(cluster, "t", 1)
    [new] = topic_ids(connect(), "t").values()
    assert new != ids["t"]
    member.learn({"t": new})
    answer = member.beat()
    assert [each.topic_id for each in answer.assignment.topic_partitions] == [new]


@pytest.mark.on_sqlite
def test_groups_are_described_with_their_type_and_epochs(cluster, cluster_address, connect):
    make(cluster, "t", 4)
    ids = topic_ids(connect(), "t")
    new = ConsumerMember(connect(), "new", ids, subscribed_topic_names=["t"], rack_id="r", instance_id="i")
    assert new.join().error_code == NONE
    classic = ClassicMember(connect(), "classic", ["t"])
    assert (classic.join(), classic.sync()) == (NONE, NONE)
    wire = connect()
    listed = wire.exchange(ListGroupsRequest(states_filter=[], types_filter=[]), 5).groups
    assert {(each.group_id, each.group_type, each.group_state) for each in listed} == {
        ("new", "consumer", "Stable"), ("classic", "classic", "Stable"),
    }  # fmt: skip
    [found, other, unknown] = wire.exchange(
        ConsumerGroupDescribeRequest(group_ids=["new", "classic", "nowhere"], include_authorized_operations=True), 1
    ).groups
    assert (found.group_state, found.group_epoch, found.assignment_epoch, found.assignor_name) == (
        "Stable", 2, 2, "uniform",
    )  # fmt: skip
    [member] = found.members
    assert (member.member_id, member.instance_id, member.rack_id, member.member_epoch, member.member_type) == (
        new.member_id, "i", "r", 2, 1,
    )  # fmt: skip
    assert (member.subscribed_topic_names, member.subscribed_topic_regex) == (["t"], None)
    [parts] = member.assignment.topic_partitions
    assert (parts.topic_id, parts.topic_name, sorted(parts.partitions)) == (ids["t"], "t", [0, 1, 2, 3])
    assert found.authorized_operations == sum(1 << operation for operation in (3, 6, 8, 10, 11))
    assert (other.error_code, unknown.error_code) == (GROUP_ID_NOT_FOUND, GROUP_ID_NOT_FOUND)
    mixed = ClassicMember(connect(), "new", ["t"])
    assert mixed.join() == NONE
    [found] = wire.exchange(
        ConsumerGroupDescribeRequest(group_ids=["new"], include_authorized_operations=False), 1
    ).groups
    assert {each.member_id: each.member_type for each in found.members} == {new.member_id: 1, mixed.member_id: 0}
    [described] = wire.exchange(DescribeGroupsRequest(groups=["new"], include_authorized_operations=False), 5).groups
    assert len(described.members) == 2
    for version, code, message in ((5, NONE, None), (6, GROUP_ID_NOT_FOUND, "Group none not found.")):
        [gone] = wire.exchange(
            DescribeGroupsRequest(groups=["none"], include_authorized_operations=False), version
        ).groups
        assert (gone.error_code, gone.error_message, gone.group_state) == (code, message, "Dead")
    with contextlib.closing(Admin(cluster=cluster_address)) as admin:
        told = admin.describe_groups(["new"])["new"]
    assert (told["group_type"], {each["member_protocol"] for each in told["members"]}) == (
        "consumer", {"consumer", "classic"},
    )  # fmt: skip
    shown = CliRunner().invoke(app, ["group", "describe", "new", "--cluster", cluster_address, "--json"])
    assert json.loads(shown.stdout)["type"] == "consumer"


@pytest.mark.on_sqlite
def test_static_members_are_upgraded_and_downgraded_at_once(cluster, connect):
    """As in Kafka: only between members of this protocol must the first one have left."""
    make(cluster, "t", 2)
    ids = topic_ids(connect(), "t")
    old = ClassicMember(connect(), "g", ["t"], instance_id="i")
    assert (old.join(), old.sync()) == (NONE, NONE)
    new, other = (ConsumerMember(connect(), "g", ids, subscribed_topic_names=["t"], instance_id="i") for _ in range(2))
    assert new.join().error_code == NONE
    settle(new)
    assert partitions_of(new) == [("t", 0), ("t", 1)]
    assert old.beat() == FENCED_INSTANCE_ID
    assert other.join().error_code == UNRELEASED_INSTANCE_ID
    stranger = ClassicMember(connect(), "g", ["t"])
    stranger.member_id = new.member_id
    assert stranger.leave() == UNKNOWN_MEMBER_ID, "classic members leave by this request"
    back = ClassicMember(connect(), "g", ["t"], instance_id="i")
    assert (back.join(), back.sync()) == (NONE, NONE)
    assert new.beat().error_code == UNKNOWN_MEMBER_ID
    back.settle()
    assert back.owned == {"t": [0, 1]}
