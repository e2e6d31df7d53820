"""Records of one topic on their way through the producer, and what becomes of them.

A chunk gathers what `send` is given, as columns. The sender turns it into *pieces*, one for each partition, and each
piece has one fate. Futures are views of it (chunk, row): a fate is stored once for all records of a piece, and a record
that nobody asks about costs nothing more.

    waiting (pieces None) -> assembled (open_pieces > 0) -> done (open_pieces == 0)

Every change after `waiting` happens under `condition`.
"""

import logging
import threading
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from kafka.producer.future import RecordMetadata
from kafka.structs import TopicPartition

from spark_log import clock
from spark_log.cluster.topics import Topic
from spark_log.records.segment_write import own

logger = logging.getLogger(__name__)

Headers = list[tuple[str, bytes]]
Callback = Callable[[Any], object]


class Piece:
    """The records of a chunk that go to one partition, in order: what is appended, and retried, as a whole."""

    __slots__ = (
        "alone", "attempts", "base_offset", "bytes", "chunk", "count", "deadline_s", "done", "error", "in_doubt",
        "last_error", "number", "owned", "partition", "position", "retry_at_s", "table", "topic",
    )  # fmt: skip

    def __init__(
        self, chunk: "Chunk", number: int, topic: Topic, partition: int, table: pa.Table, size: int, deadline_s: float
    ) -> None:
        self.chunk, self.number, self.topic, self.partition, self.table = chunk, number, topic, partition, table
        self.count, self.bytes, self.deadline_s = table.num_rows, size, deadline_s
        self.attempts, self.retry_at_s, self.alone, self.in_doubt = 0, 0.0, False, False
        self.last_error: Exception | None = None
        self.error: Exception | None = None
        self.done, self.base_offset = False, -1
        self.owned = False
        self.position = -1
        """Its place among the pieces of its transaction."""

    @property
    def key(self) -> tuple[str, int]:
        return self.topic.name, self.partition

    def own_table(self) -> None:
        """Copy the records out of buffers that they share with other pieces, so that those can be freed."""
        if not self.owned:
            self.table, self.owned = own([self.table]), True


