"""Requests of share groups one by one: the answers that a broker of Kafka 4.4 gave, or the difference and its reason.

The Java programs of `kafka_programs/sharegroups` run Kafka's own cases, and these requests, on a broker and on a
gateway (`python -m scripts.conformance share-groups`).
"""

import uuid
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from kafka.record import MemoryRecords

from spark_log import Producer
from spark_log.cluster.settings import alter_settings
from spark_log.gateway.protocol.schemas import (
    AlterShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequest,
    ShareGroupDescribeRequest,
)
from spark_log.gateway.shares import share_requests
from spark_log.groups.share import rows
from spark_log.groups.share.acquisition_rules import Request
from spark_log.groups.share.polling import SharePolls, run_steps
from spark_log.groups.share.reading import ShareReads
from spark_log.groups.share.service import run_polls
from spark_log.replication.controller.topic_operations import add_partitions, create_topic, delete_topic
from tests.support.costly_requests import HOSTILE_ADDRESS
from tests.support.gateway_wire import WireConnection
from tests.support.server_processes import GatewayProcess
from tests.support.share_members import ShareClient, session_of
from tests.support.waiting import wait_until

pytestmark = pytest.mark.on_sqlite

NONE, UNKNOWN_TOPIC, INVALID_REQUEST, NON_EMPTY_GROUP, NOT_FOUND, UNKNOWN_TOPIC_ID = 0, 3, 42, 68, 69, 100
INVALID_GROUP_ID = 24
UNKNOWN_MEMBER, FENCED, INVALID_STATE, NO_SESSION, WRONG_EPOCH, SESSIONS_FULL = 25, 110, 121, 122, 123, 133
ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4


@pytest.fixture
def gateway(cluster, cluster_address, tmp_path):
    alter_settings(
        cluster,
        {"group.share.min.record.lock.duration.ms": "1", "group.share.max.share.sessions": "3"},
    )
    cluster.store.transact(
        lambda connection: rows.save_configs(connection, "g", {"share.auto.offset.reset": "earliest"})
    )
    topic = create_topic(cluster, "jobs", 2)
    with Producer(cluster=cluster_address) as producer:
        for number in range(10):
            producer.send("jobs", b"%d" % number, partition=0)
    with GatewayProcess(tmp_path, cluster_address) as gateway:
        gateway.topic_id = uuid.UUID(hex=topic.uuid)
        yield gateway
        assert "Traceback" not in gateway.output


@pytest.fixture
def new_client(gateway):
    with WireConnection(gateway.port) as connection:
        yield ShareClient(connection, gateway.topic_id)


@pytest.fixture
def client(new_client):
    """A member of the group, which reads topic `jobs`."""
    new_client.heartbeat(0, ["jobs"])
    return new_client


def test_heartbeats(new_client):
    assert new_client.heartbeat(0).error_code == INVALID_REQUEST  # SubscribedTopicNames must be set
    joined = new_client.heartbeat(0, ["jobs"])
    assert (joined.error_code, joined.member_id, joined.member_epoch) == (NONE, "m", 2)
    [assigned] = joined.assignment.topic_partitions
    assert (assigned.topic_id, assigned.partitions) == (new_client.topic_id, [0, 1])
    assert new_client.heartbeat(2).assignment is None
    assert new_client.heartbeat(2, ["jobs"]).assignment is not None
    assert new_client.heartbeat(9).error_code == FENCED
    assert new_client.heartbeat(-2).error_code == INVALID_REQUEST
    assert (
        ShareClient(new_client.connection, new_client.topic_id, member="other").heartbeat(2).error_code
        == UNKNOWN_MEMBER
    )
    assert ShareClient(new_client.connection, new_client.topic_id, group="absent").heartbeat(2).error_code == NOT_FOUND
    left = new_client.heartbeat(-1)
    assert (left.error_code, left.member_epoch) == (NONE, -1)
    assert new_client.heartbeat(2).error_code == UNKNOWN_MEMBER


