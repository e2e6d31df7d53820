"""A served broker: the process that brings the replicas of one broker up to date and stands for controller.

    with Broker(cluster, 2):          what `spark-log broker start 2` does
        ...

It holds the broker's lease in the store. While that is fresh its replicas may lead and be in sync; when the process is
killed or stopped for longer than the lease, the controller takes them out of the ISRs, and they come back in when they
have caught up.
"""

import logging
import threading

from spark_log import clock
from spark_log.cluster.brokers import BrokerSession
from spark_log.cluster.cluster import Cluster
from spark_log.config import ClusterSettings
from spark_log.coordinator.coordinator import Coordinator
from spark_log.errors import DuplicateBrokerRegistrationError, SparkLogError, redact
from spark_log.exit_hooks import stop_at_exit
from spark_log.failpoints import failpoint
from spark_log.replicas.followers import Followers

logger = logging.getLogger(__name__)

_LOOK_S = 0.5
"""How often to look for replicas that lag although nothing was committed: a log dir may have come back."""
_LOOK_S_MIN = 0.01
"""How long to leave between two looks, however much is committed."""


class Broker:
    """Serves a broker while it is entered, in daemon threads. One process at a time may serve a broker."""

    def __init__(self, cluster: Cluster, broker_id: int, *, settings: ClusterSettings | None = None) -> None:
        self._cluster = cluster
        self._given = settings
        self._session = BrokerSession(cluster.store, broker_id, self._settings.broker_session_timeout_ms)
        self._followers = Followers(cluster, broker_id)
        self.coordinator = Coordinator(cluster, settings=settings)
        self.failure: SparkLogError | None = None
        """Why it serves no longer: another process serves the broker, or the broker was removed."""
        self._told = False
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    @property
    def _settings(self) -> ClusterSettings:
        return self._given or self._cluster.store.settings

    @property
    def broker_id(self) -> int:
        return self._session.broker_id

    @property
    def epoch(self) -> int | None:
        """Grows with each registration; None before the first."""
        return self._session.epoch

    def __enter__(self) -> "Broker":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Register, and begin. BrokerIdNotRegisteredError; DuplicateBrokerRegistrationError if another process goes on
        serving the broker: one that was killed holds its lease for a while, which is waited for.
        """
        assert not self._threads, "a broker starts once"
        self._register(self._settings.initial_broker_registration_timeout_ms)
        failpoint("broker.registered")
        for name, work in (("lease", self._keep_lease), ("replicas", self._keep_up)):
            thread = threading.Thread(target=work, name=f"spark-log-broker-{self.broker_id}-{name}", daemon=True)
            self._threads.append(thread)
            thread.start()
        self.coordinator.start()
        stop_at_exit(self)

    def request_stop(self) -> list[threading.Thread]:
        """End without giving the lease back; the coordinator's and the followers' threads are theirs."""
        self._stop.set()
        return list(self._threads)

    def close(self) -> None:
        """Give the lease back, so that others lead at once. What was being copied is left half-way, unseen."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self._followers.close(timeout_s=5)
        try:
            self._session.end()
        except SparkLogError as error:
            logger.warning("broker %s: its lease was not given back, and runs out: %s", self.broker_id, _text(error))
        self.coordinator.close()

    def _register(self, timeout_ms: int) -> None:
        deadline_s = clock.monotonic_s() + timeout_ms / 1000
        while True:
            try:
                return self._session.register()
            except DuplicateBrokerRegistrationError as error:
                if clock.monotonic_s() >= deadline_s:
                    raise
                if not self._told:
                    logger.warning("waiting: %s", _text(error))
                    self._told = True
                self._stop.wait(0.1)

    def _keep_lease(self) -> None:
        while not self._stop.wait(self._settings.broker_session_timeout_ms / 3000):
            self._session.duration_ms = self._settings.broker_session_timeout_ms
            try:
                if not self._session.renew():
                    self._session.register()  # we were stopped for too long: the replicas have to come back in
                    logger.warning("broker %s: its lease had run out; registered again", self.broker_id)
            except SparkLogError as error:
                if not error.retriable:
                    logger.error("broker %s: serves no longer: %s", self.broker_id, _text(error))
                    self.failure = error
                    self._stop.set()
                else:
                    logger.warning("broker %s: its lease was not renewed: %s", self.broker_id, _text(error))

    def _keep_up(self) -> None:
        changes = self._cluster.store.changes
        while not self._stop.is_set():
            seen = changes.current()
            self._followers.wake()
            changes.wait(seen, _LOOK_S)
            self._stop.wait(_LOOK_S_MIN)


def _text(error: SparkLogError) -> str:
    return redact(str(error))