class Chunk:
    """See above. The columns hold a row a record; the accumulator's lock guards them until the sender takes the chunk.

    `headers` and `partitions` (explicit ones) are by row, where a record has them. `made_s`: when the first record came
    (monotonic clock).
    """

    __slots__ = (
        "bytes", "callbacks", "condition", "error", "faults", "header_sizes", "headers", "key_sizes", "keys",
        "listener", "made_s", "open_pieces", "partitions", "piece_of", "pieces", "row_of", "times_ms", "timestamps",
        "topic", "unsettled", "value_sizes", "values",
    )  # fmt: skip

    def __init__(self, topic: str) -> None:
        self.topic, self.made_s, self.bytes = topic, clock.monotonic_s(), 0
        self.keys: list[bytes | None] = []
        self.values: list[bytes | None] = []
        self.headers: dict[int, Headers] = {}
        self.partitions: dict[int, int] = {}
        self.timestamps = array("q")
        self.condition = threading.Condition(threading.Lock())
        self.callbacks: list[tuple[int, Callback | None, Callback | None]] = []
        self.listener: Callable[[], None] | None = None
        self.pieces: Sequence[Piece] | None = None
        self.open_pieces = -1
        self.unsettled = 0
        self.error: Exception | None = None
        self.faults: dict[int, Exception] = {}
        self.header_sizes: dict[int, int] = {}
        self.piece_of: npt.NDArray[Any] = _NONE
        self.row_of: npt.NDArray[Any] = _NONE
        self.times_ms: npt.NDArray[Any] = _NONE
        self.key_sizes: npt.NDArray[Any] = _NONE
        self.value_sizes: npt.NDArray[Any] = _NONE

    @property
    def done(self) -> bool:
        return self.open_pieces == 0

    def is_done(self, row: int) -> bool:
        """Whether the fate of a record is known."""
        if self.open_pieces <= 0 or self.pieces is None:
            return self.open_pieces == 0
        number = self.piece_of[row]
        return bool(number < 0 or self.pieces[number].done)

    def exception_of(self, row: int) -> Exception | None:
        """Why a record was not stored; None if it was, or if its fate is open."""
        if not self.is_done(row):
            return None
        if self.error is not None or self.pieces is None:
            return self.error
        number = self.piece_of[row]
        return self.faults.get(row) if number < 0 else self.pieces[number].error

    def metadata_of(self, row: int) -> Any:
        """RecordMetadata of a record that was stored, None otherwise. The offset is -1 with acks=0."""
        if not self.is_done(row) or self.exception_of(row) is not None or self.pieces is None:
            return None
        piece = self.pieces[self.piece_of[row]]
        offset = -1 if piece.base_offset < 0 else piece.base_offset + int(self.row_of[row])
        sizes = int(self.key_sizes[row]), int(self.value_sizes[row]), self.header_sizes.get(row, -1)
        where = TopicPartition(self.topic, piece.partition)
        return RecordMetadata(*where, where, offset, int(self.times_ms[row]), None, *sizes)

    def abandon(self, error: Exception) -> None:
        """In a forked child: locks may be held by threads that are not here, and callbacks are the parent's to run."""
        self.condition, self.callbacks, self.listener = threading.Condition(threading.Lock()), [], None
        self.fail(error)

    def begin(self, pieces: Sequence[Piece], piece_of: npt.NDArray[Any], faults: dict[int, Exception]) -> None:
        """The chunk has been assembled; the records of `faults` (piece -1) have their fate."""
        with self.condition:
            if self.error is not None:  # given up meanwhile
                for piece in pieces:
                    piece.done = True
                return
            self.piece_of, self.faults, self.pieces = piece_of, faults, pieces
            self.open_pieces = len(pieces)
            self.keys, self.values, self.headers, self.partitions, self.timestamps = [], [], {}, {}, array("q")
            due = self._due_callbacks(-1) if faults else []
            self.condition.notify_all()
        self._tell(due)

    def resolve(self, piece: Piece, base_offset: int, error: Exception | None) -> bool:
        """The fate of a piece; False if it had one. Runs the callbacks of its records."""
        with self.condition:
            if piece.done:
                return False
            piece.base_offset, piece.error, piece.done = base_offset, error, True
            self.open_pieces -= 1
            due = self._due_callbacks(piece.number) if self.callbacks else []
            self.condition.notify_all()
        self._tell(due)
        return True

    def fail(self, error: Exception) -> None:
        """Every record whose fate is open has failed."""
        for piece in self.pieces or ():
            self.resolve(piece, -1, error)
        with self.condition:
            if self.pieces is not None or self.error is not None:
                return
            self.error, self.open_pieces = error, 0
            due, self.callbacks = self.callbacks, []
            self.condition.notify_all()
        self._tell(due)

    def call(self, row: int, callback: Callback | None, errback: Callback | None) -> None:
        """Call one of the two when the fate of a record is known: in the sender's thread, or here if it is already."""
        with self.condition:
            if not self.is_done(row):
                self.callbacks.append((row, callback, errback))
                return
        self._tell_one(row, callback, errback)

    def wait(self, row: int | None, timeout_s: float | None) -> bool:
        """Whether the record (every record for None) has its fate within the time."""
        with self.condition:
            return self.condition.wait_for(lambda: self.done if row is None else self.is_done(row), timeout_s)

    def _due_callbacks(self, number: int) -> list[tuple[int, Callback | None, Callback | None]]:
        due = [entry for entry in self.callbacks if self.piece_of[entry[0]] == number]
        self.callbacks = [entry for entry in self.callbacks if self.piece_of[entry[0]] != number]
        return due

    def _tell(self, due: Sequence[tuple[int, Callback | None, Callback | None]]) -> None:
        for entry in due:
            self._tell_one(*entry)
        if self.listener is not None and self.done:
            listener, self.listener = self.listener, None
            listener()

    def _tell_one(self, row: int, callback: Callback | None, errback: Callback | None) -> None:
        error = self.exception_of(row)
        function, argument = (callback, self.metadata_of(row)) if error is None else (errback, error)
        if function is not None:
            try:
                function(argument)
            except BaseException:  # a user's callback must not end the sender, not with sys.exit either
                logger.exception("error in a callback of a record to %s", self.topic)


_NONE: npt.NDArray[Any] = np.empty(0, np.int64)
