"""spark-log's functions for Spark have the same results in a classic session and over Spark Connect."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support.spark_surface import CASES, OF_THIN_CLIENT, REFUSED, WITH_DELTA, Case, run_case, thin_client

EACH_CASE = pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=pytest.mark.delta_jars if case in WITH_DELTA else ()) for case in CASES],
    ids=lambda case: case.__name__,
)


@pytest.fixture(scope="module")
def over_connect(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The results of all cases, by name, in a session of Spark Connect."""
    command = [sys.executable, "-m", "tests.support.spark_surface", str(tmp_path_factory.mktemp("connect"))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    found = dict(json.loads(line) for line in done.stdout.splitlines() if line.startswith("["))
    assert found, done.stderr[-5000:]
    return found


@pytest.mark.slow
@EACH_CASE
def test_it_works_over_connect(over_connect: dict[str, Any], case: Case) -> None:
    found = over_connect.get(case.__name__)
    if case in REFUSED:
        assert str(found).startswith("ClassicSessionRequiredError")
    else:
        assert found == CASES[case]


@pytest.mark.slow
def test_a_thin_client_needs_no_spark_log(over_connect: dict[str, Any]) -> None:
    assert over_connect[thin_client.__name__] == OF_THIN_CLIENT


@pytest.mark.long
@EACH_CASE
def test_it_works_in_a_classic_session(spark: SparkSession, case: Case, tmp_path: Path) -> None:
    assert run_case(case, spark, tmp_path / "place") == CASES[case]
