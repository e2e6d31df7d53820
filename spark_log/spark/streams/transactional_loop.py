"""Consumes, transforms and produces in transactions, each with the results of a function and the consumed offsets.

    poll -> begin -> transform(records, producer) -> send_offsets_to_transaction -> commit
     ^                    any error before the commit: abort, back to the first record of the poll        |
     +----------------------------------------------------------------------------------------------------+

A record's results and the offset after it are committed together or not at all. So readers see the results of each
record exactly once, however often the program is killed and however many members its group has.

With `attempts`, a poll whose function keeps failing is run record by record, and a record that keeps failing becomes a
dead letter (`record_retries.py`).

After an abort the sent records are gone, but the consumer's position is after the consumed records. So the consumer
seeks back: otherwise the loop would skip these records. The records of a share group are released.
"""

import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass, replace
from typing import Any, cast

import pyarrow as pa
from kafka.consumer.fetcher import ConsumerRecord
from kafka.errors import KafkaError
from kafka.structs import TopicPartition

from spark_log import clock
from spark_log.clients.consume.consumer import Consumer
from spark_log.clients.consume.share_consumer import ShareConsumer
from spark_log.clients.produce.producer import Producer
from spark_log.errors import (
    IllegalStateError,
    InvalidTxnStateError,
    SparkLogError,
    TransactionCommitPendingError,
)
from spark_log.process import Stop
from spark_log.spark.streams.loop_sources import GroupSource, ShareSource
from spark_log.spark.streams.record_retries import (
    LetterRefusedError,
    NotRunError,
    Polled,
    RecordRetries,
    is_worth_a_retry,
)
from spark_log.text import count_of

logger = logging.getLogger(__name__)

RecordsTransform = Callable[[list[ConsumerRecord], Producer], object]
TableTransform = Callable[[pa.Table, Producer], object]

_LOOP_METHODS = frozenset(
    {
        "init_transactions", "begin_transaction", "send_offsets_to_transaction", "commit_transaction",
        "abort_transaction", "close",
    }
)  # fmt: skip
_PROGRESS_S = 10.0
"""The interval at which the progress is logged."""


@dataclass(frozen=True)
class Totals:
    """The counts of a loop."""

    records: int = 0
    """The number of records that committed transactions have consumed."""
    transactions: int = 0
    """The number of committed transactions."""
    aborted: int = 0
    dead_letters: int = 0
    """The number of `records` that are in the dead letter topic."""

    def __str__(self) -> str:
        transactions = count_of(self.transactions, "transaction")
        letters = f", {count_of(self.dead_letters, 'dead letter')}" if self.dead_letters else ""
        return f"{count_of(self.records, 'record')} in {transactions}, {self.aborted:,} aborted{letters}"


