"""Plans, commits and aborts a Spark write, on the driver. Only this part of writing uses the metadata store."""

import contextlib
import logging
import socket
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeVar

import sqlalchemy as sa

from spark_log import clock
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.each_store import ASK_TIMEOUT_MS, Answers, ask_stores, by_store
from spark_log.cluster.names import is_internal
from spark_log.cluster.topics import Topic, find_topics, topics_of_ids
from spark_log.errors import (
    CrossStoreTransactionError,
    MetadataStoreUnavailableError,
    NotEnoughReplicasError,
    NotLeaderForPartitionError,
    SparkLogError,
    TopicMovedError,
    TransactionCommitPendingError,
    UnknownTopicOrPartitionError,
    redact,
)
from spark_log.ids import HOME, StoreId, WriteId
from spark_log.log.append import write_ids
from spark_log.log.append.append_transaction import AppendRequest, AppendResult
from spark_log.log.append.encoding import Encoding
from spark_log.log.append.failed_append_files import delete_files
from spark_log.log.append.rules import Batch
from spark_log.log.append.spark_batch_rules import SparkBatch
from spark_log.log.append.spark_batches import append_once_hook, find_last, not_appended
from spark_log.log.append.targets import targets_of
from spark_log.log.append.write_ids import take
from spark_log.log.log import Log
from spark_log.maintenance.client_log import ClientLog
from spark_log.metadata.store import DEFAULT_TIMEOUT_MS, READ_TIMEOUT_MS
from spark_log.spark.datasource.checkpoint.batch_ends import BatchEnds
from spark_log.spark.datasource.options.source_options import PendingWrite, WriteOptions
from spark_log.spark.datasource.write.write_plan import TaskOutput, TopicPlan, WritePlan
from spark_log.transactions import transaction_parts
from spark_log.transactions.transaction_rows import PendingBatch

logger = logging.getLogger(__name__)
_T = TypeVar("_T")

WRITE_BATCHES_MAX = 2**32
"""More batches than any write has. In a transaction, the batches of write n are numbered from n times this number."""


def plan_write(options: WriteOptions, *, fingerprint: bool) -> WritePlan:
    """Register a write id and return the plan for the tasks. Raises UnknownTopicOrPartitionError if the topic does not
    exist.

    A stream (`fingerprint`, or a write in the transaction of a micro-batch) waits for the stores of all topics that its
    rows may name. A batch leaves out the topics of a data store that does not answer, and fails only if a row names one
    of these topics.
    """
    streaming = fingerprint or options.pending is not None
    # while the store is unavailable, a stream waits, but a batch write fails soon
    with Cluster.open(options.cluster, read_timeout_ms=DEFAULT_TIMEOUT_MS if streaming else READ_TIMEOUT_MS) as cluster:
        topics, plans = cluster.store.read(lambda connection: _topic_plans(connection, options))
        elsewhere = by_store(topic for topic in topics.values() if topic.store_id != HOME)

        def read(view: Cluster) -> dict[str, TopicPlan]:
            return view.store.read(partial(_plans_of, topics=elsewhere[view.store_id], options=options))

        if options.topic is not None or streaming:
            answers = Answers({store_id: read(cluster.at(store_id)) for store_id in elsewhere})
        else:
            answers = ask_stores(cluster, read, elsewhere)
            for error in answers.failures.values():
                if not isinstance(error, MetadataStoreUnavailableError):
                    raise error
        for there in answers.results.values():
            plans |= there
        unavailable = frozenset(name for name, topic in topics.items() if answers.unavailable(topic))
        now_ms, boot_ms = cluster.store.now().wall_ms, clock.boot_ms()
        holder, lease_ms = f"spark write on {socket.gethostname()}", cluster.store.settings.spark_write_id_lease_ms
        store_ids = tuple(elsewhere if options.topic and elsewhere else [HOME, *answers.results])
        write_id = write_ids.register(cluster.at(store_ids[0]).store, holder, lease_ms)
        for store_id in store_ids[1:]:
            write_ids.register(cluster.at(store_id).store, holder, lease_ms, write_id)
        log_dirs = cluster.log_dirs()
        inline_bytes_max = cluster.store.settings.commit_inline_bytes_per_task_max
    return WritePlan(
        write_id, options.topic, plans, log_dirs, now_ms, inline_bytes_max, fingerprint, clock.boot_id(), boot_ms,
        store_ids, unavailable,
    )  # fmt: skip


