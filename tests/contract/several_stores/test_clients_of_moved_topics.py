"""Clients of topics that are moved, and of stores that are removed."""

import threading
import uuid

import pytest
import sqlalchemy as sa
from kafka.errors import OffsetOutOfRangeError
from kafka.structs import OffsetAndMetadata, TopicPartition

from spark_log import Consumer, Producer
from spark_log.cluster import cluster as cluster_module
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.store_directory import find_stores
from spark_log.cluster.store_probe import StoreProbe
from spark_log.cluster.stores import remove_store
from spark_log.cluster.topics import find_topic
from spark_log.errors import (
    TopicMovedError,
)  # fmt: skip
from spark_log.gateway.records.fetch_positions import Asked, find_answers
from spark_log.gateway.records.topic_cache import TopicCache
from spark_log.gateway.topic_stores import TopicStores
from spark_log.log.log import Records
from spark_log.log.reader import LogReader
from spark_log.maintenance.client_log import ClientLog
from spark_log.process import Stop
from spark_log.replication.controller import topic_moves
from spark_log.replication.controller.topic_copies import follow, follow_all
from spark_log.replication.controller.topic_moves import (
    move_topic,
)
from spark_log.replication.controller.topic_operations import create_topic, delete_topic
from spark_log.spark.datasource.options.source_options import ReadOptions
from spark_log.spark.datasource.read.read_planner import ReadPlanner
from tests.support.records import table
from tests.support.topics import append_to, stored
from tests.support.waiting import LIMIT_S, wait_until

EAST = 1


STORES = ("home", "east")


MIXED = {"inline.max.bytes": "100", "inline.tail.bytes": "400", "retired.file.retention.ms": "0", "retention.ms": "-1"}
"""Configs with which a topic has both files and blobs."""


LONG = "x" * 200


def create(stores, store="home", partitions=2):
    return create_topic(stores, "t", partitions, configs=MIXED, store=store)


def store_of(stores):
    return STORES[stores.store.read(lambda connection: find_topic(connection, "t")).store_id]


P0 = TopicPartition("t", 0)


def move_but_leave_the_rows(stores, target, monkeypatch, *, live=True):
    """Move the topic as if the mover stood before it removes the rows, or before the topic is live."""
    ours = STORES.index(target) if live else None
    monkeypatch.setattr(topic_moves, "follow", lambda home, *args: follow(home, *args) if args[0] == ours else None)
    move_topic(stores, "t", target)


def texts_of(consumer, number):
    """The next values that the consumer gets."""
    read = []
    wait_until(
        lambda: read.extend(r.value.decode() for rs in consumer.poll(50).values() for r in rs) or len(read) >= number,
        f"{number} records",
    )
    return read


@pytest.mark.parametrize("reset", ["earliest", "latest", "none"])
def test_a_consumer_with_the_former_store_goes_on_at_the_committed_offset(stores, address, way, monkeypatch, reset):
    """It read the partition before the move, and gets it back before the former store's rows are removed."""
    source, target = way
    create(stores, source, partitions=1)
    append_to(stores, "t", "a", "b")
    with Consumer(cluster=address, group_id="g", auto_offset_reset=reset, enable_auto_commit=False) as consumer:
        consumer.commit({P0: OffsetAndMetadata(1, "", -1)})
        consumer.assign([P0])
        assert texts_of(consumer, 1) == ["b"]
        consumer.assign([])
        move_but_leave_the_rows(stores, target, monkeypatch)
        append_to(stores, "t", "c", "d")
        consumer.commit({P0: OffsetAndMetadata(3, "", -1)})
        consumer.assign([P0])
        assert consumer.position(P0) == 3
        assert texts_of(consumer, 1) == ["d"]


def test_a_consumer_reads_new_records_before_the_former_store_has_removed_the_rows(stores, address, way, monkeypatch):
    source, target = way
    create(stores, source, partitions=1)
    append_to(stores, "t", "a")
    with Consumer("t", cluster=address, auto_offset_reset="earliest") as consumer:
        assert texts_of(consumer, 1) == ["a"]
        move_but_leave_the_rows(stores, target, monkeypatch)
        append_to(stores, "t", "b")
        assert texts_of(consumer, 1) == ["b"]


def test_a_gateway_that_knows_the_former_store_finds_an_offset_of_the_new_one(stores, way, monkeypatch):
    """Another gateway has given the client the offset."""
    source, target = way
    create(stores, source, partitions=1)
    append_to(stores, "t", "a")
    topics = TopicCache(stores)
    gateway_stores = TopicStores(stores, topics)
    asked = Asked("t", uuid.UUID(int=0), 0, 2, 1_000)
    out_of_range = OffsetOutOfRangeError.errno
    assert [answer.error for answer in find_answers(topics, gateway_stores, [asked])] == [out_of_range]
    move_but_leave_the_rows(stores, target, monkeypatch)
    append_to(stores, "t", "b", "c")
    [answer] = find_answers(topics, gateway_stores, [asked])
    assert (answer.error, answer.high_watermark) == (0, 3)
    gateway_stores.close()


