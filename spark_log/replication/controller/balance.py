"""Measures how evenly records and leaders are spread over brokers and log dirs, and finds partitions that cause an
imbalance.

Pure, except for the queries, and the controller's task that elects preferred leaders.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.each_store import ask_stores
from spark_log.cluster.lease import Fence
from spark_log.cluster.usage import READABLE, READABLE_RECORDS
from spark_log.ids import TopicPartition
from spark_log.log.partitions.partition_rows import Key
from spark_log.metadata import tables as t
from spark_log.metadata.sql_columns import PARTITION, REASSIGNMENT, REPLICA, SEGMENT, TOPIC
from spark_log.metadata.store import Store
from spark_log.replication.controller.controller import elect_preferred_leaders

SKEW_RATIO = 1.5
"""A partition of at least this many times its topic's mean is skewed. A broker with at least this many times the
brokers' mean is overloaded.
"""

_LARGEST_MAX = 5
"""The maximum number of replicas to list for an overloaded broker."""


class ReplicaFacts(NamedTuple):
    """A replica. `bytes` and `records` are those of its segments, counted as in `cluster.usage`.

    `file_bytes` counts only the segment files in its log dir, without the inline tail. `offset_lag` is the number of
    offsets that it lacks below the high watermark.
    """

    tp: TopicPartition
    broker_id: int
    log_dir_id: int
    preferred: bool
    leads: bool
    bytes: int
    records: int
    file_bytes: int = 0
    offset_lag: int = 0


@dataclass(frozen=True)
class Load:
    """The load of a broker or a log dir: the bytes and records of its replicas, and their number.

    `leaders` is the number of replicas that lead, and `preferred` the number of replicas that are preferred leaders.
    """

    bytes: int = 0
    records: int = 0
    replicas: int = 0
    leaders: int = 0
    preferred: int = 0

    @classmethod
    def of(cls, replicas: Sequence[ReplicaFacts]) -> "Load":
        return cls(
            sum(each.bytes for each in replicas),
            sum(each.records for each in replicas),
            len(replicas),
            sum(each.leads for each in replicas),
            sum(each.preferred for each in replicas),
        )


@dataclass(frozen=True)
class BrokerBalance:
    """A broker's load, and the deviations of its bytes and records from the mean of all brokers, 0 if the mean is 0.

    `led_elsewhere` are the partitions that this broker does not lead, although it is their preferred leader.
    `imbalance_percent` is their share of the partitions with this preferred leader, as in Kafka. `largest` are the
    replicas with the most bytes of an overloaded broker (SKEW_RATIO), and empty for other brokers.
    """

    broker_id: int
    load: Load
    log_dirs: dict[int, Load]
    bytes_deviation_percent: float
    records_deviation_percent: float
    imbalance_percent: float
    led_elsewhere: tuple[TopicPartition, ...]
    largest: tuple[ReplicaFacts, ...]


@dataclass(frozen=True)
class Skew:
    """A partition that is much larger than the mean of its topic.

    `ratio` is its size divided by the mean. Of the ratios of bytes and of records, it is the larger one.
    """

    tp: TopicPartition
    bytes: int
    records: int
    ratio: float


@dataclass(frozen=True)
class Balance:
    brokers: tuple[BrokerBalance, ...]
    skewed: tuple[Skew, ...]
    """The skewed partitions, that with the largest ratio first."""


def balance(replicas: Sequence[ReplicaFacts], log_dirs: dict[int, int]) -> Balance:
    """Compute the balance. `log_dirs` maps the id of each log dir of the cluster to its broker id."""
    brokers = sorted(set(log_dirs.values()))
    of_dir: dict[int, list[ReplicaFacts]] = {log_dir_id: [] for log_dir_id in log_dirs}
    of_broker: dict[int, list[ReplicaFacts]] = {broker_id: [] for broker_id in brokers}
    for facts in replicas:
        of_dir[facts.log_dir_id].append(facts)
        of_broker[facts.broker_id].append(facts)
    by_broker = {broker_id: Load.of(mine) for broker_id, mine in of_broker.items()}
    mean_bytes = _mean(load.bytes for load in by_broker.values())
    mean_records = _mean(load.records for load in by_broker.values())
    moves = []
    for broker_id in brokers:
        load, mine = by_broker[broker_id], of_broker[broker_id]
        elsewhere = tuple(sorted(facts.tp for facts in mine if facts.preferred and not facts.leads))
        loaded = mean_bytes > 0 and load.bytes >= SKEW_RATIO * mean_bytes
        heaviest = sorted(mine, key=lambda facts: (-facts.bytes, facts.tp))[:_LARGEST_MAX] if loaded else []
        moves.append(
            BrokerBalance(
                broker_id,
                load,
                {
                    log_dir_id: Load.of(of_dir[log_dir_id])
                    for log_dir_id, owner in sorted(log_dirs.items())
                    if owner == broker_id
                },
                _deviation_percent(load.bytes, mean_bytes),
                _deviation_percent(load.records, mean_records),
                100.0 * len(elsewhere) / load.preferred if load.preferred else 0.0,
                elsewhere,
                tuple(heaviest),
            )
        )
    return Balance(tuple(moves), _skewed(replicas))


def _skewed(replicas: Iterable[ReplicaFacts]) -> tuple[Skew, ...]:
    """Return the skewed partitions. A partition counts with the size of its largest replica."""
    sizes: dict[TopicPartition, tuple[int, int]] = {}
    for facts in replicas:
        size, records = sizes.get(facts.tp, (0, 0))
        sizes[facts.tp] = (max(size, facts.bytes), max(records, facts.records))
    topics: dict[str, list[TopicPartition]] = {}
    for tp in sizes:
        topics.setdefault(tp.topic, []).append(tp)
    skews = []
    for partitions in topics.values():
        means = [_mean(sizes[tp][i] for tp in partitions) for i in (0, 1)]
        for tp in partitions:
            ratio = max((sizes[tp][i] / means[i] for i in (0, 1) if means[i]), default=0.0)
            if ratio >= SKEW_RATIO:
                skews.append(Skew(tp, *sizes[tp], ratio))
    return tuple(sorted(skews, key=lambda skew: (-skew.ratio, skew.tp)))


def _mean(values: Iterable[int]) -> float:
    listed = list(values)
    return sum(listed) / len(listed) if listed else 0.0


def _deviation_percent(value: int, mean: float) -> float:
    return 100.0 * (value - mean) / mean if mean else 0.0


def load_replicas(connection: sa.Connection) -> list[ReplicaFacts]:
    """Return all replicas of the store, in the caller's snapshot."""
    here = (
        (SEGMENT.topic_id == REPLICA.topic_id)
        & (SEGMENT.partition == REPLICA.partition)
        & (SEGMENT.end_offset <= REPLICA.log_end_offset)
    )
    # The query groups only by the primary key of table replica, because both databases read the rows in that order. The
    # other columns are equal within a group.
    query = (
        sa.select(
            REPLICA.topic_id,
            REPLICA.partition,
            REPLICA.broker_id,
            *map(sa.func.max, (REPLICA.log_dir_id, REPLICA.preference, REPLICA.log_end_offset)),
            *map(sa.func.max, (PARTITION.leader, PARTITION.high_watermark)),
            sa.func.sum(sa.case((READABLE, SEGMENT.bytes), else_=0)),
            sa.func.sum(sa.case((READABLE, READABLE_RECORDS), else_=0)),
            sa.func.sum(sa.case((SEGMENT.inline, 0), else_=SEGMENT.bytes)),
        )
        .select_from(
            t.replica.join(
                t.partition, (PARTITION.topic_id == REPLICA.topic_id) & (PARTITION.partition == REPLICA.partition)
            ).outerjoin(t.segment, here)
        )
        .group_by(REPLICA.topic_id, REPLICA.partition, REPLICA.broker_id)
    )
    names = dict(tuple(row) for row in connection.execute(sa.select(TOPIC.topic_id, TOPIC.name)))
    return sorted(
        ReplicaFacts(
            TopicPartition(names[topic_id], partition), broker_id, log_dir_id, preference == 0, leader == broker_id,
            int(size or 0), int(records or 0), int(file_bytes or 0), max(0, high_watermark - end),
        )
        for (
            topic_id, partition, broker_id, log_dir_id, preference, end, leader, high_watermark, size, records,
            file_bytes,
        ) in connection.execute(query).all()
    )  # fmt: skip


