"""Tracks partitions to which a producer cannot append, warns of them, and limits the retries after a full disk."""

import logging

from spark_log import clock

logger = logging.getLogger(__name__)

WARN_AFTER_S = 5.0
"""A partition that fails for less, as in a failover, is not worth a warning."""

FULL_DISK_RETRY_S = 5.0
"""Maximum time of retries after a full disk. It is shorter than the default delivery_timeout_ms, because only a user
can free the disk, and needs the error for that."""


class FailingAppends:
    """The partitions whose appends fail, each with the time of its first failure since a success. Not thread-safe."""

    def __init__(self) -> None:
        self._since_s: dict[object, float] = {}
        self._warned: set[object] = set()
        self._full_since_s: dict[object, float] = {}
        """Partitions to which nothing was appended since a disk was full, with the time of the first such failure."""

    def failed(self, key: object, place: str, error: Exception) -> None:
        """Note a failed append that will be tried again. Warns once in each outage of the partition."""
        began_s = self._since_s.setdefault(key, clock.monotonic_s())
        if key not in self._warned and clock.monotonic_s() - began_s >= WARN_AFTER_S:
            self._warned.add(key)
            logger.warning("%s: %s; trying again until delivery_timeout_ms. `spark-log doctor` says more", place, error)

    def ended(self, key: object) -> None:
        """Note that a batch of the partition was appended or given up."""
        self._since_s.pop(key, None)
        self._warned.discard(key)

    def disk_full(self, key: object, place: str, error: Exception) -> None:
        """Note an append that failed because a disk is full."""
        if key not in self._full_since_s:
            self._full_since_s[key] = clock.monotonic_s()
            logger.warning("%s: %s; trying again for %.0f s", place, error, FULL_DISK_RETRY_S)

    def is_full_for_long(self, key: object) -> bool:
        """Return whether nothing was appended to the partition for FULL_DISK_RETRY_S after a disk was full."""
        return clock.monotonic_s() - self._full_since_s[key] >= FULL_DISK_RETRY_S

    def appended(self, key: object) -> None:
        """Note that a batch of the partition was appended."""
        self._full_since_s.pop(key, None)
