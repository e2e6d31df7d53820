"""Writes of `format("spark_log")` without Spark: plan, one task, commit."""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter
from pyspark.sql.types import StructType

from spark_log.cluster.cluster import Cluster
from spark_log.spark.datasource.source import SparkLogDataSource
from spark_log.spark.datasource.write.stream_writer import StreamWriter
from spark_log.spark.datasource.write.write_plan import TaskOutput

_SCHEMA = StructType().add("topic", "string").add("value", "string").add("partition", "integer")
Rows = Sequence[tuple[str, str]]
"""Topic and value of each row."""


def address_of(cluster: Cluster) -> str:
    address = cluster.store.address
    return address.url if address.folder is None else str(address.folder)


def source_of(cluster: Cluster, options: Mapping[str, Any]) -> SparkLogDataSource:
    return SparkLogDataSource({"cluster": address_of(cluster), **{key: str(value) for key, value in options.items()}})


def _batch(rows: Rows) -> pa.RecordBatch:
    topics, values = ([row[column] for row in rows] for column in (0, 1))
    columns = {"topic": pa.array(topics, pa.string()), "value": pa.array(values, pa.string())}
    return pa.record_batch({**columns, "partition": pa.array([0] * len(rows), pa.int32())})


def write_batch(cluster: Cluster, rows: Rows, **options: Any) -> None:
    """A batch write: with txnAppId and txnVersion it is written once."""
    writer = source_of(cluster, options).writer(_SCHEMA, False)
    assert isinstance(writer, DataSourceArrowWriter)
    writer.commit([writer.write(iter([_batch(rows)]))])


def write_micro_batch(cluster: Cluster, batch_id: int, rows: Rows, **options: Any) -> None:
    """A micro-batch of the query "query"."""
    source = source_of(cluster, options)
    sink = source.streamWriter(_SCHEMA, False)
    assert isinstance(sink, StreamWriter)
    on_executor, arguments = sink.__reduce__()
    output = on_executor(*arguments).write(iter([_batch(rows)]))
    assert isinstance(output, TaskOutput)
    output.query_id = "query"
    sink = source.streamWriter(_SCHEMA, False)
    try:
        sink.commit([output], batch_id)
    except BaseException:
        sink.abort([output], batch_id)
        raise
