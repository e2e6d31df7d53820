"""Each alert fires on its fault, made on a real cluster, and no other alert does; none fires without a fault."""

from contextlib import ExitStack

import pytest
from kafka import OffsetAndMetadata
from prometheus_client.exposition import generate_latest

from spark_log import Producer, clock
from spark_log.cluster.brokers import BrokerSession, add_broker
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.settings import alter_settings
from spark_log.cluster.topics import find_topic
from spark_log.facts.metrics import cluster_snapshot, exporter
from spark_log.facts.metrics.exporter import ClusterCollector, TaskCollector, registry_of
from spark_log.groups.share.administration import alter_group_configs
from spark_log.groups.share.rules import AcknowledgeType
from spark_log.ids import TopicPartition
from spark_log.maintenance.coordinator.coordinator import Coordinator
from spark_log.maintenance.removal.retention import delete_records
from spark_log.maintenance.task_list import run_tasks
from spark_log.replication.controller.topic_operations import alter_configs
from tests.support.group_members import commit
from tests.support.operations import firing, metrics_of_alerts, samples
from tests.support.replicas import folder_of, topic_on
from tests.support.share_members import ShareMember
from tests.support.topics import append_to
from tests.support.waiting import LIMIT_S, wait_until

pytestmark = pytest.mark.delta

APART_S = 0.5


@pytest.fixture
def running(tmp_path):
    """A cluster and its coordinator: topic t on brokers 1 and 2, topic single on 3, a group without lag."""
    address = str(tmp_path / "cluster")
    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster.init(address, log_dir=str(tmp_path / "d1")))
        add_broker(cluster, 2, [str(tmp_path / "d2")])
        add_broker(cluster, 3, [str(tmp_path / "d3"), str(tmp_path / "empty")])
        often = {"table.loop.poll.ms": "50", "delta.maintenance.interval.ms": "50"}
        alter_settings(cluster, {**often, "metrics.interval.ms": "-1"})  # topic __metrics is published each minute
        topic = topic_on(cluster, "t", [[1, 2]], delta_max_lag_ms="0")
        topic_on(cluster, "single", [[3]])
        process = stack.enter_context(Coordinator(cluster))
        wait_until(lambda: process.acting and process.controller.acting)
        append(cluster, topic, 3)
        commit(address, "g", {TopicPartition("t", 0): OffsetAndMetadata(3, "", -1)})
        published(cluster, process)
        yield cluster, process


def append(cluster, topic, count):
    """Records of 15 minutes ago."""
    append_to(cluster, topic, *"x" * count, timestamp_ms=cluster.store.now().wall_ms - 900_000)


def scraped(cluster, process):
    """What Prometheus gets from the coordinator."""
    tasks = TaskCollector(process.runners)
    return samples(generate_latest(registry_of(ClusterCollector(cluster, lambda: process.acting), tasks)).decode())


def published(cluster, process):
    def ages():
        return [
            value
            for (name, _), value in scraped(cluster, process).items()
            if name == "spark_log_publication_age_seconds"
        ]

    wait_until(lambda: not any(ages()))


def shows(cluster, process, name, at_least=1, **labels):
    """Wait until a metric has this value."""
    key = (name, tuple(sorted(labels.items())))
    wait_until(lambda: scraped(cluster, process).get(key, 0) >= at_least)


def fires(cluster, process, *expected):
    """Check that these alerts fire, and no others, if the present state goes on."""
    first, began_s = scraped(cluster, process), clock.monotonic_s()
    clock.sleep_s(APART_S)  # so that what grows with time has grown
    second = scraped(cluster, process)
    assert firing(first, second, clock.monotonic_s() - began_s) == set(expected)
    for alert in expected:
        of_data_stores = {"spark_log_data_store_up"}  # this cluster has none
        assert metrics_of_alerts()[alert] <= {name for name, _ in second} | of_data_stores


def dies(cluster, broker):
    """A process that serves the broker is killed: its lease runs out."""
    BrokerSession(cluster.store, broker, 1).register()


def test_no_controller(running):
    _, process = running
    process.controller.close()
    fires(*running, "SparkLogNoController")


