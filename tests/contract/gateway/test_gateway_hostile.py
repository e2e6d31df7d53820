"""Clients that send damaged requests, that never send one, and that do not read: others are served."""

import random
import resource
import socket
import struct
import uuid
from collections import deque
from contextlib import suppress
from types import SimpleNamespace

import pytest
from kafka.protocol.metadata import MetadataRequest

from spark_log.cluster.cluster import Cluster
from spark_log.gateway.protocol.schemas import ConsumerGroupHeartbeatRequest, ShareFetchRequest
from spark_log.gateway.server import APIS
from spark_log.groups.share.administration import alter_group_configs
from spark_log.groups.share.looks import look
from tests.support.classic_members import ClassicMember
from tests.support.consumer_members import ConsumerMember, topic_ids
from tests.support.gateway_wire import WireConnection, request_about
from tests.support.server_processes import GatewayProcess
from tests.support.share_members import WireShareMember, acquired
from tests.support.topics import append, find, make

MUTATIONS = [10, pytest.param(100, marks=pytest.mark.long)]
"""Of each API, in its lowest and in its highest version."""
IDLE = 900
MEMORY_MB_MAX = 400
INCONSISTENT_GROUP_PROTOCOL, MEMBER_ID_REQUIRED, UNKNOWN_TOPIC_ID = 23, 79, 100
HEADER_BYTES = 12
"""Length, API key, version and correlation id."""


@pytest.fixture
def gateway(cluster, cluster_address, tmp_path):
    make(cluster, "flights", 2)
    with GatewayProcess(tmp_path, cluster_address, "--no-auto-create-topics") as gateway:
        yield gateway


@pytest.fixture
def gateway_on_sqlite(tmp_path):
    """For what the store takes no part in."""
    address = str(tmp_path / "cluster")
    with Cluster.init(address) as cluster:
        make(cluster, "flights", 2)
    with GatewayProcess(tmp_path, address, "--no-auto-create-topics") as gateway:
        yield gateway


def topics(gateway):
    with WireConnection(gateway.port) as connection:
        return [topic.name for topic in connection.exchange(MetadataRequest(topics=None), 1).topics]


def frame(api, version):
    request = request_about("flights", api.request, version)
    request.API_VERSION = version
    request.with_header(1, "test")
    return request.encode(header=True, framed=True)


def mutated(data, chosen):
    """Some bytes after the header changed, cut out or doubled; the length is right."""
    body = bytearray(data[HEADER_BYTES:])
    for _ in range(chosen.randint(1, 4)):
        at = chosen.randrange(len(body))
        match chosen.randrange(4):
            case 0:
                body[at] = chosen.choice([0, 1, 0x7F, 0x80, 0xFF])
            case 1:
                body[at] ^= 1 << chosen.randrange(8)
            case 2 if len(body) > 1:
                del body[at]
            case _:
                body[at:at] = body[at : at + 8]
    return struct.pack(">i", HEADER_BYTES - 4 + len(body)) + data[4:HEADER_BYTES] + body


@pytest.mark.slow
@pytest.mark.parametrize("cluster_address", ["postgres"], indirect=True)
@pytest.mark.parametrize("mutations", MUTATIONS)
def test_damaged_requests_of_each_api_do_not_end_a_gateway(cluster, gateway, mutations):
    """On the store that refuses more: NUL, and numbers beyond a column."""
    chosen = random.Random(17)
    open_connections = deque()
    for api in APIS:
        for version in api.advertised:
            data = frame(api, version)
            for _ in range(mutations):
                connection = socket.create_connection(("127.0.0.1", gateway.port), timeout=30)
                with suppress(ConnectionError):
                    connection.sendall(mutated(data, chosen))
                open_connections.append(connection)
                if len(open_connections) > 100:
                    open_connections.popleft().close()
    topics(gateway)
    for connection in open_connections:
        connection.close()
    topics(gateway)
    assert gateway.memory_mb() < MEMORY_MB_MAX
    assert "Traceback" not in gateway.output, gateway.output[-4000:]


@pytest.mark.slow
def test_idle_clients_and_one_that_does_not_read_leave_others_served(gateway_on_sqlite):
    gateway = gateway_on_sqlite
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4 * IDLE)), hard))
    connections = []
    try:
        before_mb = gateway.memory_mb()
        for _ in range(IDLE):
            connections.append(socket.create_connection(("127.0.0.1", gateway.port), timeout=30))
        greedy = connections[0]
        greedy.settimeout(1)
        request = MetadataRequest(topics=None)
        request.API_VERSION = 1
        request.with_header(1, "test")
        with suppress(TimeoutError):  # the gateway reads no more when its answers have no room
            for _ in range(1_000):
                greedy.sendall(request.encode(header=True, framed=True) * 1_000)
        assert topics(gateway) == ["flights"]
        assert gateway.memory_mb() - before_mb < 150
    finally:
        for connection in connections:
            connection.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert gateway.end() == 0


