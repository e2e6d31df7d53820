"""Spark for the tests: sessions, drivers, a standalone cluster, jobs, checkpoints and the comparison of results.

Spark drivers in separate processes share the JVM of the tests (`driver_gateway`, `connect_driver`), so that a test can
kill one within seconds. A PySpark driver is a Python process and a JVM. The product's part of it runs in the Python
process, which dies at a failpoint; its streaming queries then fail in the JVM. Tests that kill the JVM too start a
driver of their own.

`StandaloneSpark` is a real standalone cluster on one machine: a Master and Workers, each a separate process. `run_job`
runs a job through its `main()` in the session of the tests, without a separate JVM.
"""

import io
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import pyspark
from chispa.rows_comparer import assert_basic_rows_equality
from chispa.schema_comparer import assert_schema_equality
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import DataFrame, SparkSession

from spark_log.spark import delta_jars, launcher
from tests.support import class_archive

QUICK_JVM = f"-XX:+UseSerialGC -XX:TieredStopAtLevel=1 {class_archive.jvm_options()}".rstrip()
"""Tests start many JVMs and compute little in them; the second compiler and its threads would only cost time."""


ENVIRONMENT = {
    "PYSPARK_PYTHON": launcher.executable(),
    "PYSPARK_DRIVER_PYTHON": launcher.executable(),
    "SPARK_LOCAL_IP": "127.0.0.1",
    "SPARK_SUBMIT_OPTS": QUICK_JVM,
}
"""The environment with which a program starts Spark on this machine quickly. conftest.py sets it for all tests."""


def delta_settings() -> dict[str, str]:
    """Settings of a session with Delta. `make delta` puts the JARs beside Spark's own; otherwise Spark fetches them.

    There are none for another Spark than the one of Delta's JARs.
    """
    if not pyspark.__version__.startswith(f"{delta_jars.SPARK}."):
        return {}
    if delta_jars.missing_in(delta_jars.spark_jars_folder()):
        return {**delta_jars.DELTA_SETTINGS, "spark.jars.packages": delta_jars.PACKAGE}
    return delta_jars.DELTA_SETTINGS


def spark_without_delta(folder: Path) -> Path:
    """A SPARK_HOME in `folder`, as after `pip install`: this environment's Spark without the JARs of `make delta`."""
    home = Path(pyspark.__file__).parent
    (folder / "jars").mkdir(parents=True)
    for entry in home.iterdir():
        if entry.name != "jars":
            (folder / entry.name).symlink_to(entry)
    for jar in (home / "jars").iterdir():
        if jar.name not in delta_jars.JARS:
            (folder / "jars" / jar.name).symlink_to(jar)
    return folder


def session(master: str, warehouse: Path, **settings: str) -> SparkSession:
    """A session small enough for a test machine, with Delta, in UTC.

    Further settings have `_` for `.` in their names.
    """
    os.environ.update(ENVIRONMENT)
    builder = SparkSession.builder.master(master).appName("spark-log tests")
    ours = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.driver.extraJavaOptions": QUICK_JVM,
        "spark.executor.extraJavaOptions": QUICK_JVM,
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(warehouse),
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.databricks.delta.retentionDurationCheck.enabled": "false",  # VACUUM … RETAIN 0 HOURS is allowed
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",  # VACUUM lists files in 10,000 tasks else
        **delta_settings(),
        **{name.replace("_", "."): value for name, value in settings.items()},
    }
    for name, value in ours.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def uncommit(checkpoint: Path, batch: int) -> None:
    """As if Spark had been killed after the batch was written and before its own commit."""
    for name in (f"{batch}", f".{batch}.crc"):
        (checkpoint / "commits" / name).unlink(missing_ok=True)


def assert_same_rows(found: DataFrame, expected: "DataFrame | Sequence[tuple[object, ...]]") -> None:
    """`found` has the rows of `expected` in any order, and the columns and types if `expected` is a DataFrame."""
    rows = sorted(found.collect(), key=repr)
    if isinstance(expected, DataFrame):  # chispa would sort both in Spark
        assert_schema_equality(found.schema, expected.schema, ignore_nullable=True)
        assert_basic_rows_equality(rows, sorted(expected.collect(), key=repr))
    else:
        assert list(map(tuple, rows)) == sorted(map(tuple, expected), key=repr)


@contextmanager
def driver_gateway(spark: SparkSession) -> Iterator[tuple[str, str]]:
    """Arguments of `connect_driver` for other processes, one at a time; a second gateway into the JVM of `spark`."""
    server = spark._jvm.org.apache.spark.api.python.Py4JServer(spark.sparkContext._jsc.sc().conf())  # type: ignore[union-attr]
    server.start()
    try:
        yield str(server.getListeningPort()), server.secret()
    finally:
        server.shutdown()


