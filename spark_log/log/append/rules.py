"""Decides which batches a partition accepts, and which offsets they get. Pure.

All offsets are assigned here: base = log end offset, and the log end offset moves to base + count. So offsets are
assigned once, strictly increasing and dense (invariant 1); the high watermark only grows (invariant 2); a producer's
sequence is appended once (invariant 8).

A mirror's batch has the offsets of the source cluster and is accepted only if they fit. A gap that compaction left in
the source stays a gap.
"""

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from spark_log.errors import (
    InvalidProducerIdMappingError,
    InvalidRecordError,
    InvalidTxnStateError,
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
    NotLeaderForPartitionError,
    OffsetOutOfRangeError,
    SparkLogError,
    TransactionAbortableError,
)
from spark_log.ids import OffsetRange
from spark_log.log.append.sequence_rules import (
    FORGOTTEN_OWNER,
    REMEMBERED_BATCHES,
    ProducerSequence,
    ProducerState,
    RememberedBatch,
    check_sequence,
    sequence_after,
)
from spark_log.log.partitions.replication_rules import PartitionState, advanced_high_watermark

Acks = Literal[0, 1, "all"]


class Batch(NamedTuple):
    """Records to append to one partition: either written as a file, or small enough for a blob."""

    topic_id: int
    partition: int
    name: str
    inline: bool
    record_count: int
    bytes: int
    min_timestamp_ms: int
    max_timestamp_ms: int
    timestamp_type: int
    codec: str
    checksum: str
    written_to: frozenset[int] = frozenset()
    """Brokers whose log dirs have the file; a blob counts for all."""
    sequence: ProducerSequence | None = None
    leader_epoch: int | None = None
    """The leader epoch for which the writer chose the log dirs. None, as for a blob, accepts any leader epoch."""
    columns_version: int | None = None
    """The version of the typed columns in the file."""
    stats: str | None = None
    """The statistics of the typed columns."""
    offsets: OffsetRange | None = None
    """The offsets that a mirror's batch must get. With None the batch gets the next record_count offsets."""


@dataclass(frozen=True)
class Appended:
    """The batch has the offsets [base_offset, end_offset). A `duplicate` got them from an earlier append."""

    base_offset: int
    end_offset: int
    duplicate: bool = False


@dataclass(frozen=True)
class Rejected:
    error: SparkLogError


def decide(
    state: PartitionState,
    batch: Batch,
    acks: Acks,
    producer: ProducerState | None = None,
    *,
    commits: bool = False,
) -> tuple[Appended | Rejected, PartitionState]:
    """Validate a batch, assign its offsets, and advance the partition.

    Return the outcome, and the partition after it (the same object if nothing was appended). `commits` is True if the
    batch was pending in the transaction that the append commits.
    """
    try:
        size = _size(batch)
        _check_leader(state, batch)
        repeated = _repeated(state, batch, acks, producer or ProducerState(None), commits)
        if repeated is not None:
            return Appended(repeated.base_offset, repeated.end_offset, duplicate=True), state
        begun = state if batch.offsets is None else _begun_at(state, batch.offsets.start, batch)
        if acks == "all":
            _check_in_sync(begun, batch)
    except SparkLogError as error:
        return Rejected(error), state
    assigned = Appended(begun.log_end_offset, begun.log_end_offset + size)
    return assigned, _advance(begun, batch, assigned, before=state)


def _repeated(
    state: PartitionState, batch: Batch, acks: Acks, producer: ProducerState, commits: bool
) -> RememberedBatch | None:
    """Return the earlier batch of the producer that this one repeats, or None. With acks=all the whole ISR must have
    the earlier one.

    Raises InvalidTxnStateError if the producer is transactional and the batch is in no transaction. Kafka refuses such
    a batch only while the producer has a transaction in the partition. Here it is always refused: no client sends one,
    and with it another client could take the sequences of the next transaction, or fence the producer. Raises
    InvalidProducerIdMappingError for the same reason if the producer id belongs to another principal.
    """
    if batch.sequence is None:
        return None
    who = f"partition {batch.partition}: producer {batch.sequence.producer_id}"
    if producer.transactional and not commits:
        raise InvalidTxnStateError(f"{who} is transactional, and the batch is in no transaction")
    owned = producer.epoch is not None and producer.owner != FORGOTTEN_OWNER
    if owned and batch.sequence.principal not in (None, producer.owner):
        raise InvalidProducerIdMappingError(f"{who} is not one of {batch.sequence.principal}")
    earlier = check_sequence(batch.sequence, batch.record_count, producer)
    if earlier is not None and commits:  # pending batches have not been appended: another batch has this sequence
        raise TransactionAbortableError(
            f"partition {batch.partition}: the log has another batch of producer {batch.sequence.producer_id} with the"
            f" sequence {batch.sequence.first}"
        )
    if earlier is not None and acks == "all":
        _check_replicated(state, batch, earlier)
    return earlier


