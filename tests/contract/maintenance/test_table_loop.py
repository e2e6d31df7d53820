"""The table loop of clients under interruptions: appends during a round, failures, the end of a program."""

import logging
import os
import signal
import threading
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
import sqlalchemy as sa

from spark_log import clock
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.log_dir_failures import failures_of_log_dirs
from spark_log.config import ClusterSettings
from spark_log.maintenance.client_log import ClientLog
from spark_log.maintenance.coordinator.coordinator import Coordinator
from spark_log.maintenance.rewrite import table_loop, table_schedule
from spark_log.maintenance.rewrite.table_loop import TableLoop
from spark_log.maintenance.rewrite.table_schedule import Attempts
from spark_log.metadata import tables as t
from spark_log.tables.lag_measurement import delta_lags
from tests.support.python_process import output_of, run_process
from tests.support.records import read_all
from tests.support.replicas import folder_of, take_away, topic_on
from tests.support.stores import topics_view
from tests.support.table_checks import assert_delta_is_the_log
from tests.support.topics import append, make, make_older, tail
from tests.support.waiting import LIMIT_S, wait_until

pytestmark = pytest.mark.delta

sqlite_only = pytest.mark.on_sqlite


@pytest.fixture
def busy_log(cluster):
    """The log of the store that has the topics."""
    log = ClientLog(cluster, in_thread=True)
    yield log.at(topics_view(cluster).store_id)
    log.close()


@sqlite_only
def test_the_longest_lag_does_not_end_the_thread(cluster, busy_log):
    topic = make(cluster, "t", delta_max_lag_ms=str(2**63 - 1), inline_tail_bytes="2000")
    append(busy_log, topic, "small")
    [touched] = busy_log._loop._touched.values()
    wait_until(lambda: touched.due_s > clock.monotonic_s() + 10)
    busy_log._loop._thread.join(0.1)
    append(busy_log, topic, "x" * 1000, "y" * 1000)
    wait_until(lambda: tail(cluster) == 0)


@sqlite_only
@pytest.mark.on_data_store
def test_an_append_during_a_round_is_seen_by_the_next_one(cluster, busy_log, monkeypatch):
    topic = make(cluster, "t", delta_max_lag_ms="100", retention_ms="-1")
    publish, come = table_loop.try_publish, iter(["after its tail was sealed"])

    def try_publish(*arguments, **options):
        for value in come:
            append(busy_log, topic, value)
        return publish(*arguments, **options)

    monkeypatch.setattr(table_loop, "try_publish", try_publish)
    append(busy_log, topic, "first")
    wait_until(lambda: _end(cluster) == 2 and tail(cluster) == 0)


def _end(cluster):
    query = sa.select(t.partition.c.log_end_offset)
    return topics_view(cluster).store.read(lambda connection: connection.execute(query).scalar_one())


@sqlite_only
@pytest.mark.on_data_store
def test_full_tails_are_sealed_by_the_client_although_there_is_a_coordinator(cluster, busy_log):
    topic = make(cluster, "t", inline_tail_bytes="2000")
    with Coordinator(cluster, settings=ClusterSettings(table_loop_poll_ms=3_600_000)) as coordinator:
        wait_until(lambda: coordinator.acting)
        append(busy_log, topic, "small")
        append(busy_log, topic, "x" * 1000, "y" * 1000)
        wait_until(lambda: tail(cluster) == 0)


@sqlite_only
@pytest.mark.on_data_store
def test_a_failed_seal_is_retried_within_the_lag(cluster, log, busy_log, monkeypatch):
    """It is retried after a tenth of the lag, 2 s, and not after another 18 s."""
    waits_s, after_round = [], table_loop.after_round

    def after_quick_round(before, config, *, now_s, done, **_):  # after a slow one the wait is longer
        attempts = after_round(before, config, now_s=now_s, seconds=0.0, done=done)
        if not done:
            waits_s.append(attempts.from_s - now_s)
        return attempts

    monkeypatch.setattr(table_loop, "after_round", after_quick_round)
    topic = make(cluster, "t", delta_max_lag_ms="20000", retention_ms="-1")
    append(log, topic, "a")
    make_older(cluster, 20_000)
    [info] = cluster.log_dirs().values()
    folder = Path(info.uri.removeprefix("file://"))
    away = folder.rename(folder.with_name("away"))
    append(busy_log, topic, "b")
    wait_until(lambda: waits_s)
    assert waits_s[0] == pytest.approx(2.0)
    away.rename(folder)
    wait_until(lambda: topics_view(cluster).store.read(delta_lags) == {})
    assert tail(cluster) == 0


