"""What a Spark query or write survives: a live member in its group, replicas and a store that are away for a while."""

import threading
import time

import pytest

from spark_log.cluster.cluster import Cluster
from spark_log.errors import MetadataStoreUnavailableError
from spark_log.groups.committed_offsets import committed_offsets
from spark_log.ids import TopicPartition
from spark_log.log.append.write_ids import Writer
from spark_log.metadata import tables as t
from spark_log.spark.datasource.options.source_options import PendingWrite
from spark_log.spark.datasource.write import write_commit
from spark_log.transactions.transaction_store import init_producer
from tests.support.data_source import StreamQuery, write_batch, write_micro_batch
from tests.support.group_members import Reader, settle
from tests.support.stores import change, refuse_first_reads
from tests.support.topics import append, make, stored


@pytest.mark.parametrize("cluster_address", ["sqlite"], indirect=True)
def test_a_query_goes_on_while_its_group_has_a_live_member(cluster, log, caplog):
    make(cluster, "t", 1)
    append(log, "t", "a")
    query = StreamQuery(cluster, group__id="g")
    assert query.trigger() == [(0, b"a")]
    [reader] = settle(Reader(cluster, topics=["t"], group="g"))
    for number in range(1, 3):
        append(log, "t", "b")
        assert query.trigger() == [(number, b"b")]
    assert caplog.text.count("offsets are not committed") == 1, "said once"
    reader.member.leave()
    append(log, "t", "c")
    assert query.trigger() == [(3, b"c")]
    assert query.trigger() == []
    assert committed_offsets(cluster.store, "g") == {TopicPartition("t", 0): 4}
    query.reader.stop()


@pytest.mark.parametrize("cluster_address", ["sqlite"], indirect=True)
def test_a_write_waits_for_replicas_in_sync(cluster, monkeypatch):
    topic = make(cluster, "t", 1)
    waited = threading.Event()
    sleep, writer = time.sleep, threading.current_thread()

    def wait(seconds):
        if threading.current_thread() is not writer:  # a thread of the process that goes on after this test
            sleep(seconds)
            return
        waited.set()
        change(cluster, with_leader(1))

    monkeypatch.setattr(time, "sleep", wait)

    def with_leader(broker_id):
        return t.partition.update().where(t.partition.c.topic_id == topic.topic_id).values(leader=broker_id)

    change(cluster, with_leader(None))
    write_batch(cluster, [("", "a")], topic="t")
    assert waited.is_set()
    assert stored(cluster, "t") == {0: ["a"]}


@pytest.mark.slow
def test_a_query_outlasts_a_store_that_is_away_for_longer_than_others_wait(own_postgres_server, tmp_path, monkeypatch):
    server = own_postgres_server
    with Cluster.init(server.create_database(), log_dir=str(tmp_path / "log-dir")) as cluster:
        make(cluster, "t", 1)
        make(cluster, "out", 1)
        write_micro_batch(cluster, 0, [("", "a")], topic="t")
        # `cluster` keeps its patience: after a restart its next read may need it
        monkeypatch.setitem(Cluster.open.__func__.__kwdefaults__, "read_timeout_ms", 300)
        monkeypatch.setattr(write_commit, "READ_TIMEOUT_MS", 300)
        query = StreamQuery(cluster)
        assert query.trigger() == [(0, b"a")]

        def away(call):
            server.stop()
            back = threading.Timer(1.5, server.start)
            back.start()
            try:
                return call()
            finally:
                back.join()

        assert away(query.trigger) == []
        away(lambda: write_micro_batch(cluster, 1, [("", "b")], topic="out"))
        query.reader.stop()
        assert stored(cluster, "out") == {0: ["b"]}


def test_a_batch_write_to_a_store_that_is_away_fails_soon(own_postgres_server, tmp_path, monkeypatch):
    server = own_postgres_server
    with Cluster.init(server.create_database(), log_dir=str(tmp_path / "log-dir")) as cluster:
        make(cluster, "t", 1)
        server.stop()
        monkeypatch.setattr(write_commit, "READ_TIMEOUT_MS", 300)
        with pytest.raises(MetadataStoreUnavailableError):
            write_batch(cluster, [("", "a")], topic="t")


@pytest.mark.parametrize("cluster_address", ["sqlite"], indirect=True)
def test_a_write_in_the_transaction_of_a_batch_outlasts_a_failover(cluster, monkeypatch):
    topic = make(cluster, "t", 1)
    pending = PendingWrite(init_producer(cluster, "spark-query", 60_000).ref, 0)
    with monkeypatch.context() as patch:
        patch.setitem(Cluster.open.__func__.__kwdefaults__, "read_timeout_ms", 0)
        patch.setattr(write_commit, "READ_TIMEOUT_MS", 0)
        refuse_first_reads(patch)
        write_batch(cluster, [("", "a")], topic="t", transaction=pending)
    segments = cluster.store.read(lambda c: c.execute(t.transaction_segment.select()).all())
    assert [segment.topic_id for segment in segments] == [topic.topic_id]


@pytest.mark.parametrize("cluster_address", ["sqlite"], indirect=True)
def test_rows_that_are_skipped_for_an_old_version_are_mentioned(cluster, caplog):
    make(cluster, "t", 1)
    for version, warnings in ((5, 0), (5, 0), (1, 1)):
        write_batch(cluster, [("", "a")], topic="t", txnAppId="app", txnVersion=version)
        assert caplog.text.count("version 1 is skipped") == warnings
    assert stored(cluster, "t") == {0: ["a"]}


@pytest.mark.parametrize("cluster_address", ["sqlite"], indirect=True)
def test_a_write_that_is_committed_does_not_fail_afterwards(cluster, monkeypatch, caplog):
    make(cluster, "t", 1)

    def fail(_writer):
        raise MetadataStoreUnavailableError("the primary has died")

    with monkeypatch.context() as patch:
        patch.setattr(Writer, "close", fail)
        write_batch(cluster, [("", "a")], topic="t")
    assert "the primary has died" in caplog.text
    assert stored(cluster, "t") == {0: ["a"]}
