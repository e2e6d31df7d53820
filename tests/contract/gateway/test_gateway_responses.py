"""Responses take bounded memory: each thing that a request names is described once, and a response has a limit."""

import os
import socket
from contextlib import ExitStack

import pytest
from kafka.protocol.admin import DescribeGroupsRequest, DescribeProducersRequest, DescribeTransactionsRequest
from kafka.protocol.consumer import JoinGroupRequest, OffsetCommitRequest, OffsetFetchRequest, SyncGroupRequest
from kafka.protocol.metadata import MetadataRequest

from spark_log import Cluster
from tests.support.costly_requests import HOSTILE_ADDRESS
from tests.support.gateway_wire import WireConnection, frame_of
from tests.support.topics import make
from tests.support.waiting import wait_until

MENTIONS = 1_900
LARGE_BYTES = 900_000


@pytest.fixture
def gateway_of(gateway_with, tmp_path):
    """Starts a gateway with these configs, for a cluster with topic `flights` of 1,000 partitions."""
    with Cluster.init(str(tmp_path / "cluster")) as cluster:
        make(cluster, "flights", 1_000)
    return gateway_with


def make_group(connection, name, size):
    """A group of one member that has told so many bytes, and was assigned as many."""
    protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="p", metadata=os.urandom(size))
    joined = connection.exchange(
        JoinGroupRequest(
            group_id=name, session_timeout_ms=300_000, rebalance_timeout_ms=300_000, member_id="",
            group_instance_id=None, protocol_type="connect", protocols=[protocol],
        ),
        3,
    )  # fmt: skip
    assigned = SyncGroupRequest.SyncGroupRequestAssignment(member_id=joined.member_id, assignment=os.urandom(size))
    request = SyncGroupRequest(
        group_id=name, generation_id=joined.generation_id, member_id=joined.member_id, assignments=[assigned]
    )
    assert connection.exchange(request, 2).error_code == 0


def describe_groups(names):
    return DescribeGroupsRequest(groups=names, include_authorized_operations=False)


def test_what_a_request_names_again_and_again_is_described_once(gateway_of):
    gateway = gateway_of()
    with WireConnection(gateway.port) as connection:
        make_group(connection, "g", LARGE_BYTES)
        kind = OffsetCommitRequest.OffsetCommitRequestTopic
        partitions = [
            kind.OffsetCommitRequestPartition(partition_index=number, committed_offset=1, committed_metadata="x" * 500)
            for number in range(1_000)
        ]
        commit = OffsetCommitRequest(
            group_id="offsets", generation_id_or_member_epoch=-1, member_id="", retention_time_ms=-1,
            topics=[kind(name="flights", partitions=partitions)],
        )  # fmt: skip
        assert {one.error_code for one in connection.exchange(commit, 2).topics[0].partitions} == {0}
        fetched = OffsetFetchRequest.OffsetFetchRequestGroup(group_id="offsets", topics=None)
        asked = DescribeProducersRequest.TopicRequest(name="flights", partition_indexes=[0, 1] * (MENTIONS // 2))

        groups = connection.exchange(describe_groups(["g", "other"] * (MENTIONS // 2)), 5).groups
        assert [one.group_id for one in groups] == ["g", "other"]
        groups = connection.exchange(OffsetFetchRequest(groups=[fetched] * MENTIONS, require_stable=False), 8).groups
        assert [(one.group_id, len(one.topics[0].partitions)) for one in groups] == [("offsets", 1_000)]
        [topic] = connection.exchange(DescribeProducersRequest(topics=[asked]), 0).topics
        assert [one.partition_index for one in topic.partitions] == [0, 1]
        states = connection.exchange(DescribeTransactionsRequest(transactional_ids=["t"] * MENTIONS), 0)
        assert [one.transactional_id for one in states.transaction_states] == ["t"]
    assert gateway.memory_mb("VmHWM") < 500


def test_a_response_above_the_limit_closes_its_connection_and_the_log_says_why(gateway_of):
    gateway = gateway_of("response.max.bytes=3000000")
    with WireConnection(gateway.port) as connection:
        for name in ("a", "b"):
            make_group(connection, name, 600_000)
        assert len(connection.exchange(describe_groups(["a"]), 5).groups) == 1
        connection.send(describe_groups(["a", "b"]), 5)
        assert connection.is_closed()
    assert "closed: a response of more than 3000000 bytes" in gateway.output
    with WireConnection(gateway.port) as connection:
        assert connection.exchange(MetadataRequest(topics=None), 1).brokers


@pytest.mark.slow
def test_clients_that_do_not_read_descriptions_leave_memory_to_others(gateway_of):
    gateway = gateway_of("queued.max.request.bytes=20000000")
    names = ["a", "b", "c", "d"]  # more than the kernel takes of a response that is not read
    with WireConnection(gateway.port) as good, ExitStack() as stack:
        for name in names:
            make_group(good, name, LARGE_BYTES)
        frame = frame_of(describe_groups(names), 5)
        for _ in range(100):
            connection = stack.enter_context(socket.socket())
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.bind((HOSTILE_ADDRESS, 0))
            connection.connect(("127.0.0.1", gateway.port))
            connection.sendall(frame)

        def some_were_closed():
            assert good.exchange(describe_groups(["a"]), 5).groups[0].error_code == 0
            return gateway.output.count("made no progress was closed") >= 20

        wait_until(some_were_closed, pause_s=0.1)
        assert gateway.memory_mb("VmHWM") < 500
