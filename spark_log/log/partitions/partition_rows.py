"""Locks partitions and their replicas, reads them as `PartitionState`, and writes them back.

Every change of a partition is one transaction: lock it here, decide with the rules of `replication_rules.py` or of
`log/append/rules.py`, and save the state that they return. The completed compactions of partitions are stored here too.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import bindparam

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.topics import Topic, topic_config, topics_of_ids
from spark_log.errors import TopicMovedError
from spark_log.ids import numbers_by_topic
from spark_log.log.partitions.replication_rules import PartitionState, Replica
from spark_log.metadata import tables as t
from spark_log.metadata.prepared import Answer, Prepared, in_list, one_message
from spark_log.metadata.sql_columns import COMPACTION, PARTITION, REPLICA, TOPIC

Key = tuple[int, int]
"""The topic id and the partition number."""

_MANY_PARTITIONS = 100


_PARTITION_COLUMNS = (
    PARTITION.partition, PARTITION.leader, PARTITION.leader_epoch, PARTITION.partition_epoch,
    PARTITION.log_start_offset, PARTITION.log_end_offset,
    PARTITION.high_watermark, PARTITION.recovery_point, PARTITION.tail_bytes, PARTITION.change, PARTITION.rewrites,
    TOPIC.configs,
)  # fmt: skip


def _partitions_where(*which: sa.ColumnElement[bool]) -> sa.Select[Any]:
    return (
        sa.select(*_PARTITION_COLUMNS)
        .join(t.topic, TOPIC.topic_id == PARTITION.topic_id)
        .where(PARTITION.topic_id == bindparam("topic_id"), *which)
        .order_by(PARTITION.partition)
    )


def _replicas_where(*which: sa.ColumnElement[bool]) -> sa.Select[Any]:
    return (
        sa.select(REPLICA.partition, REPLICA.broker_id, REPLICA.log_end_offset, REPLICA.in_sync, REPLICA.log_dir_id)
        .where(REPLICA.topic_id == bindparam("topic_id"), *which)
        .order_by(REPLICA.partition, REPLICA.preference)
    )


_NOT_FROZEN = ~PARTITION.frozen
_READ_ONE = Prepared(_partitions_where(PARTITION.partition == bindparam("partition")))
_LOCK_ONE = Prepared(
    _partitions_where(PARTITION.partition == bindparam("partition"), _NOT_FROZEN).with_for_update(of=t.partition)
)
_REPLICAS_OF_ONE = Prepared(_replicas_where(REPLICA.partition == bindparam("partition")))
_LOCK_SOME = Prepared(
    _partitions_where(in_list(PARTITION.partition, "partitions"), _NOT_FROZEN).with_for_update(of=t.partition)
)
_REPLICAS_OF_SOME = Prepared(_replicas_where(in_list(REPLICA.partition, "partitions")))
_ALL = Prepared(_partitions_where())
_REPLICAS_OF_ALL = Prepared(_replicas_where())


def lock_partitions(connection: sa.Connection, keys: Sequence[Key]) -> dict[Key, PartitionState]:
    """Lock the rows of these partitions, in the lock order, and read them. Missing partitions are left out, and so are
    frozen ones, whose topic is being moved to another store.
    """
    with one_message(connection):
        found = ask_partitions(connection, keys)
    return found()


def ask_partitions(connection: sa.Connection, keys: Sequence[Key]) -> Callable[[], dict[Key, PartitionState]]:
    """Lock like `lock_partitions`. The result reads the rows: call it after a `one_message` block."""
    asked: list[tuple[int, Answer, Answer]] = []
    for topic_id, numbers in numbers_by_topic(keys).items():
        partitions, replicas = (_LOCK_SOME, _REPLICAS_OF_SOME) if len(numbers) > 1 else (_LOCK_ONE, _REPLICAS_OF_ONE)
        parameters = {"topic_id": topic_id, "partitions": numbers, "partition": numbers[0]}
        # separate statements: on PostgreSQL a join would show the replicas as of before the wait for the lock
        asked.append((topic_id, partitions.ask(connection, parameters), replicas.ask(connection, parameters)))

    def read() -> dict[Key, PartitionState]:
        states: dict[Key, PartitionState] = {}
        for topic_id, partitions, replicas in asked:
            states.update(_states(topic_id, partitions.rows(), replicas.rows()))
        return states

    return read


def read_partition(connection: sa.Connection, key: Key) -> PartitionState | None:
    """Read the partition in the snapshot, without a lock. Returns None if it does not exist."""
    one = {"topic_id": key[0], "partition": key[1]}
    return _states(key[0], _READ_ONE.rows(connection, one), _REPLICAS_OF_ONE.rows(connection, one)).get(key)


def read_partitions(connection: sa.Connection, topic_id: int) -> dict[Key, PartitionState]:
    """Read all partitions of a topic in the snapshot, without locks."""
    whole = {"topic_id": topic_id}
    return _states(topic_id, _ALL.rows(connection, whole), _REPLICAS_OF_ALL.rows(connection, whole))


def _states(topic_id: int, rows: Sequence[Any], replica_rows: Sequence[Any]) -> dict[Key, PartitionState]:
    replicas: dict[int, list[Replica]] = {}
    for partition, broker_id, end_offset, in_sync, log_dir_id in replica_rows:
        replicas.setdefault(partition, []).append(Replica(broker_id, end_offset, bool(in_sync), log_dir_id))
    states: dict[Key, PartitionState] = {}
    for partition, leader, leader_epoch, partition_epoch, start, end, watermark, recovery, tail, change, *rest in rows:
        rewrites, text = rest
        config = topic_config(text)
        states[topic_id, partition] = PartitionState(
            leader, leader_epoch, end, watermark, recovery, tail, change, tuple(replicas.get(partition, ())),
            config.min_insync_replicas, partition_epoch, start, config.unclean_leader_election_enable,
            rewrites,
        )  # fmt: skip
    return states


_STATE_COLUMNS = (
    "leader", "leader_epoch", "partition_epoch", "log_start_offset", "log_end_offset", "high_watermark",
    "recovery_point", "tail_bytes", "change", "rewrites",
)  # fmt: skip
_SAVE_PARTITION = Prepared(
    t.partition.update()
    .where(PARTITION.topic_id == bindparam("key_topic"), PARTITION.partition == bindparam("key_partition"))
    .values({name: bindparam(name) for name in _STATE_COLUMNS})
)
_THIS_REPLICA = (
    REPLICA.topic_id == bindparam("key_topic"),
    REPLICA.partition == bindparam("key_partition"),
    REPLICA.broker_id == bindparam("key_broker"),
)
_SAVE_REPLICA = Prepared(
    t.replica.update()
    .where(*_THIS_REPLICA)
    .values({name: bindparam(name) for name in ("log_end_offset", "in_sync", "preference", "log_dir_id")})
)
_NEW_REPLICA = Prepared(t.replica.insert())
_DROP_REPLICA = Prepared(t.replica.delete().where(*_THIS_REPLICA))


def save_partitions(
    connection: sa.Connection, before: Mapping[Key, PartitionState], after: Mapping[Key, PartitionState]
) -> None:
    """Write the partitions and replicas that differ. `before` is from `lock_partitions` in this transaction."""
    changed = [(key, state) for key, state in after.items() if state is not before[key]]
    if not changed:
        return
    _SAVE_PARTITION.run(
        connection,
        [
            {
                "key_topic": topic_id,
                "key_partition": number,
                **{name: getattr(state, name) for name in _STATE_COLUMNS},
            }
            for (topic_id, number), state in changed
        ],
    )
    moved: list[dict[str, Any]] = []
    new: list[dict[str, Any]] = []
    gone: list[dict[str, Any]] = []
    for key, state in changed:
        old = {replica.broker_id: (place, replica) for place, replica in enumerate(before[key].replicas)}
        for preference, replica in enumerate(state.replicas):
            facts = {
                "log_end_offset": replica.log_end_offset,
                "in_sync": replica.in_sync,
                "preference": preference,
                "log_dir_id": replica.log_dir_id,
            }
            known = old.pop(replica.broker_id, None)
            if known is None:
                new.append({"topic_id": key[0], "partition": key[1], "broker_id": replica.broker_id, **facts})
            elif known != (preference, replica):
                moved.append({"key_topic": key[0], "key_partition": key[1], "key_broker": replica.broker_id, **facts})
        gone += [{"key_topic": key[0], "key_partition": key[1], "key_broker": broker_id} for broker_id in old]
    for statement, parameters in ((_DROP_REPLICA, gone), (_SAVE_REPLICA, moved), (_NEW_REPLICA, new)):
        if parameters:
            statement.run(connection, parameters)


def insert_partitions(
    connection: sa.Connection, topic_id: int, first: int, placement: Sequence[Sequence[tuple[int, int]]]
) -> None:
    """Insert new partitions. `placement[i]` is the AR of partition `first + i` as (broker id, log dir id)."""
    zero = dict.fromkeys(_STATE_COLUMNS, 0)
    connection.execute(
        t.partition.insert(),
        [
            {"topic_id": topic_id, "partition": first + i, **zero, "leader": ar[0][0] if ar else None}
            for i, ar in enumerate(placement)
        ],
    )
    replicas = [
        {
            "topic_id": topic_id,
            "partition": first + i,
            "broker_id": broker_id,
            "log_dir_id": log_dir_id,
            "log_end_offset": 0,
            "in_sync": True,
            "preference": preference,
        }
        for i, ar in enumerate(placement)
        for preference, (broker_id, log_dir_id) in enumerate(ar)
    ]
    if replicas:
        connection.execute(t.replica.insert(), replicas)
    if connection.dialect.name == "postgresql" and len(placement) >= _MANY_PARTITIONS:
        # until its statistics include them, PostgreSQL expects one or two rows of the topic and joins in nested loops
        connection.exec_driver_sql("ANALYZE partition, replica")


def lock_all_partitions(connection: sa.Connection, topic_id: int) -> None:
    """Lock all partitions of a topic, frozen or not, in the lock order. Waits for transactions that change them."""
    here = PARTITION.topic_id == topic_id
    connection.execute(sa.select(PARTITION.partition).where(here).order_by(PARTITION.partition).with_for_update()).all()


def freeze_partitions(connection: sa.Connection, topic_id: int) -> None:
    """Refuse changes of a topic's partitions until `thaw_partitions`. The transaction must have locked all of them."""
    connection.execute(t.partition.update().where(PARTITION.topic_id == topic_id).values(frozen=True))


