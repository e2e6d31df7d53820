"""Appends that reach today's leader and ISR, although the writer knew those of yesterday.

A writer puts its file in the log dirs of the ISR and then appends. In between the leader may have changed, a replica
may have joined the ISR, or a log dir may have failed; and a member of the ISR may lack what acks=1 has appended before.
Then the append is refused, and nothing has happened. Here the file is copied to where it is missing and the members
that lag are brought up to date; a log dir that does not take the file is reported to the controller, which takes it
out of the ISR. Then the append is tried again, until its time is over.
"""

import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from spark_log import clock
from spark_log.append.append_transaction import AppendRequest, AppendResult, run_append_transaction
from spark_log.append.encoding import LOG_DIR_FAILURES
from spark_log.append.rules import Acks, Appended, Batch, Rejected, check_enough_in_sync
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.log_dir import LogDir, segment_path
from spark_log.cluster.topics import Topic
from spark_log.controller.fallback_controller import FallbackController
from spark_log.controller.log_dir_inspection import report_failure
from spark_log.errors import (
    CorruptRecordError,
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
    NotLeaderForPartitionError,
    SparkLogError,
    StorageUnavailableError,
    UnknownTopicOrPartitionError,
    redact,
)
from spark_log.ids import LogDirId
from spark_log.partitions.partition_rows import read_partition
from spark_log.partitions.replication import PartitionState, Replica
from spark_log.replicas.catch_up import catch_up
from spark_log.segments.segment_copy import SegmentFile, copy_segment

logger = logging.getLogger(__name__)

_BACK_OFF_S_MIN, _BACK_OFF_S_MAX = 0.0005, 0.2

_WITHIN_REACH = (NotLeaderForPartitionError, NotEnoughReplicasError, NotEnoughReplicasAfterAppendError)


def replicated_append(
    cluster: Cluster, fallback: FallbackController, request: AppendRequest, topics: Mapping[int, Topic], timeout_ms: int
) -> AppendResult:
    """The append transaction, again for what was refused for want of replicas while something can be done about it."""
    deadline_s = clock.monotonic_s() + timeout_ms / 1000
    result = run_append_transaction(cluster.store, request, timeout_ms=timeout_ms)
    if result.committed_before:
        return result
    outcomes, partitions = list(result.outcomes), dict(result.partitions)
    batches = list(request.batches)
    back_off_s = _BACK_OFF_S_MIN
    while True:
        refused = [number for number, outcome in enumerate(outcomes) if isinstance(outcome, Rejected)]
        left_ms = int((deadline_s - clock.monotonic_s()) * 1000)
        if left_ms <= 0 or not any(_within_reach(outcomes[number]) for number in refused):
            return AppendResult(outcomes, partitions)
        brought = False
        for number in refused:
            try:
                batches[number] = _bring(cluster, fallback, topics, batches[number], request.acks)
                brought = True
            except SparkLogError as error:  # why, as things are now
                outcomes[number] = Rejected(error)
        if not brought:
            return AppendResult(outcomes, partitions)
        clock.sleep_s(back_off_s := min(_BACK_OFF_S_MAX, 2 * back_off_s))
        # in an atomic request nothing was appended, not even what was not refused
        again = list(range(len(batches))) if request.atomic else refused
        rest = replace(request, batches=[batches[n] for n in again])
        result = run_append_transaction(cluster.store, rest, timeout_ms=left_ms)
        if result.committed_before:
            return result
        partitions.update(result.partitions)
        for number, outcome in zip(again, result.outcomes, strict=True):
            outcomes[number] = outcome


def _within_reach(outcome: Appended | Rejected) -> bool:
    return isinstance(outcome, Rejected) and isinstance(outcome.error, _WITHIN_REACH)


