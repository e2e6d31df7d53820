"""Runs a worker for each data store of a cluster, and follows the stores that are added and removed."""

import logging
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from spark_log.cluster.cluster import Cluster
from spark_log.errors import SparkLogError, redact
from spark_log.ids import StoreId

logger = logging.getLogger(__name__)

_FOLLOW_S = 5.0


class StoreWorker(Protocol):
    """A process's work for one store: its threads run from `start` to `close`."""

    def start(self) -> None: ...

    def close(self) -> None: ...

    def health(self) -> str | None: ...


W = TypeVar("W", bound=StoreWorker)


class StoreWorkers(Generic[W]):
    """The workers of the data stores. `follow` is for one thread, which has ended when `close` is called. Any
    thread may call `workers` and `health`.
    """

    def __init__(self, cluster: Cluster, name: str, make: Callable[[Cluster], W]) -> None:
        self._cluster, self._name, self._make = cluster, name, make
        self._workers: dict[StoreId, W] = {}

    def follow(self) -> float:
        """Start the workers of new stores, and end those of removed ones; returns the seconds until the next call.

        A store that does not answer is tried again by the next call.
        """
        present = set(self._cluster.store_ids()[1:])
        for store_id in present - self._workers.keys():
            try:
                worker = self._make(self._cluster.at(store_id))
                worker.start()
            except SparkLogError as error:
                logger.warning("%s of store %s: not started: %s", self._name, store_id, redact(str(error)))
            else:
                self._workers[store_id] = worker
        for store_id in self._workers.keys() - present:
            self._workers.pop(store_id).close()
        return _FOLLOW_S

    @property
    def workers(self) -> list[W]:
        return list(self._workers.values())

    def health(self) -> str | None:
        """Return why a worker does not do its work, or None."""
        for store_id, worker in list(self._workers.items()):
            if (problem := worker.health()) is not None:
                return f"store {store_id}: {problem}"
        return None

    def close(self) -> None:
        for worker in self._workers.values():
            worker.close()
        self._workers.clear()