def thaw_partitions(connection: sa.Connection, topic_id: int, *, fence_writers: bool = False) -> None:
    """Allow changes of a topic's partitions again. `fence_writers` refuses files that were written before
    (`replication_rules.fence_writers`): the clean-up of another store may have deleted them.
    """
    values: dict[str, Any] = {"frozen": False}
    if fence_writers:
        values |= {name: PARTITION[name] + 1 for name in ("leader_epoch", "partition_epoch")}
    frozen = (PARTITION.topic_id == topic_id) & PARTITION.frozen
    connection.execute(t.partition.update().where(frozen).values(values))


def are_frozen(connection: sa.Connection, topic_id: int) -> bool:
    """Whether the topic has partitions here, and all of them are frozen."""
    query = sa.select(PARTITION.frozen).where(PARTITION.topic_id == topic_id).distinct()
    return connection.execute(query).scalars().all() == [True]


def topics_elsewhere(connection: sa.Connection, keys: Collection[Key]) -> set[int]:
    """Return the ids of those of the partitions' topics that are being moved, or have been moved, to another store."""
    topic_ids = {topic_id for topic_id, _ in keys}
    here = sa.select(PARTITION.topic_id).where(PARTITION.topic_id.in_(topic_ids))
    frozen = set(connection.execute(here.where(PARTITION.frozen)).scalars())
    gone = sa.select(TOPIC.topic_id).where(TOPIC.topic_id.in_(topic_ids), TOPIC.topic_id.not_in(here))
    return frozen | set(connection.execute(gone).scalars())


