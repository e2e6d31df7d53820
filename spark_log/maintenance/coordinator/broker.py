"""Serves a broker: the process copies the replicas of one broker and competes for the controller's lease.

    with Broker(cluster, 2):          as `spark-log broker start 2`
        ...

The process holds the broker's lease in the store. While the lease is valid, the broker's replicas may lead and be in
sync. When the process is killed, or paused for longer than the lease, the controller removes them from the ISRs; they
return to the ISRs when they have caught up.
"""

import logging
import threading

from spark_log import clock
from spark_log.cluster.brokers import BrokerSession
from spark_log.cluster.cluster import Cluster
from spark_log.config import ClusterSettings
from spark_log.errors import DuplicateBrokerRegistrationError, SparkLogError, redact
from spark_log.failpoints import failpoint
from spark_log.ids import HOME
from spark_log.maintenance.coordinator.background_loops import BackgroundLoops, ended, follower_step
from spark_log.maintenance.coordinator.coordinator import Coordinator
from spark_log.maintenance.coordinator.store_workers import StoreWorkers
from spark_log.process import stop_at_exit
from spark_log.replication.replicas.followers import Followers

logger = logging.getLogger(__name__)


class Broker:
    """Serves a broker while it is entered, in daemon threads. One process at a time may serve a broker."""

    def __init__(self, cluster: Cluster, broker_id: int, *, settings: ClusterSettings | None = None) -> None:
        """`cluster` is the cluster as its home store sees it. The broker is served in the data stores too."""
        self._cluster = cluster
        self._own_settings = settings
        self._session = BrokerSession(cluster.store, broker_id, self._settings.broker_session_timeout_ms)
        self._followers = Followers(cluster, broker_id)
        self._loops = BackgroundLoops(f"spark-log-broker-{broker_id}")
        self.coordinator = Coordinator(cluster, settings=settings)
        self._of_stores = StoreWorkers(cluster, "broker", lambda data: Broker(data, broker_id, settings=settings))
        self.failure: SparkLogError | None = None
        """Why this process stopped serving: another process serves the broker, or the broker was removed."""

    @property
    def _settings(self) -> ClusterSettings:
        return self._own_settings or self._cluster.store.settings

    @property
    def broker_id(self) -> int:
        return self._session.broker_id

    @property
    def epoch(self) -> int | None:
        """Return the epoch of the last registration, which grows with each one; None before the first."""
        return self._session.epoch

    def health(self) -> str | None:
        """Return why this process does not do its work, or None while it does."""
        failure = None if self.failure is None else _text(self.failure)
        return failure or ended(self._loops.threads) or self.coordinator.health() or self._of_stores.health()

    def __enter__(self) -> "Broker":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Register and begin to serve. If the lease of a killed process is still valid, wait until it expires.

        Raises BrokerIdNotRegisteredError, or DuplicateBrokerRegistrationError if another process serves the broker.
        """
        assert not self._loops.threads, "a broker starts once"
        self._register(self._settings.initial_broker_registration_timeout_ms)
        failpoint("broker.registered")
        self._loops.start("lease", self._renew_lease, first_after_s=self._session.duration_ms / 3000)
        self._loops.start("replicas", follower_step(self._cluster.store, self._followers, 0.01))
        if self._cluster.store_id == HOME:  # the coordinator works for all stores
            self._loops.start("stores", self._of_stores.follow)
            self.coordinator.start()
        stop_at_exit(self)

    def request_stop(self) -> list[threading.Thread]:
        """Ask the threads of this object to end, and return them. The lease is not given back.

        Coordinator and followers stop their own threads.
        """
        return self._loops.request_stop()

    def close(self) -> None:
        """Give the lease back, so that other brokers lead at once. Copies that are running are abandoned."""
        self._loops.request_stop()
        self._loops.join()
        self._of_stores.close()
        self._followers.close(timeout_s=5)
        try:
            self._session.end()
        except SparkLogError as error:
            logger.warning("broker %s: its lease was not given back, and runs out: %s", self.broker_id, _text(error))
        if self._cluster.store_id == HOME:
            self.coordinator.close()

    def _register(self, timeout_ms: int) -> None:
        deadline_s = clock.monotonic_s() + timeout_ms / 1000
        logged = False
        while True:
            try:
                return self._session.register()
            except DuplicateBrokerRegistrationError as error:
                if clock.monotonic_s() >= deadline_s:
                    raise
                if not logged:
                    logger.warning("waiting: %s", _text(error))
                    logged = True
                self._loops.stopping.wait(0.1)

    def _renew_lease(self) -> float:
        try:
            self._session.duration_ms = self._settings.broker_session_timeout_ms
            if not self._session.renew():
                self._session.register()  # this process was paused for too long: its replicas have to catch up again
                logger.warning("broker %s: its lease had run out; registered again", self.broker_id)
        except SparkLogError as error:
            if error.retriable:
                logger.warning("broker %s: its lease was not renewed: %s", self.broker_id, _text(error))
            else:
                logger.error("broker %s: serves no longer: %s", self.broker_id, _text(error))
                self.failure = error
                self._loops.request_stop()
        return self._session.duration_ms / 3000


def _text(error: SparkLogError) -> str:
    return redact(str(error))
