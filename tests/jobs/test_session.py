"""A job starts a classic session only, and chooses settings of Spark by the master."""

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from pyspark import SparkConf

from spark_log.errors import ClassicSessionRequiredError
from spark_log.spark.jobs.queries import stream_query
from spark_log.spark.jobs.session import start_session


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SPARK_REMOTE", "sc://localhost:15002"),
        ("SPARK_API_MODE", "connect"),
        ("SPARK_CONNECT_MODE", "1"),
        ("PYSPARK_REMOTE_INIT_CONF_LEN", "1"),  # spark-submit --remote
    ],
)
def test_a_job_is_refused_over_spark_connect(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ClassicSessionRequiredError, match="a job does not run over Spark Connect"):
        start_session("job", delta=False)


@pytest.mark.parametrize(
    ("master", "settings"),
    [
        ("local[8]", [("spark.sql.shuffle.partitions", "8")]),
        ("spark://host:7077", []),  # the executors that have registered so far may be a few of all
        ("k8s://https://host", []),
        (None, []),
    ],
)
def test_stream_jobs_on_a_cluster_have_the_shuffle_partitions_of_its_settings(
    monkeypatch: pytest.MonkeyPatch, master: str | None, settings: list[tuple[str, str]]
) -> None:
    without_a_session = SparkConf(loadDefaults=False)  # this process may have one
    monkeypatch.setattr(stream_query, "SparkConf", lambda: without_a_session)
    spark: Any = Mock(sparkContext=SimpleNamespace(master=master, defaultParallelism=8))
    stream_query.set_shuffle_partitions(spark)
    assert [tuple(call.args) for call in spark.conf.set.call_args_list] == settings
