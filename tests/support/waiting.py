"""Waits for conditions."""

import time
from collections.abc import Callable
from typing import TypeVar

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
