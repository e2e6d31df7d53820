"""Python processes that start in milliseconds: forks of a server that has imported the libraries.

They are separate processes with a pid, pipes and an exit code, and have the interface of `subprocess.Popen`. Tests of
imports, of the start of the interpreter, or of objects that a process can have only once (a JVM) start a fresh
interpreter with `run_python` instead.

`python -m tests.support.python_process FD`, the server, forks processes that have imported the libraries already.

A fresh interpreter needs about 1.5 s of CPU time to import pyarrow, SQLAlchemy and deltalake. The server imports them
once and forks for each request on the socket FD. It has one thread and no open store, so its forks behave as fresh
interpreters do. In a child, `serve` returns the program to run: the interpreter then joins its threads and runs atexit
handlers as usual, and ends without the teardown of its modules (`run_program`).

For each request the server forks a keeper, which forks the child and reports its pid and each of its wait statuses.
"""

import atexit
import functools
import gc
import importlib
import json
import multiprocessing
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spark_log.spark.fork_server import end_without_teardown, run_program

PRELOADED = (
    "pandas", "pyarrow.compute", "pyarrow.dataset", "pyarrow.parquet",
    "sqlalchemy.dialects.sqlite", "sqlalchemy.dialects.postgresql.psycopg",
    "alembic.command", "psycopg", "deltalake", "kafka", "kafka.errors",
    "pyspark.sql.types", "pyspark.worker_util", "spark_log.spark.datasource.source",
    "spark_log.cli.main", "spark_log.clients.consume.consumer", "spark_log.maintenance.coordinator.coordinator",
    "spark_log.clients.produce.producer", "spark_log.maintenance", "spark_log.metadata.migrations",
    "spark_log.gateway.server", "spark_log.facts.topics", "spark_log.facts.transactions",
    "spark_log.maintenance.coordinator.broker",
    "tests.support.records",
    "rich.box", "rich.markup", "rich.table", "typer._adapters", "typer.rich_utils",
)  # fmt: skip

REQUEST_BYTES_MAX = 1 << 18


def preload(*more: str) -> None:
    """Import the modules that programs need. The collections of forks, at their ends too, do not visit the objects."""
    for module in (*PRELOADED, *more):
        importlib.import_module(module)
    gc.collect()
    gc.freeze()


