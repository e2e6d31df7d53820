"""Transactions in the metadata store: read under lock, decide (`transactions.rules`), write.

    init_producer              give a transactional producer its id and epoch; fence earlier producers of the same id
    register                   make batches pending: blobs are in the store, files in the log dirs, no reader sees them
    commit_transaction_hook    hook of the append transaction that commits: the batches it appends are no longer pending
    abort                      drop the pending batches

A commit appends all pending batches in one append transaction, which also commits the group offsets. So readers see
all records of the transaction or none.
"""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import bindparam

from spark_log.append.append_transaction import CommitHook, check_write_id
from spark_log.append.encoding import LOG_DIR_FAILURES
from spark_log.append.rules import Batch
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.lease import Fence, unfenced
from spark_log.cluster.log_dir import segment_path
from spark_log.cluster.topics import topics_of_ids
from spark_log.config import ClusterSettings
from spark_log.errors import (
    InvalidProducerIdMappingError,
    InvalidTransactionTimeoutError,
    SparkLogError,
)
from spark_log.failpoints import failpoint
from spark_log.metadata import tables as t
from spark_log.metadata.columns import PRODUCER, SEGMENT, TRANSACTION, TRANSACTION_SEGMENT
from spark_log.metadata.insert import insert_if_missing
from spark_log.metadata.prepared import Prepared
from spark_log.metadata.store import DEFAULT_TIMEOUT_MS, Attempt, Store, StoreClock
from spark_log.segments.segment_rows import delete_blobs, insert_blobs
from spark_log.transactions import rules
from spark_log.transactions.rules import ONGOING, Transaction, TransactionRef, TransactionState

logger = logging.getLogger(__name__)

_CHUNK = 1_000

_ROW = (
    sa.select(
        PRODUCER.transactional_id,
        PRODUCER.epoch,
        TRANSACTION.number,
        TRANSACTION.state,
        TRANSACTION.until_ms,
        TRANSACTION.clock_epoch,
        PRODUCER.transaction_timeout_ms,
    )
    .join(t.transaction, TRANSACTION.producer_id == PRODUCER.producer_id)
    .where(PRODUCER.producer_id == bindparam("producer_id"))
)
_READ = Prepared(_ROW)
_LOCK = Prepared(_ROW.with_for_update(of=t.producer))
_PENDING = Prepared(
    sa.select(sa.func.count())
    .select_from(t.transaction_segment)
    .where(TRANSACTION_SEGMENT.producer_id == bindparam("producer_id"))
)
_STATE = ("producer_epoch", "number", "state")
_TIME = ("began_ms", "until_ms", "clock_epoch")
_HERE = t.transaction.update().where(TRANSACTION.producer_id == bindparam("key"))
_SAVE = Prepared(_HERE.values({name: bindparam(name) for name in _STATE}))
_SAVE_NEW = Prepared(_HERE.values({name: bindparam(name) for name in _STATE + _TIME}))
_NOTHING_YET = {
    "producer_epoch": -1, "number": 0, "state": TransactionState.EMPTY.value, "began_ms": 0, "until_ms": 0,
    "clock_epoch": "",
}  # fmt: skip
_NEW_PENDING = Prepared(t.transaction_segment.insert())
_NOT_PENDING = Prepared(t.transaction_segment.delete().where(TRANSACTION_SEGMENT.producer_id == bindparam("key")))


class _Row(NamedTuple):
    transaction: Transaction
    timeout_ms: int


@dataclass(frozen=True)
class Stored:
    """A batch that a transaction has registered, at its place in the order of the sends."""

    position: int
    batch: Batch


