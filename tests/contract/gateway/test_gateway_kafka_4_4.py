"""Requests that Kafka has since 4.0: what a broker of 4.4 answers, and where a gateway differs."""

import kafka
import pytest
from kafka.protocol.admin import AlterPartitionReassignmentsRequest, DescribeLogDirsRequest, ListTransactionsRequest
from kafka.protocol.consumer import ListOffsetsRequest

from spark_log.cluster.cluster import Cluster
from spark_log.gateway.groups.streams_group_requests import REFUSAL
from spark_log.gateway.protocol.schemas import ApiVersionsRequest, StreamsGroupHeartbeatRequest
from tests.support.gateway_wire import WireConnection
from tests.support.server_processes import GatewayProcess
from tests.support.topics import make

NONE, UNSUPPORTED_VERSION, INVALID_REQUEST, REBOOTSTRAP_REQUIRED = 0, 35, 42, 129
INVALID_REPLICATION_FACTOR, INVALID_REPLICA_ASSIGNMENT, INVALID_REGULAR_EXPRESSION = 38, 39, 128
LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -5, -6


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """On SQLite: the store takes no part in these answers."""
    with Cluster.init(str(tmp_path_factory.mktemp("cluster"))) as cluster:
        make(cluster, "t", 1)
        yield cluster


@pytest.fixture(scope="module")
def gateway(cluster, tmp_path_factory):
    with GatewayProcess(tmp_path_factory.mktemp("gateway"), str(cluster.store.address)) as gateway:
        yield gateway
        assert "Traceback" not in gateway.output


@pytest.fixture
def connection(gateway):
    with WireConnection(gateway.port) as connection:
        yield connection


def test_client_that_reaches_another_cluster_is_told_to_bootstrap_again(cluster, connection):
    def asked(cluster_id, node_id, version=5):
        request = ApiVersionsRequest(
            client_software_name="test", client_software_version="1", cluster_id=cluster_id, node_id=node_id
        )
        answer = connection.exchange(request, version)
        return answer.error_code, len(answer.api_keys) > 0

    assert asked(None, -1) == (NONE, True)
    assert asked(cluster.cluster_id, 1) == (NONE, True)
    assert asked(cluster.cluster_id, 99) == (NONE, True), "it may have come through a load balancer"
    assert asked("another", 1) == (REBOOTSTRAP_REQUIRED, False)
    assert asked("another", -1) == (INVALID_REQUEST, False)
    assert asked(None, 1) == (INVALID_REQUEST, False)
    assert asked("another", 1, version=4) == (NONE, True), "older versions do not say it"


@pytest.mark.parametrize("version", [(3, 9), (4, 1), (4, 3)], ids=str)
def test_kafka_python_serves_clients_with_the_version_of_a_broker(gateway, version):
    """With `api_version`, kafka-python takes the versions of requests from a table of its own, up to the version that
    the server seems to have.
    """
    client = {"bootstrap_servers": gateway.address, "api_version": version, "bootstrap_timeout_ms": 20_000}
    topic = f"of-{version[0]}-{version[1]}"
    with kafka.KafkaAdminClient(**client) as admin:
        admin.create_topics([kafka.admin.NewTopic(topic, 1, 1)])
        assert [each["port"] for each in admin.describe_cluster()["brokers"]] == [gateway.port]
        assert admin.list_transactions() is not None
        assert admin.list_partition_reassignments() == {}
    with kafka.KafkaProducer(transactional_id=topic, **client) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"value")
        producer.commit_transaction()
    with kafka.KafkaConsumer(topic, group_id=topic, auto_offset_reset="earliest", **client) as consumer:
        assert next(consumer).value == b"value"


