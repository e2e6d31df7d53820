"""`spark-log top`: topics and groups with their rates."""

import re
from dataclasses import replace

from kafka import OffsetAndMetadata, TopicPartition
from typer.testing import CliRunner

from spark_log import Consumer, Producer
from spark_log.cli.main import app
from spark_log.cluster.brokers import add_broker
from spark_log.cluster.cluster import Cluster
from spark_log.facts.metrics.activity import group_activity, topic_activity
from spark_log.facts.metrics.cluster_metrics import cluster_metrics
from spark_log.facts.metrics.cluster_snapshot import read_cluster
from spark_log.replication.controller.topic_operations import create_topic
from tests.support.replicas import take_away, topic_on
from tests.support.waiting import LIMIT_S


def test_rates_are_those_between_two_snapshots(tmp_path):
    address = str(tmp_path / "c")
    with Cluster.init(address) as cluster:
        create_topic(cluster, "busy", 2)
        create_topic(cluster, "idle")
        before = read_cluster(cluster)
        with Producer(cluster=address) as producer, Consumer(cluster=address, group_id="g") as consumer:
            for number in range(10):
                producer.send("busy", b"x", partition=number % 2)
            producer.flush()
            here = TopicPartition("busy", 0)
            consumer.assign([here])
            consumer.commit({here: OffsetAndMetadata(2, "", -1)})
            middle = read_cluster(cluster)
            consumer.commit({here: OffsetAndMetadata(4, "", -1)})
        now = read_cluster(cluster)
        seconds = (now.now_ms - before.now_ms) / 1000
        busy, *_, idle = [one for one in topic_activity(before, now) if not one.topic.startswith("__")]
        assert (busy.topic, busy.partitions, busy.records, round(busy.rate * seconds)) == ("busy", 2, 10, 10)
        assert (idle.topic, idle.rate, idle.delta_lag_s) == ("idle", 0, 0)
        [group] = group_activity(middle, now)
        seconds = (now.now_ms - middle.now_ms) / 1000
        assert (group.group, group.members, group.lag, round(group.rate * seconds)) == ("g", 0, 1, 2)
        assert group.lag_s > 0


def test_a_store_that_did_not_answer_once_gives_no_rate(tmp_path):
    with Cluster.init(str(tmp_path / "c")) as cluster:
        create_topic(cluster, "t")
        with Producer(cluster=str(tmp_path / "c")) as producer:
            producer.send("t", b"x").get(timeout=LIMIT_S)
        now = read_cluster(cluster)
        silent = replace(now, now_ms=now.now_ms - 1_000, partitions=())
        assert {one.rate for one in topic_activity(silent, now)} == {0.0}
        assert next(one for one in topic_activity(replace(silent, topics={}), now) if one.topic == "t").rate == 1.0
        for snapshot, topics in ((silent, set()), (now, {partition.topic for partition in now.partitions})):
            [counted] = [each for each in cluster_metrics(snapshot) if each.name.endswith("messagesin")]
            assert {sample.labels["topic"] for sample in counted.samples} == topics, "0 would be a reset"


def test_a_view_shows_topics_groups_and_what_is_wrong(tmp_path):
    address = str(tmp_path / "c")
    with Cluster.init(address) as cluster:
        add_broker(cluster, 2, [str(tmp_path / "d2")])
        topic_on(cluster, "single", [[2]])
        take_away(cluster, 2)
        for number in range(5):
            create_topic(cluster, f"t{number}")
    options = ["--cluster", address, "--interval", "0.1", "--count", "1", "--rows", "3"]
    shown = CliRunner().invoke(app, ["top", *options]).stdout
    assert "brokers 1/2" in shown
    assert "1 offline" in shown
    assert re.search(r"t0 +│ +1 +│ +0 ", shown)
    assert "and 3 more" in shown
