"""A copy rate: how long the next bytes must wait. A token bucket; pure, and a shell with the clock and a lock."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

from spark_log import clock


@dataclass(frozen=True)
class Bucket:
    """At most `bytes_per_s` bytes saved up, a second's worth; below 0 they are owed.

    Who waits as long as `take` says before it sends keeps to: bytes sent within any t seconds <= bytes_per_s * (t + 1),
    but for one block larger than that.
    """

    bytes_per_s: int
    saved_bytes: float
    at_s: float

    def take(self, size: int, now_s: float) -> tuple["Bucket", float]:
        """The bucket without `size` bytes, and the seconds to wait until they have come in."""
        # several threads ask: one that read the clock earlier may come later
        now_s = max(now_s, self.at_s)
        saved = min(self.saved_bytes + (now_s - self.at_s) * self.bytes_per_s, self.bytes_per_s) - size
        return replace(self, saved_bytes=saved, at_s=now_s), max(0.0, -saved / self.bytes_per_s)


class Throttle:
    """A rate shared by all copies that hold it. Thread-safe."""

    def __init__(self, bytes_per_s: int, *, now_s: Callable[[], float] = clock.monotonic_s) -> None:
        self._now_s = now_s
        self._lock = threading.Lock()
        self._bucket = Bucket(bytes_per_s, bytes_per_s, now_s())

    def take(self, size: int) -> float:
        """Seconds to wait before `size` bytes may be sent. They are spent, whether they are sent or not."""
        with self._lock:
            self._bucket, wait_s = self._bucket.take(size, self._now_s())
            return wait_s