@sqlite_only
@pytest.mark.on_data_store
def test_a_topic_whose_tails_are_always_full_leaves_time_for_the_others(cluster, busy_log, monkeypatch):
    topics = [make(cluster, name, inline_tail_bytes="100") for name in ("a", "b")]
    other_sealed = threading.Event()

    def seal(_cluster, _writer, topic, _partition):
        if topic.name == "b":
            other_sealed.set()
        elif not other_sealed.is_set():
            busy_log._loop._touch(topic, full=0)
        return 1

    monkeypatch.setattr(table_loop, "try_seal", seal)
    for topic in topics:
        append(busy_log, topic, "x" * 100)
    assert other_sealed.wait(30)


@sqlite_only
def test_close_starts_no_seal_after_its_timeout(cluster, log, monkeypatch):
    topic = make(cluster, "t", 8, delta_max_lag_ms="600000")  # far more than the appends take
    for partition in range(8):
        append(log, topic, "a", partition=partition)
    begun = []

    def seal(_cluster, _writer, _topic, partition):
        begun.append(partition)
        return 1

    monkeypatch.setattr(table_loop, "try_seal", seal)
    # time passes only in a seal
    monkeypatch.setattr(table_loop, "clock", SimpleNamespace(monotonic_s=lambda: 0.3 * len(begun)))
    loop = TableLoop(cluster, log._writer)
    loop.watch([topic])
    loop.close(0.4)
    assert len(begun) == 2


@sqlite_only
@pytest.mark.on_data_store
def test_an_append_waits_for_a_tail_that_the_thread_does_not_seal_in_time(cluster, busy_log, monkeypatch):
    """Otherwise a fast writer would grow the metadata store without bound."""
    topic = make(cluster, "t", inline_tail_bytes="2000")
    monkeypatch.setattr(busy_log._loop, "_run", lambda: None)
    for _ in range(3):
        append(busy_log, topic, os.urandom(500).hex())
    assert tail(cluster) == 3
    append(busy_log, topic, os.urandom(4_000).hex())
    assert tail(cluster) == 0


@sqlite_only
def test_no_append_waits_for_a_seal_of_the_thread(cluster, busy_log, monkeypatch):
    """Its disk may hang."""
    topic = make(cluster, "t", inline_tail_bytes="2000")
    began, may_end, sealing = threading.Event(), threading.Event(), []

    def seal(*_):
        sealing.append(threading.current_thread())
        if sealing == [busy_log._loop._thread]:
            began.set()
            may_end.wait(LIMIT_S)
        return 1

    monkeypatch.setattr(table_loop, "try_seal", seal)
    append(busy_log, topic, os.urandom(1_000).hex())
    assert began.wait(LIMIT_S)
    for _ in range(3):
        append(busy_log, topic, os.urandom(4_000).hex())
    may_end.set()
    assert sealing == [busy_log._loop._thread]


@pytest.mark.on_data_store
def test_a_seal_detects_that_a_log_dir_has_failed(three_brokers):
    """Without a controller it would be refused each time: too few in-sync replicas get the file."""
    topic = topic_on(three_brokers, "t", [[1, 2]], inline_tail_bytes="1000", retention_ms="-1")
    folder = folder_of(three_brokers, 2)
    folder.rename(folder.with_name("away"))
    log = ClientLog(three_brokers)
    append(log, topic, os.urandom(1_000).hex())
    assert len(topics_view(three_brokers).store.read(failures_of_log_dirs)) == 1
    log.close()
    assert tail(three_brokers) == 0
    assert topics_view(three_brokers).store.read(delta_lags) == {}


