"""Resets and deletes the state of share groups, deletes groups, and sets their configs. Each change is one transaction.

A reset makes the group begin at an offset of a partition, and forgets its unfinished and delayed records there. A
reset, like a deletion, needs a group without members. The lock of the group's row comes before those of its partitions.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace

import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.names import is_legal
from spark_log.cluster.topics import find_topics
from spark_log.config.group_configs import GroupConfig, check_group_config_names, validate_group_overrides
from spark_log.errors import GroupIdNotFoundError, SparkLogError, UnknownTopicOrPartitionError
from spark_log.groups.committed_offsets import refuse_unknown
from spark_log.groups.consumer import rows as group_rows
from spark_log.groups.group_names import check_group_id
from spark_log.groups.group_operations import (
    OffsetReset,
    ResetTo,
    delete_group,
    read_limits,
    refuse_live,
    resolve_resets,
)
from spark_log.groups.share import rows, rules
from spark_log.groups.share.members import (
    SHARE,
    lock_topics_to_read,
    not_a_share_group,
    refuse_data_stores,
    take_over,
)
from spark_log.groups.share.rows import ShareRow
from spark_log.groups.share.starts import Start, find_starts, insert_starts
from spark_log.ids import TopicPartition
from spark_log.log.partitions.partition_rows import Key
from spark_log.log.segments.plan import find_positions
from spark_log.metadata import tables as t
from spark_log.metadata.insert import insert_if_missing
from spark_log.metadata.sql_columns import GROUP_CONFIG
from spark_log.metadata.store import Store
from spark_log.metadata.store_clock import StoreClock


def reset_share_offsets(
    cluster: Cluster,
    group_id: str,
    targets: Mapping[TopicPartition, ResetTo],
    *,
    dry_run: bool = False,
    preview: bool = False,
    expected: Mapping[TopicPartition, int | None] | None = None,
) -> dict[TopicPartition, OffsetReset]:
    """Make a share group without members begin at other offsets. As in Kafka, a group that does not exist is created.

    Returns the start offsets before (None if the group did not read the partition) and after. The parameters are those
    of `group_operations.reset_offsets`. The other partitions of a topic that the group reads for the first time begin
    by share.auto.offset.reset.

    Raises InvalidGroupIdError, GroupIdNotFoundError if the group is of another type, NonEmptyGroupError,
    UnknownTopicOrPartitionError, IllegalArgumentError for a topic of a data store or one that is being moved, or the
    errors of `resolve_resets`; then nothing is written.
    """
    check_group_id(group_id)
    store = cluster.store
    limits = read_limits(cluster, targets)
    keys: dict[TopicPartition, Key] = {p: (found.topic_id, p.partition) for p, found in limits.found.items()}
    starts = {} if dry_run or preview else _starts_of_others(cluster, group_id, keys)

    def resolve(
        connection: sa.Connection, *, lock: bool
    ) -> tuple[dict[TopicPartition, OffsetReset], dict[Key, ShareRow]]:
        refuse_data_stores(connection, {partition.topic for partition in keys})
        now = store.clock(connection)
        share_rows, before = {}, {}
        for partition, key in sorted(keys.items(), key=lambda each: each[1]):
            row = rows.row_of(rows.ask_row(connection, group_id, key, lock=lock), group_id, key, now)
            if row is not None:
                share_rows[key] = row
                before[partition] = max(row.window.start, limits.found[partition].positions.log_start_offset)
        return resolve_resets(targets, limits, before, expected), share_rows

    def read(connection: sa.Connection) -> dict[TopicPartition, OffsetReset]:
        group = group_rows.read_group(connection, group_id)
        if group is not None and group.type != SHARE:
            take_over(connection, group_id, group)
        if not preview:
            refuse_live(store, connection, group_id)
        return resolve(connection, lock=False)[0]

    def write(connection: sa.Connection) -> dict[TopicPartition, OffsetReset]:
        locked = lock_topics_to_read(connection, {key[0] for key in keys.values()})
        group = group_rows.lock_or_make_group(connection, group_id, store.clock(connection))
        if group.type != SHARE:
            take_over(connection, group_id, group)
            group_rows.save_group(connection, group_id, group.group, type=SHARE)
        refuse_live(store, connection, group_id)
        resets, share_rows = resolve(connection, lock=True)
        refuse_unknown({partition for partition, key in keys.items() if key[0] not in locked})
        there = rows.partitions_of(connection, group_id, {key[0] for key in starts})
        begin = {key: start for key, start in starts.items() if key not in there}
        # with the epoch of the positions: the next poll follows an election that came after they were read
        begin |= {keys[p]: Start(reset.new, limits.found[p].leader_epoch) for p, reset in resets.items()}
        _write(connection, store.clock(connection), group_id, share_rows, begin)
        return resets

    return store.read(read) if dry_run or preview else store.transact(write)


def _write(
    connection: sa.Connection,
    now: StoreClock,
    group_id: str,
    share_rows: Mapping[Key, ShareRow],
    begin: Mapping[Key, Start],
) -> None:
    """Write where the group begins. `share_rows` are the rows that it has in these partitions, locked."""
    changed = []
    for key, row in sorted(share_rows.items()):
        rows.drop_delays(connection, group_id, key)
        window = rules.reset(row.window, begin[key].offset)
        changed.append(replace(row, window=window, leader_epoch=begin[key].leader_epoch))
    rows.save(connection, changed, now)
    insert_starts(connection, group_id, {key: begin[key] for key in begin.keys() - share_rows.keys()}, now)


def _starts_of_others(cluster: Cluster, group_id: str, keys: Mapping[TopicPartition, Key]) -> dict[Key, Start]:
    """Return where the group begins in the other partitions of topics that it reads for the first time."""
    store = cluster.store
    names: dict[int, str] = {key[0]: partition.topic for partition, key in keys.items()}
    there = store.read(lambda connection: rows.partitions_of(connection, group_id, names))
    new = {topic_id: name for topic_id, name in names.items() if topic_id not in {key[0] for key in there}}
    if not new:
        return {}
    topics = store.read(lambda connection: find_topics(connection, set(new.values())))
    others = {
        (topic.topic_id, number)
        for topic in topics.values()
        if topic.topic_id in new
        for number in range(topic.partition_count)
    } - set(keys.values())
    configs = store.read(lambda connection: rows.configs_of(rows.ask_configs(connection, group_id), store.settings))
    return find_starts(cluster, group_id, new, others, configs, store.now())


def reset_each_share_offset(
    cluster: Cluster, group_id: str, targets: Mapping[TopicPartition, ResetTo]
) -> dict[TopicPartition, SparkLogError | None]:
    """Reset the partitions that exist, as `reset_share_offsets` does. Return, for each partition, None, or
    UnknownTopicOrPartitionError if it does not exist. Other errors are raised.
    """
    legal = [partition for partition in targets if is_legal(partition.topic)]
    known = cluster.store.read(lambda connection: find_positions(connection, legal))
    reset_share_offsets(cluster, group_id, {p: to for p, to in targets.items() if p in known})
    return {
        p: None if p in known else UnknownTopicOrPartitionError(f"{p}: unknown topic or partition") for p in targets
    }


def delete_share_offsets(store: Store, group_id: str, topics: Iterable[str]) -> dict[str, SparkLogError | None]:
    """Delete the state of a share group without members for all partitions of these topics. Members that subscribe
    later begin by share.auto.offset.reset.

    Returns, for each topic, None, or UnknownTopicOrPartitionError if it does not exist or the group has no state of it.
    Raises GroupIdNotFoundError or NonEmptyGroupError; then nothing is deleted.
    """
    names = sorted(set(topics))

    def delete(connection: sa.Connection) -> dict[str, SparkLogError | None]:
        lock_share_group(connection, group_id)
        refuse_live(store, connection, group_id)
        topics_by_name = find_topics(connection, set(filter(is_legal, names)))
        errors: dict[str, SparkLogError | None] = {}
        for name in names:
            if name not in topics_by_name:
                errors[name] = UnknownTopicOrPartitionError(f"topic {name!r}: does not exist")
                continue
            deleted = rows.delete_state(connection, group_id, topics_by_name[name].topic_id)
            missing = f"topic {name!r}: there is no offset information to delete"
            errors[name] = None if deleted else UnknownTopicOrPartitionError(missing)
        return errors

    return store.transact(delete)


def delete_share_group(store: Store, group_id: str) -> None:
    """Delete a share group with its state; its configs stay. Raises GroupIdNotFoundError or NonEmptyGroupError."""
    group = store.read(lambda connection: group_rows.read_group(connection, group_id))
    if group is not None and group.type != SHARE:
        raise not_a_share_group(group_id)
    delete_group(store, group_id)


def lock_share_group(connection: sa.Connection, group_id: str) -> group_rows.GroupRow:
    """Return a share group, locked. Raises GroupIdNotFoundError if there is none with this id."""
    group = group_rows.read_group(connection, group_id, lock=True)
    if group is None:
        raise GroupIdNotFoundError(f"Group {group_id} not found.")
    if group.type != SHARE:
        raise not_a_share_group(group_id)
    return group


def group_overrides(store: Store, group_id: str) -> dict[str, str]:
    """Return the configs that a group sets. The group need not exist."""
    return store.read(lambda connection: rows.read_configs(connection, group_id))


def alter_group_configs(
    store: Store,
    group_id: str,
    changes: Mapping[str, str | None],
    *,
    replace_all: bool = False,
    validate_only: bool = False,
) -> GroupConfig:
    """Set configs of a group, which need not exist; None resets one to its default. `replace_all` also resets the
    others; `validate_only` stores nothing. Returns the new configs. Raises InvalidGroupIdError, or
    InvalidConfigurationError, which names the config and its value; then nothing is changed.
    """
    check_group_id(group_id)
    check_group_config_names(changes)
    values = {name: value for name, value in changes.items() if value is not None}
    valid = validate_group_overrides(values, store.settings)

    def changed(before: Mapping[str, str]) -> dict[str, str]:
        kept = {} if replace_all else {name: value for name, value in before.items() if name not in changes}
        return {**kept, **valid}

    def alter(connection: sa.Connection) -> dict[str, str]:
        insert_if_missing(connection, t.group_config, {"group_id": group_id, "configs": "{}"})  # a row to lock
        query = sa.select(GROUP_CONFIG.configs).where(GROUP_CONFIG.group_id == group_id).with_for_update()
        after = changed(json.loads(connection.execute(query).scalar_one()))
        rows.save_configs(connection, group_id, after)
        return after

    after = changed(group_overrides(store, group_id)) if validate_only else store.transact(alter, announce=True)
    return GroupConfig.of(after, store.settings)
