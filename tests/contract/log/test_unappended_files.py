"""Files of appends that were refused or failed: the writer deletes them, also after many retries."""

import threading

import kafka.errors
import pytest
import sqlalchemy as sa

from spark_log import Producer
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.log_dir import LogDir
from spark_log.errors import (
    NotLeaderForPartitionError,
    SparkLogError,
    StorageUnavailableError,
    UnknownTopicOrPartitionError,
)
from spark_log.log.append import failed_append_files
from spark_log.log.append.producer_rows import register_producer
from spark_log.log.append.rules import Appended, Rejected
from spark_log.log.append.sequence_rules import ProducerSequence
from spark_log.log.log import Records
from spark_log.maintenance.client_log import ClientLog
from spark_log.metadata import tables as t
from spark_log.replication.controller.topic_operations import create_topic, delete_topic
from tests.support.records import read_all, table
from tests.support.replicas import take_away
from tests.support.resources import assert_only_named_files, unnamed_files
from tests.support.stores import scanned_tables, topics_view
from tests.support.waiting import LIMIT_S, wait_until

FILES = {"inline.max.bytes": "0"}
TWO = {**FILES, "min.insync.replicas": "2"}
_FULL = {
    "sqlite": ("CREATE TRIGGER store_full BEFORE INSERT ON {0} BEGIN SELECT RAISE(ABORT, 'disk is full'); END",),
    "postgresql": (
        "CREATE FUNCTION store_full() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION 'full' USING ERRCODE = '53100'; END $$",
        "CREATE TRIGGER store_full BEFORE INSERT ON {0} EXECUTE FUNCTION store_full()",
    ),
}


def fill_up(cluster, table_name):
    """Make the store refuse new rows of this table, as if it were full."""
    with topics_view(cluster).store.engine.begin() as connection:
        for statement in _FULL[connection.dialect.name]:
            connection.exec_driver_sql(statement.format(table_name))


def make_room(cluster, table_name):
    with topics_view(cluster).store.engine.begin() as connection:
        on = f" ON {table_name}" if connection.dialect.name == "postgresql" else ""
        connection.exec_driver_sql(f"DROP TRIGGER store_full{on}")


def test_a_record_that_is_refused_again_and_again_leaves_nothing(three_brokers, cluster_address):
    cluster = three_brokers
    create_topic(cluster, "t", 1, 2, TWO)
    take_away(cluster, topics_view(cluster).store.read(_follower))
    with Producer(cluster=cluster_address, retries=4, linger_ms=0, retry_backoff_ms=10) as producer:
        future = producer.send("t", b"x" * 100_000)
        with pytest.raises(kafka.errors.KafkaError):
            future.get(timeout=60)
        assert producer.metrics()["producer-metrics"]["record-retry-total"] == 4
        assert_only_named_files(cluster)


def _follower(connection):
    query = sa.select(t.replica.c.broker_id).order_by(t.replica.c.preference.desc()).limit(1)
    return connection.execute(query).scalar_one()


def test_a_partly_refused_append_deletes_only_the_refused_file(three_brokers):
    cluster, log = three_brokers, ClientLog(three_brokers)
    good, bad = create_topic(cluster, "good", 1, 3, FILES), create_topic(cluster, "bad", 1, 3, FILES)
    topics_view(cluster).store.transact(lambda c: c.execute(sa.text("UPDATE topic SET configs = :new WHERE name = 'bad'"), {"new": '{"inline.max.bytes": "0", "min.insync.replicas": "4"}'}))  # fmt: skip # noqa: E501
    outcomes = log.append_prepared([(good, Records(0, table("a"))), (bad, Records(0, table("b")))])
    assert [type(outcome) for outcome in outcomes] == [Appended, Rejected]
    assert_only_named_files(cluster)
    assert [value for _, _, value in read_all(log, good)] == ["a"]
    log.close()


def test_a_batch_that_cannot_be_written_does_not_affect_the_others(cluster, log):
    topics = [create_topic(cluster, name, 1, configs=FILES) for name in ("deleted", "good", "offline")]
    delete_topic(cluster, "deleted")
    offline = sa.text("UPDATE partition SET leader = NULL WHERE topic_id = :topic_id")
    topics_view(cluster).store.transact(lambda c: c.execute(offline, {"topic_id": topics[2].topic_id}))
    outcomes = log.append_each([(topic, Records(0, table("a"))) for topic in topics], timeout_ms=2_000)
    assert isinstance(outcomes[1], Appended)
    assert [type(each.error) for each in (outcomes[0], outcomes[2])] == [
        UnknownTopicOrPartitionError,
        NotLeaderForPartitionError,
    ]
    assert_only_named_files(cluster)
    assert [value for _, _, value in read_all(log, topics[1])] == ["a"]


def test_an_append_that_fails_in_the_store_leaves_one_file_at_most(cluster, log):
    topic = create_topic(cluster, "t", configs=FILES)
    fill_up(cluster, "segment")
    for _ in range(5):
        with pytest.raises(SparkLogError):
            log.append(topic, [Records(0, table("a"))])
        assert_only_named_files(cluster, in_flight=1)
    make_room(cluster, "segment")
    log.append(topic, [Records(0, table("b"))])
    assert_only_named_files(cluster)
    assert [value for _, _, value in read_all(log, topic)] == ["b"]


@pytest.mark.on_sqlite
def test_the_files_of_a_failed_append_are_looked_up_by_indexes(cluster, log):
    """Their writer writes no other file meanwhile, and a cluster may have millions of segments."""
    topic = create_topic(cluster, "t", configs=FILES)
    fill_up(cluster, "segment")
    with pytest.raises(SparkLogError):
        log.append(topic, [Records(0, table("a"))])
    make_room(cluster, "segment")
    with scanned_tables(cluster) as scanned:
        log.append(topic, [Records(0, table("b"))])
    assert_only_named_files(cluster)
    assert scanned & {"segment", "transaction_segment", "retired_file"} == set()


