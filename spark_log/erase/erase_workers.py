"""Where erasing reads and writes files: in threads of this process, or in Spark's tasks (`erase_on_spark`)."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

from spark_log.config import ClusterSettings
from spark_log.records.key_set import KeySet

T = TypeVar("T")
R = TypeVar("R")


class Workers(Protocol):
    """Runs `work(item, keys)` for each item, with the keys that it was made with. Neither knows the metadata store."""

    at_once: int
    """Files that are written before they are swapped in."""

    def run(self, context: Callable[[Any, KeySet], R], items: Sequence[Any]) -> Iterator[R]:
        """The results in the order of the items."""
        ...

    def lease_ms(self, settings: ClusterSettings) -> int:
        """How long a write id must last while `at_once` files are written."""
        ...


class Here:
    """Threads of this process: reading and encoding let each other run."""

    at_once = 16

    def __init__(self, keys: KeySet) -> None:
        self._keys = keys
        self._threads = max(1, min(4, os.cpu_count() or 1))

    def run(self, context: Callable[[Any, KeySet], R], items: Sequence[Any]) -> Iterator[R]:
        with ThreadPoolExecutor(self._threads, "spark-log-erase") as pool:
            yield from pool.map(lambda item: context(item, self._keys), items)

    def lease_ms(self, settings: ClusterSettings) -> int:
        return settings.producer_write_id_lease_ms
