"""What the README says, as a newcomer would run it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from spark_log.cluster.cluster import Cluster
from tests.support.spark import spark_without_delta

CONF = Path(__file__).resolve().parents[2] / "conf"
README = (Path(__file__).resolve().parents[2] / "README.md").read_text()


def python_of(heading: str) -> list[str]:
    """The Python programs below a heading."""
    [section] = [part for part in README.split("\n## ") if part.startswith(heading)]
    return re.findall(r"```python\n(.*?)```", section, re.DOTALL)


def output_of(program: str, folder: Path, **environment: str) -> str:
    """What a Python program of the README prints, run as it stands in a folder of its own."""
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


def test_the_lines_of_the_python_clients_run_as_they_stand(tmp_path: Path) -> None:
    Cluster.init(str(tmp_path / "log")).close()
    [code] = python_of("From Python, without Spark")
    assert output_of(code, tmp_path).splitlines() == ["0", """0 0 b'alice' b'{"item": 1}'"""]


@pytest.mark.slow
def test_the_lines_of_streams_run_as_they_stand(tmp_path: Path) -> None:
    [code] = python_of("Streams")
    printed = output_of(code + "\nprint(hourly.columns)\n", tmp_path)
    assert '{"item":"tea","price":4}' in printed
    assert "['window_start', 'window_end', 'topic', 'count']" in printed


@pytest.mark.parametrize(
    ("block", "shown"),
    [(1, "alice"), (2, "1,2,3"), (3, '{"seats": 60}')],
    ids=["command line", "replicas", "maintenance"],
)
def test_the_shell_lines_run_as_they_stand(tmp_path: Path, block: int, shown: str) -> None:
    commands = re.findall(r"```sh\n(.*?)```", README, re.DOTALL)[block]
    script = "\n".join(line for line in commands.splitlines() if not line.startswith("spark-submit"))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    run = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    assert shown in run.stdout
