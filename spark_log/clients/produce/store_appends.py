"""Runs the appends of a producer whose topics are in several stores: each store has a thread while an append runs."""

import threading
from collections import deque
from collections.abc import Callable, Sequence

from spark_log import clock
from spark_log.clients.produce.producer_batch import ProducerBatch
from spark_log.ids import StoreId
from spark_log.log.append.rules import Appended, Rejected
from spark_log.process import start_thread

Result = list[Appended | Rejected] | Exception
"""The outcomes of the batches, in their order, or the error of the whole append."""


def timed(append: Callable[[], list[Appended | Rejected]]) -> tuple[Result, float]:
    """Return the result of an append, and the seconds that it took."""
    began_s = clock.monotonic_s()
    try:
        result: Result = append()
    except Exception as error:
        result = error
    return result, clock.monotonic_s() - began_s


class StoreAppends:
    """The running appends, at most one in each store. A store that does not answer delays only its own batches.

    All methods are for the sender's thread. `wake` is called by another thread when an append has ended.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._busy: set[StoreId] = set()
        self._ended: deque[tuple[StoreId, Sequence[ProducerBatch], Result, float]] = deque()

    @property
    def running(self) -> bool:
        return bool(self._busy)

    def is_busy(self, store_id: StoreId) -> bool:
        """Whether an append to this store runs, or has ended and was not taken."""
        return store_id in self._busy

    def start(
        self,
        store_id: StoreId,
        batches: Sequence[ProducerBatch],
        append: Callable[[], list[Appended | Rejected]],
    ) -> None:
        """Start an append to a store that is not busy."""
        assert store_id not in self._busy
        self._busy.add(store_id)

        def run() -> None:
            self._ended.append((store_id, batches, *timed(append)))
            self._wake()

        if start_thread(run, f"{threading.current_thread().name} store {store_id}") is None:
            run()

    def take_ended(self) -> list[tuple[Sequence[ProducerBatch], Result, float]]:
        """Return the batches of the appends that have ended, with their results and seconds."""
        taken = []
        while self._ended:
            store_id, batches, result, seconds = self._ended.popleft()
            self._busy.discard(store_id)
            taken.append((batches, result, seconds))
        return taken