def topic_here(connection: sa.Connection, topic: Topic) -> Topic | None:
    """Return the topic as it is now, or None if it was deleted, or is being moved or was moved to another store."""
    now = topics_of_ids(connection, [topic.topic_id]).get(topic.topic_id)
    elsewhere = now is None or now.store_id != topic.store_id or topic.topic_id in frozen_topics(connection)
    return None if elsewhere else now


def check_here(cluster: Cluster, topic: Topic) -> None:
    """Raise TopicMovedError if the topic was deleted, or is being moved or was moved to another store."""
    if cluster.store.read(lambda connection: topic_here(connection, topic)) is None:
        raise TopicMovedError(
            f"topic {topic.name!r}: it was moved to another metadata store, or deleted: repeat the call"
        )


def frozen_topics(connection: sa.Connection) -> list[int]:
    """Return the ids of the topics that have frozen partitions here."""
    return list(connection.execute(sa.select(PARTITION.topic_id).where(PARTITION.frozen).distinct()).scalars())


def set_recovery_points(connection: sa.Connection, keys: Sequence[Key]) -> None:
    """Record that everything appended to these partitions so far is on disk once this transaction has committed."""
    lock_partitions(connection, keys)  # an UPDATE alone would lock them in an undefined order
    for topic_id, numbers in numbers_by_topic(keys).items():
        partitions = (PARTITION.topic_id == topic_id) & in_list(PARTITION.partition, numbers)
        connection.execute(t.partition.update().where(partitions).values(recovery_point=PARTITION.log_end_offset))


