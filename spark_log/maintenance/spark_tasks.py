"""Runs functions in tasks of Spark, in a classic session and over Spark Connect alike."""

import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

T = TypeVar("T")
R = TypeVar("R")

_ROWS = 1 << 16


def parallelism(spark: SparkSession) -> int:
    """Return the number of tasks that Spark makes of a range by default, usually its number of cores."""
    return int(spark.range(_ROWS).select(sf.spark_partition_id()).distinct().count())


def run_in_tasks(spark: SparkSession, function: Callable[[T], R], items: Sequence[T], tasks: int) -> list[R]:
    """Return the results of the function for the items, in their order. Each task runs the function for some of them.

    The function and all items travel to each task. Results are pickled.
    """

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                result = pickle.dumps(function(items[number]))
                yield pa.RecordBatch.from_arrays([pa.array([number]), pa.array([result])], ["id", "result"])

    frame: Any = spark.range(0, len(items), 1, tasks)
    rows = frame.mapInArrow(run, "id LONG, result BINARY").collect()
    return [pickle.loads(row.result) for row in sorted(rows, key=lambda row: row.id)]
