"""Warns of partitions to which a producer cannot append for some time."""

import logging

from spark_log import clock

logger = logging.getLogger(__name__)

WARN_AFTER_S = 5.0
"""A partition that fails for less, as in a failover, is not worth a warning."""


class FailingAppends:
    """The partitions whose appends fail, each since its first failure after a success. For one thread."""

    def __init__(self) -> None:
        self._since_s: dict[object, float] = {}
        self._warned: set[object] = set()

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
