"""Admin: kafka-python's calls for topics, configs, offsets and groups, their results and their errors."""

import json
import threading
import uuid

import kafka.errors
import pytest
from kafka import OffsetAndMetadata, TopicPartition
from kafka.admin import (
    AlterConfigOp,
    ConfigResource,
    MemberToRemove,
    NewTopic,
    OffsetSpec,
    OffsetTimestamp,
)

import spark_log.errors
from spark_log import Admin, Consumer
from spark_log.clients.admin import configs
from spark_log.cluster.settings import alter_settings, read_settings
from spark_log.maintenance.client_log import ClientLog
from spark_log.metadata import tables as t
from spark_log.replication.controller.topic_operations import alter_configs
from tests.support.records import NOON_MS
from tests.support.topics import append, append_to, make


@pytest.fixture
def admin(cluster, cluster_address):
    with Admin(bootstrap_servers=[cluster_address], client_id="tests") as admin:
        yield admin


def test_topics_are_created_described_and_deleted(admin):
    made = admin.create_topics({"a": {"num_partitions": 3, "configs": {"retention.ms": "-1"}}, "b": {}})
    assert [(topic["name"], topic["num_partitions"], topic["error_code"]) for topic in made["topics"]] == [
        ("a", 3, 0),
        ("b", 1, 0),
    ]
    assert made["topics"][0]["configs"]["retention.ms"]["value"] == "-1"
    admin.create_topics([NewTopic("c", 2, 1)])
    admin.create_topics(["d"])
    assert admin.list_topics() == ["a", "b", "c", "d"]
    admin.wait_for_topics(["a", "d"], timeout_ms=0)
    described = {topic["name"]: topic for topic in admin.describe_topics(["a", "nope"])}
    assert [partition["leader_id"] for partition in described["a"]["partitions"]] == [1, 1, 1]
    assert described["a"]["partitions"][2]["isr_nodes"] == [1]
    assert described["nope"]["error_code"] == kafka.errors.UnknownTopicOrPartitionError.errno
    assert isinstance(described["a"]["topic_id"], uuid.UUID)
    assert admin.delete_topics(["b", described["a"]["topic_id"]])["topics"][1]["name"] == "a"
    assert admin.list_topics() == ["c", "d"]


def test_validate_only_changes_nothing(admin):
    admin.create_topics(["a"], validate_only=True)
    assert admin.list_topics() == []
    admin.create_topics(["a"])
    with pytest.raises(kafka.errors.TopicAlreadyExistsError):
        admin.create_topics(["a"], validate_only=True)
    admin.create_partitions({"a": 5}, validate_only=True)
    admin.alter_configs([ConfigResource("TOPIC", "a", {"retention.ms": "5"})], validate_only=True)
    assert len(admin.describe_topics(["a"])[0]["partitions"]) == 1
    assert admin.describe_configs([ConfigResource("TOPIC", "a")])["topic"]["a"] == {}


def test_errors_are_of_kafka_python_and_of_spark_log(admin):
    with pytest.raises(kafka.errors.InvalidTopicError) as caught:
        admin.create_topics(["a/b"])
    assert isinstance(caught.value, spark_log.errors.InvalidTopicError)
    assert "'a/b'" in str(caught.value)
    result = admin.create_topics({"x": {"num_partitions": 0}}, raise_errors=False)
    assert result["topics"][0]["error_code"] == kafka.errors.InvalidPartitionsError.errno
    assert "0" in result["topics"][0]["error_message"]
    with pytest.raises(kafka.errors.InvalidReplicationFactorError):
        admin.create_topics({"x": {"replication_factor": 2}})
    with pytest.raises(kafka.errors.UnknownTopicOrPartitionError):
        admin.delete_topics(["x"])
    with pytest.raises(kafka.errors.PolicyViolationError):
        admin.create_topics(["__consumer_offsets"])
    with pytest.raises(kafka.errors.InvalidReplicationAssignmentError, match="assignments"):
        admin.create_topics({"x": {"assignments": {0: [1]}}})
    result = admin.create_topics({"x": {"assignments": {0: [1]}}}, raise_errors=False)
    assert result["topics"][0]["error_code"] == kafka.errors.InvalidReplicationAssignmentError.errno
    with pytest.raises(kafka.errors.KafkaTimeoutError, match="x"):
        admin.wait_for_topics(["x"], timeout_ms=0)


