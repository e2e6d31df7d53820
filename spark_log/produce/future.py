"""What `send` and `send_table` return: kafka-python's futures by class and by behaviour."""

import functools
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from kafka.errors import IllegalStateError, KafkaTimeoutError
from kafka.future import Future
from kafka.producer.future import FutureRecordMetadata
from kafka.structs import TopicPartition

from spark_log import clock
from spark_log.produce.producer_batch import TopicBatch


class SendFuture(FutureRecordMetadata):  # type: ignore[misc]  # kafka-python ships no types
    """The result of one `send`, a RecordMetadata.

    It holds only its place in a topic batch (no lock, no lists): a million of them are cheap. Callbacks run in
    the sender's thread, or in the caller's if the result is there already.
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
        """The RecordMetadata, or what went wrong. `timeout` in seconds: KafkaTimeoutError after it."""
        wait_for(self._topic_batch, self._row, timeout)
        error = self.exception
        if error is not None:
            raise error
        return self.value

    def add_callback(self, f: Callable[..., object], *args: Any, **kwargs: Any) -> "SendFuture":
        self._topic_batch.call(self._row, functools.partial(f, *args, **kwargs) if args or kwargs else f, None)
        return self

    def add_errback(self, f: Callable[..., object], *args: Any, **kwargs: Any) -> "SendFuture":
        self._topic_batch.call(self._row, None, functools.partial(f, *args, **kwargs) if args or kwargs else f)
        return self

    def _add_cb_eb(self, cb: Callable[..., object], eb: Callable[..., object]) -> "SendFuture":
        self._topic_batch.call(self._row, cb, eb)
        return self

    def success(self, value: object) -> "SendFuture":
        raise IllegalStateError("the producer decides what becomes of a record")

    def failure(self, e: object) -> "SendFuture":
        raise IllegalStateError("the producer decides what becomes of a record")

    def rebind(self, new_produce_future: object, new_batch_index: object) -> None:
        raise IllegalStateError("the producer decides what becomes of a record")


class Written(NamedTuple):
    """Records that `send_table` has stored: those of one partition, in one run of offsets [base, end)."""

    topic_partition: TopicPartition
    base_offset: int
    end_offset: int


class TableFuture(Future):  # type: ignore[misc]
    """The result of one `send_table`: a list of Written, by partition and offset, once every record has its fate.

    It fails with the first error; other partitions may have been written then, see `written`.
    """

    __slots__ = ("_lock_parts", "_open", "_topic_batches")

    def __init__(self) -> None:
        super().__init__()
        self._topic_batches: list[TopicBatch] = []
        self._lock_parts = threading.Lock()
        self._open = 1

    def add(self, topic_batch: TopicBatch) -> None:
        """Add a topic batch to wait for, before the sender gets it."""
        with self._lock_parts:
            self._topic_batches.append(topic_batch)
            self._open += 1
        topic_batch.listener = self.part_done

    def part_done(self) -> None:
        """Called when a topic batch is done, and once when all have been added."""
        with self._lock_parts:
            self._open -= 1
            if self._open:
                return
        errors = [
            batch.error
            for topic_batch in self._topic_batches
            for batch in topic_batch.batches or ()
            if batch.error is not None
        ]
        errors = [topic_batch.error for topic_batch in self._topic_batches if topic_batch.error is not None] + errors
        if errors:
            self.failure(errors[0])
        else:
            self.success(self.written())

    def written(self) -> list[Written]:
        """What has been stored so far. Without offsets (acks=0) every run is [-1, -1)."""
        found = []
        for topic_batch in self._topic_batches:
            for batch in topic_batch.batches or ():
                if batch.done and batch.error is None:
                    base = batch.base_offset
                    end = base + batch.count if base >= 0 else -1
                    found.append(Written(TopicPartition(topic_batch.topic, batch.partition), base, end))
        return sorted(found)

    def get(self, timeout: float | None = None) -> Any:
        """The list, or what went wrong. `timeout` in seconds: KafkaTimeoutError after it."""
        deadline = None if timeout is None else clock.monotonic_s() + timeout
        for topic_batch in self._topic_batches:
            wait_for(topic_batch, None, None if deadline is None else max(0.0, deadline - clock.monotonic_s()))
        while not self.is_done:  # the last part is being counted in the sender's thread
            clock.sleep_s(0.0001)
        if self.exception is not None:
            raise self.exception
        return self.written()  # in a transaction, the offsets are known later than the success


def wait_for(topic_batch: TopicBatch, row: int | None, timeout_s: float | None) -> None:
    """KafkaTimeoutError unless the record (every one for None) has its fate in time."""
    if not topic_batch.wait(row, timeout_s):
        raise KafkaTimeoutError(f"Timeout after waiting for {timeout_s} secs.")
