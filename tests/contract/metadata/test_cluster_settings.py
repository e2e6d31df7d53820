"""Cluster settings are stored with the cluster, and every client obeys them."""

import json
import threading
from dataclasses import replace
from unittest.mock import patch

import pytest
from kafka.admin import ConfigFilterType, ConfigResource, ConfigResourceType
from kafka.errors import InvalidConfigurationError as KafkaInvalidConfigurationError
from typer.testing import CliRunner

from spark_log import Admin, Consumer, Producer
from spark_log.cli.main import app
from spark_log.cluster import settings as stored
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.settings import alter_settings
from spark_log.config import ClusterSettings
from spark_log.errors import (
    InvalidConfigurationError,
    InvalidSessionTimeoutError,
    InvalidTransactionTimeoutError,
    MetadataStoreUnavailableError,
)
from spark_log.maintenance.client_log import ClientLog
from spark_log.maintenance.coordinator.coordinator import Coordinator
from spark_log.maintenance.coordinator.lease_runner import LeaseRunner, PeriodicTask
from spark_log.maintenance.coordinator.periodic_tasks import coordinator_tasks
from spark_log.metadata import store as stores
from spark_log.metadata.store import Store
from tests.support.waiting import wait_until

EVERYWHERE = ConfigResource(ConfigResourceType.BROKER, "")


def resource(name="", **configs):
    named = {key.replace("_", "."): value for key, value in configs.items()}
    return ConfigResource(ConfigResourceType.BROKER, name, named or None)


@pytest.fixture
def admin(cluster, cluster_address):
    with Admin(cluster=cluster_address) as admin:
        yield admin


def test_altered_settings_apply_to_every_process_that_opens_the_cluster(cluster, cluster_address):
    alter_settings(cluster, {"transaction.max.timeout.ms": "5000", "auto.leader.rebalance.enable": "false"})
    assert cluster.store.settings.transaction_max_timeout_ms == 5000, "at once in the process that sets it"
    with Cluster.open(cluster_address) as other:
        log = ClientLog(other)
        expected = ClusterSettings(transaction_max_timeout_ms=5000, auto_leader_rebalance_enable=False)
        assert other.store.settings == expected
        log.close()
    alter_settings(cluster, {"transaction.max.timeout.ms": None})
    assert cluster.store.settings == ClusterSettings(auto_leader_rebalance_enable=False)


def test_an_open_client_sees_a_change_within_a_bounded_time(cluster, cluster_address, monkeypatch):
    with Cluster.open(cluster_address) as other:
        assert other.store.settings == ClusterSettings()
        alter_settings(cluster, {"plan.tasks.max": "7"})
        assert other.store.settings == ClusterSettings(), "it is asked for every few seconds only"
        later_s = stores.clock.monotonic_s() + stores.SETTINGS_AGE_S_MAX
        monkeypatch.setattr(stores.clock, "monotonic_s", lambda: later_s)
        assert other.store.settings.plan_tasks_max == 7


def test_an_invalid_setting_is_refused_and_changes_nothing(cluster):
    for name, value in (("plan.tasks.max", "0"), ("plan.tasks.max", "many"), ("plan.task.max", "1")):
        with pytest.raises(InvalidConfigurationError, match=name):
            alter_settings(cluster, {"controller.lease.ms": "1000", name: value})
    assert stored.read_settings(cluster) == {}


def test_clients_obey_the_limits_of_the_cluster(cluster, cluster_address):
    alter_settings(cluster, {"transaction.max.timeout.ms": "5000", "group.max.session.timeout.ms": "2000"})
    with (
        Producer(cluster=cluster_address, transactional_id="x", transaction_timeout_ms=5001) as producer,
        pytest.raises(InvalidTransactionTimeoutError, match=r"transaction.max.timeout.ms \(5000\)"),
    ):
        producer.init_transactions()
    with (
        patch.object(Cluster, "close", autospec=True, side_effect=Cluster.close) as close,
        pytest.raises(InvalidSessionTimeoutError),
    ):
        Consumer(cluster=cluster_address, group_id="g", session_timeout_ms=2001, heartbeat_interval_ms=500)
    close.assert_called_once()


@pytest.mark.on_sqlite
def test_a_running_coordinator_follows_a_change(cluster, monkeypatch):
    monkeypatch.setattr(stores, "SETTINGS_AGE_S_MAX", 0.01)
    seen = []
    task = PeriodicTask(
        "note settings",
        lambda settings: settings.table_loop_poll_ms,
        lambda context: seen.append(context.settings),
    )
    alter_settings(cluster, {"table.loop.poll.ms": "5"})
    with Coordinator(cluster, tasks=[task]):
        alter_settings(cluster, {"table.loop.poll.ms": "6"})
        while not seen or seen[-1].table_loop_poll_ms != 6:
            cluster.store.changes.wait(cluster.store.changes.current(), 0.01)


