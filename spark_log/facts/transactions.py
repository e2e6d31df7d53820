"""Inspects transactions and producers. Reads only, each answer from one snapshot of each store.

A transaction of spark-log's Producer is in the store from its first pending batch on. Without one, or with group
offsets only, it is known to its producer alone until the commit: it is not listed here, and cannot hang. A Kafka
client's transaction is in the store from AddPartitionsToTxn or AddOffsetsToTxn on. The home store has all transactions.
Each data store has the pending batches of its topics; a store that does not answer adds none.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.each_store import ASK_TIMEOUT_MS, ask_stores, store_names
from spark_log.cluster.topics import find_topics
from spark_log.config.values import can_be_stored
from spark_log.errors import InvalidProducerIdMappingError, TransactionalIdNotFoundError, UnknownTopicOrPartitionError
from spark_log.ids import StoreId, TopicPartition
from spark_log.log.append.rules import Batch
from spark_log.metadata import tables as t
from spark_log.metadata.sql_columns import (
    PARTITION,
    PRODUCER,
    PRODUCER_BATCH,
    TRANSACTION,
    TRANSACTION_PART,
    TRANSACTION_SEGMENT,
)
from spark_log.metadata.store import Store
from spark_log.metadata.store_clock import StoreClock
from spark_log.transactions.part_rules import PartState
from spark_log.transactions.rules import COMMITTED, EMPTY, ONGOING, ProducerRef, TransactionState
from spark_log.transactions.transaction_rows import read_all_pending, read_pending

GRACE_MS = 5 * 60 * 1000
"""Added to the largest time-out before a transaction counts as hanging, as in Kafka's tool."""


@dataclass(frozen=True)
class TransactionListing:
    """The current or last transaction of a transactional id."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    state: TransactionState
    timeout_ms: int
    began_ms: int | None
    """When it began, or when the epoch was raised after it began; in ms since 1970 by the store's clock. None if the id
    has had no transaction.
    """
    open_ms: int | None
    """Milliseconds since it began; None if it is not open."""
    overdue: bool
    """Whether it has been open for longer than `timeout_ms`, and is not aborted yet."""
    batches: int
    """Number of pending batches."""
    stores: tuple[str, ...] = ()
    """The data stores with a part of the open transaction; of a committed one, those that have not appended it yet."""
    unfinished: bool = False
    """Whether it is committed, and data stores have not appended their parts yet."""

    @property
    def ref(self) -> ProducerRef:
        return ProducerRef(self.producer_id, self.producer_epoch)


@dataclass(frozen=True)
class PendingRecords:
    """The records of an open transaction in one partition."""

    topic: str
    partition: int
    batches: int
    records: int
    bytes: int


@dataclass(frozen=True)
class TransactionDescription:
    """A transaction with its pending records, by topic and partition, without the records of deleted topics."""

    transaction: TransactionListing
    pending: Sequence[PendingRecords]


@dataclass(frozen=True)
class PartitionProducer:
    """A producer whose sequences the partition remembers, or whose open transaction has records in it.

    After the end of a transaction the partition remembers its producer only if that is a Kafka client: batches of
    spark-log's Producer have no sequences.
    """

    producer_id: int
    producer_epoch: int
    transactional_id: str | None
    last_sequence: int | None
    """None if the producer has no sequence in this partition."""
    last_ms: int
    """The time of its last append, or of the start of its open transaction, in ms since 1970 by the store's clock."""
    transaction_start_offset: int | None
    """The partition's log end offset, where the records of the open transaction would begin if it were committed now.
    The offset is equal for all open transactions of a partition, and increases with every append. None without an open
    transaction."""


def list_transactions(cluster: Cluster, states: Collection[str] = ()) -> list[TransactionListing]:
    """Return the transactions of all transactional ids, by id; with `states`, only those in one of the states."""
    return _listed(cluster, *([TRANSACTION.state.in_(states)] if states else ()))


def describe_open_transactions(cluster: Cluster) -> list[TransactionDescription]:
    """Return the open transactions with their pending records, the longest open ones first."""
    store = cluster.store

    def read(connection: sa.Connection) -> list[TransactionDescription]:
        listings = _listings(connection, store.clock(connection), TRANSACTION.state == ONGOING.value)
        topics = _names(connection) if listings else {}
        pending = read_all_pending(connection) if listings else {}
        listings.sort(key=lambda each: -(each.open_ms or 0))
        return [TransactionDescription(each, _amounts(pending.get(each.producer_id, ()), topics)) for each in listings]

    return _with_parts(cluster, store.read(read))


def find_unfinished(cluster: Cluster) -> list[TransactionListing]:
    """Return the committed transactions with a part that a data store has not appended yet, by transactional id."""
    return _listed(cluster, TRANSACTION.state == COMMITTED.value, TRANSACTION.part_stores != "")


def _listed(cluster: Cluster, *where: sa.ColumnElement[bool]) -> list[TransactionListing]:
    store = cluster.store
    listings = store.read(lambda connection: _listings(connection, store.clock(connection), *where))
    return [each.transaction for each in _with_parts(cluster, [TransactionDescription(each, ()) for each in listings])]


