"""Administration of a cluster by Kafka's clients, through a gateway."""

import uuid

import confluent_kafka
import pytest
from confluent_kafka import admin as confluent
from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, NewTopic
from kafka.errors import (
    InvalidReplicationAssignmentError,
    InvalidReplicationFactorError,
    NoError,
    NonEmptyGroupError,
    TransactionalIdNotFoundError,
)
from kafka.protocol.admin import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteRecordsRequest,
    DescribeConfigsRequest,
    DescribeTopicPartitionsRequest,
    ElectionType,
)
from kafka.protocol.consumer import OffsetForLeaderEpochRequest
from kafka.structs import OffsetAndMetadata

from spark_log import Producer
from spark_log.clients.admin.audit import read_changes, record_change
from spark_log.cluster.topics import list_topics
from spark_log.facts.metrics.recorded_topics import METRICS, Recorded
from spark_log.maintenance.recorded_appends import append_records
from tests.support.gateway_wire import WireConnection
from tests.support.server_processes import GatewayProcess
from tests.support.topics import find
from tests.support.waiting import LIMIT_S

A0 = TopicPartition("a", 0)
INVALID_TOPIC, POLICY_VIOLATION = 17, 44

on_sqlite = pytest.mark.parametrize("cluster_address", ["sqlite"], indirect=True)
"""The methods behind a gateway have contract tests on both stores."""


@pytest.fixture
def gateway(cluster, tmp_path):
    with GatewayProcess(tmp_path, str(cluster.store.address), "--no-auto-create-topics") as gateway:
        yield gateway
        assert "Traceback" not in gateway.output


@pytest.fixture
def admin(gateway):
    with KafkaAdminClient(bootstrap_servers=gateway.address) as admin:
        yield admin


@pytest.fixture
def librdkafka(gateway):
    return confluent.AdminClient({"bootstrap.servers": gateway.address})


def append(cluster, count):
    with Producer(cluster=str(cluster.store.address)) as producer:
        for number in range(count):
            producer.send("a", b"%d" % number, partition=0)


def results(futures):
    """The result of each future, or its error's name."""
    return {
        key: each.exception().args[0].name() if each.exception() else each.result() for key, each in futures.items()
    }


@on_sqlite
def test_partitions_of_a_request_are_bounded_together(cluster, gateway):
    wanted, more = CreateTopicsRequest.CreatableTopic, CreatePartitionsRequest.CreatePartitionsTopic

    def create(**counts):
        topics = [
            wanted(name=name, num_partitions=count, replication_factor=1, assignments=[], configs=[])
            for name, count in counts.items()
        ]
        answer = wire.exchange(CreateTopicsRequest(topics=topics, timeout_ms=60_000, validate_only=False), 5)
        return {each.name: (each.error_code, each.error_message) for each in answer.topics}

    def add(**counts):
        topics = [more(name=name, count=count, assignments=None) for name, count in counts.items()]
        answer = wire.exchange(CreatePartitionsRequest(topics=topics, timeout_ms=60_000, validate_only=True), 3)
        return {each.name: each.error_code for each in answer.results}

    with WireConnection(gateway.port) as wire:
        refused = create(a=5_000, b=5_000, c=-1)
        assert {code for code, _ in refused.values()} == {POLICY_VIOLATION}
        assert refused["c"][1].startswith("Excessively large number of partitions per request")
        assert list_topics(cluster) == [], "nothing is done for a part of the topics"
        assert create(a=2, b=3, c=-1) == dict.fromkeys("abc", (0, None))
        assert add(a=5_002, b=5_004) == dict.fromkeys("ab", POLICY_VIOLATION)
        assert add(a=5_002, b=5_003) == dict.fromkeys("ab", 0), "those that a topic has already do not count"


