"""Stores producers: their ids and epochs, and the last batches of each producer in each partition."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import bindparam

from spark_log.log.append.sequence_rules import FORGOTTEN_OWNER, ProducerState, RememberedBatch, with_batches
from spark_log.metadata import tables as t
from spark_log.metadata.insert import insert_if_missing
from spark_log.metadata.prepared import Prepared
from spark_log.metadata.sql_columns import PRODUCER, PRODUCER_BATCH
from spark_log.metadata.store import Store
from spark_log.metadata.store_clock import StoreClock

ProducerKey = tuple[int, int, int]
"""The producer id, the topic id and the partition."""


_KEY = ("producer_id", "topic_id", "partition")
_BATCH_KEY = (*_KEY, "producer_epoch", "first_sequence")
_KEYS_OF_GONE = tuple(f"key_{name}" for name in _BATCH_KEY)
_PRODUCER = Prepared(
    sa.select(PRODUCER.epoch, PRODUCER.transactional_id, PRODUCER.owner)
    .where(PRODUCER.producer_id == bindparam("producer_id"))
    .with_for_update()
)
_REMEMBERED = Prepared(
    sa.select(
        PRODUCER_BATCH.producer_epoch,
        PRODUCER_BATCH.first_sequence,
        PRODUCER_BATCH.last_sequence,
        PRODUCER_BATCH.base_offset,
        PRODUCER_BATCH.end_offset,
    )
    .where(*(PRODUCER_BATCH[name] == bindparam(name) for name in _KEY))
    # not by sequence, which begins at 0 again; an aborted batch has base = end, where later ones may begin
    .order_by(PRODUCER_BATCH.producer_epoch, PRODUCER_BATCH.base_offset, PRODUCER_BATCH.end_offset)
)
_FORGET = Prepared(
    t.producer_batch.delete().where(
        *(PRODUCER_BATCH[name] == bindparam(gone) for name, gone in zip(_BATCH_KEY, _KEYS_OF_GONE, strict=True))
    )
)
_REMEMBER = Prepared(t.producer_batch.insert())
_SET_EPOCH = Prepared(
    t.producer.update().where(PRODUCER.producer_id == bindparam("key")).values(epoch=bindparam("epoch"))
)


def register_producer(store: Store, timeout_ms: int, owner: str | None = None) -> int:
    """Insert a producer that is not transactional, and return its id. `owner` is the principal that gets the id."""

    def insert(connection: sa.Connection) -> int:
        values = _new_producer(store.clock(connection), owner)
        found = connection.execute(t.producer.insert().returning(PRODUCER.producer_id), values)
        return int(found.scalar_one())

    return store.transact(insert, timeout_ms=timeout_ms)


def register_again(home: Store, producer_ids: Collection[int], timeout_ms: int) -> bool:
    """Insert again the producers whose rows have expired, without their former owners. Returns False if there is none
    and no other process has just inserted one. Ids above the last one, whose row is never deleted, are left out: they
    were never assigned.
    """
    known = sa.select(PRODUCER.producer_id, PRODUCER.owner).where(PRODUCER.producer_id.in_(producer_ids))

    def find(connection: sa.Connection) -> tuple[list[int], bool]:
        last = last_producer_id(connection)
        owners = {row.producer_id: row.owner for row in connection.execute(known)}
        missing = set(producer_ids) - owners.keys()
        return [each for each in sorted(missing) if 0 < each < last], FORGOTTEN_OWNER in owners.values()

    def insert(connection: sa.Connection) -> None:
        values = _new_producer(home.clock(connection), FORGOTTEN_OWNER)
        for producer_id in expired:
            insert_if_missing(connection, t.producer, {"producer_id": producer_id, **values})

    expired, forgotten = home.read(find, timeout_ms=timeout_ms)
    if expired:
        home.transact(insert, timeout_ms=timeout_ms)
    return bool(expired) or forgotten


def copy_producers(home: Store, data: Store, producer_ids: Collection[int]) -> bool:
    """Copy the rows of these producers to a data store that may lack them. Returns whether `home` has any of them. A
    transactional id is taken from the producer that had it before. With `home` and `data` exchanged, a restored home
    store gets its producers back.
    """
    query = sa.select(t.producer).where(PRODUCER.producer_id.in_(producer_ids))
    rows = home.read(lambda connection: [dict(row._mapping) for row in connection.execute(query)])

    def insert(connection: sa.Connection) -> None:
        for row in rows:
            _insert_copy(connection, row)

    if rows:
        data.transact(insert)
    return bool(rows)


def _insert_copy(connection: sa.Connection, row: Mapping[str, Any]) -> None:
    if row["transactional_id"] is not None:
        earlier = PRODUCER.transactional_id == row["transactional_id"]
        gone = t.producer.update().where(earlier, PRODUCER.producer_id < row["producer_id"])
        connection.execute(gone.values(transactional_id=None))
    insert_if_missing(connection, t.producer, row)


def copy_producers_of_topic(source: sa.Connection, target: sa.Connection, topic_id: int) -> None:
    """Copy the producers with remembered batches in the topic to another store. The larger of two epochs is kept."""
    ids = sa.select(PRODUCER_BATCH.producer_id).where(PRODUCER_BATCH.topic_id == topic_id)
    for row in source.execute(sa.select(t.producer).where(PRODUCER.producer_id.in_(ids))):
        _insert_copy(target, dict(row._mapping))
        older = (PRODUCER.producer_id == row.producer_id) & (PRODUCER.epoch < row.epoch)
        target.execute(t.producer.update().where(older).values(epoch=row.epoch))


def copy_missing_producers(home: Store, data: Store, producer_ids: Collection[int]) -> None:
    """Copy those of these producers that the data store does not have."""
    query = sa.select(PRODUCER.producer_id).where(PRODUCER.producer_id.in_(producer_ids))
    missing = set(producer_ids) - set(data.read(lambda connection: connection.execute(query).scalars().all()))
    if missing:
        copy_producers(home, data, missing)


def lock_transactional_producer(connection: sa.Connection, transactional_id: str) -> int | None:
    """Lock the row of a transactional id and return its producer id, or None if there is no row."""
    query = sa.select(PRODUCER.producer_id).where(PRODUCER.transactional_id == transactional_id).with_for_update()
    return connection.execute(query).scalar_one_or_none()


def find_transactional_producer(connection: sa.Connection, transactional_id: str) -> int | None:
    """Return the producer id of a transactional id, or None."""
    query = sa.select(PRODUCER.producer_id).where(PRODUCER.transactional_id == transactional_id)
    return connection.execute(query).scalar_one_or_none()


def transactional_id_of(connection: sa.Connection, producer_id: int) -> str | None:
    """Return the transactional id of a producer id, or None."""
    query = sa.select(PRODUCER.transactional_id).where(PRODUCER.producer_id == producer_id)
    return connection.execute(query).scalar_one_or_none()


def insert_transactional_producer(
    connection: sa.Connection, transactional_id: str, transaction_timeout_ms: int, now: StoreClock
) -> int:
    """Insert a producer with epoch -1, unless another process inserts it first. Returns its id, with its row locked."""
    values = {"epoch": -1, "last_used_ms": now.wall_ms, "transaction_timeout_ms": transaction_timeout_ms}
    insert_if_missing(connection, t.producer, {"transactional_id": transactional_id, **values})
    producer_id = lock_transactional_producer(connection, transactional_id)
    assert producer_id is not None
    return producer_id


def use_up_epochs(connection: sa.Connection, last: int) -> None:
    """Set the epoch of each transactional id to `last`. Its next producer then gets another producer id."""
    transactional = PRODUCER.transactional_id.is_not(None)
    connection.execute(t.producer.update().where(transactional).values(epoch=last))


def begin_epoch(
    connection: sa.Connection, producer_id: int, epoch: int, transaction_timeout_ms: int, now: StoreClock
) -> None:
    """Write the epoch of a transactional producer that starts: earlier epochs are fenced."""
    columns = {
        "epoch": epoch,
        "transaction_timeout_ms": transaction_timeout_ms,
        "last_used_ms": now.wall_ms,
        "owner": None,  # its sequences begin at 0 again
    }
    connection.execute(t.producer.update().where(PRODUCER.producer_id == producer_id).values(**columns))


def _new_producer(now: StoreClock, owner: str | None) -> dict[str, Any]:
    return {
        "transactional_id": None,
        "epoch": 0,
        "last_used_ms": now.wall_ms,
        "transaction_timeout_ms": 0,
        "owner": owner,
    }


def set_epoch(connection: sa.Connection, producer_id: int, epoch: int) -> None:
    """Write the epoch of a transactional producer."""
    _SET_EPOCH.run(connection, [{"key": producer_id, "epoch": epoch}])


def release_transactional_id(connection: sa.Connection, producer_id: int) -> None:
    """Take the transactional id from a producer, so that another one can have it."""
    connection.execute(t.producer.update().where(PRODUCER.producer_id == producer_id).values(transactional_id=None))


def forget_owners(connection: sa.Connection, producer_ids: Collection[int]) -> None:
    """Set FORGOTTEN_OWNER for these producers, whose sequences were deleted."""
    here = t.producer.update().where(PRODUCER.producer_id.in_(producer_ids))
    connection.execute(here.values(owner=FORGOTTEN_OWNER))


def last_producer_id(connection: sa.Connection) -> int:
    """Return the largest id that has a row; 0 if there is none."""
    return connection.execute(sa.select(sa.func.max(PRODUCER.producer_id))).scalar() or 0


def delete_producers(connection: sa.Connection, producer_ids: Collection[int]) -> None:
    connection.execute(t.producer.delete().where(PRODUCER.producer_id.in_(producer_ids)))


def delete_producer_batches(connection: sa.Connection, producer_ids: Collection[int]) -> None:
    connection.execute(t.producer_batch.delete().where(PRODUCER_BATCH.producer_id.in_(producer_ids)))


def ask_producers(
    connection: sa.Connection, keys: Collection[ProducerKey]
) -> Callable[[], dict[ProducerKey, ProducerState]]:
    """Lock the producers, in the lock order. The result reads them: call it after a `one_message` block."""
    producers = {
        producer_id: _PRODUCER.ask(connection, {"producer_id": producer_id})
        for producer_id in sorted({producer_id for producer_id, _, _ in keys})
    }
    batches = {key: _REMEMBERED.ask(connection, dict(zip(_KEY, key, strict=True))) for key in keys}

    def read() -> dict[ProducerKey, ProducerState]:
        found = {producer_id: _producer(rows.rows()) for producer_id, rows in producers.items()}
        return {
            key: with_batches(found[key[0]], [RememberedBatch(*row) for row in rows.rows()])
            for key, rows in batches.items()
        }

    return read


def _producer(rows: Sequence[Any]) -> ProducerState:
    """Return the producer without its batches."""
    for epoch, transactional_id, owner in rows:
        return ProducerState(epoch, transactional=transactional_id is not None, owner=owner)
    return ProducerState(None)


def save_producer_states(
    connection: sa.Connection,
    now: StoreClock,
    before: Mapping[ProducerKey, ProducerState],
    after: Mapping[ProducerKey, ProducerState],
) -> None:
    gone: list[dict[str, Any]] = []
    new: list[dict[str, Any]] = []
    for key, state in after.items():
        saved = before[key]
        if state is saved:
            continue
        gone += [
            dict(zip(_KEYS_OF_GONE, (*key, old.producer_epoch, old.first_sequence), strict=True))
            for old in saved.batches
            if old not in state.batches
        ]
        new += [
            {**dict(zip(_KEY, key, strict=True)), **batch._asdict(), "appended_ms": now.wall_ms}
            for batch in state.batches
            if batch not in saved.batches
        ]
        if state.transactional and state.epoch is not None and state.epoch != saved.epoch:
            set_epoch(connection, key[0], state.epoch)
    if gone:  # deleted before the insert: the sequences of a new epoch begin at 0 again
        _FORGET.run(connection, gone)
    if new:
        _REMEMBER.run(connection, new)


def delete_batches_above(connection: sa.Connection, key: tuple[int, int], offset: int) -> None:
    """Delete the batches of the partition (topic id, number) that end above `offset`: their records were removed."""
    here = (
        (PRODUCER_BATCH.topic_id == key[0])
        & (PRODUCER_BATCH.partition == key[1])
        & (PRODUCER_BATCH.end_offset > offset)
    )
    connection.execute(t.producer_batch.delete().where(here))
