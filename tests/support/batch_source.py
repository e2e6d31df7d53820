"""The batch source and sink driven as Spark drives them, without Spark's processes: many options in little time."""

from typing import Any

from pyspark.sql import DataFrame

from spark_log.cluster.cluster import Cluster
from spark_log.spark.datasource.write.batch_writer import BatchWriter
from tests.support.spark_sink import source_of


def read_values(cluster: Cluster, **options: Any) -> dict[int, list[str]]:
    """Plan a batch read and run its tasks; the values of each partition in offset order."""
    source = source_of(cluster, options)
    reader = source.reader(source.schema())
    batches = [batch for task in reader.partitions() for batch in reader.read(task)]
    rows = sorted((row["partition"], row["offset"], row["value"]) for batch in batches for row in batch.to_pylist())
    found: dict[int, list[str]] = {}
    for partition, _, value in rows:
        found.setdefault(partition, []).append(value.decode())
    return found


def write_frame(frame: DataFrame, cluster: Cluster, **options: Any) -> None:
    """Plan a batch write, run it as one task, and commit it, or abort it if the task fails."""
    writer = source_of(cluster, options).writer(frame.schema, False)
    assert isinstance(writer, BatchWriter)
    try:
        message = writer.write(iter(frame.toArrow().to_batches()))
    except BaseException:
        writer.abort([None])
        raise
    writer.commit([message])
