"""The ten lines of PySpark in the README, in an environment as `pip install` leaves it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.spark import spark_without_delta

CONF = Path(__file__).resolve().parents[2] / "conf"
README = (Path(__file__).resolve().parents[2] / "README.md").read_text()


def python_of(heading: str) -> list[str]:
    """The Python programs below a heading."""
    [section] = [part for part in README.split("\n## ") if part.startswith(heading)]
    return re.findall(r"```python\n(.*?)```", section, re.DOTALL)


def output_of(program: str, folder: Path, **environment: str) -> str:
    """The output of a Python program of the README, run unchanged in its own folder."""
    (folder / "program.py").write_text(program)
    run = subprocess.run(
        [sys.executable, "program.py"],
        cwd=folder,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return run.stdout


@pytest.mark.slow
def test_ten_lines_of_pyspark_run_with_the_recommended_settings_and_without_delta(tmp_path: Path) -> None:
    home = spark_without_delta(tmp_path / "spark")
    [code] = python_of("Ten lines of PySpark")
    assert len([line for line in code.splitlines() if line.strip()]) <= 12
    code += """
print("rows", spark.read.parquet("clicks.parquet").count())
from spark_log.errors import DeltaNotInstalledError
from spark_log.streams import DeltaOutput, write_stream
try:
    write_stream(clicks.load(), DeltaOutput("table"), checkpoint="other")
except DeltaNotInstalledError as error:
    print(error)
"""
    printed = output_of(code, tmp_path, SPARK_HOME=str(home), SPARK_CONF_DIR=str(CONF))
    assert "rows 1000000" in printed
    assert "only showing top 5 rows" in printed
    assert "run `spark-log delta install`" in printed
