"""Keeps a producer's assembled batches, which wait for their append or its retry."""

from collections import deque

from spark_log import clock
from spark_log.clients.produce.producer_batch import ProducerBatch
from spark_log.clients.produce.store_appends import StoreAppends

_WAIT_S_MAX = 60.0


class WaitingBatches:
    """The batches of each partition, in order. For the sender's thread only.

    With `all_at_once`, as in a transaction, all batches are due together: they become visible, or fail, together.
    """

    def __init__(self, appends: StoreAppends, *, all_at_once: bool) -> None:
        self._appends, self._all_at_once = appends, all_at_once
        self._queues: dict[tuple[str, int], deque[ProducerBatch]] = {}

    def __bool__(self) -> bool:
        return bool(self._queues)

    def add(self, batch: ProducerBatch) -> None:
        self._queues.setdefault(batch.key, deque()).append(batch)

    def remove(self, batch: ProducerBatch) -> None:
        queue = self._queues[batch.key]
        queue.remove(batch)
        if not queue:
            del self._queues[batch.key]

    def next_try_s(self) -> float | None:
        """Return the monotonic time at which the first batch (with `all_at_once`, every batch) may be appended; None if
        there is no batch and no append runs.
        """
        if self._appends.running:
            return min(self._try_times(), default=clock.monotonic_s() + _WAIT_S_MAX)
        if self._all_at_once:
            return max((batch.retry_at_s for queue in self._queues.values() for batch in queue), default=None)
        return min(self._try_times(), default=None)

    def _try_times(self) -> list[float]:
        """Return the time at which each partition's first batch may be appended, except those of busy stores."""
        heads = [queue[0] for queue in self._queues.values()]
        return [head.retry_at_s for head in heads if not self._appends.is_busy(head.topic.store_id)]

    def due(self) -> list[ProducerBatch]:
        """Return the first batch of each partition that need not wait, or one that must be tried alone. With
        `all_at_once` return all batches or none.
        """
        now_s = clock.monotonic_s()
        if self._all_at_once:
            batches = [batch for queue in self._queues.values() for batch in queue]
            return batches if all(batch.retry_at_s <= now_s for batch in batches) else []
        heads = [
            queue[0]
            for queue in self._queues.values()
            if queue[0].retry_at_s <= now_s and not self._appends.is_busy(queue[0].topic.store_id)
        ]
        alone = next((batch for batch in heads if batch.alone), None)
        return heads if alone is None else [alone]