def test_new_readers_read_a_topic_that_is_not_live_yet_and_their_other_topics(stores, address, monkeypatch):
    create(stores, "home", partitions=1)
    append_to(stores, "t", "a")
    move_but_leave_the_rows(stores, "east", monkeypatch, live=False)
    assert stored(stores, "t") == {0: ["a"]}
    create_topic(stores, "u")
    with Producer(cluster=address) as producer:
        producer.send("u", b"b")
    with Consumer("t", "u", cluster=address, auto_offset_reset="earliest") as consumer:
        assert sorted(texts_of(consumer, 2)) == ["a", "b"]


@pytest.mark.parametrize("way", [("east", "home")])
def test_a_read_is_planned_while_the_topic_moves(stores, address, way, monkeypatch):
    """Between the look at home and the look at the store that home has named."""
    create(stores, "east", partitions=1)
    append_to(stores, "t", "a", LONG)
    planner = ReadPlanner(ReadOptions.parse({"cluster": address, "subscribe": "t"}, streaming=True, environ={}))
    at, moved = planner.cluster.at, []

    def move_first(store_id, **options):
        if store_id == EAST and len(moved) < moves:
            moved.append(store_id)
            move_topic(stores, "t", "home" if store_of(stores) == "east" else "east")
        return at(store_id, **options)

    monkeypatch.setattr(planner.cluster, "at", move_first)
    moves = 1
    available = planner.available()
    assert available.ends == {("t", 0): 2} and moved
    move_topic(stores, "t", "east")
    moves = 2
    tasks = planner.tasks(available, available.ranges)
    assert len(moved) == 2 and sum(piece.end - piece.start for task in tasks for piece in task.slices) == 2
    move_topic(stores, "t", "east")
    moves = 3
    plan = LogReader(planner.cluster).plan(available.ranges)
    assert len(moved) == 3 and sum(piece.end - piece.start for piece in plan.slices) == 2
    planner.close()


def test_each_process_closes_a_store_that_was_removed(stores, address, postgres_server, monkeypatch):
    """So its database can be dropped, and the threads of its users end."""
    monkeypatch.setattr(cluster_module, "_FOLLOW_S", 0.05)
    [info] = stores.store.read(find_stores)
    database = sa.make_url(info.address).database
    stores.close()
    with Cluster.open(address) as cluster:
        topic = create_topic(cluster, "t", store="east")
        log, gateway_stores = ClientLog(cluster, in_thread=True), TopicStores(cluster, TopicCache(cluster))
        log.append(topic, [Records(0, table("a"))])
        gateway_stores.call(EAST, lambda data: data.store.changes.announce())
        cluster.store.changes.current()
        delete_topic(cluster, "t")
        follow_all(cluster)
        remove_store(cluster, "east")
        sessions = f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{database}'"
        wait_until(lambda: int(postgres_server.query(sessions)) == 0)
        postgres_server.execute(f"DROP DATABASE {database}")
        wait_until(lambda: threads("gateway store") == [] and threads("spark-log-listen") == ["spark-log-listen"])
        with pytest.raises(TopicMovedError):
            log.at(EAST)
        probe = StoreProbe(cluster, EAST, Stop())
        probe.suspect(OSError("no answer"))
        wait_until(lambda: threads("spark-log probe of store") == [])
        assert not probe.is_lost, "it is not waited for"
        log.close()
        gateway_stores.close()


def test_a_consumer_follows_a_topic_whose_store_was_removed_between_its_polls(stores, address, monkeypatch):
    monkeypatch.setattr(cluster_module, "_FOLLOW_S", 0.05)
    create(stores, "east")
    append_to(stores, "t", "a")
    with Consumer("t", cluster=address, auto_offset_reset="earliest") as consumer:
        seen, cluster = [], consumer._polling.fetching._stores._cluster

        def has_read(text):
            seen.extend(each.value for some in consumer.poll(timeout_ms=100).values() for each in some)
            return text in seen

        wait_until(lambda: has_read(b"a"))
        move_topic(stores, "t", "home")
        append_to(stores, "t", "b")
        remove_store(stores, "east")
        wait_until(lambda: EAST not in cluster._at)
        wait_until(lambda: has_read(b"b"))
        assert seen == [b"a", b"b"]


def test_a_producer_follows_a_topic_whose_store_was_removed_between_its_sends(stores, address, monkeypatch):
    monkeypatch.setattr(cluster_module, "_FOLLOW_S", 0.05)
    create(stores, "east")
    with Producer(cluster=address, retry_backoff_ms=10) as producer:
        producer.send("t", b"a", partition=0).get(LIMIT_S)
        cluster = producer._cluster
        move_topic(stores, "t", "home")
        remove_store(stores, "east")
        wait_until(lambda: EAST not in cluster._at)
        producer.send("t", b"b", partition=0).get(LIMIT_S)
    assert stored(stores, "t")[0] == ["a", "b"]


def threads(name):
    """The names of the threads whose names begin so."""
    return [each.name for each in threading.enumerate() if each.name.startswith(name)]
