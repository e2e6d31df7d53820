"""What transactions and producers there are. Reads only, each answer from one snapshot.

The store learns of a transaction with the first batch that becomes pending. One that has none yet, or group offsets
alone, is its producer's own affair until the commit: it is not seen here, and cannot hang.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from spark_log.cluster.topics import find_topics
from spark_log.config.values import can_be_stored
from spark_log.errors import InvalidProducerIdMappingError, TransactionalIdNotFoundError, UnknownTopicOrPartitionError
from spark_log.ids import TopicPartition
from spark_log.metadata import tables as t
from spark_log.metadata.columns import PARTITION, PRODUCER, PRODUCER_BATCH, TRANSACTION, TRANSACTION_SEGMENT
from spark_log.metadata.store import Store, StoreClock
from spark_log.transactions.rules import EMPTY, ONGOING, TransactionRef, TransactionState
from spark_log.transactions.transaction_store import read_pending

GRACE_MS = 5 * 60 * 1000
"""Kafka's own tool adds so much to the largest time-out before it calls a transaction hanging."""


@dataclass(frozen=True)
class TransactionListing:
    """The current or last transaction of a transactional id."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    number: int
    """Counts the transactions of this transactional id."""
    state: TransactionState
    timeout_ms: int
    began_ms: int | None
    """Store clock, milliseconds since 1970; None: there has been none."""
    open_ms: int | None
    """For how long it has been open; None: it is not."""
    overdue: bool
    """Open for longer than `timeout_ms`, and nobody has aborted it yet."""
    batches: int
    """That are pending."""

    @property
    def ref(self) -> TransactionRef:
        """Names this very transaction: what aborts it cannot touch a later one."""
        return TransactionRef(self.producer_id, self.producer_epoch, self.number)


@dataclass(frozen=True)
class PendingRecords:
    """What an open transaction has sent to a partition."""

    topic: str
    partition: int
    batches: int
    records: int
    bytes: int


@dataclass(frozen=True)
class TransactionDescription:
    """`pending` is in the order of topic and partition. What was sent to a topic that has been deleted is gone."""

    transaction: TransactionListing
    pending: Sequence[PendingRecords]


@dataclass(frozen=True)
class PartitionProducer:
    """A producer whose sequences the partition remembers, or whose open transaction has sent to it.

    Of a transaction that is over, a partition remembers no producer: its batches have no sequences.
    """

    producer_id: int
    producer_epoch: int
    transactional_id: str | None
    last_sequence: int | None
    """None: it is transactional."""
    last_ms: int
    """Store clock: when it appended its last batch, or began its open transaction."""
    transaction_start_offset: int | None
    """Log end offset of the partition, where its open transaction would begin if it was committed now; None: it has
    none here. Several open transactions have the same, and it moves with what others append."""


def list_transactions(store: Store, states: Collection[str] = ()) -> list[TransactionListing]:
    """Of every transactional id, in their order; only those in one of the `states`, if any are named."""
    where = [TRANSACTION.state.in_(states)] if states else []
    return store.read(lambda connection: _listings(connection, store.clock(connection), *where))


def describe_transactions(store: Store, transactional_ids: Collection[str]) -> list[TransactionDescription]:
    """In the order asked for. TransactionalIdNotFoundError for one that there is not."""

    def read(connection: sa.Connection) -> list[TransactionDescription]:
        wanted = [name for name in transactional_ids if can_be_stored(name)]
        listings = _listings(connection, store.clock(connection), PRODUCER.transactional_id.in_(wanted))
        known = {each.transactional_id: each for each in listings}
        for name in transactional_ids:
            if name not in known:
                raise TransactionalIdNotFoundError(f"transactional id {name!r}: there is no producer with it")
        topics = _names(connection) if any(each.batches for each in listings) else {}
        return [_described(connection, known[name], topics) for name in transactional_ids]

    return store.read(read)


def describe_producer(store: Store, producer_id: int) -> TransactionDescription:
    """By producer id. InvalidProducerIdMappingError where no transactional id has it."""

    def read(connection: sa.Connection) -> TransactionDescription:
        found = _listings(connection, store.clock(connection), PRODUCER.producer_id == producer_id)
        if not found:
            raise InvalidProducerIdMappingError(f"producer {producer_id}: no transactional id has it")
        return _described(connection, found[0], _names(connection))

    return store.read(read)


def find_hanging(store: Store, timeout_ms_max: int) -> list[TransactionDescription]:
    """Open transactions that `is_hanging`, those that have been open for the longest first."""

    def read(connection: sa.Connection) -> list[TransactionDescription]:
        listings = _listings(connection, store.clock(connection), TRANSACTION.state == ONGOING.value)
        hanging = [each for each in listings if is_hanging(each, timeout_ms_max)]
        hanging.sort(key=lambda each: -(each.open_ms or 0))
        topics = _names(connection) if hanging else {}
        return [_described(connection, each, topics) for each in hanging]

    return store.read(read)


def is_hanging(transaction: TransactionListing, timeout_ms_max: int) -> bool:
    """Open past its own time-out, and nobody has aborted it: no coordinator runs. Or, as Kafka's tool has it, open for
    longer than the largest time-out that should be and five minutes.

    Here a hanging transaction keeps no reader from anything: it keeps its pending batches in the store.
    """
    if transaction.open_ms is None:
        return False
    return transaction.overdue or transaction.open_ms >= timeout_ms_max + GRACE_MS


def describe_producers(
    store: Store, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, list[PartitionProducer]]:
    """By producer id. UnknownTopicOrPartitionError for a partition that there is not."""

    def read(connection: sa.Connection) -> dict[TopicPartition, list[PartitionProducer]]:
        topics = find_topics(connection, {tp.topic for tp in partitions})
        found = {}
        for tp in partitions:
            topic = topics.get(tp.topic)
            if topic is None or not 0 <= tp.partition < topic.partition_count:
                raise UnknownTopicOrPartitionError(
                    f"topic {tp.topic!r}, partition {tp.partition}: unknown topic or partition"
                )
            here = [*_appending(connection, topic.topic_id, tp), *_transacting(connection, topic.topic_id, tp)]
            found[tp] = sorted(here, key=lambda each: each.producer_id)
        return found

    return store.read(read)


def _listings(connection: sa.Connection, now: StoreClock, *where: sa.ColumnElement[bool]) -> list[TransactionListing]:
    pending = (
        sa.select(sa.func.count()).where(TRANSACTION_SEGMENT.producer_id == PRODUCER.producer_id).scalar_subquery()
    )
    query = (
        sa.select(
            PRODUCER.transactional_id, PRODUCER.producer_id, PRODUCER.epoch, TRANSACTION.number, TRANSACTION.state,
            PRODUCER.transaction_timeout_ms, TRANSACTION.began_ms,
            TRANSACTION.until_ms, TRANSACTION.clock_epoch, pending,
        )
        .join(t.transaction, TRANSACTION.producer_id == PRODUCER.producer_id)
        .where(*where)
        .order_by(PRODUCER.transactional_id)
    )  # fmt: skip
    found = []
    for (
        name,
        producer_id,
        epoch,
        number,
        word,
        timeout_ms,
        began_ms,
        until_ms,
        clock_epoch,
        batches,
    ) in connection.execute(query):
        state = TransactionState(word)
        is_open = state is ONGOING
        found.append(
            TransactionListing(
                name, producer_id, epoch, number, state, timeout_ms, None if state is EMPTY else began_ms,
                max(0, now.wall_ms - began_ms) if is_open else None, is_open and now.expired(until_ms, clock_epoch),
                batches,
            )
        )  # fmt: skip
    return found


def _described(
    connection: sa.Connection, transaction: TransactionListing, topics: Mapping[int, str]
) -> TransactionDescription:
    amounts: dict[TopicPartition, list[tuple[int, int]]] = defaultdict(list)
    if transaction.batches:
        for batch in (each.batch for each in read_pending(connection, transaction.producer_id)):
            if batch.topic_id in topics:
                place = TopicPartition(topics[batch.topic_id], batch.partition)
                amounts[place].append((batch.record_count, batch.bytes))
    pending = [
        PendingRecords(*place, len(sizes), sum(records for records, _ in sizes), sum(size for _, size in sizes))
        for place, sizes in sorted(amounts.items())
    ]
    return TransactionDescription(transaction, pending)


def _appending(connection: sa.Connection, topic_id: int, tp: TopicPartition) -> list[PartitionProducer]:
    query = (
        sa.select(
            PRODUCER_BATCH.producer_id,
            PRODUCER_BATCH.producer_epoch,
            PRODUCER_BATCH.last_sequence,
            PRODUCER_BATCH.appended_ms,
        )
        .where(PRODUCER_BATCH.topic_id == topic_id, PRODUCER_BATCH.partition == tp.partition)
        .order_by(PRODUCER_BATCH.producer_id, PRODUCER_BATCH.producer_epoch, PRODUCER_BATCH.first_sequence)
    )
    last = {row.producer_id: row for row in connection.execute(query)}
    return [
        PartitionProducer(row.producer_id, row.producer_epoch, None, row.last_sequence, row.appended_ms, None)
        for row in last.values()
    ]


def _transacting(connection: sa.Connection, topic_id: int, tp: TopicPartition) -> list[PartitionProducer]:
    query = (
        sa.select(
            PRODUCER.producer_id,
            PRODUCER.epoch,
            PRODUCER.transactional_id,
            TRANSACTION.began_ms,
            PARTITION.log_end_offset,
        )
        .distinct()
        .join(t.transaction, TRANSACTION.producer_id == PRODUCER.producer_id)
        .join(t.transaction_segment, TRANSACTION_SEGMENT.producer_id == PRODUCER.producer_id)
        .join(
            t.partition,
            (PARTITION.topic_id == TRANSACTION_SEGMENT.topic_id)
            & (PARTITION.partition == TRANSACTION_SEGMENT.partition),
        )
        .where(
            TRANSACTION_SEGMENT.topic_id == topic_id,
            TRANSACTION_SEGMENT.partition == tp.partition,
            TRANSACTION.state == ONGOING.value,
        )
    )
    return [
        PartitionProducer(row.producer_id, row.epoch, row.transactional_id, None, row.began_ms, row.log_end_offset)
        for row in connection.execute(query)
    ]


def _names(connection: sa.Connection) -> dict[int, str]:
    return {topic.topic_id: topic.name for topic in find_topics(connection).values()}