@sqlite_only
@pytest.mark.on_data_store
def test_a_tail_that_cannot_be_sealed_is_not_written_for_each_append(three_brokers, monkeypatch):
    topic = topic_on(
        three_brokers, "t", [[1, 2]], inline_tail_bytes="1000", delta_max_lag_ms="600000", min_insync_replicas="2"
    )
    take_away(three_brokers, 2)
    seals, try_seal = [], table_loop.try_seal
    monkeypatch.setattr(table_loop, "try_seal", lambda *of: seals.append(try_seal(*of)) or seals[-1])
    log = ClientLog(three_brokers)
    for _ in range(3):
        append(log, topic, os.urandom(1_000).hex(), acks=1)
    assert seals == [0], "too few replicas are in sync"
    log.close()


@sqlite_only
@pytest.mark.parametrize("because", ["its tail is small", "it failed before", "of its registry"])
def test_the_clients_of_a_gateway_do_not_wait_for_a_topic(cluster, monkeypatch, because):
    log = ClientLog(cluster, in_thread=True, inline_bytes_min=(0, 2_000))
    configs = {"schema_registry_url": "http://127.0.0.1:1"} if because == "of its registry" else {}
    topic = make(cluster, "t", inline_tail_bytes="1", **configs)
    monkeypatch.setattr(log._loop, "_run", lambda: None)
    sealed = []
    monkeypatch.setattr(table_loop, "try_seal", lambda *_: sealed.append(1) or 1)
    if because == "it failed before":
        log._loop._attempts[topic.topic_id] = Attempts(failures=1)
    append(log, topic, "x" * (1_000 if because == "its tail is small" else 9_000))
    assert not sealed
    if because == "its tail is small":
        append(log, topic, os.urandom(9_000).hex())
        assert sealed, "the store does not grow without bound"
    log.close()


@sqlite_only
def test_close_with_an_expired_timeout_logs_no_warning_if_all_records_are_stored(cluster, produce, caplog):
    make(cluster, "t")
    producer = produce()
    producer.send("t", b"v").get(timeout=30)
    producer.close(timeout=0)
    producer._sender.join(30)
    assert not producer._sender.is_alive()
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


LEFT_OPEN = """
import sys
from spark_log import Producer, create_topic
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.brokers import add_broker
cluster = Cluster.init(sys.argv[1])
add_broker(cluster, 2, [sys.argv[1] + "-2"])
create_topic(cluster, "t", 1, 2)
producer = Producer(cluster=sys.argv[1])
producer.send("t", b"v")
producer.flush()
"""


def test_a_program_that_ends_without_closing_its_producer_leaves_a_complete_delta_table(tmp_path):
    address = str(tmp_path / "cluster")
    assert output_of(LEFT_OPEN, address) == ""
    with Cluster.open(address) as cluster:
        assert cluster.store.read(delta_lags) == {}
        assert tail(cluster) == 0
        assert_delta_is_the_log(cluster)


KILLED = """
import sys
from spark_log import Producer
with Producer(cluster=sys.argv[1]) as producer:
    for number in range(3):
        producer.send("t", b"v%d" % number).get(timeout=30)
        print(number, flush=True)
        producer.flush()
"""


@sqlite_only
@pytest.mark.on_data_store
@pytest.mark.parametrize("point", ["seal.file-written", "seal.committed", "publish.before-commit"])
def test_the_next_client_completes_the_round_of_a_killed_one(cluster, cluster_address, point):
    topic = make(cluster, "t", inline_tail_bytes="1", retention_ms="-1")
    killed = run_process("-c", KILLED, cluster_address, failpoint=point)
    assert killed.returncode == -signal.SIGKILL
    log = ClientLog(cluster)
    append(log, topic, "last")
    log.close()
    stored = [value for _, _, value in read_all(log, topic)]
    assert stored[-1] == "last" and stored[:-1] == [f"v{n}" for n in range(len(stored) - 1)]
    assert len(stored) > len(killed.stdout.split()), "each acknowledged record"
    assert tail(cluster) == 0
    assert_delta_is_the_log(cluster)


