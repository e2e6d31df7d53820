"""Every view of a cluster shows the topics of all stores, and those of a store that does not answer as unavailable."""

import json
import re
from dataclasses import replace

import pytest
from kafka.admin import OffsetSpec
from typer.testing import CliRunner

from spark_log import Consumer, Producer
from spark_log.cli.main import app
from spark_log.clients.admin.client import Admin
from spark_log.cluster import each_store
from spark_log.cluster import promotion as acceptance
from spark_log.cluster.brokers import add_broker
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.lease import unfenced
from spark_log.cluster.settings import alter_settings
from spark_log.errors import ElectionNotNeededError, IllegalArgumentError
from spark_log.facts.doctor import examination
from spark_log.facts.doctor.examination import examine
from spark_log.facts.doctor.findings import Severity
from spark_log.facts.groups import group_lag
from spark_log.facts.metrics.cluster_metrics import cluster_metrics
from spark_log.facts.metrics.cluster_snapshot import read_cluster
from spark_log.facts.metrics.size_snapshot import read_sizes
from spark_log.facts.topics import describe_topics
from spark_log.groups.committed_offsets import Commit, commit_offsets, committed_offsets
from spark_log.groups.group_operations import AtTime, Exactly, Latest, OffsetReset, reset_offsets
from spark_log.ids import TopicPartition
from spark_log.metadata import tables as t
from spark_log.replication.controller.balance import load_balance
from spark_log.replication.controller.reassignment_rows import list_all_reassignments
from spark_log.replication.controller.reassignments import begin_reassignments
from spark_log.replication.controller.requested_elections import elect
from spark_log.replication.controller.topic_moves import begin_move
from spark_log.replication.controller.topic_operations import create_topic
from spark_log.replication.replicas.replica_moves import run_reassignments
from tests.support.records import NOON_MS
from tests.support.stores import change
from tests.support.topics import append_to
from tests.support.waiting import LIMIT_S

BOTH = ("far", "near")


@pytest.fixture
def address(stores):
    """A cluster with three records in topic near at home and in far of the data store; group g has read one of each."""
    topics = [create_topic(stores, "near"), create_topic(stores, "far", store="east")]
    for topic in topics:
        append_to(stores, topic, "a", "b", "c")
    commits = {TopicPartition(topic.name, 0): Commit(1, "", topic_id=topic.topic_id) for topic in topics}
    commit_offsets(stores.store, "g", commits)
    return stores.store.address.with_password


