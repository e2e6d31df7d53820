"""Where records wait: by topic, until they are due and the sender is free. Bounded in bytes.

A topic's chunk is due when its first record has waited `linger_ms`, or it holds `batch_size` bytes for each partition,
or somebody flushes. Whatever is due goes to the sender together.
"""

import itertools
import threading
from collections import deque
from collections.abc import Callable, Sequence

from kafka.errors import IllegalStateError

from spark_log import clock
from spark_log.errors import KafkaTimeoutError
from spark_log.produce.producer_batch import Chunk, Headers
from spark_log.produce.producer_settings import ProducerSettings

CHUNK_BYTES_MAX = 16 * 1024 * 1024
"""A chunk is closed above it, so that the sender encodes one while the next is being filled."""


class Queue:
    """The chunks of one topic that wait, in order; `open` takes the next record."""

    __slots__ = ("closed", "full_bytes", "name", "open")

    def __init__(self, name: str, full_bytes: int) -> None:
        self.name, self.full_bytes = name, full_bytes
        self.open: Chunk | None = None
        self.closed: deque[Chunk] = deque()


class Accumulator:
    """Safe to share between threads. The sender's thread, told by `sender`, is never made to wait for itself."""

    def __init__(self, settings: ProducerSettings) -> None:
        self._linger_s = settings.linger_ms / 1000
        self._max_block_s = settings.max_block_ms / 1000
        self._limit = settings.buffer_memory
        self._lock = threading.Lock()
        self._due = threading.Condition(self._lock)
        self._room = threading.Condition(self._lock)
        self._settled = threading.Condition(self._lock)
        self._queues: dict[str, Queue] = {}
        self._outstanding: dict[Chunk, None] = {}
        self._used = 0
        self._sleeping = False
        self._closing = False
        self.sender: threading.Thread | None = None

    @property
    def available_bytes(self) -> int:
        return max(0, self._limit - self._used)

    def queue(self, topic: str, full_bytes: int) -> Queue:
        """The queue of a topic, which holds that many bytes before it is due whatever linger_ms says."""
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
    ) -> tuple[Chunk, int]:
        """Take a record of `size` bytes; its chunk and row. KafkaTimeoutError when there is no room in time."""
        with self._lock:
            if self._used + size > self._limit:
                self._wait_for_room(size)
            if self._closing:
                raise IllegalStateError("the producer is closed")
            chunk = queue.open
            if chunk is None:
                chunk = queue.open = Chunk(queue.name)
                self._outstanding[chunk] = None
                if self._sleeping:
                    self._due.notify()
            row = len(chunk.values)
            chunk.values.append(value)
            chunk.keys.append(key)
            if headers:
                chunk.headers[row] = headers
            if partition is not None:
                chunk.partitions[row] = partition
            chunk.timestamps.append(timestamp_ms)
            chunk.bytes += size
            self._used += size
            if chunk.bytes >= queue.full_bytes and (self._sleeping or chunk.bytes >= CHUNK_BYTES_MAX):
                self._close(queue)
                self._sleeping = False  # it has been woken, but may not run for a while: more goes into one chunk
            return chunk, row

    def add_chunk(self, queue: Queue, chunk: Chunk) -> None:
        """Take a chunk that is complete, behind every record that came before. KafkaTimeoutError as in `add`.

        One that is larger than the buffer is let in alone.
        """
        with self._lock:
            if self._used + chunk.bytes > self._limit:
                self._wait_for_room(chunk.bytes)
            if self._closing:
                raise IllegalStateError("the producer is closed")
            self._close(queue)
            self._outstanding[chunk] = None
            queue.closed.append(chunk)
            self._used += chunk.bytes
            self._due.notify()

    def take(self, until_s: float | None) -> list[Chunk] | None:
        """The chunks that are due; waits for one, or until `until_s` (None: for ever). None: closed, nothing left."""
        with self._lock:
            while True:
                now_s = clock.monotonic_s()
                chunks, next_s = self._take_due(now_s)
                if chunks or (until_s is not None and now_s >= until_s):
                    return chunks
                if self._closing and until_s is None:
                    return None
                wake_s = min((at for at in (next_s, until_s) if at is not None), default=None)
                self._sleeping = True
                self._due.wait(None if wake_s is None else wake_s - now_s)
                self._sleeping = False

    def flush(self) -> list[Chunk]:
        """Make everything due; the chunks that are not finished."""
        with self._lock:
            for queue in self._queues.values():
                self._close(queue)
            return list(self._outstanding)

    def close(self) -> None:
        """Nothing more comes: `take` ends when nothing is left."""
        with self._lock:
            self._closing = True
            for queue in self._queues.values():
                self._close(queue)
            self._due.notify()
            self._room.notify_all()

    @property
    def closing(self) -> bool:
        """Whether nothing more comes."""
        return self._closing

    def release(self, size: int) -> None:
        """`size` bytes of records have their fate."""
        with self._lock:
            self._used -= size
            self._room.notify_all()

    def finished(self, chunk: Chunk) -> None:
        """Every record of a chunk is stored or given up."""
        with self._lock:
            self._outstanding.pop(chunk, None)
            self._settled.notify_all()

    def wait_for(self, chunks: Sequence[Chunk], timeout_s: float | None) -> bool:
        """Whether every one of the chunks is finished within the time."""
        with self._lock:
            return self._settled.wait_for(lambda: not any(chunk in self._outstanding for chunk in chunks), timeout_s)

    def outstanding(self) -> list[Chunk]:
        """The chunks that are not finished, without the lock: for a forked child."""
        return list(self._outstanding)

    def _close(self, queue: Queue) -> None:
        if queue.open is not None:
            queue.closed.append(queue.open)
            queue.open = None
            self._due.notify()

    def _take_due(self, now_s: float) -> tuple[list[Chunk], float | None]:
        """What is due, and when the next will be."""
        chunks: list[Chunk] = []
        next_s: float | None = None
        for queue in self._queues.values():
            if queue.open is not None:
                due_s = queue.open.made_s + self._linger_s
                if now_s >= due_s or queue.open.bytes >= queue.full_bytes:
                    queue.closed.append(queue.open)
                    queue.open = None
                else:
                    next_s = due_s if next_s is None else min(next_s, due_s)
            if queue.closed:
                chunks.extend(queue.closed)
                queue.closed.clear()
        return chunks, next_s

    def _wait_for_room(self, size: int) -> None:
        if threading.current_thread() is self.sender:
            return  # a callback that sends: only this thread can make room
        fits: Callable[[], bool] = lambda: self._used + size <= self._limit or not self._used or self._closing  # noqa: E731
        for queue in self._queues.values():
            self._close(queue)
        if not self._room.wait_for(fits, self._max_block_s):
            raise KafkaTimeoutError(
                f"no room for {size} bytes within max_block_ms: {self._used} of buffer_memory={self._limit} are taken"
            )


_numbers = itertools.count(1)


def next_client_id() -> str:
    return f"spark-log-producer-{next(_numbers)}"
