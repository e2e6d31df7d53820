"""Defines the futures that `send` and `send_table` return. They behave as kafka-python's, and are instances of them."""

import functools
import threading
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Self

from kafka.errors import IllegalStateError, KafkaTimeoutError
from kafka.future import Future
from kafka.producer.future import FutureRecordMetadata
from kafka.structs import TopicPartition

from spark_log import clock
from spark_log.clients.produce.producer_batch import Callback, ProducerBatch, TopicBatch, call_logged


class _ProducersFuture:
    """The methods of kafka-python's futures that are the same for `send` and `send_table`. `_add_cb_eb` calls one of
    its arguments when the outcome is known.
    """

    __slots__ = ()

    def _add_cb_eb(self, cb: Callback | None, eb: Callback | None) -> None:
        raise NotImplementedError

    def add_callback(self, f: Callable[..., object], *args: Any, **kwargs: Any) -> Self:
        self._add_cb_eb(functools.partial(f, *args, **kwargs) if args or kwargs else f, None)
        return self

    def add_errback(self, f: Callable[..., object], *args: Any, **kwargs: Any) -> Self:
        self._add_cb_eb(None, functools.partial(f, *args, **kwargs) if args or kwargs else f)
        return self

    def success(self, value: object) -> Self:
        raise IllegalStateError("the producer decides what becomes of a record")

    def failure(self, e: object) -> Self:
        raise IllegalStateError("the producer decides what becomes of a record")


class SendFuture(_ProducersFuture, FutureRecordMetadata):  # type: ignore[misc]  # kafka-python ships no types
    """A future of one `send`; its value is a RecordMetadata.

    It holds only its place in a topic batch (no lock, no lists), so that a million of them are cheap. Callbacks run in
    the sender's thread, or in the caller's if the future is done already.
    """

    __slots__ = ("_row", "_topic_batch")

    def __init__(self, topic_batch: TopicBatch, row: int) -> None:
        self._topic_batch, self._row = topic_batch, row

    @property
    def is_done(self) -> bool:
        return self._topic_batch.is_done(self._row)

    @property
    def value(self) -> Any:
        return self._topic_batch.metadata_of(self._row)

    @property
    def exception(self) -> Exception | None:
        return self._topic_batch.exception_of(self._row)

    def get(self, timeout: float | None = None) -> Any:
        """Wait for the RecordMetadata or raise the record's error. Raises KafkaTimeoutError after `timeout` seconds."""
        wait_for(self._topic_batch, self._row, timeout)
        error = self.exception
        if error is not None:
            raise error
        return self.value

    def _add_cb_eb(self, cb: Callback | None, eb: Callback | None) -> None:
        self._topic_batch.call(self._row, cb, eb)

    def rebind(self, new_produce_future: object, new_batch_index: object) -> None:
        raise IllegalStateError("the producer decides what becomes of a record")


class Written(NamedTuple):
    """Records of one partition that are stored at the contiguous offsets [base_offset, end_offset)."""

    topic_partition: TopicPartition
    base_offset: int
    end_offset: int


def merged(ranges: Iterable[Written]) -> list[Written]:
    """Return the ranges sorted by partition and offset. Adjacent ones are joined, because the boundaries of
    batches mean nothing to the caller.
    """
    result: list[Written] = []
    for each in sorted(ranges):
        last = result[-1] if result else None
        if last is not None and (last.topic_partition, last.end_offset) == each[:2] and each.base_offset >= 0:
            result[-1] = Written(last.topic_partition, last.base_offset, each.end_offset)
        else:
            result.append(each)
    return result


class TableFuture(_ProducersFuture, Future):  # type: ignore[misc]
    """A future of one `send_table`; its value is a list of Written, by partition and offset. It is done when the
    outcome of every record is known.

    It fails with the first error; other partitions may have been written nevertheless, see `written`. The outcome is
    that of its topic batches, so that it is known in a forked child too.
    """

    __slots__ = ("_callbacks", "_lock", "_topic_batches")

    def __init__(self) -> None:
        self._topic_batches: list[TopicBatch] = []
        self._callbacks: list[tuple[Callback | None, Callback | None]] = []
        self._lock = threading.Lock()

    def add(self, topic_batch: TopicBatch) -> None:
        """Add a topic batch to wait for, before the sender gets it, and before others get this future."""
        self._topic_batches.append(topic_batch)
        topic_batch.listener = self._call_back

    @property
    def is_done(self) -> bool:
        return all(topic_batch.done for topic_batch in self._topic_batches)

    @property
    def value(self) -> Any:
        return self.written() if self.is_done and self.exception is None else None

    @property
    def exception(self) -> Exception | None:
        if not self.is_done:
            return None
        outcomes: list[TopicBatch | ProducerBatch] = list(self._topic_batches)
        for topic_batch in self._topic_batches:
            outcomes += topic_batch.batches or ()
        return next((outcome.error for outcome in outcomes if outcome.error is not None), None)

    def _add_cb_eb(self, cb: Callback | None, eb: Callback | None) -> None:
        with self._lock:
            self._callbacks.append((cb, eb))
        self._call_back()

    def _call_back(self) -> None:
        """Call the callbacks, each once, if the outcome is known."""
        if not self.is_done:
            return
        with self._lock:
            due, self._callbacks = self._callbacks, []
        error = self.exception
        for callback, errback in due:
            if error is None:
                call_logged(callback, self.value)
            else:
                call_logged(errback, error)

    def written(self) -> list[Written]:
        """Return the records stored so far. Without offsets (acks=0) every range is [-1, -1)."""
        ranges = []
        for topic_batch in self._topic_batches:
            for batch in topic_batch.batches or ():
                if batch.done and batch.error is None:
                    base = batch.base_offset
                    end = base + batch.count if base >= 0 else -1
                    ranges.append(Written(TopicPartition(topic_batch.topic, batch.partition), base, end))
        return merged(ranges)

    def get(self, timeout: float | None = None) -> Any:
        """Wait for the list, or raise the first error. Raises KafkaTimeoutError after `timeout` seconds."""
        deadline = None if timeout is None else clock.monotonic_s() + timeout
        for topic_batch in self._topic_batches:
            wait_for(topic_batch, None, None if deadline is None else max(0.0, deadline - clock.monotonic_s()))
        error = self.exception
        if error is not None:
            raise error
        return self.value


def wait_for(topic_batch: TopicBatch, row: int | None, timeout_s: float | None) -> None:
    """Wait for the outcome of the record, or of every record for None. Raises KafkaTimeoutError after `timeout_s`."""
    if not topic_batch.wait(row, timeout_s):
        raise KafkaTimeoutError(f"Timeout after waiting for {timeout_s} secs.")
