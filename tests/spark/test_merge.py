"""Merging as Spark tasks, and streams that lag behind merges: each record once."""

import json
import shutil
from pathlib import Path

import pytest

from spark_log.replication.controller.topic_operations import delete_topic
from spark_log.spark.jobs.maintenance import MaintenanceArguments, do_tasks
from spark_log.tables.publication import delta_tables
from tests.spark.queries import in_parquet
from tests.support.table_checks import assert_delta_is_the_log, assert_replicas_are_whole
from tests.support.topics import append, dense_rows, make

FILES = {"inline_max_bytes": "0", "retention_ms": "-1"}


def append_files(log, topic, *numbers, partition=0):
    """A file of three records for each number."""
    for number in numbers:
        append(log, topic, *(f"{partition}/{number}-{index}" for index in range(3)), partition=partition, key=b"k")


def test_merges_as_spark_tasks(spark, cluster, log, capsys):
    topic, other = make(cluster, "t", 3, **FILES), make(cluster, "other", **FILES)
    broken = make(cluster, "broken", **FILES)
    for number in range(3):
        append_files(log, topic, *range(5), partition=number)
    append_files(log, other, *range(4))
    append_files(log, broken, *range(4))
    (location,) = delta_tables(cluster, broken).values()
    shutil.rmtree(Path(location, "_segments", "0"))
    before = dense_rows(log, "t")

    arguments = MaintenanceArguments(str(cluster.store.address), None, ["merge"], json=True)
    (failure,) = do_tasks(spark, cluster, arguments)
    assert failure.startswith("merge: segment ") and failure.endswith("is missing")
    *told, summary = map(json.loads, capsys.readouterr().out.splitlines())
    reports = {event["topic"]: event for event in told if event["event"] == "report"}
    assert (reports["t"]["partitions"], reports["t"]["before"]["files"], reports["t"]["after"]["files"]) == (3, 15, 3)
    assert reports["other"]["after"]["files"] == 1
    assert reports["broken"]["partitions"] == 0 and "is missing" in reports["broken"]["notes"][0]
    assert summary["failures"] == [failure]

    assert dense_rows(log, "t") == before
    assert do_tasks(spark, cluster, MaintenanceArguments("", ["t", "other"], ["merge"], json=True)) == []
    delete_topic(cluster, "broken")
    assert_replicas_are_whole(cluster)
    assert_delta_is_the_log(cluster)


@pytest.mark.slow
@pytest.mark.delta_jars
def test_streams_that_lag_see_each_record_once(spark, cluster, log, tmp_path):
    """A Delta stream and one of format("spark_log"), with few files or offsets per batch, and merges in between."""
    topic = make(cluster, "t", **FILES)
    append_files(log, topic, *range(4))
    (location,) = delta_tables(cluster, topic).values()

    def go_on(name, source):
        rows = in_parquet(source.selectExpr("CAST(value AS STRING) AS value"), tmp_path / name)
        return sorted(row.value for row in rows.collect())

    def both():
        delta = spark.readStream.format("delta").option("maxFilesPerTrigger", 7).load(location)
        ours = spark.readStream.format("spark_log").option("cluster", str(cluster.store.address))
        ours = ours.option("subscribe", "t").option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 20)
        return go_on("delta", delta), go_on("ours", ours.load())

    def values():
        return sorted(row["value"].decode() for row in dense_rows(log, "t"))

    merge = MaintenanceArguments("", None, ["merge"], json=True)
    assert both() == (values(), values())
    append_files(log, topic, *range(4, 9))
    do_tasks(spark, cluster, merge)
    append_files(log, topic, *range(9, 15))
    do_tasks(spark, cluster, merge)
    append_files(log, topic, 15)
    assert both() == (values(), values())
    assert spark.read.format("delta").load(location).count() == 16 * 3
