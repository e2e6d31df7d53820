"""`python -m tests.support.fork_server FD`: forks processes that have imported the libraries already.

A fresh interpreter needs about 1.5 s of CPU time to import pyarrow, SQLAlchemy and deltalake. The server imports them
once and forks for each request on the socket FD (see `python_process`). It has one thread and no open store, so its
forks behave as fresh interpreters do. In a child, `main` returns the program to run: the interpreter then joins its
threads and runs atexit handlers as usual, and ends without the teardown of its modules (`run_program`).

For each request the server forks a keeper, which forks the child and reports its pid and each of its wait statuses.
"""

import atexit
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import sys
import types
from collections.abc import Callable
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


def main(requests: socket.socket) -> Callable[[], None] | None:
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


if __name__ == "__main__":
    atexit.register(end_without_teardown)
    _work = main(socket.socket(fileno=int(sys.argv[1])))
    if _work is not None:
        run_program(_work)
