"""delta.max.lag.ms: a topic's Delta table lists a record within that time, for every kind of writer."""

import os
import signal

import pytest
from deltalake import DeltaTable

from spark_log.config import ClusterSettings
from spark_log.log.log import Records
from spark_log.maintenance import run_tasks, seal_task
from spark_log.maintenance.client_log import ClientLog
from spark_log.maintenance.coordinator.coordinator import Coordinator
from spark_log.maintenance.rewrite.tail_seal import tails
from spark_log.metadata import tables as t
from spark_log.metadata.sql_columns import SEGMENT
from spark_log.replication.controller.topic_operations import alter_configs
from spark_log.tables.lag_measurement import delta_lags
from spark_log.tables.publication import delta_tables
from tests.support.python_process import run_process
from tests.support.records import table
from tests.support.s3 import also_on_s3
from tests.support.table_checks import assert_delta_is_the_log
from tests.support.topics import append, append_to, make, make_older, tail
from tests.support.waiting import LIMIT_S, wait_until

pytestmark = pytest.mark.delta

SOON = {"delta_max_lag_ms": "100", "retention_ms": "-1"}  # the test records are of a fixed day


def in_table(cluster, topic):
    """Values in the topic's Delta table, in no order; an empty list without a table."""
    [location] = delta_tables(cluster, topic).values()
    if not DeltaTable.is_deltatable(location):
        return []
    return [value.decode() for value in DeltaTable(location).to_pyarrow_table()["value"].to_pylist()]


def test_a_closed_producer_leaves_a_complete_delta_table(cluster, produce):
    topic = make(cluster, "t", 4, delta_max_lag_ms="60000")  # its thread seals nothing before the close
    producer = produce()
    for number in range(10):
        producer.send("t", key=str(number).encode(), value=f"v{number}".encode())
    producer.flush()
    assert tail(cluster) == 10
    producer.close()
    assert sorted(in_table(cluster, topic)) == [f"v{number}" for number in range(10)]
    assert_delta_is_the_log(cluster)


@also_on_s3
def test_an_open_log_is_sealed_when_it_is_closed(cluster, on_s3):
    topic = make(cluster, "t", 2)
    append_to(cluster, topic, "a", "b")
    assert tail(cluster) == 0
    if not on_s3:
        assert in_table(cluster, topic) == ["a", "b"]
    assert_delta_is_the_log(cluster)


def test_a_producer_that_stays_open_and_idle_keeps_the_lag(cluster, produce):
    topic = make(cluster, "t", 2, **SOON)
    producer = produce()
    for value in (b"a", b"b"):
        producer.send("t", value)
        producer.flush()
    wait_until(lambda: sorted(in_table(cluster, topic)) == ["a", "b"])
    producer.send("t", b"c")  # a new tail after the sealed one
    wait_until(lambda: len(in_table(cluster, topic)) == 3)
    producer.close()  # the publication that added the record has also recorded it in the store
    assert_delta_is_the_log(cluster)


def test_the_next_client_seals_the_tail_of_a_killed_one(cluster, cluster_address, produce):
    topic = make(cluster, "t", delta_max_lag_ms="-1")  # the killed one seals nothing
    program = (
        "import os, signal, sys; from spark_log import Producer; producer = Producer(cluster=sys.argv[1])\n"
        "producer.send('t', b'left').get(timeout=30); os.kill(os.getpid(), signal.SIGKILL)"
    )
    killed = run_process("-c", program, cluster_address)
    assert killed.returncode == -signal.SIGKILL and tail(cluster) == 1
    make_older(cluster, 60_000)
    alter_configs(cluster, "t", {"delta.max.lag.ms": None})
    producer = produce()
    producer.send("t", b"next").get(timeout=LIMIT_S)
    wait_until(lambda: sorted(in_table(cluster, topic))[:1] == ["left"])


def test_an_append_seals_a_tail_that_has_reached_its_lag(cluster, log):
    """A process without a sealing thread that appends for long, as a mirror does."""
    topic = make(cluster, "t", **SOON)
    append(log, topic, "first")
    wait_until(lambda: append(log, topic, "more") or "first" in in_table(cluster, topic))


def test_a_coordinator_keeps_the_lag(cluster):
    fast = make(cluster, "fast", 2, **SOON)
    slow = make(cluster, "slow", 2, delta_max_lag_ms="3600000", retention_ms="-1")
    log = ClientLog(cluster)
    # its lease ends in no pause of this process: a closing client would seal the tails of all topics
    settings = ClusterSettings(table_loop_poll_ms=50, controller_lease_ms=60_000)
    with Coordinator(cluster, settings=settings) as coordinator:
        wait_until(lambda: coordinator.acting)
        append(log, fast, "a")
        append(log, slow, "b")
        log.close()
        wait_until(lambda: in_table(cluster, fast) == ["a"])
        assert in_table(cluster, slow) == [] and tail(cluster) == 1, "a closing client leaves it to the coordinator"
    assert_delta_is_the_log(cluster)


