"""Memory of Spark's Python workers between tasks. Executor."""

import gc
from functools import cache

from pyspark import TaskContext


def spare_collections() -> None:
    """Leave the modules that are imported by now out of later garbage collections. Has no effect outside a Spark task.

    Spark's daemon collects garbage after each task, before the worker takes the next one. Over the 80,000 objects of
    pyspark, pyarrow and spark-log that takes 50 ms, often longer than the task.
    """
    if TaskContext.get() is not None:
        _freeze_once()


@cache
def _freeze_once() -> None:
    gc.freeze()
