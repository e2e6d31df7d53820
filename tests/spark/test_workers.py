"""Spark's Python processes."""

import gc

from pyspark.sql import SparkSession

from spark_log.spark.datasource.worker_memory import spare_collections


def test_workers_use_the_installed_pyspark(spark: SparkSession) -> None:
    """A worker that imports pyspark from Spark's zip takes a second to start."""

    def loaded(_: int) -> str:
        import pyspark

        return pyspark.__file__

    import pyspark

    assert spark.sparkContext.parallelize([0], 1).map(loaded).collect() == [pyspark.__file__]


def test_collections_in_workers_leave_imported_modules_out(spark: SparkSession) -> None:
    """Spark collects garbage after each task: over all imported modules that takes longer than a small task."""

    def frozen(_: int) -> tuple[int, int]:
        import gc

        from spark_log.spark.datasource.worker_memory import spare_collections

        spare_collections()
        first = gc.get_freeze_count()
        spare_collections()
        return first, gc.get_freeze_count()

    [(first, second)] = spark.sparkContext.parallelize([0], 1).map(frozen).collect()
    assert first == second > 10_000


def test_no_other_process_changes_its_garbage_collection() -> None:
    before = gc.get_freeze_count()
    spare_collections()
    assert gc.get_freeze_count() == before
