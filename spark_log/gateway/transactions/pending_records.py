"""Stores pending records of the transactions of Kafka clients, and commits them."""

from collections.abc import Mapping, Sequence

import sqlalchemy as sa

from spark_log.cluster.topics import Topic, topics_of_ids
from spark_log.errors import (
    CrossStoreTransactionError,
    TopicMovedError,
    TransactionAbortableError,
    UnknownTopicOrPartitionError,
)
from spark_log.failpoints import failpoint
from spark_log.groups.pending_offsets import read_pending_offsets
from spark_log.groups.transacted_offsets import Commits, Committer, commit_offsets_hook
from spark_log.log.append.rules import (
    Appended,
    Rejected,
)
from spark_log.log.log import Log, Records, not_stored
from spark_log.transactions import wire_transactions
from spark_log.transactions.fencing_rules import FencingToken
from spark_log.transactions.transaction_commit import TransactionCommit
from spark_log.transactions.wire_transactions import Registration, WireProducer


def elsewhere_error(topic: str) -> CrossStoreTransactionError:
    """Return the error of a transaction that would write to a topic of a data store."""
    return CrossStoreTransactionError(f"topic {topic!r}: a transaction writes to topics of the home store only")


def register_records(
    log: Log, items: Sequence[tuple[str, Topic, Records]], *, provisional: bool, timeout_ms: int
) -> list[Appended | Rejected]:
    """Store records of transactions, and make them pending. Each item has its transactional id; all have sequences.

    If `provisional`, outcomes have the offsets that the records would have if they were committed now, instead of -1.
    """
    written, refused = log.write_each([(topic, records) for _, topic, records in items], timeout_ms=timeout_ms)
    topics: Mapping[int, Topic] = {topic.topic_id: topic for _, topic, _ in items}
    rows: dict[WireProducer, list[int]] = {}
    for row, (name, _, records) in enumerate(item for number, item in enumerate(items) if number not in refused):
        sequence = records.sequence
        assert sequence is not None
        rows.setdefault(WireProducer(name, sequence.producer_id, sequence.producer_epoch), []).append(row)
    registrations = [Registration(producer, [written.batches[row] for row in here]) for producer, here in rows.items()]
    with log.naming(written, topics) as unnamed:
        registered = wire_transactions.register(
            log.cluster.store,
            registrations,
            written.blobs,
            write_id=written.write_id,
            provisional=provisional,
            timeout_ms=timeout_ms,
        )
        outcomes = {
            row: outcome
            for here, several in zip(rows.values(), registered, strict=True)
            for row, outcome in zip(here, several, strict=True)
        }
        in_order = [outcomes[row] for row in range(len(written.batches))]
        unnamed += not_stored(written.batches, in_order)
    rest = iter(in_order)
    return [refused[number] if number in refused else next(rest) for number in range(len(items))]


def commit(log: Log, producer: WireProducer, token: FencingToken, *, timeout_ms: int) -> None:
    """Append the pending batches of the open transaction and commit its offsets, all in one SQL transaction.

    Does nothing if the same commit was done before. Batches of deleted topics are dropped, as in Kafka. Raises the
    errors of `rules.has_ended`, FencedConnectionError, and the error of a partition that cannot be appended to now,
    after which the transaction is still open.
    """
    store = log.cluster.store
    pending = wire_transactions.read_open(store, producer, token, timeout_ms=timeout_ms)
    if pending is None:
        return

    def read(connection: sa.Connection) -> tuple[Mapping[Committer, Commits], dict[int, Topic]]:
        offsets = read_pending_offsets(connection, producer.producer_id)
        return offsets, topics_of_ids(connection, {batch.topic_id for batch in pending})

    offsets, topics = store.read(read, timeout_ms=timeout_ms)
    batches = [batch for batch in pending if batch.topic_id in topics]
    dropped = [batch for batch in pending if batch.topic_id not in topics]
    transaction = TransactionCommit(
        producer.ref, batches, dropped=dropped, token=token, after=[commit_offsets_hook(store, offsets)]
    )
    try:
        log.append_whole(transaction.request(), topics, timeout_ms=timeout_ms)
    except TopicMovedError as error:  # its records are pending here: they have to be sent again
        raise TransactionAbortableError(str(error)) from error
    except UnknownTopicOrPartitionError:  # a topic was deleted meanwhile
        return commit(log, producer, token, timeout_ms=timeout_ms)
    failpoint("transaction.committed")
    return None