def _topic_plans(connection: sa.Connection, options: WriteOptions) -> tuple[dict[str, Topic], dict[str, TopicPlan]]:
    """Return the topic of option `topic`, or all user topics, and the plans of those in the home store."""
    name = options.topic
    topics = find_topics(connection, None if name is None else [name])
    if name is not None and name not in topics:
        raise UnknownTopicOrPartitionError(
            f"topic {name!r}: unknown topic or partition (make it with `spark-log topic create {name}`)"
        )
    topics = {name: topic for name, topic in topics.items() if not is_internal(name)}
    return topics, _plans_of(connection, [topic for topic in topics.values() if topic.store_id == HOME], options)


def _plans_of(connection: sa.Connection, topics: Iterable[Topic], options: WriteOptions) -> dict[str, TopicPlan]:
    """Return the plans of topics of one store."""
    return {topic.name: _topic_plan(connection, topic, options.compression_type) for topic in topics}


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
    *,
    store_ids: Sequence[StoreId] | None = None,
) -> None:
    """Append the batches of the tasks, in task order, all or nothing. The files of a repeated write are deleted. Raises
    the error of a refused batch.

    With `ends` the group's offsets are committed in the same transaction. `store_ids` are those of the plan. Batches
    for topics of several stores are appended in one transaction of each store. That of the home store is the last one,
    and commits the offsets. A repeated write appends where its batches are missing. Without `batch` a write cannot be
    repeated: raises CrossStoreTransactionError if it is for several stores.
    """
    written, blobs = _written(outputs)
    with Cluster.open(cluster_address, read_timeout_ms=DEFAULT_TIMEOUT_MS) as cluster:
        parts = _by_store(cluster, written, store_ids or _store_ids(outputs))
        if batch is None and sum(map(bool, parts.values())) > 1:
            raise CrossStoreTransactionError(
                "the rows are for topics of several metadata stores: give txnAppId and txnVersion, so that the write"
                " can be repeated, or write the topics of each store on their own"
            )
        if ends is not None:
            parts.setdefault(HOME, [])
        registered = store_ids or _store_ids(outputs)
        used = [store_id for store_id, part in parts.items() if part or (ends is not None and store_id == HOME)]
        if batch is not None and batch.strict and set(used) - {HOME}:
            find_last(cluster.store, batch)  # refuses a batch of foreachBatch's transaction: the home store records it
        for store_id in sorted(used or registered[:1], reverse=True):
            here = cluster.at(store_id)
            mine = blobs if len(parts) == 1 else {b.name: blobs[b.name] for b in parts[store_id] if b.inline}
            id_here = write_id if store_id in registered else None
            _commit_part(here, parts[store_id], mine, id_here, batch, ends if store_id == HOME else None)
        _give_back(cluster, set(registered) - set(used or registered[:1]), write_id)


def _commit_part(
    cluster: Cluster,
    written: Sequence[Batch],
    blobs: Mapping[str, bytes],
    write_id: WriteId | None,
    batch: SparkBatch | None,
    ends: BatchEnds | None,
) -> None:
    """Append the batches for the topics of one store, in one transaction of this store."""
    batches, hooks = list(written), []
    if batch is not None:
        last = find_last(cluster.store, batch)
        batches = not_appended(last, batch, written)
        _warn_of_skipped(batch, last.values(), written)
        hooks.append(
            append_once_hook(batch, {log_batch.topic_id for log_batch in batches} or _target_ids(cluster, batch))
        )
    if ends is not None:
        from spark_log.groups.transacted_offsets import Committer, commit_offsets_hook  # imports kafka-python

        offsets = {Committer(ends.group_id): ends.commits(cluster)}
        hooks.append(commit_offsets_hook(cluster.store, offsets))
    release = write_id is not None
    request = AppendRequest(batches, blobs, atomic=True, write_id=write_id, release_write_id=release, hooks=hooks)
    with commit_log(cluster, micro_batch=batch is not None and batch.strict) as log:
        result = append_whole(log, request)
    if result.committed_before:
        if write_id is not None:
            _drop(cluster, written, write_id)
    elif len(batches) < len(written):
        _delete(cluster, [log_batch for log_batch in written if log_batch not in batches])