def test_transactions_are_listed_by_a_pattern_of_their_ids(gateway, connection):
    for name in ("orders-1", "orders-2", "re-orders-1"):
        with kafka.KafkaProducer(bootstrap_servers=gateway.address, transactional_id=name) as producer:
            producer.init_transactions()

    def listed(pattern, version=2):
        request = ListTransactionsRequest(
            state_filters=[], producer_id_filters=[], duration_filter=-1, transactional_id_pattern=pattern
        )
        answer = connection.exchange(request, version)
        ids = {each.transactional_id for each in answer.transaction_states}
        return answer.error_code, sorted(each for each in ids if "orders" in each)

    assert listed("orders-.*") == (NONE, ["orders-1", "orders-2"])
    assert listed("") == listed(None) == listed(None, 1) == (NONE, ["orders-1", "orders-2", "re-orders-1"])
    assert listed("(") == (INVALID_REGULAR_EXPRESSION, [])


def test_reassignment_that_must_not_change_the_replication_factor(connection):
    kind = AlterPartitionReassignmentsRequest.ReassignableTopic

    def begun(replicas, allowed, version=1):
        part = kind.ReassignablePartition(partition_index=0, replicas=replicas)
        request = AlterPartitionReassignmentsRequest(
            timeout_ms=1_000, allow_replication_factor_change=allowed, topics=[kind(name="t", partitions=[part])]
        )
        answer = connection.exchange(request, version)
        return answer.responses[0].partitions[0].error_code

    assert begun([1, 9], False) == INVALID_REPLICATION_FACTOR
    assert begun([1, 9], True) == begun([1, 9], True, 0) == INVALID_REPLICA_ASSIGNMENT, "there is no broker 9"
    assert begun([1], False) == NONE


def test_offsets_of_remote_storage_do_not_exist(connection):
    def listed(time, version):
        kind = ListOffsetsRequest.ListOffsetsTopic
        part = kind.ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=time)
        request = ListOffsetsRequest(
            replica_id=-1, isolation_level=0, timeout_ms=1_000, topics=[kind(name="t", partitions=[part])]
        )
        [topic] = connection.exchange(request, version).topics
        return topic.partitions[0].error_code, topic.partitions[0].offset

    assert [listed(LATEST_TIERED, version) for version in (8, 9, 11)] == [
        (UNSUPPORTED_VERSION, -1), (NONE, -1), (NONE, -1),
    ]  # fmt: skip
    assert [listed(EARLIEST_PENDING_UPLOAD, version) for version in (8, 10, 11)] == [
        (UNSUPPORTED_VERSION, -1), (UNSUPPORTED_VERSION, -1), (NONE, -1),
    ]  # fmt: skip


def test_log_dirs_are_not_cordoned(connection):
    answer = connection.exchange(DescribeLogDirsRequest(topics=None), 5)
    assert [each.is_cordoned for each in answer.results] == [False]


def test_topic_configs_of_kafka_4_4(gateway):
    with kafka.KafkaAdminClient(bootstrap_servers=gateway.address) as admin:
        created = kafka.admin.NewTopic("twice", 1, 1, topic_configs={"cleanup.policy": "compact,compact"})
        admin.create_topics([created])
        for name in ("max.decompressed.message.bytes", "remote.copy.lag.ms"):
            refused = kafka.admin.NewTopic("refused", 1, 1, topic_configs={name: "5"})
            with pytest.raises(kafka.errors.InvalidConfigurationError, match="no meaning here"):
                admin.create_topics([refused])


@pytest.mark.parametrize("version", [0, 1])
def test_streams_group_is_refused_with_the_way_out(connection, version):
    request = StreamsGroupHeartbeatRequest(
        group_id="word-count", member_id="m", member_epoch=0, endpoint_information_epoch=-1, instance_id=None,
        rack_id=None, rebalance_timeout_ms=300_000, topology=None, active_tasks=[], standby_tasks=[], warmup_tasks=[],
        process_id="p", user_endpoint=None, client_tags=[], task_offsets=None, task_end_offsets=None,
        shutdown_application=False,
    )  # fmt: skip
    answer = connection.exchange(request, version)
    assert (answer.error_code, answer.error_message, answer.member_id) == (INVALID_REQUEST, REFUSAL, "m")
    assert "group.protocol=classic" in REFUSAL
