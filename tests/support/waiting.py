"""Waits for conditions, for the end of a process, and for the end of its input; and threads that run until a stop."""

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

LIMIT_S = 120.0
"""The time limit of a wait for what must happen: far more than it takes, so that only a hang reaches it."""


def wait_until(condition: Callable[[], T], what: str = "", pause_s: float = 0.01) -> T:
    """Wait until the function returns a true value, and return it."""
    deadline_s = time.monotonic() + LIMIT_S
    while not (value := condition()):
        assert time.monotonic() < deadline_s, what
        time.sleep(pause_s)
    return value


async def until(condition: Callable[[], object]) -> None:
    """Wait in an event loop until the function returns a true value."""
    async with asyncio.timeout(LIMIT_S):
        while not condition():
            await asyncio.sleep(0.001)


def ended(process: "subprocess.Popen[Any]", within_s: float) -> int | None:
    """The exit code of a process that ends within this time, else None."""
    try:
        return process.wait(within_s)
    except subprocess.TimeoutExpired:
        return None


def end_of_input() -> threading.Event:
    """An event that is set when standard input ends: so a test ends its process."""
    ended = threading.Event()

    def wait_for_the_end() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    return ended


class Worker:
    """A thread that runs `run` until its event is set. `check` and `finish` raise the error that ended it."""

    def __init__(self, run: Callable[[threading.Event], None], name: str | None = None) -> None:
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._run = run
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            self._run(self._stop)
        except BaseException as error:
            self._error = error

    def check(self) -> None:
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        self._stop.set()

    def finish(self) -> None:
        self.stop()
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive(), f"{self._thread.name} does not end"
        self.check()
