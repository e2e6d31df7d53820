"""Limits the rate of copies by the leaky bucket that quotas use."""

import threading
from collections.abc import Callable

from spark_log import clock
from spark_log.cluster.quotas.rules import used_until_s, wait_s


class Throttle:
    """A rate limit that several copies share. Thread-safe.

    If each sender waits as long as `take` returns, then bytes sent within any t seconds <= bytes_per_s * (t + 1),
    except for a single block that is larger.
    """

    def __init__(self, bytes_per_s: int, *, now_s: Callable[[], float] = clock.monotonic_s) -> None:
        self._bytes_per_s = bytes_per_s
        self._now_s = now_s
        self._lock = threading.Lock()
        self._used_until_s = 0.0

    def take(self, size: int) -> float:
        """Take `size` bytes from the rate. Return the seconds to wait before sending them."""
        with self._lock:
            now_s = self._now_s()
            self._used_until_s = used_until_s(self._used_until_s, now_s, size, self._bytes_per_s)
            return wait_s(self._used_until_s, now_s)
