"""Appends the records of all connections of a gateway, with one transaction of each store at a time.

Requests that arrive while a transaction runs share the next one. So the speed of the store, not the number of clients,
limits the transactions. The clients take turns. The batches of data stores are handed to appenders of their own.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from spark_log import clock
from spark_log.cluster.topics import Topic
from spark_log.errors import SparkLogError, TopicMovedError, UnknownTopicOrPartitionError
from spark_log.gateway.counters import Counters
from spark_log.gateway.records.append_queue import Queue, Request, unchecked_together
from spark_log.gateway.records.batch_checks import Accepted, Checked, Outcome, SentBatch, check_batches
from spark_log.gateway.records.topic_cache import TopicCache
from spark_log.gateway.topic_stores import StoreSilentError, TopicStores
from spark_log.gateway.transactions.pending_records import register_records
from spark_log.ids import HOME, StoreId
from spark_log.log.append.rules import (
    Acks,
    Appended,
    Rejected,
)
from spark_log.log.log import Log
from spark_log.log.records.kafka_batch.decode import DecodingLimits

logger = logging.getLogger(__name__)

_TIMEOUT_MS = 30_000
_CHECKS_S_MAX = 0.1
"""How long batches are checked for one transaction. Clients choose what a check costs."""
_SILENT_S = 3.0
"""How long batches wait for a data store. The answers to later requests of their connection wait behind them."""


class _Outcomes:
    """The outcomes of one transaction's requests, whose batches may be in several stores. Used by the event loop."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self._requests = requests
        self._outcomes: list[Outcome | None] = [None for request in requests for _ in request.batches]

    def fill(self, numbers: Iterable[int], outcomes: Sequence[Outcome]) -> None:
        """Take the outcomes of the batches with these numbers, and answer the requests that have all of theirs."""
        for number, outcome in zip(numbers, outcomes, strict=True):
            self._outcomes[number] = outcome
        begin = 0
        for request in self._requests:
            part = self._outcomes[begin : begin + len(request.batches)]
            begin += len(part)
            if not request.done.done() and None not in part:
                request.done.set_result([outcome for outcome in part if outcome is not None])


