"""Ends the parts that transactions have left in data stores: those of producers that are gone, and those about which a
store that was restored knows less than the others.
"""

import logging
from collections.abc import Collection
from typing import NamedTuple

import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.lease import Fence, unfenced
from spark_log.errors import SparkLogError, redact
from spark_log.ids import StoreId
from spark_log.log.append.producer_rows import copy_producers, transactional_id_of
from spark_log.log.log import Log
from spark_log.metadata.connections.server_identity import check_identity
from spark_log.metadata.store import Store
from spark_log.transactions import part_rules, rules
from spark_log.transactions.part_rows import read_part, read_parts, unfinished_parts
from spark_log.transactions.part_rules import Part, PartState, Resolution
from spark_log.transactions.rules import Parts, Transaction
from spark_log.transactions.transaction_parts import abort_part, find_transaction, find_unfollowed, finish, follow
from spark_log.transactions.transaction_rows import insert_empty_transaction, lock_transaction, save_transaction

logger = logging.getLogger(__name__)


class Unresolved(NamedTuple):
    """A part in a data store whose transaction has ended, and whose producer has not ended it there."""

    name: str
    producer_id: int
    number: int
    committed: bool


def find_unresolved(data: Cluster) -> list[Unresolved]:
    """Return the parts that `resolve` would end now. A prepared part that home would abort waits while another data
    store does not answer.
    """
    home = data.home.store
    parts = {part.producer_id: part for part in _unfinished_parts(data)}  # before their transactions
    unresolved: list[Unresolved] = []
    to_abort: list[Unresolved] = []
    for producer_id, transaction in _transactions(home, data.store_id, parts).items():
        part = parts.get(producer_id)
        name = transaction.transactional_id if transaction is not None else f"producer {producer_id}"
        resolution = Resolution.WAIT if part is None else part_rules.resolve(transaction, data.store_id, part)
        if part is not None and resolution is not Resolution.WAIT:
            committed = resolution is Resolution.ROLL_FORWARD
            found = unresolved if committed or part.state is PartState.OPEN else to_abort
            found.append(Unresolved(name, producer_id, part.number, committed))
        elif transaction is not None and rules.is_unfinished(transaction):
            unresolved.append(Unresolved(name, producer_id, transaction.parts.number, committed=True))
    return unresolved + _with_the_decision(data, to_abort)


def _with_the_decision(data: Cluster, to_abort: Collection[Unresolved]) -> list[Unresolved]:
    """Return the prepared parts that home would abort. One is committed instead if another data store has committed its
    transaction: a store was restored, and home had decided that.
    """
    committed: set[tuple[int, int]] = set()
    silent = []
    for store_id in data.home.store_ids()[1:] if to_abort else ():
        if store_id == data.store_id:
            continue
        try:
            others = data.home.at(store_id).store.read_as_primary(
                lambda connection: [read_part(connection, each.producer_id) for each in to_abort]
            )
        except SparkLogError as error:
            logger.warning(
                "store %s: parts of %s transactions are not aborted before store %s answers: %s",
                data.store_id, len(to_abort), store_id, redact(str(error)),
            )  # fmt: skip
            silent.append(store_id)
        else:
            committed |= {(part.producer_id, part.number) for part in others if part.state is PartState.COMMITTED}
    decided = [each._replace(committed=(each.producer_id, each.number) in committed) for each in to_abort]
    return [each for each in decided if each.committed or not silent]


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
    """Mark commits as finished whose part is missing in this restored data store: their records are lost."""
    home = data.home.store
    committed = home.read(lambda connection: find_unfollowed(home, connection, data.store_id))
    for producer_id, transaction in committed.items():
        part = data.store.read(lambda connection, i=producer_id: read_part(connection, i))  # type: ignore[misc]
        if transaction is not None and part_rules.is_lost(part, transaction.parts.number):
            name, number = transaction.transactional_id, transaction.parts.number
            logger.error(
                "store %s has lost its records of a transaction of %s, which is committed", data.store_id, name
            )
            finish(home, producer_id, number, data.store_id)


def learn_commits(home: Cluster) -> None:
    """Commit, in a home store that was restored, the transactions whose part in one data store is committed, and in
    another one only prepared: the home store that was lost had decided that. If home has a later transaction of the
    producer, or has aborted this one itself, the coordinator of the data store commits the part (`find_unresolved`).
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

    def learn(connection: sa.Connection) -> bool:
        if name is None or transactional_id_of(connection, producer_id) != name:
            return False  # the restored home store has given one of the two ids to another producer
        now = home.store.clock(connection)
        insert_empty_transaction(connection, producer_id)
        before = lock_transaction(connection, now, producer_id)
        after = rules.learn_commit(before.transaction, parts)
        save_transaction(connection, now, before, after)
        return after is not before.transaction

    learned = home.store.transact(learn)
    if learned:
        logger.warning("a transaction of %s is committed; what it had in the home store is lost", name)


def _transactions(home: Store, store_id: StoreId, parts: Collection[int]) -> dict[int, Transaction | None]:
    """Return the transactions of these parts, and the committed ones that this data store has not appended yet.

    A part is aborted because home has no open transaction for it, so home must be the recorded store, and the primary.
    """

    def read(connection: sa.Connection) -> dict[int, Transaction | None]:
        committed = find_unfollowed(home, connection, store_id)
        if parts:
            check_identity(connection)
        return committed | {key: find_transaction(home, connection, key) for key in parts}

    return home.read_as_primary(read) if parts else home.read(read)


def resolve(log: Log, part: Unresolved, fence: Fence = unfenced) -> None:
    """End the part in the data store of `log`, as home has decided. Raises the errors of `roll_forward`."""
    if part.committed:
        follow(log, part.producer_id, part.number, fence=fence)
    else:
        abort_part(log.cluster, part.producer_id, part.number, fence=fence)
