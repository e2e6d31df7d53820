"""Reads and writes files for an erase, in threads of this process or in Spark tasks (`spark_workers`)."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

from spark_log.config import ClusterSettings
from spark_log.log.records.key_set import KeySet

R = TypeVar("R")


class Workers(Protocol):
    """Runs `work(item, keys)` for each item, with the workers' keys. Workers have no access to the metadata store."""

    at_once: int
    """Number of files that are written before they are swapped in."""

    def run(self, work: Callable[[Any, KeySet], R], items: Sequence[Any]) -> Iterator[R]:
        """Yield the results in the order of the items."""
        ...

    def lease_ms(self, settings: ClusterSettings) -> int:
        """Return the duration of the lease of a write id while `at_once` files are written."""
        ...


class ThreadWorkers:
    """Threads of this process: reading and encoding do not block other threads."""

    at_once = 16

    def __init__(self, keys: KeySet) -> None:
        self._keys = keys
        self._threads = max(1, min(4, os.cpu_count() or 1))

    def run(self, work: Callable[[Any, KeySet], R], items: Sequence[Any]) -> Iterator[R]:
        with ThreadPoolExecutor(self._threads, "spark-log-erase") as pool:
            yield from pool.map(lambda item: work(item, self._keys), items)

    def lease_ms(self, settings: ClusterSettings) -> int:
        return settings.producer_write_id_lease_ms
