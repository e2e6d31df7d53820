"""Repeats an append transaction until the leader and the ISR have the records.

A writer writes its file to the log dirs of the ISR and then appends. In between, the leader may have changed, a replica
may have joined the ISR, or a log dir may have failed. A member of the ISR may also lack records that acks=1 appended.
The append transaction then refuses the batch and changes nothing. This module copies the file to the log dirs that lack
it, and brings lagging members up to date. It reports a log dir that it cannot write to the controller, which removes
the replica from the ISR. Then it appends again, until the timeout, or for a shorter time if other batches' outcomes
wait.
"""

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import sqlalchemy as sa

from spark_log import clock
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.log_dir import LogDir, segment_path
from spark_log.cluster.log_dir_failures import report_failure
from spark_log.cluster.topics import Topic
from spark_log.config import ClusterSettings
from spark_log.errors import (
    CorruptRecordError,
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
    NotLeaderForPartitionError,
    SparkLogError,
    StorageUnavailableError,
    TopicMovedError,
    UnknownTopicOrPartitionError,
    redact,
)
from spark_log.ids import LogDirId
from spark_log.log.append.append_transaction import AppendRequest, AppendResult, run_append_transaction
from spark_log.log.append.encoding import LOG_DIR_FAILURES
from spark_log.log.append.rules import (
    Acks,
    Appended,
    Batch,
    Rejected,
    check_enough_in_sync,
)
from spark_log.log.partitions.partition_rows import Key, read_partition
from spark_log.log.partitions.replication_rules import PartitionState, Replica
from spark_log.log.segments.segment_copy import SegmentFile, copy_segment
from spark_log.replication.controller.fallback_controller import FallbackController
from spark_log.replication.replicas.catch_up import catch_up

logger = logging.getLogger(__name__)

_BACK_OFF_S_MIN, _BACK_OFF_S_MAX = 0.0005, 0.2

_RETRIABLE = (NotLeaderForPartitionError, NotEnoughReplicasError, NotEnoughReplicasAfterAppendError)


class ReplicatedAppends:
    """Implements the protocol `Replication` for a `Log`. Thread-safe."""

    def __init__(self, cluster: Cluster, settings: ClusterSettings | None = None) -> None:
        self._cluster = cluster
        self._fallback = FallbackController(cluster, settings)

    def append(self, request: AppendRequest, topics: Mapping[int, Topic], timeout_ms: int) -> AppendResult:
        """Run the append transaction, and repeat it while a batch is refused because replicas lack records.

        A repetition has the refused batches, or all batches of an atomic request. There is at least one repetition, so
        that each append brings the replicas further. More follow until the timeout or `request.retry_ms`.
        """
        deadline_s = clock.monotonic_s() + timeout_ms / 1000
        result = run_append_transaction(self._cluster.store, request, timeout_ms=timeout_ms)
        if result.committed_before:
            return result
        outcomes, partitions = list(result.outcomes), dict(result.partitions)
        batches = list(request.batches)
        back_off_s = _BACK_OFF_S_MIN
        retry_until_s = deadline_s
        if request.retry_ms is not None:
            retry_until_s = min(deadline_s, clock.monotonic_s() + request.retry_ms / 1000)
        while True:
            refused = [number for number, outcome in enumerate(outcomes) if isinstance(outcome, Rejected)]
            left_ms = int((deadline_s - clock.monotonic_s()) * 1000)
            if left_ms <= 0 or not any(_is_retriable(outcomes[number]) for number in refused):
                return AppendResult(outcomes, partitions)
            states = _read_partitions(
                self._cluster, self._fallback, [batches[number] for number in refused], request.acks
            )
            prepared = failed = False
            for number in refused:
                state = states[batches[number].topic_id, batches[number].partition]
                try:
                    batches[number], log_dir_failed = _prepare_retry(
                        self._cluster, topics, batches[number], state, request.acks
                    )
                    prepared, failed = True, failed or log_dir_failed
                except SparkLogError as error:  # replaces the earlier error
                    outcomes[number] = Rejected(error)
            if failed:
                self._fallback.detect_failures()
            if not prepared:
                return AppendResult(outcomes, partitions)
            clock.sleep_s(back_off_s := min(_BACK_OFF_S_MAX, 2 * back_off_s))
            # an atomic request appended nothing, not even the batches that were not refused
            again = list(range(len(batches))) if request.atomic else refused
            rest = replace(request, batches=[batches[n] for n in again])
            result = run_append_transaction(self._cluster.store, rest, timeout_ms=left_ms)
            if result.committed_before:
                return result
            partitions.update(result.partitions)
            for number, outcome in zip(again, result.outcomes, strict=True):
                outcomes[number] = outcome
            if clock.monotonic_s() >= retry_until_s:
                return AppendResult(outcomes, partitions)

    def detect_failures(self) -> None:
        """Detect failed log dirs and elect leaders (implements `Replication.detect_failures`)."""
        self._fallback.detect_failures()


def _is_retriable(outcome: Appended | Rejected) -> bool:
    error = outcome.error if isinstance(outcome, Rejected) else None
    return isinstance(error, _RETRIABLE) and not isinstance(error, TopicMovedError)


