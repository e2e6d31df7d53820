"""How Spark finds `format("spark_log")`: it looks for top-level modules named pyspark_* with an attribute
DefaultSource.
"""

from spark_log.spark.datasource.source import SparkLogDataSource as DefaultSource

__all__ = ["DefaultSource"]
