"""Groups whose leader assigns (Kafka Connect, Kafka Streams, custom assignors), through two gateways on both stores."""

import contextlib
from functools import partial

import kafka
import pytest
import sqlalchemy as sa
from kafka.coordinator.assignors.abstract import AbstractPartitionAssignor
from kafka.protocol.admin import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    ListGroupsRequest,
)
from kafka.protocol.consumer import OffsetFetchRequest
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment, ConsumerProtocolSubscription

from spark_log import Consumer
from spark_log.errors import InconsistentGroupProtocolError, NonEmptyGroupError, UnknownMemberIdError
from spark_log.facts.groups import describe_groups, group_lag, list_groups
from spark_log.groups.committed_offsets import commit_offsets, committed_offsets
from spark_log.groups.consumer.reconciliation import reconcile_group, stale_groups
from spark_log.groups.group_operations import delete_group, remove_from_group
from spark_log.ids import TopicPartition
from spark_log.metadata import tables as t
from spark_log.metadata.sql_columns import CLASSIC_MEMBER
from tests.support.classic_members import JOIN, ClassicMember, WorkerMember, assign_to_workers, settle_workers
from tests.support.gateway_wire import WireConnection, commit_request, committed
from tests.support.group_members import move_session_end
from tests.support.server_processes import GatewayProcess
from tests.support.topics import make
from tests.support.waiting import Worker, wait_until

NONE, ILLEGAL_GENERATION, INCONSISTENT, UNKNOWN_MEMBER_ID, REBALANCE_IN_PROGRESS = 0, 22, 23, 25, 27
NON_EMPTY_GROUP, GROUP_MAX_SIZE_REACHED, FENCED_INSTANCE_ID, UNKNOWN_SERVER_ERROR = 68, 81, 82, -1


def await_rebalance(member):
    """The JoinGroup of another member is on its way, on another connection."""
    while member.beat() != REBALANCE_IN_PROGRESS:
        pass


def commit(member, offset):
    who = {
        "generation_id_or_member_epoch": member.generation, "member_id": member.member_id,
        "group_instance_id": member.instance_id,
    }  # fmt: skip
    return committed(member.wire, commit_request(member.group_id, "t", offset, **who))


def test_members_of_two_gateways_meet_and_the_leader_assigns(cluster, connect):
    make(cluster, "t")
    members = [WorkerMember(connect()) for _ in range(3)]
    assert sorted(settle_workers(*members)) == [b"a0", b"a1", b"a2"]
    first, second, third = members
    assert [member.beat(connect()) for member in members] == [NONE] * 3
    assert [commit(member, 5) for member in members] == [NONE] * 3
    assert committed_offsets(cluster.store, "g") == {TopicPartition("t", 0): 5}
    second.metadata = b"changed"
    second.send_join()
    await_rebalance(first)
    assert third.beat() == REBALANCE_IN_PROGRESS
    first.send_sync()
    assert first.synced() == REBALANCE_IN_PROGRESS
    old = third.generation
    assert third.leave() == NONE
    assert (third.beat(), commit(third, 6)) == (UNKNOWN_MEMBER_ID, UNKNOWN_MEMBER_ID)
    assert first.join() == NONE
    assert second.joined().error_code == NONE
    assert (first.generation, second.generation) == (old + 1, old + 1)
    leader, follower = (first, second) if first.others else (second, first)
    assert commit(follower, 7) == REBALANCE_IN_PROGRESS, "before the assignment"
    follower.send_sync()
    assert leader.assign("b") in (b"b0", b"b1")
    assert follower.synced() in (b"b0", b"b1")
    follower.generation -= 1
    assert (follower.beat(), commit(follower, 8)) == (ILLEGAL_GENERATION, ILLEGAL_GENERATION)
    assert committed_offsets(cluster.store, "g") == {TopicPartition("t", 0): 5}
    assert leader.leave() == follower.leave() == NONE


def test_a_rebalance_goes_on_after_a_gateway_is_killed(cluster, gateways, connect):
    """Killed while one member waits in JoinGroup; then, while one waits in SyncGroup."""
    first, second = WorkerMember(connect(0)), WorkerMember(connect(1))
    settle_workers(first, second)
    for members in ((first, second), (second, first)):
        waiting, other = members
        waiting.metadata += b"!"
        waiting.send_join()
        await_rebalance(other)
        dead = gateways[0 if members[0] is first else 1]
        dead.kill()
        assert other.join() == NONE, "the killed gateway's member is in the generation"
        waiting.wire = connect(1 if members[0] is first else 0)
        assert waiting.join() == NONE
        assert waiting.generation == other.generation
        leader, follower = (waiting, other) if waiting.others else (other, waiting)
        leader.send_sync(dict.fromkeys(leader.others, b"x"))
        assert leader.synced() == b"x"
        follower.send_sync()
        assert follower.synced() == b"x"
        dead.start()
        waiting.wire = connect(0 if members[0] is first else 1)
    assert first.beat() == second.beat() == NONE


