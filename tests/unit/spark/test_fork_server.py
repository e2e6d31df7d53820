"""The server that forks the Python processes of Spark's driver, under a program that stands for the JVM."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

PROCESS = """
import atexit, json, os, signal, sys
from spark_log.spark import fork_server

class Module:
    def __del__(self):
        os.write(1, b"torn down")

fork_server._IMPORTED, fork_server._IMPORTED_AFTER_FIRST_FORK = ("decimal", "gate"), ("fractions",)
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

GATE = """
import os
with open(os.environ["GATE"]) as gate:
    exec(gate.read())
"""
"""A module of which the import lasts until something is written into a named pipe."""

JVM = """
import json, os, signal, subprocess, sys, time
from pathlib import Path

def start(module, *arguments, given="", **variables):
    command = [sys.executable, "-c", sys.argv[1], module, *arguments]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **variables}
    )
    process.stdin.write(given + "\\n")
    process.stdin.flush()
    return process

def facts_of(process):
    return json.loads(process.stdout.readline())

def sockets(address, count):
    while Path("/proc/net/unix").read_text().count(address) < count:
        time.sleep(0.01)

def lookup_then_source(gate, import_ends, given=""):
    lookup = start("pyspark.sql.worker.lookup_data_sources", GATE=gate)
    facts = facts_of(lookup)
    sockets(facts["address"], 1)
    source = start("pyspark.sql.worker.create_data_source", given=given, PYTHON_TEST="1", GATE=gate)
    sockets(facts["address"], 2)  # it waits for the server, which is importing
    Path(gate).write_text(import_ends)
    return lookup, facts, source, facts_of(source)

first, lookup, second, forked = lookup_then_source("gate", "pass")
third = start("pyspark.sql.worker.create_data_source", PYTHONHASHSEED="1", GATE="gate")
fourth = start("pyspark.daemon", GATE="gate")
fifth = start("pyspark.daemon", "pyspark.worker", OMP_NUM_THREADS="1", GATE="gate")
sixth = start("pyspark.sql.streaming.python_streaming_source_runner", given="wait", GATE="gate")
other, executor, tasks, stopped = map(facts_of, (third, fourth, fifth, sixth))
sixth.terminate()
seventh, _, eighth, failed = lookup_then_source("other-gate", "raise ImportError")
thread = "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()"
ninth, _, tenth, threaded = lookup_then_source("third-gate", thread)
eleventh, _, twelfth, of_killed = lookup_then_source("fourth-gate", "pass", "wait")
os.kill(of_killed["parent"], signal.SIGKILL)
try:
    ended_first = twelfth.wait(timeout=1)
except subprocess.TimeoutExpired:
    ended_first = None
os.kill(of_killed["pid"], signal.SIGKILL)
processes = (first, second, third, fourth, fifth, sixth, seventh, eighth, ninth, tenth, eleventh, twelfth)
print(json.dumps({
    "lookup": lookup, "forked": {**forked, "spark's": second.pid}, "other": other, "executor": executor, "tasks": tasks,
    "stopped": stopped, "failed": failed, "threaded": threaded, "ended_first": ended_first,
    "statuses": [each.wait() for each in processes],
    "folder": os.getcwd(), "ends": {"forked": second.stdout.read(), "other": third.stdout.read()},
}))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the server is for Linux")
def test_processes_of_the_driver_are_forks_of_a_server_that_ends_with_the_jvm(tmp_path: Path) -> None:
    (tmp_path / "gate.py").write_text(GATE)
    for name in ("gate", "other-gate", "third-gate", "fourth-gate"):
        os.mkfifo(tmp_path / name)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), str(tmp_path)])}
    environment.pop("OMP_NUM_THREADS", None)
    done = subprocess.run(
        [sys.executable, "-c", JVM, PROCESS],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=tmp_path,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    forked = facts["forked"]
    assert forked["imported"] and forked["variable"] == "1" and forked["folder"] == facts["folder"]
    assert forked["pid"] != forked["spark's"], "Spark's own process waits for the fork"
    assert {facts[name]["parent"] for name in ("stopped", "tasks")} == {forked["parent"]}, "one server"
    alone = [facts[name] for name in ("lookup", "other", "executor")]
    assert not any(each["imported"] for each in alone), "the first, one of another environment, an executor's"
    without_server = [facts[name] for name in ("failed", "threaded")]
    assert not any(each["imported"] for each in without_server), "a server that failed, one that has threads"
    assert facts["statuses"] == [7, 7, 7, 7, 7, 128 + 15, 7, 7, 7, 7, 7, 1], "SIGTERM reaches the fork"
    assert facts["ended_first"] is None, "a process waits for its fork, also when the server has been killed"
    assert facts["ends"] == {"forked": "handlers called\n", "other": "handlers called\ntorn down"}
    while os.path.exists(f"/proc/{forked['parent']}"):  # it ends soon, or pytest's timeout ends the test
        time.sleep(0.01)