def describe_transactions(cluster: Cluster, transactional_ids: Collection[str]) -> list[TransactionDescription]:
    """Return the transactions of these ids, in this order. Raises TransactionalIdNotFoundError for an unknown id."""
    store = cluster.store

    def read(connection: sa.Connection) -> list[TransactionDescription]:
        wanted = [name for name in transactional_ids if can_be_stored(name)]
        listings = _listings(connection, store.clock(connection), PRODUCER.transactional_id.in_(wanted))
        known = {each.transactional_id: each for each in listings}
        for name in transactional_ids:
            if name not in known:
                raise TransactionalIdNotFoundError(f"transactional id {name!r}: there is no producer with it")
        topics = _names(connection) if any(each.batches for each in listings) else {}
        return [_described(connection, known[name], topics) for name in transactional_ids]

    return _with_parts(cluster, store.read(read))


def describe_producer(cluster: Cluster, producer_id: int) -> TransactionDescription:
    """Return the transaction of a producer id. Raises InvalidProducerIdMappingError if no transactional id has it."""
    store = cluster.store

    def read(connection: sa.Connection) -> TransactionDescription:
        found = _listings(connection, store.clock(connection), PRODUCER.producer_id == producer_id)
        if not found:
            raise InvalidProducerIdMappingError(f"producer {producer_id}: no transactional id has it")
        return _described(connection, found[0], _names(connection))

    return _with_parts(cluster, [store.read(read)])[0]


def find_hanging(cluster: Cluster, timeout_ms_max: int) -> list[TransactionDescription]:
    """Return the hanging transactions (`is_hanging`), the longest open ones first."""
    return [each for each in describe_open_transactions(cluster) if is_hanging(each.transaction, timeout_ms_max)]


def is_hanging(transaction: TransactionListing, timeout_ms_max: int) -> bool:
    """Whether the transaction is open past its own time-out, because no coordinator runs, or, as in Kafka's tool, open
    for at least `timeout_ms_max`, the largest time-out in use, plus five minutes.

    A hanging transaction does not block readers; its pending batches stay in the store.
    """
    if transaction.open_ms is None:
        return False
    return transaction.overdue or transaction.open_ms >= timeout_ms_max + GRACE_MS


def describe_producers(
    store: Store, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, list[PartitionProducer]]:
    """Return the producers of each partition of this store, by producer id. Raises UnknownTopicOrPartitionError."""

    def read(connection: sa.Connection) -> dict[TopicPartition, list[PartitionProducer]]:
        topics = find_topics(connection, {tp.topic for tp in partitions})
        producers = {}
        for tp in partitions:
            topic = topics.get(tp.topic)
            if topic is None or not 0 <= tp.partition < topic.partition_count:
                raise UnknownTopicOrPartitionError(
                    f"topic {tp.topic!r}, partition {tp.partition}: unknown topic or partition"
                )
            here = {each.producer_id: each for each in _appending(connection, topic.topic_id, tp)}
            for each in _transacting(connection, topic.topic_id, tp):
                known = here.get(each.producer_id)
                here[each.producer_id] = replace(each, last_sequence=known.last_sequence if known else None)
            producers[tp] = [here[producer_id] for producer_id in sorted(here)]
        return producers

    return store.read(read)


def _with_parts(cluster: Cluster, described: Sequence[TransactionDescription]) -> list[TransactionDescription]:
    """Add the pending records of data stores, and replace the numbers of stores by names."""
    with_parts = {description.transaction.producer_id for description in described if description.transaction.stores}
    if not with_parts:
        return list(described)
    names = store_names(cluster)

    def pending_there(data: Cluster) -> dict[int, list[PendingRecords]]:
        def read(connection: sa.Connection) -> dict[int, list[PendingRecords]]:
            topics = _names(connection)
            return {
                producer_id: _amounts(batches, topics)
                for producer_id, batches in read_all_pending(connection).items()
                if producer_id in with_parts
            }

        return data.store.read(read, timeout_ms=ASK_TIMEOUT_MS)

    parts = ask_stores(cluster, pending_there, cluster.store_ids()[1:]).results.values()
    complete = []
    for description in described:
        more = [pending for part in parts for pending in part.get(description.transaction.producer_id, ())]
        batches = description.transaction.batches + sum(pending.batches for pending in more)
        pending = sorted([*description.pending, *more], key=lambda here: (here.topic, here.partition))
        stores = tuple(names.get(StoreId(int(number)), number) for number in description.transaction.stores)
        complete.append(
            TransactionDescription(replace(description.transaction, batches=batches, stores=stores), pending)
        )
    return complete


