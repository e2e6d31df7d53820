"""Keeps the producer's state of its transaction: the registered batches, offsets and acknowledgements."""

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import sqlalchemy as sa
from kafka.errors import TransactionAbortedError
from kafka.structs import TopicPartition

from spark_log.clients.kafka_errors import kafka_error
from spark_log.clients.produce.future import Written, merged
from spark_log.clients.produce.producer_batch import ProducerBatch
from spark_log.clients.produce.producer_settings import ProducerSettings
from spark_log.clients.produce.store_parts import StoreParts
from spark_log.clients.produce.transaction_states import CALLS, FATAL, HINTS, State, after_error, may_commit_again
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.topics import Topic
from spark_log.errors import (
    IllegalStateError,
    InvalidProducerIdMappingError,
    InvalidTxnStateError,
    SparkLogError,
    TransactionAbortableError,
    TransactionCommitPendingError,
)
from spark_log.failpoints import failpoint
from spark_log.groups.committed_offsets import Commit
from spark_log.groups.share.transacted import ShareAcknowledgements, TransactedAcknowledgements
from spark_log.groups.transacted_offsets import Commits, Committer, check_offsets, commit_offsets_hook
from spark_log.ids import HOME, StoreId
from spark_log.log.append.producer_rows import find_transactional_producer
from spark_log.log.append.rules import Appended, Batch
from spark_log.log.log import Log, Records, WrittenBatches
from spark_log.transactions import transaction_parts, transaction_store
from spark_log.transactions.rules import EPOCH_MAX, ProducerRef, check_groups
from spark_log.transactions.transaction_rows import PendingBatch
from spark_log.transactions.transaction_store import TransactionCommit

_COMPLETIONS_MAX = 3
"""Maximum completions of the last transaction. A crash of the home store may lose the record of a completed part."""


