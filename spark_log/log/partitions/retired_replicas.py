"""Deletes the files of replicas that were moved to another log dir. Until then they are kept for readers.

A partition's files in a log dir are deleted only while it has no replica there: a claim of the files (`deleting`) and
the placement of a replica both lock the partition's row, and each is refused after the other. If the process that
deletes is killed, the rows remain, and the next clean-up continues.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import sqlalchemy as sa

from spark_log.cluster.brokers import ONLINE_LOG_DIRS
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.lease import Fence
from spark_log.cluster.log_dir import LogDirInfo
from spark_log.cluster.topics import Topic, undamaged_config
from spark_log.errors import NotControllerError, NotCoordinatorError, SparkLogError, redact
from spark_log.ids import LogDirId
from spark_log.log.partitions.partition_rows import Key, lock_partitions
from spark_log.log.partitions.replication_rules import PartitionState
from spark_log.log.partitions.retired_files import DUE_MS
from spark_log.metadata import tables as t
from spark_log.metadata.connections.server_identity import check_identity
from spark_log.metadata.sql_columns import RETIRED_REPLICA, TOPIC
from spark_log.metadata.store_clock import StoreClock

logger = logging.getLogger(__name__)

_CLAIMED_MAX = 200
"""The number of replicas that one transaction claims."""
_THIS = (
    (RETIRED_REPLICA.log_dir_id == sa.bindparam("key_log_dir"))
    & (RETIRED_REPLICA.topic_id == sa.bindparam("key_topic"))
    & (RETIRED_REPLICA.partition == sa.bindparam("key_partition"))
)


def retire_moved_replicas(
    connection: sa.Connection,
    before: Mapping[Key, PartitionState],
    after: Mapping[Key, PartitionState],
    topics: Mapping[int, Topic],
    now: StoreClock,
) -> None:
    """Retire the replicas that `after` lacks. Cancel the retirement in log dirs where a partition has a new replica."""
    added: list[dict[str, Any]] = []
    removed: list[dict[str, Any]] = []
    for key, state in after.items():
        old = {replica.log_dir_id for replica in before[key].replicas}
        new = {replica.log_dir_id for replica in state.replicas}
        added += [_parameters(log_dir_id, key) for log_dir_id in sorted(new - old)]
        removed += [
            {
                "log_dir_id": log_dir_id,
                "topic_id": key[0],
                "partition": key[1],
                "folder": topics[key[0]].folder,
                "retired_ms": now.wall_ms,
                "deleting": False,
            }
            for log_dir_id in sorted(old - new)
        ]
    if added:
        connection.execute(t.retired_replica.delete().where(_THIS), added)
    if removed:
        connection.execute(t.retired_replica.insert(), removed)


def delete_retired_replicas(cluster: Cluster, fence: Fence, stopping: Callable[[], bool] = lambda: False) -> int:
    """Delete the files of replicas retired for longer than the topic's file.delete.delay.ms. Returns their number.

    If a log dir fails, its rows are kept, and the other log dirs are cleaned. When `stopping` returns True, the
    remaining replicas are left to the next call.
    """
    claimed = _claim(cluster, fence)
    if not claimed:
        return 0
    infos = cluster.log_dirs()
    deleted = 0
    for log_dir_id, key, folder in claimed:
        if stopping():
            break
        if log_dir_id not in infos:  # its broker was removed just now
            continue
        try:
            _delete_files(cluster, fence, infos[log_dir_id], key, f"{folder}/_segments/{key[1]}")
        except (NotControllerError, NotCoordinatorError):
            raise
        except (SparkLogError, OSError) as error:
            where = redact(infos[log_dir_id].uri)
            logger.warning("%s: a retired replica is not deleted yet: %s", where, redact(str(error)))
            continue
        deleted += 1
    return deleted


def _claim(cluster: Cluster, fence: Fence) -> list[tuple[LogDirId, Key, str]]:
    """Claim the replicas that are due, and return them with those whose deletion another process has begun. Replicas in
    offline log dirs are left out: a log dir that hangs would delay all others.
    """
    store = cluster.store
    store.read(check_identity)
    query = (
        sa.select(t.retired_replica, TOPIC.configs)
        .join(t.topic, TOPIC.topic_id == RETIRED_REPLICA.topic_id)
        .where(RETIRED_REPLICA.log_dir_id.in_(ONLINE_LOG_DIRS))
    )

    def due(connection: sa.Connection) -> list[Any]:
        now_ms = store.clock(connection).wall_ms
        rows = connection.execute(
            query.order_by(RETIRED_REPLICA.topic_id, RETIRED_REPLICA.partition, RETIRED_REPLICA.log_dir_id)
        ).all()
        return [
            row
            for row in rows
            if row.deleting
            or (
                (config := undamaged_config(row.configs)) is not None
                and row.retired_ms + config.file_delete_delay_ms <= now_ms
            )
        ]

    rows = store.read(due)
    unclaimed = [row for row in rows if not row.deleting]

    def claim(portion: Sequence[Any], connection: sa.Connection) -> set[tuple[int, int, int]]:
        states = lock_partitions(connection, [(row.topic_id, row.partition) for row in portion])
        mine = set()
        for row in portion:
            key = (row.topic_id, row.partition)
            placed = {replica.log_dir_id for replica in states[key].replicas} if key in states else set()
            free = key in states and row.log_dir_id not in placed
            statement = t.retired_replica.update().where(_THIS).values(deleting=True)
            if free and connection.execute(statement, _parameters(row.log_dir_id, key)).rowcount == 1:
                mine.add((row.log_dir_id, *key))
        return mine

    claimed: set[tuple[int, int, int]] = set()
    for first in range(0, len(unclaimed), _CLAIMED_MAX):  # appends wait for the locks of the partitions
        claimed |= store.transact(partial(claim, unclaimed[first : first + _CLAIMED_MAX]), fence=fence)
    return [
        (LogDirId(row.log_dir_id), (row.topic_id, row.partition), row.folder)
        for row in rows
        if row.deleting or (row.log_dir_id, row.topic_id, row.partition) in claimed
    ]


def _delete_files(cluster: Cluster, fence: Fence, info: LogDirInfo, key: Key, folder: str) -> None:
    log_dir = cluster.log_dir(info)
    log_dir.verify(info.uuid)  # an unmounted log dir would look empty, as if all files were deleted
    this = _parameters(info.log_dir_id, key)

    def still_ours(connection: sa.Connection) -> bool | None:
        check_identity(connection)
        fence(connection)
        return connection.execute(sa.select(RETIRED_REPLICA.deleting).where(_THIS), this).scalar()

    for path in sorted(log_dir.list_files(folder)):
        # Checked for each file. If this process pauses while another one finishes, and the partition gets a replica
        # here again, at most one of its files is deleted, and readers repair it. A claim that only a former primary
        # has deletes nothing.
        if not cluster.store.read_as_primary(still_ours):
            return
        log_dir.delete(path)
    log_dir.delete_empty_folder(folder)

    def forget(connection: sa.Connection) -> None:
        connection.execute(t.retired_replica.delete().where(_THIS, RETIRED_REPLICA.deleting), this)

    cluster.store.transact(forget, fence=fence)


def _parameters(log_dir_id: int, key: Key) -> dict[str, Any]:
    return {"key_log_dir": log_dir_id, "key_topic": key[0], "key_partition": key[1]}


def make_replicas_due(connection: sa.Connection, topic: Topic) -> None:
    """Let the next clean-up delete the topic's retired replicas, however recently they were retired."""
    these = t.retired_replica.update().where(RETIRED_REPLICA.topic_id == topic.topic_id)
    connection.execute(these.values(retired_ms=DUE_MS))