@pytest.mark.on_sqlite
def test_a_coordinator_continues_after_a_failed_read_of_the_settings(cluster, monkeypatch):
    asked, runs = set(), []
    task = PeriodicTask("count", lambda settings: 10, lambda context: runs.append(context))
    alter_settings(cluster, {"controller.lease.ms": "300"})
    runner = LeaseRunner(cluster, "coordinator", None, [task])

    def away(_store):
        asked.add(threading.current_thread().name)
        raise MetadataStoreUnavailableError("the store is away")

    runner.start()
    try:
        wait_until(lambda: runs)
        with monkeypatch.context() as patch:
            patch.setattr(Store, "settings", property(away))
            wait_until(lambda: len(asked) == 2)
        before = len(runs)
        wait_until(lambda: len(runs) > before + 1 and runner.acting)
        assert all(thread.is_alive() for thread in runner.threads)
    finally:
        runner.close()


@pytest.mark.on_sqlite
def test_offsets_of_groups_do_not_expire_before_their_members_can_come_back(cluster):
    """After a time without any process, a coordinator and its consumers start together."""
    [expire] = [task for task in coordinator_tasks() if task.name == "maintenance: expire"]
    order, at_once = [], PeriodicTask("at once", 10, lambda context: order.append("at once"))
    with Coordinator(
        cluster, tasks=[replace(expire, every_ms=500, run=lambda context: order.append("expire")), at_once]
    ):
        wait_until(lambda: "expire" in order)
    assert order.index("expire") > 2, "another task with a pause of 10 ms runs several times before"


def test_admin_describes_alters_and_resets_cluster_settings_as_broker_configs(admin):
    assert admin.describe_configs([EVERYWHERE]) == {"broker": {"": {}}}
    assert admin.alter_configs([resource(plan_tasks_max=9)]) == {"broker": {"": "OK"}}
    for name in ("", "1"):
        (entry,) = admin.describe_configs([resource(name)])["broker"][name].items()
        assert (entry[0], entry[1]["value"]) == ("plan.tasks.max", "9")
        assert entry[1]["config_source"] == "DYNAMIC_DEFAULT_BROKER_CONFIG"
    everything = admin.describe_configs([EVERYWHERE], config_filter=ConfigFilterType.ALL)["broker"][""]
    assert everything["transaction.max.timeout.ms"]["value"] == "900000"
    assert len(everything) == len(ClusterSettings().as_text())
    assert "Invalid value" in admin.alter_configs([resource(plan_tasks_max="x")])["broker"][""]
    with pytest.raises(ValueError, match="Unrecognized"):
        admin.alter_configs([resource(no_such=1)])
    assert admin.alter_configs([resource(plan_tasks_max=1)], validate_only=True) == {"broker": {"": "OK"}}
    assert admin.reset_configs([resource(plan_tasks_max=None)]) == {"broker": {"": "OK"}}
    assert admin.describe_configs([EVERYWHERE]) == {"broker": {"": {}}}
    with pytest.raises(KafkaInvalidConfigurationError):
        admin.describe_configs([ConfigResource(ConfigResourceType.BROKER_LOGGER, "1")])


@pytest.mark.on_sqlite
def test_admin_stores_names_as_they_are_given_and_words_and_numbers_in_one_spelling(admin, cluster):
    given = {
        "errors.deadletterqueue.topic.name.prefix": "DLQ.",
        "iceberg.catalog": "Lake",
        "schema.registry.urls.allowed": "https://registry/Path",
        "group.consumer.migration.policy": "UPGRADE",
        "auto.leader.rebalance.enable": False,
        "plan.tasks.max": "007",
    }
    expected = {**given, "group.consumer.migration.policy": "upgrade", "auto.leader.rebalance.enable": "false"}
    assert admin.alter_configs([ConfigResource(ConfigResourceType.BROKER, "", given)]) == {"broker": {"": "OK"}}
    assert cluster.store.read(stored.read_overrides) == expected | {"plan.tasks.max": "7"}
    entries = admin.describe_configs([EVERYWHERE])["broker"][""]
    assert [entries[name]["config_type"] for name in sorted(given)] == [
        "BOOLEAN", "STRING", "STRING", "STRING", "LONG", "STRING",
    ]  # fmt: skip


@pytest.mark.on_sqlite
@pytest.mark.parametrize("value", [b"dlq.", ["dlq."], {"prefix": "dlq."}])
def test_admin_refuses_a_value_that_is_neither_text_nor_a_number(admin, value):
    answer = admin.alter_configs([resource(errors_deadletterqueue_topic_name_prefix=value)])["broker"][""]
    assert "is neither a text nor a number" in answer
    with pytest.raises(KafkaInvalidConfigurationError, match="is neither a text nor a number"):
        admin.create_topics({"t": {"configs": {"value.schema": value}}})
    assert admin.describe_configs([EVERYWHERE]) == {"broker": {"": {}}} and admin.list_topics() == []


def test_the_command_line_shows_and_alters_cluster_settings(cluster, cluster_address):
    def run(*arguments):
        return CliRunner().invoke(app, ["cluster", "config", *arguments, "--cluster", cluster_address])

    assert run("--set", "plan.tasks.max=9", "--set", "controller.lease.ms=5000").exit_code == 0
    assert json.loads(run("--unset", "controller.lease.ms", "--json").stdout)["plan.tasks.max"] == {
        "value": "9",
        "default": "200",
    }
    shown = run()
    assert "plan.tasks.max" in shown.stdout
    assert cluster.store.read(stored.read_overrides) == {"plan.tasks.max": "9"}
    assert run("--set", "plan.tasks.max=none").exit_code == 1
