"""Consume, transform, produce: what a function makes of some records, and the group's offsets behind them, at once.

    poll -> begin -> transform(records, producer) -> send_offsets_to_transaction -> commit
     ^                    any error before the commit: abort, back to the first record of the poll        |
     +----------------------------------------------------------------------------------------------------+

A record's results and the offset behind it are committed together or not at all, so each record is transformed
once as far as any reader can see, however often the program dies, and on however many members its group works.

Going back is what such loops forget: an abort takes back what was sent, while the consumer stands behind the
records, and would skip them.
"""

import logging
from collections.abc import Callable, Coroutine, Generator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, cast

import pyarrow as pa
from kafka.consumer.fetcher import ConsumerRecord
from kafka.errors import KafkaError
from kafka.structs import MemberState, TopicPartition

from spark_log import clock
from spark_log.consume.consumer import Consumer
from spark_log.errors import (
    CommitFailedError,
    IllegalStateError,
    InvalidTxnStateError,
    SparkLogError,
    TransactionAbortableError,
)
from spark_log.groups.committed_offsets import Commit
from spark_log.produce.producer import Producer
from spark_log.quantities import count_of
from spark_log.stopping import Stop

logger = logging.getLogger(__name__)

RecordsTransform = Callable[[list[ConsumerRecord], Producer], object]
TableTransform = Callable[[pa.Table, Producer], object]

_THE_LOOPS = frozenset(
    {
        "init_transactions", "begin_transaction", "send_offsets_to_transaction", "commit_transaction",
        "abort_transaction", "close",
    }
)  # fmt: skip
_POLL_MS = 200
"""How long a poll waits for records: how soon a `stop` is noticed."""
_TELL_S = 10.0
"""How often the log hears of progress."""


@dataclass(frozen=True)
class Totals:
    """What a loop has done."""

    records: int = 0
    """Consumed, in transactions that were committed."""
    transactions: int = 0
    """Committed."""
    aborted: int = 0

    def __str__(self) -> str:
        transactions = count_of(self.transactions, "transaction")
        return f"{count_of(self.records, 'record')} in {transactions}, {self.aborted:,} aborted"


@dataclass(frozen=True)
class _Polled:
    """What one poll returned."""

    records: Any
    """As the transform takes them."""
    count: int
    starts: Mapping[TopicPartition, int]
    """Offset of the first record of each partition."""
    ends: Mapping[TopicPartition, Commit]
    """The offsets to commit once the records are processed."""


