"""Reads and writes table `reassignment`, which has the running reassignments, and computes their progress.

A partition's row is written only under the partition's row lock.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.each_store import ask_stores
from spark_log.ids import TopicPartition, numbers_by_topic
from spark_log.log.partitions.partition_rows import Key
from spark_log.metadata import tables as t
from spark_log.metadata.prepared import in_list
from spark_log.metadata.sql_columns import REASSIGNMENT, REPLICA, SEGMENT, TOPIC
from spark_log.metadata.store import Store
from spark_log.replication.controller.reassignment_rules import Reassignment

_SAME = (REPLICA.topic_id == REASSIGNMENT.topic_id) & (REPLICA.partition == REASSIGNMENT.partition)


@dataclass(frozen=True)
class ReassignmentStatus:
    """A running reassignment. `replicas` is the present AR, and `in_sync` the ISR, as broker ids.

    `bytes_left` is the number of bytes in segment files that the replicas of the target lack. `began_ms` is the time of
    the request by the store's clock.
    """

    reassignment: Reassignment
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    throttle_bytes_per_s: int | None
    began_ms: int
    bytes_left: int

    @property
    def adding(self) -> tuple[int, ...]:
        return tuple(broker for broker in self.reassignment.target if broker not in self.reassignment.original)

    @property
    def removing(self) -> tuple[int, ...]:
        return tuple(broker for broker in self.replicas if broker not in self.reassignment.target)


def list_all_reassignments(cluster: Cluster) -> dict[TopicPartition, ReassignmentStatus]:
    """Return the reassignments in progress in all stores that answer."""
    answers = ask_stores(cluster, lambda each: list_reassignments(each.store))
    return {tp: status for found in answers.results.values() for tp, status in found.items()}


def list_reassignments(store: Store) -> dict[TopicPartition, ReassignmentStatus]:
    """Return the reassignments in progress, by topic and partition."""
    missing = (
        (SEGMENT.topic_id == REPLICA.topic_id)
        & (SEGMENT.partition == REPLICA.partition)
        & (SEGMENT.end_offset > REPLICA.log_end_offset)
    )
    per_replica = (
        sa.select(
            REASSIGNMENT.topic_id,
            REASSIGNMENT.partition,
            REPLICA.broker_id,
            REPLICA.in_sync,
            sa.func.sum(SEGMENT.bytes).label("bytes_left"),
        )
        .select_from(t.reassignment.join(t.replica, _SAME).outerjoin(t.segment, missing & ~SEGMENT.inline))
        .group_by(REASSIGNMENT.topic_id, REASSIGNMENT.partition, REPLICA.broker_id, REPLICA.in_sync, REPLICA.preference)
        .order_by(REASSIGNMENT.topic_id, REASSIGNMENT.partition, REPLICA.preference)
    )

    def read(connection: sa.Connection) -> dict[TopicPartition, ReassignmentStatus]:
        rows = connection.execute(sa.select(t.reassignment)).all()
        if not rows:
            return {}
        names = dict(tuple(row) for row in connection.execute(sa.select(TOPIC.topic_id, TOPIC.name)))
        replicas: dict[Key, list[Any]] = {}
        for row in connection.execute(per_replica):
            replicas.setdefault((row.topic_id, row.partition), []).append(row)
        statuses: dict[TopicPartition, ReassignmentStatus] = {}
        for row in rows:
            mine = replicas.get((row.topic_id, row.partition), [])
            reassignment = _reassignment_of(row)
            statuses[TopicPartition(names[row.topic_id], row.partition)] = ReassignmentStatus(
                reassignment,
                tuple(replica.broker_id for replica in mine),
                tuple(replica.broker_id for replica in mine if replica.in_sync),
                row.throttle_bytes_per_s,
                row.began_ms,
                sum(int(replica.bytes_left or 0) for replica in mine if replica.broker_id in reassignment.target),
            )
        return dict(sorted(statuses.items()))

    return store.read(read)


def read_ready_partitions(connection: sa.Connection) -> list[Key]:
    """Return the partitions whose target is in sync in this snapshot. The switch checks that again under the lock."""
    targets: dict[Key, list[int]] = {}
    in_sync: dict[Key, set[int]] = {}
    query = sa.select(REASSIGNMENT.topic_id, REASSIGNMENT.partition, REASSIGNMENT.target, REPLICA.broker_id)
    for row in connection.execute(query.join(t.replica, _SAME).where(REPLICA.in_sync)):
        targets[row.topic_id, row.partition] = json.loads(row.target)
        in_sync.setdefault((row.topic_id, row.partition), set()).add(row.broker_id)
    return sorted(key for key, target in targets.items() if in_sync[key].issuperset(target))


def under_way(connection: sa.Connection, keys: Sequence[Key]) -> dict[Key, Reassignment]:
    """Return the running reassignments of these partitions."""
    found: dict[Key, Reassignment] = {}
    for topic_id, numbers in numbers_by_topic(keys).items():
        partitions = (REASSIGNMENT.topic_id == topic_id) & in_list(REASSIGNMENT.partition, numbers)
        for row in connection.execute(sa.select(t.reassignment).where(partitions)):
            found[row.topic_id, row.partition] = _reassignment_of(row)
    return found


def forget(connection: sa.Connection, keys: Sequence[Key]) -> None:
    """Delete the reassignments of these partitions."""
    for topic_id, numbers in numbers_by_topic(keys).items():
        connection.execute(
            t.reassignment.delete().where(REASSIGNMENT.topic_id == topic_id, in_list(REASSIGNMENT.partition, numbers))
        )


def row_of(key: Key, reassignment: Reassignment, throttle_bytes_per_s: int | None, began_ms: int) -> dict[str, Any]:
    return {
        "topic_id": key[0],
        "partition": key[1],
        "target": json.dumps(reassignment.target),
        "original": json.dumps(reassignment.original),
        "throttle_bytes_per_s": throttle_bytes_per_s,
        "began_ms": began_ms,
    }


def _reassignment_of(row: Any) -> Reassignment:
    return Reassignment(tuple(json.loads(row.target)), tuple(json.loads(row.original)))