@pytest.mark.on_sqlite
@pytest.mark.parametrize("failpoint", ["gateway.group-joined", "gateway.group-synced"])
def test_a_gateway_that_ends_before_its_answer_has_decided(
    cluster, cluster_address, tmp_path, gateways, connect, failpoint
):
    dying = GatewayProcess(tmp_path, cluster_address)
    dying.start(failpoint)
    member = WorkerMember(connect(), instance_id="i")
    if failpoint.endswith("synced"):
        assert member.join() == NONE
    with WireConnection(dying.port) as wire:
        steady, member.wire = member.wire, wire
        member.send_join() if failpoint.endswith("joined") else member.send_sync({member.member_id: b"x"})
        with pytest.raises((AssertionError, OSError)):
            member.wire.receive(member.join_request(), 9)
    member.wire = steady
    if failpoint.endswith("joined"):
        assert member.join() == NONE, "the static member takes the place of the one that got no answer"
        assert member.assign("a") == b"a0"
    else:
        member.send_sync({member.member_id: b"too late"})
        assert member.synced() == b"x"
    assert member.beat() == NONE


def test_silent_members_are_dropped_by_any_process(cluster, connect):
    first, second, third = (WorkerMember(connect()) for _ in range(3))
    settle_workers(first, second, third)
    move_session_end(cluster.store, second.member_id, 0)
    assert first.beat() == REBALANCE_IN_PROGRESS
    assert second.beat() == UNKNOWN_MEMBER_ID
    assert sorted(settle_workers(first, third)) == [b"a0", b"a1"]
    for member in (first, third):
        move_session_end(cluster.store, member.member_id, 0)
    assert stale_groups(cluster.store) == ["g"]
    reconcile_group(cluster.store, "g", {})
    [found] = describe_groups(cluster.store, ["g"])
    assert (found.state, found.members, stale_groups(cluster.store)) == ("Empty", (), [])


def test_a_request_that_waits_wakes_at_the_rebalance_timeout(cluster, connect):
    first, second = WorkerMember(connect()), WorkerMember(connect())
    settle_workers(first)
    second.send_join()
    wait_until(lambda: joining_members(cluster, "g") == 1)
    now = cluster.store.now().lease_ms
    cluster.store.transact(
        lambda connection: connection.execute(t.classic_group.update().values(deadline_ms=now + 300)), announce=True
    )
    assert second.joined().error_code == NONE, "first does not join again"
    assert second.others == [second.member_id]
    assert first.beat() == UNKNOWN_MEMBER_ID


def test_a_member_that_heartbeats_and_never_syncs_is_dropped_at_the_rebalance_timeout(cluster, connect):
    first, second = (WorkerMember(connect()) for _ in range(2))
    for member in (first, second):
        member.reserve()
    for member in (first, second):
        member.send_join()
    assert [member.joined().error_code for member in (first, second)] == [NONE, NONE]
    leader, silent = (first, second) if first.others else (second, first)
    assert (leader.assign("a"), silent.beat()) in ((b"a0", NONE), (b"a1", NONE))
    assert silent.beat() == NONE
    cluster.store.transact(
        lambda connection: connection.execute(t.classic_group.update().values(deadline_ms=0)), announce=True
    )
    wait_until(lambda: silent.beat() == UNKNOWN_MEMBER_ID)
    assert (leader.beat(), leader.join()) == (REBALANCE_IN_PROGRESS, NONE)
    assert leader.others == [leader.member_id]


def joining_members(cluster, group_id):
    query = sa.select(CLASSIC_MEMBER.member_id).where(
        CLASSIC_MEMBER.group_id == group_id, CLASSIC_MEMBER.phase == "joining"
    )
    return len(cluster.store.read(lambda connection: connection.execute(query).all()))