def test_the_header_of_a_request_has_few_tagged_fields(gateway_on_sqlite):
    """It is read on the event loop, from a frame that may have 100 MiB."""
    [versions] = (api for api in APIS if api.name == "ApiVersions")
    body = frame(versions, 3)[HEADER_BYTES + 7 :]  # after the client id, and no tagged fields
    for tags in (1, 1_000):
        count = bytes([0x80 | tags & 0x7F, tags >> 7])
        header = struct.pack(">hhih", versions.key, 3, 1, 0) + count + b"\x05\0" * tags
        with socket.create_connection(("127.0.0.1", gateway_on_sqlite.port), timeout=30) as connection:
            connection.sendall(struct.pack(">i", len(header + body)) + header + body)
            assert (connection.recv(1) != b"") == (tags == 1)
    assert "1000 tagged fields" in gateway_on_sqlite.output


INVALID_REQUEST, INVALID_RECORD_STATE, NO_SESSION, WRONG_EPOCH = 42, 121, 122, 123


@pytest.fixture
def sharing(cluster, log, gateway):
    """Two connections with a share session each, of which the first one has acquired 20 records."""
    alter_group_configs(cluster.store, "workers", {"share.auto.offset.reset": "earliest"})
    append(log, "flights", *map(str, range(20)))
    topic = find(cluster, "flights")
    with WireConnection(gateway.port) as first, WireConnection(gateway.port) as second:
        members = WireShareMember(first, topic), WireShareMember(second, topic, member="m2")
        for member in members:
            member.join()
        assert members[0].acquire() == [(0, 19, 1)]
        assert acquired(members[1].send(members[1].fetch_request())) == []
        yield members


INVALID = {
    "overlapping": [(0, 5, [1]), (5, 9, [1])],
    "twice": [(0, 5, [1]), (0, 5, [1])],
    "unordered": [(10, 12, [1]), (0, 5, [1])],
    "backwards": [(5, 0, [1])],
    "negative": [(-5, 5, [1])],
    "a type beyond RENEW": [(0, 5, [5])],
    "a type beyond RENEW among others": [(0, 1, [1, 5])],
    "a negative type": [(0, 5, [-1])],
    "RENEW without is_renew_ack": [(0, 5, [4])],
    "too few types": [(0, 5, [1, 1])],
    "too many types": [(0, 1, [1, 1, 1])],
    "no types": [(0, 5, [])],
    "beyond what was acquired": [(0, 20, [1])],
    "all offsets": [(0, 2**63 - 1, [1])],
    "a valid part first": [(0, 5, [1]), (6, 7, [9])],
}


@pytest.mark.on_sqlite
@pytest.mark.parametrize("way", ["acknowledge", "fetch"])
def test_invalid_acknowledgements_change_nothing(cluster, sharing, way):
    member, other = sharing
    for name, acks in INVALID.items():
        make_request = member.acknowledge_request if way == "acknowledge" else member.fetch_request
        answer = member.send(make_request(acks))
        [part] = (part for topic in answer.responses for part in topic.partitions)
        code = part.error_code if way == "acknowledge" else part.acknowledge_error_code
        assert (answer.error_code, code) == (0, INVALID_REQUEST), name
        [offer] = (offer for offer in look(cluster.store, "workers").offers.values() if offer.next_offset)
        assert (offer.unfinished, offer.available, offer.archiving) == (20, 0, 0), name
    assert other.acknowledge((0, 19, [1])) == INVALID_RECORD_STATE
    assert other.acknowledge((0, 2**63 - 1, [2])) == INVALID_RECORD_STATE
    assert member.acknowledge((0, 9, [1]), (10, 19, [1, 2] * 5)) == 0
    assert acquired(other.send(other.fetch_request())) == [(offset, offset, 2) for offset in range(11, 20, 2)]