def serve(requests: socket.socket) -> Callable[[], None] | None:
    """Serve until the other end closes, and return None. In a child: return its program."""
    preload()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # keepers are reaped by the kernel
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, REQUEST_BYTES_MAX, 4)
        if not message:
            return None
        if os.fork() == 0:
            requests.close()
            return _keeper(json.loads(message), descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _keeper(request: dict[str, Any], descriptors: list[int]) -> Callable[[], None]:
    """Fork the child and return its program; the keeper itself ends here, with the child."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    *streams, reports = descriptors
    child = os.fork()
    if child == 0:
        os.close(reports)
        return _prepare(request, streams)
    for stream in streams:
        os.close(stream)
    status = None
    os.write(reports, f"{child}\n".encode())
    while status is None or os.WIFSTOPPED(status):
        _, status = os.waitpid(child, os.WUNTRACED)
        os.write(reports, f"{status}\n".encode())
    os._exit(0)


def _prepare(request: dict[str, Any], streams: list[int]) -> Callable[[], None]:
    """Give the fork the state of a fresh interpreter."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if request["start_new_session"]:
        os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - as the interpreter's own, open to the end
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    kind, program, *arguments = request["arguments"]
    sys.argv = [kind, *arguments]
    if kind == "-m":
        return lambda: _run_module(program)
    return lambda: _run_text(program)


def _run_module(name: str) -> None:
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def _run_text(program: str) -> None:
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    exec(compile(program, "<string>", "exec"), module.__dict__)


REPOSITORY = Path(__file__).parents[2]

forkserver = multiprocessing.get_context("forkserver")
"""For functions of a test in separate processes, with locks and queues between them."""
forkserver.set_forkserver_preload(list(PRELOADED))


class PythonProcess(subprocess.Popen[Any]):
    """`python -m MODULE ARGUMENTS` or `python -c PROGRAM ARGUMENTS`, in the repository or another folder.

    `failpoint` is the failpoint that kills it (`spark_log.failpoints`).
    """

    def __init__(
        self, *arguments: object, failpoint: str | None = None, folder: Path = REPOSITORY, **keywords: Any
    ) -> None:
        environment = {name: value for name, value in os.environ.items() if name != "SPARK_LOG_FAILPOINT"}
        if failpoint is not None:
            environment["SPARK_LOG_FAILPOINT"] = failpoint
        self._reports: socket.socket | None = None
        self._unread = b""
        super().__init__(list(map(str, arguments)), cwd=folder, env=environment, **keywords)

    def wait_until_stopped(self) -> None:
        """After SIGSTOP: wait until all of its threads have stopped, or it has ended."""
        with self._waitpid_lock:  # type: ignore[attr-defined]
            if self.returncode is None:
                status = self._next_report(block=True)
                assert status is not None
                if not os.WIFSTOPPED(status):
                    self._handle_exitstatus(status)  # type: ignore[attr-defined]

    # Replacements for the uses of fork, exec and waitpid in subprocess.Popen:

    def _execute_child(
        self, args: list[str], _executable: Any, _preexec: Any, _close_fds: Any, _pass_fds: Any, cwd: Path,
        env: dict[str, str], _startupinfo: Any, _creationflags: Any, _shell: Any,
        p2cread: int, p2cwrite: int, c2pread: int, c2pwrite: int, errread: int, errwrite: int,
        _restore_signals: Any, _gid: Any, _gids: Any, _uid: Any, _umask: Any, start_new_session: bool, *_: Any,
    ) -> None:  # fmt: skip
        request = {
            "arguments": args, "cwd": str(cwd), "environment": env, "start_new_session": start_new_session,
        }  # fmt: skip
        streams = [own if given == -1 else given for own, given in enumerate((p2cread, c2pwrite, errwrite))]
        self._reports, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(_server(), [json.dumps(request).encode()], [*streams, theirs.fileno()])
        self.pid = int(self._report(block=True) or 0)
        self._child_created = True
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)  # type: ignore[attr-defined]

    def _try_wait(self, flags: int) -> tuple[int, int]:
        while True:
            status = self._next_report(block=not flags & os.WNOHANG)
            if status is None:
                return 0, 0
            if not os.WIFSTOPPED(status):
                return self.pid, status

    def _internal_poll(self, _deadstate: Any = None, **_: Any) -> int | None:
        """Popen calls this for processes that were dropped while they ran, whenever another one starts.

        The garbage collector may have closed the socket of such a process. An error here would fail every later start.
        """
        if self.returncode is None and self._reports is not None and self._waitpid_lock.acquire(False):  # type: ignore[attr-defined]
            try:
                pid, status = self._try_wait(os.WNOHANG)
                if pid == self.pid:
                    self._handle_exitstatus(status)  # type: ignore[attr-defined]
            except OSError:
                if _deadstate is None:
                    raise
                self.returncode = _deadstate
            finally:
                self._waitpid_lock.release()  # type: ignore[attr-defined]
        return self.returncode

    def _next_report(self, *, block: bool) -> int | None:
        report = self._report(block=block)
        return None if report is None else int(report)

    def _report(self, *, block: bool) -> str | None:
        """The keeper's next line: the pid, then wait statuses."""
        assert self._reports is not None
        while b"\n" not in self._unread:
            try:
                received = self._reports.recv(4096, 0 if block else socket.MSG_DONTWAIT)
            except BlockingIOError:
                return None
            if not received:
                raise AssertionError("the fork server has ended")
            self._unread += received
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode()


def run_process(
    *arguments: object, failpoint: str | None = None, given: str | None = None, timeout_s: float = 120.0
) -> "subprocess.CompletedProcess[str]":
    """Run a PythonProcess with this input to its end; returns its exit code and output."""
    pipe = subprocess.PIPE
    stdin = None if given is None else pipe
    with PythonProcess(*arguments, failpoint=failpoint, stdin=stdin, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            out, err = process.communicate(given, timeout=timeout_s)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def output_of(program: str, *arguments: object, timeout_s: float = 120.0) -> str:
    """Run the text of a program to its end; its stdout, or an error with all it printed."""
    done = run_process("-c", program, *arguments, timeout_s=timeout_s)
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-8000:]}"
    return done.stdout


def killed_at(failpoint: str, *arguments: object) -> str:
    """Run until the failpoint kills the process, which must happen; returns its output."""
    done = run_process(*arguments, failpoint=failpoint)
    assert done.returncode == -signal.SIGKILL, f"never came to {failpoint}: {done.stderr[-4000:]}"
    return done.stdout


@functools.cache
def _start_server(_owner: int) -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = [sys.executable, "-m", "tests.support.python_process", str(theirs.fileno())]
        server = subprocess.Popen(
            command, cwd=REPOSITORY, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )

    def end() -> None:
        ours.close()
        server.wait(timeout=30)

    atexit.register(end)
    return ours


_starting = threading.Lock()


def _server() -> socket.socket:
    """The fork server of this process, started at the first use."""
    with _starting:
        return _start_server(os.getpid())


def run_python(program: str, *arguments: str) -> str:
    """Run `program` text in the repository with this interpreter; its stdout, or an error with all it printed."""
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode != 0:
        raise AssertionError(f"exit code {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-8000:]}")
    return done.stdout


if __name__ == "__main__":
    atexit.register(end_without_teardown)
    _work = serve(socket.socket(fileno=int(sys.argv[1])))
    if _work is not None:
        run_program(_work)