@pytest.mark.parametrize("cluster_address", ["postgres"], indirect=True)
def test_members_that_wait_hold_no_memory_and_a_group_has_room_for_4_mib(cluster, cluster_address, tmp_path):
    """The gateway has memory for the frames of four of these members at a time."""
    options = ("--config", "queued.max.request.bytes=4000000")
    with contextlib.ExitStack() as stack, GatewayProcess(tmp_path, cluster_address, *options) as gateway:

        def member(group_id, metadata=b"metadata"):
            made = WorkerMember(stack.enter_context(WireConnection(gateway.port)), group_id)
            made.metadata = metadata
            return made

        for group_id in "gh":
            first = member(group_id)
            settle_workers(first)
            others = [member(group_id, bytes(1_000_000)) for _ in range(4)]
            for other in others:
                other.send_join()
            message = "a request waits for the memory of those that wait"
            wait_until(lambda at=group_id: joining_members(cluster, at) == 4, message)
        refused = member("h", bytes(1_000_000))
        answer = refused.wire.exchange(refused.join_request(), JOIN)
        assert (answer.error_code, answer.member_id) == (GROUP_MAX_SIZE_REACHED, ""), "and it is not waited for"
        assert first.join() == NONE
        assert [other.joined().error_code for other in others] == [NONE] * 4
        [leader] = [each for each in (first, *others) if each.others]
        assert len(leader.others) == 5
        followers = [each for each in (first, *others) if each is not leader]
        followers[0].send_sync()
        leader.send_sync(dict.fromkeys(leader.others, bytes(100_000)))
        assert leader.synced() == UNKNOWN_SERVER_ERROR
        assert followers[0].synced() == REBALANCE_IN_PROGRESS
        assert [each.beat() for each in (leader, *followers)] == [REBALANCE_IN_PROGRESS] * 5
        assert "Traceback" not in gateway.output


@pytest.mark.on_sqlite
def test_static_members_start_again_without_a_rebalance(cluster, connect):
    first, second = (WorkerMember(connect(), instance_id=name) for name in ("i", "j"))
    assert first.join() == NONE
    second.send_join()
    await_rebalance(first)
    assert first.join() == NONE
    assert second.joined().error_code == NONE
    assigned = assign_to_workers(first, second)
    again = WorkerMember(connect(), instance_id="i")
    again.send_join()
    answer = again.joined()
    assert (answer.error_code, answer.generation_id) == (NONE, second.generation)
    assert answer.skip_assignment == bool(first.others)
    again.send_sync()
    assert again.synced() == assigned[0]
    assert (first.beat(), again.beat(), second.beat()) == (FENCED_INSTANCE_ID, NONE, NONE)
    assert (first.leave(), commit(first, 1)) == (FENCED_INSTANCE_ID, FENCED_INSTANCE_ID)
    assert WorkerMember(connect(), instance_id="i").leave() == NONE, "by the instance id alone"
    assert again.beat() == UNKNOWN_MEMBER_ID
    assert second.beat() == REBALANCE_IN_PROGRESS


def test_descriptions_and_deletion_on_the_wire(cluster, connect):
    make(cluster, "t")
    wire = connect()
    member = WorkerMember(connect())
    settle_workers(member)
    assert commit(member, 3) == NONE
    [listed] = wire.exchange(ListGroupsRequest(states_filter=[], types_filter=[]), 5).groups
    assert (listed.group_id, listed.protocol_type, listed.group_state, listed.group_type) == (
        "g", "connect", "Stable", "classic",
    )  # fmt: skip
    assert wire.exchange(ListGroupsRequest(states_filter=[], types_filter=["consumer"]), 5).groups == []
    [group] = wire.exchange(DescribeGroupsRequest(groups=["g"], include_authorized_operations=False), 5).groups
    assert (group.group_state, group.protocol_type, group.protocol_data) == ("Stable", "connect", "sessioned")
    [described] = group.members
    assert (described.member_id, described.client_id, described.client_host) == (member.member_id, "test", "/127.0.0.1")
    assert (bytes(described.member_metadata), bytes(described.member_assignment)) == (b"metadata", b"a0")
    delete = DeleteGroupsRequest(groups_names=["g"])
    assert wire.exchange(delete, 2).results[0].error_code == NON_EMPTY_GROUP
    with pytest.raises(NonEmptyGroupError):
        delete_group(cluster.store, "g")
    with pytest.raises(UnknownMemberIdError):
        commit_offsets(cluster.store, "g", {TopicPartition("t", 0): 9})
    [row] = group_lag(cluster, "g")
    assert row.committed == 3
    remove_from_group(cluster.store, "g", [member.member_id])
    assert member.beat() == UNKNOWN_MEMBER_ID
    [group] = wire.exchange(DescribeGroupsRequest(groups=["g"], include_authorized_operations=False), 5).groups
    assert (group.group_state, group.protocol_type, group.members) == ("Empty", "connect", [])
    fetch = OffsetFetchRequest(
        groups=[OffsetFetchRequest.OffsetFetchRequestGroup(group_id="g", topics=None)], require_stable=True
    )
    assert wire.exchange(fetch, 8).groups[0].topics[0].partitions[0].committed_offset == 3
    assert wire.exchange(delete, 2).results[0].error_code == NONE
    assert list_groups(cluster.store) == []


