"""The audit log: who changed what, without secrets, and never in the way of the change."""

import logging
from contextlib import suppress

import pytest

from spark_log import Consumer
from spark_log.clients.admin import audit
from spark_log.clients.admin.audit import hide_secrets, read_changes, record_change
from spark_log.cluster.cluster import Cluster
from spark_log.errors import IncompatibleSchemaError, PolicyViolationError
from spark_log.ids import TopicPartition
from spark_log.maintenance.removal.retention import delete_records
from spark_log.replication.controller.topic_operations import alter_configs, delete_topic

pytestmark = pytest.mark.on_sqlite


def test_changes_are_read_newest_first_and_by_what_was_changed(cluster, cluster_address):
    assert read_changes(cluster) == []
    hostile = "<script>\x00\ud800" + "x" * 5_000
    assert record_change(cluster, "anna", "/topics", "topic t", {"partitions": 2}, "succeeded", "console")
    assert record_change(
        cluster, hostile, "/groups/{group}/reset", "group g", {"to": [1, 2]}, "failed", "console", "no"
    )
    assert record_change(cluster, "anna", "/produce", "topic t", {"value": b"\xff"}, "refused", "console", "role")
    found = read_changes(cluster)
    assert [(change.action, change.outcome, change.error) for change in found] == [
        ("/produce", "refused", "role"), ("/groups/{group}/reset", "failed", "no"), ("/topics", "succeeded", None),
    ]  # fmt: skip
    assert found[2].parameters == {"partitions": 2} and " (5010 characters, SHA-256 " in found[1].who
    assert read_changes(cluster, limit=1) == found[:1]
    assert read_changes(cluster, who="anna", target="topic t") == [found[0], found[2]]
    assert read_changes(cluster, outcome="failed", from_ms=found[1].time_ms) == [found[1]]
    assert read_changes(cluster, to_ms=found[2].time_ms) == []
    with Consumer(
        "__audit", cluster=cluster_address, auto_offset_reset="earliest", consumer_timeout_ms=100
    ) as consumer:
        assert len(list(consumer)) == 3
    with pytest.raises(PolicyViolationError, match="__audit"):
        delete_topic(cluster, "__audit")
    with pytest.raises(PolicyViolationError, match="__audit"):
        delete_records(cluster, {TopicPartition("__audit", 0): -1})
    assert len(read_changes(cluster)) == 3


def test_secrets_are_never_recorded(cluster):
    given = {
        "password": "s3cret-1", "sasl.jaas.config": "s3cret-2", "csrf_token": "s3cret-3",
        "url": "https://anna:s3cret-4@host/", "name": "plain",
        "nested": {"api-key": "s3cret-5", "list": [{"client_secret": "s3cret-6"}]},
    }  # fmt: skip
    record_change(cluster, "anna", "a", "postgresql://u:s3cret-7@h/d", given, "failed", "cli", "http://u:s3cret-8@h/")
    (found,) = read_changes(cluster)
    assert "s3cret" not in repr(found)
    assert found.parameters["name"] == "plain" and found.parameters["nested"]["list"] == [{"client_secret": "***"}]
    assert len(hide_secrets({str(i): "x" for i in range(1_000)})) == 100


@pytest.mark.parametrize(
    "configs",
    [
        {"max.message.bytes": "100", "message.timestamp.before.max.ms": "0", "message.timestamp.after.max.ms": "0"},
        {"value.bad.records": "reject", "value.schema": "who BIGINT, action BIGINT, target BIGINT, parameters BIGINT,"
         " outcome BIGINT, error BIGINT, source BIGINT"},
        {"value.format": "avro", "value.bad.records": "reject",
         "value.schema": '{"type": "record", "name": "r", "fields": [{"name": "who", "type": "long"}]}'},
        {"key.format": "json", "key.schema": "k BIGINT", "key.bad.records": "reject"},
    ],
)  # fmt: skip
def test_no_config_of_the_topic_switches_the_audit_off(cluster, cluster_address, configs):
    assert record_change(cluster, "anna", "a", "t", {}, "succeeded", "console")
    with suppress(IncompatibleSchemaError):
        alter_configs(cluster, "__audit", configs, reset=True)
    assert record_change(cluster, "bob", "a", "t", {}, "succeeded", "console")
    with Consumer(
        "__audit", cluster=cluster_address, auto_offset_reset="earliest", consumer_timeout_ms=100
    ) as consumer:
        assert [record.key for record in consumer] == [b"anna", b"bob"]


def test_a_store_that_is_down_is_logged_once_and_does_not_fail_the_change(
    own_postgres_server, tmp_path, caplog, monkeypatch
):
    monkeypatch.setattr(audit, "_TIMEOUT_MS", 200)
    with Cluster.init(own_postgres_server.create_database(), log_dir=str(tmp_path / "log-dir")) as cluster:
        assert record_change(cluster, "anna", "a", "t", {}, "succeeded", "console")
        own_postgres_server.kill()
        with caplog.at_level(logging.WARNING):
            assert not record_change(cluster, "anna", "a", "t", {}, "succeeded", "console")
            assert not record_change(cluster, "anna", "a", "t", {}, "succeeded", "console")
        assert sum("not recorded in __audit" in message for message in caplog.messages) == 1
