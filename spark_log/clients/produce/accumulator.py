"""Buffers the producer's records by topic, within a limit in bytes, until they are due and the sender is free.

A topic batch is due when its first record has waited `linger_ms`, when it holds `batch_size` bytes for each partition,
when a thread waits for room in the buffer, or when `flush` is called. The sender takes all topic batches that are due
together.
"""

import itertools
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kafka.errors import IllegalStateError

from spark_log import clock
from spark_log.clients.produce.producer_batch import Headers, TopicBatch
from spark_log.clients.produce.producer_settings import ProducerSettings
from spark_log.errors import KafkaTimeoutError

CHUNK_BYTES_MAX = 16 * 1024 * 1024
"""Size above which a topic batch is closed, so that the sender encodes it while the next one is filled."""


@dataclass(slots=True, eq=False)
class Queue:
    """The waiting topic batches of one topic, in order. The next record is added to `open`."""

    name: str
    full_bytes: int
    open: TopicBatch | None = None
    closed: deque[TopicBatch] = field(default_factory=deque)


class Accumulator:
    """Buffers the records of all threads. Thread `sender` never waits for room: it would wait for itself."""

    def __init__(self, settings: ProducerSettings) -> None:
        self._linger_s = settings.linger_ms / 1000
        self._max_block_s = settings.max_block_ms / 1000
        self._limit = settings.buffer_memory
        self._lock = threading.RLock()  # a garbage collection in a thread that holds it may close the producer
        self._due = threading.Condition(self._lock)
        self._room = threading.Condition(self._lock)
        self._settled = threading.Condition(self._lock)
        self._queues: dict[str, Queue] = {}
        self._filled: dict[Queue, None] = {}
        """The queues that have topic batches, of all that were ever used."""
        self._outstanding: dict[TopicBatch, None] = {}
        self._used = 0
        self._blocked = 0
        """Number of threads that wait for room."""
        self._sleeping = False
        self._woken = False
        self._closing = False
        self.refusal: str | None = None
        """The reason why the producer refuses records, or None while it accepts them."""
        self.sender: threading.Thread | None = None

    @property
    def available_bytes(self) -> int:
        return max(0, self._limit - self._used)

    def queue(self, topic: str, full_bytes: int) -> Queue:
        """Return a topic's queue. It is due at `full_bytes` bytes, at most CHUNK_BYTES_MAX, or after linger_ms."""
        with self._lock:
            queue = self._queues.setdefault(topic, Queue(topic, full_bytes))
            queue.full_bytes = min(full_bytes, CHUNK_BYTES_MAX)
            return queue

    def add(
        self,
        queue: Queue,
        key: bytes | None,
        value: bytes | None,
        headers: Headers | None,
        partition: int | None,
        timestamp_ms: int,
        size: int,
    ) -> tuple[TopicBatch, int]:
        """Add a record; return its topic batch and row. Raises KafkaTimeoutError if there is no room within
        max_block_ms, and IllegalStateError after `close`.
        """
        with self._lock:
            if self._used + size > self._limit:
                self._wait_for_room(size)
            if self._closing:
                raise IllegalStateError("the producer is closed")
            topic_batch = queue.open
            if topic_batch is None:
                topic_batch = queue.open = TopicBatch(queue.name)
                self._filled[queue] = None
                self._outstanding[topic_batch] = None
                if self._sleeping:
                    self._due.notify()
            row = len(topic_batch.values)
            topic_batch.values.append(value)
            topic_batch.keys.append(key)
            if headers:
                topic_batch.headers[row] = headers
            if partition is not None:
                topic_batch.partitions[row] = partition
            topic_batch.timestamps.append(timestamp_ms)
            topic_batch.bytes += size
            self._used += size
            if topic_batch.bytes >= queue.full_bytes and (self._sleeping or topic_batch.bytes >= CHUNK_BYTES_MAX):
                self._close(queue)
                self._sleeping = False  # it is woken, but may not run for a while: the next records share a batch
            return topic_batch, row

    def add_topic_batch(self, queue: Queue, topic_batch: TopicBatch) -> None:
        """Add a complete topic batch after all earlier records. Raises KafkaTimeoutError if there is no room within
        max_block_ms, and IllegalStateError after `close`.

        A topic batch that is larger than the buffer is accepted when the buffer is empty.
        """
        with self._lock:
            if self._used + topic_batch.bytes > self._limit:
                self._wait_for_room(topic_batch.bytes)
            if self._closing:
                raise IllegalStateError("the producer is closed")
            self._close(queue)
            self._outstanding[topic_batch] = None
            queue.closed.append(topic_batch)
            self._filled[queue] = None
            self._used += topic_batch.bytes
            self._due.notify()

    def take(self, until_s: float | None) -> list[TopicBatch] | None:
        """Take the topic batches that are due. Wait for one until the monotonic time `until_s`; None means no limit.

        Returns an empty list at `until_s` and after `wake`, and None if there is no `until_s` and the accumulator is
        closed and empty.
        """
        with self._lock:
            while True:
                now_s = clock.monotonic_s()
                topic_batches, next_s = self._take_due(now_s)
                woken, self._woken = self._woken, False
                if topic_batches or woken or (until_s is not None and now_s >= until_s):
                    return topic_batches
                if self._closing and until_s is None:
                    return None
                wake_s = min((at for at in (next_s, until_s) if at is not None), default=None)
                self._sleeping = True
                self._due.wait(None if wake_s is None else wake_s - now_s)
                self._sleeping = False

    def wake(self) -> None:
        """Make the running or next `take` return."""
        with self._lock:
            self._woken = True
            self._due.notify()

    def flush(self) -> list[TopicBatch]:
        """Make every topic batch due; return the unfinished topic batches."""
        with self._lock:
            for queue in self._filled:
                self._close(queue)
            return list(self._outstanding)

    def close(self) -> None:
        """Refuse further records; `take` returns None when no records are left."""
        with self._lock:
            self._closing = True
            for queue in self._filled:
                self._close(queue)
            self._due.notify()
            self._room.notify_all()

    @property
    def closing(self) -> bool:
        """Whether further records are refused."""
        return self._closing

    def release(self, size: int) -> None:
        """Free `size` bytes of records whose outcome is known."""
        with self._lock:
            self._used -= size
            self._room.notify_all()

    def finished(self, topic_batch: TopicBatch) -> None:
        """Note that every record of a topic batch is stored or has failed."""
        with self._lock:
            self._outstanding.pop(topic_batch, None)
            self._settled.notify_all()

    def wait_for(self, topic_batches: Sequence[TopicBatch], timeout_s: float | None) -> bool:
        """Wait for all the topic batches. Return whether they finished within the time."""
        timeout_s = None if timeout_s is None else min(timeout_s, threading.TIMEOUT_MAX)
        with self._lock:
            return self._settled.wait_for(
                lambda: not any(topic_batch in self._outstanding for topic_batch in topic_batches), timeout_s
            )

    def outstanding(self) -> list[TopicBatch]:
        """Return the unfinished topic batches, without the lock, for a forked child."""
        return list(self._outstanding)

    def _close(self, queue: Queue) -> None:
        topic_batch, queue.open = queue.open, None
        if topic_batch is not None:
            queue.closed.append(topic_batch)
            self._due.notify()

    def _take_due(self, now_s: float) -> tuple[list[TopicBatch], float | None]:
        """Return the topic batches that are due, and the time at which the next one will be due."""
        topic_batches: list[TopicBatch] = []
        next_s: float | None = None
        for queue in list(self._filled):
            topic_batch = queue.open
            if topic_batch is not None:
                due_s = topic_batch.made_s + self._linger_s
                if now_s >= due_s or topic_batch.bytes >= queue.full_bytes or self._blocked:
                    self._close(queue)
                else:
                    next_s = due_s if next_s is None else min(next_s, due_s)
            if queue.closed:
                topic_batches.extend(queue.closed)
                queue.closed.clear()
            if queue.open is None:
                del self._filled[queue]
        return topic_batches, next_s

    def _wait_for_room(self, size: int) -> None:
        if threading.current_thread() is self.sender:
            return  # a callback calls `send`: only this thread can make room
        fits: Callable[[], bool] = lambda: self._used + size <= self._limit or not self._used or self._closing  # noqa: E731
        self._blocked += 1
        self._due.notify()
        try:
            if not self._room.wait_for(fits, self._max_block_s):
                raise KafkaTimeoutError(
                    f"no room for {size} bytes within max_block_ms: {self._used} of buffer_memory={self._limit} are"
                    " taken"
                )
        finally:
            self._blocked -= 1


_numbers = itertools.count(1)


def next_client_id() -> str:
    return f"spark-log-producer-{next(_numbers)}"
