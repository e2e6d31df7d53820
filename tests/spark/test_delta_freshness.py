"""A small Spark write is in the topic's Delta table when the write returns, without a coordinator."""

from pathlib import Path

from deltalake import DeltaTable
from pyspark.sql import SparkSession

from spark_log.cluster.cluster import Cluster
from spark_log.maintenance.coordinator.coordinator import Coordinator
from spark_log.tables.publication import delta_tables
from tests.support.delta_check import assert_delta_is_the_log
from tests.support.topics import make, read_stream, write


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


def test_a_stream_of_a_table_of_an_earlier_version_continues_over_the_commit_that_changes_its_properties(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    topic = make(cluster, "t")
    write(spark.range(3).selectExpr("string(id) AS value"), cluster, topic="t")
    [location] = delta_tables(cluster, topic).values()
    name = "delta.deletedFileRetentionDuration"
    DeltaTable(location).alter.set_table_properties({name: "interval 30 days"})

    def streamed() -> list[str]:
        rows = spark.readStream.format("delta").load(location).selectExpr("string(value) AS value")
        writer = rows.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        writer.start(str(tmp_path / "copy"), format="parquet").awaitTermination()
        return sorted(row.value for row in spark.read.parquet(str(tmp_path / "copy")).collect())

    assert streamed() == ["0", "1", "2"]
    write(spark.range(1).selectExpr("'later' AS value"), cluster, topic="t")
    assert DeltaTable(location).metadata().configuration[name] == "interval 1 days"
    assert streamed() == ["0", "1", "2", "later"]


def _values(cluster: Cluster, topic: object) -> list[str]:
    [location] = delta_tables(cluster, topic).values()  # type: ignore[arg-type]
    return sorted(value.decode() for value in DeltaTable(location).to_pyarrow_table()["value"].to_pylist())
