"""Admin: kafka-python's calls for partitions, brokers, elections, reassignments and log dirs."""

import shutil
import threading
from pathlib import Path

import kafka.errors
import pytest
import sqlalchemy as sa
from kafka import TopicPartition
from kafka.protocol.admin import ElectionType

import spark_log.errors
from spark_log import Admin, process
from spark_log.clients.admin import partitions
from spark_log.clients.kafka_errors import kafka_error
from spark_log.cluster.brokers import BrokerSession
from spark_log.config import ClusterSettings
from spark_log.metadata import tables as t
from spark_log.replication.controller.controller import fallback_term
from spark_log.replication.replicas.catch_up import catch_up
from tests.support.replicas import add_brokers, bring_back, folder_of, take_away, topic_on
from tests.support.stores import change, topics_view
from tests.support.topics import append
from tests.support.waiting import LIMIT_S, wait_until


@pytest.fixture
def admin(cluster, cluster_address):
    with Admin(bootstrap_servers=[cluster_address], client_id="tests") as admin:
        yield admin


# partitions and brokers -----------------------------------------------------------------------------------------------


@pytest.fixture
def brokers(cluster, tmp_path):
    """Brokers 1 to 3, of which 2 and 3 are in racks."""
    add_brokers(cluster, tmp_path, 2, 3, racks={2: "a", 3: "b"})
    return cluster


def test_replicas_are_described(admin, brokers):
    topic_on(brokers, "a", [[1, 2], [2, 3]])
    take_away(brokers, 2)
    first, second = admin.describe_topics(["a"])[0]["partitions"]
    assert (first["leader_id"], first["replica_nodes"], first["isr_nodes"], first["offline_replicas"]) == (
        1, [1, 2], [1], [2],
    )  # fmt: skip
    assert (second["leader_id"], second["isr_nodes"]) == (3, [3])
    take_away(brokers, 3)
    assert admin.describe_topics(["a"])[0]["partitions"][1]["leader_id"] == -1


def test_the_cluster_is_described(admin, brokers, cluster_address):
    take_away(brokers, 3)
    found = admin.describe_cluster()
    assert [(b["broker_id"], b["rack"], b["is_fenced"]) for b in found["brokers"]] == [
        (1, None, False), (2, "a", False), (3, "b", True),
    ]  # fmt: skip
    assert found["controller_id"] == 1, "the first live embedded broker: its clients do the controller's work"
    with fallback_term(brokers.store, ClusterSettings()):
        assert admin.describe_cluster()["controller_id"] == 1, "a controller that is no broker does that work"
    session = BrokerSession(brokers.store, 2, 60_000)
    session.register()
    with fallback_term(brokers.store, ClusterSettings()):
        assert admin.describe_cluster()["controller_id"] == 2
        change(brokers, t.lease.update().values(until_ms=0))
        assert admin.describe_cluster()["controller_id"] == 1, "its term is over"
    session.end()


def results_of(response):
    return {
        (topic.topic, partition.partition_id): partition.error_code
        for topic in response.replica_election_results
        for partition in topic.partition_result
    }


def test_leaders_are_elected(admin, brokers, log):
    topic_on(brokers, "a", [[1, 2], [2, 3]])
    topic_on(brokers, "b", [[3]])
    take_away(brokers, 2)
    not_needed = kafka.errors.ElectionNotNeededError.errno
    unavailable = kafka.errors.PreferredLeaderNotAvailableError.errno
    assert results_of(admin.elect_leaders(ElectionType.PREFERRED, {"a": [0, 1]}, raise_errors=False)) == {
        ("a", 0): not_needed, ("a", 1): unavailable,
    }  # fmt: skip
    with pytest.raises(kafka.errors.PreferredLeaderNotAvailableError, match=r"a-1: .*broker 2, is not alive"):
        admin.elect_leaders(0, ["a"])
    bring_back(brokers, 2)
    with pytest.raises(kafka.errors.PreferredLeaderNotAvailableError, match="broker 2, is not in sync"):
        admin.elect_leaders(0, ["a"])
    topic = log.find_topic("a")
    catch_up(brokers.of(topic), topic, 1, 2)
    assert results_of(admin.elect_leaders(0)) == {("a", 0): not_needed, ("a", 1): 0, ("b", 0): not_needed}
    assert admin.describe_topics(["a"])[0]["partitions"][1]["leader_id"] == 2
    with pytest.raises(kafka.errors.UnknownTopicOrPartitionError):
        admin.elect_leaders(0, ["nope"])
    with pytest.raises(kafka.errors.UnknownTopicOrPartitionError, match="a-7"):
        admin.elect_leaders(0, {"a": [7]})
    with pytest.raises(ValueError, match="2"):
        admin.elect_leaders(2)


