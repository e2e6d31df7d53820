"""conf/ contains only settings that this Spark knows, and the guide names every value of conf/patroni.yml."""

import re
from pathlib import Path

from pyspark.sql import SparkSession

from spark_log.spark import delta_jars

CONF = Path(__file__).parents[2] / "conf"
READ_BY_THE_STATE_STORE = "spark.sql.streaming.stateStore.rocksdb."
"""Prefix of names that Spark does not register."""


def defaults() -> dict[str, str]:
    lines = (CONF / "spark-defaults.conf").read_text().splitlines()
    return dict(line.split(maxsplit=1) for line in lines if line and not line.startswith("#"))


def test_spark_knows_every_sql_setting(spark: SparkSession) -> None:
    named = {name for name in defaults() if name.startswith("spark.sql.")}
    assert not spark.conf.isModifiable("spark.sql.no.such.setting")
    unknown = {name for name in named if not spark.conf.isModifiable(name)}
    assert all(name.startswith(READ_BY_THE_STATE_STORE) for name in unknown), unknown


def test_classes_named_are_in_spark_itself_without_delta(spark: SparkSession) -> None:
    loader = spark.sparkContext._jvm.Thread.currentThread().getContextClassLoader()
    for value in defaults().values():
        if value.startswith(("org.apache.", "io.delta.")):
            jar = loader.loadClass(value).getProtectionDomain().getCodeSource().getLocation().getPath()
            assert Path(jar).name.startswith("spark-"), f"{value} is in {jar}"


def test_delta_settings_are_present_as_comments() -> None:
    lines = (CONF / "spark-defaults.conf").read_text().splitlines()
    commented = [line.removeprefix("# ").split() for line in lines if line.startswith("# spark.")]
    assert [tuple(setting) for setting in commented] == list(delta_jars.DELTA_SETTINGS.items())


def test_the_guide_sets_every_value_of_the_configuration_of_patroni() -> None:
    guide = (CONF.parent / "docs" / "guides" / "failover.md").read_text()
    exported = {
        name for line in re.findall(r"(?m)^export (.*)$", guide) for name in re.findall(r"(?:^| )([A-Z_]+)=", line)
    }
    assert set(re.findall(r"\$\{(\w+)\}", (CONF / "patroni.yml").read_text())) <= exported
