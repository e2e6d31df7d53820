"""Detects a step of the store's wall clock by comparing it with the host's boot clock, which cannot be set."""

import threading

STEP_MS_MAX = 3_600_000
"""Two clocks that drift apart by more between two looks: one of them was set."""

DISTRUSTED_MS = 24 * 3_600_000
"""How long a clock is not trusted after it was set, unless it is set back: a day to notice that it is wrong."""


class ClockWatch:
    """Whether what is old by the wall clock is old. Safe to share between threads.

    It knows of steps since its first look only: a process that starts after the step trusts the clock.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._trusted: int | None = None
        """Wall clock minus boot clock, while the wall clock was trusted last."""
        self._stepped: tuple[int, int] | None = None
        """That difference since the last step, and the boot clock then."""

    def is_steady(self, wall_ms: int, boot_ms: int) -> bool:
        """Look at both clocks. False while the wall clock is not trusted."""
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
