"""The server that forks Spark's planning processes, under a program that stands for the JVM."""

import json
import os
import subprocess
import sys
import time

import pytest

PROCESS = """
import atexit, json, os, signal, sys
from spark_log.spark import fork_server

class Module:
    def __del__(self):
        os.write(1, b"torn down")

fork_server._IMPORTED = ("decimal",)
address = fork_server._address(os.getppid())[1:].decode()
fork_server.take_over(sys.argv[1:])
facts = {
    "imported": "decimal" in sys.modules, "pid": os.getpid(), "parent": os.getppid(),
    "address": address, "variable": os.environ.get("PYTHON_TEST"), "folder": os.getcwd(),
}
print(json.dumps(facts), flush=True)
module = Module()

def program():
    atexit.register(print, "handlers called")
    if sys.stdin.readline() == "wait\\n":
        signal.pause()
    sys.exit(7)

fork_server.run_program(program)
"""

JVM = """
import json, os, subprocess, sys, time
from pathlib import Path

def started(module, given="", **variables):
    command = [sys.executable, "-c", sys.argv[1], module]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **variables}
    )
    process.stdin.write(given + "\\n")
    process.stdin.flush()
    return process, json.loads(process.stdout.readline())

first, lookup = started("pyspark.sql.worker.lookup_data_sources")
while lookup["address"] not in Path("/proc/net/unix").read_text():
    time.sleep(0.01)
second, forked = started("pyspark.sql.worker.create_data_source", PYTHON_TEST="1")
third, other = started("pyspark.sql.worker.create_data_source", PYTHONHASHSEED="1")
fourth, executor = started("pyspark.daemon")
fifth, stopped = started("pyspark.sql.streaming.python_streaming_source_runner", "wait")
fifth.terminate()
print(json.dumps({
    "lookup": lookup, "forked": {**forked, "spark's": second.pid}, "other": other, "executor": executor,
    "stopped": stopped, "statuses": [each.wait() for each in (first, second, third, fourth, fifth)],
    "folder": os.getcwd(), "ends": {"forked": second.stdout.read(), "other": third.stdout.read()},
}))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the server is for Linux")
def test_planning_processes_are_forks_of_a_server_that_ends_with_the_jvm() -> None:
    done = subprocess.run([sys.executable, "-c", JVM, PROCESS], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    forked = facts["forked"]
    assert forked["imported"] and forked["variable"] == "1" and forked["folder"] == facts["folder"]
    assert forked["pid"] != forked["spark's"], "Spark's own process waits for the fork"
    assert facts["stopped"]["parent"] == forked["parent"], "one server"
    alone = [facts[name] for name in ("lookup", "other", "executor")]
    assert not any(each["imported"] for each in alone), "the first, one of another environment, an executor's"
    assert facts["statuses"] == [7, 7, 7, 7, 128 + 15], "SIGTERM reaches the fork"
    assert facts["ends"] == {"forked": "handlers called\n", "other": "handlers called\ntorn down"}
    while os.path.exists(f"/proc/{forked['parent']}"):  # it ends soon, or pytest's timeout ends the test
        time.sleep(0.01)