_COUNT = bindparam("count", type_=sa.BigInteger)
_TAKE_OFFSETS = Prepared(
    t.partition.update()
    .where(
        PARTITION.topic_id == sa.select(TOPIC.topic_id).where(TOPIC.name == bindparam("topic")).scalar_subquery(),
        PARTITION.partition == bindparam("number"),
    )
    .values(log_end_offset=PARTITION.log_end_offset + _COUNT, high_watermark=PARTITION.high_watermark + _COUNT)
    .returning(PARTITION.log_end_offset)
)


def take_offsets(connection: sa.Connection, topic: str, partition: int, count: int) -> int | None:
    """Take offsets for `count` records that this transaction commits to a partition without replicas.

    Locks the partition's row. Returns the first offset, or None if the partition does not exist.
    """
    for (end,) in _TAKE_OFFSETS.rows(connection, {"topic": topic, "number": partition, "count": count}):
        return int(end) - count
    return None


def delete_compactions_above(connection: sa.Connection, key: Key, offset: int) -> None:
    """Delete the compactions that end above `offset`: a truncation has removed some of their records."""
    connection.execute(t.compaction.delete().where(_compactions_of(key), COMPACTION.end_offset > offset))


def replace_compactions(
    connection: sa.Connection, key: Key, gone: Collection[int], new: Sequence[dict[str, Any]]
) -> None:
    """Delete the compactions that end at the offsets `gone`, and insert the rows `new`."""
    connection.execute(t.compaction.delete().where(_compactions_of(key), COMPACTION.end_offset.in_(gone)))
    if new:
        connection.execute(t.compaction.insert(), new)


def _compactions_of(key: Key) -> sa.ColumnElement[bool]:
    return (COMPACTION.topic_id == key[0]) & (COMPACTION.partition == key[1])
