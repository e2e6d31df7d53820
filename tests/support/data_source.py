"""The data source driven as Spark drives it, without Spark's processes: many options in little time.

Batch reads, batch writes and micro-batches are planned, run as tasks and committed; a `StreamQuery` runs one trigger
after the other, from a checkpoint.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSourceArrowWriter
from pyspark.sql.types import StructType

from spark_log.cluster.cluster import Cluster
from spark_log.spark.datasource.read.stream_reader import StreamReader
from spark_log.spark.datasource.source import SparkLogDataSource
from spark_log.spark.datasource.write.batch_writer import BatchWriter
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


Row = tuple[int, bytes]
"""Offset and value."""


class StreamQuery:
    """A query over topic t from its earliest offsets. `checkpoint` is the end of its last batch, as Spark stores it."""

    def __init__(self, cluster: Cluster, **options: Any) -> None:
        given = {"cluster": address_of(cluster), "subscribe": "t", "startingOffsets": "earliest", **options}
        self._options = {key.replace("__", "."): str(value) for key, value in given.items()}
        self.reader = self._reader()
        self.checkpoint: dict[str, Any] = stored_offset(self.reader.initialOffset())

    def _reader(self) -> StreamReader:
        source = SparkLogDataSource(self._options)
        return source.streamReader(source.schema())

    def restart(self, **options: Any) -> None:
        self.reader.stop()
        self._options |= {key: str(value) for key, value in options.items()}
        self.reader = self._reader()

    def plan(self) -> dict[str, Any]:
        """The end of the next batch; the checkpoint if there is nothing new."""
        return stored_offset(self.reader.latestOffset(self.checkpoint, self.reader.getDefaultReadLimit()))

    def run(self, end: dict[str, Any]) -> list[Row]:
        """The batch's records by offset, after the commit of the previous batch for the group."""
        if "@initial" not in self.checkpoint:
            self.reader.commit(self.checkpoint)
        rows: list[Row] = []
        for task in self.reader.partitions(self.checkpoint, end):
            for batch in self.reader.read(task):
                rows += zip(batch.column("offset").to_pylist(), batch.column("value").to_pylist(), strict=True)
        self.checkpoint = end
        return sorted(rows)

    def trigger(self) -> list[Row]:
        end = self.plan()
        return [] if end == self.checkpoint else self.run(end)


def values(rows: Sequence[Row]) -> list[str]:
    return [value.decode() for _, value in rows]


def stored_offset(offset: dict[str, Any]) -> dict[str, Any]:
    found = json.loads(json.dumps(offset))
    assert isinstance(found, dict)
    return found