def test_partitions_are_added(admin):
    admin.create_topics(["a"])
    assert admin.create_partitions({"a": 3})["results"] == [{"name": "a", "error_code": 0, "error_message": None}]
    admin.create_partitions({"a": {"count": 4}})
    assert len(admin.describe_topics(["a"])[0]["partitions"]) == 4
    with pytest.raises(kafka.errors.InvalidPartitionsError, match="4"):
        admin.create_partitions({"a": 2})


def test_configs(admin):
    admin.create_topics({"a": {"configs": {"retention.ms": "1000"}}})
    resource = ConfigResource("TOPIC", "a")
    assert {name: entry["value"] for name, entry in admin.describe_configs([resource])["topic"]["a"].items()} == {
        "retention.ms": "1000"
    }
    everything = admin.describe_configs([resource], config_filter="all")["topic"]["a"]
    assert everything["segment.bytes"]["config_source"] == "DEFAULT_CONFIG"
    assert everything["retention.ms"]["config_type"] == "LONG"
    changed = {"segment.bytes": 1000, "retention.ms": (AlterConfigOp.DELETE, None)}
    assert admin.alter_configs([ConfigResource("TOPIC", "a", changed)]) == {"topic": {"a": "OK"}}
    appended = {"cleanup.policy": ("APPEND", "compact")}
    admin.alter_configs([ConfigResource("TOPIC", "a", appended)])
    now = admin.describe_configs([resource])["topic"]["a"]
    assert {name: entry["value"] for name, entry in now.items()} == {
        "segment.bytes": "1000",
        "cleanup.policy": "compact,delete",
    }
    only = {"retention.ms": "7"}
    admin.alter_configs([ConfigResource("TOPIC", "a", only)], incremental=False)
    assert list(admin.describe_configs([resource])["topic"]["a"]) == ["retention.ms"]
    assert admin.reset_configs([resource]) == {"topic": {"a": "OK"}}
    assert admin.describe_configs([resource])["topic"]["a"] == {}


@pytest.mark.parametrize(
    ("alter", "expected"),
    [
        (
            lambda admin: admin.alter_configs([ConfigResource("TOPIC", "a", {"cleanup.policy": ("APPEND", "delete")})]),
            {"cleanup.policy": "compact,delete", "retention.ms": "7"},
        ),
        (
            lambda admin: admin.alter_configs([ConfigResource("TOPIC", "a", {"segment.ms": "9"})], incremental=False),
            {"segment.ms": "9"},
        ),
        (lambda admin: admin.reset_configs([ConfigResource("TOPIC", "a")]), {}),
    ],
    ids=["append", "replace", "reset"],
)
def test_a_change_of_configs_follows_one_that_came_in_between(admin, cluster, monkeypatch, alter, expected):
    admin.create_topics({"a": {"configs": {"retention.ms": "7"}}})
    read, others = configs._topic_of, [{"cleanup.policy": "compact"}]

    def read_before_another_change(*arguments):
        topic = read(*arguments)
        if others:
            alter_configs(cluster, "a", others.pop())
        return topic

    monkeypatch.setattr(configs, "_topic_of", read_before_another_change)
    assert alter(admin) == {"topic": {"a": "OK"}}
    now = admin.describe_configs([ConfigResource("TOPIC", "a")])["topic"]["a"]
    assert {name: entry["value"] for name, entry in now.items()} == expected


@pytest.mark.parametrize("reset", [False, True])
def test_all_settings_are_replaced_also_one_that_was_set_in_between(admin, cluster, monkeypatch, reset):
    def alter_after_another_change(*arguments, **named):
        alter_settings(cluster, {"group.share.max.size": "7"})
        return alter_settings(*arguments, **named)

    monkeypatch.setattr(configs, "alter_settings", alter_after_another_change)
    if reset:
        admin.reset_configs([ConfigResource("BROKER", "1")])
    else:
        admin.alter_configs([ConfigResource("BROKER", "1", {"plan.tasks.max": "9"})], incremental=False)
    assert read_settings(cluster) == ({} if reset else {"plan.tasks.max": "9"})


