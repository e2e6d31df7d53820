"""Locks, reads and writes transactions and their pending batches in the metadata store."""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import bindparam

from spark_log.errors import InvalidProducerIdMappingError
from spark_log.ids import StoreId
from spark_log.log.append.producer_rows import set_epoch
from spark_log.log.append.rules import Batch
from spark_log.log.append.sequence_rules import REMEMBERED_BATCHES, ProducerSequence, RememberedBatch, sequence_after
from spark_log.log.segments.segment_rows import delete_blobs
from spark_log.metadata import tables as t
from spark_log.metadata.insert import insert_if_missing, insert_or_replace
from spark_log.metadata.prepared import Prepared, in_list, one_message
from spark_log.metadata.sql_columns import PRODUCER, TRANSACTION, TRANSACTION_OFFSET, TRANSACTION_SEGMENT
from spark_log.metadata.store_clock import StoreClock
from spark_log.transactions.rules import ONGOING, Parts, Transaction, TransactionState

_ROW = (
    sa.select(
        PRODUCER.transactional_id,
        PRODUCER.epoch,
        TRANSACTION.state,
        TRANSACTION.until_ms,
        TRANSACTION.clock_epoch,
        PRODUCER.transaction_timeout_ms,
        TRANSACTION.previous_epoch,
        TRANSACTION.pending,
        TRANSACTION.claim,
        TRANSACTION.offsets_claim,
        TRANSACTION.part_number,
        TRANSACTION.part_stores,
    )
    .join(t.transaction, TRANSACTION.producer_id == PRODUCER.producer_id)
    .where(PRODUCER.producer_id == bindparam("producer_id"))
)
_READ = Prepared(_ROW)
_LOCK = Prepared(_ROW.with_for_update(of=t.producer))
_STATE = (
    "producer_epoch", "state", "previous_epoch", "pending", "claim", "offsets_claim", "part_number", "part_stores",
)  # fmt: skip
_TIME = ("began_ms", "until_ms", "clock_epoch")
_HERE = t.transaction.update().where(TRANSACTION.producer_id == bindparam("key"))
_SAVE = Prepared(_HERE.values({name: bindparam(name) for name in _STATE}))
_SAVE_NEW = Prepared(_HERE.values({name: bindparam(name) for name in _STATE + _TIME}))
_NOTHING_YET = {
    "producer_epoch": -1, "state": TransactionState.EMPTY.value, "began_ms": 0, "until_ms": 0,
    "clock_epoch": "", "previous_epoch": -1, "pending": 0, "claim": 0, "offsets_claim": 0,
    "part_number": 0, "part_stores": "",
}  # fmt: skip
_NEW_PENDING = Prepared(t.transaction_segment.insert())
_NO_OFFSETS = Prepared(t.transaction_offset.delete().where(TRANSACTION_OFFSET.producer_id == bindparam("key")))
_NOT_PENDING = Prepared(t.transaction_segment.delete().where(TRANSACTION_SEGMENT.producer_id == bindparam("key")))


class TransactionRow(NamedTuple):
    transaction: Transaction
    timeout_ms: int


@dataclass(frozen=True)
class PendingBatch:
    """A batch that a transaction has registered, with its position in the order of the sends."""

    position: int
    batch: Batch


def insert_empty_transaction(connection: sa.Connection, producer_id: int) -> None:
    """Insert the row of a producer without a transaction, unless the row exists."""
    insert_if_missing(connection, t.transaction, {"producer_id": producer_id, **_NOTHING_YET})


def ask_transaction(
    connection: sa.Connection, now: Callable[[], StoreClock], producer_id: int
) -> Callable[[], TransactionRow]:
    """Request the transaction, and return a function that reads it; inside `one_message`, call it after the block. It
    raises InvalidProducerIdMappingError if the transactional id has expired.
    """
    answer = _READ.ask(connection, {"producer_id": producer_id})

    def read() -> TransactionRow:
        rows = answer.rows()
        if not rows:
            raise InvalidProducerIdMappingError(
                f"producer {producer_id}: its transactional_id has expired (transactional.id.expiration.ms)"
            )
        [(transactional_id, epoch, state, until_ms, clock_epoch, timeout_ms, *numbers)] = rows
        previous_epoch, pending, token, offsets_token, part_number, part_stores = numbers
        state = TransactionState(state)
        transaction = Transaction(
            producer_id,
            epoch,
            state,
            pending,
            expired=state is ONGOING and now().expired(until_ms, clock_epoch),
            transactional_id=transactional_id,
            previous_epoch=previous_epoch,
            token=token,
            offsets_token=offsets_token,
            parts=Parts(part_number, frozenset(StoreId(int(each)) for each in part_stores.split())),
        )
        return TransactionRow(transaction, timeout_ms)

    return read


