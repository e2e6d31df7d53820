"""The append transaction: read under lock, decide, write, in one commit for all partitions of a flush."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy import bindparam

from spark_log.append.rules import (
    Acks,
    Appended,
    Batch,
    ProducerState,
    Rejected,
    RememberedBatch,
    decide,
    remember,
)
from spark_log.cluster.lease import Fence, unfenced
from spark_log.errors import UnknownTopicOrPartitionError, WriteIdExpiredError
from spark_log.failpoints import failpoint
from spark_log.metadata import tables as t
from spark_log.metadata.columns import PARTITION, PRODUCER, PRODUCER_BATCH, WRITE_ID
from spark_log.metadata.prepared import Prepared
from spark_log.metadata.store import DEFAULT_TIMEOUT_MS, Attempt, Store, StoreClock
from spark_log.partitions.partition_rows import Key, by_topic, lock_partitions, save_partitions
from spark_log.partitions.replication import PartitionState

Part = Callable[[sa.Connection, StoreClock], bool]
"""What an append's transaction does besides, before it locks partitions. False: all of it was done before, and nothing
is to be appended again."""


@dataclass(frozen=True)
class AppendRequest:
    """What one flush appends, over any number of topics and partitions, in order.

    `blobs` holds the bytes of the inline batches by name, but for those that a transaction has registered. With
    `atomic` either every batch is appended or none is. Files need the `write_id` under which they were written;
    `release_write_id` gives it back in the same transaction. `parts` are done in order, in the same transaction.
    """

    batches: Sequence[Batch]
    blobs: Mapping[str, bytes] = field(default_factory=dict)
    acks: Acks = "all"
    atomic: bool = False
    write_id: str | None = None
    release_write_id: bool = False
    parts: Sequence[Part] = ()
    durable: bool = True


@dataclass(frozen=True)
class AppendResult:
    """`outcomes` match the request's batches. `replayed`: a part was done before; nothing changed."""

    outcomes: Sequence[Appended | Rejected]
    partitions: Mapping[Key, PartitionState]
    replayed: bool = False


class _Abandoned(Exception):
    """Rolls the transaction back with its outcomes."""

    def __init__(self, outcomes: Sequence[Appended | Rejected]) -> None:
        self.outcomes = outcomes


def append(store: Store, request: AppendRequest, *, timeout_ms: int = DEFAULT_TIMEOUT_MS) -> AppendResult:
    """Run the append transaction. What a batch may not do is an outcome; only the store's own trouble is raised."""

    def body(connection: sa.Connection, _attempt: Attempt) -> AppendResult:
        return _append(connection, store.clock(connection), request)

    try:
        result = store.transact(body, timeout_ms=timeout_ms, durable=request.durable, announce=True)
    except _Abandoned as abandoned:
        return AppendResult(abandoned.outcomes, {})
    failpoint("append.committed")
    return result


def _append(connection: sa.Connection, now: StoreClock, request: AppendRequest) -> AppendResult:
    if not all(part(connection, now) for part in request.parts):
        return AppendResult([Appended(-1, -1, duplicate=True)] * len(request.batches), {}, replayed=True)
    if request.write_id is not None:
        check_write_id(connection, request.write_id, release=request.release_write_id)
    before, producers = _lock(connection, request.batches)
    states = dict(before)
    outcomes: list[Appended | Rejected] = []
    rows: list[dict[str, Any]] = []
    remembered: dict[tuple[int, int, int], ProducerState] = dict(producers)
    for batch in request.batches:
        key = (batch.topic_id, batch.partition)
        state = states.get(key)
        if state is None:
            gone = UnknownTopicOrPartitionError(
                f"topic {batch.topic_id}, partition {batch.partition}: deleted meanwhile"
            )
            outcomes.append(Rejected(gone))
            continue
        producer_key = (batch.sequence.producer_id, *key) if batch.sequence else None
        producer = remembered.get(producer_key) if producer_key else None
        outcome, states[key] = decide(state, batch, request.acks, producer)
        outcomes.append(outcome)
        if isinstance(outcome, Appended) and not outcome.duplicate:
            rows.append(_segment_row(batch, outcome, states[key], now))
            if producer_key and producer:
                remembered[producer_key] = remember(producer, batch, outcome)
    if request.atomic and any(isinstance(outcome, Rejected) for outcome in outcomes):
        raise _Abandoned(outcomes)
    if rows:
        _NEW_SEGMENTS.run(connection, rows)
        blobs = [
            {"name": row["name"], "data": request.blobs[row["name"]]} for row in rows if row["name"] in request.blobs
        ]
        if blobs:
            _NEW_BLOBS.run(connection, blobs)
        if request.durable:
            states = {
                key: state if state is before[key] else replace(state, recovery_point=state.log_end_offset)
                for key, state in states.items()
            }
        save_partitions(connection, before, states)
        _save_producers(connection, now, producers, remembered)
    failpoint("append.decided")
    return AppendResult(outcomes, states)


