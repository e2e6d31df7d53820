"""Metrics: what they say equals what the cluster's own descriptions say, and only one process says it."""

import json
import os
import re
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import yaml
from kafka import KafkaProducer, OffsetAndMetadata
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import CollectorRegistry

from spark_log import Consumer, Producer, clock
from spark_log.cluster.settings import alter_settings
from spark_log.errors import InvalidConfigurationError
from spark_log.facts.groups import group_lag
from spark_log.facts.metrics import cluster_metrics, export
from spark_log.facts.metrics.cluster_snapshot import read_cluster
from spark_log.facts.metrics.exporter import ClusterCollector, TaskCollector, registry_of
from spark_log.facts.metrics.http_server import serving_metrics
from spark_log.facts.metrics.query_metrics import QueryCollector
from spark_log.groups.share.administration import alter_group_configs
from spark_log.groups.share.rules import AcknowledgeType
from spark_log.ids import TopicPartition
from spark_log.maintenance import run_tasks
from spark_log.maintenance.coordinator.coordinator import Coordinator
from spark_log.maintenance.removal.retention import delete_records
from spark_log.metadata import tables as t
from spark_log.replication.controller.store_acceptance import accept_store
from spark_log.replication.controller.topic_operations import create_topic
from spark_log.tables.publication import delta_tables, publish
from tests.support.group_members import commit
from tests.support.operations import ALERTS, samples
from tests.support.replicas import bring_back, take_away, topic_on
from tests.support.server_processes import GatewayProcess, free_port
from tests.support.share_members import ShareMember
from tests.support.stores import also_on_two_stores, change
from tests.support.topics import append, append_to, fill, make, make_older
from tests.support.waiting import LIMIT_S, wait_until

_CONF = Path(__file__).parents[3] / "conf"
DASHBOARD = _CONF / "grafana/spark-log.json"


def scraped(cluster):
    return samples(generate_latest(registry_of(ClusterCollector(cluster, lambda: True))).decode())


def value(found, name, **labels):
    return found[name, tuple(sorted((key, str(label)) for key, label in labels.items()))]


def test_the_lag_of_a_group_at_the_beginning_of_a_file_of_many_appends_is_that_of_its_record(cluster, cluster_address):
    """As after merges: the file was appended for as long as its records' timestamps say."""
    topic = create_topic(cluster, "t", configs={"inline.max.bytes": "0"})
    append_to(cluster, topic, "a", "b")
    commit(cluster_address, "g", {TopicPartition("t", 0): OffsetAndMetadata(0, "", -1)})
    change(cluster, t.topic.update().values(created_ms=t.topic.c.created_ms - 7_200_000))
    change(cluster, t.segment.update().values(min_timestamp_ms=t.segment.c.appended_ms - 3_600_000))
    [group] = read_cluster(cluster).groups
    assert 3_600 <= group.lag_s < 3_700
    change(cluster, t.segment.update().values(min_timestamp_ms=0))
    [group] = read_cluster(cluster).groups
    assert 7_200 <= group.lag_s < 7_300, "not before the topic was created"


def test_the_lag_of_a_group_behind_the_log_start_is_that_of_the_first_record_there(cluster, cluster_address):
    topic = create_topic(cluster, "t")
    for text in "abc":
        append_to(cluster, topic, text)
    commit(cluster_address, "g", {TopicPartition("t", 0): OffsetAndMetadata(0, "", -1)})
    change(cluster, t.segment.update().values(appended_ms=t.segment.c.appended_ms - 3_600_000))
    delete_records(cluster, {TopicPartition("t", 0): 1})
    [group] = read_cluster(cluster).groups
    assert group.lag_s is not None and 3_600 <= group.lag_s < 3_700


def test_partitions_and_lags_of_a_topic_that_is_not_live_have_no_facts(cluster, cluster_address):
    for name in ("t", "copied"):
        create_topic(cluster, name)
        commit(cluster_address, "g", {TopicPartition(name, 0): OffsetAndMetadata(0, "", -1)})
    change(cluster, t.topic.update().where(t.topic.c.name == "copied").values(state="creating"))
    facts = read_cluster(cluster)
    assert "t" in {each.topic for each in facts.partitions} and {each.topic for each in facts.groups} == {"t"}
    assert "copied" not in {each.topic for each in facts.partitions}
    assert value(scraped(cluster), "kafka_consumergroup_lag_sum", consumergroup="g", topic="t") == 0


