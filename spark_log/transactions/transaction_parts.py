"""Executes the calls of transactions that may write to topics of data stores (`part_rules`).

    join               at home: the transaction gets a part in a data store
    register           in the data store, or at home: batches become pending (blobs are in the store, files in the log
                       dirs, no reader sees them)
    prepare            in the data store: the part is closed, and everything in it is forced to disk
    rules.commit       at home: decides, in the transaction of `transaction_store.commit_transaction_hook`
    complete           in each data store: append the batches of the part; at home: note that this is done
    abort              at home, and then in each data store

A coordinator does the last two for producers that are gone (`left_over_parts`). A transaction whose topics are all in
the home store needs none of them but `register`.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence

import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.lease import Fence, unfenced
from spark_log.cluster.store_directory import keep_store
from spark_log.cluster.topics import Topic, topics_of_ids
from spark_log.errors import (
    CrossStoreTransactionError,
    InvalidProducerIdMappingError,
    SparkLogError,
    TransactionCommitPendingError,
    UnknownTopicOrPartitionError,
    redact,
)
from spark_log.failpoints import failpoint
from spark_log.ids import HOME, StoreId
from spark_log.log.append.append_transaction import AppendRequest, check_write_id
from spark_log.log.append.producer_rows import copy_producers, find_transactional_producer
from spark_log.log.append.rules import Batch
from spark_log.log.log import Log
from spark_log.log.segments.segment_rows import delete_blobs, insert_blobs
from spark_log.metadata.prepared import one_message, sent_with_commit
from spark_log.metadata.store import DEFAULT_TIMEOUT_MS, Store
from spark_log.metadata.store_clock import StoreClock
from spark_log.process import in_parallel
from spark_log.transactions import part_rules, rules, transaction_store
from spark_log.transactions.part_rows import lock_part, read_part, save_part, unfinished_commits
from spark_log.transactions.part_rules import Part, PartState
from spark_log.transactions.rules import Parts, ProducerRef, Transaction
from spark_log.transactions.transaction_rows import (
    PendingBatch,
    ask_transaction,
    insert_pending,
    lock_transaction,
    read_pending,
    save_transaction,
)
from spark_log.transactions.transaction_store import delete_files, may_cross

logger = logging.getLogger(__name__)

_AT_ONCE = 8
ABORT_TIMEOUT_MS = 3_000
"""Maximum time that the producer waits for a data store to drop an aborted part: else a coordinator drops it."""


def join(cluster: Cluster, ref: ProducerRef, store_id: StoreId, *, timeout_ms: int = DEFAULT_TIMEOUT_MS) -> int:
    """Give the transaction a part in a data store, and return the number of its parts. Raises the errors of
    `rules.join`, and UnknownTopicOrPartitionError if the store was removed.
    """
    home = cluster.home.store
    across = may_cross(home)

    def body(connection: sa.Connection) -> int:
        now = home.clock(connection)
        before = lock_transaction(connection, now, ref.producer_id)
        keep_store(connection, store_id)
        after = rules.join(before.transaction, ref, store_id, across=across, now_ms=now.wall_ms)
        save_transaction(connection, now, before, after)
        return after.parts.number

    number = home.transact(body, timeout_ms=timeout_ms)
    failpoint("part.joined")
    copy_producers(home, cluster.at(store_id).store, {ref.producer_id})
    return number


def register(
    cluster: Cluster,
    ref: ProducerRef,
    number: int | None,
    batches: Sequence[PendingBatch],
    blobs: Mapping[str, bytes],
    *,
    write_id: str | None = None,
    release_write_id: bool = False,
    again: bool = False,
    durable: bool = False,
    timeout_ms: int = DEFAULT_TIMEOUT_MS,
) -> list[Batch]:
    """Make the batches pending in the home store, or with a `number` in the part of this transaction in a data store.
    The first ones begin the transaction or the part. Return the batches as they are registered.

    With `again`, batches that a call whose answer was lost has registered already remain as they are. The registration
    is forced to disk only if `durable`. The commit is always forced, and fails if a crash of the store has lost a
    pending batch. Raises WriteIdExpiredError, the errors of `part_rules.register` with a `number`, and else those of
    `rules.register`, and of `rules.join` if the transaction has a part in a data store.
    """
    store = cluster.store

    def body(connection: sa.Connection) -> tuple[list[Batch], list[PendingBatch]]:
        if write_id is not None:
            check_write_id(connection, write_id, release=release_write_id)
        now = store.clock(connection)
        if number is None:
            before = lock_transaction(connection, now, ref.producer_id)
            if before.transaction.parts.stores and batches:
                rules.join(before.transaction, ref, HOME, across=may_cross(store))
        else:
            part = lock_part(connection, now, ref.producer_id)
        there: dict[int, Batch] = {}
        if again and (number is None or part.number == number):
            there = {pending.position: pending.batch for pending in read_pending(connection, ref.producer_id)}
        new = [pending for pending in batches if pending.position not in there]
        dropped: list[PendingBatch] = []
        if number is not None:
            dropped = save_part(connection, now, part, part_rules.register(part, number, len(new)))
        with sent_with_commit(connection):
            if number is None:
                save_transaction(connection, now, before, rules.register(before.transaction, ref, len(new)))
            if new:
                insert_pending(connection, ref.producer_id, new)
                inline = [pending.batch.name for pending in new if pending.batch.inline]
                insert_blobs(connection, {name: blobs[name] for name in inline})
        return [there.get(pending.position, pending.batch) for pending in batches], dropped

    registered, dropped = store.transact(body, timeout_ms=timeout_ms, durable=durable)
    failpoint("transaction.registered" if number is None else "part.registered")
    delete_files(cluster, dropped)
    return registered


def prepare(
    log: Log, producer_id: int, number: int, batches: int | None, *, timeout_ms: int = DEFAULT_TIMEOUT_MS
) -> None:
    """Close the part of transaction `number` in the data store of `log`, after a check that its batches can be appended
    now. `batches` is their number; None takes all, for a client whose registrations were forced to disk: batches of
    deleted topics are then dropped at the commit.

    Raises the errors of `part_rules.prepare`, and those of the append.
    """
    store = log.cluster.store
    part, pending, topics = _read(store, producer_id, timeout_ms)
    if part.number != number:
        pending = []
    count = len(pending) if batches is None else batches
    if missing := {batch.topic_id for batch in pending} - topics.keys():
        for topic in log.cluster.home.store.read(lambda connection: topics_of_ids(connection, missing)).values():
            raise CrossStoreTransactionError(
                f"topic {topic.name!r} was moved to another metadata store: abort the transaction, and do it again"
            )
        if batches is not None and part.state is PartState.OPEN:
            raise UnknownTopicOrPartitionError(
                f"a topic of the transaction was deleted: abort it (topic ids {', '.join(map(str, sorted(missing)))})"
            )

    def close(connection: sa.Connection, now: StoreClock) -> bool:
        before = lock_part(connection, now, producer_id)
        after = part_rules.prepare(before, number, count)
        save_part(connection, now, before, after)
        return after is not before

    present = [batch for batch in pending if batch.topic_id in topics]
    request = AppendRequest(present, atomic=True, hooks=[close], commits=True, only_checks=True)
    log.append_whole(request, topics, timeout_ms=timeout_ms)
    failpoint("part.prepared")


def roll_forward(
    log: Log, producer_id: int, number: int, *, fence: Fence = unfenced, timeout_ms: int = DEFAULT_TIMEOUT_MS
) -> None:
    """Append the batches of a part whose transaction home has committed. Batches of deleted topics are dropped. Does
    nothing if that was done before. Raises the errors of `part_rules.roll_forward`, and those of the append.
    """
    store = log.cluster.store
    _, pending, topics = _read(store, producer_id, timeout_ms)
    dropped = [batch.name for batch in pending if batch.topic_id not in topics and batch.inline]

    def commit(connection: sa.Connection, now: StoreClock) -> bool:
        fence(connection)
        before = lock_part(connection, now, producer_id)
        after = part_rules.roll_forward(before, number)
        if after is before:
            return False
        delete_blobs(connection, dropped)
        save_part(connection, now, before, after)
        return True

    present = [batch for batch in pending if batch.topic_id in topics]
    request = AppendRequest(present, atomic=True, hooks=[commit], commits=True)
    try:
        log.append_whole(request, topics, timeout_ms=timeout_ms)
    except UnknownTopicOrPartitionError:  # a topic was deleted meanwhile
        return roll_forward(log, producer_id, number, fence=fence, timeout_ms=timeout_ms)
    failpoint("part.rolled-forward")
    return None


def _read(store: Store, producer_id: int, timeout_ms: int) -> tuple[Part, list[Batch], dict[int, Topic]]:
    def read(connection: sa.Connection) -> tuple[Part, list[Batch], dict[int, Topic]]:
        batches = [each.batch for each in read_pending(connection, producer_id)]
        return read_part(connection, producer_id), batches, topics_of_ids(connection, {b.topic_id for b in batches})

    return store.read(read, timeout_ms=timeout_ms)


def finish(home: Store, producer_id: int, number: int, store_id: StoreId) -> None:
    """Note at home that a data store has appended its part of transaction `number`."""

    def body(connection: sa.Connection) -> None:
        now = home.clock(connection)
        try:
            before = lock_transaction(connection, now, producer_id)
        except InvalidProducerIdMappingError:
            return
        save_transaction(connection, now, before, rules.finish(before.transaction, number, store_id))

    home.transact(body, durable=False)  # if that is lost, it is found out again


def follow(
    log: Log, producer_id: int, number: int, *, fence: Fence = unfenced, timeout_ms: int = DEFAULT_TIMEOUT_MS
) -> None:
    """Roll the part in the data store of `log` forward, and note that at home. Raises the errors of `roll_forward`."""
    roll_forward(log, producer_id, number, fence=fence, timeout_ms=timeout_ms)
    finish(log.cluster.home.store, producer_id, number, log.cluster.store_id)


InEach = Callable[[Collection[StoreId], Callable[[StoreId], None]], Mapping[StoreId, SparkLogError | None]]
"""Calls a function for data stores, at the same time. Returns the error of each store, or None."""


def _in_each(stores: Collection[StoreId], work: Callable[[StoreId], None]) -> dict[StoreId, SparkLogError | None]:
    def call(store_id: StoreId) -> SparkLogError | None:
        try:
            work(store_id)
        except SparkLogError as error:
            return error
        return None

    return dict(zip(stores, in_parallel(call, list(stores), _AT_ONCE, "spark-log-parts"), strict=True))


def complete(
    log: Log, producer_id: int, parts: Parts, *, timeout_ms: int = DEFAULT_TIMEOUT_MS, in_each: InEach = _in_each
) -> None:
    """Roll forward the parts of a transaction that home has committed. Raises TransactionCommitPendingError if a data
    store fails to do so now.
    """
    if parts.stores:
        failpoint("part.decided")
    errors = in_each(
        sorted(parts.stores),
        lambda store_id: follow(log.at(store_id), producer_id, parts.number, timeout_ms=timeout_ms),
    )
    failed = {store_id: error for store_id, error in errors.items() if error is not None}
    for store_id, error in failed.items():
        logger.warning("store %s has not followed a commit yet: %s", store_id, redact(str(error)))
    for error in failed.values():
        raise TransactionCommitPendingError(f"the transaction is committed; not all stores followed: {error}")


def complete_last(
    log: Log, transactional_id: str, *, timeout_ms: int = DEFAULT_TIMEOUT_MS, in_each: InEach = _in_each
) -> None:
    """Complete the last transaction of a transactional id if it is unfinished, as `complete` does."""
    last = find_unfinished(log.cluster.home.store, transactional_id)
    if last is not None:
        complete(log, last.producer_id, last.parts, timeout_ms=timeout_ms, in_each=in_each)


def read_open(home: Store, ref: ProducerRef) -> tuple[list[Batch], Parts]:
    """Return the batches that are pending at home, and the parts of the producer's open transaction. Raises the errors
    of `rules.check`: a fenced producer must not prepare the parts of the next one.
    """

    def read(connection: sa.Connection) -> tuple[list[Batch], Parts]:
        with one_message(connection):
            now = home.ask_clock(connection)
            row = ask_transaction(connection, now, ref.producer_id)
        transaction = row().transaction
        rules.check(transaction, ref)
        parts = transaction.parts if transaction.state is rules.ONGOING else rules.NO_PARTS
        return [each.batch for each in read_pending(connection, ref.producer_id)], parts

    return home.read(read)


def find_unfinished(home: Store, transactional_id: str) -> Transaction | None:
    """Return the last transaction of a transactional id if it is unfinished."""

    def read(connection: sa.Connection) -> Transaction | None:
        producer_id = find_transactional_producer(connection, transactional_id)
        return None if producer_id is None else find_transaction(home, connection, producer_id)

    last = home.read(read)
    return last if last is not None and rules.is_unfinished(last) else None


def abort(cluster: Cluster, ref: ProducerRef, *, timeout_ms: int = DEFAULT_TIMEOUT_MS) -> None:
    """Abort a transaction at home, and then its parts. Raises the errors of `rules.abort`."""
    abort_parts(cluster, ref.producer_id, transaction_store.abort(cluster, ref, timeout_ms=timeout_ms))


def abort_parts(cluster: Cluster, producer_id: int, parts: Parts, *, in_each: InEach = _in_each) -> None:
    """Drop the parts of a transaction that home has aborted. A store that does not answer is left to a coordinator."""
    errors = in_each(
        sorted(parts.stores),
        lambda store_id: abort_part(cluster.at(store_id), producer_id, parts.number, timeout_ms=ABORT_TIMEOUT_MS),
    )
    for store_id, error in errors.items():
        if error is not None:
            logger.info("store %s: a part is left to the coordinator: %s", store_id, redact(str(error)))


def abort_part(
    data: Cluster, producer_id: int, number: int, *, fence: Fence = unfenced, timeout_ms: int = DEFAULT_TIMEOUT_MS
) -> None:
    """Drop the part of a transaction that home has not committed, and will not."""

    def body(connection: sa.Connection) -> list[PendingBatch]:
        now = data.store.clock(connection)
        before = lock_part(connection, now, producer_id)
        return save_part(connection, now, before, part_rules.abort(before, number))

    delete_files(data, data.store.transact(body, fence=fence, timeout_ms=timeout_ms))


def find_unfollowed(home: Store, connection: sa.Connection, store_id: StoreId) -> dict[int, Transaction | None]:
    """Return the committed transactions whose part this data store has not appended, by producer id."""
    return {key: find_transaction(home, connection, key) for key in unfinished_commits(connection, store_id)}


def find_transaction(home: Store, connection: sa.Connection, producer_id: int) -> Transaction | None:
    """Return the transaction of a producer id at home, or None if the id has expired."""
    try:
        return ask_transaction(connection, lambda: home.clock(connection), producer_id)().transaction
    except InvalidProducerIdMappingError:
        return None
