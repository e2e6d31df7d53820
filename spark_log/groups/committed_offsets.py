"""Reads and writes the committed offsets of consumer groups.

Each commit takes the next offsets of its partition of `__consumer_offsets`. The first commit creates this topic, which
has no replicas, because the store keeps it, and clients cannot write to it. `log.segments.offset_commit_records`
describes its records.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import sqlalchemy as sa

from spark_log.cluster.names import CONSUMER_OFFSETS_TOPIC, is_legal
from spark_log.cluster.topics import find_topics
from spark_log.config import ClusterSettings
from spark_log.config.values import INT32_MAX, INT64_MAX
from spark_log.errors import (
    IllegalArgumentError,
    OffsetMetadataTooLargeError,
    SparkLogError,
    UnknownMemberIdError,
    UnknownTopicOrPartitionError,
)
from spark_log.groups.classic.service import live_classic
from spark_log.groups.consumer import rows
from spark_log.groups.share.group_ids import make_consumer_group
from spark_log.ids import TopicPartition, numbers_by_topic
from spark_log.log.append.partitioner import partition_of_key
from spark_log.log.partitions.partition_rows import take_offsets
from spark_log.metadata import tables as t
from spark_log.metadata.prepared import Prepared, in_list
from spark_log.metadata.sql_columns import GROUP_OFFSET, TOPIC, TRANSACTION_OFFSET
from spark_log.metadata.store import Store
from spark_log.metadata.store_clock import StoreClock
from spark_log.replication.controller.topic_operations import insert_topic
from spark_log.transactions.transaction_rows import delete_pending_offsets

if TYPE_CHECKING:
    from kafka.structs import OffsetAndMetadata  # not at run time: drivers of Spark queries run without kafka-python

AGAIN_S = 3_600.0
"""Time after which an active reader commits equal offsets again: the time to an offset's expiry counts from its commit.
"""
KEPT = "spark-log: does not expire"
"""The metadata of committed offsets that do not expire, because work would be done twice without them (redrive)."""
_PARTITIONS = 50
"""The number of partitions of __consumer_offsets: the default of Kafka's offsets.topic.num.partitions."""
_TOPIC = Prepared(sa.select(TOPIC.topic_id, TOPIC.partition_count).where(TOPIC.name == sa.bindparam("topic")))
_FORGET = Prepared(
    t.group_offset.delete().where(
        GROUP_OFFSET.group_id == sa.bindparam("key_group"),
        GROUP_OFFSET.topic_id == sa.bindparam("key_topic"),
        GROUP_OFFSET.partition == sa.bindparam("key_partition"),
    )
)
_REMEMBER = Prepared(t.group_offset.insert())


class Commit(NamedTuple):
    """A commit of a partition: the next offset to read, free text, and the leader epoch of the last record read (-1 if
    it is unknown).

    The fields are in the order of kafka-python's OffsetAndMetadata, followed by the id of the topic.
    """

    offset: int
    metadata: str = ""
    leader_epoch: int = -1
    topic_id: int | None = None
    """None means the topic that has the name at the time of the commit."""


def check_commits_of_clients(
    offsets: Mapping[TopicPartition, Commit], settings: ClusterSettings
) -> tuple[dict[TopicPartition, Commit], dict[TopicPartition, SparkLogError]]:
    """Check each commit alone, for a client that may not decide whether its offsets expire. Return the valid commits,
    and the errors of the others, which are those of `check_commits`.
    """
    commits: dict[TopicPartition, Commit] = {}
    errors: dict[TopicPartition, SparkLogError] = {}
    for partition, commit in offsets.items():
        try:
            if commit.metadata == KEPT:
                raise IllegalArgumentError(f"metadata to commit for {partition}: {KEPT!r} is reserved")
            commits |= check_commits({partition: commit}, settings)
        except SparkLogError as error:
            errors[partition] = error
    return commits, errors


def check_commits(
    offsets: Mapping[TopicPartition, int | OffsetAndMetadata], settings: ClusterSettings
) -> dict[TopicPartition, Commit]:
    """Convert and check the given commits.

    Raises IllegalArgumentError if a partition, offset or leader epoch is not a whole number of its range, or a text is
    not UTF-8, and OffsetMetadataTooLargeError if a text is larger than offset.metadata.max.bytes.
    """
    checked: dict[TopicPartition, Commit] = {}
    for (topic, partition), given in offsets.items():
        offset, text, epoch, *topic_id = given if isinstance(given, tuple) else (given, "", -1)
        here = f"{topic}-{partition}"
        if isinstance(partition, bool) or not isinstance(partition, int) or not -(2**31) <= partition <= INT32_MAX:
            raise IllegalArgumentError(f"partition to commit for {topic!r}: {partition!r} is not an integer of 32 bits")
        if isinstance(offset, bool) or not isinstance(offset, int) or not 0 <= offset <= INT64_MAX:
            raise IllegalArgumentError(f"offset to commit for {here}: {offset!r} is not an integer >= 0")
        text = "" if text is None else text
        try:
            size = len(text.encode())
        except (AttributeError, UnicodeEncodeError):
            raise IllegalArgumentError(f"metadata to commit for {here}: {text!r} is not text in UTF-8") from None
        if size > settings.offset_metadata_max_bytes:
            raise OffsetMetadataTooLargeError(
                f"metadata to commit for {here}: {size} bytes, more than offset.metadata.max.bytes"
                f" ({settings.offset_metadata_max_bytes})"
            )
        checked[TopicPartition(topic, partition)] = Commit(offset, text, checked_epoch(here, epoch), *topic_id)
    return checked