def test_a_partition_is_forgotten_while_a_fetch_waits_for_it(gateway, client, cluster_address):
    assert client.acquired(0, (1,), wait_ms=0) == []
    with WireConnection(gateway.port) as connection, ThreadPoolExecutor() as pool:
        waiting = pool.submit(client.acquired, 1, (1,), wait_ms=100_000)
        other = ShareClient(connection, client.topic_id)
        fetch_next(other, 2, forget=(1,))
        with Producer(cluster=cluster_address) as producer:
            producer.send("jobs", b"late", partition=1)
        assert waiting.result(60) == [(0, 0, 1)]
        assert other.acknowledge(3, (0, 0, [ACCEPT]), partition=1) == (NONE, [NONE])


def test_a_session_that_is_opened_again_gets_the_records_instead_of_a_fetch_before(gateway, client, cluster_address):
    assert client.acquired(0, (1,)) == []
    with WireConnection(gateway.port) as connection, ThreadPoolExecutor() as pool:
        waiting = pool.submit(client.acquired, 1, (1,), wait_ms=100_000)
        other = ShareClient(connection, client.topic_id)
        fetch_next(other, 2)
        assert other.acquired(0, (1,)) == []
        with Producer(cluster=cluster_address) as producer:
            producer.send("jobs", b"late", partition=1)
        assert other.acquired(1, (1,), wait_ms=100_000) == [(0, 0, 1)]
        assert waiting.result(60) == []


def fetch_next(client, epoch, **keywords):
    """Fetch from the session's partitions as soon as the request before, which may wait there, has arrived."""
    wait_until(lambda: client.fetch(epoch, (), **keywords).error_code != WRONG_EPOCH, "the request before arrives")


def test_records_that_one_fetch_releases_and_acquires_again_are_held_by_the_session(client):
    assert client.acquired(0) == [(0, 9, 1)]
    again, epoch = client.acquired(1, acks=[(0, 0, [ACCEPT]), (1, 2, [RELEASE])]), 2
    if not again:  # answers with acknowledgements do not wait: a gateway that has forgotten its last look finds nothing
        again, epoch = client.acquired(2, wait_ms=100_000), 3
    assert again == [(1, 2, 2)]
    assert client.acknowledge(epoch, (0, 0, [ACCEPT])) == (NONE, [INVALID_STATE])
    assert client.acknowledge(epoch + 1, (1, 1, [RELEASE]), (2, 9, [ACCEPT])) == (NONE, [NONE])
    assert client.acquired(epoch + 2) == [(1, 1, 3)]


def test_names_that_cannot_be_stored_are_refused(client):
    for names in ({"group": "a\0b"}, {"member": "a\0b"}):
        other = ShareClient(client.connection, client.topic_id, **names)
        assert other.fetch(0).error_code == INVALID_REQUEST
        assert other.acknowledge(1) == (INVALID_REQUEST, [])
        assert other.heartbeat(0, ["jobs"]).error_code in (INVALID_REQUEST, INVALID_GROUP_ID)
    assert ShareClient(client.connection, client.topic_id, member="n").heartbeat(0, ["a\0b", "jobs"]).error_code == NONE


def test_large_records_are_encoded_once_their_memory_is_reserved(gateway, new_client, cluster, cluster_address):
    topic = create_topic(cluster, "large")
    with Producer(cluster=cluster_address) as producer:
        producer.send("large", b"x" * 300_000)
        producer.send("large", b"y")
    new_client.heartbeat(0, ["large"])
    topic_id = uuid.UUID(hex=topic.uuid)
    [[part]] = [each.partitions for each in new_client.fetch(0, topic_id=topic_id, wait_ms=100_000).responses]
    values = [record.value for batch in batches_of(part.records) for record in batch]
    assert values == [b"x" * 300_000, b"y"]
    new_client.acknowledge(-1, (0, 1, [RELEASE]), topic_id=topic_id)

    polls = SharePolls(cluster, ShareReads(cluster))
    services = SimpleNamespace(shares=SimpleNamespace(polls=polls), changes=cluster.store.changes)
    key = (topic.topic_id, 0)
    for asked, encoded in ((Request("m", 1), False), (Request("m", 1), True)):  # the large record, the small one
        steps = share_requests._attempt(services, session_of("g", "m"), asked, {key: "large"}, {})
        _, found = run_steps(steps, lambda poll: run_polls(cluster.store, [poll])[0])
        assert (len(found.result.taken), found.records is not None) == (1, encoded)


