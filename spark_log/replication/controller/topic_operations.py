"""Creates, alters and deletes topics, with Kafka's rules and terms."""

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.names import collision_key, validate_user_topic
from spark_log.cluster.store_directory import find_active_store, lock_active_store
from spark_log.cluster.topics import (
    CREATING,
    Topic,
    configs_json,
    delete_topic_rows,
    find_topic,
    insert_topic_row,
    set_configs,
    set_deleting,
    set_partition_count,
    set_store,
    stated_topic,
)
from spark_log.config import TopicConfig, canonical
from spark_log.errors import (
    InvalidConfigurationError,
    InvalidPartitionsError,
    InvalidReplicationFactorError,
    MetadataConflictError,
    RetriableError,
    SparkLogError,
    TopicAlreadyExistsError,
    TopicMovedError,
    UnknownTopicOrPartitionError,
    redact,
)
from spark_log.failpoints import failpoint
from spark_log.ids import HOME, HOME_NAME, StoreId
from spark_log.log.partitions.partition_rows import are_frozen, insert_partitions, lock_all_partitions
from spark_log.log.partitions.retired_files import retire_folder
from spark_log.metadata.cascade import delete_rows_of_topic
from spark_log.metadata.sql_columns import TOPIC
from spark_log.metadata.store_clock import StoreClock
from spark_log.registry.rows import lock_registry
from spark_log.registry.topic_schemas import (
    asks_registry,
    check_registry_url,
    external_subjects,
    lock_subjects,
    parts_changed_by,
    typed_columns,
)
from spark_log.replication.controller.placement import place_replicas
from spark_log.replication.controller.replica_loads import read_loads
from spark_log.replication.controller.topic_copies import follow
from spark_log.tables.topic_tables import TABLE_CONFIGS, check_tables

logger = logging.getLogger(__name__)

PARTITIONS_MAX = 100_000
"""The maximum number of partitions of a topic. With more, every describe and plan would be slow."""


def create_topic(
    cluster: Cluster,
    name: str,
    partitions: int = 1,
    replication_factor: int = 1,
    configs: Mapping[str, str] | None = None,
    *,
    store: str | None = None,
) -> Topic:
    """Create a topic, and return it.

    `store` names the store for the topic's partitions. The default is that of the cluster setting topic.default.store,
    but with errors.deadletterqueue.group.enable the home store: share groups only write dead letters there.

    Raises StoreNotFoundError, InvalidTopicError, TopicAlreadyExistsError (also where only `.` and `_` differ),
    InvalidPartitionsError, InvalidReplicationFactorError, InvalidConfigurationError, PolicyViolationError (internal
    topics).
    """
    validate_user_topic(name, "create")
    store = store or _default_store(cluster, configs)
    return _create_topic(cluster, name, _plan_topic(cluster, name, partitions, replication_factor, configs, store))


def check_new_topic(
    cluster: Cluster,
    name: str,
    partitions: int = 1,
    replication_factor: int = 1,
    configs: Mapping[str, str] | None = None,
    *,
    store: str | None = None,
) -> None:
    """Raise the errors of `create_topic`, but create nothing."""
    validate_user_topic(name, "create")
    store = store or _default_store(cluster, configs)
    plan = _plan_topic(cluster, name, partitions, replication_factor, configs, store)
    cluster.store.transact(plan)


def _default_store(cluster: Cluster, configs: Mapping[str, str] | None) -> str:
    """Return the default store for a topic. Topics for dead letters are in the home store."""
    if TopicConfig.from_overrides(canonical(configs or {})).errors_deadletterqueue_group_enable:
        return HOME_NAME
    return cluster.store.settings.topic_default_store


def create_internal_topic(
    cluster: Cluster, name: str, partitions: int, replication_factor_max: int, configs: Mapping[str, str]
) -> Topic:
    """Create a topic that the cluster itself writes. It has as many replicas as there are live brokers, at most
    `replication_factor_max`. Raises TopicAlreadyExistsError.
    """
    plan = _plan_topic(cluster, name, partitions, replication_factor_max, configs, HOME_NAME, fewer_replicas=True)
    return _create_topic(cluster, name, plan)


