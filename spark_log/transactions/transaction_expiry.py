"""Aborts transactions that are open for too long, and deletes transactional ids that are not used any more."""

from collections.abc import Collection, Iterator
from functools import partial

import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.lease import Fence, unfenced
from spark_log.config import ClusterSettings
from spark_log.errors import InvalidProducerIdMappingError
from spark_log.errors.first_failure import FirstFailure
from spark_log.log.append.producer_rows import (
    delete_producer_batches,
    delete_producers,
    forget_owners,
    last_producer_id,
    release_transactional_id,
)
from spark_log.metadata import tables as t
from spark_log.metadata.connections.server_identity import check_identity, problem_of
from spark_log.metadata.prepared import in_list
from spark_log.metadata.sql_columns import PRODUCER, TRANSACTION
from spark_log.metadata.store import Store
from spark_log.transactions import rules
from spark_log.transactions.part_rows import delete_parts, expired_parts
from spark_log.transactions.rules import ONGOING
from spark_log.transactions.transaction_rows import (
    PendingBatch,
    delete_transactions,
    lock_transaction,
    read_pending,
    save_transaction,
)
from spark_log.transactions.transaction_store import delete_files

_IDS_A_TURN = 1_000


def abort_timed_out(cluster: Cluster, fence: Fence = unfenced) -> Iterator[str]:
    """Abort transactions that have been open for longer than their transaction.timeout.ms. Yield the transactional id
    of each one when it is aborted. Their files are deleted at the end, so that no log dir delays another abort. One
    that fails does not stop the others; the first error is raised at the end.
    """
    store = cluster.store
    dropped: list[PendingBatch] = []
    try:
        with FirstFailure() as failure:
            for producer_id, transactional_id in timed_out(store):
                batches = None
                with failure.attempt():
                    batches = store.transact(partial(_time_out, store, producer_id), fence=fence, announce=True)
                if batches is not None:
                    dropped += batches
                    yield transactional_id
    finally:
        delete_files(cluster, dropped)


def timed_out(store: Store) -> list[tuple[int, str]]:
    """Return producer ids and transactional ids of the transactions that `abort_timed_out` would abort now."""

    def late(connection: sa.Connection) -> list[tuple[int, str]]:
        now = store.clock(connection)
        ongoing = (
            sa.select(PRODUCER.producer_id, PRODUCER.transactional_id, TRANSACTION.until_ms, TRANSACTION.clock_epoch)
            .join(t.transaction, TRANSACTION.producer_id == PRODUCER.producer_id)
            .where(TRANSACTION.state == ONGOING.value)
            .order_by(PRODUCER.producer_id)
        )
        return [
            (key, name or f"producer {key}")
            for key, name, until_ms, clock_epoch in connection.execute(ongoing)
            if now.expired(until_ms, clock_epoch)
        ]

    return store.read(late)


def _time_out(store: Store, producer_id: int, connection: sa.Connection) -> list[PendingBatch] | None:
    """Abort the transaction if it has timed out, and return its pending batches. Otherwise return None.

    One with parts stays open while the store is not the recorded one: a restored home store may not know its commit.
    """
    now = store.clock(connection)
    try:
        before = lock_transaction(connection, now, producer_id)
    except InvalidProducerIdMappingError:
        return None
    after = rules.time_out(before.transaction)
    if after is before.transaction or (before.transaction.parts.stores and problem_of(connection)):
        return None
    dropped = read_pending(connection, producer_id)
    save_transaction(connection, now, before, after)
    return dropped


def expire_ids(store: Store, settings: ClusterSettings | None = None, fence: Fence = unfenced) -> int:
    """Delete the transactional ids that were not used for transactional.id.expiration.ms. Return their number."""
    expiration_ms = (settings or store.settings).transactional_id_expiration_ms

    def expire(connection: sa.Connection) -> int:
        before_ms = store.clock(connection).wall_ms - expiration_ms
        idle = _idle_ids(before_ms).order_by(PRODUCER.producer_id).limit(_IDS_A_TURN).with_for_update(of=t.producer)
        # checked again under the lock: a transaction may have begun while this one waited for the lock
        locked = connection.execute(idle).scalars().all()
        still = sa.select(TRANSACTION.producer_id).where(
            TRANSACTION.producer_id.in_(locked), TRANSACTION.state != ONGOING.value
        )
        over = still.where(TRANSACTION.began_ms <= before_ms, TRANSACTION.part_stores == "")
        gone = connection.execute(over).scalars().all()
        delete_transactions(connection, gone)
        delete_producer_batches(connection, gone)
        last_id = last_producer_id(connection)
        if last_id in gone:  # its row shows what ids were assigned (`register_again`)
            release_transactional_id(connection, last_id)
            forget_owners(connection, [last_id])
        delete_producers(connection, set(gone) - {last_id})
        return len(gone)

    total = 0
    while gone := store.transact(expire, fence=fence):
        total += gone
    return total


def expire_parts(data: Cluster, settings: ClusterSettings | None = None, fence: Fence = unfenced) -> int:
    """Delete what a data store has of transactional ids that home has deleted. Return their number."""
    store, home = data.store, data.home.store
    expiration_ms = (settings or home.settings).transactional_id_expiration_ms
    ids = store.read(lambda connection: expired_parts(connection, store.clock(connection).wall_ms - expiration_ms))
    if not ids:
        return 0

    def known(connection: sa.Connection) -> set[int]:
        check_identity(connection)
        return set(
            connection.execute(sa.select(PRODUCER.producer_id).where(in_list(PRODUCER.producer_id, ids))).scalars()
        )

    gone = sorted(set(ids) - home.read_as_primary(known))

    def delete(portion: Collection[int], connection: sa.Connection) -> None:
        delete_parts(connection, portion)
        delete_producer_batches(connection, portion)
        delete_producers(connection, portion)

    for first in range(0, len(gone), _IDS_A_TURN):
        store.transact(partial(delete, gone[first : first + _IDS_A_TURN]), fence=fence)
    return len(gone)


def count_expired_ids(store: Store, settings: ClusterSettings) -> int:
    """Return the number of transactional ids that `expire_ids` would delete now."""

    def count(connection: sa.Connection) -> int:
        before_ms = store.clock(connection).wall_ms - settings.transactional_id_expiration_ms
        return connection.execute(sa.select(sa.func.count()).select_from(_idle_ids(before_ms).subquery())).scalar_one()

    return store.read(count)


def _idle_ids(before_ms: int) -> sa.Select[tuple[int]]:
    return (
        sa.select(PRODUCER.producer_id)
        .join(t.transaction, TRANSACTION.producer_id == PRODUCER.producer_id)
        .where(
            PRODUCER.last_used_ms <= before_ms,
            TRANSACTION.began_ms <= before_ms,
            TRANSACTION.state != ONGOING.value,
            TRANSACTION.part_stores == "",  # else it is committed, and a data store has not followed yet
        )
    )
