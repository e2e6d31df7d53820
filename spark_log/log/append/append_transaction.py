"""Runs the append transaction: one commit for all partitions of a request. The transaction

1. runs the request's hooks, and validates its write id;
2. locks the rows and assigns offsets, batch by batch (`log.append.rules.decide`: validate -> assign -> advance);
3. writes the segment rows and the blobs;
4. advances partitions, replicas and producers.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from spark_log.cluster.lease import Fence, unfenced
from spark_log.errors import (
    OutOfOrderSequenceNumberError,
    SparkLogError,
    TopicMovedError,
    UnknownTopicOrPartitionError,
    WriteIdExpiredError,
)
from spark_log.failpoints import failpoint
from spark_log.log.append.producer_rows import ProducerKey, ask_producers, save_producer_states
from spark_log.log.append.rules import Acks, Appended, Batch, Rejected, decide, remember
from spark_log.log.append.sequence_rules import ProducerState
from spark_log.log.append.write_ids import take
from spark_log.log.partitions.partition_rows import (
    Key,
    ask_partitions,
    save_partitions,
    set_recovery_points,
    topics_elsewhere,
)
from spark_log.log.partitions.replication_rules import PartitionState
from spark_log.log.segments.segment_rows import insert_blobs, insert_segments
from spark_log.metadata.prepared import one_message, sent_with_commit
from spark_log.metadata.sql_columns import WRITE_ID
from spark_log.metadata.store import DEFAULT_TIMEOUT_MS, Store
from spark_log.metadata.store_clock import StoreClock

CommitHook = Callable[[sa.Connection, StoreClock], bool]
"""Runs inside the append transaction, before partitions are locked. It returns False if an earlier call has committed
the whole request; then this call changes nothing."""


@dataclass(frozen=True)
class AppendRequest:
    """The batches that one flush appends, over any number of topics and partitions, in order.

    `blobs` has the bytes of the inline batches by name. Batches that a transaction has registered need none. With
    `atomic` either every batch is appended or none is. Files need the `write_id` under which they were written;
    `release_write_id` deletes this id in the same transaction. `hooks` run in order. `commits` is True if the batches
    were pending in a transaction, so that none of them repeats an earlier one. With `only_checks` the outcomes are the
    same, but only the changes of the hooks are written. Batches that are refused because replicas lack records are
    retried at least once, and until `retry_ms` have passed (None: until the timeout of the append).
    """

    batches: Sequence[Batch]
    blobs: Mapping[str, bytes] = field(default_factory=dict)
    acks: Acks = "all"
    atomic: bool = False
    write_id: str | None = None
    release_write_id: bool = False
    hooks: Sequence[CommitHook] = ()
    durable: bool = True
    commits: bool = False
    only_checks: bool = False
    retry_ms: int | None = None


@dataclass(frozen=True)
class AppendResult:
    """The outcome of each batch of the request, in order, and the partitions afterwards.

    `committed_before` is True if a hook found that an earlier call had committed the request. Then nothing changed, and
    there are no outcomes and no partitions.
    """

    outcomes: Sequence[Appended | Rejected]
    partitions: Mapping[Key, PartitionState]
    committed_before: bool = False


_COMMITTED_BEFORE = AppendResult((), {}, committed_before=True)


@dataclass(frozen=True)
class _Locked:
    """The rows that the transaction has locked, as they were before the append."""

    partitions: Mapping[Key, PartitionState]
    producers: Mapping[ProducerKey, ProducerState]


@dataclass
class _Assigned:
    """The outcome of each batch, the batches that got offsets, and partitions and producers afterwards."""

    outcomes: list[Appended | Rejected]
    new: list[tuple[Batch, Appended, PartitionState]]
    partitions: dict[Key, PartitionState]
    producers: dict[ProducerKey, ProducerState]


class _AbandonedError(Exception):
    """Rolls back the transaction of an atomic request."""

    def __init__(self, outcomes: Sequence[Appended | Rejected]) -> None:
        self.outcomes = outcomes


def run_append_transaction(
    store: Store, request: AppendRequest, *, timeout_ms: int = DEFAULT_TIMEOUT_MS
) -> AppendResult:
    """Append the request's batches. A refused batch is an outcome, not an error. Raises the errors of the store
    and of hooks, and WriteIdExpiredError.
    """

    def body(connection: sa.Connection) -> AppendResult:
        return _append(store, connection, request)

    try:
        result = store.transact(body, timeout_ms=timeout_ms, durable=request.durable, announce=True)
    except _AbandonedError as abandoned:
        return AppendResult(abandoned.outcomes, {})
    failpoint("append.committed")
    return result


def _append(store: Store, connection: sa.Connection, request: AppendRequest) -> AppendResult:
    if request.hooks:
        now = store.clock(connection)
        if not all(hook(connection, now) for hook in request.hooks):
            return _COMMITTED_BEFORE
    if request.write_id is not None:
        check_write_id(connection, request.write_id, release=request.release_write_id)
    now, locked = _lock(store, connection, request.batches)
    missing = {(batch.topic_id, batch.partition) for batch in request.batches} - locked.partitions.keys()
    assigned = _assign(request, locked, moved=topics_elsewhere(connection, missing) if missing else ())
    if request.atomic and any(isinstance(outcome, Rejected) for outcome in assigned.outcomes):
        raise _AbandonedError(assigned.outcomes)
    if assigned.new and not request.only_checks:
        with sent_with_commit(connection):
            _write(connection, now, request, assigned)
            _advance(connection, now, request, locked, assigned)
    failpoint("append.decided")
    return AppendResult(assigned.outcomes, assigned.partitions)


def _assign(request: AppendRequest, locked: _Locked, moved: Collection[int]) -> _Assigned:
    """Decide the batches in order, each for the partition after the batches before it. Topics with the ids `moved` are
    in another store, or are being moved to one. Pure.
    """
    assigned = _Assigned([], [], dict(locked.partitions), dict(locked.producers))
    refused: set[ProducerKey] = set()
    for batch in request.batches:
        key = (batch.topic_id, batch.partition)
        state = assigned.partitions.get(key)
        if state is None:
            where = f"topic {batch.topic_id}, partition {batch.partition}"
            gone: SparkLogError = UnknownTopicOrPartitionError(f"{where}: deleted meanwhile")
            if batch.topic_id in moved:
                gone = TopicMovedError(f"{where}: it is being moved to another store")
            assigned.outcomes.append(Rejected(gone))
            continue
        producer_key = (batch.sequence.producer_id, *key) if batch.sequence else None
        producer = assigned.producers.get(producer_key) if producer_key else None
        outcome, after = decide(state, batch, request.acks, producer, commits=request.commits)
        if producer_key in refused and producer and producer.takes_any_sequence:  # it would overtake the refused one
            outcome, after = Rejected(OutOfOrderSequenceNumberError("an earlier batch was refused")), state
        if isinstance(outcome, Rejected) and producer_key:
            refused.add(producer_key)
        assigned.outcomes.append(outcome)
        assigned.partitions[key] = after
        if isinstance(outcome, Appended) and not outcome.duplicate:
            assigned.new.append((batch, outcome, after))
            if producer_key and producer:
                assigned.producers[producer_key] = remember(producer, batch, outcome)
    return assigned


def _write(connection: sa.Connection, now: StoreClock, request: AppendRequest, assigned: _Assigned) -> None:
    insert_segments(connection, [_segment_row(batch, offsets, after, now) for batch, offsets, after in assigned.new])
    names = [batch.name for batch, _, _ in assigned.new if batch.name in request.blobs]
    insert_blobs(connection, {name: request.blobs[name] for name in names})


def _advance(
    connection: sa.Connection, now: StoreClock, request: AppendRequest, locked: _Locked, assigned: _Assigned
) -> None:
    if request.durable:
        for key, state in assigned.partitions.items():
            if state is not locked.partitions[key]:
                assigned.partitions[key] = state._replace(recovery_point=state.log_end_offset)
    save_partitions(connection, locked.partitions, assigned.partitions)
    save_producer_states(connection, now, locked.producers, assigned.producers)


def _lock(store: Store, connection: sa.Connection, batches: Sequence[Batch]) -> tuple[StoreClock, _Locked]:
    """Lock and read producers, then partitions (the lock order of `metadata.tables`)."""
    wanted = {(b.sequence.producer_id, b.topic_id, b.partition) for b in batches if b.sequence is not None}
    with one_message(connection):
        now = store.ask_clock(connection)
        producers = ask_producers(connection, wanted)
        partitions = ask_partitions(connection, [(b.topic_id, b.partition) for b in batches])
    return now(), _Locked(partitions(), producers())


def check_write_id(connection: sa.Connection, write_id: str, *, release: bool) -> None:
    """Raise WriteIdExpiredError unless the write id is registered. With `release` this transaction deletes it."""
    # the lock on the row orders this append and clean-up, which deletes the row before it deletes the files
    here = WRITE_ID.write_id == write_id
    if release:
        found = take(connection, write_id)
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
        "columns_version": batch.columns_version,
        "stats": batch.stats,
        "name": batch.name,
        "inline": batch.inline,
        "change": after.change,
        "appended_ms": now.wall_ms,
    }


def force(store: Store, keys: Sequence[Key], fence: Fence = unfenced) -> None:
    """Force all data appended so far in this store to disk (flush.messages), and set the recovery points of `keys`."""
    store.transact(lambda connection: set_recovery_points(connection, keys), fence=fence)
