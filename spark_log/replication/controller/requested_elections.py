"""Elects leaders on request: preferred leaders, or unclean leaders for partitions that are offline."""

from collections.abc import Collection
from functools import partial

import sqlalchemy as sa

from spark_log.cluster.brokers import alive_log_dirs
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.each_store import partitions_by_store
from spark_log.cluster.lease import unfenced
from spark_log.cluster.topics import find_topics
from spark_log.errors import (
    ElectionNotNeededError,
    EligibleLeadersNotAvailableError,
    PreferredLeaderNotAvailableError,
    SparkLogError,
    UnknownTopicOrPartitionError,
)
from spark_log.ids import OffsetRange, TopicPartition
from spark_log.log.partitions.partition_rows import Key, read_partitions
from spark_log.log.partitions.replication_rules import PartitionState, fail_over
from spark_log.replication.controller.controller import elect_leaders, elect_preferred_leaders
from spark_log.replication.controller.fallback_controller import FallbackController
from spark_log.text import count_of


def elect(
    cluster: Cluster, partitions: Collection[TopicPartition], *, unclean: bool = False
) -> dict[TopicPartition, SparkLogError | None]:
    """Hold an election for each partition. The result of a partition is None if a new leader was elected, or else one
    of these errors: ElectionNotNeededError, PreferredLeaderNotAvailableError, EligibleLeadersNotAvailableError (no live
    replica), or UnknownTopicOrPartitionError.

    An unclean election only elects leaders for partitions without one. It may lose records; the truncation is recorded
    and logged. No controller lease is needed, because each transaction itself reads which replicas are alive.
    """
    outcomes: dict[TopicPartition, SparkLogError | None] = {}
    for store_id, there in partitions_by_store(cluster, partitions).items():
        outcomes |= _elect(cluster.at(store_id), there, unclean=unclean)
    return dict(sorted(outcomes.items()))


def expected_truncations(cluster: Cluster, partitions: Collection[TopicPartition]) -> dict[TopicPartition, OffsetRange]:
    """Return the offsets that an unclean election would now remove from those partitions that have no leader."""
    removed: dict[TopicPartition, OffsetRange] = {}
    for store_id, there in partitions_by_store(cluster, partitions).items():
        view = cluster.at(store_id)
        FallbackController(view).detect_failures()  # the election does this too
        states = view.store.read(partial(_read_partitions, cluster=view, partitions=there))
        for tp, (_, state, alive) in states.items():
            _, truncation = fail_over(state, alive, unclean=True) if state.leader is None else (state, None)
            if truncation is not None:
                removed[tp] = OffsetRange(truncation.start_offset, state.log_end_offset)
    return dict(sorted(removed.items()))


def _elect(
    cluster: Cluster, partitions: Collection[TopicPartition], *, unclean: bool
) -> dict[TopicPartition, SparkLogError | None]:
    FallbackController(cluster).detect_failures()  # a replica on a failed log dir must not be elected
    before = cluster.store.read(lambda connection: _read_partitions(connection, cluster, partitions))
    keys = {tp: key for tp, (key, _, _) in before.items()}
    if unclean:
        offline = {key for key, state, _ in before.values() if state.leader is None}
        changed = set(elect_leaders(cluster.store, unfenced, unclean=offline).elected) if offline else set()
    else:
        changed = set(elect_preferred_leaders(cluster.store, unfenced, list(keys.values())))
    outcomes: dict[TopicPartition, SparkLogError | None] = {}
    for tp in sorted(partitions):
        if tp not in before:
            outcomes[tp] = UnknownTopicOrPartitionError(f"partition {tp}: unknown topic or partition")
        elif keys[tp] in changed:
            outcomes[tp] = None
        else:
            _, state, alive = before[tp]
            outcomes[tp] = _refusal(tp, state, alive, unclean)
    return outcomes


def _refusal(tp: TopicPartition, state: PartitionState, alive: Collection[int], unclean: bool) -> SparkLogError:
    if unclean:
        if state.leader is not None:
            return ElectionNotNeededError(f"partition {tp}: broker {state.leader} leads it")
        return EligibleLeadersNotAvailableError(f"partition {tp}: none of its replicas is alive")
    preferred = state.replicas[0] if state.replicas else None
    if preferred is None or preferred.broker_id == state.leader:
        return ElectionNotNeededError(f"partition {tp}: its preferred leader leads it")
    if preferred.log_dir_id not in alive:
        reason = "is not alive"
    elif not preferred.in_sync:
        reason = "is not in sync"
    elif state.leader is None:
        reason = "cannot take over: the partition is offline, and electing its leader is not a preferred election"
    else:
        reason = f"lacks {count_of(state.log_end_offset - preferred.log_end_offset, 'record')} at the end of the log"
    return PreferredLeaderNotAvailableError(
        f"partition {tp}: its preferred leader, broker {preferred.broker_id}, {reason}"
    )


def _read_partitions(
    connection: sa.Connection, cluster: Cluster, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, tuple[Key, PartitionState, Collection[int]]]:
    """Return the existing partitions, each with its state and the log dirs that are alive."""
    alive = alive_log_dirs(connection, cluster.store.clock(connection))
    requested = frozenset(partitions)
    topics = find_topics(connection, {tp.topic for tp in requested})
    states: dict[TopicPartition, tuple[Key, PartitionState, Collection[int]]] = {}
    for name, topic in topics.items():
        for key, state in read_partitions(connection, topic.topic_id).items():
            tp = TopicPartition(name, key[1])
            if tp in requested:
                states[tp] = (key, state, alive)
    return states
