"""The console of a cluster of several stores."""

import pytest

from spark_log.cluster import each_store
from spark_log.cluster.cluster import Cluster
from spark_log.console.search.filter import compile_filter
from spark_log.console.search.position import Position
from spark_log.console.search.search import Budget, Conditions, Search
from spark_log.ids import TopicPartition
from spark_log.maintenance.client_log import ClientLog
from spark_log.metadata import tables as t
from spark_log.replication.controller.topic_operations import create_topic
from tests.support.console import running_console
from tests.support.disk_faults import replicas_of
from tests.support.topics import append


@pytest.fixture
def lost(stores, monkeypatch):
    """The cluster with topic near, and topic far in a data store that does not answer any more."""
    create_topic(stores, "near", store="home")
    create_topic(stores, "far", 2, store="east")
    monkeypatch.setenv("SPARK_LOG_STORE_EAST", "postgresql+psycopg://nobody@127.0.0.1:1/none")
    monkeypatch.setattr(each_store, "ASK_TIMEOUT_MS", 100)  # it refuses connections at once
    with Cluster.open(stores.store.address.with_password) as cluster:
        yield cluster


def test_topics_of_a_lost_store_are_unavailable(lost):
    with running_console(lost) as console:
        rows = {row["topic"]: row for row in console.facts("/topics")["listing"]["rows"]}
        shown = {name: (row["store"], row["available"], row["records"], row["offline"]) for name, row in rows.items()}
        assert shown == {"far": ("east", False, None, None), "near": ("home", True, 0, 0)}
        assert '<td>east <span class="bad">unavailable</span></td>' in console.page("/topics?sort=-records")
        problem = "Data store east does not answer, with 1 topic."
        assert problem in console.facts("/")["problems"]
        assert problem in console.page("/")


def test_a_search_skips_files_of_a_data_store(stores):
    configs = {"value.format": "json", "value.schema": "n BIGINT", "inline.max.bytes": "0"}
    topic = create_topic(stores, "far", configs=configs, store="east")
    log = ClientLog(stores)
    for first in (0, 10):
        append(log, topic, *(f'{{"n": {n}}}' for n in range(first, first + 10)))
    (first,), _ = replicas_of(stores, log, topic)
    first.write(None)
    limits = {0: log.positions(topic)[TopicPartition("far", 0)]}
    position = Position.begin(topic.topic_id, False, {0: 0}, limits)
    conditions = Conditions(filter=compile_filter("record.n >= 15", topic.columns.fields))
    search = Search(log, topic, position, conditions, 100, Budget(1 << 30, 60))
    assert [row["n"] for batch in search.batches() for row in batch.column("record").to_pylist()] == [*range(15, 20)]
    assert search.records == 10, "the other file, which is ruled out by its statistics, is not opened"
    log.close()


def test_retired_files_of_all_stores_are_counted(stores):
    for store_id in stores.store_ids():
        row = {"path": f"old-{store_id}", "topic_id": 1, "change": 0, "retired_ms": 0}
        stores.at(store_id).store.transact(lambda c, row=row: c.execute(t.retired_file.insert().values(row)))
    with running_console(stores) as console:
        assert console.facts("/maintenance")["waiting"]["retired_files"] == 2