def test_wrong_configs_change_nothing(admin):
    admin.create_topics(["a"])
    with pytest.raises(ValueError, match=r"no\.such"):
        admin.alter_configs([ConfigResource("TOPIC", "a", {"no.such": "1"})])
    refused = admin.alter_configs([ConfigResource("TOPIC", "a", {"retention.ms": "soon"})])
    assert "retention.ms" in refused["topic"]["a"]
    refused = admin.alter_configs([ConfigResource("TOPIC", "a", {"retention.ms": ("APPEND", "1")})])
    assert "APPEND" in refused["topic"]["a"]
    assert "nope" in admin.alter_configs([ConfigResource("TOPIC", "nope", {"retention.ms": "1"})])["topic"]["nope"]
    assert admin.describe_configs([ConfigResource("TOPIC", "a")])["topic"]["a"] == {}


def test_offsets_and_records(admin, cluster):
    admin.create_topics({"a": {"num_partitions": 2}})
    log = ClientLog(cluster)
    append(log, "a", "x", "y", timestamp_ms=NOON_MS)
    append(log, "a", "z", timestamp_ms=NOON_MS + 10)
    append(log, "a", "late", timestamp_ms=NOON_MS + 5)
    zero, one = TopicPartition("a", 0), TopicPartition("a", 1)
    assert offsets(admin, {zero: OffsetSpec.LATEST, one: OffsetSpec.LATEST}) == {zero: (4, -1), one: (0, -1)}
    assert offsets(admin, {zero: OffsetSpec.EARLIEST}) == {zero: (0, -1)}
    assert offsets(admin, {zero: OffsetSpec.MAX_TIMESTAMP}) == {zero: (2, NOON_MS + 10)}
    assert offsets(admin, {zero: NOON_MS + 1, one: NOON_MS}) == {zero: (2, NOON_MS + 10), one: (-1, -1)}
    assert admin.delete_records({zero: 1}) == {zero: {"partition_index": 0, "low_watermark": 1, "error_code": 0}}
    assert offsets(admin, {zero: OffsetSpec.EARLIEST}) == {zero: (1, -1)}
    with pytest.raises(kafka.errors.OffsetOutOfRangeError):
        admin.delete_records({zero: 9})
    with pytest.raises(kafka.errors.UnknownTopicOrPartitionError):
        admin.list_partition_offsets({TopicPartition("a", 2): OffsetSpec.LATEST})
    log.close()


def offsets(admin, specs):
    found = admin.list_partition_offsets(specs)
    return {partition: (where.offset, where.timestamp) for partition, where in found.items()}


def test_compaction_is_run_on_request(admin, log):
    configs = {"cleanup.policy": "compact", "inline.max.bytes": "65536"}
    admin.create_topics({name: {"configs": configs} for name in ("planes", "other")})
    for topic in ("planes", "other"):
        append(log, topic, "old", "new", key=b"N1")
    chosen = {"topics": ["planes"], "now": True}
    assert [report.task for report in admin.run_maintenance(["seal"], dry_run=True, **chosen)] == ["seal"]
    compacted = admin.run_maintenance(["seal", "compact"], **chosen)[-1]
    assert (compacted.task, compacted.topic, compacted.before.records, compacted.after.records) == (
        "compact", "planes", 2, 1,
    )  # fmt: skip
    with pytest.raises(kafka.errors.InvalidConfigurationError, match="task 'shrink': expected"):
        admin.run_maintenance(["shrink"])


def test_settings(cluster, cluster_address):
    with pytest.raises(kafka.errors.KafkaConfigurationError, match="no_such"):
        Admin(cluster=cluster_address, no_such=1)
    with pytest.raises(kafka.errors.KafkaConfigurationError, match="sasl_mechanism"):
        Admin(cluster=cluster_address, sasl_mechanism="PLAIN")
    with pytest.raises(kafka.errors.KafkaConfigurationError, match=r"^(?!.*secret)"):
        Admin(cluster=cluster_address, sasl_plain_password="secret")
    Admin(cluster=cluster_address, security_protocol="PLAINTEXT").close()
    with pytest.raises(kafka.errors.KafkaConfigurationError, match="cluster"):
        Admin(cluster=None)