def init_producer(
    store: Store,
    transactional_id: str,
    transaction_timeout_ms: int,
    *,
    settings: ClusterSettings | None = None,
    timeout_ms: int = DEFAULT_TIMEOUT_MS,
) -> TransactionRef:
    """A producer id and a new epoch for the transactional id, with the number of its last transaction.

    Producers that had the id before are fenced, and the transaction that one had open is aborted.
    InvalidTransactionTimeoutError above transaction.max.timeout.ms.
    """
    limit = (settings or store.settings).transaction_max_timeout_ms
    if transaction_timeout_ms > limit:
        raise InvalidTransactionTimeoutError(
            f"transaction_timeout_ms={transaction_timeout_ms} is above transaction.max.timeout.ms ({limit})"
        )

    def initialize(connection: sa.Connection, _attempt: Attempt) -> TransactionRef:
        now = store.clock(connection)
        values = {"last_used_ms": now.wall_ms, "transaction_timeout_ms": transaction_timeout_ms}
        query = sa.select(PRODUCER.producer_id).where(PRODUCER.transactional_id == transactional_id).with_for_update()
        producer_id = connection.execute(query).scalar_one_or_none()
        if producer_id is None:  # another process may insert the row first: then its producer id is used
            insert_if_missing(connection, t.producer, {"transactional_id": transactional_id, "epoch": -1, **values})
            producer_id = connection.execute(query).scalar_one()
            insert_if_missing(connection, t.transaction, {"producer_id": producer_id, **_NOTHING_YET})
        before = _lock(connection, now, producer_id)
        after = rules.initialize(before.transaction)
        connection.execute(
            t.producer.update().where(PRODUCER.producer_id == producer_id).values(**values, epoch=after.epoch)
        )
        _save(connection, now, before, after)
        return TransactionRef(producer_id, after.epoch, after.number)

    found = store.transact(initialize, timeout_ms=timeout_ms)
    failpoint("transaction.initialized")
    return found


def check(store: Store, connection: sa.Connection, ref: TransactionRef) -> None:
    """Raise the errors of `transactions.rules.check` unless the transaction can go on or begin."""
    rules.check(_read(connection, store.clock(connection), ref.producer_id).transaction, ref)


def register(
    store: Store,
    ref: TransactionRef,
    batches: Sequence[Stored],
    blobs: Mapping[str, bytes],
    *,
    write_id: str | None = None,
    release_write_id: bool = False,
    again: bool = False,
    durable: bool = False,
    timeout_ms: int = DEFAULT_TIMEOUT_MS,
) -> list[Batch]:
    """Make the batches pending; the first ones begin the transaction. Returns them as they are registered.

    With `again` some may be registered already by a call whose answer was lost: those stay as they are. Forced to disk
    only if `durable`: the commit is always forced, and it fails if a crash of the store has lost a pending batch.
    Raises the errors of `transactions.rules.check`, and WriteIdExpiredError.
    """

    def body(connection: sa.Connection, _attempt: Attempt) -> list[Batch]:
        if write_id is not None:
            check_write_id(connection, write_id, release=release_write_id)
        now = store.clock(connection)
        before = _lock(connection, now, ref.producer_id)
        there = {each.position: each.batch for each in read_pending(connection, ref.producer_id)} if again else {}
        new = [each for each in batches if each.position not in there]
        _save(connection, now, before, rules.register(before.transaction, ref, len(new)))
        if new:
            _NEW_PENDING.run(connection, [_pending_row(ref, each) for each in new])
            names = [each.batch.name for each in new if each.batch.inline]
            insert_blobs(connection, {name: blobs[name] for name in names})
        return [there.get(each.position, each.batch) for each in batches]

    registered = store.transact(body, timeout_ms=timeout_ms, durable=durable)
    failpoint("transaction.registered")
    return registered


def commit_transaction_hook(ref: TransactionRef, batches: int) -> CommitHook:
    """Hook of the append transaction that commits: it appends all `batches` pending batches of the transaction."""

    def end(connection: sa.Connection, now: StoreClock) -> bool:
        before = _lock(connection, now, ref.producer_id)
        after = rules.commit(before.transaction, ref, batches)
        _save(connection, now, before, after, keep_blobs=True)
        return after is not before.transaction

    return end


def abort(cluster: Cluster, ref: TransactionRef, *, timeout_ms: int = DEFAULT_TIMEOUT_MS) -> None:
    """Drop the pending batches, rows and files. ProducerFencedError, and InvalidTxnStateError if it was committed."""

    def body(connection: sa.Connection, _attempt: Attempt) -> list[Stored]:
        now = cluster.store.clock(connection)
        before = _lock(connection, now, ref.producer_id)
        after = rules.abort(before.transaction, ref)
        dropped = read_pending(connection, ref.producer_id)
        _save(connection, now, before, after)
        return dropped

    dropped = cluster.store.transact(body, timeout_ms=timeout_ms)
    failpoint("transaction.aborted")
    _delete_files(cluster, dropped)