def batches_of(records):
    found = MemoryRecords(bytes(records))
    while (batch := found.next_batch()) is not None:
        yield batch


def test_session_epochs(client):
    assert client.fetch(5).error_code == NO_SESSION
    assert client.fetch(-1).error_code == NO_SESSION
    assert client.acknowledge(0) == (WRONG_EPOCH, [])
    assert client.acknowledge(5) == (NO_SESSION, [])
    assert client.fetch(0, acks=[(0, 0, [ACCEPT])]).error_code == INVALID_REQUEST
    assert client.acquired(0, records=0) == []
    assert client.fetch(3).error_code == WRONG_EPOCH
    assert client.acquired(1) == [(0, 9, 1)]
    assert client.fetch(1).error_code == WRONG_EPOCH
    assert client.acknowledge(2, (0, 1, [ACCEPT])) == (NONE, [NONE])  # one sequence with the fetches
    assert client.fetch(2).error_code == WRONG_EPOCH
    assert client.acquired(0) == []  # a new session of the member keeps its locks
    assert client.acknowledge(1, (2, 2, [ACCEPT])) == (NONE, [NONE])


def test_a_session_ends_with_its_connection(gateway, client):
    with WireConnection(gateway.port) as connection:
        other = ShareClient(connection, gateway.topic_id, member="other")
        assert other.acquired(0) == [(0, 9, 1)]
        assert client.acquired(0) == []
    found, epoch = [], 1
    while not found:  # until the gateway has noticed the end of the connection
        found, epoch = client.acquired(epoch, wait_ms=1_000), epoch + 1
    assert found == [(0, 9, 2)]


def test_the_last_epoch_acknowledges_and_releases(client):
    assert client.acquired(0) == [(0, 9, 1)]
    answer = client.fetch(-1, acks=[(0, 3, [ACCEPT])])
    assert [part.acknowledge_error_code for topic in answer.responses for part in topic.partitions] == [NONE]
    assert client.acquired(0) == [(4, 9, 2)]
    assert client.acknowledge(-1, (4, 4, [REJECT])) == (NONE, [NONE])
    assert client.acquired(0) == [(5, 9, 3)]


def test_records_are_those_that_are_acquired(client):
    answer = client.fetch(0, records=3, mode=1)
    [topic] = answer.responses
    [part] = topic.partitions
    assert answer.acquisition_lock_timeout_ms == 30_000
    records = MemoryRecords(bytes(part.records))
    values = [record.value for record in records.next_batch()]
    assert records.next_batch() is None
    assert values == [b"0", b"1", b"2"]  # a broker sends the whole batch
    assert client.acquired(1, records=100) == [(3, 9, 1)]


def test_errors_of_partitions(client):

    def errors(answer):
        return [part.error_code for topic in answer.responses for part in topic.partitions]

    assert errors(client.fetch(0, topic_id=uuid.uuid4())) == [UNKNOWN_TOPIC_ID]
    assert errors(client.fetch(0, partitions=(7,))) == [UNKNOWN_TOPIC]
    unread = ShareClient(client.connection, client.topic_id, group="without-members")
    assert errors(unread.fetch(0)) == [UNKNOWN_TOPIC]
    assert client.fetch(1, mode=7).error_code == INVALID_REQUEST  # a broker: UNKNOWN_SERVER_ERROR
    assert client.acknowledge(2, (0, 0, [ACCEPT]), topic_id=uuid.uuid4()) == (NONE, [UNKNOWN_TOPIC_ID])


