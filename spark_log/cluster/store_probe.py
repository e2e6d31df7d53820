"""Finds out whether a data store answers, so that callers can leave it out until it does."""

import logging
import threading

import sqlalchemy as sa

from spark_log import clock
from spark_log.cluster.cluster import Cluster
from spark_log.errors import TopicMovedError, redact
from spark_log.ids import StoreId
from spark_log.process import Stop, start_thread

logger = logging.getLogger(__name__)

SILENT_S = 1.0
"""How long a store that is suspected has to answer before it counts as lost."""
_PROBE_EVERY_S = 0.5


class StoreProbe:
    """Whether one data store answers. Safe to share between threads.

    A store is asked in a thread from a call of `suspect` until it answers or is removed. It is lost if it has failed,
    or has not answered for SILENT_S.
    """

    def __init__(self, home: Cluster, store_id: StoreId, closed: Stop) -> None:
        """`closed` ends the thread."""
        self._home, self._store_id, self._closed = home, store_id, closed
        self._lock = threading.Lock()
        self._suspected_s: float | None = None
        """The time since which it is not known whether the store answers."""
        self._failed = False

    @property
    def is_lost(self) -> bool:
        since_s = self._suspected_s
        return since_s is not None and (self._failed or clock.monotonic_s() - since_s >= SILENT_S)

    def suspect(self, error: Exception | None = None) -> None:
        """Ask the store until it answers. With the error of a failed call, the store is lost until then."""
        with self._lock:
            begins = self._suspected_s is None and not self._closed.is_set()
            if begins:
                self._suspected_s, self._failed = clock.monotonic_s(), False
            if error is not None and self._suspected_s is not None and not self._failed:
                self._fail(error)
        if begins and start_thread(self._ask, f"spark-log probe of store {self._store_id}") is None:
            with self._lock:
                self._suspected_s = None  # the next call of `suspect` starts the thread

    def _fail(self, error: Exception) -> None:
        logger.warning("store %s does not answer, and is left out: %s", self._store_id, redact(str(error)))
        self._failed = True

    def _ask(self) -> None:
        while not self._closed.is_set():
            try:
                self._home.at(self._store_id).store.read(lambda c: c.execute(sa.select(sa.literal(1))), timeout_ms=0)
            except TopicMovedError:  # it was removed, as the next call for it will find
                with self._lock:
                    self._suspected_s = None
                return
            except Exception as error:
                with self._lock:
                    if not self._failed:
                        self._fail(error)
                self._closed.wait(_PROBE_EVERY_S)
                continue
            with self._lock:
                if self._failed:
                    logger.info("store %s answers again", self._store_id)
                self._suspected_s = None
            return
