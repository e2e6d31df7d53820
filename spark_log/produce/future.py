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
from spark_log.produce.producer_batch import Chunk


class SendFuture(FutureRecordMetadata):  # type: ignore[misc]  # kafka-python ships no types
    """The result of one `send`, a RecordMetadata.

    It holds nothing but its place in a chunk (no lock, no lists): making a million of them is cheap. Callbacks run in
    the sender's thread, or in the caller's if the result is there already.
    """

    __slots__ = ("_chunk", "_row")

    def __init__(self, chunk: Chunk, row: int) -> None:
        self._chunk, self._row = chunk, row

    @property
    def is_done(self) -> bool:
        return self._chunk.is_done(self._row)

    @property
    def value(self) -> Any:
        return self._chunk.metadata_of(self._row)

    @property
    def exception(self) -> Exception | None:
        return self._chunk.exception_of(self._row)

    def get(self, timeout: float | None = None) -> Any:
        """The RecordMetadata, or what went wrong. `timeout` in seconds: KafkaTimeoutError after it."""
        wait_for(self._chunk, self._row, timeout)
        error = self.exception
        if error is not None:
            raise error
        return self.value

    def add_callback(self, f: Callable[..., object], *args: Any, **kwargs: Any) -> "SendFuture":
        self._chunk.call(self._row, functools.partial(f, *args, **kwargs) if args or kwargs else f, None)
        return self

    def add_errback(self, f: Callable[..., object], *args: Any, **kwargs: Any) -> "SendFuture":
        self._chunk.call(self._row, None, functools.partial(f, *args, **kwargs) if args or kwargs else f)
        return self

    def _add_cb_eb(self, cb: Callable[..., object], eb: Callable[..., object]) -> "SendFuture":
        self._chunk.call(self._row, cb, eb)
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

    __slots__ = ("_chunks", "_lock_parts", "_open")

    def __init__(self) -> None:
        super().__init__()
        self._chunks: list[Chunk] = []
        self._lock_parts = threading.Lock()
        self._open = 1

    def add(self, chunk: Chunk) -> None:
        """One more chunk to wait for; before it is given to the sender."""
        with self._lock_parts:
            self._chunks.append(chunk)
            self._open += 1
        chunk.listener = self.part_done

    def part_done(self) -> None:
        """A chunk is done, or (once) all have been added."""
        with self._lock_parts:
            self._open -= 1
            if self._open:
                return
        errors = [piece.error for chunk in self._chunks for piece in chunk.pieces or () if piece.error is not None]
        errors = [chunk.error for chunk in self._chunks if chunk.error is not None] + errors
        if errors:
            self.failure(errors[0])
        else:
            self.success(self.written())

    def written(self) -> list[Written]:
        """What has been stored so far. Without offsets (acks=0) every run is [-1, -1)."""
        found = []
        for chunk in self._chunks:
            for piece in chunk.pieces or ():
                if piece.done and piece.error is None:
                    base = piece.base_offset
                    end = base + piece.count if base >= 0 else -1
                    found.append(Written(TopicPartition(chunk.topic, piece.partition), base, end))
        return sorted(found)

    def get(self, timeout: float | None = None) -> Any:
        """The list, or what went wrong. `timeout` in seconds: KafkaTimeoutError after it."""
        deadline = None if timeout is None else clock.monotonic_s() + timeout
        for chunk in self._chunks:
            wait_for(chunk, None, None if deadline is None else max(0.0, deadline - clock.monotonic_s()))
        while not self.is_done:  # the last part is being counted in the sender's thread
            clock.sleep_s(0.0001)
        if self.exception is not None:
            raise self.exception
        return self.written()  # in a transaction, the offsets are known later than the success


def wait_for(chunk: Chunk, row: int | None, timeout_s: float | None) -> None:
    """KafkaTimeoutError unless the record (every one for None) has its fate in time."""
    if not chunk.wait(row, timeout_s):
        raise KafkaTimeoutError(f"Timeout after waiting for {timeout_s} secs.")
