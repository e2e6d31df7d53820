"""Erases with Spark: tasks scan and write many segments at once. Tasks receive keys and log dirs, and have no access to
the metadata store.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from pyspark.sql import SparkSession

from spark_log.config import ClusterSettings
from spark_log.log.records.key_set import KeySet

R = TypeVar("R")

_ITEMS_PER_TASK = 4
"""A task takes about 30 ms, a segment usually more. The number is small, so that a slow disk does not delay a whole
stage.
"""


def on_spark(spark: SparkSession) -> "Callable[[KeySet], SparkWorkers]":
    """Return the argument `workers` of `erase`."""
    return lambda keys: SparkWorkers(spark, keys)


class SparkWorkers:
    """Runs the work in tasks of a Spark session. The keys are broadcast once: the memory of a worker grows by about 50
    bytes per key, and not with the topic.
    """

    at_once = 1_000

    def __init__(self, spark: SparkSession, keys: KeySet) -> None:
        self._context = spark.sparkContext
        self._keys = self._context.broadcast(keys)

    def run(self, work: Callable[[Any, KeySet], R], items: Sequence[Any]) -> Iterator[R]:
        if not items:
            return
        keys = self._keys
        enough = self._context.defaultParallelism * 4
        tasks = min(len(items), max(enough, len(items) // _ITEMS_PER_TASK))
        yield from self._context.parallelize(items, tasks).map(lambda item: work(item, keys.value)).collect()

    def lease_ms(self, settings: ClusterSettings) -> int:
        return settings.spark_write_id_lease_ms
