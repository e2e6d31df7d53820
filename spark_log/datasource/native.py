"""`read_topic`: a topic on Spark's own Parquet scan, with its column pruning and push-down. Batch only."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_log.errors import UnsupportedStoreError
from spark_log.records.schema import TimestampType, read_schema

if TYPE_CHECKING:
    from spark_log.cluster.cluster import Cluster
    from spark_log.log.log import Log
    from spark_log.log.slices import Slice
    from spark_log.log.snapshot import TopicSnapshot

_VERIFY = "parquet.page.verify-checksum.enabled"


def read_topic(
    spark: SparkSession, cluster: "str | Cluster", topic: str, *, include_headers: bool = False
) -> DataFrame:
    """The records of a topic from the log start offsets to the high watermarks, as of now.

    The columns of `format("spark_log")`: key binary, value binary, topic string, partition int, offset bigint, timestamp
    timestamp, timestampType int, and with `include_headers` headers. Sealed segments are read through the topic's Delta
    tables at the versions that match one snapshot of the metadata, so the session needs Delta (see the README); the
    inline tail of the same snapshot travels inside the plan. Page checksums are verified.

    Raises ClusterNotFoundError, UnknownTopicOrPartitionError, UnsupportedStoreError for a session without Delta.
    """
    from spark_log.cluster.cluster import Cluster
    from spark_log.log.log import Log
    from spark_log.log.snapshot import snapshot

    _check_session(spark)
    opened = Cluster.open(cluster) if isinstance(cluster, str) else cluster
    log = Log(opened, holder="read_topic")
    try:
        taken = snapshot(log, topic)
        parts = [_sealed(spark, taken, log_dir_id, include_headers) for log_dir_id in taken.tables]
        if taken.tail:
            parts.append(_tail(spark, log, taken.tail, include_headers))
    finally:
        log.close()
        if opened is not cluster:
            opened.close()
    frame = parts[0] if parts else spark.createDataFrame(_empty(include_headers))
    for part in parts[1:]:
        frame = frame.unionByName(part)
    return frame


def _sealed(spark: SparkSession, taken: "TopicSnapshot", log_dir_id: int, include_headers: bool) -> DataFrame:
    table = taken.tables[log_dir_id]
    frame = spark.read.format("delta").option("versionAsOf", table.delta_version).load(table.location)
    offset: Column = F.col("base_offset") + F.col("offset_delta")
    if table.partitions is not None:
        frame = frame.where(F.col("partition").isin(list(table.partitions)))
    for partition, start in taken.log_starts.items():
        frame = frame.where((F.col("partition") != partition) | (offset >= start))
    columns: list[Column] = [
        F.col("key"),
        F.col("value"),
        F.lit(taken.topic.name).alias("topic"),
        F.col("partition"),
        offset.alias("offset"),
        F.col("timestamp"),
        _timestamp_type(table.append_time),
    ]
    return frame.select(*columns, *([F.col("headers")] if include_headers else []))


def _timestamp_type(append_time: Sequence[tuple[int, int, int]]) -> Column:
    """The timestamp type of a segment, which its base offset tells."""
    create, append = F.lit(int(TimestampType.CREATE_TIME)), F.lit(int(TimestampType.LOG_APPEND_TIME))
    if not append_time:
        return create.alias("timestampType")
    found = F.lit(False)
    for partition, first, last in append_time:
        found = found | ((F.col("partition") == partition) & F.col("base_offset").between(first, last))
    return F.when(found, append).otherwise(create).alias("timestampType")


def _tail(spark: SparkSession, log: "Log", tail: Sequence["Slice"], include_headers: bool) -> DataFrame:
    from spark_log.log.fetch import Fetcher

    schema = read_schema(include_headers)
    batches = list(Fetcher(log.cluster.log_dirs()).read(tail, schema))
    return spark.createDataFrame(pa.Table.from_batches(batches, schema))


def _empty(include_headers: bool) -> pa.Table:
    return read_schema(include_headers).empty_table()


def _check_session(spark: SparkSession) -> None:
    if "DeltaSparkSessionExtension" not in (spark.conf.get("spark.sql.extensions", "") or ""):
        raise UnsupportedStoreError(
            "read_topic needs Delta in the Spark session: add spark.jars.packages"
            " io.delta:delta-spark_4.2_2.13:4.4.0, spark.sql.extensions io.delta.sql.DeltaSparkSessionExtension and"
            " spark.sql.catalog.spark_catalog org.apache.spark.sql.delta.catalog.DeltaCatalog;"
            ' or read with format("spark_log"), which needs nothing'
        )
    spark.conf.set(_VERIFY, "true")  # reaches the Parquet reader with the session's other settings
