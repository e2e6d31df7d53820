"""Ends the parts that transactions have left in data stores: those of producers that are gone, and those about which a
store that was restored knows less than the others.
"""

import logging
from collections.abc import Collection
from typing import NamedTuple

import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.lease import Fence, unfenced
from spark_log.errors import StoreChangedError
from spark_log.ids import StoreId
from spark_log.log.append.producer_rows import copy_producers, transactional_id_of
from spark_log.log.log import Log
from spark_log.metadata.connections.server_identity import check_identity
from spark_log.metadata.store import Attempt, Store
from spark_log.transactions import part_rules, rules
from spark_log.transactions.part_rows import read_part, read_parts, unfinished_commits, unfinished_parts
from spark_log.transactions.part_rules import Part, PartState, Resolution
from spark_log.transactions.rules import Parts, Transaction
from spark_log.transactions.transaction_parts import abort_part, find_transaction, finish, follow
from spark_log.transactions.transaction_rows import insert_empty_transaction, lock_transaction, save_transaction

logger = logging.getLogger(__name__)


class Unresolved(NamedTuple):
    """A part in a data store whose transaction has ended at home, and whose producer has not ended it there."""

    name: str
    producer_id: int
    number: int
    committed: bool


def find_unresolved(data: Cluster) -> list[Unresolved]:
    """Return the parts that `resolve` would end now. Raises StoreChangedError if one is to be aborted whose transaction
    another data store has committed: the home store was restored, and `learn_commits` comes first.
    """
    home = data.home.store
    parts = {part.producer_id: part for part in _unfinished_parts(data)}  # before their transactions
    unresolved = []
    for producer_id, transaction in _transactions(home, data.store_id, parts).items():
        part = parts.get(producer_id)
        name = transaction.transactional_id if transaction is not None else f"producer {producer_id}"
        resolution = Resolution.WAIT if part is None else part_rules.resolve(transaction, data.store_id, part)
        if part is not None and resolution is not Resolution.WAIT:
            committed = resolution is Resolution.ROLL_FORWARD
            if not committed and part.state is PartState.PREPARED:
                _check_not_committed(data, part, name)
            unresolved.append(Unresolved(name, producer_id, part.number, committed))
        elif transaction is not None and rules.is_unfinished(transaction):
            unresolved.append(Unresolved(name, producer_id, transaction.parts.number, committed=True))
    return unresolved


def _check_not_committed(data: Cluster, part: Part, name: str) -> None:
    for store_id in data.home.store_ids()[1:]:
        store = data.home.at(store_id).store
        other = store.read_as_primary(lambda connection: (read_part(connection, part.producer_id),))[0]
        if other.state is PartState.COMMITTED and other.number == part.number:
            raise StoreChangedError(
                f"a transaction of {name} is committed in store {store_id}, and the home store does not know that: it"
                " was restored from an older copy. See `spark-log store status`, then run `spark-log store accept`"
            )


def _unfinished_parts(data: Cluster) -> list[Part]:
    """Return the open and the prepared parts of a data store. Raises StoreChangedError if the store was restored and is
    not accepted yet: `finish_lost_parts` comes first.
    """
    parts = data.store.read(unfinished_parts)
    if not parts:
        return []

    def read(connection: sa.Connection) -> list[Part]:
        check_identity(connection)
        return unfinished_parts(connection)

    return data.store.read_as_primary(read)


def finish_lost_parts(data: Cluster) -> None:
    """Note as done the commits whose part this data store, which was restored, lacks: their records are lost."""
    home = data.home.store

    def committed(connection: sa.Connection) -> dict[int, Transaction | None]:
        return {key: find_transaction(home, connection, key) for key in unfinished_commits(connection, data.store_id)}

    for producer_id, transaction in home.read(committed).items():
        part = data.store.read(lambda connection, i=producer_id: read_part(connection, i))  # type: ignore[misc]
        if transaction is not None and part_rules.is_lost(part, transaction.parts.number):
            name, number = transaction.transactional_id, transaction.parts.number
            logger.error(
                "store %s has lost its records of a transaction of %s, which is committed", data.store_id, name
            )
            finish(home, producer_id, number, data.store_id)


def learn_commits(home: Cluster) -> None:
    """Commit, in a home store that was restored, the transactions whose part in one data store is committed, and in
    another one only prepared: the home store that was lost had decided that.
    """
    committed: set[tuple[int, int]] = set()
    prepared: dict[tuple[int, int], set[StoreId]] = {}
    for store_id in home.store_ids()[1:]:
        for part in home.at(store_id).store.read_as_primary(read_parts):
            if part.state is PartState.COMMITTED:
                committed.add((part.producer_id, part.number))
            elif part.state is PartState.PREPARED:
                prepared.setdefault((part.producer_id, part.number), set()).add(store_id)
    for producer_id, number in sorted(committed & prepared.keys()):
        _learn_commit(home, producer_id, Parts(number, frozenset(prepared[producer_id, number])))


def _learn_commit(home: Cluster, producer_id: int, parts: Parts) -> None:
    data = home.at(min(parts.stores)).store
    name = data.read(lambda connection: transactional_id_of(connection, producer_id))
    copy_producers(data, home.store, {producer_id})

    def learn(connection: sa.Connection, _attempt: Attempt) -> bool | None:
        if name is None or transactional_id_of(connection, producer_id) != name:
            return None  # the restored home store has given one of the two ids to another producer
        now = home.store.clock(connection)
        insert_empty_transaction(connection, producer_id)
        before = lock_transaction(connection, now, producer_id)
        after = rules.learn_commit(before.transaction, parts)
        save_transaction(connection, now, before, after)
        return after is not before.transaction

    learned = home.store.transact(learn)
    if learned is None:
        logger.error("a transaction of %s is committed in some data stores, and aborted in %s", name, parts.stores)
        for store_id in sorted(parts.stores):
            abort_part(home.at(store_id), producer_id, parts.number)
    elif learned:
        logger.warning("a transaction of %s is committed; what it had in the home store is lost", name)


def _transactions(home: Store, store_id: StoreId, parts: Collection[int]) -> dict[int, Transaction | None]:
    """Return the transactions of these parts, and the committed ones that this data store has not followed yet.

    A part is aborted because home has no open transaction for it, so home must be the recorded store, and the primary.
    """

    def committed(connection: sa.Connection) -> dict[int, Transaction | None]:
        return {key: find_transaction(home, connection, key) for key in unfinished_commits(connection, store_id)}

    def read(connection: sa.Connection) -> dict[int, Transaction | None]:
        check_identity(connection)
        return committed(connection) | {key: find_transaction(home, connection, key) for key in parts}

    return home.read_as_primary(read) if parts else home.read(committed)


def resolve(log: Log, part: Unresolved, fence: Fence = unfenced) -> None:
    """End the part in the data store of `log`, as home has decided. Raises the errors of `roll_forward`."""
    if part.committed:
        follow(log, part.producer_id, part.number, fence=fence)
    else:
        abort_part(log.cluster, part.producer_id, part.number, fence=fence)
