"""Warns of a metadata store that does not answer for some time, while transactions wait for it."""

import logging

from spark_log import clock

logger = logging.getLogger(__name__)

WARN_AFTER_S = 5.0
"""Most failovers of PostgreSQL are shorter, and need no warning."""


class Outage:
    """Whether transactions of a store fail now, and since when. Threads share it: at worst two of them warn."""

    def __init__(self) -> None:
        self._since_s: float | None = None
        self._warned = False

    def failed(self, error: Exception) -> None:
        """Note a transaction that will be tried again. Warns once in each outage."""
        now_s = clock.monotonic_s()
        if self._since_s is None:
            self._since_s = now_s
        elif not self._warned and now_s - self._since_s >= WARN_AFTER_S:
            self._warned = True
            logger.warning("%s; transactions wait and are tried again. `spark-log doctor` says more", error)

    @property
    def lasts(self) -> bool:
        return self._since_s is not None

    def ended(self) -> None:
        """Note a transaction that was committed."""
        self._since_s, self._warned = None, False