@on_sqlite
def test_topics_by_kafka_python(cluster, admin):
    created = admin.create_topics([NewTopic("a", 2, 1, topic_configs={"retention.ms": "5000"}), NewTopic("b")])
    assert [(t["name"], t["num_partitions"], t["replication_factor"]) for t in created["topics"]] == [
        ("a", 2, 1),
        ("b", 1, 1),
    ]
    assert created["topics"][0]["configs"]["retention.ms"]["value"] == "5000"
    admin.create_topics([NewTopic("c", 3, 1)], validate_only=True)
    with pytest.raises(InvalidReplicationFactorError):
        admin.create_topics([NewTopic("c", 1, 9)])
    with pytest.raises(InvalidReplicationAssignmentError):
        admin.create_topics([NewTopic("c", replica_assignments={0: [1]})])
    admin.create_partitions({"a": 3})
    assert {topic.name: topic.partition_count for topic in list_topics(cluster)} == {"a": 3, "b": 1}
    append(cluster, 5)
    assert admin.delete_records({A0: 2})[A0]["low_watermark"] == 2
    [described] = admin.describe_topics(["a"])
    assert [partition["partition_index"] for partition in described["partitions"]] == [0, 1, 2]
    admin.delete_topics([uuid.UUID(str(described["topic_id"])), "b"])
    assert list_topics(cluster) == []
    assert admin.delete_topics([uuid.uuid4()], raise_errors=False)["topics"][0]["error_code"] == 100


@on_sqlite
def test_configs_by_kafka_python(gateway, admin):
    topic, broker = (ConfigResourceType.TOPIC, "a"), (ConfigResourceType.BROKER, "1")
    admin.create_topics([NewTopic("a", 1, 1, topic_configs={"retention.ms": "5000"})])

    def describe(resource, **options):
        [found] = admin.describe_configs([ConfigResource(*resource)], **options).values()
        return found[resource[1]]

    admin.alter_configs([ConfigResource(*topic, {"segment.bytes": "1048576"})])
    admin.alter_configs([ConfigResource(*broker, {"offset.metadata.max.bytes": "100"})])
    changed = describe(topic, include_synonyms=True)
    assert {name: entry["value"] for name, entry in changed.items()} == {
        "retention.ms": "5000",
        "segment.bytes": "1048576",
    }
    assert [(each["value"], each["source"]) for each in changed["retention.ms"]["synonyms"]] == [
        ("5000", "DYNAMIC_TOPIC_CONFIG"),
        ("604800000", "DEFAULT_CONFIG"),
    ]
    of_broker = describe(broker, config_filter="all")
    assert of_broker["offset.metadata.max.bytes"]["value"] == "100"
    assert of_broker["num.partitions"]["read_only"]
    assert of_broker["advertised.listeners"]["value"] == f"PLAINTEXT://{gateway.address}"
    assert of_broker["advertised.listeners"]["config_type"] == "STRING"
    admin.reset_configs([ConfigResource(*topic, ["retention.ms"])])
    assert describe(topic).keys() == {"segment.bytes"}
    assert admin.list_config_resources() == {"topic": ["a"], "broker": ["1"]}
    assert admin.list_config_resources(["BROKER", "GROUP"]) == {"broker": ["1"]}
    refused = admin.alter_configs([ConfigResource(*topic, {"segment.bytes": "many"})])
    assert "segment.bytes" in refused["topic"]["a"]
    assert describe(topic).keys() == {"segment.bytes"}


@on_sqlite
def test_a_value_that_does_not_fit_an_old_version_is_null_there(gateway, admin):
    schema = ", ".join(f"column_{number} BIGINT" for number in range(2_000))
    admin.create_topics([NewTopic("a", 1, 1, topic_configs={"value.format": "json", "value.schema": schema})])
    keys = ["value.format", "value.schema"]
    named = DescribeConfigsRequest.DescribeConfigsResource(resource_type=2, resource_name="a", configuration_keys=keys)
    with WireConnection(gateway.port) as wire:
        for version, value in ((1, None), (3, None), (4, schema)):
            described = wire.exchange(DescribeConfigsRequest(resources=[named], include_synonyms=True), version)
            configs = {config.name: config for config in described.results[0].configs}
            assert configs["value.format"].value == "json"
            assert (configs["value.schema"].value, configs["value.schema"].synonyms[0].value) == (value, value)


@on_sqlite
def test_the_audit_names_the_client_that_changes_a_config_of_a_group(cluster, admin):
    resource = ConfigResource(ConfigResourceType.GROUP, "g", {"share.isolation.level": "read_committed"})
    for incremental in (True, False):
        assert admin.alter_configs([resource], incremental=incremental) == {"group": {"g": "OK"}}
    changes = read_changes(cluster, target="group g")
    assert [(change.who, change.source) for change in changes] == [("User:ANONYMOUS", "gateway")] * 2