def connect_driver(port: str, secret: str, **settings: str) -> SparkSession:
    """A session of this process's own in the JVM; settings have `_` for `.` in their names."""
    os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"] = port, secret
    java = launch_gateway()  # type: ignore[no-untyped-call]
    SparkContext._ensure_initialized(gateway=java)
    scala_context = java.jvm.org.apache.spark.SparkContext.getOrCreate()
    context = SparkContext(
        conf=SparkConf(_jconf=scala_context.conf()),
        gateway=java,
        jsc=java.jvm.JavaSparkContext.fromSparkContext(scala_context),
    )
    shared = java.jvm.org.apache.spark.sql.classic.SparkSession.builder().sparkContext(scala_context).getOrCreate()
    session = SparkSession(context, shared.newSession())
    for name, value in settings.items():
        session.conf.set(name.replace("_", "."), value)
    return session


_MASTER_URL = re.compile(r"Starting Spark master at (spark://\S+)")
_WEB_UI = re.compile(r"WebUI.* (http://\S+:[0-9]+)")
_REGISTERED = "Successfully registered with master"


@dataclass
class Daemon:
    """One Master or Worker process and its log file."""

    name: str
    process: subprocess.Popen[bytes]
    log_file: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def wait_for(self, pattern: str | re.Pattern[str], timeout_s: float = 60.0) -> re.Match[str]:
        """The first match of `pattern` in the log; an error if the process ends or the timeout passes before."""
        deadline = time.monotonic() + timeout_s
        while True:
            log = self.log_file.read_text(errors="replace")
            if found := re.search(pattern, log):
                return found
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self.name} said nothing like {pattern!r}:\n{log[-4000:]}")
            time.sleep(0.1)

    def web_ui(self) -> str:
        """The URL of its web UI."""
        return self.wait_for(_WEB_UI).group(1)

    def stop(self) -> None:
        """Terminate it; a Worker ends its executors too."""
        self.process.terminate()
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """Kill it, as when a machine fails. A Worker's executors detect it and end by themselves."""
        self.process.kill()
        self.process.wait(timeout=20)


class StandaloneSpark:
    """A Master and `workers` Workers: `with StandaloneSpark(folder) as cluster:`, then a session on its `master_url`.

    Every process runs this environment's Spark, with `environment` added to what the executors inherit.
    """

    def __init__(self, folder: Path, workers: int = 2, **environment: str) -> None:
        self._folder = folder
        self._worker_count = workers
        self._environment = environment
        self.daemons: list[Daemon] = []
        self.master_url = ""

    @property
    def workers(self) -> list[Daemon]:
        return self.daemons[1:]

    def __enter__(self) -> "StandaloneSpark":
        try:
            master = self._start("master", "master.Master")
            self.master_url = master.wait_for(_MASTER_URL).group(1)
            for number in range(1, self._worker_count + 1):
                self.add_worker(f"worker-{number}")
            for worker in self.workers:
                worker.wait_for(_REGISTERED)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for daemon in reversed(self.daemons):
            daemon.stop()

    def add_worker(self, name: str) -> Daemon:
        """Start one more Worker. It has registered once its log says so: `.wait_for("registered")`."""
        work = self._folder / name
        return self._start(
            name, "worker.Worker", "--cores", "1", "--memory", "1g", "--work-dir", str(work), self.master_url
        )

    def _start(self, name: str, main_class: str, *arguments: str) -> Daemon:
        home = Path(pyspark.__file__).parent
        log_file = self._folder / f"{name}.log"
        environment = {
            **os.environ,
            "SPARK_HOME": str(home),
            "SPARK_CONF_DIR": str(home / "conf"),  # not the developer's own
            "SPARK_DAEMON_MEMORY": "512m",
            "SPARK_DAEMON_JAVA_OPTS": QUICK_JVM,
            "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",  # it has a fixed port
            **ENVIRONMENT,
            **self._environment,
        }
        address = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{main_class}", *address, *arguments]
        with log_file.open("wb") as log:
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=self._folder)
        self.daemons.append(Daemon(name, process, log_file))
        return self.daemons[-1]


class Printed(NamedTuple):
    out: str
    err: str


def run_job(
    spark: SparkSession,
    cluster: Path,
    job: str,
    *arguments: str,
    exit_code: int = 0,
    until: Callable[[str], bool] | None = None,
) -> Printed:
    """Run `job` in `spark`; returns its output.

    With `until`, this process gets SIGTERM as soon as `until` is true of the job's stdout so far. A thread polls it
    once the job handles signals.
    """
    assert spark is not None, "main() takes the active session"
    main = import_module(f"spark_log.spark.jobs.{job}").main
    out, err = io.StringIO(), io.StringIO()
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    ended = threading.Event()

    def due() -> bool:
        handled = signal.getsignal(signal.SIGTERM) != before[signal.SIGTERM]
        return handled and until is not None and until(out.getvalue())

    def terminate_when_due() -> None:
        while not ended.wait(0.05):
            if due():
                os.kill(os.getpid(), signal.SIGTERM)
                return

    watch = threading.Thread(target=terminate_when_due)
    watch.start()
    try:
        with redirect_stdout(out), redirect_stderr(err):
            code = main([*arguments, "--cluster", str(cluster)])
    finally:
        ended.set()
        watch.join()
        for number, handler in before.items():
            signal.signal(number, handler)
    assert code == exit_code, out.getvalue() + err.getvalue()
    return Printed(out.getvalue(), err.getvalue())