def _bring(
    cluster: Cluster, fallback: FallbackController, topics: Mapping[int, Topic], batch: Batch, acks: Acks
) -> Batch:
    """The batch as it may be tried again; the error that refuses it where only others can help."""
    state = _look(cluster, fallback, batch, acks)
    wanted = [r for r in state.replicas if r.broker_id == state.leader or (r.in_sync and acks == "all")]
    topic = topics[batch.topic_id]
    failed = False
    written_to = batch.written_to
    if not batch.inline:
        written_to, failed = _put(cluster, topic, batch, state, wanted)
    for replica in wanted:
        if acks == "all" and replica.log_end_offset < state.log_end_offset:
            try:
                catch_up(cluster, topic, batch.partition, replica.broker_id)
            except LOG_DIR_FAILURES as error:
                _note(topic, batch, replica, error)
                failed = True
            except SparkLogError as error:  # it has changed meanwhile, or nobody has a good copy: the next try tells
                _note(topic, batch, replica, error)
    if failed:
        fallback.detect_failures()
    leader_epoch = None if batch.inline else state.leader_epoch
    return replace(batch, written_to=written_to, leader_epoch=leader_epoch)


def _look(cluster: Cluster, fallback: FallbackController, batch: Batch, acks: Acks) -> PartitionState:
    """The partition as it is, once the controller has had a look if it lacks replicas; raises if it still does."""
    for attempt in range(2):
        state = cluster.store.read(lambda connection: read_partition(connection, (batch.topic_id, batch.partition)))
        if state is None:
            raise UnknownTopicOrPartitionError(
                f"topic {batch.topic_id}, partition {batch.partition}: deleted meanwhile"
            )
        try:
            if state.leader is None:
                raise NotLeaderForPartitionError(
                    f"partition {batch.partition} has no leader: no in-sync replica is alive"
                )
            if acks == "all":
                check_enough_in_sync(state, batch.partition)
            return state
        except _WITHIN_REACH:
            if attempt:
                raise
        fallback.detect_failures()
    raise AssertionError("unreachable")


def _put(
    cluster: Cluster,
    topic: Topic,
    batch: Batch,
    state: PartitionState,
    wanted: list[Replica],
) -> tuple[frozenset[int], bool]:
    """The brokers that have the batch's file, once it was copied to those of `wanted` that lacked it; whether one of
    those failed, which the controller has been told.
    """
    infos = cluster.log_dirs()
    path = segment_path(topic.folder, batch.partition, batch.name)
    have: dict[int, LogDir] = {}
    failed = False
    for replica in state.replicas:
        try:
            log_dir = cluster.log_dir(infos[LogDirId(replica.log_dir_id)])
            if log_dir.sizes([path]) == [batch.bytes]:
                have[replica.broker_id] = log_dir
        except (KeyError, *LOG_DIR_FAILURES) as error:
            _note(topic, batch, replica, error)
    elsewhere = [info for info in infos.values() if info.broker_id in batch.written_to - have.keys()]
    for info in [] if have else elsewhere:  # a reassignment has gone on without the brokers that have it
        with suppress(*LOG_DIR_FAILURES):
            if cluster.log_dir(info).sizes([path]) == [batch.bytes]:
                have[info.broker_id] = cluster.log_dir(info)
    if not have:
        raise StorageUnavailableError(f"{path}: no log dir has it any more: write it again")
    file = SegmentFile(path, batch.bytes, batch.checksum)
    for replica in wanted:
        if replica.broker_id not in have:
            try:
                target = cluster.log_dir(infos[LogDirId(replica.log_dir_id)])
                copy_segment(list(have.values()), target, file, _at_once)
                have[replica.broker_id] = target
            except CorruptRecordError as error:  # the sources' fault
                _note(topic, batch, replica, error)
            except (KeyError, *LOG_DIR_FAILURES) as error:
                _note(topic, batch, replica, error)
                report_failure(cluster.store, LogDirId(replica.log_dir_id), batch.bytes)
                failed = True
    return frozenset(have), failed


def _at_once(_size: int) -> None:
    """An append is not throttled."""


def _note(topic: Topic, batch: Batch, replica: Replica, error: Exception) -> None:
    where = f"{topic.name}-{batch.partition} at broker {replica.broker_id}"
    logger.info("%s: %s", where, redact(str(error)))