def test_a_topic_with_damaged_configs_stops_no_scrape_and_no_election_of_another(three_brokers):
    cluster = three_brokers
    damaged = topic_on(cluster, "damaged", [[1, 2]])
    take_away(cluster, 2)
    append_to(cluster, damaged, "a")
    take_away(cluster, 1)
    bring_back(cluster, 2)  # it lacks the record: only the configs say whether it may lead
    topic_on(cluster, "other", [[3, 2]])
    change(cluster, t.topic.update().where(t.topic.c.name == "damaged").values(configs='{"flush.ms": "1'))
    take_away(cluster, 3)
    leaders = {each.topic: each.leader for each in read_cluster(cluster).partitions}
    assert (leaders["other"], leaders.keys() & {"damaged"}) == (2, set())
    assert value(scraped(cluster), "kafka_topic_partitions", topic="other") == 1


def test_the_metrics_are_the_facts_of_the_cluster(three_brokers, cluster_address):
    cluster = three_brokers
    topic = create_topic(cluster, "t", 2, 3, {"min.insync.replicas": "3"})
    append_to(cluster, topic, *"abcdef", timestamp_ms=1)  # clients may have any clock
    make_older(cluster, 100_000)
    commit(cluster_address, "g", {TopicPartition("t", 0): OffsetAndMetadata(2, "", -1)})
    found = scraped(cluster)
    expected = {
        "kafka_topic_partitions": 2, "kafka_server_brokertopicmetrics_messagesin_total": 6,
        "spark_log_segments": 1, "spark_log_small_segments": 1,
    }  # fmt: skip
    assert {name: value(found, name, topic="t") for name in expected} == expected
    table = {"topic": "t", "target": "delta"}
    assert value(found, "spark_log_unpublished_records", **table) == 6
    assert value(found, "spark_log_tables_offline", **table) == 0
    assert 100 <= value(found, "spark_log_publication_age_seconds", **table) < 160
    assert value(found, "spark_log_table_lag_bound_seconds", **table) == 5
    of_partition = {
        "current_offset": 6, "oldest_offset": 0, "replicas": 3, "in_sync_replica": 3, "under_replicated_partition": 0,
        "leader_is_preferred": 1,
    }  # fmt: skip
    for name, number in of_partition.items():
        assert value(found, f"kafka_topic_partition_{name}", topic="t", partition=0) == number, name
    [lag] = group_lag(cluster, "g")
    here = {"consumergroup": "g", "topic": "t", "partition": 0}
    assert value(found, "kafka_consumergroup_lag", **here) == lag.lag == 4
    assert value(found, "kafka_consumergroup_current_offset", **here) == 2
    assert value(found, "kafka_consumergroup_lag_sum", consumergroup="g", topic="t") == 4
    assert value(found, "kafka_consumergroup_members", consumergroup="g") == 0
    assert 100 <= value(found, "kafka_consumergroup_group_lag_seconds", group="g", topic="t", partition=0) < 160
    assert value(found, "spark_log_consumergroup_beyond_retention", **here) == 0
    assert value(found, "kafka_brokers") == 3
    assert value(found, "kafka_server_replicamanager_underminisrpartitioncount") == 0

    topic_on(cluster, "single", [[3]])
    take_away(cluster, 3)
    delete_records(cluster, {TopicPartition("t", 0): 5})
    found = scraped(cluster)
    assert value(found, "kafka_brokers") == 2
    assert value(found, "kafka_log_logmanager_offlinelogdirectorycount") == 1
    assert value(found, "spark_log_tables_offline", **table) == 1
    assert value(found, "kafka_server_replicamanager_underreplicatedpartitions") == 2
    assert value(found, "kafka_server_replicamanager_underminisrpartitioncount") == 2
    assert value(found, "kafka_server_replicamanager_offlinereplicacount") == 3
    assert value(found, "kafka_topic_partition_in_sync_replica", topic="t", partition=1) == 2
    assert value(found, "spark_log_consumergroup_beyond_retention", **here) == 1
    assert value(found, "kafka_controller_kafkacontroller_offlinepartitionscount") == 1
    assert value(found, "kafka_topic_partition_leader", topic="single", partition=0) == -1


