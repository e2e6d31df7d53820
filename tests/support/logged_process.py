"""A `spark-log` command in a separate process, with its output in a file."""

import signal
import subprocess
from pathlib import Path

from tests.support.python_process import PythonProcess


class LoggedProcess:
    """`spark-log <arguments>`, which can be started again after its end; its output goes to `log`."""

    def __init__(self, log: Path, *arguments: str) -> None:
        self._log = log
        self._command = ["-c", "from spark_log.cli.main import app; app()", *arguments]
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

    def wait_until_stopped(self) -> None:
        """Until all threads of the process have stopped (SIGSTOP), or it has ended."""
        assert self._process is not None
        self._process.wait_until_stopped()

    def kill(self) -> None:
        """SIGKILL, also to a stopped process; does nothing if it has ended."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(timeout=60)

    def end(self) -> int:
        """Send SIGTERM; returns the exit code."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        assert self._process is not None
        return self._process.wait(timeout=60)