def _prepare_retry(
    cluster: Cluster, topics: Mapping[int, Topic], batch: Batch, state: PartitionState | SparkLogError, acks: Acks
) -> tuple[Batch, bool]:
    """Bring the replicas up to date. Return the batch to append again, and whether a log dir failed and was reported to
    the controller. Raises SparkLogError if a repetition cannot succeed.
    """
    if isinstance(state, SparkLogError):
        raise state
    needed = [r for r in state.replicas if r.broker_id == state.leader or (r.in_sync and acks == "all")]
    topic = topics[batch.topic_id]
    failed = False
    written_to = batch.written_to
    if not batch.inline:
        written_to, failed = _copy_to_replicas(cluster, topic, batch, state, needed)
    for replica in needed:
        if acks == "all" and replica.log_end_offset < state.log_end_offset:
            try:
                catch_up(cluster, topic, batch.partition, replica.broker_id)
            except LOG_DIR_FAILURES as error:
                _log_failure(topic, batch, replica, error)
                failed = True
            except (
                SparkLogError
            ) as error:  # the partition has changed, or no log dir has an undamaged copy: the next try tells
                _log_failure(topic, batch, replica, error)
    leader_epoch = None if batch.inline else state.leader_epoch
    return batch._replace(written_to=written_to, leader_epoch=leader_epoch), failed


def _read_partitions(
    cluster: Cluster, fallback: FallbackController, batches: Sequence[Batch], acks: Acks
) -> dict[Key, PartitionState | SparkLogError]:
    """Return the partition of each batch, or the error with which it refuses batches. First detect failures if a
    partition has no leader or too few in-sync replicas.
    """
    keys = {(batch.topic_id, batch.partition) for batch in batches}

    def read(connection: sa.Connection) -> dict[Key, PartitionState | SparkLogError]:
        return {key: _writable(read_partition(connection, key), key, acks) for key in keys}

    try:
        states = cluster.store.read(read)
        if any(isinstance(state, _RETRIABLE) for state in states.values()):
            fallback.detect_failures()
            states = cluster.store.read(read)
        return states
    except SparkLogError as error:
        return dict.fromkeys(keys, error)


def _writable(state: PartitionState | None, key: Key, acks: Acks) -> PartitionState | SparkLogError:
    """Return the partition, or the error with which it now refuses every batch."""
    topic_id, partition = key
    if state is None:
        return UnknownTopicOrPartitionError(f"topic {topic_id}, partition {partition}: deleted meanwhile")
    if state.leader is None:
        return NotLeaderForPartitionError(f"partition {partition} has no leader: no in-sync replica is alive")
    try:
        if acks == "all":
            check_enough_in_sync(state, partition)
    except NotEnoughReplicasError as error:
        return error
    return state


def _copy_to_replicas(
    cluster: Cluster,
    topic: Topic,
    batch: Batch,
    state: PartitionState,
    target_replicas: list[Replica],
) -> tuple[frozenset[int], bool]:
    """Copy the batch's file to the replicas of `target_replicas` that lack it.

    Return the brokers that have the file, and whether a log dir failed and was reported to the controller. Raises
    StorageUnavailableError if no log dir has the file.
    """
    infos = cluster.log_dirs()
    path = segment_path(topic.folder, batch.partition, batch.name)
    have: dict[int, LogDir] = {}
    failed = False
    for replica in state.replicas:
        if replica.broker_id not in batch.written_to and replica not in target_replicas:
            continue  # the log dir may be offline because it hangs
        try:
            log_dir = cluster.log_dir(infos[LogDirId(replica.log_dir_id)])
            if log_dir.sizes([path]) == [batch.bytes]:
                if replica.broker_id not in batch.written_to:  # the writer got an error, perhaps of the last step
                    log_dir.sync(path, ancestors=True)
                have[replica.broker_id] = log_dir
        except (KeyError, *LOG_DIR_FAILURES) as error:
            _log_failure(topic, batch, replica, error)
    elsewhere = [info for info in infos.values() if info.broker_id in batch.written_to - have.keys()]
    for info in [] if have else elsewhere:  # a reassignment may have removed the brokers that have the file
        with suppress(*LOG_DIR_FAILURES):
            log_dir = cluster.log_dir(info)
            if log_dir.sizes([path]) == [batch.bytes]:
                have[info.broker_id] = log_dir
    if not have:
        raise StorageUnavailableError(f"{path}: no log dir has it any more: write it again")
    file = SegmentFile(path, batch.bytes, batch.checksum)
    for replica in target_replicas:
        if replica.broker_id not in have:
            try:
                target = cluster.log_dir(infos[LogDirId(replica.log_dir_id)])
                copy_segment(list(have.values()), target, file, pace=lambda _size: None)
                have[replica.broker_id] = target
            except CorruptRecordError as error:  # the sources are damaged
                _log_failure(topic, batch, replica, error)
            except (KeyError, *LOG_DIR_FAILURES) as error:
                _log_failure(topic, batch, replica, error)
                report_failure(cluster.store, LogDirId(replica.log_dir_id), batch.bytes)
                failed = True
    return frozenset(have), failed


def _log_failure(topic: Topic, batch: Batch, replica: Replica, error: Exception) -> None:
    where = f"{topic.name}-{batch.partition} at broker {replica.broker_id}"
    logger.info("%s: %s", where, redact(str(error)))
