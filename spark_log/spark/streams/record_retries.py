"""Decides when a TransactionalLoop calls its function again, and makes dead letters of records that it cannot process.

    poll -> fails `attempts` times -> its records one by one -> a record fails `attempts` times -> dead letter
                                                                       (one transaction with its offset)

A partition whose poll has failed waits for its next try, and is then polled alone; the other partitions go on. Only
failures of the function count, not those of the store, of the group or of the transaction. The counts are in memory: a
process that starts again begins with the first try.
"""

import math
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
from kafka.errors import KafkaError
from kafka.structs import TopicPartition

from spark_log import clock
from spark_log.clients.consume.consumer_settings import ConsumerSettings
from spark_log.clients.produce.producer import Producer
from spark_log.cluster.topics import Topic
from spark_log.errors import (
    CommitFailedError,
    FencedInstanceIdError,
    IllegalStateError,
    InvalidProducerIdMappingError,
    InvalidRecordError,
    MessageSizeTooLargeError,
    ProducerFencedError,
    SparkLogError,
    TransactionAbortableError,
    redact,
)
from spark_log.groups.committed_offsets import Commit
from spark_log.groups.share.dead_letters import letter_headers
from spark_log.log.records.schema import DEAD_LETTER_CAUSE, HEADERS

COPY_SCHEMA = pa.schema([("key", pa.binary()), ("value", pa.binary()), ("headers", HEADERS), ("partition", pa.int32())])
"""The columns of record copies for `send_table`."""
_CAUSE = {"key": DEAD_LETTER_CAUSE, "value": b"failed"}
_MESSAGE_MAX = 1_000

POLL_MS = 200
"""The time that a poll waits for records. A loop notices a `stop` within this time."""

Place = tuple[TopicPartition, int]


class NotRunError(TypeError):
    """The function is a generator or a coroutine, so its body did not run."""


class LetterRefusedError(Exception):
    """The dead letter topic refused a letter with a copy of its record. The next letter has no copy."""


_FATAL = (NotRunError, ProducerFencedError, FencedInstanceIdError, InvalidProducerIdMappingError, IllegalStateError)
"""Errors after which each call of the function fails too, with any record."""


@dataclass(frozen=True)
class Polled:
    """The result of one poll."""

    records: Any
    """The records in the form that the transform expects."""
    count: int
    starts: Mapping[TopicPartition, int]
    """The offset of the first record of each partition."""
    ends: Mapping[TopicPartition, Commit]
    """The offsets to commit once the records are processed."""


class NextPoll(NamedTuple):
    """The parameters of the next poll. `without` are the partitions to leave out, `tried` is the one to try again."""

    without: Set[TopicPartition]
    timeout_ms: float
    max_records: int | None = None
    tried: TopicPartition | None = None


