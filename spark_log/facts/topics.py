"""Describes topics: partitions, replicas, leaders and in-sync replicas."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from spark_log.cluster.brokers import alive_log_dirs
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.each_store import ask_stores, by_store
from spark_log.cluster.topics import Topic, find_topics, unknown_topic
from spark_log.ids import TopicId
from spark_log.metadata import tables as t
from spark_log.metadata.sql_columns import PARTITION, REPLICA
from spark_log.metadata.store_clock import StoreClock


@dataclass(frozen=True)
class ReplicaInfo:
    """A replica. `lag` is the number of offsets that it lacks below the partition's log end offset. A replica is
    `alive` if its broker and its log dir are.
    """

    broker_id: int
    log_dir_id: int
    log_end_offset: int
    in_sync: bool
    alive: bool
    lag: int


@dataclass(frozen=True)
class PartitionInfo:
    """A partition: log_start_offset <= high_watermark <= log_end_offset; `replicas` in AR order, the preferred leader
    first.

    `leader` is None while the partition is offline (or, of an internal topic, because the store itself keeps it).
    """

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

    @property
    def osr(self) -> tuple[int, ...]:
        return tuple(replica.broker_id for replica in self.replicas if not replica.in_sync)

    @property
    def dead(self) -> tuple[int, ...]:
        """Return Kafka's offline replicas: brokers of AR that are not alive, or whose log dir is not."""
        return tuple(replica.broker_id for replica in self.replicas if not replica.alive)

    @property
    def preferred_leader(self) -> int | None:
        return self.replicas[0].broker_id if self.replicas else None

    @property
    def offline(self) -> bool:
        """Whether the partition has no leader, and cannot be written, because no member of the ISR is alive."""
        return self.leader is None and bool(self.replicas)


@dataclass(frozen=True)
class TopicDescription:
    topic: Topic
    partitions: tuple[PartitionInfo, ...]
    """Empty while the store of the topic does not answer."""


def describe_topics(cluster: Cluster, names: Sequence[str]) -> list[TopicDescription]:
    """Return the topics with their partitions and replicas, in the requested order. Raises UnknownTopicOrPartitionError
    if one is missing.
    """

    def read(connection: sa.Connection) -> list[TopicDescription]:
        found = find_topics(connection, names)
        for name in names:
            if name not in found:
                raise unknown_topic(connection, name)
        return describe(connection, [found[name] for name in names], cluster.store.clock(connection))

    return with_data_stores(cluster, cluster.store.read(read))


def with_data_stores(cluster: Cluster, described: Sequence[TopicDescription]) -> list[TopicDescription]:
    """Add the partitions of topics of data stores to descriptions from a snapshot of the home store."""
    elsewhere = by_store(each.topic for each in described if each.topic.store_id != cluster.store_id)
    if not elsewhere:
        return list(described)

    def describe_there(data: Cluster) -> dict[TopicId, TopicDescription]:
        topics = elsewhere[data.store_id]
        found = data.store.read(lambda c: describe(c, topics, data.store.clock(c)))
        return {description.topic.topic_id: description for description in found}

    answers = ask_stores(cluster, describe_there, elsewhere)
    there = {topic_id: description for found in answers.results.values() for topic_id, description in found.items()}
    return [there.get(description.topic.topic_id, description) for description in described]


def describe(connection: sa.Connection, topics: Sequence[Topic], now: StoreClock) -> list[TopicDescription]:
    """Return the topics, found in the same snapshot, with their partitions and replicas."""
    alive = alive_log_dirs(connection, now)
    return [TopicDescription(topic, _partitions(connection, topic.topic_id, alive)) for topic in topics]


def _partitions(connection: sa.Connection, topic_id: TopicId, alive: Collection[int]) -> tuple[PartitionInfo, ...]:
    replicas: dict[int, list[ReplicaInfo]] = {}
    query = (
        sa.select(
            REPLICA.partition,
            REPLICA.broker_id,
            REPLICA.log_dir_id,
            REPLICA.log_end_offset,
            REPLICA.in_sync,
            PARTITION.log_end_offset.label("end"),
        )
        .join(t.partition, (PARTITION.topic_id == REPLICA.topic_id) & (PARTITION.partition == REPLICA.partition))
        .where(REPLICA.topic_id == topic_id)
        .order_by(REPLICA.partition, REPLICA.preference)
    )
    for partition, broker_id, log_dir_id, log_end_offset, in_sync, end in connection.execute(query):
        facts = ReplicaInfo(broker_id, log_dir_id, log_end_offset, in_sync, log_dir_id in alive, end - log_end_offset)
        replicas.setdefault(partition, []).append(facts)
    rows = connection.execute(
        sa.select(
            PARTITION.partition,
            PARTITION.leader,
            PARTITION.leader_epoch,
            PARTITION.log_start_offset,
            PARTITION.high_watermark,
            PARTITION.log_end_offset,
        )
        .where(PARTITION.topic_id == topic_id)
        .order_by(PARTITION.partition)
    )
    return tuple(PartitionInfo(*row, replicas=tuple(replicas.get(row.partition, ()))) for row in rows)
