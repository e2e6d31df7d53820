"""Spark sessions for the tests."""

import os
import sys
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

DELTA = "io.delta:delta-spark_4.2_2.13:4.4.0"
QUICK_JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""Tests start JVMs more than they compute in them; the second compiler and its threads would only take their time."""


def delta_settings() -> dict[str, str]:
    """What a session needs for Delta. `make delta` puts the JARs beside Spark's own; else Spark fetches them."""
    settings = {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }
    if not any(Path(pyspark.__file__).parent.glob("jars/io.delta_delta-spark_*.jar")):
        settings["spark.jars.packages"] = DELTA
    return settings


def session(master: str, warehouse: Path, **settings: str) -> SparkSession:
    """A session small enough for a test machine, with Delta, in UTC.

    Further settings have `_` for `.` in their names.
    """
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master(master).appName("spark-log tests")
    ours = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.driver.extraJavaOptions": QUICK_JVM,
        "spark.executor.extraJavaOptions": QUICK_JVM,
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(warehouse),
        "spark.databricks.delta.snapshotPartitions": "2",
        **delta_settings(),
        **{name.replace("_", "."): value for name, value in settings.items()},
    }
    for name, value in ours.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()
