"""The coordinator's rounds of sealing and publication."""

import logging
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest

from spark_log.cluster.lease import COORDINATOR, Lease
from spark_log.cluster.log_dir import LogDir
from spark_log.cluster.settings import alter_settings, read_settings
from spark_log.config import ClusterSettings
from spark_log.errors import (
    InvalidConfigurationError,
    NotCoordinatorError,
    SchemaRegistryUnavailableError,
    StorageUnavailableError,
)
from spark_log.maintenance import run_tasks, seal_task
from spark_log.maintenance.context import open_maintenance
from spark_log.maintenance.rewrite import segment_rewrite
from spark_log.maintenance.seal_task import TableRounds
from spark_log.tables.publication import Published
from tests.support.stores import topics_view
from tests.support.table_checks import assert_delta_is_the_log, commits
from tests.support.topics import append, make, make_older
from tests.support.waiting import LIMIT_S

pytestmark = [pytest.mark.delta, pytest.mark.on_sqlite, pytest.mark.on_data_store]

DUE = {"delta_max_lag_ms": "1000", "retention_ms": "-1"}


@pytest.fixture
def log(cluster, log, monkeypatch):
    """Its own loop does not seal: it would on a slow day, once a tail is a second old."""
    log = log.at(topics_view(cluster).store_id)
    monkeypatch.setattr(log._loop, "appended", lambda _: None)
    return log


def run(cluster, rounds):
    """The topics of the reports of a round; a failing topic raises after all others."""
    topics = []
    with open_maintenance(topics_view(cluster), "test", None, None) as context:
        try:
            for report in rounds.run(context):
                topics.append(report.topic)
        except SchemaRegistryUnavailableError:
            topics.append("failed")
    return topics


@pytest.fixture
def frozen(monkeypatch):
    """The clock of the rounds stands still: a topic that waits does so until `let_time_pass`, however slow this machine
    is.
    """
    monkeypatch.setattr(seal_task, "clock", SimpleNamespace(monotonic_s=lambda: 1_000.0))


def let_time_pass(rounds):
    """As if the waits of all topics were over."""
    rounds._attempts = {key: seal_task.Attempts(each.cost_ms, each.failures) for key, each in rounds._attempts.items()}


def due(cluster, log, *topics):
    for topic in topics:
        append(log, topic, "x")
    make_older(cluster, 600_000)


def refuse(*_):
    yield from ()


def fail(*_, **__):
    raise SchemaRegistryUnavailableError("no answer")


def crash(*_):
    raise ZeroDivisionError


@pytest.mark.usefixtures("frozen")
@pytest.mark.parametrize("of_bad", [refuse, fail, crash])
def test_a_topic_that_cannot_be_sealed_is_tried_again_later_and_delays_no_other(cluster, log, monkeypatch, of_bad):
    bad, good = make(cluster, "bad", **DUE), make(cluster, "good", **DUE)
    tried, sealing = [], seal_task.sealing

    def sealing_of(cluster, writer, topic, *arguments, **options):
        tried.append(topic.name)
        yield from of_bad() if topic.name == "bad" else sealing(cluster, writer, topic, *arguments, **options)

    monkeypatch.setattr(seal_task, "sealing", sealing_of)
    rounds = TableRounds()
    due(cluster, log, bad, good)
    if of_bad is crash:
        with pytest.raises(ZeroDivisionError):
            run(cluster, rounds)
    else:
        run(cluster, rounds)
    due(cluster, log, good)
    assert run(cluster, rounds) == []
    assert sorted(tried) == ["bad", "good"], "both wait"
    rounds._attempts.pop(good.topic_id)
    assert run(cluster, rounds) == ["good"]
    monkeypatch.undo()
    let_time_pass(rounds)
    assert run(cluster, rounds) == ["bad"]
    assert_delta_is_the_log(cluster)


def test_the_tables_of_topics_are_published_in_the_order_of_the_age_of_their_files(cluster, log):
    topics = [make(cluster, name, inline_max_bytes="0", **DUE) for name in ("b", "a", "c")]
    for topic in topics:
        append(log, topic, "x")
        make_older(cluster, 600_000)
    with open_maintenance(topics_view(cluster), "test", None, None) as context:
        due = seal_task._due_topics(context, {}, searches_lags=True)
    assert [topic.name for topic in due.behind] == ["b", "a", "c"]


def test_a_topic_that_takes_long_does_not_delay_the_tables_of_the_others(cluster, log, monkeypatch):
    slow, good = make(cluster, "a", **DUE), make(cluster, "good", **DUE)
    published, sealing, publish_all = threading.Event(), seal_task.sealing, seal_task.publish_all

    def sealing_of(cluster, writer, topic, *arguments, **options):
        if topic.name == "a":
            assert published.wait(LIMIT_S), "the other topic waits for it"
        yield from sealing(cluster, writer, topic, *arguments, **options)

    def publish(cluster, topics, **options):
        done = publish_all(cluster, topics, **options)
        if good.topic_id in done:
            published.set()
        return done

    monkeypatch.setattr(seal_task, "sealing", sealing_of)
    monkeypatch.setattr(seal_task, "publish_all", publish)
    due(cluster, log, slow, good)
    assert run(cluster, TableRounds()) == ["good", "a"]
    assert_delta_is_the_log(cluster)


