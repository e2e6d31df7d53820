"""Expires producers that have not appended for producer.id.expiration.ms, as in Kafka."""

from collections.abc import Collection, Sequence

import sqlalchemy as sa

from spark_log.cluster.lease import Fence, unfenced
from spark_log.config import ClusterSettings
from spark_log.log.append.producer_rows import (
    delete_producer_batches,
    delete_producers,
    forget_owners,
    last_producer_id,
)
from spark_log.metadata import tables as t
from spark_log.metadata.sql_columns import PRODUCER, PRODUCER_BATCH, TRANSACTION, TRANSACTION_PART
from spark_log.metadata.store import Store

_PRODUCERS_A_TURN = 1_000
_ALL = t.producer.alias()
_LAST_ID = sa.select(sa.func.max(_ALL.c.producer_id)).scalar_subquery()


def expire_producers(
    store: Store,
    settings: ClusterSettings | None = None,
    fence: Fence = unfenced,
    *,
    home: Store | None = None,
) -> int:
    """Delete the sequences of producers that have not appended to any partition for producer.id.expiration.ms, and have
    no open transaction. Producers that are not transactional are deleted completely, except the one with the largest
    id, which shows which ids were assigned (`register_again`). Afterwards the next batch of each in a partition may
    have any sequence.

    For a data store, `home` is given. There a producer's row is deleted only if home has none: a new copy of home's row
    would not say that the sequences in the data store have expired.

    Returns the number of producers that were deleted completely. This takes several transactions. In each, `fence`
    raises if the caller may not act any more.
    """
    expiration_ms = (settings or store.settings).producer_id_expiration_ms

    def expire(connection: sa.Connection) -> tuple[int, int]:
        before_ms = store.clock(connection).wall_ms - expiration_ms
        silent = (
            _silent(before_ms, completely=home is None)
            .order_by(PRODUCER.producer_id)
            .limit(_PRODUCERS_A_TURN)
            .with_for_update()  # an append locks its producer first: it commits before this, or finds no state
        )
        due = connection.execute(silent).all()
        ids = [row.producer_id for row in due]
        # read again under the lock: a statement sees the rows as of the time before it waited for the locks
        alive = set(
            connection.execute(
                sa.select(PRODUCER_BATCH.producer_id).where(
                    PRODUCER_BATCH.producer_id.in_(ids), PRODUCER_BATCH.appended_ms > before_ms
                )
            ).scalars()
        )
        alive |= set(connection.execute(_open()).scalars()) & set(ids)
        gone = [row.producer_id for row in due if row.producer_id not in alive]
        last_id = last_producer_id(connection)
        without_a_name = [
            row.producer_id
            for row in due
            if home is None and row.producer_id in gone and row.transactional_id is None and row.producer_id != last_id
        ]
        delete_producer_batches(connection, gone)
        delete_producers(connection, without_a_name)
        forget_owners(connection, sorted(set(gone).difference(without_a_name)))
        return len(due), len(without_a_name)

    total = 0
    while True:
        due, gone = store.transact(expire, fence=fence)
        total += gone
        if due < _PRODUCERS_A_TURN:
            break
    return total + (0 if home is None else _expire_copies(store, home, expiration_ms, fence))


def _expire_copies(data: Store, home: Store, expiration_ms: int, fence: Fence) -> int:
    """Delete from a data store the producers without sequences that home has deleted. Return their number."""
    empty = ~sa.exists().where(PRODUCER_BATCH.producer_id == PRODUCER.producer_id)
    without_a_name = PRODUCER.transactional_id.is_(None)
    total, after = 0, 0
    while True:

        def find(connection: sa.Connection, after: int = after) -> Sequence[int]:
            before_ms = data.clock(connection).wall_ms - expiration_ms
            query = sa.select(PRODUCER.producer_id).where(
                without_a_name, empty, PRODUCER.last_used_ms <= before_ms, PRODUCER.producer_id > after
            )
            return connection.execute(query.order_by(PRODUCER.producer_id).limit(_PRODUCERS_A_TURN)).scalars().all()

        found = data.read(find)
        if not found:
            return total
        after = found[-1]
        known = sa.select(PRODUCER.producer_id).where(PRODUCER.producer_id.in_(found))
        gone = set(found).difference(home.read(lambda c, q=known: c.execute(q).scalars().all()))  # type: ignore[misc]

        def delete(connection: sa.Connection, gone: Collection[int] = gone) -> None:
            still = sa.select(PRODUCER.producer_id).where(PRODUCER.producer_id.in_(gone), empty).with_for_update()
            delete_producers(connection, connection.execute(still).scalars().all())

        if gone:
            data.transact(delete, fence=fence)
            total += len(gone)


def count_silent_producers(store: Store, settings: ClusterSettings) -> int:
    """Return the number of producers that `expire_producers` would delete completely now."""

    def count(connection: sa.Connection) -> int:
        before_ms = store.clock(connection).wall_ms - settings.producer_id_expiration_ms
        completely = PRODUCER.transactional_id.is_(None) & (PRODUCER.producer_id != _LAST_ID)
        silent = _silent(before_ms, completely=True).where(completely).subquery()
        return connection.execute(sa.select(sa.func.count()).select_from(silent)).scalar_one()

    return store.read(count)


def _silent(before_ms: int, *, completely: bool) -> sa.Select[tuple[int, str | None]]:
    """Select the producers without an append since `before_ms` that have rows to delete: their sequences or, with
    `completely`, their own row.
    """
    recent = sa.exists().where(
        PRODUCER_BATCH.producer_id == PRODUCER.producer_id, PRODUCER_BATCH.appended_ms > before_ms
    )
    has_any = sa.exists().where(PRODUCER_BATCH.producer_id == PRODUCER.producer_id)
    return sa.select(PRODUCER.producer_id, PRODUCER.transactional_id).where(
        PRODUCER.last_used_ms <= before_ms,
        ~recent,
        has_any | (PRODUCER.transactional_id.is_(None) & (PRODUCER.producer_id != _LAST_ID)) if completely else has_any,
        PRODUCER.producer_id.not_in(_open()),
    )


def _open() -> sa.CompoundSelect[tuple[int]]:
    """Select the producers that have an open transaction, or part of one: their next sequences continue the earlier
    ones.
    """
    parts = sa.select(TRANSACTION_PART.producer_id).where(TRANSACTION_PART.state.in_(("open", "prepared")))
    return sa.select(TRANSACTION.producer_id).where(TRANSACTION.state == "Ongoing").union_all(parts)
