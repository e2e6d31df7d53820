"""The streaming sink: every row once and in order, after any crash and any repeated batch."""

import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from spark_log.cluster.cluster import Cluster
from spark_log.maintenance.client_log import ClientLog
from tests.spark.queries import configured, left_behind, register_as
from tests.support.python_process import REPOSITORY
from tests.support.spark import uncommit
from tests.support.topics import append, fails, make, read_stream, stored
from tests.support.waiting import ended

ROWS = ("key", "value", "partition", "headers", "timestamp")


@pytest.fixture
def topics(cluster: Cluster, log: ClientLog) -> None:
    """Topic `in` with two partitions, one of large records; in `out`, large records are in files and
    small ones inline.
    """
    make(cluster, "in", 2)
    make(cluster, "out", 2, inline_max_bytes="1500", inline_tail_bytes="1", compression_type="none")
    feed(log, 0)


def feed(log: ClientLog, batch: int) -> None:
    append(log, "in", *(f"{batch}/{n} " + "x" * 500 for n in range(5)), partition=0)
    append(log, "in", *(f"{batch}/{n}" for n in range(5)), partition=1)


def source(spark: SparkSession, cluster: Cluster, **options: Any) -> DataFrame:
    given = {"subscribe": "in", "startingOffsets": "earliest", "includeHeaders": True, **options}
    return read_stream(spark, cluster, **given).select(*ROWS)


def copy(frame: DataFrame, cluster: Cluster, checkpoint: Path, sink: str = "spark_log", mode: str = "append") -> None:
    options = {"cluster": str(cluster.store.address), "topic": "out", "checkpointLocation": str(checkpoint)}
    writer = frame.writeStream.format(sink).options(**options).outputMode(mode).trigger(availableNow=True)
    writer.start().awaitTermination()


# --- repeated batches -----------------------------------------------------------------------------------------------


def test_a_replay_of_the_last_batch_changes_nothing(
    spark: SparkSession, cluster: Cluster, log: ClientLog, topics: None, checkpoint: Path
) -> None:
    for _ in range(2):
        copy(source(spark, cluster), cluster, checkpoint)
        uncommit(checkpoint, 0)
        assert stored(cluster, "out") == stored(cluster, "in")
    feed(log, 1)
    copy(source(spark, cluster, maxOffsetsPerTrigger=6), cluster, checkpoint)
    assert stored(cluster, "out") == stored(cluster, "in")
    assert left_behind(cluster, checkpoint.parent) == (0, 0)


def test_a_rolled_back_checkpoint_is_an_error(
    spark: SparkSession, cluster: Cluster, log: ClientLog, topics: None, checkpoint: Path
) -> None:
    copy(source(spark, cluster), cluster, checkpoint)
    old = checkpoint.with_name("old")
    shutil.copytree(checkpoint, old)
    uncommit(old, 0)
    for batch in (1, 2):
        feed(log, batch)
        copy(source(spark, cluster), cluster, checkpoint)
    before = stored(cluster, "out")
    with fails("batch 0 comes after batch 2 was written", "The checkpoint was"):
        copy(source(spark, cluster), cluster, old)
    assert stored(cluster, "out") == before == stored(cluster, "in")
    assert left_behind(cluster, checkpoint.parent)[0] == 0


def test_a_copied_checkpoint_is_an_error(
    spark: SparkSession, cluster: Cluster, log: ClientLog, topics: None, checkpoint: Path
) -> None:
    copy(source(spark, cluster), cluster, checkpoint)
    twin = checkpoint.with_name("twin")
    shutil.copytree(checkpoint, twin)
    feed(log, 1)
    copy(source(spark, cluster), cluster, checkpoint)
    feed(log, 2)
    before = stored(cluster, "out")
    with fails("batch 1 was written with 10 rows and comes with other rows now (20)"):
        copy(source(spark, cluster), cluster, twin)
    assert stored(cluster, "out") == before