@pytest.mark.on_sqlite
def test_a_tail_that_comes_while_the_tails_are_read_is_not_old(cluster, log, monkeypatch):
    topic = make(cluster, "t", delta_max_lag_ms="3600000", retention_ms="-1")
    interval_ms = 10

    def appended_meanwhile(connection):
        at_ms = cluster.store.now().wall_ms
        wait_until(lambda: cluster.store.now().wall_ms > at_ms + 2 * interval_ms)
        append(log, topic, "new")
        return tails(connection)

    monkeypatch.setattr(seal_task, "tails", appended_meanwhile)
    assert list(run_tasks(cluster, ["seal"], settings=ClusterSettings(table_loop_poll_ms=interval_ms))) == []
    assert tail(cluster) == 1


def test_a_coordinator_publishes_records_that_an_append_could_not_publish(cluster, log, monkeypatch):
    topic = make(cluster, "t", inline_max_bytes="0", retention_ms="-1", delta_max_lag_ms="1000")
    # as if the writer were killed before its publication
    monkeypatch.setattr("spark_log.maintenance.rewrite.table_loop.try_publish", lambda *_, **__: None)
    append(log, topic, "a")
    make_older(cluster, 500)
    with Coordinator(cluster, settings=ClusterSettings(table_loop_poll_ms=50)):
        wait_until(lambda: in_table(cluster, topic) == ["a"])


def test_all_tails_of_a_topic_are_one_delta_commit(cluster, log):
    topic = make(cluster, "t", 8, delta_max_lag_ms="60000")  # the second append seals nothing
    log.append(topic, [Records(number, table(f"v{number}")) for number in range(8)])
    assert list(run_tasks(cluster, ["seal"])) == []
    make_older(cluster, 60_000)
    log.append(topic, [Records(0, table("young"))])
    [report] = run_tasks(cluster, ["seal"])
    assert (report.partitions, report.before.records) == (8, 9)
    [location] = delta_tables(cluster, topic).values()
    assert DeltaTable(location).version() == 1


def test_the_first_of_many_micro_batches_is_sealed_and_the_others_share_a_file(cluster):
    topic = make(cluster, "t", delta_max_lag_ms="600000", retention_ms="-1")  # far more than the micro-batches take

    def micro_batch(value):
        log = ClientLog(cluster)
        append(log, topic, value)
        log.close(more_to_come=True)

    micro_batch("first")
    assert in_table(cluster, topic) == ["first"]
    for number in range(5):
        micro_batch(f"v{number}")
    assert tail(cluster) == 5
    make_older(cluster, 60_000)  # a pause of a tenth of delta.max.lag.ms
    micro_batch("last")
    assert tail(cluster) == 0 and len(in_table(cluster, topic)) == 7
    micro_batch("young")
    micro_batch("new")
    only_blobs = t.segment.update().where(SEGMENT.inline).values(appended_ms=SEGMENT.appended_ms - 540_000)
    cluster.store.transact(lambda connection: connection.execute(only_blobs))
    micro_batch("lag over")
    assert tail(cluster) == 0


def test_seal_now(cluster, log):
    topic = make(cluster, "t", delta_max_lag_ms="-1")
    append(log, topic, "a")
    make_older(cluster, 3_600_000)
    assert list(run_tasks(cluster, ["seal"])) == [], "no limit"
    [report] = run_tasks(cluster, ["seal"], now=True)
    assert report.before.records == 1 and in_table(cluster, topic) == ["a"]
    append(log, topic, "b")
    log.close()
    assert tail(cluster) == 1, "no limit, so nothing is sealed at close"


@pytest.mark.on_sqlite
def test_clients_merge_the_small_files_that_freshness_makes(cluster, cluster_address):
    topic = make(cluster, "t")
    for number in range(17):
        append_to(cluster, topic, f"v{number:02}")
    [location] = delta_tables(cluster, topic).values()
    files = DeltaTable(location).get_add_actions(flatten=True)["num_records"].to_pylist()
    assert sum(files) == 17 and len(files) <= 8
    assert_delta_is_the_log(cluster)


def test_lag(cluster, log):
    topic = make(cluster, "t", 2, delta_max_lag_ms="-1")  # no append seals the tails
    append(log, topic, "a", "b")
    append(log, topic, "c", partition=1)
    make_older(cluster, 5_000)
    now_ms = cluster.store.now().wall_ms
    [((topic_id, _), lag)] = cluster.store.read(delta_lags).items()
    assert (topic_id, lag.records, lag.sealed_ms) == (topic.topic_id, 3, None)
    assert 5_000 <= now_ms - lag.oldest_ms < 60_000
    log.seal(topic, [0])
    [lag] = cluster.store.read(delta_lags).values()
    assert (lag.records, lag.sealed_ms) == (1, None)
    log.seal(topic, [1])
    assert cluster.store.read(delta_lags) == {}


def test_lag_of_files_above_the_tail(cluster, log, monkeypatch):
    topic = make(cluster, "t", inline_max_bytes="2000", delta_max_lag_ms="-1")
    append(log, topic, "small")
    append(log, topic, os.urandom(3000).hex())
    [lag] = cluster.store.read(delta_lags).values()
    assert (lag.records, lag.sealed_ms) == (1, None), "the file is in the table, the tail below it is not"
    monkeypatch.setattr("spark_log.maintenance.rewrite.table_loop.try_publish", lambda *_, **__: None)
    append(log, topic, os.urandom(3000).hex(), "with it")
    [lag] = cluster.store.read(delta_lags).values()
    assert lag.records == 3 and lag.sealed_ms is not None