@dataclass(frozen=True)
class _NewTopic:
    store_id: StoreId
    placement: Sequence[Sequence[tuple[int, int]]]
    replication_factor: int
    overrides: Mapping[str, str]
    columns: str | None


def _plan_topic(
    cluster: Cluster,
    name: str,
    partitions: int,
    replication_factor: int,
    configs: Mapping[str, str] | None,
    store: str,
    *,
    fewer_replicas: bool = False,
) -> Callable[[sa.Connection], _NewTopic]:
    """Check the topic. Return a function that checks and plans it in the transaction that may insert it."""
    _check_partition_count(partitions)
    overrides = canonical(configs or {})
    config = TopicConfig.from_overrides(overrides)
    _check_replication_factor(replication_factor)
    _check_min_isr(config, replication_factor)
    check_tables(cluster, config)
    check_registry_url(config, cluster.store.settings.schema_registry_urls_allowed)
    external = external_subjects(config)
    if store != HOME_NAME:
        cluster.at(cluster.store.read(lambda connection: find_active_store(connection, store)).store_id)  # it answers

    def columns(connection: sa.Connection) -> str | None:
        taken = connection.execute(sa.select(TOPIC.name).where(TOPIC.collision_key == collision_key(name))).scalar()
        if taken is not None:
            collision = f"Topic {name!r} collides with existing topic {taken!r}: '.' and '_' count as the same."
            raise TopicAlreadyExistsError(_exists_already(name) if taken == name else collision)
        return typed_columns(connection, config, None, external)

    if any(part.format != "bytes" for part in config.parts):
        # Parsing may take long, and other writers wait for the transaction. So the result is cached before it.
        cluster.store.read(columns)

    def plan(connection: sa.Connection) -> _NewTopic:
        store_id = HOME if store == HOME_NAME else lock_active_store(connection, store).store_id
        lock_subjects(connection, config)
        typed = columns(connection)
        loads = read_loads(connection, cluster.store.clock(connection))
        factor = min(replication_factor, max(1, len(loads))) if fewer_replicas else replication_factor
        placement = place_replicas(loads, partitions, factor)
        return _NewTopic(store_id, placement, factor, overrides, typed)

    return plan


def _create_topic(cluster: Cluster, name: str, plan: Callable[[sa.Connection], _NewTopic]) -> Topic:
    def create(connection: sa.Connection) -> Topic:
        new = plan(connection)
        factor, overrides, now = new.replication_factor, new.overrides, cluster.store.clock(connection)
        if new.store_id != HOME:
            count = len(new.placement)
            return insert_topic_row(connection, name, count, factor, overrides, now, new.columns, new.store_id)
        return insert_topic(connection, name, new.placement, factor, overrides, now, new.columns)

    try:
        topic = cluster.store.transact(create, announce=True)
    except MetadataConflictError as error:  # another process created it at the same time: the unique key decides
        raise TopicAlreadyExistsError(_exists_already(name)) from error
    if topic.store_id != HOME:
        failpoint("topic.created-at-home")
        _finish_creation(cluster, topic)
    return topic


def _finish_creation(cluster: Cluster, topic: Topic) -> None:
    """Let the data store insert the topic. If it cannot, delete the topic: a coordinator completes that."""
    try:
        follow(cluster, topic.store_id, topic.topic_id)
    except SparkLogError:
        with contextlib.suppress(SparkLogError):
            cluster.store.transact(lambda c: set_deleting(c, topic.topic_id, CREATING), timeout_ms=1_000)
        raise
    cluster.store.read(lambda connection: find_topic(connection, topic.name))  # raises if a coordinator removed it


def _exists_already(name: str) -> str:
    return f"Topic {name!r} already exists."  # Kafka's message


