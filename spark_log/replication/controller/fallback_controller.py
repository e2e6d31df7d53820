"""Lets a client that found a failed log dir act as the controller, in a cluster without a controller process."""

import logging
import threading
from collections.abc import Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack

from spark_log import clock
from spark_log.cluster.cluster import Cluster
from spark_log.config import ClusterSettings
from spark_log.errors import NotControllerError, SparkLogError, redact
from spark_log.replication.controller.controller import elect_leaders, fallback_term
from spark_log.replication.controller.log_dir_inspection import inspect_log_dirs

logger = logging.getLogger(__name__)

_EVERY_S = 0.5
_WAIT_S = 0.1


class FallbackController:
    """Inspects the log dirs and elects leaders, at most every half second. Thread-safe."""

    def __init__(self, cluster: Cluster, settings: ClusterSettings | None = None) -> None:
        self._cluster, self._settings = cluster, settings
        self._lock = threading.Lock()
        self._next_s = 0.0

    def detect_failures(self) -> None:
        """Inspect the log dirs and elect leaders.

        If another thread is doing this, wait until it has elected leaders. If another process is the controller, or the
        last inspection ended less than half a second ago, wait at most 0.1 s for metadata changes instead. Errors of
        inspection and election are logged.
        """
        seen = self._cluster.store.changes.current()
        checks: Sequence[Future[None]] | None = None
        try:
            with ExitStack() as term:
                with self._lock:
                    if clock.monotonic_s() >= self._next_s:
                        try:
                            checks = self._inspect_and_elect(term)
                        finally:  # counted from the end, so that threads that waited for the lock use this result
                            self._next_s = clock.monotonic_s() + _EVERY_S
                if checks:
                    wait(checks, self._cluster.store.settings.controller_lease_ms / 1000)  # checks need this term
        except NotControllerError:
            checks = None
        except SparkLogError as error:
            logger.warning("log dirs were not inspected: %s", redact(str(error)))
        if checks is None:
            self._cluster.store.changes.wait(seen, _WAIT_S)

    def _inspect_and_elect(self, term: ExitStack) -> "Sequence[Future[None]] | None":
        """Act as the controller until `term` ends. Return the checks of files that still run, or None if another
        process is the controller.
        """
        fence = term.enter_context(fallback_term(self._cluster.store, self._settings or self._cluster.store.settings))
        if fence is None:
            return None
        checks = inspect_log_dirs(self._cluster, fence).checks
        elect_leaders(self._cluster.store, fence)
        return checks
