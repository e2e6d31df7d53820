"""Describes share groups: members, partitions, configs, and the records that they work on. Reads only, each answer from
one snapshot.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.topics import Topic
from spark_log.config import ConfigDefinition, GroupConfig, group_definitions
from spark_log.errors import GroupIdNotFoundError
from spark_log.facts.groups import GroupDescription, describe_group
from spark_log.facts.share_partitions import SharePartition, share_partitions
from spark_log.groups.consumer.rows import SHARE
from spark_log.groups.share import rows
from spark_log.groups.share.members import not_a_share_group
from spark_log.groups.share.reading import ShareReads, near
from spark_log.groups.share.rules import AVAILABLE, REJECTED, Range
from spark_log.ids import TopicPartition
from spark_log.metadata.sql_columns import GROUP_CONFIG, SHARE_DELAYED
from spark_log.metadata.store import Store

DEAD_LETTER_TOPIC = "errors.deadletterqueue.topic.name"
DELAYED_MAX = 100
"""The number of delayed records of a partition that `peek_share_group` returns."""


@dataclass(frozen=True)
class ShareGroupDescription:
    """A share group. Its state is Stable, or Empty without members. `config` has the configs in use."""

    group: GroupDescription
    partitions: tuple[SharePartition, ...]
    config: GroupConfig


@dataclass(frozen=True)
class RecordRange:
    """Consecutive records in one state. `left_ms` is the time that is left of their lock, and `due_ms` is the time
    (since 1970) at which a delayed record is delivered.
    """

    state: str
    """One of acquired, available, delayed, archiving (rejected) and archiving (delivery count)."""
    first: int
    end: int
    deliveries: int
    member: str = ""
    left_ms: int | None = None
    due_ms: int | None = None


@dataclass(frozen=True)
class PartitionPeek:
    """The unfinished records of a share group in a partition, by offset. At most DELAYED_MAX of them are delayed."""

    partition: SharePartition
    ranges: tuple[RecordRange, ...]


def describe_share_group(store: Store, group_id: str) -> ShareGroupDescription:
    """Describe a share group. Raises GroupIdNotFoundError if there is none with this id."""

    def read(connection: sa.Connection) -> ShareGroupDescription:
        described = describe_group(connection, store.clock(connection), group_id)
        if described.state == "Dead":
            raise GroupIdNotFoundError(f"Group {group_id} not found.")
        if described.type != SHARE:
            raise not_a_share_group(group_id)
        overrides = rows.read_configs(connection, group_id)
        config = GroupConfig.of(overrides, store.settings)
        return ShareGroupDescription(described, tuple(share_partitions(connection, group_id)), config)

    return store.read(read)


class ConfigOrigin(Enum):
    """Where the value of a group config comes from."""

    GROUP = "group"
    CLUSTER = "cluster setting"
    """The group does not set it, and the cluster setting group.<name> is not at its default."""
    DEFAULT = "default"


@dataclass(frozen=True)
class GroupConfigEntry:
    """A config of a group, with its value in use."""

    definition: ConfigDefinition
    value: str
    origin: ConfigOrigin


def group_config_entries(store: Store, group_id: str) -> list[GroupConfigEntry]:
    """Return all configs of a group. The group need not exist."""
    overrides = store.read(lambda connection: rows.read_configs(connection, group_id))
    values, defaults = GroupConfig.of(overrides, store.settings).as_text(), GroupConfig().as_text()
    return [
        GroupConfigEntry(
            definition,
            values[name],
            ConfigOrigin.GROUP
            if name in overrides
            else ConfigOrigin.CLUSTER
            if values[name] != defaults[name]
            else ConfigOrigin.DEFAULT,
        )
        for name, definition in group_definitions().items()
    ]


def is_dead_letter_topic(connection: sa.Connection, topic: Topic) -> bool:
    """Return whether dead letters may be written to the topic, or the config of a group names it."""
    if topic.config.errors_deadletterqueue_group_enable:
        return True
    naming = sa.select(GROUP_CONFIG.group_id).where(GROUP_CONFIG.configs.contains(f'"{topic.name}"', autoescape=True))
    return any(
        rows.read_configs(connection, group_id).get(DEAD_LETTER_TOPIC) == topic.name
        for group_id in connection.execute(naming).scalars().all()
    )


def peek_share_group(store: Store, group_id: str, places: Iterable[TopicPartition] = ()) -> list[PartitionPeek]:
    """Return the unfinished records of a share group in these partitions, or in all, without acquiring any. Raises
    GroupIdNotFoundError.
    """
    chosen = set(places)
    partitions = [
        partition
        for partition in describe_share_group(store, group_id).partitions
        if not chosen or partition.place in chosen
    ]

    def read(connection: sa.Connection) -> list[PartitionPeek]:
        now = store.clock(connection)
        peeks = []
        for partition in partitions:
            key = (partition.topic_id, partition.partition)
            row = rows.row_of(rows.ask_row(connection, group_id, key, lock=False), group_id, key, now)
            held = () if row is None else row.window.ranges
            delayed = connection.execute(
                sa.select(SHARE_DELAYED.offset, SHARE_DELAYED.due_ms, SHARE_DELAYED.deliveries)
                .where(
                    SHARE_DELAYED.group_id == group_id,
                    SHARE_DELAYED.topic_id == key[0],
                    SHARE_DELAYED.partition == key[1],
                )
                .order_by(SHARE_DELAYED.due_ms, SHARE_DELAYED.offset)
                .limit(DELAYED_MAX)
            ).all()
            ranges = [_range(held_range, now.lease_ms) for held_range in held]
            ranges += [RecordRange("delayed", o, o + 1, count, due_ms=due_ms) for o, due_ms, count in delayed]
            peeks.append(PartitionPeek(partition, tuple(sorted(ranges, key=lambda record_range: record_range.first))))
        return peeks

    return store.read(read)


def _range(r: Range, now_ms: int) -> RecordRange:
    if r.lock > 0:
        return RecordRange("acquired", r.first, r.end, r.deliveries, r.member, max(0, r.until_ms - now_ms))
    if r.lock == AVAILABLE:
        return RecordRange("available", r.first, r.end, r.deliveries)
    cause = "rejected" if r.lock == REJECTED else "delivery count"
    return RecordRange(f"archiving ({cause})", r.first, r.end, r.deliveries)


@dataclass(frozen=True)
class PeekedRecord:
    """A record that a share group works on, or would acquire next. `key` and `value` are None also if the record cannot
    be read any more.
    """

    partition: TopicPartition
    offset: int
    state: str
    """A state of `RecordRange`, or `next` for a record that was never acquired."""
    deliveries: int
    member: str
    left_ms: int | None
    due_ms: int | None
    key: bytes | None
    value: bytes | None


def peek_records(cluster: Cluster, group_id: str, places: Iterable[TopicPartition], limit: int) -> list[PeekedRecord]:
    """Return up to `limit` records of each state and partition, with their keys and values, without acquiring any.

    Raises GroupIdNotFoundError, and the errors of reading.
    """
    peeked_records: list[PeekedRecord] = []
    reads = ShareReads(cluster)
    for peek in peek_share_group(cluster.store, group_id, places):
        part = peek.partition
        chosen: list[tuple[int, RecordRange]] = []
        counts: dict[str, int] = {}
        for record_range in peek.ranges:
            upto = min(record_range.end, record_range.first + limit - counts.get(record_range.state, 0))
            chosen += ((offset, record_range) for offset in range(record_range.first, upto))
            counts[record_range.state] = counts.get(record_range.state, 0) + max(0, upto - record_range.first)
        following = RecordRange("next", part.next, part.high_watermark, 0)
        needs = [
            (max(offset, part.log_start), offset + 1)
            for offset, _ in chosen
            if part.log_start <= offset < part.high_watermark
        ]
        needs += (
            [(following.first, min(following.end, following.first + limit))] if part.next < part.high_watermark else []
        )
        records = _read(cluster, reads, part, needs)
        new = sorted(offset for offset in records if offset >= following.first)[:limit]
        chosen += ((offset, following) for offset in new)
        peeked_records += (
            PeekedRecord(
                part.place, offset, record_range.state, record_range.deliveries, record_range.member,
                record_range.left_ms, record_range.due_ms, *records.get(offset, (None, None)),
            )
            for offset, record_range in chosen
        )  # fmt: skip
    return peeked_records


def _read(
    cluster: Cluster, reads: ShareReads, part: SharePartition, needs: Sequence[tuple[int, int]]
) -> dict[int, tuple[bytes | None, bytes | None]]:
    """Return the keys and values of records by offset."""
    if not needs:
        return {}
    key = (part.topic_id, part.partition)
    log = cluster.store.read(lambda connection: rows.log_of(rows.ask_log(connection, key)))
    if log is None:
        return {}
    parts = near(needs)
    readable = reads.readable(key, part.topic, log.version, [*parts, (parts[-1][1], parts[-1][1])], parts[0][0])
    found = {}
    for records in readable.records:
        columns = (records.column(name).to_pylist() for name in ("offset", "key", "value"))
        found.update({offset: (record_key, value) for offset, record_key, value in zip(*columns, strict=True)})
    return found