def _warn_of_skipped(batch: SparkBatch, last: Iterable[SparkBatch], written: Sequence[Batch]) -> None:
    """Warn if a write with txnAppId drops its rows because txnVersion is older: the query may have a new checkpoint."""
    newest = max((each.version for each in last), default=-1)
    if written and not batch.strict and batch.version < newest:
        logger.warning(
            "txnAppId %s: version %s is skipped, its rows are not written, since version %s was written before. A query"
            " with a new checkpoint needs a new txnAppId", batch.application, batch.version, newest,
        )  # fmt: skip


def _target_ids(cluster: Cluster, batch: SparkBatch) -> set[int]:
    """Return the id of the topic to which a batch without rows would be written."""
    names = [batch.target] if batch.target else []
    return {topic.topic_id for topic in cluster.store.read(lambda c: find_topics(c, names)).values()}


def _store_ids(outputs: Sequence[TaskOutput]) -> Sequence[StoreId]:
    return outputs[0].store_ids if outputs else (HOME,)


def _by_store(
    cluster: Cluster, batches: Sequence[Batch], store_ids: Sequence[StoreId], *, leave_moved: bool = False
) -> dict[StoreId, list[Batch]]:
    """Return the batches for the topics of each store, in order. Batches of deleted topics go to the first store.
    Raises TopicMovedError for a topic that has moved to another store, whose clean-up does not know these files. With
    `leave_moved` the batches of such a topic are left out.
    """
    if len(store_ids) == 1:
        return {store_ids[0]: list(batches)}
    topics = _topics(cluster.home, batches)
    parts: dict[StoreId, list[Batch]] = {store_id: [] for store_id in store_ids}
    for each in batches:
        store_id = topics[each.topic_id].store_id if each.topic_id in topics else store_ids[0]
        if store_id in parts:
            parts[store_id].append(each)
        elif not leave_moved:
            name = topics[each.topic_id].name
            raise TopicMovedError(f"topic {name!r} was moved to another metadata store during the write: repeat it")
    return parts


def register_write(
    cluster_address: str, outputs: Sequence[TaskOutput], write_id: WriteId, pending: PendingWrite
) -> None:
    """Make the batches of the tasks pending in an open transaction, in task order. Its owner commits or aborts it."""
    written, blobs = _written(outputs)
    first = pending.order * WRITE_BATCHES_MAX
    stored = [PendingBatch(first + position, batch) for position, batch in enumerate(written)]
    with Cluster.open(cluster_address, read_timeout_ms=DEFAULT_TIMEOUT_MS) as cluster:
        parts = _by_store(cluster, written, _store_ids(outputs))
        for store_id, part in parts.items():
            names = {batch.name for batch in part}
            mine = [each for each in stored if each.batch.name in names]
            if part or store_id == HOME:
                number = None if store_id == HOME else transaction_parts.join(cluster, pending.ref, store_id)
                transaction_parts.register(
                    cluster.at(store_id), pending.ref, number, mine, blobs,
                    write_id=write_id, release_write_id=True, durable=True,
                )  # fmt: skip
        _give_back(cluster, [store_id for store_id, part in parts.items() if store_id != HOME and not part], write_id)


