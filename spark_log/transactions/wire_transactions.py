"""Executes calls of Kafka clients' transactions in the store: read under lock, decide (`transactions.rules`), write.

    take_fencing_token  let the caller's connection act from now on, and change nothing else (`fencing_rules`)
    begin               AddPartitionsToTxn, AddOffsetsToTxn
    join                Produce: the open transaction gets a part in a data store
    register            Produce: batches become pending, at home or in that part
    read_open           EndTxn with a commit: the pending batches, for the append that commits (`TransactionCommit`)
    abort               EndTxn with an abort

TxnOffsetCommit is `groups.pending_offsets.add_offsets`.

No state is kept between the calls, so each may reach another gateway. Each call is forced to disk before it is
answered: EndTxn does not list what the client has sent, so everything that was acknowledged must still exist then.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.store_directory import keep_store
from spark_log.errors import InvalidProducerIdMappingError, SparkLogError, UnknownTopicOrPartitionError
from spark_log.failpoints import failpoint
from spark_log.ids import HOME, StoreId
from spark_log.log.append.append_transaction import check_write_id
from spark_log.log.append.producer_rows import ask_producers
from spark_log.log.append.rules import (
    Appended,
    Batch,
    Rejected,
)
from spark_log.log.segments.segment_rows import insert_blobs
from spark_log.metadata.sql_columns import PARTITION
from spark_log.metadata.store import DEFAULT_TIMEOUT_MS, Store
from spark_log.transactions import fencing_rules, part_rules, rules
from spark_log.transactions import pending_sequences as sequence_rules
from spark_log.transactions.fencing_rules import FencingToken, Role
from spark_log.transactions.part_rows import lock_part, remember_sequences, save_part
from spark_log.transactions.rules import NO_PARTS, Parts, ProducerRef
from spark_log.transactions.transaction_rows import (
    PendingBatch,
    TransactionRow,
    insert_pending,
    lock_transaction,
    read_first_pending,
    read_last_pending,
    read_pending,
    save_transaction,
)
from spark_log.transactions.transaction_store import delete_files, may_cross


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
    """Batches of one producer, in order, for topics of one store. All have sequences."""

    producer: WireProducer
    batches: Sequence[Batch]
    number: int | None = None
    """The number of the transaction's parts, for a data store; None for the home store."""


class Opened(NamedTuple):
    """The transaction that a commit finds, with its parts. `batches` are its pending batches in the home store, or None
    if an earlier call has committed it.
    """

    batches: list[Batch] | None
    parts: Parts


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

    def body(connection: sa.Connection) -> FencingToken:
        now = store.clock(connection)
        before = locked(connection, store, producer)
        rules.check(before.transaction, producer.ref)
        after, token = fencing_rules.take(before.transaction, role)
        save_transaction(connection, now, before, after)
        return token

    return store.transact(body, timeout_ms=timeout_ms)


def begin(
    store: Store,
    producer: WireProducer,
    token: FencingToken,
    stores: Iterable[StoreId] = (),
    *,
    timeout_ms: int = DEFAULT_TIMEOUT_MS,
) -> None:
    """Begin a transaction unless one is open, with parts in the data stores among `stores`. Raises the errors of
    `rules.join`, UnknownTopicOrPartitionError for a store that was removed, and FencedConnectionError.
    """
    across = may_cross(store)

    def body(connection: sa.Connection) -> None:
        now = store.clock(connection)
        before = locked(connection, store, producer, token)
        after = rules.begin(before.transaction, producer.ref)
        for store_id in sorted(stores, reverse=True):  # home last
            keep_store(connection, store_id)
            after = rules.join(after, producer.ref, store_id, across=across, now_ms=now.wall_ms)
        save_transaction(connection, now, before, after)

    store.transact(body, timeout_ms=timeout_ms)
    failpoint("gateway.transaction-begun")


def join(
    home: Store, producers: Sequence[WireProducer], store_id: StoreId, *, timeout_ms: int = DEFAULT_TIMEOUT_MS
) -> dict[WireProducer, int | SparkLogError]:
    """Give the open transactions of producers a part in a data store. Return the numbers of their parts, or the errors
    of `rules.check_open` and `rules.join`, and UnknownTopicOrPartitionError if the store was removed.
    """
    across = may_cross(home)

    def body(connection: sa.Connection) -> dict[WireProducer, int | SparkLogError]:
        numbers: dict[WireProducer, int | SparkLogError] = {}
        for producer in sorted(producers, key=lambda each: each.producer_id):
            try:
                before = locked(connection, home, producer)
                rules.check_open(before.transaction, producer.ref)
                keep_store(connection, store_id)
                now_ms = home.clock(connection).wall_ms
                after = rules.join(before.transaction, producer.ref, store_id, across=across, now_ms=now_ms)
            except SparkLogError as error:
                numbers[producer] = error
            else:
                save_transaction(connection, home.clock(connection), before, after)
                numbers[producer] = after.parts.number
        return numbers

    numbers = home.transact(body, timeout_ms=timeout_ms)
    failpoint("part.joined")
    return numbers