@pytest.mark.on_sqlite
def test_requests_that_fit_no_share_session(cluster, sharing):
    member, other = sharing
    everything = [(0, 19, [1])]
    refused = {
        NO_SESSION: [{"member_id": "unknown"}, {"group_id": "unknown"},
                     {"member_id": "unknown", "share_session_epoch": -1}],
        WRONG_EPOCH: [{"share_session_epoch": member.epoch + 1}, {"share_session_epoch": 2**31 - 1},
                      {"share_session_epoch": -2}],
        INVALID_REQUEST: [{"member_id": ""}, {"member_id": None}, {"group_id": None}],
    }  # fmt: skip
    for code, cases in refused.items():
        for changes in cases:
            assert member.send(member.acknowledge_request(everything, **changes)).error_code == code, changes
            assert member.send(member.fetch_request(everything, **changes)).error_code == code, changes
    assert member.send(member.acknowledge_request(everything, share_session_epoch=0)).error_code == WRONG_EPOCH
    for changes in ({"share_session_epoch": 0}, {"is_renew_ack": True}):
        assert member.send(member.fetch_request(everything, **changes)).error_code == INVALID_REQUEST, changes
    long = "m" * 100_000
    assert other.send(other.fetch_request(member_id=long, share_session_epoch=0)).error_code == INVALID_REQUEST
    [offer] = (offer for offer in look(cluster.store, "workers").offers.values() if offer.next_offset)
    assert (offer.unfinished, offer.available) == (20, 0)
    assert member.acknowledge(*everything) == 0


@pytest.mark.on_sqlite
@pytest.mark.parametrize("part", ["batches", "types", "partitions", "topics", "forgotten"])
def test_share_requests_with_huge_arrays_are_refused(cluster, gateway, sharing, part):
    """One element costs two bytes and more. The connection is closed before any is decoded."""
    member, other = sharing
    before_mb = gateway.memory_mb()
    count = 500_000
    request = member.fetch_request()
    [topic] = request.topics
    match part:
        case "batches":
            batch = member.fetch_request([(0, 0, [1])]).topics[0].partitions[0].acknowledgement_batches[0]
            topic.partitions[0].acknowledgement_batches = [batch] * count
        case "types":
            request = member.fetch_request([(0, count - 1, [1] * count)])
        case "partitions":
            topic.partitions = topic.partitions * count
        case "topics":
            request.topics = [topic] * count
        case "forgotten":
            request.forgotten_topics_data = [request.ForgottenTopic(topic_id=topic.topic_id, partitions=[0] * count)]
    with suppress(ConnectionError):
        member.connection.send(request, 2)
    assert member.connection.is_closed()
    assert gateway.memory_mb() - before_mb < 60
    assert acquired(other.send(other.fetch_request(max_wait_ms=20_000))) == [(0, 19, 2)], "its locks ended with it"


def test_the_nil_id_is_that_of_no_topic(gateway_on_sqlite):
    """kafka-python decodes it as None."""
    nil = uuid.UUID(int=0)
    with WireConnection(gateway_on_sqlite.port) as wire:
        member = ConsumerMember(wire, "g", topic_ids(wire, "flights"), subscribed_topic_names=["flights"])
        assert member.join().error_code == 0
        owned = [ConsumerGroupHeartbeatRequest.TopicPartitions(topic_id=nil, partitions=[0])]
        assert member.beat(topic_partitions=owned).error_code == 0
        other = ShareFetchRequest.FetchTopic(topic_id=uuid.UUID(int=5), partitions=[])
        for epoch in (0, 1):
            share = WireShareMember(wire, SimpleNamespace(uuid=nil.hex, name="flights"))
            request = share.fetch_request(share_session_epoch=epoch)
            request.topics.append(other)
            other.partitions = request.topics[0].partitions
            request.forgotten_topics_data = [request.ForgottenTopic(topic_id=nil, partitions=[0])] * epoch
            answer = wire.exchange(request, 2)
            codes = {part.error_code for topic in answer.responses for part in topic.partitions}
            assert (answer.error_code, codes) == (0, {UNKNOWN_TOPIC_ID})


def test_metadata_of_a_member_are_decoded_only_within_the_limits_and_for_a_member_with_an_id(gateway_on_sqlite):
    too_many = struct.pack(">hi", 0, 480_000) + bytes(2 * 480_000) + struct.pack(">i", -1)
    with WireConnection(gateway_on_sqlite.port) as wire:
        ids = topic_ids(wire, "flights")
        assert ConsumerMember(wire, "g", ids, subscribed_topic_names=["flights"]).join().error_code == 0

        def join(metadata, member_id=""):
            request = ClassicMember(wire, "g", ["flights"]).join_request()
            request.member_id, request.protocols[0].metadata = member_id, metadata
            answer = wire.exchange(request, 5)
            return answer.error_code, answer.member_id

        code, member_id = join(b"not decoded")
        assert code == MEMBER_ID_REQUIRED
        assert join(too_many, member_id)[0] == INCONSISTENT_GROUP_PROTOCOL
        assert join(b"not of a consumer", member_id)[0] == INCONSISTENT_GROUP_PROTOCOL
