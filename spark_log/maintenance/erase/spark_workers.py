"""Erases with Spark: tasks scan and write many segments at once. Tasks receive keys and log dirs, and have no access to
the metadata store.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from pyspark.sql import SparkSession

from spark_log.config import ClusterSettings
from spark_log.log.records.key_set import KeySet
from spark_log.maintenance.spark_tasks import parallelism, run_in_tasks

R = TypeVar("R")

_ITEMS_PER_TASK = 4
"""A task takes about 30 ms, a segment usually more. The number is small, so that a slow disk does not delay a whole
stage.
"""


def on_spark(spark: SparkSession) -> "Callable[[KeySet], SparkWorkers]":
    """Return the argument `workers` of `erase`."""
    return lambda keys: SparkWorkers(spark, keys)


class SparkWorkers:
    """Runs the work in tasks of a Spark session. The keys travel with the work: the memory of a worker grows by about
    50 bytes per key, and not with the topic.
    """

    at_once = 1_000

    def __init__(self, spark: SparkSession, keys: KeySet) -> None:
        self._spark, self._keys = spark, keys
        self._tasks_min = parallelism(spark) * 4

    def run(self, work: Callable[[Any, KeySet], R], items: Sequence[Any]) -> Iterator[R]:
        if not items:
            return
        keys = self._keys
        tasks = min(len(items), max(self._tasks_min, len(items) // _ITEMS_PER_TASK))
        yield from run_in_tasks(self._spark, lambda item: work(item, keys), items, tasks)

    def lease_ms(self, settings: ClusterSettings) -> int:
        return settings.spark_write_id_lease_ms