def test_a_dead_broker_leaves_partitions_under_replicated_and_then_under_min_isr(running):
    cluster, _ = running
    dies(cluster, 2)
    shows(*running, "kafka_server_replicamanager_underreplicatedpartitions")
    fires(*running, "SparkLogUnderReplicated")
    alter_configs(cluster, "t", {"min.insync.replicas": "2"})
    fires(*running, "SparkLogUnderReplicated", "SparkLogUnderMinIsr")


def test_offline_partitions(running):
    cluster, _ = running
    dies(cluster, 3)
    shows(*running, "kafka_controller_kafkacontroller_offlinepartitionscount")
    fires(*running, "SparkLogOfflinePartitions")


def test_an_offline_log_dir(running, tmp_path):
    (tmp_path / "empty").rename(tmp_path / "away")
    shows(*running, "kafka_log_logmanager_offlinelogdirectorycount")
    fires(*running, "SparkLogOfflineLogDirs")


def test_growing_lag_and_lag_beyond_retention(running):
    cluster, _ = running
    append(cluster, cluster.store.read(lambda connection: find_topic(connection, "t")), 2)
    published(*running)
    fires(*running, "SparkLogLagGrows")
    delete_records(cluster, {TopicPartition("t", 0): 5})
    list(run_tasks(cluster, ["retention"]))
    fires(*running, "SparkLogLagBeyondRetention")


def test_a_share_group_whose_window_is_full_of_records_without_dead_letters(running):
    cluster, _ = running
    configs = {"share.auto.offset.reset": "earliest", "errors.deadletterqueue.topic.name": "dlq.missing"}
    alter_settings(cluster, {"group.share.min.partition.max.record.locks": "3"})
    alter_group_configs(cluster.store, "workers", {**configs, "share.partition.max.record.locks": "3"})
    member = ShareMember(cluster)
    fires(*running)  # a cluster that is well
    member.acknowledge(member.poll(2), AcknowledgeType.REJECT)
    fires(*running, "SparkLogShareGroupArchiving")
    member.poll()
    fires(*running, "SparkLogShareGroupArchiving", "SparkLogShareGroupWindowFull")


def test_a_stale_delta_table(running):
    """Without a bound no table is stale; with one that is twice over, it is."""
    cluster, _ = running
    alter_configs(cluster, "t", {"delta.max.lag.ms": "-1"})
    append(cluster, cluster.store.read(lambda connection: find_topic(connection, "t")), 1)
    commit(str(cluster.store.address), "g", {TopicPartition("t", 0): OffsetAndMetadata(4, "", -1)})
    fires(*running)
    alter_configs(cluster, "t", {"delta.max.lag.ms": "1800000"})  # `fires` looks after two hours
    shows(*running, "spark_log_table_lag_bound_seconds", 1800, topic="t", target="delta")
    fires(*running, "SparkLogTableStale")


def test_a_task_that_fails_again_and_again(running):
    cluster, _ = running
    topic = cluster.store.read(lambda connection: find_topic(connection, "t"))
    for broker in (1, 2):
        delta_log = folder_of(cluster, broker) / topic.folder / "_delta_log"
        delta_log.rename(delta_log.with_name("_away"))
        delta_log.write_text("no folder")
    shows(*running, "spark_log_task_failures_total", 3, store="home", task="maintenance: delta")
    fires(*running, "SparkLogTaskFails")


def test_a_hanging_transaction(running):
    cluster, _ = running
    with Producer(cluster=str(cluster.store.address), transactional_id="x", transaction_timeout_ms=600_000) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("single", b"v").get(LIMIT_S)
        fires(*running, "SparkLogHangingTransaction")
        producer.abort_transaction()


def test_a_store_that_is_down(own_postgres_server, tmp_path, monkeypatch):
    with Cluster.init(own_postgres_server.create_database(), log_dir=str(tmp_path / "log-dir")) as cluster:
        process = Coordinator(cluster)
        process.start()
        try:
            wait_until(lambda: process.acting and process.controller.acting)
            own_postgres_server.kill()
            for module in (cluster_snapshot, exporter):
                monkeypatch.setattr(module, "ASK_TIMEOUT_MS", 200)
            fires(cluster, process, "SparkLogStoreDown")
        finally:
            process.request_stop()
