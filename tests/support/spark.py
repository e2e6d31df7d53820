"""Spark sessions for the tests, checkpoints of their queries, and the comparison of their results."""

import os
from collections.abc import Sequence
from pathlib import Path

import pyspark
from chispa.rows_comparer import assert_basic_rows_equality
from chispa.schema_comparer import assert_schema_equality
from pyspark.sql import DataFrame, SparkSession

from spark_log.spark import delta_jars, launcher
from tests.support import class_archive

QUICK_JVM = f"-XX:+UseSerialGC -XX:TieredStopAtLevel=1 {class_archive.jvm_options()}".rstrip()
"""Tests start many JVMs and compute little in them; the second compiler and its threads would only cost time."""


ENVIRONMENT = {
    "PYSPARK_PYTHON": launcher.executable(),
    "PYSPARK_DRIVER_PYTHON": launcher.executable(),
    "SPARK_LOCAL_IP": "127.0.0.1",
    "SPARK_SUBMIT_OPTS": QUICK_JVM,
}
"""The environment with which a program starts Spark on this machine quickly. conftest.py sets it for all tests."""


def delta_settings() -> dict[str, str]:
    """Settings of a session with Delta. `make delta` puts the JARs beside Spark's own; otherwise Spark fetches them.

    There are none for another Spark than the one of Delta's JARs.
    """
    if not pyspark.__version__.startswith(f"{delta_jars.SPARK}."):
        return {}
    if delta_jars.missing_in(delta_jars.spark_jars_folder()):
        return {**delta_jars.DELTA_SETTINGS, "spark.jars.packages": delta_jars.PACKAGE}
    return delta_jars.DELTA_SETTINGS


def spark_without_delta(folder: Path) -> Path:
    """A SPARK_HOME in `folder`, as after `pip install`: this environment's Spark without the JARs of `make delta`."""
    home = Path(pyspark.__file__).parent
    (folder / "jars").mkdir(parents=True)
    for entry in home.iterdir():
        if entry.name != "jars":
            (folder / entry.name).symlink_to(entry)
    for jar in (home / "jars").iterdir():
        if jar.name not in delta_jars.JARS:
            (folder / "jars" / jar.name).symlink_to(jar)
    return folder


def session(master: str, warehouse: Path, **settings: str) -> SparkSession:
    """A session small enough for a test machine, with Delta, in UTC.

    Further settings have `_` for `.` in their names.
    """
    os.environ.update(ENVIRONMENT)
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
        "spark.databricks.delta.retentionDurationCheck.enabled": "false",  # VACUUM … RETAIN 0 HOURS is allowed
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",  # VACUUM lists files in 10,000 tasks else
        **delta_settings(),
        **{name.replace("_", "."): value for name, value in settings.items()},
    }
    for name, value in ours.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def uncommit(checkpoint: Path, batch: int) -> None:
    """As if Spark had been killed after the batch was written and before its own commit."""
    for name in (f"{batch}", f".{batch}.crc"):
        (checkpoint / "commits" / name).unlink(missing_ok=True)


def assert_same_rows(found: DataFrame, expected: "DataFrame | Sequence[tuple[object, ...]]") -> None:
    """`found` has the rows of `expected` in any order, and the columns and types if `expected` is a DataFrame."""
    rows = sorted(found.collect(), key=repr)
    if isinstance(expected, DataFrame):  # chispa would sort both in Spark
        assert_schema_equality(found.schema, expected.schema, ignore_nullable=True)
        assert_basic_rows_equality(rows, sorted(expected.collect(), key=repr))
    else:
        assert list(map(tuple, rows)) == sorted(map(tuple, expected), key=repr)
