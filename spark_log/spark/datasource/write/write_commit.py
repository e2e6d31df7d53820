"""Plans, commits and aborts a Spark write, on the driver. It is the only part of writing that uses the metadata
store.
"""

import logging
import socket
from collections.abc import Sequence

import sqlalchemy as sa

from spark_log import clock
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.names import is_internal
from spark_log.cluster.topics import Topic, find_topics, topics_of_ids
from spark_log.errors import UnknownTopicOrPartitionError
from spark_log.ids import WriteId
from spark_log.log.append import write_ids
from spark_log.log.append.append_transaction import AppendRequest, AppendResult
from spark_log.log.append.encoding import Encoding
from spark_log.log.append.failed_append_files import delete_files
from spark_log.log.append.rules import Batch
from spark_log.log.append.spark_batch_rules import SparkBatch
from spark_log.log.append.spark_batches import append_once_hook, find_last, not_appended
from spark_log.log.append.targets import targets_of
from spark_log.log.append.write_ids import take
from spark_log.maintenance.client_log import ClientLog
from spark_log.spark.datasource.checkpoint.batch_ends import BatchEnds
from spark_log.spark.datasource.options.source_options import PendingWrite, WriteOptions
from spark_log.spark.datasource.write.write_plan import TaskOutput, TopicPlan, WritePlan
from spark_log.transactions.transaction_rows import PendingBatch
from spark_log.transactions.transaction_store import register

logger = logging.getLogger(__name__)

WRITE_BATCHES_MAX = 2**32
"""A number above the batches of any write. In a transaction, the positions of the next write begin there."""


def plan_write(options: WriteOptions, *, fingerprint: bool) -> WritePlan:
    """Register a write id and read the facts that tasks need. Raises UnknownTopicOrPartitionError if the topic does
    not exist.
    """
    with Cluster.open(options.cluster) as cluster:
        topics = cluster.store.read(lambda connection: _topic_plans(connection, options))
        now_ms, boot_ms = cluster.store.now().wall_ms, clock.boot_ms()
        write_id = write_ids.register(
            cluster.store, f"spark write on {socket.gethostname()}", cluster.store.settings.spark_write_id_lease_ms
        )
        log_dirs = cluster.log_dirs()
        inline_bytes_max = cluster.store.settings.commit_inline_bytes_per_task_max
    return WritePlan(
        write_id, options.topic, topics, log_dirs, now_ms, inline_bytes_max, fingerprint, clock.boot_id(), boot_ms
    )


def _topic_plans(connection: sa.Connection, options: WriteOptions) -> dict[str, TopicPlan]:
    """Return the plan of the topic of option `topic`, or of all topics that users write to."""
    name = options.topic
    topics = find_topics(connection, None if name is None else [name])
    if name is not None and name not in topics:
        raise UnknownTopicOrPartitionError(
            f"topic {name!r}: unknown topic or partition (make it with `spark-log topic create {name}`)"
        )
    codec = options.compression_type
    return {name: _topic_plan(connection, topic, codec) for name, topic in topics.items() if not is_internal(name)}


def _topic_plan(connection: sa.Connection, topic: Topic, codec: str | None) -> TopicPlan:
    targets = targets_of(connection, topic, None, "all")
    encoding = Encoding.of(topic, codec)
    return TopicPlan(topic.topic_id, topic.name, topic.folder, topic.partition_count, encoding, targets)