def test_an_unclean_election_loses_the_records_that_only_offline_replicas_have(admin, brokers, log):
    topic_on(brokers, "a", [[1, 2], [1, 2]], inline_max_bytes="0")
    take_away(brokers, 2)
    append(log, "a", *(["x"] * 3))
    take_away(brokers, 1)
    unavailable = kafka.errors.EligibleLeadersNotAvailableError.errno
    assert results_of(admin.elect_leaders(1, {"a": [0]}, raise_errors=False)) == {("a", 0): unavailable}
    bring_back(brokers, 2)
    assert admin.describe_topics(["a"])[0]["partitions"][0]["leader_id"] == -1
    assert results_of(admin.elect_leaders(ElectionType.UNCLEAN, {"a": [0]})) == {("a", 0): 0}
    first, second = admin.describe_topics(["a"])[0]["partitions"]
    assert (first["leader_id"], first["isr_nodes"], second["leader_id"]) == (2, [2], -1)
    [lost] = topics_view(brokers).store.read(lambda connection: connection.execute(sa.select(t.truncation)).all())
    assert (lost.partition, lost.start_offset, lost.end_offset, lost.record_count, lost.unclean) == (0, 0, 3, 3, True)
    needless = kafka.errors.ElectionNotNeededError.errno
    assert results_of(admin.elect_leaders(1, {"a": [0]})) == {("a", 0): needless}


def test_reassignments_are_started_listed_and_cancelled(admin, brokers):
    topic_on(brokers, "a", [[1, 2], [1, 2]])
    first, second, third = (TopicPartition("a", number) for number in range(3))
    assert admin.alter_partition_reassignments({first: [2, 3], second: [9], third: [1]}) == {
        first: None,
        second: outcome_class(spark_log.errors.InvalidReplicationAssignmentError),
        third: outcome_class(spark_log.errors.UnknownTopicOrPartitionError),
    }
    wanted = {first: {"replicas": [1, 2, 3], "adding_replicas": [3], "removing_replicas": [1]}}
    assert admin.list_partition_reassignments() == wanted
    assert admin.list_partition_reassignments({"a": [0, 1]}) == admin.list_partition_reassignments([first]) == wanted
    assert admin.list_partition_reassignments([second]) == {}
    none = outcome_class(spark_log.errors.NoReassignmentInProgressError)
    assert admin.alter_partition_reassignments({first: None, second: None}) == {first: None, second: none}
    assert issubclass(none, kafka.errors.NoReassignmentInProgressError)
    assert admin.list_partition_reassignments() == {}
    with pytest.raises(ValueError, match="non-empty"):
        admin.alter_partition_reassignments({first: []})
    with pytest.raises(ValueError, match="int"):
        admin.alter_partition_reassignments({first: ["1"]})
    with pytest.raises(kafka.errors.UnsupportedVersionError, match=r"alter_replica_log_dirs.*another broker and back"):
        admin.alter_replica_log_dirs({})


def outcome_class(error):
    return type(kafka_error(error("x")))


def test_log_dirs_are_described(admin, brokers, log):
    topic_on(brokers, "a", [[1, 2]], inline_max_bytes="0")
    topic_on(brokers, "b", [[2]])
    append(log, "a", "x", "y")
    change(brokers, t.replica.update().where(t.replica.c.broker_id == 2).values(log_end_offset=0))
    take_away(brokers, 3)
    first, second, third = admin.describe_log_dirs()
    assert [found["broker"] for found in (first, second, third)] == [1, 2, 3]
    [log_dir] = first["log_dirs"]
    assert log_dir["total_bytes"] >= log_dir["usable_bytes"] > 0
    [topic] = log_dir["topics"]
    [path] = Path(log_dir["log_dir"].removeprefix("file://")).rglob("_segments/0/*.parquet")
    whole = {"partition_index": 0, "partition_size": path.stat().st_size, "offset_lag": 0, "is_future_key": False}
    assert topic == {"name": "a", "partitions": [whole]}
    assert second["log_dirs"][0]["topics"][0]["partitions"] == [{**whole, "partition_size": 0, "offset_lag": 2}]
    assert third["log_dirs"][0]["error_code"] == kafka.errors.KafkaStorageError.errno
    [only] = admin.describe_log_dirs({"b": [0]}, brokers=[2])
    assert [topic["name"] for topic in only["log_dirs"][0]["topics"]] == ["b"]


def test_sizes_of_log_dirs_that_hang_are_unknown(admin, brokers, monkeypatch):
    answers, asked, usage = threading.Event(), [], shutil.disk_usage
    online, offline = folder_of(brokers, 2), folder_of(brokers, 3)

    def hanging(path):
        if Path(path) in (online, offline):
            asked.append(Path(path))
            assert answers.wait(LIMIT_S), "the caller waited for it"
        return usage(path)

    take_away(brokers, 3)
    monkeypatch.setattr(partitions, "ANSWER_S_MAX", 0.05)
    monkeypatch.setattr(shutil, "disk_usage", hanging)
    try:
        for _ in range(2):
            _, *others = admin.describe_log_dirs()
            assert [broker["log_dirs"][0]["total_bytes"] for broker in others] == [-1, -1]
        wait_until(lambda: asked)
    finally:
        answers.set()
    wait_until(lambda: not process._asking)
    assert asked == [online], "one thread waits"


def test_log_dirs_are_asked_for_their_sizes_side_by_side(admin, brokers, monkeypatch):
    all_asked, usage = threading.Barrier(3), shutil.disk_usage
    monkeypatch.setattr(shutil, "disk_usage", lambda path: (all_asked.wait(LIMIT_S), usage(path))[1])
    assert all(broker["log_dirs"][0]["total_bytes"] > 0 for broker in admin.describe_log_dirs())
