"""Servers: `spark-log` commands in separate processes, gateways and served brokers, which tests kill, stop and restart;
servers on loopback in threads, one whose answer never ends, and free ports.
"""

import contextlib
import http.server
import os
import random
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.support.python_process import PythonProcess
from tests.support.waiting import LIMIT_S, Worker, wait_until

_FIRST, _PER_WORKER = 12_000, 2_000
"""Below the ports that the system gives to outgoing connections, which could take one before its server starts."""


def free_port() -> int:
    """A port that nothing listens on, and that no server of this process had before: a client of an ended test may
    still try to reach its server, and would create topics in the cluster of another test.
    """
    for port in _PORTS:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise AssertionError("no port is left")


def _ports() -> Iterator[int]:
    """A part of the ports for each worker of pytest-xdist; processes begin at different ones."""
    first = _FIRST + _PER_WORKER * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    begin = random.SystemRandom().randrange(_PER_WORKER)
    return (first + (begin + number) % _PER_WORKER for number in range(_PER_WORKER))


_PORTS = _ports()


@contextlib.contextmanager
def running_server(server: http.server.HTTPServer) -> Iterator[str]:
    """The URL of a server on loopback that answers during the block."""
    thread = threading.Thread(target=server.serve_forever, args=[0.01], daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextlib.contextmanager
def endless_answer(start: bytes) -> Iterator[str]:
    """The URL of a server that sends `start` to its only client, and then a byte now and then, so that no wait for the
    next one is long. At the end of the block the client must have closed its connection.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            client = server.accept()[0]
            with client, contextlib.suppress(OSError):
                client.sendall(start)
                while True:  # ends when the reader closes its end
                    client.sendall(b"1")
                    time.sleep(0.02)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        thread.join(timeout=60)
        assert not thread.is_alive()


class LoggedProcess:
    """`spark-log <arguments>`, which can be started again after its end; its output goes to `log`."""

    def __init__(self, log: Path, *arguments: str) -> None:
        self._log = log
        self._command = ["-c", "from spark_log.cli.main import app; app()", *arguments]
        self._process: subprocess.Popen[Any] | None = None

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
        assert isinstance(self._process, PythonProcess)
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
        return self._process.wait(timeout=LIMIT_S)


class GatewayProcess(LoggedProcess):
    """`spark-log gateway` on a free loopback port; its output goes to `<folder>/gateway-<port>.log`.

    A context manager: starts and waits until it listens; ends it at exit. After `kill`, `start` begins it again on the
    same port.
    """

    def __init__(self, folder: Path, cluster_address: str, *options: str) -> None:
        """`options` are further options of the command, such as "--zone", "a"."""
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        log = folder / f"gateway-{self.port}.log"
        super().__init__(log, "gateway", "--cluster", cluster_address, "--listen", self.address, *options)

    def start(self, failpoint: str | None = None) -> None:
        """Start, and wait until clients can connect."""
        written = f"listens on {self.address}"
        already = self.output.count(written)
        super().start(failpoint)

        def listens() -> bool:
            assert self.running, f"the gateway has ended:\n{self.output[-4000:]}"
            return self.output.count(written) > already and self._listens()

        wait_until(listens, f"the gateway listens, whose output is in {self._log}", pause_s=0.02)

    def memory_mb(self, field: str = "VmRSS") -> float:
        """The resident memory of the process, with `VmHWM` its peak so far."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.partition(f"{field}:")[2].split()[0]) / 1024

    def _listens(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=5).close()
        except OSError:
            return False
        return True

    def __enter__(self) -> "GatewayProcess":
        self.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self.running:
            try:
                self.end()
            except subprocess.TimeoutExpired:
                self.kill()
                raise


@contextlib.contextmanager
def killed_at_each(gateway: GatewayProcess, failpoints: Sequence[str]) -> Iterator[None]:
    """Run the gateway: it is killed at one failpoint after the other, and started again each time, at last without one.
    At the end it must have been killed at all of them.
    """
    reached: list[str | None] = [failpoints[0]]

    def keep_running(stop: threading.Event) -> None:
        left = iter(failpoints[1:])
        while not stop.is_set():
            if not gateway.running:
                reached.append(next(left, None))
                with contextlib.suppress(AssertionError):  # killed already
                    gateway.start(failpoint=reached[-1])
            stop.wait(0.02)

    gateway.start(failpoint=reached[0])
    keeping = Worker(keep_running)
    try:
        yield
    finally:
        keeping.finish()
        gateway.kill()
    assert reached == [*failpoints, None], "the gateway was killed at every failpoint"


QUICK = {
    "broker.session.timeout.ms": 3_000,  # with 1 s, three brokers on two busy cores lose their leases all the time
    "controller.lease.ms": 3_000,
    "replica.lag.time.max.ms": 5_000,
    "leader.imbalance.check.interval.ms": 1_000,
}


class BrokerProcess(LoggedProcess):
    """`spark-log broker start`; its output goes to `<folder>/broker-<id>.log`."""

    def __init__(self, folder: Path, address: str, broker_id: int) -> None:
        self.broker_id = broker_id
        options = [part for name, value in QUICK.items() for part in ("--setting", f"{name}={value}")]
        log = folder / f"broker-{broker_id}.log"
        super().__init__(log, "broker", "start", "--id", str(broker_id), "--cluster", address, *options)
