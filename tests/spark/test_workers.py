"""Spark's Python processes."""

from pyspark.sql import SparkSession


def test_workers_use_the_installed_pyspark(spark: SparkSession) -> None:
    """A worker that imports pyspark from Spark's zip takes a second to start."""

    def loaded(_: int) -> str:
        import pyspark

        return pyspark.__file__

    import pyspark

    assert spark.sparkContext.parallelize([0], 1).map(loaded).collect() == [pyspark.__file__]
