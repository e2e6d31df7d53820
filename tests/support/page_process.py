"""A process that runs the blocks of documentation pages, so that Python and Spark start once for all of them.

`python -m tests.support.page_process SOCKET` serves two things:

- Python programs, from stdin to stdout: one JSON object a line, `{"code", "name"}`, answered by `{"output", "error"}`.
  Programs share a namespace until `{"end": true}`, and one Spark session throughout.
- Commands `spark-log …` at the Unix socket: each is a fork that has the modules loaded. A program of
  tests/support/pages.py requests one.
"""

import atexit
import contextlib
import gc
import io
import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from typing import Any

from spark_log.spark.fork_server import end_without_teardown, run_program
from tests.support.python_process import preload

PRELOADED = (
    "spark_log.clients.admin.client",
    "spark_log.cli.records.record_sender",
    "spark_log.facts.topics",
    "spark_log.groups.group_operations",
)


def main(path: str) -> None:
    atexit.register(end_without_teardown)
    preload(*PRELOADED)
    server = os.fork()  # before any thread starts
    if server == 0:
        run_program(_serve(path))
        return
    try:
        _run_programs()
    finally:
        os.kill(server, signal.SIGKILL)


def _run_programs() -> None:
    requests, answers = sys.stdin, os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # keeps the JVM's output out of the answers
    print(json.dumps({"ready": True}), file=answers, flush=True)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for line in requests:
        request = json.loads(line)
        if "end" in request:
            namespace = {"__name__": "__main__"}
            _stop_queries()
            answer: dict[str, str | None] = {}
        else:
            answer = _run(request["code"], request["name"], namespace)
        print(json.dumps(answer), file=answers, flush=True)


def _run(code: str, name: str, namespace: dict[str, Any]) -> dict[str, str | None]:
    printed = io.StringIO()
    error = None
    with contextlib.redirect_stdout(printed):
        try:
            exec(compile(code, name, "exec"), namespace)
        except Exception:
            error = traceback.format_exc()
    return {"output": printed.getvalue(), "error": error}


def _stop_queries() -> None:
    gc.collect()
    if "pyspark" in sys.modules:
        from pyspark.sql import SparkSession

        if session := SparkSession.getActiveSession():
            for query in session.streams.active:
                query.stop()


def _serve(path: str) -> Callable[[], None]:
    """Serve commands for ever. Returns in each fork, with the command that the fork is to run."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        while True:
            connection, _ = server.accept()
            if os.fork() == 0:
                break
            connection.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    request, descriptors, _, _ = socket.recv_fds(connection, 1 << 20, 3)
    command = os.fork()
    if command:
        connection.sendall(f"{command}\n".encode())
        _, status = os.waitpid(command, 0)
        connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
        os._exit(0)
    connection.close()
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    asked = json.loads(request)
    os.chdir(asked["folder"])
    os.umask(asked["umask"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    sys.argv = asked["arguments"]
    from spark_log.cli.main import app

    return lambda: app(prog_name="spark-log")


if __name__ == "__main__":
    main(*sys.argv[1:])