def alter_configs(
    cluster: Cluster,
    name: str,
    changes: Mapping[str, str | None],
    *,
    validate_only: bool = False,
    ask_registry: bool = True,
    reset: bool = False,
    seen: Topic | None = None,
) -> Topic:
    """Set configs of a topic. None resets a config to its default. The changes apply from the next append, read or
    maintenance on.

    With `validate_only`, return the topic with the changes, but store nothing; without `ask_registry`, typed columns
    that depend on an external schema registry are then the old ones. With `reset`, a field of a new key.schema or
    value.schema that does not fit its typed column gets another column (`log/columns/resets.py`).
    Raises MetadataConflictError if the topic has other configs than `seen`, from which the caller made the changes.
    """
    changes = canonical(changes)
    TopicConfig.from_overrides({key: value for key, value in changes.items() if value is not None})
    # names of configs to reset are checked too
    unknown = [key for key, value in changes.items() if value is None and key not in TopicConfig().as_text()]
    if unknown:  # a newer release may have set it
        set_ = cluster.store.read(lambda connection: find_topic(connection, name)).overrides
        unknown = [key for key in unknown if key not in set_]
    if unknown:
        raise InvalidConfigurationError(f"config {unknown[0]!r}: no such topic config")

    if changes.keys() & TABLE_CONFIGS:
        check_tables(cluster, _merged(cluster.store.read(lambda c: find_topic(c, name)), changes)[1])
    sources = parts_changed_by(changes)
    external = None
    if sources:
        topic = cluster.store.read(lambda connection: find_topic(connection, name))
        config = _merged(topic, changes)[1]
        if "schema.registry.url" in changes:
            check_registry_url(config, cluster.store.settings.schema_registry_urls_allowed)
        if validate_only and not ask_registry and asks_registry(config, sources):
            sources = ()
        external = external_subjects(config, sources)

    def new_columns(connection: sa.Connection, topic: Topic) -> str | None:
        config = _merged(topic, changes)[1]
        return typed_columns(connection, config, topic.typed_columns, external, sources, reset=reset)

    if sources:
        cluster.store.read(lambda c: new_columns(c, find_topic(c, name)))  # as in _plan_topic, before the transaction

    def alter(connection: sa.Connection) -> Topic:
        if sources:
            lock_registry(connection)
        topic = find_topic(connection, name, lock=True)
        if seen is not None and topic.overrides != seen.overrides:
            raise MetadataConflictError(f"topic {name!r}: its configs were changed at the same time")
        overrides, config = _merged(topic, changes)
        _check_min_isr(config, topic.replication_factor)
        columns = new_columns(connection, topic)
        if validate_only:
            return replace(topic, configs=configs_json(overrides), typed_columns=columns)
        set_configs(connection, topic.topic_id, configs_json(overrides), columns)
        return find_topic(connection, name)

    return _followed(cluster, cluster.store.transact(alter))


def _followed(cluster: Cluster, topic: Topic) -> Topic:
    """Let the topic's data store follow a change. If it does not answer, a coordinator does this later."""
    try:
        follow(cluster, topic.store_id, topic.topic_id)
    except RetriableError as error:
        logger.warning("topic %s: store %s follows later: %s", topic.name, topic.store_id, redact(str(error)))
    return topic


def add_partitions(cluster: Cluster, name: str, total: int, *, validate_only: bool = False) -> Topic:
    """Raise the number of partitions to `total`. As in Kafka, keys then hash to other partitions than before.

    With `validate_only`, raise the same errors, but change nothing.
    """
    validate_user_topic(name, "add partitions to")
    _check_partition_count(total)
    data = cluster.of(cluster.store.read(lambda connection: find_topic(connection, name)))

    def add(connection: sa.Connection) -> Topic:
        topic = find_topic(connection, name, lock=True)
        if are_frozen(connection, topic.topic_id):
            raise TopicMovedError(f"topic {name!r}: it is being moved to another store")
        if topic.config.table_current != "none":
            raise InvalidPartitionsError(
                f"partitions: topic {name!r} has table.current={topic.config.table_current}, which shows the last"
                " record of each key of a partition, and keys would get to other partitions"
            )
        if total <= topic.partition_count:
            raise InvalidPartitionsError(f"partitions: topic {name!r} has {topic.partition_count}; {total} is not more")
        loads = read_loads(connection, data.store.clock(connection))
        placement = place_replicas(loads, total - topic.partition_count, topic.replication_factor)
        if validate_only:
            return topic
        insert_partitions(connection, topic.topic_id, topic.partition_count, placement)
        set_partition_count(connection, topic.topic_id, total)
        return find_topic(connection, name)

    return _followed(cluster, data.store.transact(add, announce=True))