def run(*arguments):
    result = CliRunner().invoke(app, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def freeze_clocks(stores, monkeypatch, ahead_ms=0):
    """Let the clocks of both stores stand still, that of east ahead by `ahead_ms`, and return the time at home."""
    now_ms = stores.store.now().wall_ms
    for store, wall_ms in ((stores.store, now_ms), (stores.at(1).store, now_ms + ahead_ms)):
        frozen = replace(store.now(), wall_ms=wall_ms)
        monkeypatch.setattr(store, "clock", lambda _connection, frozen=frozen: frozen)
        monkeypatch.setattr(store, "now", lambda frozen=frozen: frozen)
    return now_ms


def test_commands_and_metrics_show_the_topics_of_all_stores(stores, address, monkeypatch):
    listed = [each for each in run("topic", "list", "--cluster", address) if each["topic"] in BOTH]
    shown = [(each["topic"], each["store"], each["records"]) for each in listed]
    assert shown == [("far", "east", 3), ("near", "home", 3)]
    described = run("topic", "describe", "near", "far", "--cluster", address)
    ends = [(each["topic"], each["store"], each["partitions"][0]["high_watermark"]) for each in described]
    assert ends == [("near", "home", 3), ("far", "east", 3)]
    status = run("status", "--cluster", address)
    stores_of = [(each["store"], each["topics"], each["answers"], each["problem"]) for each in status["stores"]]
    assert (status["records"], stores_of) == (6, [("home", 1, True, None), ("east", 1, True, None)])
    assert [(each.topic, each.lag) for each in group_lag(stores, "g")] == [("far", 2), ("near", 2)]
    assert run("table", "describe", "far", "--cluster", address)
    now_ms = freeze_clocks(stores, monkeypatch)
    change(stores, t.segment.update().values(appended_ms=now_ms - 7_000))
    change(stores, t.topic.update().values(created_ms=now_ms - 7_000))  # the records were appended after it
    snapshot = read_cluster(stores)
    assert sorted(each.topic for each in snapshot.partitions if each.replicas) == list(BOTH)
    lags = {each.topic: (each.lag, each.lag_s) for each in snapshot.groups}
    assert lags == {"far": (2, 7.0), "near": (2, 7.0)}
    assert {each.topic for each in read_sizes(stores).sizes} == set(BOTH)
    up = [each for each in cluster_metrics(snapshot) if each.name == "spark_log_data_store_up"]
    assert [(s.labels["store"], s.value) for s in up[0].samples] == [("east", 1)]
    assert snapshot.unaccepted == {"home": False, "east": False}
    assert snapshot.ahead_ms == {"home": 0, "east": 0}
    checks = run("doctor", "--cluster", address)
    assert any("store east" in json.dumps(each) for each in checks["findings"])


def test_waiting_records_and_producers_of_all_stores_are_shown(stores, address):
    sealed = CliRunner().invoke(app, ["maintenance", "seal", "--cluster", address])
    assert "6 records are not in the Delta tables yet" in sealed.output
    with Producer(cluster=address) as producer:
        producer.send("far", b"d").get(timeout=LIMIT_S)
    assert [(each["topic"], each["partition"]) for each in run("topic", "producers", "far", "--cluster", address)] == [
        ("far", 0)
    ]


def test_the_clock_the_replication_and_the_last_beat_of_each_store_are_shown(stores, monkeypatch):
    freeze_clocks(stores, monkeypatch, ahead_ms=-5_000)
    alter_settings(stores, {"store.promotion.accept": "synchronous"})
    acceptance.beat(stores.at(1), stores.store.settings, unfenced)
    gauges = {each.name: each for each in cluster_metrics(read_cluster(stores))}
    by_store = {
        name: {sample.labels["store"]: sample.value for sample in gauges[f"spark_log_store_{name}"].samples}
        for name in ("clock_ahead_seconds", "synchronous", "beat_age_seconds")
    }
    assert by_store == {
        "clock_ahead_seconds": {"home": 0, "east": -5},
        "synchronous": {"home": 0, "east": 0},
        "beat_age_seconds": {"east": 0},
    }


def test_offsets_in_topics_of_all_stores_are_reset(stores, address):
    far, near = (TopicPartition(name, 0) for name in BOTH)
    assert reset_offsets(stores, "g", {far: Latest(), near: AtTime(NOON_MS)}) == {
        far: OffsetReset(1, 3), near: OffsetReset(1, 0)
    }  # fmt: skip
    reset_offsets(stores, "g", {far: Exactly(2), near: Exactly(1)}, expected={far: 3, near: 0})
    assert committed_offsets(stores.store, "g") == {far: 2, near: 1}
    with pytest.raises(IllegalArgumentError, match="outside the log"):
        reset_offsets(stores, "g", {far: Exactly(4)}, expected={far: 2})


def test_clients_query_the_topics_of_all_stores(stores, address):
    partitions = [TopicPartition(name, 0) for name in BOTH]
    with Consumer(cluster=address) as consumer:
        assert consumer.beginning_offsets(partitions) == dict.fromkeys(partitions, 0)
        assert consumer.end_offsets(partitions) == dict.fromkeys(partitions, 3)
        found = consumer.offsets_for_times(dict.fromkeys(partitions, NOON_MS))
        assert {each.topic: at.offset for each, at in found.items()} == {"far": 0, "near": 0}
        consumer.assign(partitions)
        consumer.seek_to_end(*partitions)
        assert [consumer.position(each) for each in partitions] == [3, 3]
        consumer.seek_to_beginning(*partitions)
        assert [consumer.position(each) for each in partitions] == [0, 0]
    with Admin(cluster=address) as admin:
        described = admin.describe_topics(list(BOTH))
        assert [[p["leader_id"] for p in each["partitions"]] for each in described] == [[1], [1]]
        ends = admin.list_partition_offsets(dict.fromkeys(partitions, OffsetSpec.LATEST))
        assert {each.topic: at.offset for each, at in ends.items()} == {"far": 3, "near": 3}
        low = admin.delete_records(dict.fromkeys(partitions, 1))
        assert {each.topic: found["low_watermark"] for each, found in low.items()} == {"far": 1, "near": 1}
    deleted = run("topic", "delete-records", "far", "--before", "2", "--yes", "--cluster", address)
    assert deleted["log_start_offsets"] == {"0": 2}


def test_a_store_that_does_not_answer_does_not_hide_the_others(stores, address, monkeypatch):
    monkeypatch.setenv("SPARK_LOG_STORE_EAST", "postgresql+psycopg://nobody@127.0.0.1:1/none")
    monkeypatch.setattr(each_store, "ASK_TIMEOUT_MS", 100)  # it refuses connections at once
    with Cluster.open(address) as cluster:
        snapshot = read_cluster(cluster)
        assert snapshot.answering == {"home": True, "east": False}
        assert [each.topic for each in snapshot.partitions if each.replicas] == ["near"]
        assert [each.topic for each in group_lag(cluster, "g")] == ["near"]
    listed = [each for each in run("topic", "list", "--cluster", address) if each["topic"] in BOTH]
    facts = [(each["topic"], each["records"], each["available"]) for each in listed]
    assert facts == [("far", None, False), ("near", 3, True)]
    listing = CliRunner().invoke(app, ["topic", "list", "--cluster", address]).output
    assert re.search(r"│ far +│ east +│ +1 │ +1 │ unavailable │", listing)
    status = CliRunner().invoke(app, ["status", "--cluster", address])
    assert status.exit_code == 1 and "spark-log: store east: " in status.stderr
    assert re.search(r"│ east +│ +1 │ no ", status.stdout) and re.search(r"│ home +│ +1 │ yes ", status.stdout)
    shown = CliRunner().invoke(app, ["topic", "describe", "far", "--cluster", address]).output
    assert "UNAVAILABLE, store east does not answer" in shown
    described = run("topic", "describe", "near", "far", "--cluster", address)
    assert [each["available"] for each in described] == [True, False]
    truncations = CliRunner().invoke(app, ["partition", "truncations", "--cluster", address])
    assert (truncations.exit_code, truncations.stdout) == (1, "")
    assert "the truncations of store east are not known:" in truncations.stderr
    left_out = "spark-log: stores that do not answer, and whose files are left out: east\n"
    for command in ("status", "unnamed-files"):
        shown = CliRunner().invoke(app, ["store", command, "--cluster", address])
        assert (shown.exit_code, shown.stderr) == (1, left_out)
    status = CliRunner().invoke(app, ["store", "status", "--json", "--cluster", address])
    assert status.exit_code == 1 and json.loads(status.stdout)["stores_away"] == ["east"]


def test_the_doctor_names_a_store_that_is_away_and_the_error(stores, address, monkeypatch):
    monkeypatch.setenv("SPARK_LOG_STORE_EAST", "postgresql+psycopg://nobody@127.0.0.1:1/none")
    monkeypatch.setattr(each_store, "ASK_TIMEOUT_MS", 100)  # it refuses connections at once
    monkeypatch.setattr(examination, "_DATA_STORE_SHARE", 0.1 / LIMIT_S)
    late_or_failed = [each for each in examine(address, limit_s=LIMIT_S) if each.severity is Severity.ERROR]
    assert [each.check for each in late_or_failed] == ["store"], late_or_failed
    assert re.match(r"store east: .*Connection refused", late_or_failed[0].seen)


def test_replicas_of_all_stores_move_and_elect(stores, address, tmp_path):
    add_broker(stores, 2, [str(tmp_path / "second")])
    partitions = [TopicPartition(name, 0) for name in BOTH]
    begin_reassignments(stores, {each: [2] for each in partitions})
    assert list_all_reassignments(stores).keys() == set(partitions)
    run_reassignments(stores, stores.store.settings, partitions)
    described = describe_topics(stores, list(BOTH))
    assert [each.partitions[0].replicas[0].broker_id for each in described] == [2, 2]
    refused = {type(error) for error in elect(stores, partitions).values()}
    assert refused == {ElectionNotNeededError}
    by_broker = {each.broker_id: each.load.replicas for each in load_balance(stores).brokers}
    assert by_broker == {1: 0, 2: 2}


def test_commands_move_topics_and_drain_a_store(stores, address):
    cluster = ("--cluster", address)
    assert run("topic", "moves", *cluster) == []
    begin_move(stores, "near", "east")
    [move] = run("topic", "moves", *cluster)
    assert (move["topic"], move["from"], move["to"]) == ("near", "home", "east")
    assert run("topic", "move", "near", "--cancel", *cluster)["cancelled"]
    assert run("topic", "move", "near", "--store", "east", *cluster)["topics"] == ["near"]
    for command in ("drain", "remove"):
        asked = CliRunner().invoke(app, ["store", command, "east", *cluster], input="n\n")
        assert asked.exit_code == 1 and "store east" in asked.stderr and asked.stderr.strip().endswith("Aborted.")
        unknown = CliRunner().invoke(app, ["store", command, "west", *cluster])
        assert unknown.exit_code == 1 and "[y/N]" not in unknown.output
    assert set(run("store", "drain", "east", "--yes", *cluster)["moved"]) == set(BOTH)
    assert [each["state"] for each in run("store", "list", *cluster)] == ["active", "draining"]
    run("store", "drain", "east", "--cancel", *cluster)
    assert [each["state"] for each in run("store", "list", *cluster)] == ["active", "active"]
    shown = CliRunner().invoke(app, ["topic", "moves", *cluster])
    assert shown.output == "No topic is being moved.\n"
    begin_move(stores, "near", "east")
    assert "near" in CliRunner().invoke(app, ["topic", "moves", *cluster]).output
    refused = CliRunner().invoke(app, ["topic", "move", "near", *cluster])
    assert refused.exit_code == 2 and "--cancel" in refused.output