def test_a_session_reads_a_partition_that_comes_to_exist_after_it_was_named(client, cluster, cluster_address):
    def errors(*arguments, **keywords):
        answer = client.fetch(*arguments, **keywords)
        return {part.partition_index: part.error_code for topic in answer.responses for part in topic.partitions}

    assert errors(0, (1, 2, 9)) == {1: NONE, 2: UNKNOWN_TOPIC, 9: UNKNOWN_TOPIC}
    assert errors(1, ()) == {2: UNKNOWN_TOPIC, 9: UNKNOWN_TOPIC}
    assert errors(2, (), forget=(9,)) == {2: UNKNOWN_TOPIC}
    add_partitions(cluster, "jobs", 3)
    client.heartbeat(2, ["jobs"])
    with Producer(cluster=cluster_address) as producer:
        producer.send("jobs", b"late", partition=2)
    epoch, found = 3, []
    while not found and epoch < 100:  # a gateway remembers a topic for a second
        found, epoch = client.acquired(epoch, (), wait_ms=200), epoch + 1
    assert found == [(0, 0, 1)]
    assert errors(epoch, ()) == {}


def test_a_partition_of_a_deleted_topic_is_forgotten(client, cluster):
    assert client.acquired(0) == [(0, 9, 1)]
    delete_topic(cluster, "jobs")
    epoch = 1
    while client.acknowledge(epoch, (0, 0, [ACCEPT]), partition=7) != (NONE, [UNKNOWN_TOPIC_ID]):
        epoch += 1  # a gateway remembers the topic for a second
    assert client.fetch(epoch + 1, ()).responses != []
    assert client.fetch(epoch + 2, (), forget=(0, 7)).responses == []
    assert client.fetch(epoch + 3, ()).responses == []


def test_acknowledgements_of_ranges_and_of_single_records(client):
    """Those that are refused are in test_gateway_hostile."""
    assert client.acquired(0) == [(0, 9, 1)]
    assert client.acknowledge(1, (0, 2, [0, 1, 2])) == (NONE, [NONE])  # 0 is a gap
    assert client.acknowledge(2, (3, 4, [ACCEPT]), (5, 6, [RELEASE])) == (NONE, [NONE])
    assert client.acknowledge(3, (0, 0, [ACCEPT])) == (NONE, [INVALID_STATE]), "what counts is over"
    assert client.acquired(4) == [(2, 2, 2), (5, 6, 2)]


def test_locks_end_and_are_renewed(cluster, client):
    def locks_last(duration_ms):
        configs = {"share.auto.offset.reset": "earliest", "share.record.lock.duration.ms": str(duration_ms)}
        cluster.store.transact(lambda connection: rows.save_configs(connection, "g", configs))

    locks_last(60_000)  # no lock may end before it is renewed, however slow this machine is
    assert client.acquired(0, records=1, mode=1) == [(0, 0, 1)]
    assert client.acknowledge(1, (0, 0, [RENEW]), renews=True) == (NONE, [NONE])
    renewed = client.fetch(2, acks=[(0, 0, [RENEW])], renews=True)
    assert [part.acknowledge_error_code for topic in renewed.responses for part in topic.partitions] == [NONE]
    assert client.acquired(3, records=1, mode=1, partitions=()) == [(1, 1, 1)]
    locks_last(1)
    assert client.acknowledge(4, (0, 0, [RENEW]), renews=True) == (NONE, [NONE])
    other = ShareClient(client.connection, client.topic_id, member="other")
    assert other.acquired(0, records=0) == []
    found, epoch = [], 1
    while (0, 0, 2) not in found:
        found, epoch = other.acquired(epoch, records=1, mode=1, wait_ms=2_000), epoch + 1
    assert client.acknowledge(5, (0, 0, [ACCEPT])) == (NONE, [INVALID_STATE])


def test_a_gateway_has_a_largest_number_of_sessions(new_client):
    for number in range(3):
        assert ShareClient(new_client.connection, new_client.topic_id, member=f"m{number}").fetch(0).error_code == NONE
    assert new_client.fetch(0).error_code == SESSIONS_FULL
    ShareClient(new_client.connection, new_client.topic_id, member="m0").fetch(-1)
    assert new_client.fetch(0).error_code == NONE


