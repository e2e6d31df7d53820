"""Runs the periodic tasks of a cluster, each in exactly one process at a time.

    with Coordinator("/data/log"):      on a Spark driver, or in any other process; several may run
        ...

A coordinator competes for two leases of each store of the cluster. The holder of `controller` decides about replicas:
which log dirs and brokers are dead, which replica leads, which replicas are in sync. The holder of `coordinator` runs
the other tasks: groups and maintenance. The other processes wait until a lease is given back or expires (by the store's
clock). Every transaction of a task checks the epoch of its lease, so a process that was paused changes nothing after
its term. Without a coordinator clients run these tasks themselves; a coordinator is faster, and works while no client
is active.
"""

import threading
from collections.abc import Sequence

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.each_store import store_names
from spark_log.cluster.lease import COORDINATOR, LeaseStatus, lease_status
from spark_log.config import ClusterSettings
from spark_log.ids import HOME, HOME_NAME
from spark_log.maintenance.coordinator.background_loops import BackgroundLoops, ended, follower_step
from spark_log.maintenance.coordinator.lease_runner import LeaseRunner, PeriodicTask
from spark_log.maintenance.coordinator.periodic_tasks import controller_tasks, coordinator_tasks, data_store_tasks
from spark_log.maintenance.coordinator.store_workers import StoreWorkers
from spark_log.process import stop_at_exit
from spark_log.replication.controller import controller
from spark_log.replication.replicas.followers import Followers


def coordinator_status(cluster: Cluster) -> LeaseStatus:
    """Return the holder of the lease `coordinator`."""
    return lease_status(cluster.store, COORDINATOR)


def controller_status(cluster: Cluster) -> LeaseStatus:
    """Return the holder of the lease `controller`."""
    return lease_status(cluster.store, controller.LEASE)


class Coordinator:
    """Competes for the leases `coordinator` and `controller` of the cluster while it is entered.

    `cluster` is an address, as for Producer and Consumer, or an open Cluster, which stays open. `settings` replace the
    cluster's settings, whose changes are followed otherwise. `tasks` replace those of the lease `coordinator`.
    """

    def __init__(
        self,
        cluster: str | Cluster,
        *,
        settings: ClusterSettings | None = None,
        tasks: Sequence[PeriodicTask] | None = None,
    ) -> None:
        self._opened = Cluster.open(cluster) if isinstance(cluster, str) else None
        cluster = self._opened or cluster
        assert isinstance(cluster, Cluster)
        self._cluster = cluster
        self._followers = Followers(cluster)
        self._loops = BackgroundLoops("spark-log-embedded-replicas")
        if tasks is None:
            tasks = coordinator_tasks() if cluster.store_id == HOME else data_store_tasks()
        self.controller = LeaseRunner(cluster, controller.LEASE, settings, controller_tasks(cluster.store_id))
        self.coordinator = LeaseRunner(cluster, COORDINATOR, settings, tasks)
        self._of_stores = StoreWorkers(cluster, "coordinator", lambda data: Coordinator(data, settings=settings))
        self._store_name = HOME_NAME
        if (store_id := cluster.store_id) != HOME:
            self._store_name = store_names(cluster).get(store_id, str(store_id))

    def runners(self) -> list[tuple[str, LeaseRunner]]:
        """Return the runners of the leases of all stores, with the names of the stores."""
        own = [(self._store_name, self.coordinator), (self._store_name, self.controller)]
        return own + [each for worker in self._of_stores.workers for each in worker.runners()]

    @property
    def acting(self) -> bool:
        """Whether this process held the lease `coordinator` when it last asked."""
        return self.coordinator.acting

    def health(self) -> str | None:
        """Return why this process does not do its work, or None while all of its threads run."""
        own = ended([*self._loops.threads, *self.controller.threads, *self.coordinator.threads])
        return own or self._of_stores.health()

    def __enter__(self) -> "Coordinator":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        self.controller.start()
        self.coordinator.start()
        # the replicas of embedded brokers: of several coordinators, the one that is the controller copies them
        step = follower_step(self._cluster.store, self._followers, 0.02, lambda: self.controller.acting)
        self._loops.start("followers", step)
        if self._cluster.store_id == HOME:
            self._loops.start("stores", self._of_stores.follow)
        stop_at_exit(self)

    def close(self) -> None:
        """Finish the running tasks and give the leases back."""
        self._loops.request_stop()
        self._loops.join()
        self._of_stores.close()
        self._followers.close()
        self.coordinator.close()
        self.controller.close()
        if self._opened is not None:
            self._opened.close()

    def request_stop(self) -> list[threading.Thread]:
        """Start no further tasks, and return the threads, which may still run. The leases are not given back."""
        return [*self._loops.request_stop(), *self.coordinator.request_stop(), *self.controller.request_stop()]