def test_of_the_topics_that_failed_one_is_tried_in_a_round(cluster, log, monkeypatch):
    topics = [make(cluster, name, **DUE) for name in ("a", "b", "c", "good")]
    rounds = TableRounds(topics_max=3)
    due(cluster, log, *topics[:3])
    monkeypatch.setattr(seal_task, "sealing", fail)
    assert sorted(run(cluster, rounds)) == ["a", "b", "c", "failed"]
    let_time_pass(rounds)
    due(cluster, log, topics[3])
    monkeypatch.undo()
    assert sorted(run(cluster, rounds)) == ["a", "good"]


@pytest.mark.usefixtures("frozen")
def test_after_a_failure_of_many_topics_each_round_tries_twice_as_many(cluster, log, monkeypatch):
    rounds = TableRounds()

    def tried():
        let_time_pass(rounds)
        return len([topic for topic in run(cluster, rounds) if topic != "failed"])

    due(cluster, log, *(make(cluster, f"t{number}", **DUE) for number in range(8)))
    with monkeypatch.context() as patch:
        patch.setattr(seal_task, "sealing", fail)
        assert tried() == 8
        assert tried() == 1
    assert [tried(), tried()] == [1, 2]
    with monkeypatch.context() as patch:
        patch.setattr(seal_task, "sealing", fail)
        assert tried() == 4
    assert [tried(), tried(), tried()] == [1, 2, 2]


@pytest.mark.usefixtures("frozen")
def test_a_table_that_cannot_be_published_is_tried_again_later(cluster, log, monkeypatch):
    topic = make(cluster, "t", **DUE)
    rounds, tried = TableRounds(), []

    def cannot(_cluster, topics, **_):
        tried.extend(topic.name for topic in topics)
        return {topic.topic_id: Published(StorageUnavailableError("away")) for topic in topics}

    due(cluster, log, topic)
    monkeypatch.setattr(seal_task, "publish_all", cannot)
    assert run(cluster, rounds) == ["t"]
    rounds._lags_from_s = 0.0
    assert run(cluster, rounds) == [], "sealed, and not published"
    let_time_pass(rounds)
    rounds._lags_from_s = 0.0
    with pytest.raises(StorageUnavailableError):
        run(cluster, rounds)
    rounds._lags_from_s = 0.0
    assert run(cluster, rounds) == []
    assert tried == ["t", "t"], "when it was sealed, and once afterwards"
    monkeypatch.undo()
    let_time_pass(rounds)
    rounds._lags_from_s = 0.0
    assert run(cluster, rounds) == ["t"]
    assert_delta_is_the_log(cluster)


def test_topics_with_the_oldest_deadline_come_first(cluster, log):
    patient = make(cluster, "a", delta_max_lag_ms="300000", retention_ms="-1")
    urgent = make(cluster, "b", **DUE)
    due(cluster, log, patient, urgent)
    rounds = TableRounds(topics_max=1)
    assert [run(cluster, rounds) for _ in range(3)] == [["b"], ["a"], []]


@pytest.mark.parametrize("point", ["seal.file-written", "seal.committed"])
def test_a_round_that_loses_its_lease_commits_nothing_twice(cluster, log, monkeypatch, point):
    topics = [make(cluster, name, **DUE) for name in ("a", "b")]
    due(cluster, log, *topics)
    view = topics_view(cluster)
    old, new = (Lease(view.store, COORDINATOR, 60_000) for _ in range(2))

    def round_of(lease):
        with open_maintenance(view, "test", None, ClusterSettings(table_loop_threads=1)) as context:
            return [report.topic for report in TableRounds().run(replace(context, fence=lease.check_of_term()))]

    def lose_at(name):
        if name == point:
            monkeypatch.setattr(segment_rewrite, "failpoint", lambda _: None)
            old.give_back()
            assert new.take_or_renew()
            of_new.extend(round_of(new))

    monkeypatch.setattr(segment_rewrite, "failpoint", lose_at)
    of_new = []
    assert old.take_or_renew()
    if point == "seal.file-written":
        with pytest.raises(NotCoordinatorError):
            round_of(old)
    else:
        assert round_of(old) == ["a"]
    assert sorted(of_new) == ["a", "b"], "sealed and published, or published only"
    list(run_tasks(cluster, ["delta"]))
    for topic in topics:
        [log_dir] = [LogDir(info.uri) for info in view.log_dirs().values()]
        added = [action["add"] for _, actions in commits(log_dir, topic) for action in actions if "add" in action]
        assert len(added) == 1
    assert_delta_is_the_log(cluster)


def test_the_rounds_leave_a_part_of_the_time_to_others(cluster):
    rounds = TableRounds()
    rounds._seconds = 3.0
    assert rounds.pause_ms(ClusterSettings()) == 3_000
    assert rounds.pause_ms(ClusterSettings(table_loop_share_percent=75)) == 1_000
    assert rounds.pause_ms(ClusterSettings(table_loop_share_percent=100)) == 250
    rounds._seconds = 0.001
    assert rounds.pause_ms(ClusterSettings()) == 250
    with pytest.raises(InvalidConfigurationError, match="from 1 to 100"):
        alter_settings(cluster, {"table.loop.share.percent": "101"})


def test_the_earlier_setting_is_accepted_and_has_no_effect(cluster, caplog):
    with caplog.at_level(logging.WARNING):
        alter_settings(cluster, {"log.seal.interval.ms": "5", "plan.tasks.max": "7"})
    assert "use table.loop.poll.ms" in caplog.text
    assert read_settings(cluster) == {"plan.tasks.max": "7"}
