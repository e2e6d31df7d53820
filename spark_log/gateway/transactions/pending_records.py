"""Stores pending records of the transactions of Kafka clients, and commits them."""

from collections.abc import Mapping, Sequence
from functools import partial

import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.topics import Topic, topics_of_ids
from spark_log.errors import (
    CrossStoreTransactionError,
    SparkLogError,
    TopicMovedError,
    UnknownTopicOrPartitionError,
)
from spark_log.failpoints import failpoint
from spark_log.gateway.topic_stores import TopicStores
from spark_log.groups.pending_offsets import read_pending_offsets
from spark_log.groups.transacted_offsets import Commits, Committer, commit_offsets_hook
from spark_log.ids import HOME, StoreId
from spark_log.log.append.producer_rows import copy_missing_producers
from spark_log.log.append.rules import (
    Appended,
    Rejected,
)
from spark_log.log.log import Log, Records, not_stored
from spark_log.transactions import transaction_parts, wire_transactions
from spark_log.transactions.fencing_rules import FencingToken
from spark_log.transactions.transaction_store import TransactionCommit
from spark_log.transactions.wire_transactions import Registration, WireProducer

_ATTEMPTS = 10
"""How often a commit looks at the topics again because one was deleted meanwhile."""


class _TopicDeletedError(Exception):
    """A topic of a commit was deleted meanwhile."""


def register_records(
    log: Log, items: Sequence[tuple[str, Topic, Records]], *, provisional: bool, timeout_ms: int
) -> list[Appended | Rejected]:
    """Store records of transactions, and make them pending. Each item has a transactional id, a topic, and records with
    a sequence. All topics are in one store.

    If `provisional`, outcomes have the offsets that the records would have if they were committed now, instead of -1.
    """
    log = log.at(items[0][1].store_id)
    written, refused = log.write_each([(topic, records) for _, topic, records in items], timeout_ms=timeout_ms)
    topics: Mapping[int, Topic] = {topic.topic_id: topic for _, topic, _ in items}
    rows: dict[WireProducer, list[int]] = {}
    for row, (name, _, records) in enumerate(item for number, item in enumerate(items) if number not in refused):
        sequence = records.sequence
        assert sequence is not None
        rows.setdefault(WireProducer(name, sequence.producer_id, sequence.producer_epoch), []).append(row)
    with log.naming(written, topics) as unnamed:
        numbers = _join(log, list(rows), timeout_ms)
        outcomes: dict[int, Appended | Rejected] = {}
        registrations: list[Registration] = []
        for producer, here in rows.items():
            number = numbers[producer]
            if isinstance(number, SparkLogError):
                outcomes |= dict.fromkeys(here, Rejected(number))
            else:
                registrations.append(Registration(producer, [written.batches[row] for row in here], number))
        registered = wire_transactions.register(
            log.cluster.store,
            registrations,
            written.blobs,
            write_id=written.write_id,
            provisional=provisional,
            timeout_ms=timeout_ms,
        )
        for registration, several in zip(registrations, registered, strict=True):
            outcomes |= zip(rows[registration.producer], several, strict=True)
        in_order = [outcomes[row] for row in range(len(written.batches))]
        unnamed += not_stored(written.batches, in_order)
    rest = iter(in_order)
    return [refused[number] if number in refused else next(rest) for number in range(len(items))]


def _join(
    log: Log, producers: list[WireProducer], timeout_ms: int
) -> Mapping[WireProducer, int | SparkLogError | None]:
    """Give the open transactions a part in the data store of the log, and return the numbers of these parts, or errors.
    Return None for each transaction if the log is that of the home store.
    """
    cluster = log.cluster
    if cluster.store_id == HOME:
        return dict.fromkeys(producers)
    home = cluster.home.store
    numbers = wire_transactions.join(home, producers, cluster.store_id, timeout_ms=timeout_ms)
    copy_missing_producers(home, cluster.store, {producer.producer_id for producer in producers})
    return numbers


def commit(log: Log, stores: TopicStores, producer: WireProducer, token: FencingToken, *, timeout_ms: int) -> None:
    """Prepare the parts of the open transaction in data stores. Then append its pending batches and commit its offsets,
    all in one SQL transaction of the home store. Then commit the parts.

    If the same commit was done before, only its parts are completed. Batches of deleted topics are dropped, as in
    Kafka. Raises the errors of `rules.has_ended`, FencedConnectionError, and the error of a partition that cannot be
    appended to now. After these the transaction is still open; after TransactionCommitPendingError it is committed.
    """
    for attempts_left in reversed(range(_ATTEMPTS)):
        try:
            return _commit(log, stores, producer, token, timeout_ms=timeout_ms)
        except _TopicDeletedError as error:
            if not attempts_left:
                raise UnknownTopicOrPartitionError(str(error)) from error


def _commit(log: Log, stores: TopicStores, producer: WireProducer, token: FencingToken, *, timeout_ms: int) -> None:
    """Try `commit` once. Raises _TopicDeletedError if a topic was deleted after the topics were read."""
    store = log.cluster.store
    opened = wire_transactions.read_open(store, producer, token, timeout_ms=timeout_ms)
    pending, producer_id, parts = opened.batches, producer.producer_id, opened.parts
    complete = partial(
        transaction_parts.complete, log, producer_id, parts, timeout_ms=timeout_ms, in_each=stores.change_each
    )
    if pending is None:
        return complete()

    def prepare(store_id: StoreId) -> None:
        transaction_parts.prepare(log.at(store_id), producer_id, parts.number, None, timeout_ms=timeout_ms)

    for error in filter(None, stores.change_each(parts.stores, prepare).values()):
        raise error

    def read(connection: sa.Connection) -> tuple[Mapping[Committer, Commits], dict[int, Topic]]:
        offsets = read_pending_offsets(connection, producer_id)
        return offsets, topics_of_ids(connection, {batch.topic_id for batch in pending})

    offsets, topics = store.read(read, timeout_ms=timeout_ms)
    batches = [batch for batch in pending if batch.topic_id in topics]
    dropped = [batch for batch in pending if batch.topic_id not in topics]
    transaction = TransactionCommit(
        producer.ref,
        batches,
        dropped=dropped,
        token=token,
        after=[commit_offsets_hook(store, offsets)],
        parts=parts,
    )
    try:
        log.append_whole(transaction.request(), topics, timeout_ms=timeout_ms)
    except TopicMovedError as error:  # the topic's records are pending here, and have to be sent again
        raise CrossStoreTransactionError(str(error)) from error
    except UnknownTopicOrPartitionError as error:
        raise _TopicDeletedError(str(error)) from error
    failpoint("transaction.committed")
    return complete()


def abort(
    cluster: Cluster, stores: TopicStores, producer: WireProducer, token: FencingToken, *, timeout_ms: int
) -> None:
    """Abort the open transaction at home, and then its parts. Raises the errors of `wire_transactions.abort`."""
    parts = wire_transactions.abort(cluster, producer, token, timeout_ms=timeout_ms)
    transaction_parts.abort_parts(cluster, producer.producer_id, parts, in_each=stores.change_each)
