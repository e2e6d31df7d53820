"""Reads the host's clocks. Other modules read clocks through this one, except `console.access` and CPU times of
threads.

Leases are compared with the store's clock (`metadata.store.StoreClock`).
"""

import functools
import time
from pathlib import Path


def wall_ms() -> int:
    """Return milliseconds since 1970-01-01 UTC by the host's clock, which may be set back."""
    return time.time_ns() // 1_000_000


def monotonic_s() -> float:
    """Return seconds of a clock that is never set back, for timeouts and renewals inside one process."""
    return time.monotonic()


def boot_ms() -> int:
    """Return milliseconds since this host booted, including sleep. The clock is never set back, and is the same in
    every process.
    """
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


@functools.cache
def boot_id() -> str:
    """Return the id of this boot of the host. Times of `boot_ms` are comparable only within one boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def sleep_s(seconds: float) -> None:
    time.sleep(seconds)
