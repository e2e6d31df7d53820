"""Limits the rate of copies: a token bucket (pure), and a throttle with a clock and a lock around it."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

from spark_log import clock


@dataclass(frozen=True)
class Bucket:
    """A token bucket. `saved_bytes` may be sent at once, at most those of one second; a negative number is a debt.

    If each sender waits as long as `take` returns, then bytes sent within any t seconds <= bytes_per_s * (t + 1),
    except for a single block that is larger. `at_s` is the time of the last `take`.
    """

    bytes_per_s: int
    saved_bytes: float
    at_s: float

    def take(self, size: int, now_s: float) -> tuple["Bucket", float]:
        """Return the bucket after taking `size` bytes, and the seconds to wait before sending them."""
        # a thread that read the clock earlier may call later than another one
        now_s = max(now_s, self.at_s)
        saved = min(self.saved_bytes + (now_s - self.at_s) * self.bytes_per_s, self.bytes_per_s) - size
        return replace(self, saved_bytes=saved, at_s=now_s), max(0.0, -saved / self.bytes_per_s)


class Throttle:
    """A rate limit that several copies share. Thread-safe."""

    def __init__(self, bytes_per_s: int, *, now_s: Callable[[], float] = clock.monotonic_s) -> None:
        self._now_s = now_s
        self._lock = threading.Lock()
        self._bucket = Bucket(bytes_per_s, bytes_per_s, now_s())

    def take(self, size: int) -> float:
        """Take `size` bytes from the rate. Returns the seconds to wait before sending them."""
        with self._lock:
            self._bucket, wait_s = self._bucket.take(size, self._now_s())
            return wait_s
