"""Executes calls of Kafka clients' transactions in the store: read under lock, decide (`transactions.rules`), write.

    take_fencing_token  let the caller's connection act from now on, and change nothing else (`fencing_rules`)
    begin               AddPartitionsToTxn, AddOffsetsToTxn
    register            Produce: batches become pending
    read_open           EndTxn with a commit: the pending batches, for the append that commits (`transaction_commit`)
    abort               EndTxn with an abort

TxnOffsetCommit is `groups.pending_offsets.add_offsets`.

No state is kept between the calls, so each may reach another gateway. Each call is forced to disk before it is
answered: EndTxn does not list what the client has sent, so everything that was acknowledged must still exist then.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.errors import InvalidProducerIdMappingError, SparkLogError, UnknownTopicOrPartitionError
from spark_log.failpoints import failpoint
from spark_log.log.append.append_transaction import check_write_id
from spark_log.log.append.producer_rows import ProducerKey, ask_producers, save_producer_states
from spark_log.log.append.rules import (
    Appended,
    Batch,
    Rejected,
)
from spark_log.log.append.sequence_rules import ProducerState
from spark_log.log.segments.segment_rows import insert_blobs
from spark_log.metadata.sql_columns import PARTITION
from spark_log.metadata.store import DEFAULT_TIMEOUT_MS, Attempt, Store
from spark_log.transactions import (
    fencing_rules,
    rules,
)
from spark_log.transactions import pending_sequences as sequence_rules
from spark_log.transactions.fencing_rules import FencingToken, Role
from spark_log.transactions.rules import ProducerRef
from spark_log.transactions.transaction_rows import (
    PendingBatch,
    TransactionRow,
    insert_pending,
    lock_transaction,
    partitions_with_sequences,
    read_first_pending,
    read_last_pending,
    read_pending,
    save_transaction,
)
from spark_log.transactions.transaction_store import delete_files


@dataclass(frozen=True)
class WireProducer:
    """The identity that a Kafka client sends in each call."""

    transactional_id: str
    producer_id: int
    epoch: int

    @property
    def ref(self) -> ProducerRef:
        return ProducerRef(self.producer_id, self.epoch)


@dataclass(frozen=True)
class Registration:
    """Batches of one producer, in order. All have sequences."""

    producer: WireProducer
    batches: Sequence[Batch]


def locked(
    connection: sa.Connection, store: Store, producer: WireProducer, token: FencingToken | None = None
) -> TransactionRow:
    """Lock the row of the producer, and return its transaction. Raises InvalidProducerIdMappingError if the producer
    does not belong to the transactional id, and FencedConnectionError if a `token` is given that is not the newest one.
    """
    row = lock_transaction(connection, store.clock(connection), producer.producer_id)
    if row.transaction.transactional_id != producer.transactional_id:
        raise InvalidProducerIdMappingError(
            f"producer {producer.producer_id} is not that of transactional_id {producer.transactional_id!r}"
        )
    if token is not None:
        fencing_rules.check(row.transaction, token)
    return row


def take_fencing_token(
    store: Store, producer: WireProducer, role: Role, *, timeout_ms: int = DEFAULT_TIMEOUT_MS
) -> FencingToken:
    """Take a new fencing token for a connection. Raises the errors of `rules.check`: a fenced producer gets none."""

    def body(connection: sa.Connection, _attempt: Attempt) -> FencingToken:
        now = store.clock(connection)
        before = locked(connection, store, producer)
        rules.check(before.transaction, producer.ref)
        after, token = fencing_rules.take(before.transaction, role)
        save_transaction(connection, now, before, after)
        return token

    return store.transact(body, timeout_ms=timeout_ms)


def begin(store: Store, producer: WireProducer, token: FencingToken, *, timeout_ms: int = DEFAULT_TIMEOUT_MS) -> None:
    """Begin a transaction unless one is open. Raises the errors of `rules.check`, and FencedConnectionError."""

    def body(connection: sa.Connection, _attempt: Attempt) -> None:
        now = store.clock(connection)
        before = locked(connection, store, producer, token)
        after = rules.begin(before.transaction, producer.ref)
        save_transaction(connection, now, before, after)

    store.transact(body, timeout_ms=timeout_ms)
    failpoint("gateway.transaction-begun")


def register(
    store: Store,
    registrations: Sequence[Registration],
    blobs: Mapping[str, bytes],
    *,
    write_id: str | None = None,
    provisional: bool = False,
    timeout_ms: int = DEFAULT_TIMEOUT_MS,
) -> list[list[Appended | Rejected]]:
    """Make the batches pending. Return, for each registration, Appended or Rejected for each of its batches.

    Appended has the offsets -1, or with `provisional` the offsets that the batch would have if it were committed now. A
    batch that is pending already is a duplicate. Raises the errors of the store, and WriteIdExpiredError.
    """

    def body(connection: sa.Connection, _attempt: Attempt) -> list[list[Appended | Rejected]]:
        if write_id is not None:
            check_write_id(connection, write_id, release=False)
        order = sorted(range(len(registrations)), key=lambda each: registrations[each].producer.producer_id)
        outcomes: dict[int, list[Appended | Rejected]] = {
            each: _register(connection, store, registrations[each], blobs, provisional) for each in order
        }
        return [outcomes[each] for each in range(len(registrations))]

    outcomes = store.transact(body, timeout_ms=timeout_ms)
    failpoint("transaction.registered")
    return outcomes


def _register(
    connection: sa.Connection, store: Store, registration: Registration, blobs: Mapping[str, bytes], provisional: bool
) -> list[Appended | Rejected]:
    producer, batches = registration.producer, registration.batches
    try:
        before = locked(connection, store, producer)
        transaction = before.transaction
        rules.check_open(transaction, producer.ref)
    except SparkLogError as error:
        return [Rejected(error)] * len(batches)
    keys = {(batch.topic_id, batch.partition) for batch in batches}
    there = log_end_offsets(connection, keys)
    states = _states(connection, producer.producer_id, keys)
    pending = read_last_pending(connection, producer.producer_id, producer.epoch, keys)
    outcomes: list[Appended | Rejected] = []
    new: list[Batch] = []
    for batch in batches:
        key = (batch.topic_id, batch.partition)
        if key not in there:  # the topic was deleted, but was still in the gateway's cache
            outcomes.append(Rejected(UnknownTopicOrPartitionError(f"topic {key[0]}, partition {key[1]}: deleted")))
            continue
        outcome, remembered = sequence_rules.accept(states[(producer.producer_id, *key)], pending[key], batch)
        if remembered is not None:
            try:
                rules.check_room(transaction, len(new) + 1)
            except SparkLogError as error:
                outcomes.append(Rejected(error))
                continue
            pending[key] = (*pending[key], remembered)
            new.append(batch)
        outcomes.append(outcome)
    if new:
        first = transaction.pending
        insert_pending(
            connection, producer.producer_id, [PendingBatch(first + row, batch) for row, batch in enumerate(new)]
        )
        insert_blobs(connection, {batch.name: blobs[batch.name] for batch in new if batch.inline})
        after = rules.register(transaction, producer.ref, len(new))
        save_transaction(connection, store.clock(connection), before, after)
    if not provisional:
        return outcomes
    firsts = {key: read_first_pending(connection, producer.producer_id, *key) for key in keys}
    return [_provisional(outcome, batch, there, firsts) for outcome, batch in zip(outcomes, batches, strict=True)]


def _provisional(
    outcome: Appended | Rejected,
    batch: Batch,
    log_ends: Mapping[tuple[int, int], int],
    firsts: Mapping[tuple[int, int], int | None],
) -> Appended | Rejected:
    key = (batch.topic_id, batch.partition)
    first = firsts[key]
    if isinstance(outcome, Rejected) or first is None:
        return outcome
    return replace(sequence_rules.provisional(log_ends[key], first, batch), duplicate=outcome.duplicate)


def log_end_offsets(connection: sa.Connection, keys: Collection[tuple[int, int]]) -> dict[tuple[int, int], int]:
    """Return the log end offsets of all partitions (topic id, number) that exist of the topics in `keys`."""
    query = sa.select(PARTITION.topic_id, PARTITION.partition, PARTITION.log_end_offset)
    found = connection.execute(query.where(PARTITION.topic_id.in_({topic_id for topic_id, _ in keys})))
    return {(topic_id, partition): log_end_offset for topic_id, partition, log_end_offset in found}


def read_open(
    store: Store, producer: WireProducer, token: FencingToken, *, timeout_ms: int = DEFAULT_TIMEOUT_MS
) -> list[Batch] | None:
    """Return the pending batches of the open transaction, or None if an earlier EndTxn has committed it.

    Raises the errors of `rules.has_ended`, and FencedConnectionError.
    """

    def body(connection: sa.Connection, _attempt: Attempt) -> list[Batch] | None:
        transaction = locked(connection, store, producer, token).transaction
        if rules.has_ended(transaction, producer.ref, commit=True):
            return None
        return [each.batch for each in read_pending(connection, producer.producer_id)]

    return store.transact(body, timeout_ms=timeout_ms)


def abort(
    cluster: Cluster, producer: WireProducer, token: FencingToken, *, timeout_ms: int = DEFAULT_TIMEOUT_MS
) -> None:
    """Drop the pending batches and offsets, and keep the last sequences. Raises the errors of `rules.has_ended`, and
    FencedConnectionError.
    """
    store = cluster.store

    def body(connection: sa.Connection, _attempt: Attempt) -> list[PendingBatch]:
        now = store.clock(connection)
        before = locked(connection, store, producer, token)
        if rules.has_ended(before.transaction, producer.ref, commit=False):
            return []
        after = fencing_rules.end_offsets_token(rules.abort(before.transaction, producer.ref, keeps_epoch=True))
        keys = partitions_with_sequences(connection, producer.producer_id)
        states = _states(connection, producer.producer_id, keys)
        last = read_last_pending(connection, producer.producer_id, producer.epoch, keys)
        kept = {
            (producer.producer_id, *key): sequence_rules.remember_aborted(
                states[(producer.producer_id, *key)], last[key][-1]
            )
            for key in keys
        }
        save_producer_states(connection, now, states, kept)
        dropped = read_pending(connection, producer.producer_id)
        save_transaction(connection, now, before, after)
        return dropped

    dropped = store.transact(body, timeout_ms=timeout_ms, announce=True)  # consumers wait for its offsets
    failpoint("transaction.aborted")
    delete_files(cluster, dropped)


def _states(
    connection: sa.Connection, producer_id: int, keys: Collection[tuple[int, int]]
) -> dict[ProducerKey, ProducerState]:
    """Return the producer's state in each partition (topic id, number) after all transactions that have ended."""
    return ask_producers(connection, {(producer_id, *key) for key in keys})()