def _give_back(cluster: Cluster, store_ids: Collection[StoreId], write_id: WriteId) -> None:
    """Delete the write id in stores without a batch of the write. In a store that does not answer, its lease ends."""

    def delete(view: Cluster) -> bool:
        return view.store.transact(lambda connection: take(connection, write_id), timeout_ms=ASK_TIMEOUT_MS)

    with contextlib.suppress(SparkLogError):
        ask_stores(cluster, delete, store_ids)


@contextlib.contextmanager
def commit_log(cluster: Cluster, *, micro_batch: bool = False) -> Iterator[ClientLog]:
    """Open the log for a commit, and close it afterwards.

    Warns of records that are older than retention.ms; for a stream, only at the first micro-batch with such records.
    """
    log = ClientLog(cluster, holder="spark commit")
    try:
        yield log
    except BaseException:
        with contextlib.suppress(SparkLogError):
            log.close(more_to_come=micro_batch)
        raise
    try:
        log.close(more_to_come=micro_batch)
    except SparkLogError as error:  # the rows are written: a job that failed now would write them again
        logger.warning("after a write: %s", redact(str(error)))
    for expired in log.take_expired():
        if not (micro_batch and expired.begun_before):
            logger.warning("%s", expired)


def append_whole(log: Log, request: AppendRequest) -> AppendResult:
    """Append the whole request. Raises the error of a refused batch. Like a producer, it waits up to two minutes for
    leaders and in-sync replicas.
    """
    topics = _topics(log.cluster, request.batches)
    return with_patience(lambda: log.append_whole(request, topics))


def with_patience(append: Callable[[], _T]) -> _T:
    """Repeat `append` for up to two minutes while it is refused because a partition lacks a leader or in-sync replicas,
    or because some stores have not completed the end of a transaction.
    """
    until_s, pause_s = clock.monotonic_s() + DEFAULT_TIMEOUT_MS / 1000, 0.1
    while True:
        try:
            return append()
        except (NotEnoughReplicasError, NotLeaderForPartitionError, TransactionCommitPendingError) as error:
            if isinstance(error, TopicMovedError) or clock.monotonic_s() > until_s:
                raise
            logger.info("the write waits: %s", redact(str(error)))
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 2.0)


def _topics(cluster: Cluster, batches: Sequence[Batch]) -> dict[int, Topic]:
    topic_ids = {batch.topic_id for batch in batches}
    return cluster.store.read(lambda connection: topics_of_ids(connection, topic_ids))


def _written(outputs: Sequence[TaskOutput]) -> tuple[list[Batch], dict[str, bytes]]:
    """Return the batches in task order, and the blobs by name."""
    batches = [found for output in outputs for found in output.batches]
    return batches, {name: data for output in outputs for name, data in output.blobs.items()}


def abort_write(
    cluster_address: str,
    outputs: Sequence[TaskOutput],
    write_id: WriteId,
    *,
    store_ids: Sequence[StoreId] | None = None,
) -> None:
    """Delete the files of the tasks, unless a commit whose answer was lost has appended them."""
    with Cluster.open(cluster_address, read_timeout_ms=DEFAULT_TIMEOUT_MS) as cluster:
        parts = _by_store(cluster, _written(outputs)[0], store_ids or _store_ids(outputs), leave_moved=True)
        failures = []
        for store_id, batches in parts.items():
            try:
                _drop(cluster.at(store_id), batches, write_id)
            except SparkLogError as error:  # the lease of the write id ends there
                failures.append(error)
        for failure in failures:
            raise failure


def _drop(cluster: Cluster, batches: Sequence[Batch], write_id: WriteId) -> None:
    """Delete the files unless they were appended. An append deletes the row of the write id in its transaction. If the
    row still exists and is deleted here, the files were not appended and never can be.
    """
    if cluster.store.transact(lambda connection: take(connection, write_id)):
        _delete(cluster, batches)


def _delete(cluster: Cluster, batches: Sequence[Batch]) -> None:
    """Delete files to which no metadata refers or will refer. Clean-up later deletes those in offline log dirs."""
    topics = _topics(cluster, batches)
    delete_files(cluster, topics, [batch for batch in batches if batch.topic_id in topics])
