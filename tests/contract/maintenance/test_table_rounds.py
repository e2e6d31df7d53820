"""The coordinator's rounds of sealing and publication."""

import logging

import pytest

from spark_log.cluster.settings import alter_settings, read_settings
from spark_log.config import ClusterSettings
from spark_log.errors import SchemaRegistryUnavailableError
from spark_log.maintenance import seal_task
from spark_log.maintenance.context import open_maintenance
from spark_log.maintenance.seal_task import TableRounds
from tests.support.delta_check import assert_delta_is_the_log
from tests.support.tails import make_older
from tests.support.topics import append, make

pytestmark = [pytest.mark.delta, pytest.mark.parametrize("cluster_address", ["sqlite"], indirect=True)]

DUE = {"delta_max_lag_ms": "1000", "retention_ms": "-1"}


def run(cluster, rounds):
    with open_maintenance(cluster, "test", None, None) as context:
        return [report.topic for report in rounds.run(context)]


def test_a_topic_that_fails_is_tried_again_later_and_delays_no_other(cluster, log, monkeypatch):
    topics = {name: make(cluster, name, **DUE) for name in ("bad", "good")}
    tried, sealing = [], seal_task.sealing

    def fail_for_one(cluster, writer, topic, *arguments):
        tried.append(topic.name)
        if topic.name == "bad":
            raise SchemaRegistryUnavailableError("no answer")
        yield from sealing(cluster, writer, topic, *arguments)

    monkeypatch.setattr(seal_task, "sealing", fail_for_one)
    rounds = TableRounds()
    for topic in topics.values():
        append(log, topic, "a")
    make_older(cluster, 600_000)
    with pytest.raises(SchemaRegistryUnavailableError):
        run(cluster, rounds)
    append(log, topics["good"], "b")
    make_older(cluster, 600_000)
    assert run(cluster, rounds) == ["good"]
    assert sorted(tried) == ["bad", "good", "good"]
    rounds._retries.clear()
    monkeypatch.undo()
    assert run(cluster, rounds) == ["bad"]
    assert_delta_is_the_log(cluster)


def test_topics_with_the_oldest_deadline_come_first(cluster, log, monkeypatch):
    monkeypatch.setattr(seal_task, "_TOPICS_MAX", 1)
    patient = make(cluster, "a", delta_max_lag_ms="3000", retention_ms="-1")
    urgent = make(cluster, "b", **DUE)
    append(log, patient, "1")
    append(log, urgent, "1")
    make_older(cluster, 3_000)
    rounds = TableRounds()
    assert [run(cluster, rounds) for _ in range(3)] == [["b"], ["a"], []]


def test_the_rounds_leave_a_part_of_the_time_to_others(cluster):
    rounds = TableRounds()
    rounds._seconds = 3.0
    assert rounds.pause_ms(ClusterSettings()) == 3_000
    assert rounds.pause_ms(ClusterSettings(table_loop_share_percent=75)) == 1_000
    rounds._seconds = 0.001
    assert rounds.pause_ms(ClusterSettings()) == 250


def test_the_earlier_setting_is_accepted_and_has_no_effect(cluster, caplog):
    with caplog.at_level(logging.WARNING):
        alter_settings(cluster, {"log.seal.interval.ms": "5", "plan.tasks.max": "7"})
    assert "use table.loop.poll.ms" in caplog.text
    assert read_settings(cluster) == {"plan.tasks.max": "7"}
