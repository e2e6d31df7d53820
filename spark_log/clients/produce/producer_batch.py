"""Keeps the records of one topic in the producer, and their outcome.

A TopicBatch gathers the records of `send` as columns. The sender splits it into ProducerBatches, one for each
partition; each is appended, or fails, as a whole. Futures are views of it (topic batch, row): an outcome is stored once
for all records of a ProducerBatch, and an unused future has no further cost.

    waiting (batches None) -> assembled (open_batches > 0) -> done (open_batches == 0)

Every change after `waiting` happens under `condition`.
"""

import logging
import threading
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from kafka.producer.future import RecordMetadata
from kafka.structs import TopicPartition

from spark_log import clock
from spark_log.cluster.topics import Topic
from spark_log.log.records.segment_write import own

logger = logging.getLogger(__name__)

_Longs = npt.NDArray[np.int64] | Sequence[int]
_Data = bytes | None
Headers = list[tuple[str, bytes]]
RECORD_BYTES = 96
"""Bytes of a record in addition to its key and value: an upper bound for a record without headers, in which Kafka's
estimate adds at most 82 bytes and varints."""

Callback = Callable[[Any], object]
_CallbacksOfRecord = tuple[int, Callback | None, Callback | None]
"""The row of a record, and what to call with its RecordMetadata or its error."""


def call_logged(callback: Callback | None, argument: object) -> None:
    """Call a user's callback. Its error must not end the sender, not even SystemExit of sys.exit: it is logged."""
    if callback is not None:
        try:
            callback(argument)
        except BaseException:
            logger.exception("error in the callback %s of a future", callback)


@dataclass(slots=True, eq=False, repr=False)
class ProducerBatch:
    """The records of a topic batch for one partition, in order. It is appended, and retried, as a whole."""

    topic_batch: "TopicBatch"
    number: int
    topic: Topic
    partition: int
    table: pa.Table
    bytes: int
    deadline_s: float
    count: int = field(init=False)
    attempts: int = 0
    retry_at_s: float = 0.0
    alone: bool = False
    in_doubt: bool = False
    last_error: Exception | None = None
    disk_full: Exception | None = None
    """The last error of a full disk."""
    error: Exception | None = None
    done: bool = False
    base_offset: int = -1
    owned: bool = False
    position: int = -1
    """Its position among the batches of its transaction."""

    def __post_init__(self) -> None:
        self.count = self.table.num_rows

    @property
    def key(self) -> tuple[str, int]:
        return self.topic.name, self.partition

    def own_table(self) -> None:
        """Copy the records out of buffers that they share with other batches, so that the buffers can be freed."""
        if not self.owned:
            self.table, self.owned = own([self.table]), True