def checked_epoch(place: object, epoch: object) -> int:
    """Return the leader epoch of an offset of the partition `place`; -1 for None, if it is unknown. Raises
    IllegalArgumentError unless it is a whole number from -1 to 2**31 - 1.
    """
    if epoch is None:
        return -1
    if isinstance(epoch, bool) or not isinstance(epoch, int) or not -1 <= epoch <= INT32_MAX:
        raise IllegalArgumentError(f"leader epoch of the offset for {place}: {epoch!r} is not an integer from -1")
    return epoch


def commit_offsets(
    store: Store, group_id: str, offsets: Mapping[TopicPartition, int | OffsetAndMetadata]
) -> list[TopicPartition]:
    """Commit the next offsets to read for a group without members: a Spark query, or a consumer with manual assignment.

    Returns the partitions that do not exist, or whose commit has the id of another topic; all others are committed.
    Raises UnknownMemberIdError while the group has live members, because only they may commit, GroupIdNotFoundError if
    it is a share group, and the errors of `check_commits`; then nothing is committed.
    """
    commits = check_commits(offsets, store.settings)

    def commit(connection: sa.Connection) -> list[TopicPartition]:
        group = rows.lock_or_make_group(connection, group_id, store.clock(connection))
        make_consumer_group(connection, group_id, group)
        now = refuse_with_members(store, connection, group_id)
        return write_commits(connection, now, group_id, commits)

    return store.transact(commit)


def refuse_with_members(store: Store, connection: sa.Connection, group_id: str) -> StoreClock:
    """Return the time, or raise UnknownMemberIdError if the group has live members. The caller's transaction holds the
    group's lock.
    """
    now = store.clock(connection)
    if live := count_live(connection, group_id, now):
        raise UnknownMemberIdError(
            f"group {group_id!r} has {live} live member(s): only they commit its offsets; take another group id"
        )
    return now


def count_live(connection: sa.Connection, group_id: str, now: StoreClock) -> int:
    """Return the number of members, of any kind, whose sessions have not ended."""
    live = rows.count_members(connection, group_id) - len(rows.dead_members(connection, group_id, now))
    return live + live_classic(connection, group_id, now)


def write_commits(
    connection: sa.Connection, now: StoreClock, group_id: str, commits: Mapping[TopicPartition, Commit]
) -> list[TopicPartition]:
    """Write the commits in the caller's transaction, which holds the lock of the group's row.

    Returns the partitions that do not exist, or whose commit has the id of another topic; these are not written.
    """
    here = of_their_topics(connection, commits)
    if not here:
        return sorted(commits)
    log_partition = log_partition_of(group_id)
    first = _take_offsets(connection, log_partition, len(here), now)
    keys = [
        {"key_group": group_id, "key_topic": here[partition].topic_id, "key_partition": partition.partition}
        for partition in sorted(here)
    ]
    _FORGET.run(connection, keys)
    written = {"committed_ms": now.wall_ms, "log_partition": log_partition}
    new = [
        {**offset_row(group_id, partition, here[partition]), **written, "position": position}
        for position, partition in enumerate(sorted(here), first)
    ]
    _REMEMBER.run(connection, new)
    return sorted(commits.keys() - here.keys())


def _take_offsets(connection: sa.Connection, partition: int, count: int, now: StoreClock) -> int:
    """Return the offset of the first of `count` records that this transaction commits to `partition` of the topic.

    Locks the partition's row. The caller must have locked the group's row before (the lock order).
    """
    first = take_offsets(connection, CONSUMER_OFFSETS_TOPIC, partition, count)
    if first is None:
        _create_topic(connection, now)
        first = take_offsets(connection, CONSUMER_OFFSETS_TOPIC, partition, count)
    assert first is not None
    return first


