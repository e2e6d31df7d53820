"""A job starts a classic session only."""

import pytest

from spark_log.errors import ClassicSessionRequiredError
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