_KEY = ("producer_id", "topic_id", "partition")
_BATCH_KEY = (*_KEY, "producer_epoch", "first_sequence")
_PRODUCER = Prepared(
    sa.select(PRODUCER.epoch).where(PRODUCER.producer_id == bindparam("producer_id")).with_for_update()
)
_REMEMBERED = Prepared(
    sa.select(
        PRODUCER_BATCH.producer_epoch,
        PRODUCER_BATCH.first_sequence,
        PRODUCER_BATCH.last_sequence,
        PRODUCER_BATCH.base_offset,
        PRODUCER_BATCH.end_offset,
    )
    .where(*(PRODUCER_BATCH[name] == bindparam(name) for name in _KEY))
    .order_by(PRODUCER_BATCH.producer_epoch, PRODUCER_BATCH.first_sequence)
)
_FORGET = Prepared(
    t.producer_batch.delete().where(*(PRODUCER_BATCH[name] == bindparam(f"key_{name}") for name in _BATCH_KEY))
)
_REMEMBER = Prepared(t.producer_batch.insert())
_NEW_SEGMENTS = Prepared(t.segment.insert())
_NEW_BLOBS = Prepared(t.blob.insert())


def _lock(
    connection: sa.Connection, batches: Sequence[Batch]
) -> tuple[dict[Key, PartitionState], dict[tuple[int, int, int], ProducerState]]:
    """Producers first, then partitions: the lock order of `metadata.tables`."""
    wanted = {(b.sequence.producer_id, b.topic_id, b.partition) for b in batches if b.sequence is not None}
    epochs: dict[int, int] = {}
    for producer_id in sorted({producer_id for producer_id, _, _ in wanted}):
        for (epoch,) in _PRODUCER.rows(connection, {"producer_id": producer_id}):
            epochs[producer_id] = epoch
    states = lock_partitions(connection, [(b.topic_id, b.partition) for b in batches])
    producers: dict[tuple[int, int, int], ProducerState] = {}
    for key in wanted:
        rows = _REMEMBERED.rows(connection, dict(zip(_KEY, key, strict=True)))
        producers[key] = ProducerState(epochs.get(key[0]), tuple(RememberedBatch(*row) for row in rows))
    return states, producers


def check_write_id(connection: sa.Connection, write_id: str, *, release: bool) -> None:
    """WriteIdExpiredError unless the write id is registered; with `release` it is given back by this transaction."""
    # the row's lock makes clean-up, which deletes the row before it deletes files, wait for this append, and us for it
    here = WRITE_ID.write_id == write_id
    if release:
        found = connection.execute(t.write_id.delete().where(here)).rowcount == 1
    else:
        query = sa.select(WRITE_ID.write_id).where(here).with_for_update(read=True)
        found = connection.execute(query).first() is not None
    if not found:
        raise WriteIdExpiredError(
            f"write id {write_id} has expired: its files may have been cleaned up; write them again"
        )


def _segment_row(batch: Batch, appended: Appended, after: PartitionState, now: StoreClock) -> dict[str, Any]:
    sequence = batch.sequence
    return {
        "topic_id": batch.topic_id,
        "partition": batch.partition,
        "base_offset": appended.base_offset,
        "end_offset": appended.end_offset,
        "record_count": batch.record_count,
        "bytes": batch.bytes,
        "min_timestamp_ms": batch.min_timestamp_ms,
        "max_timestamp_ms": batch.max_timestamp_ms,
        "timestamp_type": batch.timestamp_type,
        "leader_epoch": after.leader_epoch,
        "producer_id": sequence.producer_id if sequence else None,
        "producer_epoch": sequence.producer_epoch if sequence else None,
        "first_sequence": sequence.first if sequence else None,
        "codec": batch.codec,
        "checksum": batch.checksum,
        "name": batch.name,
        "inline": batch.inline,
        "change": after.change,
        "appended_ms": now.wall_ms,
    }


def _save_producers(
    connection: sa.Connection,
    now: StoreClock,
    before: Mapping[tuple[int, int, int], ProducerState],
    after: Mapping[tuple[int, int, int], ProducerState],
) -> None:
    gone: list[dict[str, Any]] = []
    new: list[dict[str, Any]] = []
    for key, state in after.items():
        known = before[key]
        if state is known:
            continue
        here = dict(zip(_KEY, key, strict=True))
        gone += [
            {f"key_{name}": value for name, value in {**vars(old), **here}.items() if name in _BATCH_KEY}
            for old in known.batches
            if old not in state.batches
        ]
        new += [
            {**here, **vars(batch), "appended_ms": now.wall_ms} for batch in state.batches if batch not in known.batches
        ]
        if state.epoch != known.epoch:
            connection.execute(t.producer.update().where(PRODUCER.producer_id == key[0]).values(epoch=state.epoch))
    if gone:  # first away with the old: an epoch's sequences begin at 0 again
        _FORGET.run(connection, gone)
    if new:
        _REMEMBER.run(connection, new)


def force(store: Store, keys: Sequence[Key], fence: Fence = unfenced) -> None:
    """Force everything appended so far to disk (flush.messages): one durable commit does it for the whole store."""

    def body(connection: sa.Connection, _attempt: Attempt) -> None:
        fence(connection)
        lock_partitions(connection, keys)  # an UPDATE alone would lock them in any order
        for topic_id, numbers in by_topic(keys):
            here = (PARTITION.topic_id == topic_id) & PARTITION.partition.in_(numbers)
            connection.execute(t.partition.update().where(here).values(recovery_point=PARTITION.log_end_offset))

    store.transact(body)