def register(
    store: Store,
    registrations: Sequence[Registration],
    blobs: Mapping[str, bytes],
    *,
    write_id: str | None = None,
    provisional: bool = False,
    timeout_ms: int = DEFAULT_TIMEOUT_MS,
) -> list[list[Appended | Rejected]]:
    """Make the batches pending in the transactions, or in their parts in this data store. Return, for each
    registration, Appended or Rejected for each of its batches.

    Appended has the offsets -1, or with `provisional` the offsets that the batch would have if it were committed now. A
    batch that is pending already is a duplicate. Raises the errors of the store, and WriteIdExpiredError.
    """

    def body(connection: sa.Connection) -> list[list[Appended | Rejected]]:
        if write_id is not None:
            check_write_id(connection, write_id, release=False)
        order = sorted(range(len(registrations)), key=lambda index: registrations[index].producer.producer_id)
        outcomes: dict[int, list[Appended | Rejected]] = {
            index: _register(connection, store, registrations[index], blobs, provisional) for index in order
        }
        return [outcomes[index] for index in range(len(registrations))]

    outcomes = store.transact(body, timeout_ms=timeout_ms)
    failpoint("part.registered" if any(each.number is not None for each in registrations) else "transaction.registered")
    return outcomes


def _register(
    connection: sa.Connection, store: Store, registration: Registration, blobs: Mapping[str, bytes], provisional: bool
) -> list[Appended | Rejected]:
    producer, batches = registration.producer, registration.batches
    try:
        opened = _open(connection, store, registration)
    except SparkLogError as error:
        return [Rejected(error)] * len(batches)
    keys = {(batch.topic_id, batch.partition) for batch in batches}
    there = log_end_offsets(connection, keys)
    states = ask_producers(connection, {(producer.producer_id, *key) for key in keys})()
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
                rules.check_pending(opened.pending + len(new) + 1)
            except SparkLogError as error:
                outcomes.append(Rejected(error))
                continue
            pending[key] = (*pending[key], remembered)
            new.append(batch)
        outcomes.append(outcome)
    if new:
        insert_pending(
            connection,
            producer.producer_id,
            [PendingBatch(opened.pending + row, batch) for row, batch in enumerate(new)],
        )
        insert_blobs(connection, {batch.name: blobs[batch.name] for batch in new if batch.inline})
        opened.save(len(new))
    if not provisional:
        return outcomes
    firsts = {key: read_first_pending(connection, producer.producer_id, *key) for key in keys}
    return [_provisional(outcome, batch, there, firsts) for outcome, batch in zip(outcomes, batches, strict=True)]


class _Open(NamedTuple):
    """A transaction, or a part of one, that takes batches. `save` adds a number of batches to the `pending` ones."""

    pending: int
    save: Callable[[int], object]


def _open(connection: sa.Connection, store: Store, registration: Registration) -> _Open:
    """Lock the transaction or the part. Raises the errors of `rules.check_open`, `rules.join` for the home store, and
    `part_rules.register`.
    """
    producer, number, now = registration.producer, registration.number, store.clock(connection)
    if number is None:
        before = locked(connection, store, producer)
        transaction, ref = before.transaction, producer.ref
        rules.check_open(transaction, ref)
        if transaction.parts.stores:
            rules.join(transaction, ref, HOME, across=may_cross(store))

        def save(batches: int) -> None:
            save_transaction(connection, now, before, rules.register(transaction, ref, batches))

        return _Open(transaction.pending, save)
    part = lock_part(connection, now, producer.producer_id)
    opened = part_rules.register(part, number, 0)
    save_part(connection, now, part, opened)  # drops an older part, whose sequences count
    return _Open(
        opened.pending,
        lambda batches: save_part(connection, now, opened, part_rules.register(opened, number, batches)),
    )


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
) -> Opened:
    """Return the transaction that EndTxn commits. Raises the errors of `rules.has_ended`, and FencedConnectionError."""

    def body(connection: sa.Connection) -> Opened:
        transaction = locked(connection, store, producer, token).transaction
        if rules.has_ended(transaction, producer.ref, commit=True):
            return Opened(None, transaction.parts)
        return Opened([each.batch for each in read_pending(connection, producer.producer_id)], transaction.parts)

    return store.transact(body, timeout_ms=timeout_ms)


def abort(
    cluster: Cluster, producer: WireProducer, token: FencingToken, *, timeout_ms: int = DEFAULT_TIMEOUT_MS
) -> Parts:
    """Abort the transaction: drop its pending batches and offsets, and keep the last sequences. Return the parts, which
    the caller drops. Raises the errors of `rules.has_ended`, and FencedConnectionError.
    """
    store = cluster.store

    def body(connection: sa.Connection) -> tuple[list[PendingBatch], Parts]:
        now = store.clock(connection)
        before = locked(connection, store, producer, token)
        if rules.has_ended(before.transaction, producer.ref, commit=False):
            return [], NO_PARTS
        after = fencing_rules.end_offsets_token(rules.abort(before.transaction, producer.ref, keeps_epoch=True))
        dropped = read_pending(connection, producer.producer_id)
        remember_sequences(connection, now, producer.producer_id, dropped)
        save_transaction(connection, now, before, after)
        return dropped, before.transaction.parts

    dropped, parts = store.transact(body, timeout_ms=timeout_ms, announce=True)  # consumers wait for its offsets
    failpoint("transaction.aborted")
    delete_files(cluster, dropped)
    return parts
