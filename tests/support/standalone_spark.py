"""A real Spark standalone cluster on one machine: a Master and Workers, each a separate process."""

import os
import re
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import pyspark

from tests.support.spark import ENVIRONMENT, QUICK_JVM

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

    def __init__(self, folder: Path, workers: int = 2, cores: int = 1, memory: str = "1g", **environment: str) -> None:
        self._folder = folder
        self._worker_count = workers
        self._resources = ["--cores", str(cores), "--memory", memory]
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
        return self._start(name, "worker.Worker", *self._resources, "--work-dir", str(work), self.master_url)

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
