"""Commits a consumer's offsets: synchronously, in the background, and automatically."""

import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from kafka.future import Future
from kafka.structs import OffsetAndMetadata, TopicPartition

from spark_log import clock
from spark_log.clients.consume.background import Background
from spark_log.clients.consume.consumer_settings import ConsumerSettings
from spark_log.clients.kafka_errors import kafka_error
from spark_log.errors import (
    CommitFailedError,
    IllegalGenerationError,
    SparkLogError,
    UnknownMemberIdError,
)
from spark_log.groups.committed_offsets import AGAIN_S, Commit

logger = logging.getLogger(__name__)

Offsets = Mapping[TopicPartition, Commit]
Callback = Callable[[Mapping[TopicPartition, OffsetAndMetadata], Any], Any]


class Commits:
    """Runs a consumer's commits one at a time. `write` writes one, and raises errors of the store and the group."""

    def __init__(self, settings: ConsumerSettings, background: Background, write: Callable[[Offsets], None]) -> None:
        self._settings = settings
        self._background = background
        self._write = write
        self._completed: deque[tuple[Callback, Offsets, Any]] = deque()
        self._auto_due_s = clock.monotonic_s() + settings.auto_commit_interval_ms / 1000
        self._auto_done: Offsets = {}
        self._submitted: Future | None = None
        self._again_s = 0.0
        self.count = 0

    def now(self, offsets: Offsets, timeout_ms: float | None = None) -> None:
        """Commit and wait. Raises CommitFailedError if the consumer is not a member of the group any more, and
        KafkaTimeoutError after `timeout_ms` (default: request_timeout_ms).
        """
        self.call_back()
        if offsets:
            self._wait(offsets, timeout_ms)

    def _wait(self, offsets: Offsets, timeout_ms: float | None) -> None:
        timeout = self._settings.request_timeout_ms if timeout_ms is None else timeout_ms
        self._background.run(lambda: self._commit(offsets), timeout / 1000)

    def later(self, offsets: Offsets, callback: Callback | None = None) -> Future:
        """Commit in the background. A later `call_back` calls `callback(offsets, None or the error)`."""
        self.call_back()
        return self._submit(offsets, callback or self._settings.default_offset_commit_callback or _log_failure)

    def _submit(self, offsets: Offsets, callback: Callback) -> Future:
        def commit() -> None:
            try:
                self._commit(offsets)
            except SparkLogError as error:
                translated = kafka_error(error)
                self._completed.append((callback, offsets, translated))
                raise translated from error
            self._completed.append((callback, offsets, None))

        self._submitted = self._background.submit(commit)
        return self._submitted

    def call_back(self) -> None:
        """Call the callbacks of finished commits, oldest first."""
        while self._completed:
            callback, offsets, outcome = self._completed.popleft()
            callback({partition: OffsetAndMetadata(*commit[:3]) for partition, commit in offsets.items()}, outcome)

    def auto_due_s(self) -> float:
        """Return the monotonic time of the next automatic commit, or infinity if commits are not automatic."""
        return self._auto_due_s if self._settings.auto_commit else float("inf")

    def auto_if_due(self, offsets: Callable[[], Offsets]) -> None:
        if clock.monotonic_s() >= self.auto_due_s():
            self.postpone_auto()
            self.auto_later(offsets())

    def auto_later(self, offsets: Offsets) -> None:
        """Commit automatically in the background, unless the last hour's automatic commit had the same offsets."""
        now_s = clock.monotonic_s()
        if self._settings.auto_commit and offsets and (offsets != self._auto_done or now_s > self._again_s):
            self._auto_done, self._again_s = offsets, now_s + AGAIN_S
            self._submit(offsets, self._auto_outcome)  # without `call_back`: a callback may close the consumer

    def finish(self, offsets: Offsets, timeout_ms: float | None = None) -> None:
        """Commit `offsets` if commits are automatic, and wait for this commit and those in the background, before
        partitions are revoked. A failure is only logged: the records after the last commit are read again
        (at-least-once). The callbacks of earlier commits are called last, since they may raise any error.
        """
        last = offsets if self._settings.auto_commit else {}
        if last or (self._submitted is not None and not self._submitted.is_done):
            try:
                self._wait(last, timeout_ms)
            except SparkLogError as error:
                logger.warning("commit failed, records will be read again: %s", error)
            else:
                self._auto_done = last or self._auto_done
        self.call_back()

    def postpone_auto(self) -> None:
        self._auto_due_s = clock.monotonic_s() + self._settings.auto_commit_interval_ms / 1000

    def _auto_outcome(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], outcome: Any) -> None:
        if outcome is not None:
            self._auto_done = {}
            if getattr(outcome, "retriable", False):
                retry_s = clock.monotonic_s() + self._settings.retry_backoff_ms / 1000
                self._auto_due_s = min(self._auto_due_s, retry_s)
        (self._settings.default_offset_commit_callback or _log_failure)(offsets, outcome)

    def _commit(self, offsets: Offsets) -> None:
        if not offsets:
            return
        try:
            self._write(offsets)
        except (IllegalGenerationError, UnknownMemberIdError) as error:
            raise CommitFailedError(
                f"{error}; its partitions may have gone to another member, which reads on from the last commit"
            ) from error
        self.count += 1


def _log_failure(offsets: Mapping[TopicPartition, OffsetAndMetadata], outcome: Any) -> None:
    if outcome is not None:
        logger.warning("commit of %s failed: %s", dict(offsets), outcome)
