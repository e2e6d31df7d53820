"""An operator cancels the wait of a commit for the synchronous standby: the commit then succeeds with a warning, and a
failover would lose it. It is not acknowledged before the standby has it. So it is if an upgrade ends its session.
"""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.settings import alter_settings
from spark_log.errors import MetadataStoreUnavailableError
from spark_log.log.append.append_transaction import AppendRequest
from spark_log.log.append.rules import Appended
from spark_log.log.append.spark_batch_rules import SparkBatch
from spark_log.log.append.spark_batches import append_once_hook
from spark_log.log.log import Records
from spark_log.maintenance.client_log import ClientLog
from spark_log.metadata import tables as t
from spark_log.metadata.connections import engine
from spark_log.replication.controller.topic_operations import create_topic
from tests.support.records import read_all, table
from tests.support.versions import become_next_version
from tests.support.waiting import wait_until

WAITING = "FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND application_name = 'spark-log'"


@pytest.fixture
def standby_away(pair):
    """The pair without its standby, which is back at the end of the test."""
    pair.standby.freeze()
    yield pair
    pair.standby.resume()
    wait_until(pair.has_standby)


@pytest.fixture
def cluster(pair, tmp_path):
    with Cluster.init(pair.primary.create_prepared_database(), log_dir=str(tmp_path / "log-dir")) as cluster:
        create_topic(cluster, "t")
        alter_settings(cluster, {"store.answer.timeout.ms": "2000"})
        assert cluster.store.settings.store_answer_timeout_ms == 2000
        yield cluster


def cancel_waits(pair, count):
    """Cancel the waits of this many commits, one after the other."""
    for _ in range(count):
        wait_until(lambda: pair.primary.query(f"SELECT count(*) {WAITING}") == "1")
        waiting = pair.primary.query(f"SELECT pid, query_start {WAITING}")
        pair.primary.execute(f"SELECT pg_cancel_backend(pid) {WAITING}")
        wait_until(lambda waiting=waiting: pair.primary.query(f"SELECT pid, query_start {WAITING}") != waiting)


def waiting_pids(pair):
    """The sessions that wait for the standby. One whose client has gone waits on."""
    return set(pair.primary.query(f"SELECT string_agg(pid::text, ' ') {WAITING}").split())


@pytest.mark.slow
def test_a_record_is_not_acknowledged_before_the_standby_has_it(cluster, standby_away):
    log = ClientLog(cluster)
    topic = log.find_topic("t")
    with ThreadPoolExecutor(1) as pool:
        appending = pool.submit(log.append, topic, [Records(0, table("a"))])
        cancel_waits(standby_away, 3)  # of the append, and twice of the question whether it was committed
        assert not appending.done()
        standby_away.standby.resume()
    assert appending.result() == [Appended(0, 1)]
    database = cluster.store.address.url.rpartition("/")[2]
    assert standby_away.standby.query("SELECT count(*) FROM segment", database) == "1"
    assert read_all(log, topic) == [(0, 0, "a")]
    log.close()


def test_an_append_that_no_standby_confirms_fails(cluster, standby_away):
    log = ClientLog(cluster)
    topic = log.find_topic("t")
    cancelling = threading.Thread(target=cancel_waits, args=(standby_away, 1))
    cancelling.start()
    with pytest.raises(MetadataStoreUnavailableError):
        log.append(topic, [Records(0, table("a"))], timeout_ms=1_000)
    cancelling.join(timeout=60)
    log.close()


def test_a_repeated_spark_batch_is_not_acknowledged_before_the_standby_has_it(cluster, standby_away):
    """Its commit changes nothing, and so would not wait for the standby."""
    log = ClientLog(cluster)
    topic = log.find_topic("t")
    written = log.write_batches([(topic, Records(0, table("a")))])
    batch = SparkBatch("app", "t", 0, 1, "rows", strict=True)
    hook = append_once_hook(batch, {topic.topic_id})
    request = AppendRequest(written.batches, written.blobs, atomic=True, hooks=[hook])
    topics = {topic.topic_id: topic}
    cancelling = threading.Thread(target=cancel_waits, args=(standby_away, 1))
    cancelling.start()
    with pytest.raises(MetadataStoreUnavailableError):
        log.append_whole(request, topics, timeout_ms=1_000)
    cancelling.join(timeout=60)
    earlier = waiting_pids(standby_away)
    with ThreadPoolExecutor(1) as pool:
        repeating = pool.submit(log.append_whole, request, topics)
        wait_until(lambda: repeating.done() or waiting_pids(standby_away) - earlier)
        assert not repeating.done()
        standby_away.standby.resume()
    assert repeating.result().committed_before
    log.close()


@pytest.mark.slow
def test_commits_without_a_standby_do_not_take_all_connections(cluster, standby_away, monkeypatch):
    """The session of each commit that no standby confirms waits on when its client has gone."""

    def count(connection):
        return connection.execute(sa.select(sa.func.count()).select_from(t.topic)).scalar_one()

    monkeypatch.setattr(engine, "_WAITING_MAX", 2)
    for _ in range(2):
        with pytest.raises(MetadataStoreUnavailableError):
            cluster.store.read_as_primary(count, timeout_ms=1)
    for _ in range(2):
        with pytest.raises(MetadataStoreUnavailableError, match="wait for a synchronous standby"):
            cluster.store.read_as_primary(count, timeout_ms=1)
    waiting = waiting_pids(standby_away)
    assert len(waiting) == 2 and cluster.store.read(count) == 1
    standby_away.standby.resume()
    assert cluster.store.read_as_primary(count) == 1


def test_a_commit_that_an_upgrade_cuts_off_is_acknowledged_if_it_is_committed(pair, tmp_path, monkeypatch):
    address = pair.primary.create_database()
    with Cluster.init(address, log_dir=str(tmp_path / "log-dir")) as cluster, ThreadPoolExecutor(2) as pool:
        topic = create_topic(cluster, "t")
        log = ClientLog(cluster)
        pair.standby.freeze()
        try:
            append = pool.submit(log.append, topic, [Records(0, table("a"))])
            wait_until(lambda: pair.primary.query(f"SELECT count(*) {WAITING}") == "1", "the commit")
            cut = pair.primary.query(f"SELECT pid {WAITING}")
            become_next_version(tmp_path, monkeypatch)
            upgrade = pool.submit(Cluster.open, address)
            running = f"SELECT count(*) FROM pg_stat_activity WHERE pid = {cut}"
            wait_until(lambda: pair.primary.query(running) == "0", "the end of the session")
            assert not append.done()
        finally:
            pair.standby.resume()
        assert append.result() == [Appended(0, 1)]
        with upgrade.result() as upgraded:
            assert read_all(ClientLog(upgraded), topic) == [(0, 0, "a")]
        log.close()
