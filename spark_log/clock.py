"""The host's clocks; no other module reads them.

Leases are judged by the store's clock (`metadata.store.StoreClock`).
"""

import functools
import time
from pathlib import Path


def wall_ms() -> int:
    """Milliseconds since 1970-01-01 UTC by the host's clock. For CreateTime and for display."""
    return time.time_ns() // 1_000_000


def monotonic_s() -> float:
    """Seconds of a clock that is never set back, for timeouts and renewals inside one process."""
    return time.monotonic()


def boot_ms() -> int:
    """Milliseconds since this host booted, sleep included: the same in every process, never set back."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


@functools.cache
def boot_id() -> str:
    """Id of this boot of this host. Times of `boot_ms` are comparable only under the same id."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def sleep_s(seconds: float) -> None:
    time.sleep(seconds)