@dataclass(slots=True, eq=False, repr=False)
class TopicBatch:
    """The records of `send` as columns, one row per record. The accumulator's lock guards them until the sender takes
    the batch.

    `headers` and `partitions` (explicit ones) are by row, for the records that have them. `made_s` is the time of the
    first record by the monotonic clock.
    """

    topic: str
    made_s: float = field(default_factory=clock.monotonic_s)
    bytes: int = 0
    keys: list[_Data] = field(default_factory=list)
    values: list[_Data] = field(default_factory=list)
    headers: dict[int, Headers] = field(default_factory=dict)
    partitions: dict[int, int] = field(default_factory=dict)
    timestamps: "array[int]" = field(default_factory=lambda: array("q"))
    condition: threading.Condition = field(default_factory=lambda: threading.Condition(threading.Lock()))
    callbacks: dict[int | None, list[_CallbacksOfRecord]] = field(default_factory=dict)
    """The callbacks of records whose outcome is open, by the number of their batch; None before the assembly."""
    listener: Callable[[], None] | None = None
    batches: Sequence[ProducerBatch] | None = None
    open_batches: int = -1
    unsettled: int = 0
    error: Exception | None = None
    faults: dict[int, Exception] = field(default_factory=dict)
    header_sizes: dict[int, int] = field(default_factory=dict)
    batch_of: _Longs = ()
    row_of: _Longs = ()
    times_ms: _Longs = ()
    key_sizes: _Longs = ()
    value_sizes: _Longs = ()

    @property
    def done(self) -> bool:
        return self.open_batches == 0

    def is_done(self, row: int) -> bool:
        """Whether the outcome of a record is known."""
        if self.open_batches <= 0 or self.batches is None:
            return self.open_batches == 0
        number = self.batch_of[row]
        return bool(number < 0 or self.batches[number].done)

    def exception_of(self, row: int) -> Exception | None:
        """Return the error of a record that was not stored; None if it was, or if its outcome is open."""
        if not self.is_done(row):
            return None
        if self.error is not None or self.batches is None:
            return self.error
        number = self.batch_of[row]
        return self.faults.get(row) if number < 0 else self.batches[number].error

    def metadata_of(self, row: int) -> Any:
        """Return the RecordMetadata of a stored record, otherwise None. The offset is -1 with acks=0."""
        if not self.is_done(row) or self.exception_of(row) is not None or self.batches is None:
            return None
        batch = self.batches[self.batch_of[row]]
        offset = -1 if batch.base_offset < 0 else batch.base_offset + int(self.row_of[row])
        sizes = int(self.key_sizes[row]), int(self.value_sizes[row]), self.header_sizes.get(row, -1)
        where = TopicPartition(self.topic, batch.partition)
        return RecordMetadata(*where, where, offset, int(self.times_ms[row]), None, *sizes)

    def abandon(self, error: Exception) -> None:
        """Fail in a forked child: threads of the parent may hold the locks, and callbacks run in the parent only."""
        self.condition, self.callbacks, self.listener = threading.Condition(threading.Lock()), {}, None
        self.fail(error)

    def begin(self, batches: Sequence[ProducerBatch], batch_of: _Longs, faults: dict[int, Exception]) -> None:
        """Accept the result of assembly. From now on the outcome of the records in `faults` (batch -1) is known."""
        with self.condition:
            if self.error is not None:  # failed during assembly
                for batch in batches:
                    batch.done = True
                return
            self.batch_of, self.faults, self.batches = batch_of, faults, batches
            self.open_batches = len(batches)
            self.keys, self.values, self.headers, self.partitions, self.timestamps = [], [], {}, {}, array("q")
            for entry in self.callbacks.pop(None, ()):
                self.callbacks.setdefault(int(batch_of[entry[0]]), []).append(entry)
            due = self.callbacks.pop(-1, [])
            self.condition.notify_all()
        self._notify(due)

    def resolve(self, batch: ProducerBatch, base_offset: int, error: Exception | None) -> bool:
        """Set the outcome of a batch and run the callbacks of its records. Returns False if it already has one."""
        with self.condition:
            if batch.done:
                return False
            batch.base_offset, batch.error, batch.done = base_offset, error, True
            self.open_batches -= 1
            due = self.callbacks.pop(batch.number, [])
            self.condition.notify_all()
        self._notify(due)
        return True

    def fail(self, error: Exception) -> None:
        """Fail every record whose outcome is open."""
        for batch in self.batches or ():
            self.resolve(batch, -1, error)
        with self.condition:
            if self.batches is not None or self.error is not None:
                return
            self.error, self.open_batches = error, 0
            due = self.callbacks.pop(None, [])
            self.condition.notify_all()
        self._notify(due)

    def call(self, row: int, callback: Callback | None, errback: Callback | None) -> None:
        """Call one of the two when the record's outcome is known: in the sender's thread, or now if it is known."""
        with self.condition:
            if not self.is_done(row):
                number = None if self.batches is None else int(self.batch_of[row])
                self.callbacks.setdefault(number, []).append((row, callback, errback))
                return
        self._notify_one(row, callback, errback)

    def wait(self, row: int | None, timeout_s: float | None) -> bool:
        """Wait for the outcome of the record, or of every record for None. Return whether it came within the time."""
        timeout_s = None if timeout_s is None else min(timeout_s, threading.TIMEOUT_MAX)
        with self.condition:
            return self.condition.wait_for(lambda: self.done if row is None else self.is_done(row), timeout_s)

    def _notify(self, due: Sequence[_CallbacksOfRecord]) -> None:
        for entry in due:
            self._notify_one(*entry)
        listener = None
        with self.condition:
            if self.done:
                listener, self.listener = self.listener, None
        if listener is not None:
            listener()

    def _notify_one(self, row: int, callback: Callback | None, errback: Callback | None) -> None:
        error = self.exception_of(row)
        if error is None:
            call_logged(callback, self.metadata_of(row))
        else:
            call_logged(errback, error)