def _create_topic(connection: sa.Connection, now: StoreClock) -> None:
    """Create the topic. On PostgreSQL, concurrent first commits wait for each other; the second finds the topic."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(sa.func.hashtext(CONSUMER_OFFSETS_TOPIC))))
        there = sa.select(TOPIC.topic_id).where(TOPIC.name == CONSUMER_OFFSETS_TOPIC)
        if connection.execute(there).scalar() is not None:
            return
    insert_topic(connection, CONSUMER_OFFSETS_TOPIC, [()] * _PARTITIONS, 1, {"cleanup.policy": "compact"}, now)


def offset_row(group_id: str, partition: TopicPartition, commit: Commit) -> dict[str, Any]:
    """Return the columns that tables group_offset and transaction_offset have in common."""
    return {
        "group_id": group_id,
        "topic_id": commit.topic_id,
        "partition": partition.partition,
        "committed_offset": commit.offset,
        "leader_epoch": commit.leader_epoch,
        "commit_metadata": commit.metadata.encode(),
    }


def of_their_topics(
    connection: sa.Connection, commits: Mapping[TopicPartition, Commit]
) -> dict[TopicPartition, Commit]:
    """Return the commits of partitions that exist, each with the id of its topic.

    A commit whose topic id is not that of the topic with this name belongs to a deleted topic, and is left out.
    """
    topics: dict[str, tuple[int, int]] = {}
    for name in {name for name, _ in commits}:
        if is_legal(name):
            topics.update((name, (topic_id, count)) for topic_id, count in _TOPIC.rows(connection, {"topic": name}))
    found: dict[TopicPartition, Commit] = {}
    for partition, commit in commits.items():
        topic_id, count = topics.get(partition.topic, (None, 0))
        if 0 <= partition.partition < count and commit.topic_id in (None, topic_id):
            found[partition] = commit._replace(topic_id=topic_id)
    return found


def log_partition_of(group_id: str) -> int:
    """Return the number of the partition of __consumer_offsets that has the group's commits."""
    return partition_of_key(group_id.encode(), _PARTITIONS)


def refuse_unknown(partitions: Collection[TopicPartition]) -> None:
    """Raise UnknownTopicOrPartitionError with the names of `partitions`, if there are any."""
    if partitions:
        shown = ", ".join(map(str, sorted(partitions)))
        raise UnknownTopicOrPartitionError(
            f"not committed: {shown}: unknown topic or partition, or the offset is of a topic that was deleted"
        )


def committed_offsets(store: Store, group_id: str) -> dict[TopicPartition, int]:
    """Return the group's committed offsets by partition. An unknown group has none."""
    return {partition: commit.offset for partition, commit in store.read(lambda c: read_commits(c, group_id)).items()}


def committed(
    store: Store, group_id: str, partitions: Collection[TopicPartition] | None = None
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the group's commits for the partitions, or all its commits if `partitions` is None. Partitions without a
    commit are left out.
    """
    from kafka.structs import OffsetAndMetadata

    found = store.read(lambda connection: read_commits(connection, group_id, partitions))
    return {partition: OffsetAndMetadata(*commit[:3]) for partition, commit in found.items()}


def read_commits(
    connection: sa.Connection, group_id: str, partitions: Collection[TopicPartition] | None = None
) -> dict[TopicPartition, Commit]:
    query = (
        sa.select(
            TOPIC.name,
            GROUP_OFFSET.partition,
            GROUP_OFFSET.committed_offset,
            GROUP_OFFSET.commit_metadata,
            GROUP_OFFSET.leader_epoch,
            GROUP_OFFSET.topic_id,
        )
        .join(t.topic, TOPIC.topic_id == GROUP_OFFSET.topic_id)
        .where(GROUP_OFFSET.group_id == group_id)
    )
    requested = None if partitions is None else set(partitions)
    if requested is not None and len(requested) == 1:
        (only,) = requested
        query = query.where(TOPIC.name == only.topic, GROUP_OFFSET.partition == only.partition)
    found = {
        TopicPartition(name, number): Commit(offset, text.decode(), *rest)
        for name, number, offset, text, *rest in connection.execute(query)
    }
    return found if requested is None else {p: commit for p, commit in found.items() if p in requested}


def has_commits(group_id: str | sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
    """Return the condition that the group has commits of topics that exist. A commit that runs while
    its topic is deleted may leave a row that does not count.
    """
    return sa.exists().where(GROUP_OFFSET.group_id == group_id, TOPIC.topic_id == GROUP_OFFSET.topic_id)


def has_pending_commits(group_id: str | sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
    """Return the condition that an open transaction has offsets for the group."""
    return sa.exists().where(TRANSACTION_OFFSET.group_id == group_id)


def delete_commits(connection: sa.Connection, group_id: str, partitions: Collection[TopicPartition]) -> None:
    """Delete the group's commits for the partitions, in the caller's transaction, also those of open transactions."""
    by_topic = numbers_by_topic(partitions)
    for name, topic in find_topics(connection, by_topic).items():
        numbers = by_topic[name]
        here = (GROUP_OFFSET.group_id == group_id) & (GROUP_OFFSET.topic_id == topic.topic_id)
        connection.execute(t.group_offset.delete().where(here, in_list(GROUP_OFFSET.partition, numbers)))
        delete_pending_offsets(connection, group_id, topic.topic_id, numbers)
