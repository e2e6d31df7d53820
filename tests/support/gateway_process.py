"""A gateway in a separate process, for the Kafka clients of tests."""

import signal
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType

from tests.support.postgres import free_port
from tests.support.python_process import PythonProcess


class GatewayProcess:
    """`spark-log gateway` on a free loopback port; its output goes to `<folder>/gateway-<port>.log`.

    A context manager: starts and waits until it listens; ends it at exit. After `kill`, `start` begins it again on the
    same port.
    """

    def __init__(self, folder: Path, cluster_address: str, *options: str) -> None:
        """`options` are further options of the command, such as "--zone", "a"."""
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self._log = folder / f"gateway-{self.port}.log"
        self._command = ["-c", "from spark_log.cli.main import app; app()", "gateway", "--cluster", cluster_address]
        self._command += ["--listen", self.address, *options]
        self._process: PythonProcess | None = None

    def start(self, failpoint: str | None = None, timeout_s: float = 60.0) -> None:
        """Start, and wait until clients can connect."""
        written = f"listens on {self.address}"
        already = self.output.count(written)
        with self._log.open("ab") as log:
            self._process = PythonProcess(*self._command, failpoint=failpoint, stdout=log, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + timeout_s
        while self.output.count(written) == already or not self._listens():
            assert self._process.poll() is None, f"the gateway has ended:\n{self.output[-4000:]}"
            assert time.monotonic() < deadline, f"the gateway does not listen:\n{self.output[-4000:]}"
            time.sleep(0.02)

    def _listens(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=5).close()
        except OSError:
            return False
        return True

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

    def __enter__(self) -> "GatewayProcess":
        self.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._process is not None and self._process.poll() is None:
            try:
                self.end()
            except subprocess.TimeoutExpired:
                self.kill()
                raise
