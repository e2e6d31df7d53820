"""A data store, or the home store, does not answer: the topics of the others are appended to and read as before."""

import contextlib
import json
import os
import threading
import time

import pytest
import sqlalchemy as sa

from spark_log import Consumer, Producer
from spark_log.cluster import brokers
from spark_log.cluster.brokers import add_broker, embed_broker, list_brokers, remove_broker
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.files import disk_calls
from spark_log.cluster.settings import alter_settings
from spark_log.cluster.store_probe import StoreProbe
from spark_log.cluster.stores import add_store
from spark_log.errors import (
    BrokerIdNotRegisteredError,
    InvalidConfigurationError,
    LogDirMismatchError,
    MetadataStoreUnavailableError,
    UnsupportedStoreError,
)
from spark_log.ids import TopicPartition
from spark_log.log.append.rules import Appended
from spark_log.log.log import Records
from spark_log.maintenance.client_log import ClientLog
from spark_log.maintenance.task_list import run_tasks
from spark_log.metadata import tables as t
from spark_log.process import Stop
from spark_log.replication.controller.topic_copies import follow_all
from spark_log.replication.controller.topic_operations import create_topic
from spark_log.spark.streams.query_listener import lag_by_partition
from tests.support.postgres_proxy import PostgresProxy
from tests.support.records import read_all, table
from tests.support.waiting import LIMIT_S

FAR_S_MAX = 60.0


@pytest.fixture
def proxy(postgres_server):
    """The way to the data store."""
    with PostgresProxy(postgres_server.port) as proxy:
        yield proxy
        proxy.answers.set()


@pytest.fixture
def far(postgres_server, proxy, tmp_path):
    """A cluster whose data store is behind the proxy, with a topic in each store."""
    with Cluster.init(postgres_server.create_prepared_database(), log_dir=str(tmp_path / "log-dir")) as cluster:
        add_store(cluster, "far", proxy.address(postgres_server.create_prepared_database()))
        create_topic(cluster, "here")
        create_topic(cluster, "there", store="far")
        yield cluster


@contextlib.contextmanager
def down(far, proxy):
    """The data store refuses connections."""
    proxy.refuse(10_000, "57P03")
    far.at(1).store.engine.dispose()
    far.at(1).store.timeout_ms_max = 500
    yield
    proxy.refuse(0, "")


def test_a_store_that_hangs_delays_only_its_topics(far, proxy):
    alter_settings(far, {"store.answer.timeout.ms": "2000"})
    address = far.store.address.with_password
    got, sent = [], {}
    with (
        Producer(cluster=address, request_timeout_ms=2_000) as producer,
        Consumer("here", "there", cluster=address, auto_offset_reset="earliest") as consumer,
    ):
        for topic in ("here", "there"):
            producer.send(topic, b"first").get(LIMIT_S)
        while len(got) < 2:
            got += [record.value for records in consumer.poll(500).values() for record in records]
        proxy.answers.clear()
        try:
            sent["there"] = producer.send("there", b"late")
            for n in range(20):
                producer.send("here", b"%d" % n).get(FAR_S_MAX)
            assert not sent["there"].is_done
            deadline = time.monotonic() + FAR_S_MAX
            while len(got) < 22 and time.monotonic() < deadline:
                got += [record.value for records in consumer.poll(500).values() for record in records]
            assert got[2:] == [b"%d" % n for n in range(20)]
        finally:
            proxy.answers.set()
        assert sent["there"].get(FAR_S_MAX).offset == 1
        while len(got) < 23:
            got += [record.value for records in consumer.poll(500).values() for record in records]
        assert got[22] == b"late"


def test_the_answer_limit_of_home_is_that_of_its_data_stores(far):
    with Cluster.open(far.store.address.with_password) as opened:
        for seconds in (2, 3):
            alter_settings(far, {"store.answer.timeout.ms": str(seconds * 1000)})
            opened.store.forget_settings()
            assert opened.store.settings.store_answer_timeout_ms == seconds * 1000
            assert opened.at(1).store._answer_limit.seconds == seconds


def test_the_lag_of_a_query_needs_only_the_stores_of_its_topics(far, proxy):
    ends = {name: [json.dumps({name: {"0": 0}, "@topics": {}})] for name in ("here", "there")}
    with down(far, proxy):
        assert lag_by_partition(far, ends["here"]) == {TopicPartition("here", 0): 0}
        for _ in range(2):
            with pytest.raises(MetadataStoreUnavailableError):
                lag_by_partition(far, ends["there"])
        assert far.failures.keys() == {1}  # so the second call has not asked
        assert lag_by_partition(far, ends["here"]) == {TopicPartition("here", 0): 0}


def test_a_store_is_lost_until_it_answers(far, proxy):
    closed = Stop()
    probe = StoreProbe(far, far.at(1).store_id, closed)
    far.at(1).store.read(lambda connection: connection.execute(sa.select(sa.literal(1))))  # leaves a pooled connection
    proxy.answers.clear()
    try:
        probe.suspect(MetadataStoreUnavailableError("no answer"))
        [asking] = [thread for thread in threading.enumerate() if thread.name == "spark-log probe of store 1"]
        asking.join(timeout=1)
        assert asking.is_alive()
        assert probe.is_lost
    finally:
        proxy.answers.set()
    asking.join(timeout=FAR_S_MAX)
    assert not probe.is_lost
    closed.set()