def test_other_rows_of_a_repeated_batch_change_nothing(
    spark: SparkSession, cluster: Cluster, topics: None, checkpoint: Path
) -> None:
    """As in Delta. The source may have been compacted since the first attempt, or the query was changed."""
    other = {
        "value": F.concat("value", F.lit(b"!")),
        "key": F.lit("k"),
        "partition": (1 - F.col("partition")).cast("int"),
        "headers": F.expr("array(named_struct('key', 'a', 'value', CAST('b' AS binary)))"),
    }
    copy(source(spark, cluster), cluster, checkpoint)
    uncommit(checkpoint, 0)
    before = stored(cluster, "out")
    for column, changed in other.items():
        copy(source(spark, cluster).withColumn(column, changed), cluster, checkpoint)
        assert stored(cluster, "out") == before
        uncommit(checkpoint, 0)


def test_other_rows_are_an_error_if_the_sink_cannot_read_the_offset_log(
    spark: SparkSession, cluster: Cluster, topics: None, checkpoint: Path
) -> None:
    """Spark does not tell a sink the checkpoint if it is that of a setting."""

    def run(frame: DataFrame) -> None:
        writer = frame.writeStream.format("spark_log").option("cluster", str(cluster.store.address))
        writer.option("topic", "out").trigger(availableNow=True).queryName("copy").start().awaitTermination()

    with configured(spark, "spark.sql.streaming.checkpointLocation", str(checkpoint)):
        run(source(spark, cluster))
        uncommit(checkpoint / "copy", 0)
        before = stored(cluster, "out")
        with fails("batch 0 was written with 10 rows and comes with other rows now (10)"):
            run(source(spark, cluster).withColumn("key", F.lit("k")))
        run(source(spark, cluster))  # the original rows again
        assert stored(cluster, "out") == before


def test_two_queries_and_two_targets_are_independent(
    spark: SparkSession, cluster: Cluster, topics: None, checkpoint: Path
) -> None:
    copy(source(spark, cluster), cluster, checkpoint)
    copy(source(spark, cluster), cluster, checkpoint.with_name("another"))
    assert {p: len(values) for p, values in stored(cluster, "out").items()} == {0: 10, 1: 10}


def test_the_column_topic_routes_a_stream(
    spark: SparkSession, cluster: Cluster, log: ClientLog, checkpoint: Path
) -> None:
    for name in ("in", "a", "b"):
        make(cluster, name)
    append(log, "in", "a1", "b1", "a2")
    frame = source(spark, cluster).withColumn("topic", F.expr("substr(CAST(value AS string), 1, 1)"))
    options = {"cluster": str(cluster.store.address), "checkpointLocation": str(checkpoint)}
    for _ in range(2):
        frame.writeStream.format("spark_log").options(**options).trigger(availableNow=True).start().awaitTermination()
        uncommit(checkpoint, 0)
    assert (stored(cluster, "a"), stored(cluster, "b")) == ({0: ["a1", "a2"]}, {0: ["b1"]})


def test_a_failed_task_fails_the_whole_batch(
    spark: SparkSession, cluster: Cluster, topics: None, checkpoint: Path
) -> None:
    @F.udf("binary")
    def trip(value):
        if value == b"0/4":
            raise ValueError("tripped over 0/4")
        return value

    with fails("tripped over 0/4"):
        copy(source(spark, cluster).withColumn("value", trip("value")), cluster, checkpoint)
    assert stored(cluster, "out") == {}
    copy(source(spark, cluster), cluster, checkpoint)
    assert stored(cluster, "out") == stored(cluster, "in")


def test_output_mode_complete(spark: SparkSession, cluster: Cluster, log: ClientLog, checkpoint: Path) -> None:
    """As Kafka's sink: every batch appends all groups. (Spark does not allow update for Python data sources.)"""
    make(cluster, "in")
    make(cluster, "out")
    counts = source(spark, cluster).groupBy("value").count()
    rows = counts.selectExpr("concat(CAST(value AS string), '=', count) AS value", "'k' AS key")
    for values in (["a", "b", "a"], ["b"]):
        append(log, "in", *values)
        copy(rows, cluster, checkpoint, mode="complete")
    [found] = stored(cluster, "out").values()
    assert sorted(found[:2]) == ["a=2", "b=1"]
    assert sorted(found[2:]) == ["a=2", "b=2"]


def test_an_unknown_topic_fails_the_query(
    spark: SparkSession, cluster: Cluster, topics: None, checkpoint: Path
) -> None:
    frame = source(spark, cluster)
    options = {"cluster": str(cluster.store.address), "topic": "nowhere", "checkpointLocation": str(checkpoint)}
    with fails("'nowhere': unknown topic or partition"):
        frame.writeStream.format("spark_log").options(**options).start().processAllAvailable()