class Appender(threading.Thread):
    """A thread that appends to the topics of one store. The home store's thread owns the Log of the gateway, and closes
    it at the end.
    """

    def __init__(
        self,
        log: Log,
        topics: TopicCache,
        stores: TopicStores,
        loop: asyncio.AbstractEventLoop,
        counters: Counters,
        *,
        provisional_offsets: bool = False,
        store_id: StoreId = HOME,
    ) -> None:
        """`provisional_offsets` is GatewaySettings.provisional_offsets."""
        super().__init__(name=f"gateway appender {store_id or ''}".rstrip(), daemon=True)
        self._log, self._topics, self._stores, self._loop, self._counters = log, topics, stores, loop, counters
        self._store_id = store_id
        self._of_stores: dict[StoreId, Appender] = {}
        self._began_s: float | None = None
        self._provisional_offsets = provisional_offsets
        self._changed = threading.Condition()
        self._queue = Queue()
        self._closing = False

    def check(self, batches: Sequence[SentBatch], limits: DecodingLimits) -> list[Checked]:
        """Decode and check the batches of a request. Any thread may call it, so that costly checks precede `submit`."""
        topics = self._topics.find(batch.topic for batch in batches)
        return check_batches(batches, topics, self._log.cluster.store.now().wall_ms, limits)

    def submit(
        self,
        client: str,
        connection: str,
        batches: Sequence[SentBatch | Checked],
        acks: Acks,
        transactional_id: str | None = None,
    ) -> "asyncio.Future[list[Outcome]]":
        """Append the batches after those that this connection submitted before. The future gets their outcomes. Call
        this in the event loop.

        With a transactional id the batches become pending in its open transaction.
        """
        done = self._loop.create_future()
        request = Request(client, connection, batches, acks, transactional_id, done)
        with self._changed:
            self._queue.put(request)
            self._changed.notify()
        return request.done

    def close(self) -> None:
        """Let the thread append the submitted batches, and then end."""
        with self._changed:
            self._closing = True
            self._changed.notify()

    def run(self) -> None:
        try:
            while requests := self._take():
                self._began_s = clock.monotonic_s()
                self._append(self._checked(requests))
                self._began_s = None
        finally:
            if self._store_id == HOME:
                appenders = list(self._of_stores.values())
                for appender in appenders:
                    appender.close()
                for appender in appenders:
                    appender.join(_SILENT_S)
                self._log.close()

    def _take(self) -> list[Request]:
        """Wait for the requests of the next transaction of the store. Return an empty list when the appender ends."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._closing)
                taken = self._queue.take() if self._queue else []
            if self._store_id == HOME:
                return taken
            requests = [request for request in taken if not request.done.done()]  # the others have waited too long
            if requests or not taken:
                return requests

    def _append(self, requests: Sequence[Request]) -> None:
        checked = [batch for request in requests for batch in request.batches if not isinstance(batch, SentBatch)]
        counters, began_s = self._counters, clock.monotonic_s()
        answers = _Outcomes(requests)
        numbers: Sequence[int] = range(len(checked))
        names = [request.transactional_id for request in requests for _ in request.batches]
        try:
            numbers = self._hand_over(checked, names, requests[0].acks, answers)
            own = [checked[number] for number in numbers]
            if requests[0].transactional_id is None:
                outcomes = self._appended(own, requests[0].acks)
            else:
                outcomes = self._registered(own, [names[number] or "" for number in numbers])
        except Exception as error:
            self._note_failure(error)
            outcomes = [Outcome(error)] * len(numbers)
        counters.appends += 1
        counters.append_seconds += clock.monotonic_s() - began_s
        self._loop.call_soon_threadsafe(answers.fill, numbers, outcomes)

    def _hand_over(
        self, checked: Sequence[Checked], names: Sequence[str | None], acks: Acks, answers: _Outcomes
    ) -> Sequence[int]:
        """Hand the batches of other stores to their appenders. Return the numbers of the remaining batches. `names` has
        the transactional id of each batch.
        """
        elsewhere: dict[tuple[StoreId, str | None], list[int]] = {}
        for number, each in enumerate(checked):
            if isinstance(each, Accepted) and each.topic.store_id != self._store_id:
                elsewhere.setdefault((each.topic.store_id, names[number]), []).append(number)
        if not elsewhere:
            return range(len(checked))
        for (store_id, name), numbers in elsewhere.items():
            appender = self._of_stores.get(store_id) or self._start(store_id)
            batches = [checked[number] for number in numbers]
            hand_over = partial(appender.submit_or_give_up, batches, acks, name)
            self._loop.call_soon_threadsafe(hand_over, partial(answers.fill, numbers))
        given = {number for numbers in elsewhere.values() for number in numbers}
        return [number for number in range(len(checked)) if number not in given]

    def _start(self, store_id: StoreId) -> "Appender":
        appender = Appender(
            self._log, self._topics, self._stores, self._loop, self._counters,
            provisional_offsets=self._provisional_offsets, store_id=store_id,
        )  # fmt: skip
        appender.start()
        self._of_stores[store_id] = appender
        self._log.cluster.tell_of_removals(self)
        return appender

    def close_at(self, store_id: StoreId) -> None:
        """End the thread that appends to a store that was removed from the cluster."""
        appender = self._of_stores.pop(store_id, None)
        if appender is not None:
            appender.close()

    def submit_or_give_up(
        self,
        batches: Sequence[Checked],
        acks: Acks,
        transactional_id: str | None,
        answer: Callable[[Sequence[Outcome]], None],
    ) -> None:
        """Append to a data store, and call `answer` with the outcomes. If the store does not answer in time, these are
        StoreSilentError, and the append may still succeed. Call this in the event loop.
        """
        silent = [Outcome(StoreSilentError(f"store {self._store_id} does not answer"))] * len(batches)
        began_s = self._began_s
        stuck = began_s is not None and clock.monotonic_s() - began_s > _SILENT_S
        if stuck or self._stores.is_lost(self._store_id):
            answer(silent)
            return

        def give_up() -> None:
            if not done.done():
                done.set_result(silent)
                self._stores.suspect(self._store_id)

        done = self.submit("", "", batches, acks, transactional_id)
        timer = self._loop.call_later(_SILENT_S, give_up)

        def end(_: object) -> None:
            timer.cancel()
            answer(done.result())

        done.add_done_callback(end)

    def _appended(self, checked: Sequence[Checked], acks: Acks) -> list[Outcome]:
        accepted = [batch for batch in checked if isinstance(batch, Accepted)]
        self._counters.appended_records += sum(batch.records.table.num_rows for batch in accepted)
        batches = [(batch.topic, batch.records) for batch in accepted]
        appended = self._log.append_each(batches, acks=acks, timeout_ms=_TIMEOUT_MS) if accepted else ()
        return self._outcomes(checked, appended)

    def _checked(self, requests: Sequence[Request]) -> list[Request]:
        """Check the batches of the requests that are not checked yet. If that takes long, put the last requests back
        into the queue, and return the others.
        """
        checked: list[Request] = []
        began_s = clock.monotonic_s()
        for together in unchecked_together(requests):
            if checked and clock.monotonic_s() - began_s > _CHECKS_S_MAX:
                with self._changed:
                    self._queue.put_back(requests[len(checked) :])
                break
            try:
                checked += self._checked_together(together)
            except Exception as error:
                self._note_failure(error)
                of_store = isinstance(error, SparkLogError)  # the other checks would wait for the store, too
                failed = requests[len(checked) :] if of_store else together
                checked += [replace(each, batches=[Outcome(error)] * len(each.batches)) for each in failed]
                if of_store:
                    break
        return checked

    def _checked_together(self, requests: Sequence[Request]) -> list[Request]:
        batches = [each for request in requests for each in request.batches if isinstance(each, SentBatch)]
        outcomes = iter(self.check(batches, DecodingLimits()) if batches else ())
        return [
            replace(
                request, batches=[next(outcomes) if isinstance(each, SentBatch) else each for each in request.batches]
            )
            for request in requests
        ]

    def _note_failure(self, error: Exception) -> None:
        self._counters.failed_appends += 1
        if not isinstance(error, SparkLogError):
            logger.error("an append failed", exc_info=error)

    def _registered(self, checked: Sequence[Checked], names: Sequence[str]) -> list[Outcome]:
        """Make the batches of transactions pending, and return their outcomes. Batches get final offsets at the commit.
        `names` has the transactional id of each batch.
        """
        accepted = [(name, batch) for name, batch in zip(names, checked, strict=True) if isinstance(batch, Accepted)]
        batches = [(name, batch.topic, batch.records) for name, batch in accepted]
        registered = (
            register_records(self._log, batches, provisional=self._provisional_offsets, timeout_ms=_TIMEOUT_MS)
            if accepted
            else ()
        )
        return self._outcomes(checked, registered)

    def _outcomes(self, checked: Sequence[Checked], answers: Iterable[Appended | Rejected]) -> list[Outcome]:
        """Return the outcomes of all batches, in order. `answers` are those of the accepted ones."""
        accepted = [batch for batch in checked if isinstance(batch, Accepted)]
        pairs = list(zip(accepted, answers, strict=True))
        refused = [(batch.topic, answer.error) for batch, answer in pairs if isinstance(answer, Rejected)]
        for topic, error in refused:
            if isinstance(error, UnknownTopicOrPartitionError | TopicMovedError):
                self._topics.forget(topic.name)
        unknown = {topic.name for topic, error in refused if isinstance(error, UnknownTopicOrPartitionError)}
        now: dict[str, Topic] = {}
        with suppress(SparkLogError):  # if the store does not answer, the topics stay unknown
            now = self._topics.find(unknown)

        def outcome_of(batch: Accepted, answer: Appended | Rejected) -> Outcome:
            if isinstance(answer, Appended):
                return Outcome(None, answer.base_offset, batch.append_time_ms)
            topic = now.get(batch.topic.name) if isinstance(answer.error, UnknownTopicOrPartitionError) else None
            if topic is not None and topic.topic_id == batch.topic.topic_id:
                return Outcome(TopicMovedError(f"topic {topic.name!r}: it was moved to another store"))
            return Outcome(answer.error)

        outcomes = iter([outcome_of(batch, answer) for batch, answer in pairs])
        return [next(outcomes) if isinstance(batch, Accepted) else batch for batch in checked]
