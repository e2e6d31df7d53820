"""Executes calls of transactions in the metadata store: read under lock, decide (`transactions.rules`), write.

    init_producer              give a transactional producer its id and epoch; fence earlier producers of the same id
    TransactionCommit          the append of the pending batches, which ends the transaction (`commit_transaction_hook`)
    abort                      drop the pending batches

A commit appends all pending batches in one append transaction, which also commits the group offsets. So readers see
all records of the transaction or none.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.topics import topics_of_ids
from spark_log.errors import InvalidTransactionTimeoutError, SparkLogError
from spark_log.failpoints import failpoint
from spark_log.log.append import failed_append_files
from spark_log.log.append.append_transaction import AppendRequest, CommitHook
from spark_log.log.append.producer_rows import (
    begin_epoch,
    insert_transactional_producer,
    lock_transactional_producer,
    release_transactional_id,
)
from spark_log.log.append.rules import Batch
from spark_log.log.segments.segment_rows import delete_blobs
from spark_log.metadata.prepared import in_list, one_message, sent_with_commit
from spark_log.metadata.sql_columns import SEGMENT
from spark_log.metadata.store import DEFAULT_TIMEOUT_MS, Store
from spark_log.metadata.store_clock import StoreClock
from spark_log.transactions import fencing_rules, rules
from spark_log.transactions.fencing_rules import FencingToken, Role
from spark_log.transactions.rules import EPOCH_MAX, NO_PARTS, ONGOING, Parts, ProducerRef
from spark_log.transactions.transaction_rows import (
    PendingBatch,
    ask_transaction,
    delete_transactions,
    insert_empty_transaction,
    lock_transaction,
    read_pending,
    save_transaction,
)

logger = logging.getLogger(__name__)


class Initialized(NamedTuple):
    """A producer that may begin a transaction, the fencing token of its connection, and the parts of the transaction
    that was open before, which the caller drops.
    """

    ref: ProducerRef
    token: FencingToken
    aborted: Parts


def init_producer(
    cluster: Cluster,
    transactional_id: str,
    transaction_timeout_ms: int,
    *,
    producer: ProducerRef | None = None,
    timeout_ms: int = DEFAULT_TIMEOUT_MS,
) -> Initialized:
    """Return a producer id and a new epoch for the transactional id, and a fencing token.

    Earlier producers with the id are fenced, and their open transaction is aborted; `transaction_parts.abort_parts`
    drops its parts. With `producer`, the caller must be this producer, which continues with the new epoch
    (`rules.bump`); an unknown transactional id is created all the same. If the epoch would be above EPOCH_MAX, the
    transactional id gets another producer id.

    Raises InvalidTransactionTimeoutError unless the timeout is above 0 and at most transaction.max.timeout.ms, and
    TransactionCommitPendingError if the last transaction is unfinished (`transaction_parts.complete_last`). With
    `producer`, raises InvalidProducerIdMappingError and ProducerFencedError.
    """
    store = cluster.store
    limit = store.settings.transaction_max_timeout_ms
    if transaction_timeout_ms > limit:
        raise InvalidTransactionTimeoutError(
            f"transaction_timeout_ms={transaction_timeout_ms} is above transaction.max.timeout.ms ({limit})"
        )
    if transaction_timeout_ms <= 0:
        raise InvalidTransactionTimeoutError(f"transaction_timeout_ms={transaction_timeout_ms} is not above 0")

    def initialize(connection: sa.Connection) -> tuple[Initialized, list[PendingBatch]]:
        now = store.clock(connection)
        producer_id = lock_transactional_producer(connection, transactional_id)
        if producer_id is None:
            producer_id = insert_transactional_producer(connection, transactional_id, transaction_timeout_ms, now)
            insert_empty_transaction(connection, producer_id)
        before = lock_transaction(connection, now, producer_id)
        if producer is None or before.transaction.epoch < 0:  # a new row: a client whose id has expired begins again
            after = rules.initialize(before.transaction)
        else:
            after = rules.bump(before.transaction, producer)
        ends = before.transaction.state is ONGOING and after.state is not ONGOING
        aborted = before.transaction.parts if ends else NO_PARTS
        dropped = read_pending(connection, producer_id) if ends else []
        after, token = fencing_rules.take(after, Role.COORDINATOR)
        save_transaction(connection, now, before, after)
        if after.epoch > EPOCH_MAX:
            release_transactional_id(connection, producer_id)
            delete_transactions(connection, [producer_id])
            aborted = NO_PARTS  # of the other producer id: a coordinator drops them
            producer_id = insert_transactional_producer(connection, transactional_id, transaction_timeout_ms, now)
            insert_empty_transaction(connection, producer_id)
            before = lock_transaction(connection, now, producer_id)
            after, token = fencing_rules.take(rules.initialize(before.transaction), Role.COORDINATOR)
            save_transaction(connection, now, before, after)
        begin_epoch(connection, producer_id, after.epoch, transaction_timeout_ms, now)
        return Initialized(ProducerRef(producer_id, after.epoch), token, aborted), dropped

    found, dropped = store.transact(initialize, timeout_ms=timeout_ms, announce=True)
    failpoint("transaction.initialized")
    delete_files(cluster, dropped)
    return found


def check(store: Store, connection: sa.Connection, ref: ProducerRef) -> None:
    """Raise the errors of `transactions.rules.begin` unless the transaction can continue or begin."""
    with one_message(connection):
        now = store.ask_clock(connection)
        found = ask_transaction(connection, now, ref.producer_id)
    rules.begin(found().transaction, ref)


def may_cross(store: Store) -> bool:
    """Whether a transaction may write to topics of several stores (transaction.cross.store)."""
    return store.settings.transaction_cross_store == "allow"


def commit_transaction_hook(
    ref: ProducerRef,
    batches: int,
    dropped: Sequence[Batch] = (),
    token: FencingToken | None = None,
    parts: Parts = NO_PARTS,
) -> CommitHook:
    """Return the hook with which the append transaction commits the producer's transaction. This must have `batches`
    pending batches, including the `dropped` ones, whose topics were deleted, and these `parts`. With the `token` of a
    Kafka client the commit keeps the epoch.
    """

    def end(connection: sa.Connection, now: StoreClock) -> bool:
        before = lock_transaction(connection, now, ref.producer_id)
        if token is not None:
            fencing_rules.check(before.transaction, token)
        after = rules.commit(before.transaction, ref, batches, parts, keeps_epoch=token is not None)
        if dropped:
            delete_blobs(connection, [batch.name for batch in dropped if batch.inline])
        with sent_with_commit(connection):
            save_transaction(connection, now, before, after, keep_blobs=True)
        return after is not before.transaction

    return end


@dataclass(frozen=True)
class TransactionCommit:
    """The transaction that a call of commit ends.

    `batches` are all its batches in the home store, in order, except the `dropped` ones, whose topics were deleted.
    `blobs` has the bytes of batches that are not registered: the commit stores them. `token` is the fencing token of a
    Kafka client's connection. `parts` are the prepared parts in data stores. The hooks `before` and `after` run in the
    SQL transaction, before and after the producer's transaction ends in it; one commits the offsets of groups. With
    `durable=False` the commit is not forced to disk.
    """

    ref: ProducerRef
    batches: Sequence[Batch]
    blobs: Mapping[str, bytes] = field(default_factory=dict)
    dropped: Sequence[Batch] = ()
    token: FencingToken | None = None
    before: Sequence[CommitHook] = ()
    after: Sequence[CommitHook] = ()
    durable: bool = True
    parts: Parts = NO_PARTS

    def request(self) -> AppendRequest:
        """Return the request for `Log.append_whole`. Its hooks raise the errors of `transactions.rules.commit`,
        FencedConnectionError, and the errors of `before` and `after`.
        """
        registered = len(self.batches) - len(self.blobs) + len(self.dropped)
        end = commit_transaction_hook(self.ref, registered, self.dropped, self.token, self.parts)
        hooks = [*self.before, end, *self.after]
        return AppendRequest(self.batches, self.blobs, atomic=True, hooks=hooks, durable=self.durable, commits=True)


def abort(cluster: Cluster, ref: ProducerRef, *, timeout_ms: int = DEFAULT_TIMEOUT_MS) -> Parts:
    """Abort a transaction: drop the rows and files of its pending batches. Return the parts, which
    `transaction_parts.abort_parts` drops. Raises the errors of `transactions.rules.abort`.
    """

    def body(connection: sa.Connection) -> tuple[list[PendingBatch], Parts]:
        now = cluster.store.clock(connection)
        before = lock_transaction(connection, now, ref.producer_id)
        after = rules.abort(before.transaction, ref)
        dropped = read_pending(connection, ref.producer_id)
        save_transaction(connection, now, before, after)
        return dropped, before.transaction.parts

    dropped, parts = cluster.store.transact(body, timeout_ms=timeout_ms, announce=True)
    failpoint("transaction.aborted")
    delete_files(cluster, dropped)
    return parts


def find_offsets(store: Store, batches: Sequence[Batch]) -> dict[str, int]:
    """Return base offsets by name, of the batches that are still separate segments (not merged into others)."""
    names = in_list(SEGMENT.name, [batch.name for batch in batches])
    query = sa.select(SEGMENT.name, SEGMENT.base_offset).where(names)
    return store.read(lambda connection: {row.name: row.base_offset for row in connection.execute(query)})


def delete_files(cluster: Cluster, dropped: Sequence[PendingBatch]) -> None:
    """Delete the files of dropped batches (`failed_append_files.delete_files`)."""
    files = [each.batch for each in dropped if not each.batch.inline]
    if not files:
        return
    try:
        topics = cluster.store.read(lambda connection: topics_of_ids(connection, {batch.topic_id for batch in files}))
    except SparkLogError as error:
        logger.info("files of an aborted transaction are left to the clean-up: %s", error)
        return
    failed_append_files.delete_files(cluster, topics, [batch for batch in files if batch.topic_id in topics])
