"""Spark reads and writes topics of several metadata stores in one query."""

import json

import pytest
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.stores import add_store
from spark_log.maintenance.client_log import ClientLog
from spark_log.replication.controller.topic_operations import create_topic
from spark_log.spark.datasource.read.read_topic import read_topic
from tests.support.topics import fill, read, read_stream, stored

TOPICS = {"near": None, "far": "east", "near-out": None, "far-out": "east"}


@pytest.fixture
def stores(postgres_server, tmp_path):
    with Cluster.init(postgres_server.create_database(), log_dir=str(tmp_path / "log-dir")) as cluster:
        add_store(cluster, "east", postgres_server.create_database())
        for name, store in TOPICS.items():
            create_topic(cluster, name, 2, store=store)
        log = ClientLog(cluster)
        for name in ("near", "far"):
            fill(log, name, [5, 3])
        log.close()
        yield cluster


def test_batch_reads_topics_of_both_stores(spark, stores):
    expected = sorted(f"{n}/{k}" for n, count in enumerate((5, 3)) for k in range(count))
    frame = read(spark, stores, subscribePattern="near|far", minPartitions=6)
    assert frame.rdd.getNumPartitions() >= 6
    rows = frame.select("topic", F.col("value").cast("string")).collect()
    for topic in ("near", "far"):
        assert sorted(row.value for row in rows if row.topic == topic) == expected
    starts = json.dumps({"near": {"0": 4, "1": 3}, "far": {"0": 5, "1": 2}})
    some = read(spark, stores, subscribe="near,far", startingOffsets=starts).select("topic", "partition", "offset")
    assert sorted(tuple(row) for row in some.collect()) == [("far", 1, 2), ("near", 0, 4)]
    assert sorted(bytes(row.value).decode() for row in read_topic(spark, stores, "far").collect()) == expected


def copy(spark, stores, checkpoint):
    frame = read_stream(spark, stores, subscribe="near,far", startingOffsets="earliest", maxOffsetsPerTrigger=7)
    frame = frame.select("value", "partition", F.concat("topic", F.lit("-out")).alias("topic"))
    options = {"cluster": stores.store.address.with_password, "checkpointLocation": str(checkpoint)}
    frame.writeStream.format("spark_log").options(**options).trigger(availableNow=True).start().awaitTermination()


def test_a_stream_copies_topics_of_both_stores_once(spark, stores, tmp_path):
    checkpoint = tmp_path / "checkpoint"
    copy(spark, stores, checkpoint)
    log = ClientLog(stores)
    fill(log, "far", [1], first=5)
    log.close()
    copy(spark, stores, checkpoint)
    last = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    (last.parent / f".{last.name}.crc").unlink()
    copy(spark, stores, checkpoint)  # replays the last batch
    for name in ("near", "far"):
        assert stored(stores, f"{name}-out") == stored(stores, name)
