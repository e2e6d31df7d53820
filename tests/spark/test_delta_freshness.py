"""A small Spark write is in the topic's Delta table when the write returns, without a coordinator."""

import os
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from spark_log import clock
from spark_log.cluster.cluster import Cluster
from spark_log.maintenance import run_tasks
from spark_log.maintenance.client_log import ClientLog
from spark_log.maintenance.coordinator.coordinator import Coordinator
from spark_log.metadata.store import Store
from spark_log.tables.publication import delta_tables
from tests.spark.queries import in_parquet
from tests.support.table_checks import assert_delta_is_the_log
from tests.support.topics import append, make, read_stream, write

DAY_S = 86_400
CHECKPOINT_COMMITS = 12
"""Enough commits for a checkpoint by the task `delta`."""
LEAST_KEPT = {"delta_log_retention_ms": str(DAY_S * 1000), "delta_log_commits_max": "1"}


def test_small_writes_of_a_batch_and_of_a_stream_are_published(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    first, second = make(cluster, "first", 2), make(cluster, "second", 2)
    write(spark.range(10).selectExpr("string(id) AS key", "string(id) AS value"), cluster, topic="first")
    assert _values(cluster, first) == [str(number) for number in range(10)]

    frame = read_stream(spark, cluster, subscribe="first", startingOffsets="earliest")
    sink = frame.writeStream.format("spark_log").option("cluster", str(cluster.store.address))
    sink = sink.option("topic", "second").option("checkpointLocation", str(tmp_path / "checkpoint"))
    sink.trigger(availableNow=True).start().awaitTermination()
    assert _values(cluster, second) == [str(number) for number in range(10)]
    assert_delta_is_the_log(cluster)

    with Coordinator(cluster, tasks=[]):  # it would publish the write later
        write(spark.range(5).selectExpr("'later' AS value"), cluster, topic="first")
        assert "later" not in _values(cluster, first)


@pytest.mark.slow
def test_a_stream_of_a_table_of_an_earlier_version_continues_over_the_commit_that_changes_its_properties(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    topic = make(cluster, "t")
    write(spark.range(3).selectExpr("string(id) AS value"), cluster, topic="t")
    [location] = delta_tables(cluster, topic).values()
    name = "delta.deletedFileRetentionDuration"
    DeltaTable(location).alter.set_table_properties({name: "interval 30 days"})

    assert _streamed(spark, location, tmp_path) == ["0", "1", "2"]
    write(spark.range(1).selectExpr("'later' AS value"), cluster, topic="t")
    assert DeltaTable(location).metadata().configuration[name] == "interval 1 days"
    assert _streamed(spark, location, tmp_path) == ["0", "1", "2", "later"]


@pytest.mark.slow
@pytest.mark.on_sqlite
def test_a_stream_of_a_table_goes_on_23_hours_later(
    spark: SparkSession, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile its files were merged, and the log was cleaned up as far as its configs allow."""
    topic = make(cluster, "t", inline_max_bytes="0", retention_ms="-1", **LEAST_KEPT)
    log = ClientLog(cluster)
    for number in range(CHECKPOINT_COMMITS):
        append(log, topic, f"a{number:02}")
    list(run_tasks(cluster, ["delta"]))
    [location] = delta_tables(cluster, topic).values()
    for path in Path(location, "_delta_log").iterdir():
        os.utime(path, (path.stat().st_mtime - 2 * DAY_S,) * 2)
    append(log, topic, "b")
    first = [*(f"a{number:02}" for number in range(CHECKPOINT_COMMITS)), "b"]
    assert _streamed(spark, location, tmp_path) == first
    for number in range(CHECKPOINT_COMMITS):
        append(log, topic, f"c{number:02}")
    log.close()
    [merged] = run_tasks(cluster, ["merge"])
    assert merged.after.files == 1
    with monkeypatch.context() as later:
        wall_ms = clock.wall_ms
        later.setattr(clock, "wall_ms", lambda: wall_ms() + 23 * 3_600_000)
        later.setattr(Store, "clock_is_steady", lambda _: True)
        list(run_tasks(cluster, ["delta", "files"]))
    assert not Path(location, "_delta_log", f"{0:020d}.json").exists(), "older files of the log are deleted"
    assert _streamed(spark, location, tmp_path) == [*first, *(f"c{number:02}" for number in range(CHECKPOINT_COMMITS))]


def _streamed(spark: SparkSession, location: str, folder: Path) -> list[str]:
    """The values that a stream of the table, which goes on where it was, has read so far."""
    rows = spark.readStream.format("delta").load(location).selectExpr("string(value) AS value")
    return sorted(row.value for row in in_parquet(rows, folder / "stream").collect())


def _values(cluster: Cluster, topic: object) -> list[str]:
    [location] = delta_tables(cluster, topic).values()  # type: ignore[arg-type]
    return sorted(value.decode() for value in DeltaTable(location).to_pyarrow_table()["value"].to_pylist())