@on_sqlite
def test_no_client_of_a_gateway_removes_records_of_the_audit(cluster, gateway, admin):
    admin.create_topics([NewTopic("a", 1, 1)])
    append(cluster, 3)
    assert record_change(cluster, "anna", "a", "t", {}, "succeeded", "cli")
    append_records(cluster, METRICS, [Recorded(0, "n", {"name": "n"})])
    of_topic = DeleteRecordsRequest.DeleteRecordsTopic
    partition = of_topic.DeleteRecordsPartition(partition_index=0, offset=-1)
    topics = [of_topic(name=name, partitions=[partition]) for name in ("__audit", "a", "__consumer_offsets")]
    with WireConnection(gateway.port) as wire:
        deleted = wire.exchange(DeleteRecordsRequest(topics=topics, timeout_ms=60_000), 2)
    assert [(each.low_watermark, each.error_code) for topic in deleted.topics for each in topic.partitions] == [
        (-1, INVALID_TOPIC), (3, 0), (-1, INVALID_TOPIC),
    ]  # fmt: skip
    for incremental in (True, False):
        configs = [ConfigResource("TOPIC", name, {"retention.ms": "1"}) for name in ("__audit", "__metrics")]
        altered = admin.alter_configs(configs, incremental=incremental)["topic"]
        assert "command line only" in altered["__audit"]
        assert altered["__metrics"] == "OK", "as in Kafka, a client may alter other internal topics"
    assert find(cluster, "__audit").config.retention_ms > 1
    assert len(read_changes(cluster)) == 1


@on_sqlite
def test_groups_by_kafka_python(cluster, gateway, admin):
    admin.create_topics([NewTopic("a", 1, 1)])
    append(cluster, 3)
    assert admin.alter_group_offsets("idle", {A0: OffsetAndMetadata(2, "", -1)}) == {A0: NoError}
    with KafkaConsumer("a", group_id="busy", bootstrap_servers=gateway.address, auto_offset_reset="earliest") as busy:
        assert sum(len(records) for records in busy.poll(1000 * LIMIT_S).values()) == 3
        listed = {group["group_id"]: group["group_state"] for group in admin.list_groups()}
        assert listed == {"idle": "Empty", "busy": "Stable"}
        assert [group["group_id"] for group in admin.list_groups(states_filter=["Stable"])] == ["busy"]
        described = admin.describe_groups(["busy", "idle", "none"])
        assert {name: group["group_state"] for name, group in described.items()} == {
            "busy": "Stable", "idle": "Empty", "none": "Dead",
        }  # fmt: skip
        assert {name: group["protocol_data"] for name, group in described.items()} == {
            "busy": "range", "idle": "", "none": "",
        }  # fmt: skip
        [member] = described["busy"]["members"]
        assert member["member_metadata"]["topics"] == ["a"]
        assert member["member_assignment"]["assigned_partitions"] == [{"topic": "a", "partitions": [0]}]
        assert admin.delete_groups(["busy"]) == {"busy": NonEmptyGroupError.__name__}
        assert admin.delete_group_offsets("idle", [A0]) == {A0: NoError}
    assert admin.list_group_offsets("idle") == {"idle": {}}
    assert admin.delete_groups(["busy", "idle", "none"]) == {
        "busy": "OK", "idle": "OK", "none": "GroupIdNotFoundError",
    }  # fmt: skip


@on_sqlite
def test_cluster_by_kafka_python(cluster, gateway, admin):
    admin.create_topics([NewTopic("a", 1, 1)])
    append(cluster, 3)
    described = admin.describe_cluster()
    [broker] = described["brokers"]
    assert (described["cluster_id"], described["controller_id"]) == (cluster.cluster_id, broker["broker_id"])
    assert (broker["host"], broker["port"]) == ("127.0.0.1", gateway.port)
    [log_dirs] = admin.describe_log_dirs()
    assert [topic["name"] for topic in log_dirs["log_dirs"][0]["topics"]] == ["a"]
    elected = admin.elect_leaders(ElectionType.PREFERRED, {"a": [0, 9]}, raise_errors=False)
    [of_a] = elected.replica_election_results
    assert [each.error_code for each in of_a.partition_result] == [84, 3]  # not needed; no such partition
    [outcome] = admin.alter_partition_reassignments({A0: [9]}).values()
    assert outcome is InvalidReplicationAssignmentError
    assert admin.list_partition_reassignments() == {}
    [producer] = admin.describe_producers([A0])[A0].active_producers
    assert producer.last_sequence == 2
    assert [each for found in admin.list_transactions().values() for each in found] == []
    with pytest.raises(TransactionalIdNotFoundError):
        admin.describe_transactions(["none"])


