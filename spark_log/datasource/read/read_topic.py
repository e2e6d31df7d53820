"""`read_topic`: a topic on Spark's own Parquet scan (`segments/segment_scan.py`), including its tail. Batch only."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from spark_log.records.schema import read_schema
from spark_log.segments.fetcher import Fetcher
from spark_log.segments.segment_scan import scan_segments
from spark_log.segments.slices import LogDirs, Slice

if TYPE_CHECKING:
    from spark_log.cluster.cluster import Cluster
    from spark_log.log.reader import ReadPlan

_STORED = "offset_delta int, timestamp timestamp, key binary, value binary"
_HEADERS = ", headers array<struct<key:string,value:binary>>"


def read_topic(
    spark: SparkSession,
    cluster: "str | Cluster",
    topic: str,
    *,
    include_headers: bool = False,
    client_rack: str | None = None,
) -> DataFrame:
    """The records of a topic from the log start offsets to the high watermarks, in one snapshot of this moment.

    The columns of `format("spark_log")`: key binary, value binary, topic string, partition int, offset bigint,
    timestamp timestamp, timestampType int, and with `include_headers` headers. Page checksums are verified. The inline
    tail of the same snapshot is part of the plan. `cluster` is an address or an open Cluster. Segments are read from a
    replica in `client_rack`, if there is one.

    Raises ClusterNotFoundError, UnknownTopicOrPartitionError, and InvalidConfigurationError if Spark's class path lacks
    the file system of an object store (hadoop-aws for S3).
    """
    from spark_log.cluster.cluster import Cluster
    from spark_log.log.reader import LogReader

    opened = Cluster.open(cluster) if isinstance(cluster, str) else cluster
    log = LogReader(opened, holder="read_topic")
    try:
        plan = log.plan_topic(topic, client_rack or None)
    finally:
        log.close()
        if opened is not cluster:
            opened.close()
    return read_plan(spark, topic, plan, include_headers=include_headers)


def read_plan(spark: SparkSession, topic: str, plan: "ReadPlan", *, include_headers: bool = False) -> DataFrame:
    """The records of a plan's slices, all of one topic, with the columns of `read_topic`.

    Slices of files must end where their segments do: a file is read to its end.
    """
    sealed = [piece for piece in plan.slices if piece.data is None]
    tail = [piece for piece in plan.slices if piece.data is not None]
    parts = []
    if sealed:
        parts.append(_sealed(spark, topic, sealed, plan.log_dirs, include_headers))
    if tail or not sealed:
        schema = read_schema(include_headers)
        batches = list(Fetcher(plan.log_dirs).read(tail, schema))
        table = pa.Table.from_batches(batches, schema) if batches else schema.empty_table()
        parts.append(spark.createDataFrame(table))
    return parts[0] if len(parts) == 1 else parts[0].unionByName(parts[1])


def _sealed(
    spark: SparkSession, topic: str, sealed: Sequence[Slice], log_dirs: LogDirs, include_headers: bool
) -> DataFrame:
    facts = {
        "partition": pa.array([piece.partition for piece in sealed], pa.int32()),
        "base_offset": pa.array([piece.base_offset for piece in sealed], pa.int64()),
        "start": pa.array([piece.start for piece in sealed], pa.int64()),
        "timestampType": pa.array([piece.timestamp_type for piece in sealed], pa.int32()),
    }
    frame = scan_segments(spark, sealed, log_dirs, _STORED + (_HEADERS if include_headers else ""), facts)
    offset = F.col("base_offset") + F.col("offset_delta")
    if any(piece.start > piece.base_offset for piece in sealed):
        frame = frame.where(offset >= F.col("start"))
    columns: list[Column | str] = [
        "key",
        "value",
        F.lit(topic).alias("topic"),
        "partition",
        offset.alias("offset"),
        "timestamp",
        "timestampType",
    ]
    return frame.select(*columns, *(["headers"] if include_headers else []))