@pytest.mark.on_sqlite
def test_a_group_of_workers_is_for_them_alone(cluster, connect):
    make(cluster, "t", 2)
    worker, consumer = WorkerMember(connect()), ClassicMember(connect(), "g", ["t"], assignor="range")
    settle_workers(worker)
    assert consumer.join() == INCONSISTENT
    with Consumer(cluster=str(cluster.store.address), group_id="g") as ours:
        ours.subscribe(["t"])
        with pytest.raises(InconsistentGroupProtocolError):
            ours.poll(timeout_ms=100)
    assert WorkerMember(connect(), kind="other", instance_id="x").join() == INCONSISTENT
    assert WorkerMember(connect(), protocol="else", instance_id="x").join() == INCONSISTENT
    assert worker.leave() == NONE
    assert (consumer.join(), consumer.sync()) == (NONE, NONE)
    assert WorkerMember(connect(), instance_id="x").join() == INCONSISTENT
    [described] = describe_groups(cluster.store, ["g"])
    assert (described.type, described.protocol_type, described.members[0].protocol) == (
        "classic",
        "consumer",
        "classic",
    )
    assert described.members[0].assignment == {TopicPartition("t", 0), TopicPartition("t", 1)}
    assert consumer.leave() == NONE
    assert WorkerMember(connect(), instance_id="x").join() == NONE


class LastTakesAll(AbstractPartitionAssignor):
    """The member with the greatest id gets all partitions, which no assignor of a gateway does."""

    name = "last-takes-all"
    version = 0

    def assign(self, cluster, members):
        topics = sorted({topic for each in members for topic in each.metadata.topics})
        kind = ConsumerProtocolAssignment.TopicPartition
        # a leader that does not know the topics yet assigns nothing, and joins again when it does
        known = {topic: sorted(cluster.partitions_for_topic(topic) or ()) for topic in topics}
        everything = [kind(topic=topic, partitions=numbers) for topic, numbers in known.items()]
        last = max(each.member_id for each in members)
        return {
            each.member_id: ConsumerProtocolAssignment(
                version=0, assigned_partitions=everything if each.member_id == last else [], user_data=b""
            )
            for each in members
        }

    def metadata(self, topics):
        return ConsumerProtocolSubscription(version=0, topics=sorted(topics), user_data=b"")

    def on_assignment(self, assignment, generation=None):
        pass


def counts(described):
    """Number of partitions of each member, by member id."""
    members = sorted(described["members"], key=lambda each: each["member_id"])
    given = [member["member_assignment"]["assigned_partitions"] for member in members]
    return [sum(len(each["partitions"]) for each in topics) for topics in given]


@pytest.mark.on_sqlite
def test_consumers_with_their_own_assignor(cluster, gateways):
    """Two of kafka-python, and one of spark-log."""
    make(cluster, "t", 3)
    producer = kafka.KafkaProducer(bootstrap_servers=gateways[0].address)
    for number in range(30):
        producer.send("t", b"%d" % number, partition=number % 3)
    producer.flush()
    found = []

    def consume(kind, address, stop):
        consumer = kind(
            "t", **address, group_id="custom", auto_offset_reset="earliest", heartbeat_interval_ms=200,
            partition_assignment_strategy=[LastTakesAll], metadata_max_age_ms=1000,
        )  # fmt: skip
        while not stop.is_set():
            for records in consumer.poll(timeout_ms=100).values():
                found.extend(record.value for record in records)
        consumer.close()

    places = [(kafka.KafkaConsumer, {"bootstrap_servers": each.address}) for each in gateways]
    places.append((Consumer, {"cluster": str(cluster.store.address)}))
    workers = [Worker(partial(consume, *place)) for place in places]
    try:
        watcher = kafka.KafkaAdminClient(bootstrap_servers=gateways[0].address)
        described = {}
        while described.get("group_state") != "Stable" or counts(described) != [0, 0, 3] or len(set(found)) < 30:
            described = watcher.describe_groups(["custom"])["custom"]
            for worker in workers:
                worker.check()
        watcher.close()
    finally:
        for worker in workers:
            worker.finish()
    assert described["protocol_data"] == "last-takes-all"
    assert sum(committed_offsets(cluster.store, "custom").values()) == 30
    [listed] = list_groups(cluster.store)
    assert (listed.type, listed.protocol_type, listed.state) == ("classic", "consumer", "Empty")
    producer.close()