def commit_write(
    cluster_address: str,
    outputs: Sequence[TaskOutput],
    write_id: WriteId,
    batch: SparkBatch | None,
    ends: BatchEnds | None = None,
) -> None:
    """Append the batches of the tasks, in task order, all or nothing. Raises the error of a refused batch. A repeated
    write is dropped.

    With `ends` the group's offsets are committed in the same transaction.
    """
    written, blobs = _written(outputs)
    with Cluster.open(cluster_address) as cluster:
        batches, hooks = written, []
        if batch is not None:
            last = find_last(cluster.store, batch.application, batch.target)
            batches = not_appended(last, batch, written)
            hooks.append(append_once_hook(batch, _topic_ids(cluster, batch, batches)))
        if ends is not None:
            from spark_log.groups.transacted_offsets import Committer, commit_offsets_hook  # imports kafka-python

            offsets = {Committer(ends.group_id): ends.commits(cluster)}
            hooks.append(commit_offsets_hook(cluster.store, offsets))
        request = AppendRequest(batches, blobs, atomic=True, write_id=write_id, release_write_id=True, hooks=hooks)
        if append_whole(cluster, request, micro_batch=batch is not None and batch.strict).committed_before:
            _drop(cluster, written, write_id)
        elif len(batches) < len(written):
            _delete(cluster, [each for each in written if each not in batches])


def _topic_ids(cluster: Cluster, batch: SparkBatch, batches: Sequence[Batch]) -> set[int]:
    """Return the topics that a Spark batch writes to; for a batch without rows, the topic that it would write to."""
    if batches or not batch.target:
        return {each.topic_id for each in batches}
    return {topic.topic_id for topic in cluster.store.read(lambda c: find_topics(c, [batch.target])).values()}


def register_write(
    cluster_address: str, outputs: Sequence[TaskOutput], write_id: WriteId, pending: PendingWrite
) -> None:
    """Make the batches of the tasks pending in an open transaction, in task order; its owner commits or aborts it."""
    written, blobs = _written(outputs)
    first = pending.order * WRITE_BATCHES_MAX
    batches = [batch for batch in written if batch.topic_id > pending.after_topic_id]
    stored = [PendingBatch(first + position, batch) for position, batch in enumerate(batches)]
    with Cluster.open(cluster_address) as cluster:
        register(
            cluster.store, pending.ref, stored, blobs, write_id=write_id, release_write_id=True, durable=True
        )  # fmt: skip
        _delete(cluster, [each for each in written if each.topic_id <= pending.after_topic_id])


def append_whole(cluster: Cluster, request: AppendRequest, *, micro_batch: bool = False) -> AppendResult:
    """Append the whole request. Raises the error of a refused batch.

    Warns of records that retention.ms does not keep; for a stream, only at the first micro-batch with such records.
    """
    topics = _topics(cluster, request.batches)
    log = ClientLog(cluster, holder="spark commit")
    try:
        result = log.append_whole(request, topics)
    finally:
        log.close(more_to_come=micro_batch)
    for expired in log.expired.take():
        if not (micro_batch and expired.begun_before):
            logger.warning("%s", expired)
    return result


def _topics(cluster: Cluster, batches: Sequence[Batch]) -> dict[int, Topic]:
    topic_ids = {batch.topic_id for batch in batches}
    return cluster.store.read(lambda connection: topics_of_ids(connection, topic_ids))


def _written(outputs: Sequence[TaskOutput]) -> tuple[list[Batch], dict[str, bytes]]:
    """Return the batches in task order, and the bytes of blobs by name."""
    batches = [found for output in outputs for found in output.batches]
    return batches, {name: data for output in outputs for name, data in output.blobs.items()}


def abort_write(cluster_address: str, outputs: Sequence[TaskOutput], write_id: WriteId) -> None:
    """Delete the files of the tasks, unless a commit whose answer was lost has appended them."""
    with Cluster.open(cluster_address) as cluster:
        _drop(cluster, _written(outputs)[0], write_id)


def _drop(cluster: Cluster, batches: Sequence[Batch], write_id: WriteId) -> None:
    """Delete the files unless they were appended: an append deletes the row of the write id in its own transaction. If
    the row exists and is deleted here, the files were not appended and never can be.
    """
    if cluster.store.transact(lambda connection, _attempt: take(connection, write_id)):
        _delete(cluster, batches)


def _delete(cluster: Cluster, batches: Sequence[Batch]) -> None:
    """Delete files that no metadata names or will name. If a log dir is offline, clean-up deletes them later."""
    topics = _topics(cluster, batches)
    delete_files(cluster, topics, [batch for batch in batches if batch.topic_id in topics])
