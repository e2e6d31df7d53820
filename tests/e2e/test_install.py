"""The result of `pip install` in an environment of its own; its dependencies are this environment's."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.topics import create_topic
from tests.support.spark import QUICK_JVM, spark_without_delta

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGED = ("pyproject.toml", "LICENSE", "README.md", "pyspark_spark_log.py", "spark_log", "jobs", "conf")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` folder of a virtual environment into which pip has installed spark-log."""
    folder = tmp_path_factory.mktemp("install")
    sources = folder / "sources"  # pip leaves its build there
    sources.mkdir()
    for name in PACKAGED:
        if (REPOSITORY / name).is_dir():
            shutil.copytree(REPOSITORY / name, sources / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(REPOSITORY / name, sources)
    environment = folder / "venv"
    venv.create(environment, symlinks=True)
    [site_packages] = environment.glob("lib/python*/site-packages")
    (site_packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    python = environment / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", str(sources)]
    subprocess.run(pip, check=True, timeout=300)
    shutil.rmtree(sources)
    return environment / "bin"


def run(installed: Path, script: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        env={
            **os.environ,
            "PATH": f"{installed}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYSPARK_PYTHON": str(installed / "spark-log-python"),
            "PYSPARK_DRIVER_PYTHON": str(installed / "spark-log-python"),
            "SPARK_LOCAL_IP": "127.0.0.1",
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_jobs_and_settings_are_where_the_command_says(installed: Path, tmp_path: Path) -> None:
    shown = run(installed, "spark-log path jobs; spark-log path conf; spark-log --version", tmp_path)
    assert shown.returncode == 0, shown.stderr
    jobs, conf, _ = shown.stdout.splitlines()
    assert Path(jobs).is_relative_to(installed.parent)
    assert {file.name for file in Path(jobs).glob("*.py")} == {file.name for file in (REPOSITORY / "jobs").glob("*.py")}
    assert {file.name for file in Path(conf).iterdir()} == {file.name for file in (REPOSITORY / "conf").iterdir()}


def test_a_job_that_needs_delta_says_how_to_install_it(installed: Path, tmp_path: Path) -> None:
    with Cluster.init(str(tmp_path / "log")) as cluster:
        create_topic(cluster, "clicks")
    home = spark_without_delta(tmp_path / "spark")
    script = f"""
        export SPARK_CONF_DIR="$(spark-log path conf)"
        submit="spark-submit --master local[1] --conf spark.ui.enabled=false --driver-java-options '{QUICK_JVM}'"
        eval "$submit" '"$(spark-log path jobs)/consume.py"' --cluster log --subscribe clicks --delta out
    """
    done = run(installed, script, tmp_path, SPARK_HOME=str(home))
    assert done.returncode == 1
    [said] = [line for line in (done.stdout + done.stderr).splitlines() if line.startswith("consume:")]
    assert "Delta's JARs are missing" in said
    assert "spark-log delta install" in said
    assert not (tmp_path / "out").exists()
