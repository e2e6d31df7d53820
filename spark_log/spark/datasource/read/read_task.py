"""Defines the input of a read task, and runs the task. Executor."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from spark_log.log.columns.key_and_value import TYPED
from spark_log.log.segments.slices import FieldFilter, LogDirs, Slice, TimestampBounds
from spark_log.spark.datasource.worker_memory import spare_collections

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass
class ReadTask(InputPartition):
    """Slices of one or more topic-partitions, in order, with the log dirs that hold them. Sent to an executor."""

    slices: list[Slice]
    log_dirs: LogDirs
    times: TimestampBounds
    fields: tuple[FieldFilter, ...] = ()

    def __repr__(self) -> str:
        partitions = {piece.topic_partition for piece in self.slices}
        return f"ReadTask({len(self.slices)} slices of {len(partitions)} topic-partitions)"


@dataclass(frozen=True)
class ReadColumns:
    """The names of the columns, in order, and the typed ones among them. They are sent to executors."""

    names: tuple[str, ...]
    typed: StructType

    @classmethod
    def of(cls, schema: StructType) -> "ReadColumns":
        return cls(tuple(schema.names), StructType([field for field in schema if field.name in TYPED]))

    def only(self, names: Sequence[str]) -> "ReadColumns":
        """Return only the columns that `names` has, in its order."""
        return ReadColumns(tuple(names), StructType([field for field in self.typed if field.name in names]))


def read_task(task: InputPartition, columns: ReadColumns) -> Iterator["pa.RecordBatch"]:
    """Yield the records of a task as Arrow batches of the columns."""
    from spark_log.log.records.schema import read_schema
    from spark_log.log.segments.fetcher import Fetcher

    spare_collections()
    if not isinstance(task, ReadTask):  # if there is nothing to read, Spark creates a task of its own
        return iter(())
    names, typed = columns.names, None
    if columns.typed:
        from pyspark.sql.pandas.types import to_arrow_type

        typed = to_arrow_type(columns.typed, timezone="UTC")
    schema = read_schema("headers" in names, names or ("partition",), typed)  # without columns, rows are counted
    return _in_order(Fetcher(task.log_dirs).read(task.slices, schema, task.times, task.fields), names)


def _in_order(batches: Iterator["pa.RecordBatch"], columns: tuple[str, ...]) -> Iterator["pa.RecordBatch"]:
    for batch in batches:
        yield batch if tuple(batch.schema.names) == columns else batch.select(columns)