def abort_timed_out(cluster: Cluster, fence: Fence = unfenced) -> Iterator[str]:
    """Abort transactions that have been open for longer than their transaction.timeout.ms; yields transactional ids."""
    store = cluster.store
    for producer_id, transactional_id in timed_out(store):
        dropped = store.transact(partial(_time_out, store, fence, producer_id))
        if dropped is not None:
            _delete_files(cluster, dropped)
            yield transactional_id


def timed_out(store: Store) -> list[tuple[int, str]]:
    """Producer ids and transactional ids of the transactions that `abort_timed_out` would abort now."""

    def late(connection: sa.Connection) -> list[tuple[int, str]]:
        now = store.clock(connection)
        ongoing = (
            sa.select(PRODUCER.producer_id, PRODUCER.transactional_id, TRANSACTION.until_ms, TRANSACTION.clock_epoch)
            .join(t.transaction, TRANSACTION.producer_id == PRODUCER.producer_id)
            .where(TRANSACTION.state == ONGOING.value)
            .order_by(PRODUCER.producer_id)
        )
        return [
            (key, name)
            for key, name, until_ms, clock_epoch in connection.execute(ongoing)
            if now.expired(until_ms, clock_epoch)
        ]

    return store.read(late)


def _time_out(
    store: Store, fence: Fence, producer_id: int, connection: sa.Connection, _attempt: Attempt
) -> list[Stored] | None:
    """The batches that were pending; None if the transaction has not timed out."""
    fence(connection)
    now = store.clock(connection)
    try:
        before = _lock(connection, now, producer_id)
    except InvalidProducerIdMappingError:
        return None
    after = rules.time_out(before.transaction)
    if after is before.transaction:
        return None
    dropped = read_pending(connection, producer_id)
    _save(connection, now, before, after)
    return dropped


def expire_ids(store: Store, settings: ClusterSettings | None = None, fence: Fence = unfenced) -> int:
    """Delete the transactional ids without a transaction for transactional.id.expiration.ms; returns their number."""
    expiration_ms = (settings or store.settings).transactional_id_expiration_ms

    def expire(connection: sa.Connection, _attempt: Attempt) -> int:
        fence(connection)
        before_ms = store.clock(connection).wall_ms - expiration_ms
        idle = _idle_ids(before_ms).order_by(PRODUCER.producer_id).limit(_CHUNK).with_for_update(of=t.producer)
        # checked again under the lock: a transaction may have begun while this waited for it
        locked = connection.execute(idle).scalars().all()
        still = sa.select(TRANSACTION.producer_id).where(
            TRANSACTION.producer_id.in_(locked), TRANSACTION.state != ONGOING.value
        )
        gone = connection.execute(still.where(TRANSACTION.began_ms <= before_ms)).scalars().all()
        for table in (t.transaction, t.producer_batch, t.producer):
            connection.execute(table.delete().where(table.c.producer_id.in_(gone)))
        return len(gone)

    total = 0
    while gone := store.transact(expire):
        total += gone
    return total


def count_expired_ids(store: Store, settings: ClusterSettings) -> int:
    """The number of transactional ids that `expire_ids` would delete now."""

    def count(connection: sa.Connection) -> int:
        before_ms = store.clock(connection).wall_ms - settings.transactional_id_expiration_ms
        return connection.execute(sa.select(sa.func.count()).select_from(_idle_ids(before_ms).subquery())).scalar_one()

    return store.read(count)


def _idle_ids(before_ms: int) -> sa.Select[tuple[int]]:
    return (
        sa.select(PRODUCER.producer_id)
        .join(t.transaction, TRANSACTION.producer_id == PRODUCER.producer_id)
        .where(
            PRODUCER.last_used_ms <= before_ms, TRANSACTION.began_ms <= before_ms, TRANSACTION.state != ONGOING.value
        )
    )


def find_offsets(store: Store, batches: Sequence[Batch]) -> dict[str, int]:
    """Base offsets by name, of the batches that are still segments of their own (not merged into others)."""
    names = [batch.name for batch in batches]
    found: dict[str, int] = {}
    for first in range(0, len(names), _CHUNK):
        query = sa.select(SEGMENT.name, SEGMENT.base_offset).where(SEGMENT.name.in_(names[first : first + _CHUNK]))
        found.update(store.read(lambda connection, query=query: dict(connection.execute(query).all())))  # type: ignore
    return found