def test_no_further_file_is_written_while_the_store_accepts_nothing(cluster, log):
    """The leftover files cannot be deleted either."""
    topic = create_topic(cluster, "t", configs=FILES)
    log.append(topic, [Records(0, table("a"))])  # its write id is registered
    fill_up(cluster, "segment")
    with pytest.raises(SparkLogError):
        log.append(topic, [Records(0, table("b"))])
    left = unnamed_files(cluster)
    assert len(left) == 1
    _refuse_to_delete_write_ids(cluster)
    for _ in range(3):
        with pytest.raises(SparkLogError):
            log.append(topic, [Records(0, table("b"))])
        assert unnamed_files(cluster) == left
    with topics_view(cluster).store.engine.begin() as connection:
        connection.exec_driver_sql(
            f"DROP TRIGGER full2{' ON write_id' if connection.dialect.name == 'postgresql' else ''}"
        )


def _refuse_to_delete_write_ids(cluster):
    with topics_view(cluster).store.engine.begin() as connection:
        if connection.dialect.name == "postgresql":
            statement = "CREATE TRIGGER full2 BEFORE DELETE ON write_id EXECUTE FUNCTION store_full()"
        else:
            statement = "CREATE TRIGGER full2 BEFORE DELETE ON write_id BEGIN SELECT RAISE(ABORT, 'disk is full'); END"
        connection.exec_driver_sql(statement)


@pytest.mark.delta
def test_a_commit_whose_response_was_lost_keeps_its_file(cluster, log, monkeypatch):
    """The append commits, and a later step fails: the metadata name the file, so it stays."""
    topic = create_topic(cluster, "t", configs=FILES)

    def lost(*_):
        raise StorageUnavailableError("the answer was lost")

    with monkeypatch.context() as patched:
        patched.setattr("spark_log.log.log.Log._follow_up", lost)
        with pytest.raises(StorageUnavailableError):
            log.append(topic, [Records(0, table("a"))])
    log.append(topic, [Records(0, table("b"))])
    assert [value for _, _, value in read_all(log, topic)] == ["a", "b"]
    assert_only_named_files(cluster)


def test_a_batch_that_was_appended_before_leaves_no_second_file(cluster, log):
    topic = create_topic(cluster, "t", configs=FILES)
    producer_id = register_producer(cluster.store, 1_000)
    for _ in range(2):
        [outcome] = log.append(topic, [Records(0, table("a"), ProducerSequence(producer_id, 0, 0))])
    assert outcome.duplicate
    assert_only_named_files(cluster)


def test_a_failed_file_of_one_partition_deletes_the_files_of_the_others(cluster, log, tmp_path):
    topic = create_topic(cluster, "t", 2, configs=FILES)
    log.append(topic, [Records(0, table("a"))])
    log_dir = next(path for path in tmp_path.rglob(topic.folder))
    (log_dir / "_segments" / "1").write_text("no folder")
    with pytest.raises(StorageUnavailableError):
        log.append(topic, [Records(0, table("b")), Records(1, table("c"))])
    (log_dir / "_segments" / "1").unlink()
    assert_only_named_files(cluster)


def test_batches_that_cannot_be_registered_in_a_transaction_leave_one_file_at_most(cluster, produce):
    create_topic(cluster, "t", configs=FILES)
    producer = produce(transactional_id="t1", retries=4, linger_ms=0, retry_backoff_ms=10)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("t", b"first").get(timeout=60)
    fill_up(cluster, "transaction_segment")
    future = producer.send("t", b"second")
    with pytest.raises(kafka.errors.KafkaError):
        future.get(timeout=60)
    assert_only_named_files(cluster, in_flight=1)
    make_room(cluster, "transaction_segment")
    producer.abort_transaction()
    producer.begin_transaction()
    producer.send("t", b"third")
    producer.commit_transaction()
    assert_only_named_files(cluster)


@pytest.mark.parametrize("method", ["Cluster.log_dir", "LogDir.delete"])
def test_a_log_dir_that_fails_is_left_and_one_that_hangs_delays_by_a_fixed_time(three_brokers, monkeypatch, method):
    cluster, log = three_brokers, ClientLog(three_brokers)
    topic = create_topic(cluster, "t", 1, 3, FILES)
    batches = log.at(topic.store_id).write_batches([(topic, Records(0, table(str(n)))) for n in range(5)]).batches
    cluster = topics_view(cluster)
    by_uri = {info.uri: info.broker_id for info in cluster.log_dirs().values()}
    asked, release = [], threading.Event()
    owner = {"Cluster.log_dir": Cluster, "LogDir.delete": LogDir}[method]
    name = method.partition(".")[2]
    call = getattr(owner, name)

    def one_fails_one_hangs(self, argument):
        broker_id = by_uri[self.uri] if owner is LogDir else argument.broker_id
        asked.append(broker_id)
        if broker_id == 2:
            raise StorageUnavailableError("no answer")
        if broker_id == 3:
            assert release.wait(LIMIT_S)
        return call(self, argument)

    monkeypatch.setattr(owner, name, one_fails_one_hangs)
    monkeypatch.setattr(failed_append_files, "_WAIT_S_MAX", 0.5)
    failed_append_files.delete_files(cluster, {topic.topic_id: topic}, batches)
    assert asked.count(2) == failed_append_files._FAILURES_MAX and asked.count(3) == 1
    release.set()
    wait_until(lambda: asked.count(3) == asked.count(1) == 5)
    assert asked.count(2) == failed_append_files._FAILURES_MAX
    log.close()
