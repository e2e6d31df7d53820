"""The built distributions, and the wheel installed in a separate environment.

The environment sees the dependencies of this one (a `.pth` file adds its site-packages to the end of the path), but not
its editable spark_log: Python ignores `.pth` files in folders that a `.pth` file added.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZipFile

import pytest

from spark_log.cluster.cluster import Cluster
from tests.support.spark import QUICK_JVM, spark_without_delta

REPOSITORY = Path(__file__).resolve().parents[2]
FILES = ("pyproject.toml", "MANIFEST.in", "LICENSE", "README.md", "CHANGELOG.md")
SOURCES = (*FILES, "pyspark_spark_log.py", "spark_log", "jobs", "conf", "examples")

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Distributions:
    sdist: Path
    wheel: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    """The sdist, and the wheel that is built from it. Without build isolation, so that no registry is needed."""
    folder = tmp_path_factory.mktemp("build")
    sources = folder / "sources"  # a copy, because setuptools writes into the source tree
    sources.mkdir()
    for name in SOURCES:
        if (REPOSITORY / name).is_dir():
            shutil.copytree(REPOSITORY / name, sources / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(REPOSITORY / name, sources)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder / "dist"), str(sources)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    [sdist] = (folder / "dist").glob("*.tar.gz")
    [wheel] = (folder / "dist").glob("*.whl")
    return Distributions(sdist, wheel)


@pytest.fixture(scope="module")
def installed(built: Distributions, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` folder of a virtual environment that has spark-log from the wheel only."""
    environment = tmp_path_factory.mktemp("install") / "venv"
    venv.create(environment, symlinks=True)
    [site_packages] = environment.glob("lib/python*/site-packages")
    (site_packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    python = environment / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", str(built.wheel)]
    subprocess.run(pip, check=True, timeout=300)
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


PRODUCE_AND_CONSUME = """
import spark_log
from spark_log import Consumer, Producer

with Producer(cluster="log") as producer:
    print(producer.send("orders", key=b"alice", value=b"tea").get(timeout=60).offset)
with Consumer("orders", cluster="log", auto_offset_reset="earliest", consumer_timeout_ms=1000) as consumer:
    print([(record.key, record.value) for record in consumer])
print(spark_log.__version__)
print(spark_log.__file__)
"""


def readme_program() -> str:
    """The first Python program of the README: ten lines of PySpark."""
    found = re.search(r"```python\n(.*?)```", (REPOSITORY / "README.md").read_text(), re.DOTALL)
    assert found is not None and 'format("spark_log")' in found[1]
    return found[1]


def test_wheel_and_sdist_contain_the_package_its_data_and_the_license(built: Distributions) -> None:
    files = {
        file for file in (REPOSITORY / "spark_log").rglob("*") if file.is_file() and "__pycache__" not in file.parts
    }
    package = {str(file.relative_to(REPOSITORY)) for file in files} | {"pyspark_spark_log.py"}
    assert {"spark_log/py.typed", "spark_log/metadata/migrations/script.py.mako"} <= package
    with ZipFile(built.wheel) as wheel:
        names = set(wheel.namelist())
    assert {name for name in names if not re.match(r"spark_log-[^/]*\.(dist-info|data)/", name)} == package
    assert [name for name in names if name.endswith(".dist-info/licenses/LICENSE")]
    with tarfile.open(built.sdist) as sdist:
        contained = {name.partition("/")[2] for name in sdist.getnames()}
    examples = {str(file.relative_to(REPOSITORY)) for file in (REPOSITORY / "examples").rglob("*.py")}
    assert package | examples | {*FILES} <= contained


def test_jobs_and_settings_are_where_the_command_says(installed: Path, tmp_path: Path) -> None:
    shown = run(installed, "spark-log path jobs; spark-log path conf; spark-log --version", tmp_path)
    assert shown.returncode == 0, shown.stderr
    jobs, conf, version = shown.stdout.splitlines()
    assert Path(jobs).is_relative_to(installed.parent)
    assert {file.name for file in Path(jobs).glob("*.py")} == {file.name for file in (REPOSITORY / "jobs").glob("*.py")}
    assert {file.name for file in Path(conf).iterdir()} == {file.name for file in (REPOSITORY / "conf").iterdir()}
    assert re.fullmatch(r"spark-log \d+\.\d+\.\d+", version)


def test_a_producer_and_a_consumer_run_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    Cluster.init(str(tmp_path / "log")).close()
    (tmp_path / "program.py").write_text(PRODUCE_AND_CONSUME)
    done = run(installed, "python program.py", tmp_path)
    assert done.returncode == 0, done.stderr
    offset, records, version, origin = done.stdout.splitlines()
    assert (offset, records) == ("0", "[(b'alice', b'tea')]")
    assert re.fullmatch(r"\d+\.\d+\.\d+", version)
    assert Path(origin).is_relative_to(installed.parent)


AFTER_THE_TEN_LINES = """
import runpy, subprocess, sys
from spark_log.errors import DeltaNotInstalledError
from spark_log.spark.streams import DeltaOutput, write_stream

print("rows", spark.read.parquet("clicks.parquet").count())
print("rows of the environment's cluster", spark.read.format("spark_log").option("subscribe", "clicks").load().count())
spark.sql("CREATE TABLE of_clicks USING spark_log")
ends = '{"clicks":{"0":2,"1":0,"2":0,"3":0}}'
[row] = spark.sql(f"SELECT count(*) FROM of_clicks WITH ('subscribe'='clicks', 'endingOffsets'='{ends}')").collect()
print("rows of SQL", row[0])
try:
    write_stream(clicks.load(), DeltaOutput("table"), checkpoint="other")
except DeltaNotInstalledError as error:
    print("stream:", error)
sys.argv = [sys.argv[1] + "/consume.py", "--subscribe", "clicks", "--delta", "out"]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_ten_lines_of_pyspark_and_a_job_run_from_the_wheel_without_delta(installed: Path, tmp_path: Path) -> None:
    """With the recommended settings. The environment names the cluster; what needs Delta says how to install it."""
    program = readme_program()
    assert len([line for line in program.splitlines() if line.strip()]) <= 12
    (tmp_path / "program.py").write_text(program.replace("1_000_000", "1_000") + AFTER_THE_TEN_LINES)
    home = spark_without_delta(tmp_path / "spark")
    script = 'export SPARK_CONF_DIR="$(spark-log path conf)"; python program.py "$(spark-log path jobs)"'
    variables = {"SPARK_HOME": str(home), "JAVA_TOOL_OPTIONS": QUICK_JVM, "SPARK_LOG_CLUSTER": str(tmp_path / "log")}
    done = run(installed, script, tmp_path, **variables)
    assert done.returncode == 1, done.stderr[-3000:]
    printed = done.stdout.splitlines()
    assert "only showing top 5 rows" in printed
    assert {"rows 1000", "rows of the environment's cluster 1000", "rows of SQL 2"} <= set(printed)
    assert [line for line in printed if line.startswith("stream:") and "run `spark-log delta install`" in line]
    [said] = [line for line in (done.stdout + done.stderr).splitlines() if line.startswith("consume:")]
    assert "Delta's JARs are missing" in said
    assert "spark-log delta install" in said
    assert not (tmp_path / "out").exists()
