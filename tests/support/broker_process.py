"""Served brokers in separate processes, which tests kill, stop and restart."""

import signal
import subprocess
from pathlib import Path

from tests.support.python_process import PythonProcess

QUICK = {
    "broker.session.timeout.ms": 1_000,
    "controller.lease.ms": 1_000,
    "replica.lag.time.max.ms": 5_000,
    "leader.imbalance.check.interval.ms": 1_000,
}


class BrokerProcess:
    """`spark-log broker start`; its output goes to `<folder>/broker-<id>.log`."""

    def __init__(self, folder: Path, address: str, broker_id: int, settings: dict[str, int] = QUICK) -> None:
        self.broker_id = broker_id
        self._log = folder / f"broker-{broker_id}.log"
        self._command = ["-c", "from spark_log.cli.main import app; app()", "broker", "start"]
        self._command += ["--id", str(broker_id), "--cluster", address]
        for name, value in settings.items():
            self._command += ["--setting", f"{name}={value}"]
        self._process: PythonProcess | None = None

    def start(self, failpoint: str | None = None) -> None:
        with self._log.open("ab") as log:
            self._process = PythonProcess(*self._command, failpoint=failpoint, stdout=log, stderr=subprocess.STDOUT)

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def output(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, also to a stopped process; does nothing if it has ended."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(timeout=60)

    def end(self) -> int:
        """Send SIGTERM; returns the exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(timeout=60)

    def wait(self) -> int:
        assert self._process is not None
        return self._process.wait(timeout=60)