@pytest.mark.delta
def test_publications_are_counted_by_topic_and_target(cluster, log):
    configs = {"inline_max_bytes": "0", "delta_max_lag_ms": "-1", "iceberg_max_lag_ms": "3600000"}
    topic = make(cluster, "t", table_formats="delta,iceberg", **configs)
    make(cluster, "quick", table_formats="delta,iceberg", delta_max_lag_ms="0", iceberg_max_lag_ms="1000")
    for text in "abc":
        append(log, topic, text)
    publish(cluster, topic)
    for _ in run_tasks(cluster, ["delta"]):
        pass
    found, [folder] = scraped(cluster), [Path(each) for each in delta_tables(cluster, topic).values()]
    of_delta, of_iceberg = ({"topic": "t", "target": target} for target in ("delta", "iceberg"))
    assert value(found, "spark_log_table_publications_total", **of_delta) == 3
    assert value(found, "spark_log_table_publications_total", **of_iceberg) == 2, "the second waits for the third"
    for labels in (of_delta, of_iceberg):
        count = value(found, "spark_log_table_publications_total", **labels)
        assert value(found, "spark_log_table_publication_seconds_count", **labels) == count
        assert 0 < value(found, "spark_log_table_publication_seconds_sum", **labels) < 60
    assert value(found, "spark_log_table_log_files", **of_delta) == len(os.listdir(folder / "_delta_log"))
    assert value(found, "spark_log_table_log_files", **of_iceberg) == len(os.listdir(folder / "metadata"))
    bounds = {labels: bound for (name, labels), bound in found.items() if name == "spark_log_table_lag_bound_seconds"}
    assert {bound for labels, bound in bounds.items() if ("topic", "t") in labels} == set()
    assert value(found, "spark_log_table_lag_bound_seconds", topic="quick", target="delta") == 1
    accept_store(cluster)
    assert value(scraped(cluster), "spark_log_table_publications_total", **of_delta) == 3, "skipped ones do not count"
    assert value(found, "spark_log_table_lag_bound_seconds", topic="quick", target="iceberg") == 2


def test_the_metrics_of_a_share_group_are_its_facts(cluster, log):
    make(cluster, "t", 2)
    fill(log, "t", [10])
    alter_group_configs(cluster.store, "workers", {"share.auto.offset.reset": "earliest"})
    member = ShareMember(cluster)
    member.acknowledge(member.poll(2), AcknowledgeType.ACCEPT)
    member.acknowledge(member.poll(2), AcknowledgeType.RELEASE, delay_ms=60_000)
    member.poll(3)
    found = samples(generate_latest(registry_of(ClusterCollector(cluster, lambda: True))).decode())
    here = {"group": "workers", "topic": "t", "partition": 0}
    values = {"lag": 8, "start_offset": 4, "in_flight_records": 3, "available_records": 0, "delayed_records": 2}
    totals = dict.fromkeys(("lock_timeouts_total", "dead_letters_total", "expired_records_total"), 0)
    for name, expected in {**values, "archiving_records": 0, **totals}.items():
        assert value(found, f"spark_log_share_group_{name}", **here) == expected, name
    assert value(found, "spark_log_share_group_record_locks_max", group="workers") == 2_000
    assert value(found, "kafka_consumergroup_members", consumergroup="workers") == 1
    for name, labels in found:
        assert name == "kafka_consumergroup_members" or not (name.startswith("kafka_") and "workers" in str(labels))
    [listed] = [part for part in read_cluster(cluster).groups if part.partition == 0]
    assert (listed.group, listed.lag, listed.share) == ("workers", 8, True)