def _listings(connection: sa.Connection, now: StoreClock, *where: sa.ColumnElement[bool]) -> list[TransactionListing]:
    """Return the transactions of the home store. `stores` has numbers, which `_with_parts` replaces by names."""
    pending = (
        sa.select(sa.func.count()).where(TRANSACTION_SEGMENT.producer_id == PRODUCER.producer_id).scalar_subquery()
    )
    query = (
        sa.select(
            PRODUCER.transactional_id, PRODUCER.producer_id, PRODUCER.epoch, TRANSACTION.state,
            PRODUCER.transaction_timeout_ms, TRANSACTION.began_ms,
            TRANSACTION.until_ms, TRANSACTION.clock_epoch, pending.label("batches"), TRANSACTION.part_stores,
        )
        .join(t.transaction, TRANSACTION.producer_id == PRODUCER.producer_id)
        .where(*where)
        .order_by(PRODUCER.transactional_id)
    )  # fmt: skip
    listings = []
    for row in connection.execute(query):
        state = TransactionState(row.state)
        is_open, stores = state is ONGOING, tuple(row.part_stores.split())
        listings.append(
            TransactionListing(
                row.transactional_id, row.producer_id, row.epoch, state, row.transaction_timeout_ms,
                None if state is EMPTY else row.began_ms, max(0, now.wall_ms - row.began_ms) if is_open else None,
                is_open and now.expired(row.until_ms, row.clock_epoch), row.batches, stores,
                state is COMMITTED and bool(stores),
            )
        )  # fmt: skip
    return listings


def _described(
    connection: sa.Connection, transaction: TransactionListing, topics: Mapping[int, str]
) -> TransactionDescription:
    batches = [each.batch for each in read_pending(connection, transaction.producer_id)] if transaction.batches else ()
    return TransactionDescription(transaction, _amounts(batches, topics))


def _amounts(batches: Sequence[Batch], topics: Mapping[int, str]) -> list[PendingRecords]:
    """Sum up the batches by topic and partition, without those of deleted topics."""
    amounts: dict[TopicPartition, list[tuple[int, int]]] = defaultdict(list)
    for batch in batches:
        if batch.topic_id in topics:
            place = TopicPartition(topics[batch.topic_id], batch.partition)
            amounts[place].append((batch.record_count, batch.bytes))
    return [
        PendingRecords(*place, len(sizes), sum(records for records, _ in sizes), sum(size for _, size in sizes))
        for place, sizes in sorted(amounts.items())
    ]


def _appending(connection: sa.Connection, topic_id: int, tp: TopicPartition) -> list[PartitionProducer]:
    query = (
        sa.select(
            PRODUCER_BATCH.producer_id,
            PRODUCER_BATCH.producer_epoch,
            PRODUCER_BATCH.last_sequence,
            PRODUCER_BATCH.appended_ms,
            PRODUCER.transactional_id,
        )
        .outerjoin(t.producer, PRODUCER.producer_id == PRODUCER_BATCH.producer_id)
        .where(PRODUCER_BATCH.topic_id == topic_id, PRODUCER_BATCH.partition == tp.partition)
        .order_by(
            PRODUCER_BATCH.producer_id,
            PRODUCER_BATCH.producer_epoch,
            PRODUCER_BATCH.base_offset,
            PRODUCER_BATCH.end_offset,
        )
    )
    last = {row.producer_id: row for row in connection.execute(query)}
    return [
        PartitionProducer(
            row.producer_id, row.producer_epoch, row.transactional_id, row.last_sequence, row.appended_ms, None
        )
        for row in last.values()
    ]


def _transacting(connection: sa.Connection, topic_id: int, tp: TopicPartition) -> list[PartitionProducer]:
    """Return the producers with pending records in the partition. A data store has those of parts of transactions."""
    columns = (PRODUCER.producer_id, PRODUCER.epoch, PRODUCER.transactional_id)
    of_transactions = (
        sa.select(*columns, TRANSACTION.began_ms, PARTITION.log_end_offset)
        .join(t.transaction, TRANSACTION.producer_id == PRODUCER.producer_id)
        .where(TRANSACTION.state == ONGOING.value)
    )
    of_parts = (
        sa.select(*columns, TRANSACTION_PART.changed_ms.label("began_ms"), PARTITION.log_end_offset)
        .join(t.transaction_part, TRANSACTION_PART.producer_id == PRODUCER.producer_id)
        .where(TRANSACTION_PART.state.in_((PartState.OPEN.value, PartState.PREPARED.value)))
    )
    here = (PARTITION.topic_id == TRANSACTION_SEGMENT.topic_id) & (PARTITION.partition == TRANSACTION_SEGMENT.partition)
    queries = [
        query.distinct()
        .join(t.transaction_segment, TRANSACTION_SEGMENT.producer_id == PRODUCER.producer_id)
        .join(t.partition, here)
        .where(TRANSACTION_SEGMENT.topic_id == topic_id, TRANSACTION_SEGMENT.partition == tp.partition)
        for query in (of_transactions, of_parts)
    ]
    return [
        PartitionProducer(row.producer_id, row.epoch, row.transactional_id, None, row.began_ms, row.log_end_offset)
        for query in queries
        for row in connection.execute(query)
    ]


def _names(connection: sa.Connection) -> dict[int, str]:
    return {topic.topic_id: topic.name for topic in find_topics(connection).values()}
