"""Lets Spark find `format("spark_log")`: it searches top-level modules pyspark_* for an attribute DefaultSource."""

from spark_log.spark.datasource.source import SparkLogDataSource as DefaultSource

__all__ = ["DefaultSource"]