def test_topics_of_a_data_store_are_used_while_home_is_down(own_postgres_server, postgres_server, tmp_path):
    home = own_postgres_server
    with Cluster.init(home.create_database(), log_dir=str(tmp_path / "log-dir")) as cluster:
        add_store(cluster, "far", postgres_server.create_prepared_database())
        topic = create_topic(cluster, "there", store="far")
        log = ClientLog(cluster)
        address, got = cluster.store.address.with_password, []
        with (
            Producer(cluster=address) as producer,
            Consumer(cluster=address, auto_offset_reset="earliest", enable_auto_commit=False) as consumer,
        ):
            consumer.assign([TopicPartition("there", 0)])
            producer.send("there", b"a").get(LIMIT_S)
            while len(got) < 1:
                got += [record.value for records in consumer.poll(500).values() for record in records]
            home.kill()
            [outcome] = log.append(topic, [Records(0, table("b"))])
            assert isinstance(outcome, Appended)
            producer.send("there", b"c").get(LIMIT_S)
            assert [value for _, _, value in read_all(log.at(topic.store_id), topic)] == ["a", "b", "c"]
            while len(got) < 3:
                got += [record.value for records in consumer.poll(500).values() for record in records]
            assert got == [b"a", b"b", b"c"]
            home.start()
        log.close()


def test_a_topic_is_not_created_in_a_store_that_does_not_answer(far, proxy):
    with down(far, proxy):
        with pytest.raises(MetadataStoreUnavailableError):
            create_topic(far, "new", store="far")
        assert create_topic(far, "new").store_id == 0, "its name is free again"


def test_files_and_brokers_that_only_the_lost_store_knows_are_kept(far, proxy, tmp_path):
    """Log dirs with its replicas, and folders of its topics, although home knows neither."""
    add_broker(far, 2, [str(tmp_path / "disk")])
    log = ClientLog(far)
    topic = log.find_topic("there")
    log.append(topic, [Records(0, table("a"))])
    log.seal(topic, [0])
    log.close()
    folder = tmp_path / "log-dir" / topic.folder
    for path in (folder, *folder.rglob("*")):
        os.utime(path, (0, 0))
    forget = t.topic.delete().where(t.topic.c.name == "there")
    with down(far, proxy):
        with pytest.raises(MetadataStoreUnavailableError):
            remove_broker(far, 2)
        assert {broker.broker_id for broker in list_brokers(far)} == {1, 2}
        far.store.transact(lambda connection: connection.execute(forget))
        notes = []
        with contextlib.suppress(MetadataStoreUnavailableError):  # of the data store's own tasks
            for report in run_tasks(far, ["files"]):
                notes += report.notes
        assert any(note.startswith("folders of unknown topics stay") for note in notes), notes
    assert len(list(folder.rglob("_segments/*/*.parquet"))) == 1


def test_a_broker_that_cannot_be_added_is_removed_again_while_a_data_store_is_away(far, proxy, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("x")
    with down(far, proxy), pytest.raises(LogDirMismatchError, match="full"):
        add_broker(far, 2, [str(tmp_path / "full")])
    assert {broker.broker_id for broker in list_brokers(far)} == {1}


def test_a_data_store_follows_although_a_log_dir_hangs(stores, tmp_path, monkeypatch):
    answers, stat = threading.Event(), os.stat
    with monkeypatch.context() as away:
        away.setattr(brokers, "copy_to_stores", lambda _: None)
        add_broker(stores, 2, [str(tmp_path / "disk")])

    def hanging(path, *arguments, **options):
        if str(path).startswith(str(tmp_path / "disk")):
            assert answers.wait(LIMIT_S), "the caller waited for it"
        return stat(path, *arguments, **options)

    monkeypatch.setattr(disk_calls, "CALL_S_MAX", 0.3)
    monkeypatch.setattr(os, "stat", hanging)
    try:
        follow_all(stores)
    finally:
        answers.set()
    online = {broker.broker_id: broker.log_dirs[0].online for broker in list_brokers(stores.at(1))}
    assert online == {1: True, 2: False}


def test_a_broker_can_be_removed_before_a_data_store_has_the_others(stores, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("x")
    with pytest.raises(LogDirMismatchError, match="full"):
        add_broker(stores, 2, [str(tmp_path / "full")])
    assert {broker.broker_id for broker in list_brokers(stores)} == {1}
    add_broker(stores, 2, [str(tmp_path / "disk")])
    for rows in (t.log_dir, t.broker):
        forget = rows.delete().where(rows.c.broker_id == 2)
        stores.at(1).store.transact(lambda connection, forget=forget: connection.execute(forget))
    embed_broker(stores, 2)
    remove_broker(stores, 1)
    assert {broker.broker_id for broker in list_brokers(stores.at(1))} == {2}
    with pytest.raises(BrokerIdNotRegisteredError):
        remove_broker(stores, 1)


def test_a_database_is_only_the_store_that_it_is(stores, postgres_server, tmp_path):
    data = stores.at(1).store.address.with_password
    with pytest.raises(InvalidConfigurationError, match=r"is data store 1 of cluster .*: give the address of its home"):
        Cluster.open(data)
    with Cluster.init(str(tmp_path / "small")) as small, pytest.raises(UnsupportedStoreError, match="has one store"):
        add_store(small, "more", postgres_server.create_prepared_database())
