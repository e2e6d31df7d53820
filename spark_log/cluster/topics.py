"""Topics: create, list, describe, alter, delete. Kafka's rules and words."""

import difflib
import json
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import sqlalchemy as sa

from spark_log.cluster.brokers import alive_log_dirs
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.log_dir import topic_folder
from spark_log.cluster.names import collision_key, is_legal, validate_user_topic
from spark_log.cluster.placement import BrokerLoad, place_replicas
from spark_log.config import TopicConfig, canonical, validate_overrides
from spark_log.errors import (
    InvalidConfigurationError,
    InvalidPartitionsError,
    InvalidReplicationFactorError,
    MetadataConflictError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from spark_log.ids import TopicId
from spark_log.metadata import tables as t
from spark_log.metadata.cascade import delete_rows_of_topic
from spark_log.metadata.columns import BROKER, LOG_DIR, PARTITION, REPLICA, TOPIC
from spark_log.metadata.store import Attempt, StoreClock

_MANY_PARTITIONS = 100
_NAMES_COMPARED_MAX = 10_000

PARTITIONS_MAX = 100_000
"""More in one topic are refused: every describe and plan would be slow."""


@dataclass(frozen=True)
class Topic:
    """A topic without its partitions."""

    topic_id: TopicId
    uuid: str
    name: str
    partition_count: int
    replication_factor: int
    overrides: Mapping[str, str]
    created_ms: int

    @cached_property
    def config(self) -> TopicConfig:
        """The typed configs, parsed at the first access."""
        return TopicConfig.from_overrides(self.overrides)

    @property
    def folder(self) -> str:
        """Name of the topic's folder in every log dir."""
        return topic_folder(self.name, self.uuid)


@lru_cache(maxsize=1024)
def topic_config(overrides_json: str) -> TopicConfig:
    """The configs of a topic from column topic.configs. Cached, because every append needs them."""
    return TopicConfig.from_overrides(json.loads(overrides_json))


_TOPIC_COLUMNS = (
    TOPIC.topic_id,
    TOPIC.uuid,
    TOPIC.name,
    TOPIC.partition_count,
    TOPIC.replication_factor,
    TOPIC.configs,
    TOPIC.created_ms,
)


def _topic_of(row: Any) -> Topic:
    return Topic(
        TopicId(row.topic_id),
        row.uuid,
        row.name,
        row.partition_count,
        row.replication_factor,
        canonical(json.loads(row.configs)),
        row.created_ms,
    )


def find_topics(
    connection: sa.Connection, names: Iterable[str] | None = None, *, lock: bool = False
) -> dict[str, Topic]:
    """The topics of these names that exist (all of them for None), by name. `lock` keeps them as they are."""
    query = sa.select(*_TOPIC_COLUMNS).order_by(TOPIC.topic_id)
    if names is not None:  # an illegal name (NUL, lone surrogates) is no topic's, and no database's text either
        query = query.where(TOPIC.name.in_([name for name in names if is_legal(name)]))
    if lock:
        query = query.with_for_update()
    return {row.name: _topic_of(row) for row in connection.execute(query)}


def topics_of_ids(connection: sa.Connection, topic_ids: Collection[int]) -> dict[int, Topic]:
    """The topics with these ids that still exist, by id."""
    query = sa.select(*_TOPIC_COLUMNS).where(TOPIC.topic_id.in_(topic_ids))
    return {row.topic_id: _topic_of(row) for row in connection.execute(query)}


def find_topic(connection: sa.Connection, name: str, *, lock: bool = False) -> Topic:
    """The topic, or UnknownTopicOrPartitionError."""
    topic = find_topics(connection, [name], lock=lock).get(name)
    if topic is None:
        raise unknown_topic(connection, name)
    return topic


def unknown_topic(connection: sa.Connection, name: str, advice: str = "") -> UnknownTopicOrPartitionError:
    """The error for a topic that does not exist; it names an existing topic with a similar name, and else `advice`."""
    names = connection.scalars(sa.select(TOPIC.name).limit(_NAMES_COMPARED_MAX)).all()
    similar = difflib.get_close_matches(str(name), names, 1)  # callers may pass anything
    hint = f" (did you mean {similar[0]!r}?)" if similar else advice
    return UnknownTopicOrPartitionError(f"topic {name!r}: unknown topic or partition{hint}")


def create_topic(
    cluster: Cluster,
    name: str,
    partitions: int = 1,
    replication_factor: int = 1,
    configs: Mapping[str, str] | None = None,
    *,
    validate_only: bool = False,
) -> Topic | None:
    """Make a topic; returns it, or None with `validate_only`.

    Raises InvalidTopicError, TopicAlreadyExistsError (also where only `.` and `_` differ), InvalidPartitionsError,
    InvalidReplicationFactorError, InvalidConfigurationError, PolicyViolationError (internal topics).
    """
    validate_user_topic(name, "create")
    _check_partition_count(partitions, minimum=1)
    overrides = canonical(configs or {})
    validate_overrides(overrides)
    config = TopicConfig.from_overrides(overrides)
    _check_replication_factor(replication_factor)
    _check_min_isr(config, replication_factor)

    def create(connection: sa.Connection, _attempt: Attempt) -> Topic | None:
        taken = connection.execute(sa.select(TOPIC.name).where(TOPIC.collision_key == collision_key(name))).scalar()
        if taken is not None:
            reason = "exists already" if taken == name else f"collides with {taken!r}: '.' and '_' count as the same"
            raise TopicAlreadyExistsError(f"topic {name!r}: {reason}")
        loads = _broker_loads(connection, cluster.store.clock(connection))
        placement = place_replicas(loads, partitions, replication_factor)
        if validate_only:
            return None
        return insert_topic(connection, name, placement, replication_factor, overrides, cluster.store.clock(connection))

    try:
        return cluster.store.transact(create, announce=True)
    except MetadataConflictError as error:  # two creators at once on PostgreSQL: the unique key decides
        raise TopicAlreadyExistsError(f"topic {name!r}: exists already") from error


def insert_topic(
    connection: sa.Connection,
    name: str,
    placement: Sequence[Sequence[tuple[int, int]]],
    replication_factor: int,
    overrides: Mapping[str, str],
    now: StoreClock,
) -> Topic:
    """The rows of a new topic; `placement` has AR of each partition as (broker id, log dir id), none for an internal
    topic that the store itself keeps.
    """
    values = {
        "uuid": uuid.uuid4().hex,
        "name": name,
        "collision_key": collision_key(name),
        "partition_count": len(placement),
        "replication_factor": replication_factor,
        "configs": json.dumps(dict(overrides), sort_keys=True),
        "created_ms": now.wall_ms,
    }
    row = connection.execute(t.topic.insert().returning(*_TOPIC_COLUMNS), values).one()
    _insert_partitions(connection, row.topic_id, 0, placement)
    return _topic_of(row)


def set_replication_factor(connection: sa.Connection, topic_id: int, factor: int) -> None:
    connection.execute(t.topic.update().where(TOPIC.topic_id == topic_id).values(replication_factor=factor))


def list_topics(cluster: Cluster) -> list[Topic]:
    """All topics, by name."""
    topics = cluster.store.read(find_topics)
    return [topics[name] for name in sorted(topics)]


def alter_configs(
    cluster: Cluster, name: str, changes: Mapping[str, str | None], *, validate_only: bool = False
) -> Topic:
    """Set configs of a topic, or with None put one back to its default. Takes effect for the next append, read or
    maintenance.

    With `validate_only` they stay as they are; what would be refused is refused.
    """
    changes = canonical(changes)
    validate_overrides({key: value for key, value in changes.items() if value is not None})
    # a name to be put back is checked too
    unknown = [key for key, value in changes.items() if value is None and key not in TopicConfig().as_text()]
    if unknown:
        raise InvalidConfigurationError(f"config {unknown[0]!r}: no such topic config")

    def alter(connection: sa.Connection, _attempt: Attempt) -> Topic:
        topic = find_topic(connection, name, lock=True)
        merged = {**topic.overrides, **changes}
        overrides = {key: value for key, value in merged.items() if value is not None}
        _check_min_isr(TopicConfig.from_overrides(overrides), topic.replication_factor)
        if validate_only:
            return topic
        update = t.topic.update().where(TOPIC.topic_id == topic.topic_id)
        connection.execute(update.values(configs=json.dumps(overrides, sort_keys=True)))
        return find_topic(connection, name)

    return cluster.store.transact(alter)


def add_partitions(cluster: Cluster, name: str, total: int, *, validate_only: bool = False) -> Topic:
    """Raise the number of partitions to `total`. Keys will hash to other partitions than before, as in Kafka.

    With `validate_only` the topic stays as it is; what would be refused is refused.
    """
    validate_user_topic(name, "add partitions to")
    _check_partition_count(total, minimum=1)

    def add(connection: sa.Connection, _attempt: Attempt) -> Topic:
        topic = find_topic(connection, name, lock=True)
        if total <= topic.partition_count:
            raise InvalidPartitionsError(f"partitions: topic {name!r} has {topic.partition_count}; {total} is not more")
        loads = _broker_loads(connection, cluster.store.clock(connection))
        placement = place_replicas(loads, total - topic.partition_count, topic.replication_factor)
        if validate_only:
            return topic
        _insert_partitions(connection, topic.topic_id, topic.partition_count, placement)
        connection.execute(t.topic.update().where(TOPIC.topic_id == topic.topic_id).values(partition_count=total))
        return find_topic(connection, name)

    return cluster.store.transact(add, announce=True)


def delete_topic(cluster: Cluster, name: str) -> None:
    """Delete a topic. Its metadata goes now, its files after file.delete.delay.ms; a new one never meets them."""
    validate_user_topic(name, "delete")

    def delete(connection: sa.Connection, _attempt: Attempt) -> None:
        topic = find_topic(connection, name, lock=True)
        t_id = topic.topic_id
        # appends hold their partition's row: wait for them, or their segment rows would outlive the topic
        rows = sa.select(PARTITION.partition).where(PARTITION.topic_id == t_id).order_by(PARTITION.partition)
        connection.execute(rows.with_for_update()).all()
        # pending batches stay: their transaction can no longer be committed, and drops them when it ends
        delete_rows_of_topic(connection, t_id)
        connection.execute(t.topic.delete().where(TOPIC.topic_id == t_id))
        retired_ms = cluster.store.clock(connection).wall_ms
        connection.execute(t.retired_file.insert(), {"path": topic.folder, "topic_id": t_id, "retired_ms": retired_ms})

    cluster.store.transact(delete, announce=True)


def _insert_partitions(
    connection: sa.Connection, topic_id: int, first: int, placement: Sequence[Sequence[tuple[int, int]]]
) -> None:
    """Rows of new partitions; `placement[i]` is AR of partition `first + i` as (broker id, log dir id)."""
    zero = dict.fromkeys(
        (
            "leader_epoch",
            "partition_epoch",
            "log_start_offset",
            "log_end_offset",
            "high_watermark",
            "recovery_point",
            "tail_bytes",
            "change",
        ),
        0,
    )
    connection.execute(
        t.partition.insert(),
        [
            {"topic_id": topic_id, "partition": first + i, "leader": ar[0][0] if ar else None, **zero}
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
        # until its statistics know them, PostgreSQL takes the topic for a row or two and joins them in nested loops
        connection.exec_driver_sql("ANALYZE partition, replica")


def _broker_loads(connection: sa.Connection, now: StoreClock) -> list[BrokerLoad]:
    """The brokers that are alive, and what their log dirs have."""
    alive = alive_log_dirs(connection, now)
    counts = sa.select(REPLICA.log_dir_id, sa.func.count().label("replicas")).group_by(REPLICA.log_dir_id).subquery()
    query = (
        sa.select(LOG_DIR.broker_id, BROKER.rack, LOG_DIR.log_dir_id, sa.func.coalesce(counts.c.replicas, 0))
        .join(t.broker, BROKER.broker_id == LOG_DIR.broker_id)
        .outerjoin(counts, counts.c.log_dir_id == LOG_DIR.log_dir_id)
        .order_by(LOG_DIR.broker_id, LOG_DIR.log_dir_id)
    )
    brokers: dict[int, tuple[str | None, dict[int, int]]] = {}
    for broker_id, rack, log_dir_id, replicas in connection.execute(query):
        if log_dir_id in alive:
            brokers.setdefault(broker_id, (rack, {}))[1][log_dir_id] = replicas
    return [BrokerLoad(broker_id, rack, load) for broker_id, (rack, load) in brokers.items()]


def _check_partition_count(count: object, minimum: int) -> None:
    if isinstance(count, bool) or not isinstance(count, int) or not minimum <= count <= PARTITIONS_MAX:
        raise InvalidPartitionsError(f"partitions: expected a number from {minimum} to {PARTITIONS_MAX}, got {count!r}")


def _check_replication_factor(factor: object) -> None:
    if isinstance(factor, bool) or not isinstance(factor, int) or factor < 1:
        raise InvalidReplicationFactorError(f"replication_factor: expected a number of at least 1, got {factor!r}")


def _check_min_isr(config: TopicConfig, replication_factor: int) -> None:
    if config.min_insync_replicas > replication_factor:
        raise InvalidConfigurationError(
            f"min.insync.replicas: {config.min_insync_replicas} is above the replication factor {replication_factor}:"
            " no append with acks=all could ever succeed"
        )
