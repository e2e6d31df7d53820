"""Shortens the garbage collections of Spark's Python workers between tasks. Executor."""

import gc
from functools import cache

from pyspark import TaskContext


def spare_collections() -> None:
    """Exclude all present objects from later garbage collections. Has no effect outside a Spark task, or a second time.

    Spark's daemon collects garbage after each task, before the worker takes the next one. With the 80,000 objects of
    pyspark, pyarrow and spark-log, this takes 50 ms, often longer than the task.
    """
    if TaskContext.get() is not None:
        _freeze_once()


@cache
def _freeze_once() -> None:
    gc.freeze()