CLOSING = """
import sys, threading, time
from spark_log import Producer, create_topic
from spark_log.cluster.cluster import Cluster
from spark_log.maintenance.rewrite import table_loop
publish = table_loop.try_publish
began = threading.Event()

def slowly(*arguments, **options):
    began.set()
    time.sleep(1)
    print("published")
    return publish(*arguments, **options)

table_loop.try_publish = slowly
create_topic(Cluster.init(sys.argv[1]), "t")
producer = Producer(cluster=sys.argv[1])
producer.send("t", b"v")
producer.flush()
threading.Thread(target=producer.close, daemon=True).start()
began.wait()
"""


def test_exit_of_the_program_waits_for_a_running_seal(tmp_path):
    assert output_of(CLOSING, tmp_path / "cluster") == "published\n"


@sqlite_only
@pytest.mark.parametrize("fails", [False, True])
def test_publications_of_a_topic_are_apart_by_the_interval(cluster, busy_log, monkeypatch, fails):
    """PUBLISH_MS; after a failure two fifths of delta.max.lag.ms."""
    monkeypatch.setattr(table_schedule, "PUBLISH_MS", 200)
    monkeypatch.setattr(table_schedule, "_RETRY_MS_MIN", 100)
    times_s, publish = [], table_loop.try_publish

    def try_publish(*arguments, **options):
        times_s.append(clock.monotonic_s())
        return publish(*arguments, **options) and not fails

    monkeypatch.setattr(table_loop, "try_publish", try_publish)
    topic = make(cluster, "t", inline_max_bytes="0", delta_max_lag_ms="1000")
    end_s = clock.monotonic_s() + 0.7
    while len(times_s) < 2 or clock.monotonic_s() < end_s:
        append(busy_log, topic, "x")
    waits_s = [later - earlier for earlier, later in pairwise(times_s)]
    assert all(wait_s >= (0.4 if fails else 0.2) for wait_s in waits_s), waits_s


@sqlite_only
@pytest.mark.on_data_store
def test_no_append_waits_for_a_publication_of_the_thread(cluster, busy_log, monkeypatch):
    topics = [make(cluster, name, inline_max_bytes="0", retention_ms="-1") for name in ("a", "b")]
    publish, began, may_end, waited = table_loop.try_publish, threading.Event(), threading.Event(), []

    def try_publish(*arguments, **options):
        began.set()
        waited.append(may_end.wait(LIMIT_S))
        return publish(*arguments, **options)

    monkeypatch.setattr(table_loop, "try_publish", try_publish)
    append(busy_log, topics[0], "first")
    assert began.wait(LIMIT_S)
    for topic in topics * 3:
        append(busy_log, topic, "during the publication")
    assert waited == [], "the publication has not ended"
    may_end.set()
    wait_until(lambda: topics_view(cluster).store.read(delta_lags) == {})
    assert all(waited)
    busy_log.close()
    assert_delta_is_the_log(cluster)


@sqlite_only
def test_merges_take_at_most_a_quarter_of_the_time_of_the_loop(cluster, log, monkeypatch):
    topic = make(cluster, "t")
    now_s, merged_s = 100.0, []

    def merge(*_, **__):
        nonlocal now_s
        merged_s.append(now_s)
        now_s += 2.0
        yield

    monkeypatch.setattr(table_loop, "clock", SimpleNamespace(monotonic_s=lambda: now_s))
    monkeypatch.setattr(table_loop, "try_seal", lambda *_: 1)
    monkeypatch.setattr(table_loop, "try_publish", lambda *_, **__: True)
    monkeypatch.setattr(table_loop, "partitions_to_merge", lambda *_: [0])
    monkeypatch.setattr(table_loop, "merge", merge)
    loop = TableLoop(cluster, log._writer)
    while now_s < 125.0:
        loop._round(topic, [0], {}, publish=False, alone=True)
        now_s += 1.0
    assert merged_s == [100.0, 108.0, 116.0, 124.0]