@on_sqlite
def test_each_log_dir_is_described_by_one_of_the_gateways(cluster, gateway, tmp_path):
    with (
        GatewayProcess(tmp_path, str(cluster.store.address)) as other,
        KafkaAdminClient(bootstrap_servers=other.address) as admin,
    ):
        assert {each["port"] for each in admin.describe_cluster()["brokers"]} == {gateway.port, other.port}
        described = admin.describe_log_dirs()
        assert len(described) == 2
        assert sum(len(each["log_dirs"]) for each in described) == 1


@on_sqlite
def test_requests_that_the_clients_of_these_tests_do_not_send(cluster, gateway, admin):
    admin.create_topics([NewTopic("a", 3, 1), NewTopic("b", 2, 1)])
    append(cluster, 4)
    with WireConnection(gateway.port) as connection:
        seen, cursor = [], None
        while not seen or cursor is not None:
            page = connection.exchange(
                DescribeTopicPartitionsRequest(topics=[], response_partition_limit=2, cursor=cursor), 0
            )
            seen += [(topic.name, each.partition_index) for topic in page.topics for each in topic.partitions]
            cursor = page.next_cursor
        assert seen == [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1)]

        topic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
        asked = topic.OffsetForLeaderPartition(partition=0, current_leader_epoch=0, leader_epoch=0)
        ends = connection.exchange(OffsetForLeaderEpochRequest(topics=[topic(topic="a", partitions=[asked])]), 4)
        [end] = ends.topics[0].partitions
        assert (end.error_code, end.leader_epoch, end.end_offset) == (0, 0, 4)

        resource = DescribeConfigsRequest.DescribeConfigsResource
        named = resource(resource_type=2, resource_name="a", configuration_keys=["retention.ms"])
        again = [named] * 100  # is described once, as by a broker
        described = connection.exchange(DescribeConfigsRequest(resources=again, include_documentation=True), 4)
        [result] = described.results
        [config] = result.configs
        assert config.documentation
        assert config.config_source == 5


def test_administration_by_librdkafka(cluster, librdkafka):
    new = [confluent.NewTopic("a", 2, 1), confluent.NewTopic("b", 1, 9)]
    assert results(librdkafka.create_topics(new)) == {"a": None, "b": "INVALID_REPLICATION_FACTOR"}
    assert results(librdkafka.create_partitions([confluent.NewPartitions("a", 3)])) == {"a": None}
    append(cluster, 4)
    topic = confluent.ConfigResource.Type.TOPIC, "a"
    operations = confluent.AlterConfigOpType
    changes = [
        confluent.ConfigEntry("cleanup.policy", "compact", incremental_operation=operations.APPEND),
        confluent.ConfigEntry("retention.ms", "9000", incremental_operation=operations.SET),
    ]
    altered = librdkafka.incremental_alter_configs([confluent.ConfigResource(*topic, incremental_configs=changes)])
    assert list(results(altered).values()) == [None]
    [configs] = results(librdkafka.describe_configs([confluent.ConfigResource(*topic)])).values()
    assert (configs["cleanup.policy"].value, configs["retention.ms"].value) == ("compact,delete", "9000")
    [deleted] = results(librdkafka.delete_records([confluent_kafka.TopicPartition("a", 0, 3)])).values()
    assert deleted.low_watermark == 3
    described = librdkafka.describe_cluster(include_authorized_operations=True).result(60)
    assert (described.cluster_id, len(described.nodes)) == (cluster.cluster_id, 1)
    assert confluent.AclOperation.ALTER_CONFIGS in described.authorized_operations
    names = confluent_kafka.TopicCollection(["a"])
    of_a = results(librdkafka.describe_topics(names, include_authorized_operations=True))["a"]
    assert len(of_a.partitions) == 3
    assert confluent.AclOperation.WRITE in of_a.authorized_operations
    [group] = results(librdkafka.describe_consumer_groups(["none"])).values()
    assert group.state is confluent_kafka.ConsumerGroupState.DEAD
    assert results(librdkafka.delete_consumer_groups(["none"])) == {"none": "GROUP_ID_NOT_FOUND"}
    assert results(librdkafka.delete_topics(["a", "none"])) == {"a": None, "none": "UNKNOWN_TOPIC_OR_PART"}
    assert list_topics(cluster) == []