def lock_transaction(connection: sa.Connection, now: StoreClock, producer_id: int) -> TransactionRow:
    """Lock the producer's row until the end of the store's transaction, and read its transaction. Raises
    InvalidProducerIdMappingError if the transactional id has expired.
    """
    with one_message(connection):
        locked = _LOCK.ask(connection, {"producer_id": producer_id})
        # separate statements: on PostgreSQL the first one sees the row of `transaction` as of before the wait for the
        # lock
        transaction = ask_transaction(connection, lambda: now, producer_id)
    locked.rows()
    return transaction()


def save_transaction(
    connection: sa.Connection, now: StoreClock, row: TransactionRow, after: Transaction, *, keep_blobs: bool = False
) -> None:
    """Write the transaction if it has changed. `row` is the transaction before, as `lock_transaction` returned it.

    If a transaction begins or the epoch is raised, its begin and its deadline are counted from `now`. If it ends, its
    pending batches and offsets are deleted. Blobs of these batches are deleted too, except with `keep_blobs`: after a
    commit they belong to the log.
    """
    before = row.transaction
    facts, known = _facts(after), _facts(before)
    if facts != known:
        values = {"key": after.producer_id, **dict(zip(_STATE, facts, strict=True))}
        if after.epoch == before.epoch and (after.state is not ONGOING or before.state is ONGOING):
            _SAVE.run(connection, [values])
        else:
            until_ms = now.lease_ms + row.timeout_ms
            _SAVE_NEW.run(
                connection, [{**values, "began_ms": now.wall_ms, "until_ms": until_ms, "clock_epoch": now.clock_epoch}]
            )
    if before.state is ONGOING and after.state is not ONGOING:
        delete_pending(connection, after.producer_id, keep_blobs=keep_blobs)
        _NO_OFFSETS.run(connection, [{"key": after.producer_id}])
    if after.epoch != before.epoch:
        set_epoch(connection, after.producer_id, after.epoch)


def _facts(of: Transaction) -> tuple[Any, ...]:
    """Return the values of the columns `_STATE`."""
    stores = " ".join(map(str, sorted(of.parts.stores)))
    return of.epoch, of.state, of.previous_epoch, of.pending, of.token, of.offsets_token, of.parts.number, stores


def delete_pending(connection: sa.Connection, producer_id: int, *, keep_blobs: bool) -> None:
    """Delete the rows of the producer's pending batches and, unless `keep_blobs`, their blobs."""
    if not keep_blobs:
        mine = sa.select(TRANSACTION_SEGMENT.name).where(
            TRANSACTION_SEGMENT.producer_id == producer_id, TRANSACTION_SEGMENT.inline
        )
        delete_blobs(connection, connection.execute(mine).scalars().all())
    _NOT_PENDING.run(connection, [{"key": producer_id}])


def delete_transactions(connection: sa.Connection, producer_ids: Collection[int]) -> None:
    connection.execute(t.transaction.delete().where(in_list(TRANSACTION.producer_id, producer_ids)))


def insert_pending(connection: sa.Connection, producer_id: int, batches: Sequence[PendingBatch]) -> None:
    """Make the batches pending in the transaction."""
    _NEW_PENDING.run(connection, [_pending_row(producer_id, each) for each in batches])


def read_pending(connection: sa.Connection, producer_id: int) -> list[PendingBatch]:
    """Return the batches that are pending in the producer's open transaction, in the order of the sends."""
    query = (
        sa.select(TRANSACTION_SEGMENT.position, TRANSACTION_SEGMENT.facts)
        .where(TRANSACTION_SEGMENT.producer_id == producer_id)
        .order_by(TRANSACTION_SEGMENT.position)
    )
    return [PendingBatch(position, _batch(facts)) for position, facts in connection.execute(query)]


def read_all_pending(connection: sa.Connection) -> dict[int, list[Batch]]:
    """Return the pending batches of all open transactions, by producer id, in the order of the sends."""
    query = sa.select(TRANSACTION_SEGMENT.producer_id, TRANSACTION_SEGMENT.facts)
    found: dict[int, list[Batch]] = {}
    for producer_id, facts in connection.execute(
        query.order_by(TRANSACTION_SEGMENT.producer_id, TRANSACTION_SEGMENT.position)
    ):
        found.setdefault(producer_id, []).append(_batch(facts))
    return found