class TransactionalLoop:
    """Runs a function over the records of a consumer, each poll in one transaction of a producer.

    >>> def bill(records, producer):                                                    # doctest: +SKIP
    ...     for record in records: producer.send("bills", key=record.key, value=price(record.value))
    >>> consumer = Consumer("orders", cluster="log", group_id="bills", enable_auto_commit=False)  # doctest: +SKIP
    >>> producer = Producer(cluster="log", transactional_id="bills-1")                  # doctest: +SKIP
    >>> with consumer, producer: TransactionalLoop(consumer, producer).run(bill)        # doctest: +SKIP

    The consumer subscribes as a member of a group, without automatic commits, to topics of the producer's cluster. Its
    max_poll_records bounds a transaction, and its consumer_timeout_ms ends the loop after so long without a record,
    once the group has given it its partitions.

    **One transactional_id a process.** It need not be tied to partitions: a member that has lost a partition cannot
    commit its offset, so its whole transaction fails, whatever its id (KIP-447). Processes that run at the same time
    need different ids, or they fence each other. A restart with the same id aborts at once what the last run left
    open; a new id at each start is right too, for what is left open is seen by nobody and times out.

    Not thread-safe, but for `stop`. The consumer and the producer are the caller's to close: leaving the group lets the
    other members take over at once.
    """

    def __init__(self, consumer: Consumer, producer: Producer, *, retries: int = 5) -> None:
        """`retries`: how often records are tried again before the error of the last try is raised. ValueError names
        what does not fit.
        """
        for name, given, kind in (("consumer", consumer, Consumer), ("producer", producer, Producer)):
            if not isinstance(given, kind):
                raise TypeError(f"{name}: expected a spark_log.{kind.__name__}, got {given!r}")
        settings = consumer.settings
        _check("group_id", settings.group_id, settings.group_id is not None, "a group, which keeps the offsets")
        _check("enable_auto_commit", True, not settings.enable_auto_commit, "False: the transactions commit")
        subscribed = consumer.subscription() is not None
        _check("subscription", None, subscribed, "topics: with assign() nobody would be stopped who lost a partition")
        transactional_id = producer.config["transactional_id"]
        _check("transactional_id", None, transactional_id is not None, "the name of this process")
        _check("retries", retries, not isinstance(retries, bool) and isinstance(retries, int) and retries >= 0, ">= 0")
        self._consumer, self._producer, self._retries = consumer, producer, retries
        self._stop = Stop()
        self._told_s = clock.monotonic_s()
        self.totals = Totals()

    def run(self, transform: RecordsTransform) -> Totals:
        """`transform(records, producer)` for the ConsumerRecords of each poll, in order within a partition; it sends
        what it makes of them. Until `stop`, or consumer_timeout_ms without a record.

        An error of `transform` is raised when its transaction has been aborted: nothing of it is seen and none of these
        records is consumed. So are ProducerFencedError (another producer has this transactional_id) and whatever trying
        again does not help. Tried again, with pauses: a lost session or partition (CommitFailedError), a transaction
        that was over its time (TransactionAbortableError), and retriable errors.
        """
        return self._run(self._poll_records, transform)

    def run_arrow(self, transform: TableTransform) -> Totals:
        """As `run`, with all records of a poll as one Arrow table of the columns of `Consumer.poll_arrow`; see
        `Producer.send_table`. A transaction takes what is at hand within fetch_max_bytes.
        """
        return self._run(self._poll_table, transform)

    def stop(self) -> None:
        """Finish the transaction under way, and return from `run`. For other threads and signal handlers."""
        self._stop.set()

    def _run(self, poll: Callable[[], _Polled | None], transform: Callable[[Any, Producer], object]) -> Totals:
        if not callable(transform):
            raise TypeError(f"transform: expected a function of (records, producer), got {transform!r}")
        self._producer.init_transactions()
        failures, heard_s = 0, clock.monotonic_s()
        while not self._stop.is_set():
            polled = poll()
            if polled is None:
                now_s = clock.monotonic_s()
                heard_s = heard_s if self._has_its_share() else now_s
                if self._is_over(now_s - heard_s):
                    break
                continue
            try:
                self._transact(polled, transform)
            except BaseException as error:
                self.totals = replace(self.totals, aborted=self.totals.aborted + 1)
                if failures == self._retries or not worth_another_try(error):
                    raise
                failures += 1
                logger.warning("%s: try %d of %d follows: %s", self._name, failures, self._retries, error)
                self._pause(failures)
            else:
                failures = 0
                done = self.totals
                self.totals = replace(done, records=done.records + polled.count, transactions=done.transactions + 1)
            heard_s = clock.monotonic_s()
            if heard_s - self._told_s >= _TELL_S:
                self._tell()
        self._tell()
        return self.totals

    def _transact(self, polled: _Polled, transform: Callable[[Any, Producer], object]) -> None:
        """One transaction. After an error nothing of it is seen, and the consumer is where it was before the poll."""
        try:
            self._producer.begin_transaction()
            self._fill(polled, transform)
            self._commit()
        except BaseException:
            self._go_back(polled)
            raise

    def _fill(self, polled: _Polled, transform: Callable[[Any, Producer], object]) -> None:
        consumer, producer = self._consumer, self._producer
        try:
            returned = transform(polled.records, cast(Producer, _Sending(producer)))
            if isinstance(returned, Generator | Coroutine):
                raise TypeError(f"transform returned a {type(returned).__name__}, which has not run: send, and return")
            producer.send_offsets_to_transaction(polled.ends, consumer.group_metadata())
        except BaseException:
            self._abort()
            raise

    def _commit(self) -> None:
        """An error: it is not committed, and will not be."""
        try:
            self._producer.commit_transaction()
        except Exception:
            if self._abort():
                raise

    def _abort(self) -> bool:
        """False if there was nothing to abort, since a commit whose answer had been lost was done after all."""
        for failures in range(1, self._retries + 2):
            try:
                self._producer.abort_transaction()
                return True
            except InvalidTxnStateError:
                return False
            except (SparkLogError, KafkaError) as error:
                if not error.retriable or failures > self._retries:
                    raise
                logger.warning("%s: not aborted yet, trying again: %s", self._name, error)
                self._pause(failures)
        raise AssertionError("unreachable: the last try returns or raises")

    def _go_back(self, polled: _Polled) -> None:
        """To where the poll began, which is what the group has committed, and before its first commit where reading
        began. Partitions that have been lost are not ours to move; the next poll finds out about the others. Never
        behind a commit: one may have been done although it was interrupted.
        """
        mine = self._consumer.assignment() & set(polled.starts)
        committed: dict[Any, int | None] = {}
        with suppress(SparkLogError, KafkaError):
            committed = {partition: self._consumer.committed(partition) for partition in mine}
        for partition in mine:
            offset = max(polled.starts[partition], committed.get(partition) or 0)
            self._consumer.seek(partition, polled.ends[partition]._replace(offset=offset))

    def _poll_records(self) -> _Polled | None:
        polled = self._consumer.poll(_POLL_MS)
        records = [record for found in polled.values() for record in found]
        starts = {partition: found[0].offset for partition, found in polled.items()}
        return _Polled(records, len(records), starts, self._consumer.offsets_to_commit(starts)) if records else None

    def _poll_table(self) -> _Polled | None:
        polled = self._consumer.poll_arrow(_POLL_MS)
        if not polled:
            return None
        starts = {partition: table.column("offset")[0].as_py() for partition, table in polled.items()}
        table = pa.concat_tables(polled.values())
        return _Polled(table, table.num_rows, starts, self._consumer.offsets_to_commit(starts))

    def _has_its_share(self) -> bool:
        """Whether nothing is to come but records: before, silence says nothing of the topics."""
        return bool(self._consumer.group_metadata().state == MemberState.STABLE)

    def _is_over(self, silent_s: float) -> bool:
        timeout_ms = self._consumer.settings.consumer_timeout_ms
        return 0 <= timeout_ms <= silent_s * 1000

    def _pause(self, failures: int) -> None:
        """Longer with every failure; a stop ends it."""
        self._stop.wait(self._consumer.settings.retry_backoff_ms / 1000 * 2 ** (failures - 1))

    def _tell(self) -> None:
        self._told_s = clock.monotonic_s()
        logger.info("%s: %s", self._name, self.totals)

    @property
    def _name(self) -> str:
        return f"group {self._consumer.settings.group_id!r}, {self._producer.config['transactional_id']!r}"


class _Sending:
    """The producer as the function sees it: the transaction is the loop's to end."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer

    def __getattr__(self, name: str) -> Any:
        if name in _THE_LOOPS:
            raise IllegalStateError(f"{name}: the loop does this; its function only sends")
        return getattr(self._producer, name)


def worth_another_try(error: BaseException) -> bool:
    """Whether another transaction may well succeed with the same records. A failed send is what it has failed with."""
    if isinstance(error, TransactionAbortableError) and error.__cause__ is not None:
        return worth_another_try(error.__cause__)
    if isinstance(error, TransactionAbortableError | CommitFailedError):
        return True
    return isinstance(error, SparkLogError | KafkaError) and bool(error.retriable)


def _check(field: str, value: object, valid: bool, expected: str) -> None:
    if not valid:
        raise ValueError(f"{field}: {value!r}: expected {expected}")
