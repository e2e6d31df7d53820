"""Waits for conditions, and for the end of a process."""

import subprocess
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
