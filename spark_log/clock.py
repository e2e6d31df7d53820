"""The only clock of the host. Leases are not judged by it but by the metadata store's (`metadata.store.StoreClock`)."""

import functools
import time
from pathlib import Path


def wall_ms() -> int:
    """Milliseconds since the epoch, as the host believes. For CreateTime and for display."""
    return time.time_ns() // 1_000_000


def monotonic_s() -> float:
    """Seconds that only grow, for time-outs and renewals inside one process."""
    return time.monotonic()


def boot_ms() -> int:
    """Milliseconds since this host booted, sleep included: the same in every process, never set back."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


@functools.cache
def boot_id() -> str:
    """Name of this boot of this host. Times of `boot_ms` compare only under the same name."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def sleep_s(seconds: float) -> None:
    time.sleep(seconds)