def read_pending(connection: sa.Connection, producer_id: int) -> list[Stored]:
    """The batches that are pending in the producer's open transaction, in the order of the sends."""
    query = (
        sa.select(TRANSACTION_SEGMENT.position, TRANSACTION_SEGMENT.facts)
        .where(TRANSACTION_SEGMENT.producer_id == producer_id)
        .order_by(TRANSACTION_SEGMENT.position)
    )
    return [Stored(position, _batch(facts)) for position, facts in connection.execute(query)]


def _read(connection: sa.Connection, now: StoreClock, producer_id: int) -> _Row:
    """The transaction, without the count of its pending batches."""
    rows = _READ.rows(connection, {"producer_id": producer_id})
    if not rows:
        raise InvalidProducerIdMappingError(
            f"producer {producer_id}: its transactional_id has expired (transactional.id.expiration.ms)"
        )
    [(transactional_id, epoch, number, state, until_ms, clock_epoch, timeout_ms)] = rows
    state = TransactionState(state)
    expired = state is ONGOING and now.expired(until_ms, clock_epoch)
    found = Transaction(producer_id, epoch, number, state, expired=expired, transactional_id=transactional_id)
    return _Row(found, timeout_ms)


def _lock(connection: sa.Connection, now: StoreClock, producer_id: int) -> _Row:
    """Lock the producer's row until the end of the store's transaction, and read its transaction."""
    _LOCK.rows(connection, {"producer_id": producer_id})
    # a separate statement: on PostgreSQL the first one sees the row of `transaction` as of before the wait for the lock
    found = _read(connection, now, producer_id)
    if found.transaction.state is not ONGOING:
        return found
    [(pending,)] = _PENDING.rows(connection, {"producer_id": producer_id})
    return _Row(replace(found.transaction, pending=pending), found.timeout_ms)


def _save(
    connection: sa.Connection, now: StoreClock, row: _Row, after: Transaction, *, keep_blobs: bool = False
) -> None:
    """Write the changed columns. When the transaction ends, its pending rows are deleted, and its blobs unless they
    belong to the log now.
    """
    before = row.transaction
    facts = (after.epoch, after.number, after.state)
    if facts != (before.epoch, before.number, before.state):
        values = {"key": after.producer_id, **dict(zip(_STATE, facts, strict=True))}
        if after.number == before.number:
            _SAVE.run(connection, [values])
        else:
            until_ms = now.lease_ms + row.timeout_ms
            _SAVE_NEW.run(
                connection, [{**values, "began_ms": now.wall_ms, "until_ms": until_ms, "clock_epoch": now.clock_epoch}]
            )
    if before.state is ONGOING and after.state is not ONGOING:
        if not keep_blobs:
            mine = sa.select(TRANSACTION_SEGMENT.name).where(
                TRANSACTION_SEGMENT.producer_id == after.producer_id, TRANSACTION_SEGMENT.inline
            )
            delete_blobs(connection, connection.execute(mine).scalars().all())
        _NOT_PENDING.run(connection, [{"key": after.producer_id}])


def _pending_row(ref: TransactionRef, stored: Stored) -> dict[str, Any]:
    batch = stored.batch
    facts = {**vars(batch), "written_to": sorted(batch.written_to)}
    return {
        "producer_id": ref.producer_id,
        "position": stored.position,
        "topic_id": batch.topic_id,
        "partition": batch.partition,
        "facts": json.dumps({name: value for name, value in facts.items() if value is not None}),
        "name": batch.name,
        "inline": batch.inline,
    }


def _batch(facts: str) -> Batch:
    found = json.loads(facts)
    return Batch(**{**found, "written_to": frozenset(found["written_to"])})


def _delete_files(cluster: Cluster, dropped: Sequence[Stored]) -> None:
    """Delete the files of dropped batches; a file that cannot be deleted now is left to the clean-up of orphans."""
    files = [each.batch for each in dropped if not each.batch.inline]
    if not files:
        return
    try:
        topic_ids = {batch.topic_id for batch in files}
        topics = cluster.store.read(lambda connection: topics_of_ids(connection, topic_ids))
        infos = cluster.log_dirs()
    except SparkLogError as error:
        logger.info("files of an aborted transaction are left to the clean-up: %s", error)
        return
    for batch in files:
        if batch.topic_id in topics:
            path = segment_path(topics[batch.topic_id].folder, batch.partition, batch.name)
            for info in infos.values():
                if info.broker_id in batch.written_to:
                    with suppress(*LOG_DIR_FAILURES):
                        cluster.log_dir(info).delete(path)
