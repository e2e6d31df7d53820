"""Erasing with Spark's tasks, beside streams that read the topic."""

import pyarrow as pa
import pytest

from spark_log.log.records.key_set import KeySet
from spark_log.maintenance.erase.erase import erase
from spark_log.maintenance.erase.spark_workers import SparkWorkers, on_spark
from spark_log.replication.controller.topic_operations import create_topic
from spark_log.spark.datasource.read.read_topic import read_topic
from spark_log.tables.publication import delta_tables
from tests.spark.queries import running
from tests.support.records import append_keyed, rows_of
from tests.support.resources import files_with
from tests.support.table_checks import assert_delta_is_the_log
from tests.support.topics import read_stream

GONE, STAYS = b"key-of-somebody-7f3a", b"key-that-stays"


@pytest.mark.slow
@pytest.mark.delta_jars
def test_segments_of_many_partitions_are_erased_in_tasks_and_streams_continue(spark, cluster, log, tmp_path):
    topic = create_topic(cluster, "t", 3, configs={"compression.type": "none", "inline.max.bytes": "0"})

    def fill(values):
        for value in values:
            append_keyed(log, topic, (STAYS, value), (GONE, b"private"), partition=value[0] % 3)

    values = [b"%d" % n for n in range(9)]
    fill(values[:3])
    [location] = delta_tables(cluster, topic).values()
    ours = read_stream(spark, cluster, subscribe="t", startingOffsets="earliest").select("key", "value")
    delta = spark.readStream.format("delta").option("maxFilesPerTrigger", 3).load(location).select("key", "value")

    def start(frame, name):
        writer = frame.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / f"{name}-checkpoint"))
        return writer.option("path", str(tmp_path / name))

    start(delta, "delta").trigger(availableNow=True).start().awaitTermination()
    fill(values[3:6])  # the Delta stream reads them after their files have been replaced
    before = rows_of(log, topic)
    with running(start(ours, "ours").start()) as query:
        query.processAllAvailable()
        erased = erase(cluster, "t", [GONE, *(b"other %d" % n for n in range(1000))], workers=on_spark(spark))
        assert (erased.keys, erased.records, erased.partitions, erased.before.files) == (1001, 6, 3, 6)
        left = [row for row in before if row[2] != GONE]
        assert rows_of(log, topic) == left
        native = read_topic(spark, cluster, "t").select("partition", "offset", "key", "value").collect()
        assert sorted((p, o, bytes(k), bytes(v)) for p, o, k, v in native) == left
        fill(values[6:])
        query.processAllAvailable()
    start(delta, "delta").trigger(availableNow=True).start().awaitTermination()
    for sink in ("ours", "delta"):
        rows = spark.read.parquet(str(tmp_path / sink)).collect()
        assert sorted(bytes(row.value) for row in rows if row.key == STAYS) == values, f"{sink}: each once"
    log.close()

    purged = erase(cluster, "t", [GONE], purge=True, workers=on_spark(spark))
    assert (purged.records, purged.purged.files) == (3, 9)
    assert files_with(tmp_path / "cluster", GONE) == []
    assert_delta_is_the_log(cluster)


def test_the_keys_are_broadcast_without_the_store(spark, cluster):
    workers = SparkWorkers(spark, KeySet(pa.array([b"k"], pa.binary())))
    keys = pa.array([b"k", b"other", None], pa.binary())
    found = workers.run(lambda item, erased: (item, erased.contains(keys).to_pylist()), range(9))
    assert sorted(found) == [(n, [True, False, False]) for n in range(9)]
    assert list(workers.run(lambda item, keys: item, [])) == []
