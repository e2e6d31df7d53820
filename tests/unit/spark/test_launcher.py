"""`spark-log-python` uses the installed pyspark in place of Spark's zip, where the versions agree."""

import os
import select
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from zipfile import ZipFile

import pyspark
import pytest

from spark_log.spark.launcher import without_installed_zips

SPARK_PYTHON = Path(pyspark.__file__).parent / "python" / "lib"


def zip_with(path: Path, package: str, version: str) -> str:
    with ZipFile(path, "w") as archive:
        archive.writestr(f"{package}/version.py", version)
    return str(path)


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """A site-packages with pyspark 4 and py4j 1, and a file where a folder of that name is looked for."""
    for package, version in (("pyspark", "4"), ("py4j", "1")):
        (tmp_path / "site-packages" / package).mkdir(parents=True)
        (tmp_path / "site-packages" / package / "version.py").write_text(version)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "pyspark").touch()
    return str(tmp_path / "site-packages")


def test_zips_of_installed_versions_are_taken_off(tmp_path: Path, folder: str) -> None:
    zips = [zip_with(tmp_path / "pyspark.zip", "pyspark", "4"), zip_with(tmp_path / "py4j-1-src.zip", "py4j", "1")]
    jar = str(tmp_path / "spark-core.jar")
    assert without_installed_zips([*zips, jar, "/own"], [str(tmp_path / "bin"), folder]) == [jar, "/own"]
    assert without_installed_zips(zips, [str(tmp_path / "bin")]) == zips, "nothing is installed"


def test_zips_of_other_versions_and_other_zips_stay(tmp_path: Path, folder: str) -> None:
    other = zip_with(tmp_path / "pyspark.zip", "pyspark", "3")
    own = zip_with(tmp_path / "pyspark-jobs.zip", "pyspark", "4")
    absent = str(tmp_path / "absent" / "pyspark.zip")
    damaged = tmp_path / "py4j-1-src.zip"
    damaged.write_bytes(b"x")
    for path in (other, own, absent, str(damaged)):
        assert without_installed_zips([path], [folder]) == [path]


def test_the_command_runs_as_python_does_with_the_installed_pyspark(tmp_path: Path) -> None:
    (tmp_path / "shown.py").write_text(
        "import importlib.util, os, sys\n"
        "print(importlib.util.find_spec('pyspark').origin, sys.argv, sys.path[0], __name__, os.environ['PYTHONPATH'])\n"
    )
    zips = [str(SPARK_PYTHON / "pyspark.zip"), *map(str, SPARK_PYTHON.glob("py4j-*-src.zip"))]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*zips, "/own"])}

    def shown(*arguments: str) -> str:
        return subprocess.run(
            [sys.executable, "-c", "from spark_log.spark.launcher import main; main()", *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()

    script, origin = str(tmp_path / "shown.py"), pyspark.__file__
    assert shown("-m", "shown", "a", "-m") == f"{origin} {[script, 'a', '-m']} {tmp_path} __main__ /own"
    assert shown(script, "a") == f"{origin} {[script, 'a']} {tmp_path} __main__ /own"
    assert shown("-c", "import sys; print(sys.executable, sys.argv[1:])", "b") == f"{sys.executable} ['b']"


DAEMON = {
    "PYTHON_UNIX_DOMAIN_ENABLED": "true",
    "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1",
    "PYTHON_WORKER_FACTORY_SECRET": "",
}


@pytest.mark.skipif(sys.platform != "linux", reason="pidfd_open")
def test_idle_worker_ends_silently_when_spark_closes_its_connection() -> None:
    with (
        tempfile.TemporaryDirectory(dir="/tmp") as short,  # the path of a Unix socket has at most 107 characters
        subprocess.Popen(
            [sys.executable, "-c", "from spark_log.spark.launcher import main; main()", "-m", "pyspark.daemon"],
            env={**os.environ, **DAEMON, "PYTHON_WORKER_FACTORY_SOCK_DIR": short},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as daemon,
    ):
        assert daemon.stdin is not None and daemon.stdout is not None and daemon.stderr is not None
        address = daemon.stdout.read(int.from_bytes(daemon.stdout.read(4), "big"))
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(address)
            worker = os.pidfd_open(int.from_bytes(connection.recv(4, socket.MSG_WAITALL), "big"))
        select.select([worker], [], [])
        os.close(worker)
        daemon.stdin.close()  # the daemon ends
        assert daemon.stderr.read() == b""


DAEMON_WITH_NUMPY = """
import os
import numpy.random, pyspark.daemon
from spark_log.spark import launcher

def manager():
    for _ in range(2):
        if os.fork() == 0:
            pyspark.daemon.worker()
            pyspark.daemon.worker()
            os._exit(0)
        os.wait()

pyspark.daemon.worker = lambda: print(numpy.random.random(), flush=True)
pyspark.daemon.manager = manager
numpy.random.seed(0)
launcher._run_daemon()
"""


def test_workers_have_random_numbers_of_their_own() -> None:
    """A daemon that is a fork of the fork server has imported numpy, and its workers would share numpy's state."""
    done = subprocess.run([sys.executable, "-c", DAEMON_WITH_NUMPY], capture_output=True, text=True, timeout=60)
    numbers = done.stdout.split()
    assert len(numbers) == len(set(numbers)) == 4, done.stderr
