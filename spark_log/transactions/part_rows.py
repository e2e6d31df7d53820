"""Locks, reads and writes the parts of transactions in a data store."""

from collections.abc import Collection
from typing import Any

import sqlalchemy as sa

from spark_log.ids import StoreId
from spark_log.log.append.producer_rows import ask_producers, save_producer_states
from spark_log.metadata import tables as t
from spark_log.metadata.insert import insert_if_missing, insert_or_replace
from spark_log.metadata.prepared import in_list
from spark_log.metadata.sql_columns import TRANSACTION, TRANSACTION_PART, TRANSACTION_SEGMENT
from spark_log.metadata.store_clock import StoreClock
from spark_log.transactions.part_rules import Part, PartState
from spark_log.transactions.pending_sequences import remember_aborted
from spark_log.transactions.rules import COMMITTED
from spark_log.transactions.transaction_rows import (
    PendingBatch,
    delete_pending,
    partitions_with_sequences,
    read_last_pending,
    read_pending,
)

_COLUMNS = (TRANSACTION_PART.producer_id, TRANSACTION_PART.number, TRANSACTION_PART.state, TRANSACTION_PART.pending)
_UNFINISHED = (PartState.OPEN.value, PartState.PREPARED.value)


def read_part(connection: sa.Connection, producer_id: int) -> Part:
    """Return the producer's part."""
    query = sa.select(*_COLUMNS).where(TRANSACTION_PART.producer_id == producer_id)
    return next(map(_part, connection.execute(query)), Part(producer_id))


def lock_part(connection: sa.Connection, now: StoreClock, producer_id: int) -> Part:
    """Lock the row of the producer's part, and make it if it is missing."""
    query = sa.select(*_COLUMNS).where(TRANSACTION_PART.producer_id == producer_id).with_for_update()
    for row in connection.execute(query):
        return _part(row)
    insert_if_missing(connection, t.transaction_part, _row(Part(producer_id), now))
    return _part(connection.execute(query).one())


def save_part(connection: sa.Connection, now: StoreClock, before: Part, after: Part) -> list[PendingBatch]:
    """Write the part if it has changed. Return the pending batches that it drops: the part's own ones if it is aborted,
    or those of an older part that was not over. After a commit they belong to the log.
    """
    if after == before:
        return []
    dropped: list[PendingBatch] = []
    if not before.is_over and (after.number > before.number or after.state is PartState.ABORTED):
        dropped = read_pending(connection, before.producer_id)
        remember_sequences(connection, now, before.producer_id, dropped)
        delete_pending(connection, before.producer_id, keep_blobs=False)
    elif after.state is PartState.COMMITTED:
        delete_pending(connection, before.producer_id, keep_blobs=True)
    insert_or_replace(connection, t.transaction_part, [_row(after, now)])
    return dropped


def remember_sequences(
    connection: sa.Connection, now: StoreClock, producer_id: int, dropped: Collection[PendingBatch]
) -> None:
    """Keep the last sequences of the pending batches, which are dropped: Kafka clients continue from them."""
    epochs = [each.batch.sequence.producer_epoch for each in dropped if each.batch.sequence is not None]
    if not epochs:
        return
    keys = partitions_with_sequences(connection, producer_id)
    last = read_last_pending(connection, producer_id, max(epochs), keys)
    states = ask_producers(connection, {(producer_id, *key) for key in keys})()
    kept = {
        (producer_id, *key): remember_aborted(states[producer_id, *key], last[key][-1]) for key in keys if last[key]
    }
    save_producer_states(connection, now, states, kept)


def read_parts(connection: sa.Connection) -> list[Part]:
    """Return all parts of this data store."""
    return [_part(row) for row in connection.execute(sa.select(*_COLUMNS))]


def unfinished_parts(connection: sa.Connection) -> list[Part]:
    """Return the open and the prepared parts of this data store."""
    query = sa.select(*_COLUMNS).where(TRANSACTION_PART.state.in_(_UNFINISHED)).order_by(TRANSACTION_PART.producer_id)
    return [_part(row) for row in connection.execute(query)]


def has_pending(connection: sa.Connection, topic_id: int, *, only_prepared: bool) -> bool:
    """Whether the topic has pending batches. With `only_prepared`, only those of prepared parts count."""
    query = sa.select(TRANSACTION_SEGMENT.topic_id).where(TRANSACTION_SEGMENT.topic_id == topic_id)
    if only_prepared:
        prepared = sa.select(TRANSACTION_PART.producer_id).where(TRANSACTION_PART.state == PartState.PREPARED.value)
        query = query.where(TRANSACTION_SEGMENT.producer_id.in_(prepared))
    return connection.execute(query.limit(1)).first() is not None


def unfinished_commits(connection: sa.Connection, store_id: StoreId) -> list[int]:
    """Return the producer ids of the committed transactions whose part this data store has not appended. The
    connection is to the home store.
    """
    query = sa.select(TRANSACTION.producer_id, TRANSACTION.part_stores).where(
        TRANSACTION.state == COMMITTED.value, TRANSACTION.part_stores != ""
    )
    rows = connection.execute(query.order_by(TRANSACTION.producer_id))
    return [key for key, stores in rows if str(store_id) in stores.split()]


def expired_parts(connection: sa.Connection, before_ms: int) -> list[int]:
    """Return the producer ids whose part was over before a time."""
    query = sa.select(TRANSACTION_PART.producer_id).where(
        TRANSACTION_PART.state.not_in(_UNFINISHED), TRANSACTION_PART.changed_ms <= before_ms
    )
    return list(connection.execute(query).scalars())


def delete_parts(connection: sa.Connection, producer_ids: Collection[int]) -> None:
    """Delete the parts of these producers that are over."""
    here = in_list(TRANSACTION_PART.producer_id, producer_ids) & TRANSACTION_PART.state.not_in(_UNFINISHED)
    connection.execute(t.transaction_part.delete().where(here))


def _part(row: Any) -> Part:
    producer_id, number, state, pending = row
    return Part(producer_id, number, PartState(state), pending)


def _row(part: Part, now: StoreClock) -> dict[str, object]:
    return {
        "producer_id": part.producer_id,
        "number": part.number,
        "state": part.state.value,
        "pending": part.pending,
        "changed_ms": now.wall_ms,
    }