def load_balance(cluster: Cluster) -> Balance:
    """Return the present balance of the cluster, with the replicas of all stores that answer."""
    owners = {log_dir_id: info.broker_id for log_dir_id, info in cluster.log_dirs().items()}
    replicas = load_all_replicas(cluster)
    return balance(replicas, owners | {each.log_dir_id: each.broker_id for each in replicas})


def load_all_replicas(cluster: Cluster) -> list[ReplicaFacts]:
    """Return the replicas of all stores that answer."""
    return cluster.store.read(load_replicas) + replicas_of_data_stores(cluster)


def replicas_of_data_stores(cluster: Cluster) -> list[ReplicaFacts]:
    """Return the replicas of the data stores that answer."""
    answers = ask_stores(cluster, lambda data: data.store.read(load_replicas), cluster.store_ids()[1:])
    return [facts for found in answers.results.values() for facts in found]


# auto.leader.rebalance.enable ---------------------------------------------------------------------------------------


class Preference(NamedTuple):
    """The preferred and the present leader of a partition."""

    key: Key
    preferred: int
    leader: int | None


def partitions_to_elect(preferences: Sequence[Preference], threshold_percent: int) -> list[Key]:
    """Return the partitions to elect: of each broker above the threshold, those that it should lead but does not.

    A broker is above the threshold if, of the partitions whose preferred leader it is, it does not lead more than
    `threshold_percent`.
    """
    total = Counter(preference.preferred for preference in preferences)
    elsewhere = [preference for preference in preferences if preference.leader != preference.preferred]
    away = Counter(preference.preferred for preference in elsewhere)
    above = {broker_id for broker_id, count in away.items() if 100 * count > threshold_percent * total[broker_id]}
    return sorted(preference.key for preference in elsewhere if preference.preferred in above)


def auto_rebalance(store: Store, fence: Fence, threshold_percent: int) -> list[Key]:
    """Elect preferred leaders for the brokers above the threshold (leader.imbalance.per.broker.percentage).

    Return the partitions whose leader changed. Partitions under reassignment are left out, because their AR is about to
    change.
    """
    moving = (
        sa.select(REASSIGNMENT.topic_id)
        .where(REASSIGNMENT.topic_id == REPLICA.topic_id, REASSIGNMENT.partition == REPLICA.partition)
        .exists()
    )
    query = (
        sa.select(REPLICA.topic_id, REPLICA.partition, REPLICA.broker_id, PARTITION.leader)
        .join(t.partition, (PARTITION.topic_id == REPLICA.topic_id) & (PARTITION.partition == REPLICA.partition))
        .where(REPLICA.preference == 0, ~moving)
    )
    preferences = store.read(
        lambda connection: [Preference((row[0], row[1]), row[2], row[3]) for row in connection.execute(query)]
    )
    return elect_preferred_leaders(store, fence, partitions_to_elect(preferences, threshold_percent))