class TransactionalLoop:
    """Runs a function over the records of a consumer, each poll in one transaction of a producer.

    >>> def bill(records, producer):                                                    # doctest: +SKIP
    ...     for record in records: producer.send("bills", key=record.key, value=price(record.value))
    >>> consumer = Consumer("orders", cluster="log", group_id="bills", enable_auto_commit=False)  # doctest: +SKIP
    >>> producer = Producer(cluster="log", transactional_id="bills-1")                  # doctest: +SKIP
    >>> with consumer, producer: TransactionalLoop(consumer, producer).run(bill)        # doctest: +SKIP

    The consumer subscribes as a member of a group, without automatic commits, to topics of the producer's cluster. Its
    max_poll_records limits a transaction. Its consumer_timeout_ms ends the loop after that time without a record; the
    time begins when the group has assigned partitions.

    **One transactional_id per process.** The id need not be tied to partitions. A member that has lost a partition
    cannot commit the partition's offset, so its whole transaction fails, whatever its id (KIP-447). Processes that run
    at the same time need different ids, or they fence each other. A restart with the same id aborts the transaction
    that the last run left open. A new id at each start is correct too: no reader sees the open transaction; it times
    out.

    With a ShareConsumer in explicit mode, the transaction contains acknowledgements of the records instead of offsets.
    A record that the function does not acknowledge is accepted. Records then have no order.

    Not thread-safe, except `stop`. The caller closes the consumer and the producer. When the consumer leaves
    the group, the other members take over at once.
    """

    def __init__(self, consumer: Consumer | ShareConsumer, producer: Producer, *, retries: int = 5) -> None:
        """Check the settings of the consumer and the producer.

        The same records are tried again at most `retries` times; then the error of the last try is raised. Raises
        ValueError for a setting that does not fit, and TypeError for another kind of consumer or producer.
        """
        for name, given, kinds in (("consumer", consumer, (Consumer, ShareConsumer)), ("producer", producer, Producer)):
            if not isinstance(given, kinds):
                expected = " or ".join(f"spark_log.{kind.__name__}" for kind in (Consumer, ShareConsumer))
                expected = expected if name == "consumer" else "spark_log.Producer"
                raise TypeError(f"{name}: expected a {expected}, got {given!r}")
        if isinstance(consumer, ShareConsumer):
            _check("share_acknowledgement_mode", "implicit", consumer.settings.explicit, "explicit")
            _check("subscription", None, bool(consumer.subscription()), "subscribe()")
        else:
            settings = consumer.settings
            _check("group_id", settings.group_id, settings.group_id is not None, "a group, which keeps the offsets")
            _check("enable_auto_commit", True, not settings.enable_auto_commit, "False: the transactions commit")
            subscribed = consumer.subscription() is not None  # a pattern may match no topic yet
            _check("subscription", None, subscribed, "subscribe(): assign() does not detect a lost partition")
        transactional_id = producer.config["transactional_id"]
        _check("transactional_id", None, transactional_id is not None, "the name of this process")
        _check("retries", retries, not isinstance(retries, bool) and isinstance(retries, int) and retries >= 0, ">= 0")
        self._source = ShareSource(consumer) if isinstance(consumer, ShareConsumer) else GroupSource(consumer)
        self._settings = consumer.settings
        self._producer, self._retries = producer, retries
        self._record_retries: RecordRetries | None = None
        self._tried: TopicPartition | None = None
        """The partition that the last poll tried again."""
        self._stop = Stop()
        self._logged_s = clock.monotonic_s()
        self.totals = Totals()

    def run(
        self,
        transform: RecordsTransform,
        *,
        attempts: int | None = None,
        backoff_ms: tuple[int, int] = (1_000, 60_000),
        dead_letter_topic: str | None = None,
    ) -> Totals:
        """Call `transform(records, producer)` with the ConsumerRecords of each poll, in order within a partition.

        The function sends its results with the producer. The loop runs until `stop`, or until consumer_timeout_ms have
        passed without a record.

        An error of `transform` is raised after its transaction has been aborted. Then no reader sees its results, and
        none of its records is consumed. ProducerFencedError (another producer has this transactional_id) and other
        errors that a retry cannot fix are raised too. The loop retries, with pauses, after a lost session or partition
        (CommitFailedError), a transaction timeout (TransactionAbortableError), and retriable errors.

        With `attempts`, records for which the function fails are tried again. The pauses double from the first value of
        `backoff_ms` to the second; other partitions go on meanwhile. After `attempts` tries of a poll, its records are
        processed one by one, up to `attempts` times each. If a record still fails, one transaction sends it to
        `dead_letter_topic` and commits its offset; without such a topic its error is raised. No later record of the
        partition is processed before, so records of a key stay in order.
        Raises ValueError for settings that do not fit, and UnknownTopicOrPartitionError for the topic.
        """
        if attempts is None:
            _check("dead_letter_topic", dead_letter_topic, dead_letter_topic is None, "attempts= with it")
        else:
            source = self._source
            if not isinstance(source, GroupSource):
                raise ValueError("attempts: a share group has share.delivery.count.limit, backoff and dead letters")
            topic = None if dead_letter_topic is None else source.letter_topic(dead_letter_topic)
            self._record_retries = RecordRetries(source.consumer.settings, attempts, backoff_ms, topic)
        try:
            return self._run(self._poll_records, transform)
        finally:
            self._record_retries = None

    def run_arrow(self, transform: TableTransform) -> Totals:
        """Do the same as `run`, but pass all records of a poll as one Arrow table, with the columns of
        `Consumer.poll_arrow`.

        To send tables, see `Producer.send_table`. A transaction takes the available records, up to fetch_max_bytes.
        """
        return self._run(self._poll_table, transform)

    def stop(self) -> None:
        """Let `run` return after the current transaction. Other threads and signal handlers may call this."""
        self._stop.set()

    def _run(self, poll: Callable[[], Polled | None], transform: Callable[[Any, Producer], object]) -> Totals:
        if not callable(transform):
            raise TypeError(f"transform: expected a function of (records, producer), got {transform!r}")
        self._producer.init_transactions()
        failures, active_s = Counter[TopicPartition | None](), clock.monotonic_s()
        while not self._stop.is_set():
            polled = poll()
            if polled is None:
                now_s = clock.monotonic_s()
                waits = self._record_retries is not None and self._record_retries.waits
                active_s = now_s if waits or not self._source.has_assignment() else active_s
                if self._is_over(now_s - active_s):
                    break
                continue
            retries = self._record_retries
            letter = None if retries is None else retries.letter(polled)
            try:
                self._transact(polled, transform if letter is None else letter)
            except BaseException as error:
                self.totals = replace(self.totals, aborted=self.totals.aborted + 1)
                if isinstance(error, LetterRefusedError):
                    continue
                if retries and not letter and retries.failed(polled, error):
                    logger.warning("%s: the function failed: %s: %s", self._name, type(error).__name__, error)
                    continue
                tried = self._tried
                if failures[tried] == self._retries or not is_worth_a_retry(error):
                    raise
                failures[tried] += 1
                logger.warning("%s: retry %d of %d follows: %s", self._name, failures[tried], self._retries, error)
                if retries is None or tried is None:
                    self._pause(failures[tried])
                else:
                    retries.try_later(tried, self._pause_s(failures[tried]))
            else:
                for each in (self._tried, *polled.starts):
                    del failures[each]
                self._count(polled, letter is not None)
                if retries is not None:
                    retries.succeeded(polled)
            active_s = clock.monotonic_s()
            if active_s - self._logged_s >= _PROGRESS_S:
                self._log_progress()
        self._log_progress()
        return self.totals

    def _count(self, polled: Polled, is_letter: bool) -> None:
        done = self.totals
        self.totals = replace(
            done,
            records=done.records + polled.count,
            transactions=done.transactions + 1,
            dead_letters=done.dead_letters + is_letter,
        )

    def _transact(self, polled: Polled, transform: Callable[[Any, Producer], object]) -> None:
        """Run one transaction. After an error, abort it and set the consumer back to its position before the poll."""
        try:
            self._producer.begin_transaction()
            self._fill(polled, transform)
            self._commit()
        except BaseException:
            self._source.go_back(polled)
            raise

    def _fill(self, polled: Polled, transform: Callable[[Any, Producer], object]) -> None:
        producer = self._producer
        try:
            returned = transform(polled.records, cast(Producer, _Sending(producer)))
            if isinstance(returned, Generator | Coroutine):
                raise NotRunError(
                    f"transform returned a {type(returned).__name__}, which was not run: send inside the function"
                )
            self._source.add_to(producer, polled)
        except BaseException:
            self._abort()
            raise

    def _commit(self) -> None:
        """Commit the transaction. An error means that it is not committed and never will be. If a data store has not
        appended its rows after some tries, or at a stop, return too: the next transaction waits for that.
        """
        for failures in range(1, self._retries + 2):
            try:
                self._producer.commit_transaction()
            except TransactionCommitPendingError as error:  # committed, but a data store has not appended its rows
                logger.warning("%s: committed, and not in all stores yet: %s", self._name, error)
                self._pause(failures)
                if self._stop.is_set():
                    break
            except Exception:
                if self._abort():
                    raise
                return
            else:
                return
        self._abort()

    def _abort(self) -> bool:
        """Abort the transaction. Return False if it was committed, and only the response of the commit was lost."""
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

    def _poll_records(self) -> Polled | None:
        source, retries = self._source, self._record_retries
        if retries is None or isinstance(source, ShareSource):
            return source.poll_records()
        poll = retries.next_poll(source.assignment())
        self._tried = poll.tried
        polled = source.poll_records(poll.timeout_ms, max_records=poll.max_records, without=poll.without)
        if polled is None and poll.tried is not None:
            if source.is_at_end(poll.tried):  # the records to try again no longer exist
                retries.go_on(poll.tried)
            else:
                retries.try_later(poll.tried, self._settings.retry_backoff_ms / 1000)
        return polled

    def _poll_table(self) -> Polled | None:
        return self._source.poll_table()

    def _is_over(self, silent_s: float) -> bool:
        timeout_ms = self._settings.consumer_timeout_ms
        return 0 <= timeout_ms <= silent_s * 1000

    def _pause(self, failures: int) -> None:
        """Wait, twice as long after each failure. A stop ends the wait."""
        self._stop.wait(self._pause_s(failures))

    def _pause_s(self, failures: int) -> float:
        return float(self._settings.retry_backoff_ms / 1000 * 2 ** (failures - 1))

    def _log_progress(self) -> None:
        self._logged_s = clock.monotonic_s()
        logger.info("%s: %s", self._name, self.totals)

    @property
    def _name(self) -> str:
        return f"group {self._settings.group_id!r}, {self._producer.config['transactional_id']!r}"


class _Sending:
    """The producer that the function gets. It refuses to begin and end transactions, which the loop does."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer

    def __getattr__(self, name: str) -> Any:
        if name in _LOOP_METHODS:
            raise IllegalStateError(f"{name}: the loop does this; the function only sends")
        return getattr(self._producer, name)


def _check(field: str, value: object, valid: bool, expected: str) -> None:
    if not valid:
        raise ValueError(f"{field}: {value!r}: expected {expected}")