def test_a_missing_cluster_is_a_configuration_error(tmp_path):
    with pytest.raises(kafka.errors.KafkaConfigurationError, match="spark-log init"):
        Admin(cluster=str(tmp_path / "nowhere"))


def test_unsupported_calls_are_refused_by_name(admin):
    with pytest.raises(kafka.errors.UnsupportedVersionError, match="describe_features"):
        admin.describe_features()
    with pytest.raises(AttributeError):
        admin.no_such_method  # noqa: B018
    assert admin.describe_cluster()["brokers"][0]["broker_id"] == 1


@pytest.fixture
def consuming(admin, cluster, cluster_address):
    """A consumer with both partitions of topic a, and 3 records in each."""
    admin.create_topics({"a": {"num_partitions": 2}})
    for partition in (0, 1):
        append_to(cluster, "a", "x", "y", "z", partition=partition)
    consumer = Consumer(
        "a",
        cluster=cluster_address,
        group_id="g",
        client_id="me",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    read = 0
    while read < 6:
        read += sum(map(len, consumer.poll(timeout_ms=1000).values()))
    yield consumer
    consumer.close()


def test_groups_are_described(admin, consuming):
    consuming.commit({TopicPartition("a", 0): OffsetAndMetadata(2, "half", -1)})
    admin.alter_group_offsets("by-hand", {TopicPartition("a", 1): OffsetAndMetadata(1, "", -1)})
    listed = {group["group_id"]: group["group_state"] for group in admin.list_groups()}
    assert listed == {"g": "Stable", "by-hand": "Empty"}
    assert [group["group_id"] for group in admin.list_groups(states_filter=["empty"])] == ["by-hand"]
    described = admin.describe_groups(["g", "nope"])
    assert (described["nope"]["group_state"], described["g"]["error"]) == ("Dead", None)
    assert "GroupIdNotFoundError" in described["nope"]["error"]
    [member] = described["g"]["members"]
    assert member["client_id"] == "me"
    assert member["member_assignment"]["assigned_partitions"] == [{"topic": "a", "partitions": [0, 1]}]
    assert described["g"]["protocol_data"] == "range"
    offsets = admin.list_group_offsets({"g": [TopicPartition("a", 0), TopicPartition("a", 1)], "by-hand": None})
    assert offsets["g"] == {
        TopicPartition("a", 0): OffsetAndMetadata(2, "half", -1),
        TopicPartition("a", 1): OffsetAndMetadata(-1, "", -1),
    }
    assert offsets["by-hand"][TopicPartition("a", 1)].offset == 1


def test_offsets_are_altered_reset_and_deleted(admin, consuming):
    zero, one = TopicPartition("a", 0), TopicPartition("a", 1)
    [refused] = admin.alter_group_offsets("g", {zero: OffsetAndMetadata(1, "", -1)}).values()
    assert issubclass(refused, kafka.errors.UnknownMemberIdError)
    nowhere, beyond = TopicPartition("nope", 0), TopicPartition("a", 99)
    assert admin.reset_group_offsets("g", {zero: OffsetSpec.LATEST, one: 99}) == {
        zero: {"error": kafka.errors.UnknownMemberIdError, "offset": 3},
        one: {"error": kafka.errors.UnknownMemberIdError, "offset": 3},
    }
    assert admin.delete_group_offsets("g", [zero, nowhere]) == {
        zero: kafka.errors.GroupSubscribedToTopicError,
        nowhere: kafka.errors.UnknownTopicOrPartitionError,
    }
    assert admin.delete_groups(["g", "nope"]) == {"g": "NonEmptyGroupError", "nope": "GroupIdNotFoundError"}
    [member] = admin.describe_groups(["g"])["g"]["members"]
    with pytest.raises(kafka.errors.UnknownMemberIdError):
        admin.remove_group_members("g", [MemberToRemove("nobody")])
    assert admin.remove_group_members("g", [MemberToRemove(member["member_id"])]) == {
        member["member_id"]: kafka.errors.NoError
    }
    new = admin.reset_group_offsets("g", {zero: 99, one: OffsetSpec.EARLIEST})
    assert {partition: outcome["offset"] for partition, outcome in new.items()} == {zero: 3, one: 0}
    new = admin.reset_group_offsets("g", {zero: OffsetTimestamp(NOON_MS), one: OffsetTimestamp(NOON_MS + 1)})
    assert {partition: outcome["offset"] for partition, outcome in new.items()} == {zero: 0, one: 3}
    assert admin.delete_group_offsets("g", [zero, nowhere, beyond]) == {
        zero: kafka.errors.NoError,
        nowhere: kafka.errors.UnknownTopicOrPartitionError,
        beyond: kafka.errors.UnknownTopicOrPartitionError,
    }
    assert set(admin.list_group_offsets("g")["g"]) == {one}
    with pytest.raises(kafka.errors.GroupIdNotFoundError):
        admin.delete_group_offsets("nope", [zero])
    assert admin.alter_group_offsets("g", {nowhere: OffsetAndMetadata(1, "", -1)}) == {
        nowhere: kafka.errors.UnknownTopicOrPartitionError
    }
    assert admin.delete_groups(["g"]) == {"g": "OK"}
    assert admin.list_groups() == []
    with pytest.raises(TypeError, match="soon"):
        admin.reset_group_offsets("g", {zero: "soon"})


@pytest.mark.on_sqlite
@pytest.mark.parametrize(
    ("group_id", "number", "epoch"),
    [("h", 0, "1"), ("h", 0, b"1"), ("h", 0, 2**70), ("h", 0.0, 0), ("", 0, 0), (5, 0, 0)],
)
def test_an_offset_with_a_wrong_type_is_refused_and_not_stored(
    admin, cluster, cluster_address, group_id, number, epoch
):
    """A stored leader epoch that is not a number would fail each consumer of the group."""
    make(cluster, "t", 1)
    [refused] = admin.alter_group_offsets(
        group_id, {TopicPartition("t", number): OffsetAndMetadata(0, "", epoch)}
    ).values()
    assert refused is not kafka.errors.NoError
    assert admin.list_groups() == []


def test_committed_offsets_are_consumed_as_a_topic(admin, consuming, cluster_address):
    consuming.commit()
    consuming.commit({TopicPartition("a", 1): OffsetAndMetadata(2, "again", -1)})
    with Consumer(cluster=cluster_address) as reader:
        partitions = [TopicPartition("__consumer_offsets", number) for number in range(50)]
        reader.assign(partitions)
        reader.seek_to_beginning()
        records = [record for found in reader.poll(timeout_ms=60_000).values() for record in found]
    said = [(json.loads(record.key), json.loads(record.value)["offset"]) for record in records]
    assert said == [
        ({"group": "g", "topic": "a", "partition": 0}, 3),
        ({"group": "g", "topic": "a", "partition": 1}, 2),
    ], "the last of each key, in the order of the commits"
    assert len({record.partition for record in records}) == 1
    assert records[0].offset < records[1].offset


@pytest.mark.parametrize("cluster_address", ["sqlite"], indirect=True)
def test_a_call_waits_for_the_store_no_longer_than_request_timeout_ms(cluster, cluster_address, admin):
    admin.create_topics({"t": {"num_partitions": 1}})
    there, go_on = threading.Event(), threading.Event()

    def hold(connection):
        connection.execute(t.topic.update().values(name=t.topic.c.name))
        there.set()
        assert go_on.wait(60)

    holder = threading.Thread(target=cluster.store.transact, args=(hold,))
    holder.start()
    assert there.wait(60)
    with Admin(cluster=cluster_address, request_timeout_ms=200) as impatient:
        with pytest.raises(kafka.errors.KafkaConnectionError):
            impatient.delete_topics(["t"])
        go_on.set()
        holder.join()
        assert impatient.list_topics() == ["t"]
