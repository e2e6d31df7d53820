"""What topics look like: their partitions, replicas, leaders and in-sync replicas."""

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.topics import Topic, find_topics
from spark_log.errors import UnknownTopicOrPartitionError
from spark_log.ids import TopicId
from spark_log.metadata import tables as t


@dataclass(frozen=True)
class ReplicaInfo:
    broker_id: int
    log_dir_id: int
    log_end_offset: int
    in_sync: bool


@dataclass(frozen=True)
class PartitionInfo:
    """log_start_offset <= high_watermark <= log_end_offset; `replicas` in AR order, the preferred leader first."""

    partition: int
    leader: int | None
    leader_epoch: int
    log_start_offset: int
    high_watermark: int
    log_end_offset: int
    replicas: tuple[ReplicaInfo, ...]

    @property
    def isr(self) -> tuple[int, ...]:
        return tuple(replica.broker_id for replica in self.replicas if replica.in_sync)


@dataclass(frozen=True)
class TopicDescription:
    topic: Topic
    partitions: tuple[PartitionInfo, ...]


def describe_topics(cluster: Cluster, names: Sequence[str]) -> list[TopicDescription]:
    """The topics with their partitions and replicas, in the order asked for. UnknownTopicOrPartitionError if one is
    missing.
    """

    def describe(connection: sa.Connection) -> list[TopicDescription]:
        found = find_topics(connection, names)
        for name in names:
            if name not in found:
                raise UnknownTopicOrPartitionError(f"topic {name!r}: unknown topic or partition")
        return [TopicDescription(found[name], _partitions(connection, found[name].topic_id)) for name in names]

    return cluster.store.read(describe)


def _partitions(connection: sa.Connection, topic_id: TopicId) -> tuple[PartitionInfo, ...]:
    replicas: dict[int, list[ReplicaInfo]] = {}
    r = t.replica.c
    query = (
        sa.select(r.partition, r.broker_id, r.log_dir_id, r.log_end_offset, r.in_sync)
        .where(r.topic_id == topic_id)
        .order_by(r.partition, r.preference)
    )
    for partition, *facts in connection.execute(query):
        replicas.setdefault(partition, []).append(ReplicaInfo(*facts))
    p = t.partition.c
    rows = connection.execute(
        sa.select(p.partition, p.leader, p.leader_epoch, p.log_start_offset, p.high_watermark, p.log_end_offset)
        .where(p.topic_id == topic_id)
        .order_by(p.partition)
    )
    return tuple(PartitionInfo(*row, replicas=tuple(replicas.get(row.partition, ()))) for row in rows)