def _advance(begun: PartitionState, batch: Batch, assigned: Appended, before: PartitionState) -> PartitionState:
    """Return the partition after the batch, with new log ends, high watermark, tail bytes and change counter.

    `begun` is the partition with its log end at the start of the batch; `before` is the partition before that (they
    differ for a mirror's first batch).
    """
    base, end = assigned.base_offset, assigned.end_offset
    replicas = tuple(
        replica._replace(log_end_offset=end)
        if replica.log_end_offset == base and (batch.inline or replica.broker_id in batch.written_to)
        else replica
        for replica in begun.replicas
    )
    high_watermark = advanced_high_watermark(begun.high_watermark, replicas)
    # a blob does not affect publication, unless it moves the watermark over a file below it
    concerns_publication = not batch.inline or high_watermark - before.high_watermark > end - base
    return begun._replace(
        log_end_offset=end,
        replicas=replicas,
        high_watermark=high_watermark,
        tail_bytes=before.tail_bytes + (batch.bytes if batch.inline else 0),
        change=before.change + (1 if concerns_publication else 0),
    )


def remember(producer: ProducerState, batch: Batch, appended: Appended) -> ProducerState:
    """Return the producer's state after the batch, with the last REMEMBERED_BATCHES batches of the newest epoch."""
    assert batch.sequence is not None
    sequence = batch.sequence
    new = RememberedBatch(
        sequence.producer_epoch,
        sequence.first,
        sequence_after(sequence.first, batch.record_count - 1),
        appended.base_offset,
        appended.end_offset,
    )
    kept = tuple(known for known in producer.batches if known.producer_epoch == sequence.producer_epoch)
    return replace(producer, epoch=sequence.producer_epoch, batches=(*kept, new)[-REMEMBERED_BATCHES:])


def _size(batch: Batch) -> int:
    """Return the number of offsets of the batch, at least 1: an empty segment would have the key of the next row."""
    if batch.offsets is None:
        size, fits = batch.record_count, batch.record_count >= 1
    else:
        size = batch.offsets.size
        # a blob has no gaps; a producer's sequence counts records
        dense = batch.inline or batch.sequence is not None
        fits = size >= 1 and (batch.record_count == size if dense else 0 <= batch.record_count <= size)
    if not fits:
        where = "" if batch.offsets is None else f" for the offsets [{batch.offsets.start}, {batch.offsets.end})"
        raise InvalidRecordError(f"partition {batch.partition}: a batch of {batch.record_count} records{where}")
    return size


def _begun_at(state: PartitionState, start: int, batch: Batch) -> PartitionState:
    """Return the partition with its log end at `start`. Only a partition without records can be moved there."""
    if state.log_end_offset == start:
        return state
    if start < state.log_end_offset or state.log_start_offset < state.log_end_offset:
        raise OffsetOutOfRangeError(
            f"partition {batch.partition}: the records with the offsets [{start}, {start + _size(batch)}) cannot be"
            f" appended: its log has the offsets [{state.log_start_offset}, {state.log_end_offset})"
        )
    replicas = tuple(
        replica._replace(log_end_offset=start) if replica.log_end_offset == state.log_end_offset else replica
        for replica in state.replicas
    )
    return state._replace(
        log_start_offset=start,
        log_end_offset=start,
        high_watermark=start,
        recovery_point=start,
        replicas=replicas,
    )


def _check_leader(state: PartitionState, batch: Batch) -> None:
    if state.leader is None:
        raise NotLeaderForPartitionError(f"partition {batch.partition} has no leader: no in-sync replica is alive")
    if batch.leader_epoch is not None and batch.leader_epoch != state.leader_epoch:
        raise NotLeaderForPartitionError(
            f"partition {batch.partition}: leader epoch {batch.leader_epoch} is not the current {state.leader_epoch}"
        )
    if not batch.inline and state.leader not in batch.written_to:
        raise NotLeaderForPartitionError(
            f"partition {batch.partition}: its leader, broker {state.leader}, does not have {batch.name}"
        )


def _check_replicated(state: PartitionState, batch: Batch, known: RememberedBatch) -> None:
    """Raise NotEnoughReplicasAfterAppendError unless the whole ISR has the batch, which was appended with acks=1."""
    if known.end_offset > state.high_watermark:
        raise NotEnoughReplicasAfterAppendError(
            f"partition {batch.partition}: appended at {known.base_offset}, but the high watermark is"
            f" {state.high_watermark}: not all in-sync replicas have it"
        )


def check_enough_in_sync(state: PartitionState, partition: int) -> None:
    """Raise NotEnoughReplicasError if the ISR is smaller than min.insync.replicas."""
    if len(state.isr) < state.min_insync_replicas:
        raise NotEnoughReplicasError(
            f"partition {partition}: {len(state.isr)} replica(s) in sync,"
            f" min.insync.replicas is {state.min_insync_replicas}"
        )


def _check_in_sync(state: PartitionState, batch: Batch) -> None:
    in_sync = [replica.broker_id for replica in state.replicas if replica.in_sync]
    check_enough_in_sync(state, batch.partition)
    missing = [] if batch.inline else [broker for broker in in_sync if broker not in batch.written_to]
    if missing:
        raise NotEnoughReplicasError(
            f"partition {batch.partition}: in-sync broker(s) {missing} do not have {batch.name}"
        )
    behind = [r.broker_id for r in state.replicas if r.in_sync and r.log_end_offset < state.log_end_offset]
    if behind:  # after an append with acks=1: their LEO cannot pass missing records, an election could lose this batch
        raise NotEnoughReplicasError(
            f"partition {batch.partition}: in-sync broker(s) {behind} are behind {state.log_end_offset}"
        )
