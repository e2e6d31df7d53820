"""Implements the polls of a share consumer: it acquires records, holds them, and sends their acknowledgements."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from kafka.structs import TopicPartition

from spark_log import clock
from spark_log.clients.consume.share_deliveries import Deliveries, Delivery, acknowledged_offsets, acknowledgements
from spark_log.clients.consume.share_membership import ShareMembership
from spark_log.clients.consume.share_settings import ShareConsumerSettings
from spark_log.clients.kafka_errors import kafka_error
from spark_log.cluster.cluster import Cluster
from spark_log.errors import IllegalStateError, RetriableError, WakeupError, redact
from spark_log.groups.share.acquisition_rules import Request
from spark_log.groups.share.dead_letters import DeadLetters
from spark_log.groups.share.polling import Result, SharePolls
from spark_log.groups.share.reading import ShareReads
from spark_log.groups.share.rules import AcknowledgeType
from spark_log.maintenance.client_log import ClientLog
from spark_log.process import Stop

logger = logging.getLogger(__name__)

_WAIT_S = 0.5
"""The longest time that a poll waits before it looks for a new assignment."""

Callback = Callable[[Mapping[TopicPartition, Sequence[int]], Exception | None], Any]


class SharePolling:
    """One share consumer without its public interface. Other threads may use `woken` and `closed`, and read
    `acknowledged_count` and `callback_thread`.
    """

    def __init__(self, cluster: Cluster, settings: ShareConsumerSettings, membership: ShareMembership) -> None:
        self._settings, self._membership, self._member_id = settings, membership, membership.member_id
        self._dead_letters = DeadLetters(lambda: ClientLog(cluster, holder="share consumer"))
        reads = ShareReads(cluster, settings.client_rack or None)
        self._polls = SharePolls(cluster, reads, dead_letters=self._dead_letters)
        self.deliveries = Deliveries()
        self.woken = False
        self.closed = Stop()
        self.lock_ms: int | None = None
        """The duration of the locks as of the last poll."""
        self.callback: Callback | None = None
        self.callback_thread: int | None = None
        """The thread that runs the callback now."""
        self.acknowledged_count = 0

    def begin(self, limit_s: float, rows_max: int) -> None:
        """Acknowledge, and acquire records unless some are buffered."""
        if self._settings.explicit:
            if self.deliveries.unacknowledged:
                raise IllegalStateError("All records must be acknowledged in explicit acknowledgement mode.")
        else:
            self.deliveries.accept_returned()
        now_s = clock.monotonic_s()
        half_s = (self.lock_ms or 0) / 2000
        due_s = self.deliveries.due_s
        if any(True for _ in self.deliveries.buffered(now_s)):
            if due_s is not None and due_s - now_s < half_s:
                self.send()
            return
        self._acquire(now_s + limit_s, rows_max)

    def _raise_if_woken(self) -> None:
        if self.woken:
            self.woken = False
            raise WakeupError("woken by wakeup()")

    def _acquire(self, deadline_s: float, rows_max: int) -> None:
        """Acknowledge, and wait for records. While the store or a log dir is unavailable it tries again, as Kafka's
        clients do.
        """
        while True:
            self._raise_if_woken()
            try:
                acquired = self._acquire_some(deadline_s, rows_max)
            except RetriableError as error:
                acquired = False
                logger.warning("poll: tried again in %d ms: %s", self._settings.retry_backoff_ms, redact(str(error)))
                left_s = deadline_s - clock.monotonic_s()
                self.closed.wait(max(0.0, min(left_s, self._settings.retry_backoff_ms / 1000)))
            if acquired or clock.monotonic_s() >= deadline_s or self.closed.is_set():
                return

    def _acquire_some(self, deadline_s: float, rows_max: int) -> bool:
        """Acknowledge, and wait for records until it is time to look for a new assignment. Return whether some came."""
        settings = self._settings
        self._membership.join()
        marked = self.deliveries.marked()
        whole = settings.share_acquire_mode == "batch_optimized"
        most = max(rows_max, settings.max_poll_records) if whole else rows_max
        result = self._polls.poll(
            settings.group_id,
            Request(self._member_id, most, settings.fetch_max_bytes, whole),
            self._membership.assigned,
            acknowledgements(marked, self._member_id),
            min(max(0.0, deadline_s - clock.monotonic_s()), _WAIT_S),
            lambda: self.woken or self.closed.is_set(),
        )
        ends_s = result.began_s + result.lock_ms / 1000
        for taken in result.taken:
            self.deliveries.add(self._membership.partitions[taken.key], taken.key, taken.parts, ends_s)
        self._acknowledged(marked, result)  # it may raise the error of a callback
        return bool(result.taken)

    def take(self, rows_max: int) -> Iterator[tuple[Delivery, pa.RecordBatch]]:
        """Yield buffered records. The caller adds the number that it returns to `Delivery.returned`."""
        whole = self._settings.share_acquire_mode == "batch_optimized" and rows_max == self._settings.max_poll_records
        left = math.inf if whole else rows_max
        for delivery in list(self.deliveries.buffered(clock.monotonic_s())):
            if left <= 0:
                return
            count = int(min(left, len(delivery.offsets) - delivery.returned))
            left -= count
            yield delivery, delivery.records.slice(delivery.returned, count)

    def send(self) -> dict[TopicPartition, Exception | None]:
        """Send the acknowledgements. Return, by partition, None or the error with which all of them were refused."""
        marked = self.deliveries.marked()
        result = self._polls.acknowledge(
            self._settings.group_id, self._member_id, acknowledgements(marked, self._member_id)
        )
        return self._acknowledged(marked, result)

    def _acknowledged(self, marked: Sequence[Delivery], result: Result) -> dict[TopicPartition, Exception | None]:
        """Apply the result of sent acknowledgements, and call the callback. Return as `send` does."""
        if result.lock_ms:
            self.lock_ms = result.lock_ms
        if not marked:
            return {}
        errors = {
            self._membership.partitions[key]: None if error is None else kafka_error(error)
            for key, error in result.errors.items()
        }
        offsets = acknowledged_offsets(marked)
        until_s = clock.monotonic_s() + result.lock_ms / 1000
        self.deliveries.sent([each for each in marked if result.errors.get(each.key) is None], until_s)
        self.deliveries.lost([each for each in marked if result.errors.get(each.key) is not None])
        self.acknowledged_count += sum(map(len, offsets.values()))
        if self.callback is not None:
            self.callback_thread = threading.get_ident()
            try:
                for partition, mine in offsets.items():
                    self.callback({partition: mine}, errors.get(partition))
            finally:
                self.callback_thread = None
        return errors

    def release_all(self, *, accept: bool) -> None:
        """Send the acknowledgements, and end the locks of all other records."""
        if self._settings.explicit or not accept:
            self.deliveries.mark_rest(AcknowledgeType.RELEASE)
        else:
            self.deliveries.accept_returned()
        marked = self.deliveries.marked()
        locks = self.deliveries.locks()
        if marked or locks:
            acks = acknowledgements(marked, self._member_id)
            result = self._polls.acknowledge(self._settings.group_id, self._member_id, acks, locks)
            self.deliveries.drop_buffered()
            self._acknowledged(marked, result)
        self.deliveries = Deliveries()

    def close(self) -> None:
        self._dead_letters.close()
