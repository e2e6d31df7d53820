"""Deletes the files of refused and failed appends, in the process that wrote them.

Clean-up deletes no file of a registered write id, so unused files would stay as long as their writer runs. The file of
a *refused* append can be deleted at once. The outcome of a *failed* append is unknown: first its write id is released,
so that no append can use its files any more, and then the files without metadata are deleted.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import wait
from dataclasses import dataclass
from functools import partial

import sqlalchemy as sa

from spark_log.cluster.brokers import ONLINE_LOG_DIRS
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.log_dir import LogDirInfo, segment_path
from spark_log.cluster.topics import Topic
from spark_log.errors import SparkLogError, redact
from spark_log.ids import WriteId
from spark_log.log.append.rules import Batch
from spark_log.log.append.write_ids import take
from spark_log.log.partitions.partition_rows import Key, read_partition, topic_here
from spark_log.metadata.prepared import in_list
from spark_log.metadata.sql_columns import RETIRED_FILE, SEGMENT, TRANSACTION_SEGMENT
from spark_log.process import begin_or_run

logger = logging.getLogger(__name__)

_WAIT_S_MAX = 5.0
_FAILURES_MAX = 3
"""The number of consecutive failures after which no more files are deleted in a log dir."""


@dataclass(frozen=True)
class InDoubt:
    """The files of a failed append with unknown outcome, all written under one write id."""

    batches: Sequence[Batch]
    topics: Mapping[int, Topic]
    write_id: WriteId


def delete_files(cluster: Cluster, topics: Mapping[int, Topic], batches: Iterable[Batch]) -> None:
    """Delete the files of batches, which no metadata may name. A file is deleted in the log dirs to which it was
    written, and in those of replicas, which may have a copy. The clean-up of orphans deletes what is left.

    Each log dir has a thread, which ends after _FAILURES_MAX consecutive failures. A log dir that fails or hangs delays
    the caller by at most _WAIT_S_MAX, but without limit if no thread can be started.
    """
    files = [batch for batch in batches if not batch.inline]
    if not files:
        return
    keys = {(batch.topic_id, batch.partition) for batch in files}
    try:
        infos = cluster.log_dirs()
        online, states = cluster.store.read(
            lambda c: (set(c.execute(ONLINE_LOG_DIRS).scalars()), {key: read_partition(c, key) for key in keys})
        )
    except SparkLogError as error:
        logger.info("%d files are left to the clean-up: %s", len(files), redact(str(error)))
        return
    paths: dict[LogDirInfo, list[str]] = {}
    for batch in files:
        state = states[batch.topic_id, batch.partition]
        replicas = {replica.log_dir_id for replica in state.replicas} if state is not None else set()
        for info in infos.values():
            if info.log_dir_id in online and (info.log_dir_id in replicas or info.broker_id in batch.written_to):
                paths.setdefault(info, []).append(_path(topics[batch.topic_id], batch))
    deletions = [
        begin_or_run(partial(_delete, cluster, info, names), "spark-log-delete") for info, names in paths.items()
    ]
    wait(deletions, _WAIT_S_MAX)


def _delete(cluster: Cluster, info: LogDirInfo, paths: Sequence[str]) -> None:
    failures = 0
    for place, path in enumerate(paths):
        try:
            cluster.log_dir(info).delete(path)
            failures = 0
        except (SparkLogError, OSError) as error:
            failures += 1
            logger.info("%s is left to the clean-up: %s", path, redact(str(error)))
            if failures == _FAILURES_MAX:
                logger.info("%s: %d more files are left to the clean-up", redact(info.uri), len(paths) - place - 1)
                break


def settle(cluster: Cluster, doubt: InDoubt, *, timeout_ms: int) -> None:
    """Release a failed append's write id, and delete the files that were not appended. Raises the store's errors."""
    cluster.store.transact(lambda connection: take(connection, doubt.write_id), timeout_ms=timeout_ms)
    named = cluster.store.read_as_primary(lambda connection: _named(connection, doubt), timeout_ms=timeout_ms)
    delete_files(cluster, doubt.topics, [batch for batch in doubt.batches if batch.name not in named])


def _named(connection: sa.Connection, doubt: InDoubt) -> set[str]:
    """Return the names of the batches whose files must stay: those that were appended or registered, even if the file
    has been replaced, and those of moved topics, whose files another store may name or else cleans up.
    """
    moved = {topic_id for topic_id, topic in doubt.topics.items() if topic_here(connection, topic) is None}
    elsewhere = {batch.name for batch in doubt.batches if batch.topic_id in moved}
    paths = {_path(doubt.topics[batch.topic_id], batch): batch.name for batch in doubt.batches if not batch.inline}
    named_paths: set[str] = elsewhere
    pending = sa.select(TRANSACTION_SEGMENT.name).where(in_list(TRANSACTION_SEGMENT.name, paths.values()))
    named_paths.update(connection.execute(pending).scalars())
    of_partitions: dict[Key, list[str]] = {}
    for batch in doubt.batches:
        of_partitions.setdefault((batch.topic_id, batch.partition), []).append(batch.name)
    for (topic_id, partition), names in of_partitions.items():  # the name of a segment has no index
        here = (SEGMENT.topic_id == topic_id) & (SEGMENT.partition == partition)
        named_paths.update(
            connection.execute(sa.select(SEGMENT.name).where(here, in_list(SEGMENT.name, names))).scalars()
        )
    retired = sa.select(RETIRED_FILE.path).where(in_list(RETIRED_FILE.path, paths))
    named_paths.update(paths[path] for path in connection.execute(retired).scalars())
    return named_paths


def _path(topic: Topic, batch: Batch) -> str:
    return segment_path(topic.folder, batch.partition, batch.name)