def read_last_pending(
    connection: sa.Connection, producer_id: int, epoch: int, keys: Collection[tuple[int, int]]
) -> dict[tuple[int, int], tuple[RememberedBatch, ...]]:
    """Return the last REMEMBERED_BATCHES pending batches with sequences of each partition (topic id, number), oldest
    first.
    """
    batches = {}
    for topic_id, partition in keys:
        query = (
            sa.select(TRANSACTION_SEGMENT.first_sequence, TRANSACTION_SEGMENT.last_sequence)
            .where(
                TRANSACTION_SEGMENT.producer_id == producer_id,
                TRANSACTION_SEGMENT.topic_id == topic_id,
                TRANSACTION_SEGMENT.partition == partition,
                TRANSACTION_SEGMENT.first_sequence.is_not(None),
            )
            .order_by(TRANSACTION_SEGMENT.position.desc())
            .limit(REMEMBERED_BATCHES)
        )
        rows = connection.execute(query).all()
        batches[topic_id, partition] = tuple(RememberedBatch(epoch, first, last, -1, -1) for first, last in rows[::-1])
    return batches


def read_first_pending(connection: sa.Connection, producer_id: int, topic_id: int, partition: int) -> int | None:
    """Return the first sequence of the transaction in the partition, or None without pending batches there."""
    query = (
        sa.select(TRANSACTION_SEGMENT.first_sequence)
        .where(
            TRANSACTION_SEGMENT.producer_id == producer_id,
            TRANSACTION_SEGMENT.topic_id == topic_id,
            TRANSACTION_SEGMENT.partition == partition,
        )
        .order_by(TRANSACTION_SEGMENT.position)
        .limit(1)
    )
    return connection.execute(query).scalar_one_or_none()


def partitions_with_sequences(connection: sa.Connection, producer_id: int) -> list[tuple[int, int]]:
    """Return the partitions (topic id, number) that have pending batches with sequences."""
    query = (
        sa.select(TRANSACTION_SEGMENT.topic_id, TRANSACTION_SEGMENT.partition)
        .distinct()
        .where(TRANSACTION_SEGMENT.producer_id == producer_id, TRANSACTION_SEGMENT.first_sequence.is_not(None))
    )
    return [(topic_id, partition) for topic_id, partition in connection.execute(query)]


def write_pending_offsets(connection: sa.Connection, producer_id: int, rows: Sequence[Mapping[str, Any]]) -> None:
    """Add group offsets to the open transaction. They replace earlier ones of the same group and partition."""
    insert_or_replace(connection, t.transaction_offset, [{"producer_id": producer_id, **row} for row in rows])


def delete_pending_offsets(
    connection: sa.Connection, group_id: str, topic_id: int | None = None, partitions: Collection[int] = ()
) -> None:
    """Delete the offsets that open transactions have for the group, all of them or those of partitions of a topic."""
    where = [TRANSACTION_OFFSET.group_id == group_id]
    if topic_id is not None:
        where += [TRANSACTION_OFFSET.topic_id == topic_id, in_list(TRANSACTION_OFFSET.partition, partitions)]
    connection.execute(t.transaction_offset.delete().where(*where))


def _pending_row(producer_id: int, pending: PendingBatch) -> dict[str, Any]:
    batch = pending.batch
    facts = {**batch._asdict(), "written_to": sorted(batch.written_to)}
    sequence = batch.sequence
    if sequence is not None:
        facts["sequence"] = [sequence.producer_id, sequence.producer_epoch, sequence.first]
    return {
        "producer_id": producer_id,
        "position": pending.position,
        "topic_id": batch.topic_id,
        "partition": batch.partition,
        "facts": json.dumps({name: value for name, value in facts.items() if value is not None}),
        "name": batch.name,
        "inline": batch.inline,
        "first_sequence": None if sequence is None else sequence.first,
        "last_sequence": None if sequence is None else sequence_after(sequence.first, batch.record_count - 1),
    }


def _batch(facts: str) -> Batch:
    found = json.loads(facts)
    if "sequence" in found:
        found["sequence"] = ProducerSequence(*found["sequence"])
    return Batch(**{**found, "written_to": frozenset(found["written_to"])})