def test_a_client_with_many_sessions_keeps_no_other_client_out(gateway, client):
    """Its oldest session ends, and the records of this session are released."""
    members = [ShareClient(client.connection, client.topic_id, member=f"m{number}") for number in range(3)]
    assert [member.acquired(0, records=1, mode=1) for member in members] == [[(n, n, 1)] for n in range(3)]
    with WireConnection(gateway.port, source=HOSTILE_ADDRESS) as connection:
        others = [ShareClient(connection, client.topic_id, member=f"other{number}") for number in range(2)]
        assert others[0].acquired(0, records=1, mode=1, wait_ms=1_000)[0] in [(0, 0, 2), (3, 3, 1)]
        assert others[1].fetch(0).error_code == SESSIONS_FULL, "each client has as many as the other, or one more"
    assert [member.fetch(1, records=1, mode=1).error_code for member in members] == [NO_SESSION, NONE, NONE]


def test_sessions_of_one_client_have_a_part_of_the_memory(cluster, cluster_address, tmp_path):
    """Partitions that do not exist count too."""
    topic = create_topic(cluster, "jobs")
    topic_id = uuid.UUID(hex=topic.uuid)
    with (
        GatewayProcess(tmp_path, cluster_address, "--config", "queued.max.request.bytes=1000000") as gateway,
        WireConnection(gateway.port) as connection,
        WireConnection(gateway.port, source=HOSTILE_ADDRESS) as other,
    ):
        members = [ShareClient(connection, topic_id, member=f"m{number}") for number in range(3)]
        assert [member.fetch(0, range(900)).error_code for member in members] == [NONE, NONE, SESSIONS_FULL]
        assert members[2].fetch(1).error_code == NO_SESSION
        assert ShareClient(other, topic_id, member="other").fetch(0).error_code == NONE
        members[0].fetch(-1, ())
        assert members[2].fetch(0, range(900)).error_code == NONE


def test_administration(client):

    def described(group_id):
        request = ShareGroupDescribeRequest(group_ids=[group_id], include_authorized_operations=True)
        [group] = client.connection.exchange(request, 1).groups
        return group

    group = described("g")
    assert (group.error_code, group.group_state, group.assignor_name) == (NONE, "Stable", "simple")
    assert group.authorized_operations == 3400
    assert [(m.member_id, m.subscribed_topic_names) for m in group.members] == [("m", ["jobs"])]
    assert described("absent").error_code == NOT_FOUND

    def offsets():
        kind = DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestGroup
        request = DescribeShareGroupOffsetsRequest(groups=[kind(group_id="g", topics=None)])
        [found] = client.connection.exchange(request, 1).groups
        return [(p.start_offset, p.lag) for topic in found.topics for p in topic.partitions]

    def alter(offset):
        kind = AlterShareGroupOffsetsRequest.AlterShareGroupOffsetsRequestTopic
        part = kind.AlterShareGroupOffsetsRequestPartition(partition_index=0, start_offset=offset)
        request = AlterShareGroupOffsetsRequest(group_id="g", topics=[kind(topic_name="jobs", partitions=[part])])
        return client.connection.exchange(request, 0).error_code

    def delete():
        kind = DeleteShareGroupOffsetsRequest.DeleteShareGroupOffsetsRequestTopic
        request = DeleteShareGroupOffsetsRequest(group_id="g", topics=[kind(topic_name="jobs")])
        answer = client.connection.exchange(request, 0)
        return answer.error_code, [topic.error_code for topic in answer.responses]

    assert offsets() == [(0, 10), (0, 0)]
    assert (alter(3), delete()) == (NON_EMPTY_GROUP, (NON_EMPTY_GROUP, []))
    client.heartbeat(-1)
    assert alter(3) == NONE
    assert offsets() == [(3, 7), (0, 0)]
    assert delete() == (NONE, [NONE])
    assert delete() == (NONE, [UNKNOWN_TOPIC])
    assert offsets() == []