class EmptySource(DataSource):
    """Three batches without partitions."""

    @classmethod
    def name(cls) -> str:
        return "batches_without_partitions"

    def schema(self) -> str:
        return "value binary"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return EmptyReader()


class EmptyReader(DataSourceStreamReader):
    def initialOffset(self) -> dict[str, int]:
        return {"n": 0}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        return {"n": min(start["n"] + 1, 3)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return []

    def read(self, partition: InputPartition) -> Iterator[tuple[bytes]]:
        return iter(())


def test_a_batch_without_partitions_keeps_no_write_id(spark: SparkSession, cluster: Cluster, checkpoint: Path) -> None:
    """Spark still runs one task for it, whose message names the write id."""
    make(cluster, "out")
    spark.dataSource.register(EmptySource)
    copy(spark.readStream.format(EmptySource.name()).load(), cluster, checkpoint)
    assert len(list((checkpoint / "commits").glob("[0-9]"))) > 0
    assert left_behind(cluster, checkpoint.parent) == (0, 0)


# --- crashes --------------------------------------------------------------------------------------------------------


# one in the tasks, one in the commit; all points are in tests/unit/spark/datasource/test_sink_crashes.py
WORKER_KILLS = ("file.renamed", "append.committed")


@pytest.mark.slow
def test_rows_are_stored_once_when_workers_are_killed(
    spark: SparkSession,
    cluster: Cluster,
    log: ClientLog,
    topics: None,
    checkpoint: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Tasks and the sink's commit run in Python workers. At each point one is killed and the query fails; the next
    query continues.
    """
    batches = [{}, stored(cluster, "in")]
    for number, point in enumerate(WORKER_KILLS, 1):
        monkeypatch.setitem(spark.sparkContext.environment, "SPARK_LOG_FAILPOINT", point)
        with fails("worker"):
            copy(source(spark, cluster), cluster, checkpoint, sink=register_as(spark, "spark_log_doomed"))
        assert stored(cluster, "out") in batches
        feed(log, number)
        batches.append(stored(cluster, "in"))
    copy(source(spark, cluster), cluster, checkpoint)
    assert stored(cluster, "out") == batches[-1]


DRIVER = """
import sys
from pyspark.sql import SparkSession

address, checkpoint = sys.argv[1:]
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
frame = spark.readStream.format("spark_log").options(
    cluster=address, subscribe="in", startingOffsets="earliest", includeHeaders="true", maxOffsetsPerTrigger="200"
).load().select("key", "value", "partition", "headers", "timestamp")
query = frame.writeStream.format("spark_log").options(
    cluster=address, topic="out", checkpointLocation=checkpoint
).trigger(availableNow=True).start()
query.awaitTermination()
print("done")
"""


@pytest.mark.slow
def test_rows_are_stored_once_when_the_driver_is_killed(
    spark: SparkSession, cluster: Cluster, log: ClientLog, topics: None, checkpoint: Path
) -> None:
    """kill -9 of the JVM and its workers during the batches; the output equals the input, once and in order.

    test_stream_outputs.py kills drivers at every step.
    """
    append(log, "in", *(f"1/{n} " + "y" * 500 for n in range(500)), partition=0)
    append(log, "in", *(f"1/{n}" for n in range(500)), partition=1)
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    out, given = log.find_topic("out"), stored(cluster, "in")
    command = [sys.executable, "-c", DRIVER, str(cluster.store.address), str(checkpoint)]

    def copied() -> int:
        return sum(end for _, end in log.positions(out).values())

    enough = chance.choice([1, 201])
    with (checkpoint.parent / "driver.log").open("ab") as output:
        driver = subprocess.Popen(command, cwd=REPOSITORY, stdout=output, stderr=output, start_new_session=True)
    while copied() < enough and ended(driver, 0.05) is None:
        pass
    assert ended(driver, chance.uniform(0, 0.5)) is None, (checkpoint.parent / "driver.log").read_text()[-5000:]
    os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()
    assert all(values == given[p][: len(values)] for p, values in stored(cluster, "out").items())
    copy(source(spark, cluster, maxOffsetsPerTrigger=200), cluster, checkpoint)
    assert stored(cluster, "out") == given
