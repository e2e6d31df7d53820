"""Waits for conditions, for the end of a process, and for the end of its input."""

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
