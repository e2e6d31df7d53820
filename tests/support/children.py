"""Processes that a test has started, and processes with several lives.

`Child` has the output, the input and the end of a process that prints lines.

`live` is for the program in a child: forks that do the same work, one after the other, and are killed during it. A life
is a failpoint (`append.decided:2`), `kill` (killed at a random moment after the work has started), or `on`: this
process itself, to the end, as the last life. Forks save the second that Python takes to start. After each killed life
`lived LIFE` is printed.
"""

import os
import queue
import random
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence

import pandas  # noqa: F401 - pyarrow imports it with its first value: here once, not in each life
import sqlalchemy as sa

from spark_log.errors import SparkLogError
from spark_log.metadata import tables as t
from spark_log.metadata.store import Store
from tests.support.python_process import PythonProcess
from tests.support.waiting import LIMIT_S


class Child:
    """`python -m MODULE ARGUMENTS`, whose lines are read in the background. It and its forks are one process group."""

    def __init__(self, module: str, *arguments: object, failpoint: str | None = None) -> None:
        pipe = subprocess.PIPE
        self._process = PythonProcess(
            "-m", module, *arguments, failpoint=failpoint, stdin=pipe, stdout=pipe, text=True, start_new_session=True
        )
        self.lines: list[list[str]] = []
        self._new: queue.Queue[None] = queue.Queue()
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.endswith("\n"):  # otherwise the partial last line of a killed process
                self.heard(line.split())
                self.lines.append(line.split())
                self._new.put(None)

    def heard(self, line: list[str]) -> None:
        """Each line, as it comes."""

    def say(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(word + "\n")
        self._process.stdin.flush()

    def close_input(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()

    def printed(self, *words: object) -> bool:
        wanted = [str(word) for word in words]
        return any(line[: len(wanted)] == wanted for line in list(self.lines))

    def said(self, word: str) -> list[list[str]]:
        """The rest of each line that begins with the word."""
        return [line[1:] for line in list(self.lines) if line[0] == word]

    def count(self, word: str) -> int:
        return len(self.said(word))

    def acked(self) -> dict[int, tuple[int, int]]:
        """Of a numbered producer: {number: (partition, offset)} of the acknowledged records; none may have failed."""
        assert not self.said("failed")
        return {int(number): (int(partition), int(offset)) for number, partition, offset in self.said("acked")}

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def waits_for(self, condition: Callable[["Child"], bool]) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not condition(self):
            assert self._process.poll() is None or not self._new.empty(), self.lines[-20:]
            assert time.monotonic() < deadline, self.lines[-20:]
            try:
                self._new.get(timeout=0.1)
            except queue.Empty:
                continue

    def stop(self, store: Store) -> None:
        """SIGSTOP, but not while it holds a lock of the store that would block all others."""
        while True:
            self._process.send_signal(signal.SIGSTOP)
            self._process.wait_until_stopped()
            try:
                store.transact(_take_locks, timeout_ms=500)
            except (SparkLogError, sa.exc.DBAPIError):
                self._process.send_signal(signal.SIGCONT)
            else:
                return

    def go_on(self) -> None:
        """SIGCONT, and `go` to a process that waits for a line."""
        self._process.send_signal(signal.SIGCONT)
        self.say("go")

    def wait(self, timeout_s: float = LIMIT_S) -> int:
        """Wait for its end and the rest of its output; its exit code."""
        code = int(self._process.wait(timeout=timeout_s))
        self._reading.join(timeout=30)
        return code

    def finish(self, timeout_s: float = LIMIT_S) -> None:
        """Wait for its end and the rest of its output; its exit code must be 0."""
        assert self.wait(timeout_s) == 0, self.lines[-20:]

    def end(self) -> None:
        """End its input, and wait for its end; its exit code must be 0."""
        self.close_input()
        self.finish()

    def kill(self) -> None:
        """Kill it and its forks in any state; for the end of a test."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(timeout=30)
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._reading.join(timeout=30)


def _take_locks(connection: sa.Connection) -> None:
    for table in (t.producer, t.consumer_group):
        connection.execute(sa.select(*table.primary_key).with_for_update(nowait=True)).all()


Work = Callable[[Callable[[], None]], None]
"""Its argument is a function that it calls when its work has started."""

_MOMENT_S_MAX = 0.08


def say(*words: object) -> None:
    print(*words, flush=True)


def live(lives: Sequence[str], work: Work) -> None:
    for life in lives:
        if life == "on":
            work(lambda: None)
            return
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            _work_and_exit(life, work, writing)
        os.close(writing)
        under_way = os.read(reading, 1)
        os.close(reading)
        if life == "kill" and under_way:
            time.sleep(random.uniform(0, _MOMENT_S_MAX))
            os.kill(child, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code == -signal.SIGKILL or (life == "kill" and code == 0), f"{life}: it ended with {code}"
        say("lived", life)


def _work_and_exit(life: str, work: Work, writing: int) -> None:
    code = 1
    try:
        if life != "kill":
            os.environ["SPARK_LOG_FAILPOINT"] = life
        work(lambda: (os.write(writing, b"."), None)[1])
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
