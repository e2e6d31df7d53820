"""conf/ holds settings that this Spark knows, by their right names."""

from pathlib import Path

from pyspark.sql import SparkSession

CONF = Path(__file__).parents[2] / "conf"
STATIC = {"spark.sql.extensions", "spark.sql.catalog.spark_catalog"}
"""Settings that a running session cannot change."""
READ_BY_THE_STATE_STORE = "spark.sql.streaming.stateStore.rocksdb."
"""Prefix of names that Spark does not register."""


def defaults() -> dict[str, str]:
    lines = (CONF / "spark-defaults.conf").read_text().splitlines()
    return dict(line.split(maxsplit=1) for line in lines if line and not line.startswith("#"))


def test_spark_knows_every_sql_setting(spark: SparkSession) -> None:
    named = {name for name in defaults() if name.startswith("spark.sql.")}
    assert not spark.conf.isModifiable("spark.sql.no.such.setting")
    unknown = {name for name in named - STATIC if not spark.conf.isModifiable(name)}
    assert all(name.startswith(READ_BY_THE_STATE_STORE) for name in unknown), unknown


def test_classes_named_are_on_the_class_path(spark: SparkSession) -> None:
    loader = spark.sparkContext._jvm.Thread.currentThread().getContextClassLoader()
    for value in defaults().values():
        if value.startswith(("org.apache.", "io.delta.")):
            loader.loadClass(value)


def test_delta_jar_is_the_one_in_all_places() -> None:
    texts = [
        path.read_text()
        for path in (CONF.parent / "scripts" / "spark_jars.py", Path(__file__).parents[1] / "support" / "spark.py")
    ]
    assert all("io.delta:delta-spark_4.2_2.13:4.4.0" in text for text in texts)
