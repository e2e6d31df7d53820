"""Reads a batch DataFrame from topics."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from spark_log.spark.datasource.options.source_options import ReadOptions
from spark_log.spark.datasource.read.filters import Pruning, prune
from spark_log.spark.datasource.read.read_task import ReadColumns, read_task
from spark_log.spark.datasource.worker_errors import message_only

if TYPE_CHECKING:
    import pyarrow as pa


@message_only
class BatchReader(DataSourceReader):
    """Reads a batch. The driver calls `pushFilters` and `partitions`, an executor `read`. Only the names and types of
    the columns are pickled for executors.
    """

    def __init__(self, options: ReadOptions, columns: ReadColumns) -> None:
        self._options: ReadOptions | None = options
        self._columns = columns
        self._pruning = Pruning()
        # Spark refuses a class that overrides pushFilters while spark.sql.python.filterPushdown.enabled is off,
        # although it would not call the method then. So our method is set on the instance, and Spark's check finds
        # that of the base class.
        self.pushFilters = _PushFilters(self)  # type: ignore[method-assign]

    def push_filters(self, filters: Sequence[Filter]) -> Iterable[Filter]:
        """Store the filters, by which the plan skips ranges. Return all of them: Spark applies them to the rows."""
        self._pruning = prune(filters)
        return filters

    def pruneColumns(self, schema: "pa.Schema") -> None:
        """Read only the columns that `schema` names, in its order.

        A hook that Sail has proposed; it is called after `pushFilters`. Spark prunes no columns of a source in Python.
        """
        self._columns = self._columns.only(schema.names)

    def partitions(self) -> Sequence[InputPartition]:
        from spark_log.spark.datasource.read.read_planner import ReadPlanner

        assert self._options is not None, "planned on the driver"
        planner = ReadPlanner(self._options)
        try:
            return planner.tasks(*planner.batch_ranges(), self._pruning)
        finally:
            planner.close()

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        yield from read_task(partition, self._columns)

    def __getstate__(self) -> dict[str, Any]:
        """Return the pickled state for executors, without the address of the metadata store."""
        return {"_columns": self._columns, "_options": None, "_pruning": Pruning()}


class _PushFilters:
    def __init__(self, reader: BatchReader) -> None:
        self.__func__ = DataSourceReader.pushFilters
        self._reader = reader

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        return self._reader.push_filters(filters)
