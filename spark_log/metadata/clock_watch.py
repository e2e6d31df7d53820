"""Detects a step of the store's wall clock by comparing it with the host's boot clock, which cannot be set."""

import threading

STEP_MS_MAX = 3_600_000
"""If the difference of the clocks changes by more than this between two readings, the wall clock was set."""

DISTRUSTED_MS = 24 * 3_600_000
"""How long the wall clock is not trusted after it was set, unless it is set back. Operators have a day to notice a
wrong clock.
"""


class ClockWatch:
    """Decides whether ages measured by the wall clock can be trusted. Safe to share between threads.

    It detects only steps after its first reading: a process that starts after a step trusts the clock.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._trusted: int | None = None
        """Wall clock minus boot clock, in ms, when the wall clock was last trusted."""
        self._stepped: tuple[int, int] | None = None
        """Wall clock minus boot clock after the last step, and the boot clock at that time, in ms."""

    def is_steady(self, wall_ms: int, boot_ms: int) -> bool:
        """Compare new readings of both clocks, and return whether the wall clock is trusted."""
        ahead = wall_ms - boot_ms
        with self._lock:
            if self._trusted is None or abs(ahead - self._trusted) <= STEP_MS_MAX:
                self._trusted, self._stepped = ahead, None
                return True
            if self._stepped is None or abs(ahead - self._stepped[0]) > STEP_MS_MAX:
                self._stepped = (ahead, boot_ms)
            if boot_ms - self._stepped[1] < DISTRUSTED_MS:
                return False
            self._trusted, self._stepped = ahead, None
            return True