def test_segments_and_bad_records_are_counted(cluster, log):
    configs = {"inline.max.bytes": "0", "value.format": "json", "value.schema": "n BIGINT"}
    configs |= {"key.format": "json", "key.schema": "n BIGINT"}
    topic = create_topic(cluster, "typed", configs=configs)
    append_to(cluster, topic, '{"n": 1}', "no JSON", timestamp_ms=clock.wall_ms())
    append(log, topic, '{"n": 2}', key=b"k", timestamp_ms=clock.wall_ms())
    append(log, create_topic(cluster, "tail"), "a", timestamp_ms=clock.wall_ms())
    found = scraped(cluster)
    assert value(found, "spark_log_small_segments", topic="tail") == 0
    assert value(found, "spark_log_segments", topic="tail") == 1
    assert value(found, "spark_log_inline_tail_bytes", topic="tail") > 0
    assert value(found, "spark_log_small_segments", topic="typed") == 2
    assert value(found, "spark_log_bad_records", topic="typed") == 1 + 1
    assert value(found, "kafka_log_log_size", topic="typed", partition=0) > 0
    damaged = t.segment.update().where(t.segment.c.topic_id == topic.topic_id, t.segment.c.base_offset == 2)
    cluster.store.transact(lambda connection: connection.execute(damaged.values(stats="{")))
    assert value(scraped(cluster), "spark_log_bad_records", topic="typed") == 1


@pytest.mark.on_sqlite
def test_partitions_beyond_the_limit_are_in_the_sums_only(cluster, monkeypatch):
    monkeypatch.setattr(cluster_metrics, "PARTITIONS_MAX", 2)
    create_topic(cluster, "t", 5)
    found = scraped(cluster)
    assert value(found, "spark_log_metrics_partitions_omitted") == 3
    assert value(found, "kafka_topic_partitions", topic="t") == 5
    assert sum(name == "kafka_topic_partition_leader" for name, _ in found) == 2


@pytest.mark.on_sqlite
def test_only_the_active_coordinator_exports_the_cluster(cluster):
    def found_by(process):
        collectors = (
            ClusterCollector(cluster, lambda: process.acting), TaskCollector(process.runners)
        )  # fmt: skip
        return samples(generate_latest(registry_of(*collectors)).decode())

    def acts(process):
        runs = process.coordinator.runs.values()
        return process.acting and process.controller.acting and all(run.success_ms for run in runs)

    alter_settings(cluster, {"controller.lease.ms": "60000"})  # it ends in no pause of this process
    alter_settings(cluster, {"offsets.retention.check.interval.ms": "100"})  # the first run comes after it
    with Coordinator(cluster) as first:
        wait_until(lambda: acts(first))
        with Coordinator(cluster) as second:
            one, other = found_by(first), found_by(second)
            assert value(one, "kafka_controller_kafkacontroller_activecontrollercount") == 1
            assert value(one, "spark_log_lease_held", store="home", lease="coordinator") == 1
            seal = "maintenance: seal"
            assert (
                value(one, "spark_log_task_last_success_timestamp_seconds", store="home", task=seal)
                > clock.wall_ms() / 1000 - 60
            )
            assert value(one, "spark_log_task_failures_total", store="home", task=seal) == 0
            assert value(other, "spark_log_lease_held", store="home", lease="coordinator") == 0
            only_process = {name for name, _ in other if name.startswith(("kafka_", "spark_log_"))}
            assert only_process == {"spark_log_lease_held", "spark_log_store_up"}


@also_on_two_stores
def test_every_metric_passes_prometheus_lint_and_is_in_the_alerts_and_the_dashboard(cluster):
    create_topic(cluster, "t")
    with Coordinator(cluster) as process:
        wait_until(lambda: process.acting and process.controller.acting)
        tasks, queries = TaskCollector(process.runners), QueryCollector(lambda: [])
        collectors = (ClusterCollector(cluster, lambda: True), tasks, queries)
        text = generate_latest(registry_of(*collectors))
    checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True)
    # Strimzi's and kafka_exporter's names, which dashboards query, do not follow all of Prometheus' conventions
    faults = [line for line in checked.stderr.decode().splitlines() if not line.startswith("kafka_")]
    assert faults == []
    given = set(re.findall(r"^# TYPE (\S+)", text.decode(), re.MULTILINE))
    for file in (ALERTS, DASHBOARD):
        wanted = set(re.findall(r"\b(?:kafka|spark_log)_\w+", " ".join(expressions(file))))
        assert wanted
        assert wanted <= given, file.name