def delete_topic(cluster: Cluster, name: str, *, topic_id: int | None = None) -> None:
    """Delete a topic: its metadata now, and its files after file.delete.delay.ms. A new topic never gets these files.

    Raises UnknownTopicOrPartitionError. Also raises it if the topic's id is not `topic_id`: then the topic was deleted
    and created again.
    """
    validate_user_topic(name, "delete")

    def delete(connection: sa.Connection) -> Topic:
        topic = find_topic(connection, name, lock=True)
        if topic_id not in (None, topic.topic_id):
            raise UnknownTopicOrPartitionError(f"topic {name!r}: it was deleted and created again")
        stated = stated_topic(connection, topic.topic_id)
        # appends lock their partition's row: wait for them, or their segment rows would outlive the topic
        lock_all_partitions(connection, topic.topic_id)
        if topic.store_id == HOME and stated is not None and stated.move is not None:  # the target may have a copy
            set_store(connection, topic.topic_id, stated.move.to, stated.move_epoch + 1)
            topic = replace(topic, store_id=stated.move.to)
        if topic.store_id != HOME:
            delete_rows_of_topic(connection, topic.topic_id)
            set_deleting(connection, topic.topic_id)
            retire_folder(connection, topic, cluster.store.clock(connection))
            return topic
        # pending batches stay: their transaction can no longer commit, and deletes them when it ends
        delete_topic_rows(connection, topic.topic_id)
        retire_folder(connection, topic, cluster.store.clock(connection))
        return topic

    # a million rows may take a minute
    deleted = cluster.store.transact(delete, announce=True, unlimited=True)
    failpoint("topic.deleted-at-home")
    _followed(cluster, deleted)


def insert_topic(
    connection: sa.Connection,
    name: str,
    placement: Sequence[Sequence[tuple[int, int]]],
    replication_factor: int,
    overrides: Mapping[str, str],
    now: StoreClock,
    typed_columns: str | None = None,
) -> Topic:
    """Insert the rows of a new topic. `placement` has the AR of each partition as (broker id, log dir id). It is empty
    for an internal topic that the store itself keeps.
    """
    topic = insert_topic_row(connection, name, len(placement), replication_factor, overrides, now, typed_columns)
    insert_partitions(connection, topic.topic_id, 0, placement)
    return topic


def _merged(topic: Topic, changes: Mapping[str, str | None]) -> tuple[dict[str, str], TopicConfig]:
    """Return the topic's configs after the changes, as overrides and parsed."""
    merged = {**topic.overrides, **changes}
    overrides = {key: value for key, value in merged.items() if value is not None}
    return overrides, TopicConfig.from_stored(overrides)


def _check_partition_count(count: object) -> None:
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= PARTITIONS_MAX:
        raise InvalidPartitionsError(f"partitions: expected a number from 1 to {PARTITIONS_MAX}, got {count!r}")


def _check_replication_factor(factor: object) -> None:
    if isinstance(factor, bool) or not isinstance(factor, int) or factor < 1:
        raise InvalidReplicationFactorError(f"replication_factor: expected a number of at least 1, got {factor!r}")


def _check_min_isr(config: TopicConfig, replication_factor: int) -> None:
    if config.min_insync_replicas > replication_factor:
        raise InvalidConfigurationError(
            f"min.insync.replicas: {config.min_insync_replicas} is above the replication factor {replication_factor}:"
            " no append with acks=all could ever succeed"
        )
