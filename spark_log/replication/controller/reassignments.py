"""Starts, cancels and finishes reassignments in the metadata store (Kafka's KIP-455).

The rules are in `reassignment_rules`; `replication.replicas.catch_up` copies the files. All state is in the store, so
any process can continue after another one has died.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import sqlalchemy as sa

from spark_log.cluster.brokers import alive_log_dirs, keep_brokers
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.each_store import partitions_by_store
from spark_log.cluster.lease import Fence
from spark_log.cluster.names import is_kept_by_store, validate_topic_name
from spark_log.cluster.topics import Topic, find_topics, set_replication_factor
from spark_log.errors import (
    InvalidConfigurationError,
    InvalidReplicationAssignmentError,
    InvalidReplicationFactorError,
    NoReassignmentInProgressError,
    PolicyViolationError,
    UnknownTopicOrPartitionError,
)
from spark_log.failpoints import failpoint
from spark_log.ids import TopicPartition
from spark_log.log.partitions.partition_rows import Key, lock_partitions, save_partitions
from spark_log.log.partitions.replication_rules import PartitionState
from spark_log.log.partitions.retired_replicas import retire_moved_replicas
from spark_log.metadata import tables as t
from spark_log.metadata.sql_columns import BROKER, LOG_DIR, REPLICA, RETIRED_REPLICA, TOPIC
from spark_log.metadata.store import Store
from spark_log.replication.controller.reassignment_rows import forget, read_ready_partitions, row_of, under_way
from spark_log.replication.controller.reassignment_rules import begin, cancel, finish

_SWITCHED_PER_TRANSACTION = 300
_THROTTLE_MAX = 2**63 - 1


def begin_reassignments(
    cluster: Cluster,
    brokers_by_partition: Mapping[TopicPartition, Sequence[int] | None],
    throttle_bytes_per_s: int | None = None,
    *,
    same_factor: bool = False,
) -> None:
    """Begin to move partitions to the given brokers, the preferred leader first. None cancels a reassignment.

    If one is refused, no partition of the same store changes. A new target replaces that of a reassignment in progress.
    With `same_factor` a target with another replication factor is refused (KIP-860). Raises InvalidTopicError,
    UnknownTopicOrPartitionError, PolicyViolationError (`__consumer_offsets`), InvalidReplicationAssignmentError,
    InvalidReplicationFactorError, NoReassignmentInProgressError (nothing to cancel), InvalidConfigurationError (the
    throttle).
    """
    _check_throttle(throttle_bytes_per_s)
    targets = {partition: _checked_target(partition, target) for partition, target in brokers_by_partition.items()}
    for store_id, there in partitions_by_store(cluster, targets).items():
        _begin(cluster.at(store_id), {tp: targets[tp] for tp in there}, throttle_bytes_per_s, same_factor=same_factor)


def _begin(
    cluster: Cluster,
    targets: Mapping[TopicPartition, tuple[int, ...] | None],
    throttle_bytes_per_s: int | None,
    *,
    same_factor: bool,
) -> None:
    def body(connection: sa.Connection) -> None:
        keep_brokers(connection, {broker for target in targets.values() for broker in target or ()})
        now = cluster.store.clock(connection)
        alive = alive_log_dirs(connection, now)
        topics = find_topics(connection, {name for name, _ in targets}, lock=True)
        keys = {_key(topics, tp): tp for tp in targets}
        before = lock_partitions(connection, list(keys))
        running = under_way(connection, list(before))
        placing = _Placing(connection, alive)
        after: dict[Key, PartitionState] = {}
        rows = []
        for key, tp in sorted(keys.items()):
            target = targets[tp]
            with _naming(tp):
                if key not in before:
                    raise UnknownTopicOrPartitionError("unknown topic or partition")
                if target is None:
                    if key not in running:
                        raise NoReassignmentInProgressError("there is no reassignment to cancel")
                    after[key] = cancel(before[key], running[key], alive)
                else:
                    _check_factor(before[key], target)
                    if same_factor:
                        _check_same_factor(running[key].target if key in running else before[key].replicas, target)
                    log_dirs = placing.choose(key, [b for b in target if before[key].replica(b) is None])
                    after[key], begun = begin(before[key], target, log_dirs, running.get(key))
                    rows.append(row_of(key, begun, throttle_bytes_per_s, now.wall_ms))
        save_partitions(connection, before, after)
        retire_moved_replicas(connection, before, after, {topic.topic_id: topic for topic in topics.values()}, now)
        forget(connection, list(after))
        if rows:
            connection.execute(t.reassignment.insert(), rows)

    cluster.store.transact(body, announce=True)
    failpoint("reassignment.begun")


def finish_reassignments(store: Store, fence: Fence) -> list[Key]:
    """Finish the reassignments whose target is in sync and alive, at most 300 per transaction.

    Return their partitions. Raises the error of `fence`.
    """
    ready = store.read(read_ready_partitions)
    done: list[Key] = []
    for first in range(0, len(ready), _SWITCHED_PER_TRANSACTION):
        chosen = ready[first : first + _SWITCHED_PER_TRANSACTION]
        switched = store.transact(partial(_switch, store=store, chosen=chosen), fence=fence, announce=True)
        if switched:
            failpoint("reassignment.switched")
        done += switched
    return done


def _switch(connection: sa.Connection, store: Store, chosen: list[Key]) -> list[Key]:
    now = store.clock(connection)
    alive = alive_log_dirs(connection, now)
    topics = _lock_topics(connection, {topic_id for topic_id, _ in chosen})
    before = lock_partitions(connection, [key for key in chosen if key[0] in topics])
    after: dict[Key, PartitionState] = {}
    for key, reassignment in under_way(connection, list(before)).items():
        switched = finish(before[key], reassignment, alive)
        if switched is not None:
            after[key] = switched
    save_partitions(connection, before, after)
    retire_moved_replicas(connection, before, after, topics, now)
    forget(connection, list(after))
    for (topic_id, number), state in after.items():
        if number == 0:
            set_replication_factor(connection, topic_id, len(state.replicas))
    return sorted(after)


class _Placing:
    """Chooses the log dir for a broker's new replica: the alive one with the fewest replicas.

    A log dir where a former replica of the partition is being deleted is left out.
    """

    def __init__(self, connection: sa.Connection, alive: Collection[int]) -> None:
        brokers = connection.execute(sa.select(BROKER.broker_id)).scalars()
        self._log_dirs: dict[int, list[int]] = {broker_id: [] for broker_id in brokers}
        owners = (
            sa.select(LOG_DIR.log_dir_id, LOG_DIR.broker_id)
            .where(LOG_DIR.log_dir_id.in_(alive))
            .order_by(LOG_DIR.log_dir_id)
        )
        for log_dir_id, broker_id in connection.execute(owners):
            self._log_dirs[broker_id].append(log_dir_id)
        counts = sa.select(REPLICA.log_dir_id, sa.func.count()).group_by(REPLICA.log_dir_id)
        self._replicas: Counter[int] = Counter({row[0]: row[1] for row in connection.execute(counts)})
        deleting = sa.select(RETIRED_REPLICA.log_dir_id, RETIRED_REPLICA.topic_id, RETIRED_REPLICA.partition).where(
            RETIRED_REPLICA.deleting
        )
        self._deleting = {(row[0], row[1], row[2]) for row in connection.execute(deleting)}

    def choose(self, key: Key, broker_ids: Sequence[int]) -> dict[int, int]:
        """Return the log dir id for each broker. Raises InvalidReplicationAssignmentError if a broker has none."""
        return {broker_id: self._choose(key, broker_id) for broker_id in broker_ids}

    def _choose(self, key: Key, broker_id: int) -> int:
        if broker_id not in self._log_dirs:
            known = ", ".join(map(str, sorted(self._log_dirs)))
            raise InvalidReplicationAssignmentError(
                f"replicas: there is no broker {broker_id} in this cluster; there are {known}"
            )
        if not self._log_dirs[broker_id]:
            raise InvalidReplicationAssignmentError(f"replicas: broker {broker_id} is not alive")
        free = [log_dir_id for log_dir_id in self._log_dirs[broker_id] if (log_dir_id, *key) not in self._deleting]
        if not free:
            raise InvalidReplicationAssignmentError(
                f"replicas: broker {broker_id} is still deleting its former replica of this partition; try again later"
            )
        chosen = min(free, key=lambda log_dir_id: (self._replicas[log_dir_id], log_dir_id))
        self._replicas[chosen] += 1
        return chosen


def _lock_topics(connection: sa.Connection, topic_ids: Collection[int]) -> dict[int, Topic]:
    names = sa.select(TOPIC.name).where(TOPIC.topic_id.in_(sorted(topic_ids)))
    found = find_topics(connection, connection.execute(names).scalars().all(), lock=True)
    return {topic.topic_id: topic for topic in found.values() if topic.topic_id in topic_ids}


def _key(topics: Mapping[str, Topic], tp: TopicPartition) -> Key:
    if tp.topic not in topics:
        raise UnknownTopicOrPartitionError(f"topic {tp.topic!r}: unknown topic or partition")
    return topics[tp.topic].topic_id, tp.partition


@contextmanager
def _naming(tp: TopicPartition) -> Iterator[None]:
    """Add the partition to the messages of errors in the block."""
    try:
        yield
    except (
        InvalidReplicationAssignmentError, InvalidReplicationFactorError, NoReassignmentInProgressError,
        UnknownTopicOrPartitionError,
    ) as error:  # fmt: skip
        raise type(error)(f"partition {tp}: {error}") from error


def _check_factor(state: PartitionState, target: Sequence[int]) -> None:
    if 0 < len(target) < state.min_insync_replicas:
        raise InvalidReplicationAssignmentError(
            f"replicas: {list(target)} are fewer than min.insync.replicas of the topic, {state.min_insync_replicas}:"
            " no append with acks=all could ever succeed"
        )


def _check_same_factor(replicas: Sequence[object], target: Sequence[int]) -> None:
    if len(replicas) != len(target):
        raise InvalidReplicationFactorError(
            f"The replication factor is changed from {len(replicas)} to {len(target)}, which the request disallows"
        )


def _checked_target(tp: TopicPartition, target: object) -> tuple[int, ...] | None:
    if is_kept_by_store(validate_topic_name(tp.topic)):
        raise PolicyViolationError(f"Cannot reassign topic {tp.topic!r}: it is internal to the metadata store")
    with _naming(tp):
        if isinstance(tp.partition, bool) or not isinstance(tp.partition, int) or not 0 <= tp.partition < 2**31:
            raise UnknownTopicOrPartitionError("unknown topic or partition")
        if target is None:
            return None
        if isinstance(target, str) or not isinstance(target, Sequence):
            raise InvalidReplicationAssignmentError(f"replicas: expected a list of broker ids, got {target!r}")
        for broker_id in target:
            if isinstance(broker_id, bool) or not isinstance(broker_id, int) or not 0 < broker_id < 2**31:
                raise InvalidReplicationAssignmentError(f"replicas: {broker_id!r} is not a broker id")
        return tuple(target)


def _check_throttle(throttle: object) -> None:
    if throttle is None:
        return
    if isinstance(throttle, bool) or not isinstance(throttle, int) or not 0 < throttle <= _THROTTLE_MAX:
        raise InvalidConfigurationError(f"throttle_bytes_per_s: expected a number of at least 1, got {throttle!r}")