def expressions(file):
    if file.suffix == ".yaml":
        return [rule["expr"] for group in yaml.safe_load(file.read_text())["groups"] for rule in group["rules"]]
    panels = json.loads(file.read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel.get("targets", ())]


def test_the_alerts_fire_on_their_faults_and_only_then():
    subprocess.run(["promtool", "check", "rules", str(ALERTS)], check=True, capture_output=True)
    tests = Path(__file__).with_name("prometheus_rules_test.yaml")
    done = subprocess.run(["promtool", "test", "rules", str(tests)], capture_output=True, text=True, cwd=tests.parent)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.on_sqlite
def test_a_gateway_counts_its_requests_and_appends(cluster, cluster_address, tmp_path):
    create_topic(cluster, "t")
    port = free_port()
    with GatewayProcess(tmp_path, cluster_address, "--metrics-port", str(port)) as gateway:
        producer = KafkaProducer(bootstrap_servers=gateway.address)
        producer.send("t", b"x" * 100).get(LIMIT_S)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            found = samples(answer.read().decode())
        producer.close()
        assert value(found, "kafka_network_requestmetrics_requests_total", request="Produce") == 1
        assert value(found, "spark_log_append_seconds_count") == 1
        assert value(found, "spark_log_appended_records_total") == 1
        assert value(found, "kafka_server_brokertopicmetrics_bytesin_total") > 100
        assert value(found, "kafka_server_socket_server_metrics_connection_count") >= 1
        assert ("kafka_brokers", ()) not in found
        for path in ("health", "ready"):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=60) as answer:
                assert answer.status == 200


@pytest.mark.on_sqlite
def test_clients_export_what_kafka_python_names(cluster_address, cluster):
    create_topic(cluster, "t", 2)
    registry = CollectorRegistry()
    with (
        Producer(cluster=cluster_address, client_id="p") as producer,
        Consumer("t", cluster=cluster_address, client_id="c", auto_offset_reset="earliest", group_id=None) as consumer,
    ):
        export(producer, consumer, registry=registry)
        for _ in range(5):
            producer.send("t", b"x", partition=1).get(LIMIT_S)
        assert consumer.poll(timeout_ms=30_000, max_records=2)
        found = samples(generate_latest(registry).decode())
    assert value(found, "kafka_producer_record_send_total", client_id="p") == 5
    assert value(found, "kafka_consumer_fetch_manager_records_consumed_total", client_id="c") == 2
    assert value(found, "kafka_consumer_fetch_manager_records_lag_max", client_id="c") == 3
    of_partition = {"client_id": "c", "topic": "t", "partition": 1}
    assert value(found, "kafka_consumer_fetch_manager_records_lag", **of_partition) == 3
    assert 0 < value(found, "kafka_consumer_fetch_manager_fetch_latency_avg", client_id="c") < 30_000


def test_health_and_readiness_say_why_not():
    reasons = {"health": None, "ready": None}

    def get(path):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    probes = (lambda: reasons["health"], lambda: reasons["ready"])
    with serving_metrics("127.0.0.1", 0, registry_of(), *probes) as port:
        assert get("/health") == (200, '{"status": "ok"}\n')
        assert get("/ready")[0] == 200
        assert "process_cpu_seconds_total" in get("/metrics")[1]
        assert get("/other")[0] == 404
        reasons["ready"] = "metadata store: no answer"
        assert get("/ready") == (503, '{"status": "failing", "reason": "metadata store: no answer"}\n')
        with pytest.raises(InvalidConfigurationError, match=r"--metrics-port: cannot listen on 127\.0\.0\.1"):
            serving_metrics("127.0.0.1", port, registry_of(), *probes).__enter__()
