"""A value that is read again when it is too old."""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from spark_log import clock

T = TypeVar("T")


class Cached(Generic[T]):
    """A cached value. It is read again when it is older than both `age_s_max` and `reads_per_age` times the duration of
    its read.

    Concurrent callers share one read.
    """

    def __init__(self, age_s_max: float, read: Callable[[], T], reads_per_age: float = 0) -> None:
        self._age_s_max, self._read, self._reads_per_age = age_s_max, read, reads_per_age
        self._lock = threading.Lock()
        self._last: tuple[float, T] | None = None
        """The time until which the value is used, and the value."""

    def get(self) -> T:
        with self._lock:
            if self._last is None or clock.monotonic_s() > self._last[0]:
                began_s = clock.monotonic_s()
                value = self._read()
                now_s = clock.monotonic_s()
                self._last = (now_s + max(self._age_s_max, self._reads_per_age * (now_s - began_s)), value)
            return self._last[1]

    def forget(self) -> None:
        with self._lock:
            self._last = None