class RecordRetries:
    """Counts the failed tries of polls and of single records. Not thread-safe."""

    def __init__(
        self, settings: ConsumerSettings, attempts: int, backoff_ms: tuple[int, int], dead_letter_topic: Topic | None
    ) -> None:
        """Check the settings. Raises ValueError, which names the first invalid setting."""
        if isinstance(attempts, bool) or not isinstance(attempts, int) or attempts < 1:
            raise ValueError(f"attempts: {attempts!r}: expected a whole number from 1")
        first_ms, most_ms = backoff_ms
        if not 0 <= first_ms <= most_ms < settings.max_poll_interval_ms:
            raise ValueError(
                f"backoff_ms: {backoff_ms!r}: expected (first, largest), below max_poll_interval_ms"
                f" {settings.max_poll_interval_ms}"
            )
        for name in ("key_deserializer", "value_deserializer"):
            if dead_letter_topic is not None and getattr(settings, name) is not None:
                raise ValueError(f"{name}: with dead_letter_topic, decode in the function: letters have the bytes")
        self._attempts, self._first_ms, self._most_ms = attempts, first_ms, most_ms
        self._group_id, self._topic = str(settings.group_id), dead_letter_topic
        self._polls: dict[Place, int] = {}
        """The number of failures of polls, by their first record in each partition."""
        self._single: dict[Place, int] = {}
        """The number of failures of records that were polled alone."""
        self._errors: dict[Place, Exception] = {}
        self._refused: set[Place] = set()
        """The records whose copies the dead letter topic refused, for example as too large with the headers."""
        self._alone: dict[TopicPartition, int] = {}
        """The end offsets of polls that kept failing. Records below these offsets are polled one by one."""
        self._due_s: dict[TopicPartition, float] = {}
        """The time of the next try of partitions whose last poll failed, or whose records are polled one by one."""
        self._tries_again = False
        """Whether the last poll while a partition was due tried that partition. Tries alternate with other polls."""

    @property
    def waits(self) -> bool:
        """Whether a partition waits to be tried again."""
        return bool(self._due_s)

    def next_poll(self, assigned: Set[TopicPartition]) -> NextPoll:
        """Return how to poll: a partition that is due and the others take turns. Forget the counts of partitions that
        are no longer assigned.
        """
        for partition in {*self._due_s, *(partition for partition, _ in self._errors)} - assigned:
            self._forget(partition)
        now_s = clock.monotonic_s()
        due = min(self._due_s, key=self._due_s.__getitem__, default=None)
        wait_s = math.inf if due is None else self._due_s[due] - now_s
        if due is None or wait_s > 0:
            return NextPoll(frozenset(self._due_s), min(POLL_MS, 1000 * wait_s))
        self._tries_again = not self._tries_again or assigned <= self._due_s.keys()
        if not self._tries_again:
            return NextPoll(frozenset(self._due_s), 0)
        return NextPoll(assigned - {due}, POLL_MS, 1 if due in self._alone else None, due)

    def try_later(self, partition: TopicPartition, pause_s: float) -> None:
        self._due_s[partition] = clock.monotonic_s() + pause_s

    def go_on(self, partition: TopicPartition) -> None:
        """Poll the partition together with the others again."""
        self._due_s.pop(partition, None)
        self._alone.pop(partition, None)

    def _forget(self, lost: TopicPartition) -> None:
        self.go_on(lost)
        for counts in (self._polls, self._single, self._errors):
            for place in [place for place in counts if place[0] == lost]:
                del counts[place]
        self._refused = {place for place in self._refused if place[0] != lost}

    def failed(self, polled: Polled, error: BaseException) -> bool:
        """Count a failure. Return whether the records are tried again; if not, the caller raises the error."""
        if not isinstance(error, Exception) or isinstance(error, _FATAL) or is_worth_a_retry(error):
            return False
        counts = self._single if polled.count == 1 else self._polls
        for place in polled.starts.items():
            counts[place] = counts.get(place, 0) + 1
            self._errors[place] = error
        failures = max(counts[place] for place in polled.starts.items())
        if failures >= self._attempts:
            if polled.count == 1 and self._topic is None:
                return False
            for partition, commit in polled.ends.items():
                self._alone[partition] = max(commit.offset, self._alone.get(partition, 0))
        pause_s = min(self._first_ms * 2 ** (failures - 1), self._most_ms) / 1000
        for partition in polled.starts:
            self.try_later(partition, pause_s)
        return True

    def succeeded(self, polled: Polled) -> None:
        for place in polled.starts.items():
            for counts in (self._polls, self._single, self._errors):
                counts.pop(place, None)
            self._refused.discard(place)
        for partition, commit in polled.ends.items():
            if commit.offset < self._alone.get(partition, 0):
                self.try_later(partition, 0.0)
            else:
                self.go_on(partition)

    def letter(self, polled: Polled) -> Callable[[Any, Producer], object] | None:
        """Return a transform that sends the dead letter of the only record, or None if it has not failed often enough.
        If the topic refused the letter before, it has no copy, but only the record's place.
        """
        [place, *others] = polled.starts.items()
        failures = self._single.get(place, 0)
        if self._topic is None or others or polled.count != 1 or failures < self._attempts:
            return None
        topic, (partition, offset), error = self._topic, place, self._errors[place]
        message = redact(f"{type(error).__name__}: {error}")[:_MESSAGE_MAX]
        facts = letter_headers(partition, offset, self._group_id, failures, message)

        def send(records: Any, producer: Producer) -> None:
            [record] = records
            headers = [{"key": name, "value": value} for name, value in record.headers]
            row = {"key": record.key, "value": record.value, "headers": [*headers, *facts, _CAUSE]}
            bare = place in self._refused
            if bare:
                row = {"key": None, "value": None, "headers": [*facts, _CAUSE]}
            row["partition"] = partition.partition % topic.partition_count
            try:
                producer.send_table(topic.name, pa.Table.from_pylist([row], COPY_SCHEMA))
            except (InvalidRecordError, MessageSizeTooLargeError) as error:
                if bare:
                    raise
                self._refused.add(place)
                raise LetterRefusedError from error

        return send


def is_worth_a_retry(error: BaseException) -> bool:
    """Whether a new transaction with the same records may succeed. The cause of a failed send decides."""
    if isinstance(error, TransactionAbortableError) and error.__cause__ is not None:
        return is_worth_a_retry(error.__cause__)
    if isinstance(error, TransactionAbortableError | CommitFailedError):
        return True
    return isinstance(error, SparkLogError | KafkaError) and bool(error.retriable)