class ProducerTransaction:
    """The transactions of one producer, one after the other. The sender's thread calls `register`; the producer's
    callers call the rest. Before `commit` and `abort` the sender must have settled all records.
    """

    def __init__(self, cluster: Cluster, settings: ProducerSettings) -> None:
        assert settings.transactional_id is not None
        self._cluster, self._settings = cluster, settings
        self._transactional_id = settings.transactional_id
        self._timeout_ms = max(1, int(min(settings.max_block_ms, 2**31)))
        self._lock = threading.RLock()
        self._state = State.UNINITIALIZED
        self._error: Exception | None = None
        self._ref = ProducerRef(-1, -1)
        self._number = 0
        """Number of transactions that have begun."""
        self._positions = itertools.count()
        """Never restarts from 0, because a batch that failed in one transaction may be sent again in the next."""
        self._forget()

    def check(self, call: str) -> None:
        """Raise IllegalStateError, or the error of the failed transaction, unless the call is possible now."""
        state = self._state
        if state in CALLS[call]:
            return
        if state is State.FATAL_ERROR and self._error is not None:
            raise self._error
        if state is State.ABORTABLE_ERROR:
            reason = TransactionAbortableError(f"{call}: the transaction has failed, abort it: {self._error}")
            raise kafka_error(reason) from self._error
        hint = HINTS.get(state, "another thread commits or aborts")
        raise kafka_error(
            IllegalStateError(f"{self._transactional_id!r}: {call}: not possible in the state {state.value}: {hint}")
        )

    def initialize(self, log: Log) -> None:
        with self._lock:
            self.check("init_transactions")
            if self._state is State.UNINITIALIZED:
                self._after_the_last_one(log, self._initialize)
                self._state = State.READY

    def _after_the_last_one(self, log: Log, call: Callable[[], object]) -> None:
        """Call a function. If the last transaction is committed, but not complete in all stores, complete it first.
        Raises TransactionCommitPendingError if a data store cannot do that now.
        """
        for _ in range(_COMPLETIONS_MAX):
            try:
                call()
                return
            except TransactionCommitPendingError:
                transaction_parts.complete_last(log, self._transactional_id, timeout_ms=self._timeout_ms)
        call()

    def _initialize(self) -> None:
        timeout_ms = self._settings.transaction_timeout_ms
        self._ref, _, aborted = transaction_store.init_producer(
            self._cluster, self._transactional_id, timeout_ms, timeout_ms=self._timeout_ms
        )
        transaction_parts.abort_parts(self._cluster, self._ref.producer_id, aborted)

    def begin(self, log: Log) -> None:
        with self._lock:
            self.check("begin_transaction")
            with self.fail_on_error():
                if not self._known(log) or self._ref.epoch > EPOCH_MAX:
                    self._initialize()
            self._forget()
            self._number, self._state = self._number + 1, State.IN_TRANSACTION

    def _known(self, log: Log) -> bool:
        """Return False if the transactional id has expired while nothing was sent. Raises InvalidProducerIdMappingError
        if another producer has it since.
        """
        try:
            self._after_the_last_one(log, self._check_in_store)
        except InvalidProducerIdMappingError:
            name = self._transactional_id
            if self._cluster.store.read(lambda connection: find_transactional_producer(connection, name)) is not None:
                raise
            return False
        return True

    def add_offsets(self, who: Committer, commits: Mapping[Any, Commit]) -> None:
        """Add offsets to commit with the transaction. Raises an error now if they could not be committed now."""
        with self._lock:
            self.check("send_offsets_to_transaction")
            with self.fail_on_error():
                store = self._cluster.store
                groups = {each.group_id for each in [*self._offsets, who]}
                check_groups(groups, f"transaction of {self._transactional_id!r}")
                found = self._check_in_store(lambda connection: check_offsets(store, connection, who, commits))
            self._offsets.setdefault(who, {}).update(found)

    def add_acknowledgements(self, acknowledgements: ShareAcknowledgements) -> None:
        """Add acknowledgements of a share group to commit with the transaction. Their records are locked until its end.
        Raises CommitFailedError if a lock has ended.
        """
        with self._lock:
            self.check("send_share_acknowledgements_to_transaction")
            with self.fail_on_error():
                self._check_in_store()
                owner = f"transaction {self._ref.producer_id}-{self._ref.epoch}"
                self._acknowledgements.add(acknowledgements, owner, self._settings.transaction_timeout_ms)

    def register(self, log: Log, producer_batches: Sequence[ProducerBatch], timeout_ms: int) -> None:
        """Make the records of the producer batches pending: they are stored, and no reader sees them.

        The producer batches of one partition become one batch. Small batches for the home store that arrive after the
        call of commit are kept in memory: the commit stores them in its own transaction. Raises
        CrossStoreTransactionError for a second store, unless the cluster allows it (transaction.cross.store).
        """
        by_store: dict[StoreId, dict[int, list[ProducerBatch]]] = {}
        for position, group in self._groups(producer_batches).items():
            by_store.setdefault(group[0].topic.store_id, {})[position] = group
        self._parts.check_stores({*by_store, *(each.store_id for each in list(self._sent.values()))})
        for store_id, groups in by_store.items():
            self._register_in(log.at(store_id), groups, timeout_ms)

    def _register_in(self, log: Log, groups: Mapping[int, list[ProducerBatch]], timeout_ms: int) -> None:
        items = [
            (
                group[0].topic,
                Records(group[0].partition, pa.concat_tables([producer_batch.table for producer_batch in group])),
            )
            for group in groups.values()
        ]
        written = log.write_batches(items, codec=self._settings.compression_type, timeout_ms=timeout_ms)
        topics: dict[int, Topic] = {topic.topic_id: topic for topic, _ in items}
        with log.naming(written, topics) as unnamed:
            registered = {batch.name for batch in self._register(log.cluster, groups, written, timeout_ms)}
            # for each other batch, the file of an earlier attempt is registered
            unnamed += [batch for batch in written.batches if batch.name not in registered]

    def _register(
        self, cluster: Cluster, groups: Mapping[int, list[ProducerBatch]], written: WrittenBatches, timeout_ms: int
    ) -> Sequence[Batch]:
        with self._lock:
            self.check("register")  # one thread may have sent while another one committed
            batches: Sequence[Batch] = written.batches
            again = any(producer_batch.in_doubt for group in groups.values() for producer_batch in group)
            stored = [PendingBatch(position, batch) for position, batch in zip(groups, batches, strict=True)]
            if cluster.store_id != HOME:
                self._reached = True
                with self._reason_from_home():
                    batches = self._parts.register(
                        cluster, self._ref, stored, written, again=again, timeout_ms=timeout_ms
                    )
            elif self._state is State.COMMITTING and written.write_id is None and not again:
                self._blobs.update(written.blobs)
            else:
                self._reached = True
                batches = transaction_parts.register(
                    self._cluster, self._ref, None, stored, written.blobs,
                    write_id=written.write_id, again=again, timeout_ms=timeout_ms,
                )  # fmt: skip
            for (position, group), batch in zip(groups.items(), batches, strict=True):
                self._sent[position] = _Sent(batch, group)
            return batches

    def _groups(self, producer_batches: Sequence[ProducerBatch]) -> dict[int, list[ProducerBatch]]:
        """Return the producer batches by position in the transaction. Groups of an earlier attempt stay together."""
        new: dict[tuple[str, int], int] = {}
        groups: dict[int, list[ProducerBatch]] = {}
        for producer_batch in producer_batches:
            if producer_batch.position < 0:
                if producer_batch.key not in new:
                    new[producer_batch.key] = next(self._positions)
                producer_batch.position = new[producer_batch.key]
            groups.setdefault(producer_batch.position, []).append(producer_batch)
        return groups

    def fail(self, error: Exception) -> None:
        """Note that a record was not sent: the transaction can only be aborted."""
        with self._lock:
            state = after_error(self._state, error)
            if state is not self._state:
                self._state, self._error = state, error

    def begin_commit(self) -> int:
        """Refuse further records; return the transaction's number. `commit` needs all sent records to be settled."""
        with self._lock:
            self.check("commit_transaction")
            if self._state is State.IN_TRANSACTION:
                self._state = State.COMMITTING
            return self._number

    def commit(self, log: Log, number: int) -> list[Written]:
        """Commit, and return the partitions and offsets of the records."""
        with self._lock:
            self._check_number("commit_transaction", number)
            self._state = State.IN_DOUBT
            sent = [self._sent[position] for position in sorted(self._sent)]
            try:
                if sent or self._offsets or self._acknowledgements:
                    self._reached = True
                    offsets = self._commit(log, sent)
                else:
                    self._check_in_store()
                    offsets = {}
            except SparkLogError as error:
                if not may_commit_again(error):
                    self.fail(kafka_error(error))
                raise
            for each in sent:
                each.set_base_offset(offsets.get(each.batch.name, -1))
            self._over()
        return merged(_written(producer_batch) for each in sent for producer_batch in each.producer_batches)

    def _commit(self, log: Log, sent: Sequence["_Sent"]) -> dict[str, int]:
        """Commit the batches, and return their base offsets by name, except those of files that were merged since."""
        by_store: dict[StoreId, list[Batch]] = {}
        for each in sent:
            by_store.setdefault(each.store_id, []).append(each.batch)
        batches = by_store.get(HOME, [])
        topics: dict[int, Topic] = {each.topic.topic_id: each.topic for each in sent if each.store_id == HOME}
        with self._reason_from_home():
            self._parts.prepare(log, self._ref, by_store, self._timeout_ms)
        parts = self._parts.parts
        durable = bool(self._offsets or self._acknowledgements or parts.stores) or any(
            topic.config.flush_messages <= 1 for topic in topics.values()
        )
        commit = TransactionCommit(
            self._ref,
            batches,
            self._blobs,
            after=[
                commit_offsets_hook(self._cluster.store, self._offsets),
                self._acknowledgements.hook(),
            ],
            durable=durable,
            parts=parts,
        )
        result = log.append_whole(commit.request(), topics, timeout_ms=self._timeout_ms)
        failpoint("transaction.committed")
        if result.committed_before:
            offsets = transaction_store.find_offsets(self._cluster.store, batches)
        else:
            appended = (outcome.base_offset for outcome in result.outcomes if isinstance(outcome, Appended))
            offsets = dict(zip([batch.name for batch in batches], appended, strict=True))
        return offsets | self._parts.complete(log, self._ref, by_store, self._timeout_ms)

    def begin_abort(self) -> int:
        """Refuse further records; return the transaction's number. `abort` needs all sent records to be settled."""
        with self._lock:
            self.check("abort_transaction")
            self.fail(TransactionAbortedError("abort_transaction was called"))
            return self._number

    def abort(self, number: int | None = None) -> None:
        """Abort the open transaction. With `number`, abort only the transaction of that number."""
        with self._lock:
            self._check_number("abort_transaction", number)
            try:
                if self._reached:
                    transaction_parts.abort(self._cluster, self._ref, timeout_ms=self._timeout_ms)
                self._acknowledgements.release()
            except FATAL as error:
                self._state, self._error = State.FATAL_ERROR, kafka_error(error)
                raise
            except InvalidTxnStateError:  # the transaction was committed: only the answer was lost
                self._over()
                raise
            self._over()

    @property
    def may_send(self) -> bool:
        """Whether `check("send")` would succeed. It is much faster."""
        return self._state is State.IN_TRANSACTION

    @property
    def is_open(self) -> bool:
        """Whether there is a transaction to abort."""
        return self._state in CALLS["abort_transaction"]

    def _check_number(self, call: str, number: int | None) -> None:
        """Check the call as `check` does. Raises IllegalStateError if another thread has ended transaction `number`."""
        self.check(call)
        if number is not None and number != self._number:
            raise kafka_error(IllegalStateError(f"{call}: another thread has ended the transaction"))

    def _check_in_store(self, more: Callable[[sa.Connection], Commits] = lambda _: {}) -> Commits:
        """Check in the store that the transaction can continue or begin, and run `more` in the same snapshot."""
        store = self._cluster.store

        def read(connection: sa.Connection) -> Commits:
            transaction_store.check(store, connection, self._ref)
            return more(connection)

        return store.read(read)

    @contextmanager
    def _reason_from_home(self) -> Iterator[None]:
        """If a part in a data store was closed, raise the error of the home store, which knows the reason: another
        producer, or a time-out.
        """
        try:
            yield
        except (InvalidTxnStateError, TransactionAbortableError):
            self._check_in_store()
            raise

    @contextmanager
    def fail_on_error(self) -> Iterator[None]:
        """Fail the transaction if the block raises an error."""
        try:
            yield
        except SparkLogError as error:
            self.fail(kafka_error(error))
            raise

    def _over(self) -> None:
        """Note that the transaction has ended in the store: the next one has the next epoch (KIP-890)."""
        ref = ProducerRef(self._ref.producer_id, self._ref.epoch + 1) if self._reached else self._ref
        self._ref, self._reached, self._state, self._error = ref, False, State.READY, None  # no signal comes between
        self._forget()

    def _forget(self) -> None:
        self._sent: dict[int, _Sent] = {}
        self._blobs: dict[str, bytes] = {}
        self._offsets: dict[Committer, dict[Any, Commit]] = {}
        self._acknowledgements = TransactedAcknowledgements(self._cluster)
        self._reached = False
        """Whether the store may have rows of the transaction."""
        self._parts = StoreParts(self._cluster)


@dataclass(frozen=True)
class _Sent:
    """A batch of the transaction, and the producer batches whose records it contains, in order."""

    batch: Batch
    producer_batches: Sequence[ProducerBatch]

    @property
    def topic(self) -> Topic:
        return self.producer_batches[0].topic

    @property
    def store_id(self) -> StoreId:
        return self.topic.store_id

    def set_base_offset(self, base_offset: int) -> None:
        """Set the offsets of the producer batches from the batch's base offset; -1 if it is unknown."""
        for producer_batch in self.producer_batches:
            producer_batch.base_offset = base_offset
            if base_offset >= 0:
                base_offset += producer_batch.count


def _written(producer_batch: ProducerBatch) -> Written:
    end = producer_batch.base_offset + producer_batch.count if producer_batch.base_offset >= 0 else -1
    return Written(TopicPartition(producer_batch.topic.name, producer_batch.partition), producer_batch.base_offset, end)
