"""Names with a NUL, which PostgreSQL does not store: each request refuses them before the store does."""

import pytest
from kafka.protocol.admin import DescribeGroupsRequest, ListGroupsRequest
from kafka.protocol.consumer import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    OffsetCommitRequest,
    SyncGroupRequest,
)
from kafka.protocol.metadata import MetadataRequest

from spark_log.gateway.server import APIS
from spark_log.groups.committed_offsets import KEPT
from tests.support.classic_members import JOIN, ClassicMember, WorkerMember
from tests.support.consumer_members import ConsumerMember, topic_ids
from tests.support.gateway_wire import WireConnection, codes_of, commit_request, committed, request_about
from tests.support.server_processes import GatewayProcess
from tests.support.share_members import WireShareMember
from tests.support.topics import find, make

pytestmark = pytest.mark.parametrize("cluster_address", ["postgres"], indirect=True)
"""SQLite accepts these names."""

NONE, INCONSISTENT_GROUP_PROTOCOL, INVALID_GROUP_ID, UNKNOWN_MEMBER_ID = 0, 23, 24, 25
INVALID_REQUEST = 42
UNKNOWN_SERVER_ERROR = -1
NUL = "a\0b"


@pytest.fixture
def gateway(cluster, cluster_address, tmp_path):
    make(cluster, "flights", 1)
    with GatewayProcess(tmp_path, cluster_address, "--no-auto-create-topics") as running:
        yield running


def places(element):
    """Where the texts of a request are: (struct, field) for each."""
    for name in type(element)._struct.fields:
        value = getattr(element, name, None)
        if isinstance(value, str):
            yield element, name
        for each in value if isinstance(value, list) else ():
            if hasattr(type(each), "_struct"):
                yield from places(each)
            elif isinstance(each, str):
                yield element, name


def with_nul(api, version, number):
    """A request whose text of this number has a NUL; None if it has fewer."""
    request = request_about("flights", api.request, version)
    there = list(places(request))
    if number >= len(there):
        return None
    element, name = there[number]
    setattr(element, name, [NUL] if isinstance(getattr(element, name), list) else NUL)
    return request


def test_no_request_with_a_nul_is_an_unknown_error(cluster, gateway):
    wrong = []
    for api in APIS:
        version, number = api.advertised[1], 0
        while (request := with_nul(api, version, number)) is not None:
            with WireConnection(gateway.port) as connection:
                if api.name == "Produce":
                    request.acks = 1
                codes = codes_of(connection.exchange(request, version), version)
            if UNKNOWN_SERVER_ERROR in codes:
                wrong.append((api.name, number))
            number += 1
    assert wrong == []
    assert "Traceback" not in gateway.output, gateway.output[-4000:]


@pytest.mark.parametrize("assignor", ["cooperative-sticky", "custom"])
def test_members_with_a_nul_in_a_name_are_refused(cluster, gateway, assignor):
    """Of groups whose assignments the store computes, and of those whose leader does."""
    with WireConnection(gateway.port) as wire:
        assert ClassicMember(wire, NUL, ["flights"], assignor=assignor).join() == INVALID_GROUP_ID
        lowest = JoinGroupRequest(
            group_id=NUL, session_timeout_ms=30_000, member_id="", protocol_type="consumer", protocols=[]
        )
        assert wire.exchange(lowest, 0).error_code == INVALID_GROUP_ID
        assert ClassicMember(wire, "g", ["flights"], assignor=NUL).join() == INCONSISTENT_GROUP_PROTOCOL
        assert ClassicMember(wire, "g", ["flights"], assignor=assignor, instance_id=NUL).join() == UNKNOWN_MEMBER_ID
        member = ClassicMember(wire, "g", ["flights"], assignor=assignor)
        member.member_id = NUL
        assert member.join() == UNKNOWN_MEMBER_ID
        member = ClassicMember(wire, "g", ["flights"], assignor=assignor)
        assert (member.join(), member.sync()) == (NONE, NONE)
        them = {"group_id": "g", "generation_id": member.generation, "member_id": member.member_id}
        for kind, version, fields in (
            (HeartbeatRequest, 3, {}),
            (SyncGroupRequest, 3, {"assignments": []}),
            (OffsetCommitRequest, 7, {"topics": []}),
        ):
            names = [({"group_id": NUL}, INVALID_GROUP_ID), ({"member_id": NUL}, UNKNOWN_MEMBER_ID)]
            names += [({"group_instance_id": NUL}, UNKNOWN_MEMBER_ID)]
            for wrong, code in names if kind is not OffsetCommitRequest else ():
                answer = wire.exchange(kind(**{"group_instance_id": None, **them, **fields, **wrong}), version)
                assert answer.error_code == code, (kind, wrong)
        of = LeaveGroupRequest.MemberIdentity
        leaving = [of(member_id=NUL, group_instance_id=None), of(member_id="", group_instance_id=NUL)]
        left = wire.exchange(LeaveGroupRequest(group_id="g", members=leaving), 3)
        assert [each.error_code for each in left.members] == [UNKNOWN_MEMBER_ID] * 2
        assert wire.exchange(LeaveGroupRequest(group_id=NUL, members=leaving), 3).error_code == INVALID_GROUP_ID
        assert member.beat() == NONE


def test_commits_with_a_nul_in_a_name_are_refused(cluster, gateway):
    with WireConnection(gateway.port) as wire:

        def commit(group="g", **fields):
            return committed(wire, commit_request(group, "flights", **fields))

        assert commit(NUL) == INVALID_GROUP_ID
        assert commit(member_id=NUL) == UNKNOWN_MEMBER_ID
        assert commit(member_id="m", group_instance_id=NUL) == UNKNOWN_MEMBER_ID
        assert commit(metadata=NUL) == NONE, "free text, not a name"
        assert commit(metadata=KEPT) == INVALID_REQUEST, "else its offset would never expire"


def test_a_client_id_with_a_nul_is_no_obstacle(cluster, gateway):
    with WireConnection(gateway.port, client_id="te\0st") as wire:
        assert wire.exchange(MetadataRequest(topics=None), 1).topics
        for assignor in ("cooperative-sticky", "custom"):
            member = ClassicMember(wire, assignor, ["flights"], assignor=assignor)
            assert (member.join(), member.sync(), member.beat()) == (NONE, NONE, NONE), assignor
        consumer = ConsumerMember(wire, "consumers", topic_ids(wire, "flights"), subscribed_topic_names=["flights"])
        assert consumer.join().error_code == NONE
        WireShareMember(wire, find(cluster, "flights")).join()


def test_a_member_whose_protocol_has_a_long_name_is_refused_and_old_clients_list_its_group(cluster, gateway):
    with WireConnection(gateway.port) as wire:
        for names in ({"kind": "k" * 40_000}, {"protocol": "p" * 256}, {"kind": "consumer", "protocol": "p" * 40_000}):
            refused = wire.exchange(WorkerMember(wire, **names).join_request(), JOIN)
            assert refused.error_code == INCONSISTENT_GROUP_PROTOCOL
        longest = WorkerMember(wire, kind="k" * 255, protocol="p" * 255)
        assert longest.join() == NONE
        assert isinstance(longest.assign("a"), bytes)
        [listed] = wire.exchange(ListGroupsRequest(), 1).groups
        [described] = wire.exchange(DescribeGroupsRequest(groups=["g"]), 0).groups
        assert (listed.protocol_type, described.protocol_data) == ("k" * 255, "p" * 255)
