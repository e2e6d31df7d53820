"""Resets and deletes offsets of a group, deletes a group, and removes its members.

Each change is one transaction under the lock of the group. `delete_offsets_of_each` makes one change for each topic.
"""

import contextlib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeAlias, assert_never

import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.each_store import partitions_by_store
from spark_log.cluster.names import is_legal
from spark_log.cluster.topics import find_topic, find_topics
from spark_log.config.values import INT64_MAX
from spark_log.errors import (
    AssignorFailedError,
    GroupIdNotFoundError,
    GroupSubscribedToTopicError,
    IllegalArgumentError,
    InconsistentGroupProtocolError,
    NonEmptyGroupError,
    SparkLogError,
    UnknownMemberIdError,
    UnknownTopicOrPartitionError,
)
from spark_log.groups.assignors import known_assignors
from spark_log.groups.classic.rows import delete_classic
from spark_log.groups.classic.service import remove_classic_members
from spark_log.groups.committed_offsets import (
    Commit,
    count_live,
    delete_commits,
    of_their_topics,
    read_commits,
    refuse_unknown,
    write_commits,
)
from spark_log.groups.consumer import rows
from spark_log.groups.consumer.reconciliation import refresh_targets
from spark_log.groups.conversion import downgrade, read_type
from spark_log.groups.group_names import check_group_id
from spark_log.groups.offset_expiry import subscribed_topics
from spark_log.groups.share.group_ids import make_consumer_group, refuse_share_group
from spark_log.groups.share.rows import delete_state
from spark_log.ids import TopicPartition
from spark_log.log.segments.plan import PartitionSnapshot, find_positions
from spark_log.log.segments.slices import Positions
from spark_log.log.segments.timed_offsets import offsets_for_times
from spark_log.metadata import tables as t
from spark_log.metadata.store import Store
from spark_log.text import parse_time_ms
from spark_log.transactions.transaction_rows import delete_pending_offsets


@dataclass(frozen=True)
class Earliest:
    """Resets to the log start offset."""


@dataclass(frozen=True)
class Latest:
    """Resets to the high watermark."""


@dataclass(frozen=True)
class AtTime:
    """Resets to the first record of this time or later, or to the high watermark if there is none."""

    timestamp_ms: int


@dataclass(frozen=True)
class ShiftBy:
    """Adds this number to the committed offset. It may be negative. Without a committed offset, the reset raises
    IllegalArgumentError.
    """

    records: int


@dataclass(frozen=True)
class Exactly:
    offset: int


ResetTo: TypeAlias = Earliest | Latest | AtTime | ShiftBy | Exactly
RESETS = "earliest, latest, an offset, +N, -N, a time such as 2026-01-31T12:00:00Z, or @milliseconds"

_SHIFT = re.compile(r"[+-][0-9]{1,18}")
_OFFSET = re.compile(r"[0-9]{1,19}")
_MILLISECONDS = re.compile(r"@[0-9]{1,15}")


class OffsetReset(NamedTuple):
    """The committed offset of a partition before a reset (None if there is none) and after it."""

    current: int | None
    new: int


def parse_reset(text: str) -> ResetTo:
    """Parse the reset that a user names, in one of the forms of RESETS. A time without a zone is UTC. Raises
    ValueError for other texts.
    """
    word = text.strip()
    if word.lower() == "earliest":
        return Earliest()
    if word.lower() == "latest":
        return Latest()
    if _SHIFT.fullmatch(word):
        return ShiftBy(int(word))
    if _OFFSET.fullmatch(word):
        return Exactly(int(word))
    if _MILLISECONDS.fullmatch(word):
        return AtTime(int(word[1:]))
    try:
        return AtTime(parse_time_ms(word))
    except ValueError:
        raise ValueError(f"expected {RESETS}; got {text!r}") from None


def reset_offset(to: ResetTo, limits: Positions, committed: int | None, at_time: int | None) -> int:
    """Return the new offset of a reset, clamped to [log start offset, high watermark] as in kafka-consumer-groups.

    `at_time` is the offset of the first record of the requested time or later, or None. Raises IllegalArgumentError if
    `to` shifts and there is no committed offset, or names an offset that is not a whole number from 0 to 2**63 - 1.
    """
    match to:
        case Earliest():
            new_offset = limits.log_start_offset
        case Latest():
            new_offset = limits.high_watermark
        case AtTime():
            new_offset = limits.high_watermark if at_time is None else at_time
        case ShiftBy(records):
            if committed is None:
                raise IllegalArgumentError("shift by: there is no committed offset to count from")
            new_offset = committed + records
        case Exactly(offset):
            if isinstance(offset, bool) or not isinstance(offset, int) or not 0 <= offset <= INT64_MAX:
                raise IllegalArgumentError(f"offset to reset to: {offset!r} is not an integer >= 0")
            new_offset = offset
        case _:
            assert_never(to)
    return min(max(new_offset, limits.log_start_offset), limits.high_watermark)


def reset_offsets(
    cluster: Cluster,
    group_id: str,
    targets: Mapping[TopicPartition, ResetTo],
    *,
    dry_run: bool = False,
    preview: bool = False,
    expected: Mapping[TopicPartition, int | None] | None = None,
) -> dict[TopicPartition, OffsetReset]:
    """Commit other offsets for a group without live members. A group that does not exist is created.

    Returns the offsets before and after. With `dry_run` or `preview`, nothing is written; with `preview`, the group may
    have members. `expected` is that of `resolve_resets`. Raises InvalidGroupIdError, GroupIdNotFoundError for a share
    group, NonEmptyGroupError, the errors of `resolve_resets`, or UnknownTopicOrPartitionError (also if a topic is
    deleted meanwhile); then nothing is written.
    """
    check_group_id(group_id)
    limits = read_limits(cluster, targets)
    commits = {p: Commit(0, "", found.leader_epoch, found.topic_id) for p, found in limits.found.items()}

    def read(connection: sa.Connection) -> dict[TopicPartition, OffsetReset]:
        refuse_share_group(connection, group_id, rows.read_group(connection, group_id))
        if not preview:
            refuse_live(cluster.store, connection, group_id)
        refuse_unknown(commits.keys() - of_their_topics(connection, commits).keys())
        before = {p: commit.offset for p, commit in read_commits(connection, group_id, commits.keys()).items()}
        return resolve_resets(targets, limits, before, expected)

    def write(connection: sa.Connection) -> dict[TopicPartition, OffsetReset]:
        now = cluster.store.clock(connection)
        make_consumer_group(connection, group_id, rows.lock_or_make_group(connection, group_id, now))
        resets = read(connection)
        write_commits(connection, now, group_id, {p: commits[p]._replace(offset=r.new) for p, r in resets.items()})
        return resets

    return cluster.store.read(read) if dry_run or preview else cluster.store.transact(write)


class Limits(NamedTuple):
    """The positions of partitions to reset, and the offsets of the resets to a time."""

    found: dict[TopicPartition, PartitionSnapshot]
    at_times: dict[TopicPartition, int | None]


def read_limits(cluster: Cluster, targets: Mapping[TopicPartition, ResetTo]) -> Limits:
    """Return the limits of the partitions. Raises UnknownTopicOrPartitionError."""
    legal = {partition for partition in targets if is_legal(partition.topic)}
    positions = cluster.store.read(lambda connection: find_positions(connection, legal))
    for store_id, there in partitions_by_store(cluster, legal - positions.keys()).items():
        positions |= cluster.at(store_id).store.read(partial(find_positions, partitions=there))
    refuse_unknown(targets.keys() - positions.keys())
    times: dict[str, dict[int, int]] = {}
    for partition, to in targets.items():
        if isinstance(to, AtTime):
            times.setdefault(partition.topic, {})[partition.partition] = to.timestamp_ms
    at_times: dict[TopicPartition, int | None] = {}
    for name, asked in sorted(times.items()):
        topic = cluster.store.read(partial(find_topic, name=name))
        for number, offset in offsets_for_times(cluster.of(topic), topic, asked).items():
            at_times[TopicPartition(name, number)] = offset
    return Limits(positions, at_times)


def resolve_resets(
    targets: Mapping[TopicPartition, ResetTo],
    limits: Limits,
    before: Mapping[TopicPartition, int],
    expected: Mapping[TopicPartition, int | None] | None,
) -> dict[TopicPartition, OffsetReset]:
    """Return the offsets before and after the resets. With `expected`, the offsets before must equal it, and an offset
    of `Exactly` must be in the log. Raises IllegalArgumentError if not, or the errors of `reset_offset`.
    """
    resets = {}
    for partition, to in sorted(targets.items()):
        positions, current = limits.found[partition].positions, before.get(partition)
        new = reset_offset(to, positions, current, limits.at_times.get(partition))
        if expected is not None and current != expected.get(partition):
            raise IllegalArgumentError(
                f"{partition}: the group's offset is {current} now, it was {expected.get(partition)}: look again"
            )
        if expected is not None and isinstance(to, Exactly) and new != to.offset:
            raise IllegalArgumentError(
                f"{partition}: offset {to.offset} is outside the log, which is now"
                f" [{positions.log_start_offset}, {positions.high_watermark}]: look again"
            )
        resets[partition] = OffsetReset(current, new)
    return resets


def delete_group(store: Store, group_id: str) -> None:
    """Delete a group of any type with all its offsets, also those of open transactions, as Kafka does. The configs of a
    share group stay. Raises GroupIdNotFoundError or NonEmptyGroupError.
    """

    def delete(connection: sa.Connection) -> None:
        _lock_existing(connection, group_id)
        refuse_live(store, connection, group_id)
        delete_classic(connection, [group_id])
        delete_pending_offsets(connection, group_id)
        delete_state(connection, group_id)
        for table in (t.group_offset, t.group_partition, t.group_member, t.consumer_group):
            connection.execute(table.delete().where(table.c.group_id == group_id))

    store.transact(delete)


def delete_offsets_of_each(
    store: Store, group_id: str, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, SparkLogError | None]:
    """Delete a group's offsets, in one transaction for each topic, and return the error of each partition, or None.

    The errors of a partition are GroupSubscribedToTopicError, and UnknownTopicOrPartitionError if it does not exist.
    The other errors of `delete_offsets` are raised.
    """
    names = {partition.topic for partition in partitions}
    topics = store.read(lambda connection: find_topics(connection, names))
    outcomes: dict[TopicPartition, SparkLogError | None] = {}
    for name in sorted(names):
        count = topics[name].partition_count if name in topics else 0
        mine = [partition for partition in partitions if partition.topic == name]
        error = None
        try:
            delete_offsets(store, group_id, [partition for partition in mine if 0 <= partition.partition < count])
        except GroupSubscribedToTopicError as subscribed:
            error = subscribed
        for partition in mine:
            known = 0 <= partition.partition < count
            outcomes[partition] = (
                error
                if known
                else UnknownTopicOrPartitionError(f"partition {name}-{partition.partition}: does not exist")
            )
    return outcomes


def delete_offsets(store: Store, group_id: str, partitions: Collection[TopicPartition]) -> None:
    """Delete a group's offsets of the partitions. Raises GroupIdNotFoundError, GroupSubscribedToTopicError if live
    members subscribe to a topic, or NonEmptyGroupError if the topics of live members cannot be decoded; then nothing is
    deleted.
    """

    def delete(connection: sa.Connection) -> None:
        refuse_share_group(connection, group_id, _lock_existing(connection, group_id))
        subscribed = subscribed_topics(connection, group_id, store.clock(connection))
        if read := subscribed & {p.topic for p in partitions}:
            raise GroupSubscribedToTopicError(f"group {group_id!r} is reading {', '.join(sorted(read))}")
        delete_commits(connection, group_id, partitions)

    store.transact(delete)


def remove_from_group(
    store: Store, group_id: str, member_ids: Collection[str] = (), instance_ids: Collection[str] = ()
) -> None:
    """Remove members, also static ones, from a group. Their next heartbeat fails, and they may join again.

    Raises GroupIdNotFoundError, and UnknownMemberIdError if one is not a member; then no member is removed.
    """
    if read_type(store, group_id) == rows.CLASSIC:
        remove_classic_members(store, group_id, member_ids, instance_ids)
        return

    def remove(connection: sa.Connection) -> None:
        group = _lock_existing(connection, group_id)
        members = rows.read_members(connection, group_id)
        ids = {member.member_id for member in members}
        instances = {member.instance_id: member.member_id for member in members if member.instance_id is not None}
        missing = sorted(set(member_ids) - ids) + sorted(set(instance_ids) - instances.keys())
        if missing:
            raise UnknownMemberIdError(f"group {group_id!r}: no member {', '.join(missing)}")
        gone = sorted({*member_ids, *(instances[instance] for instance in instance_ids)})
        now = store.clock(connection)
        is_share_group = group.type == rows.SHARE
        rows.remove_members(connection, now, group_id, group.group, gone, have_targets=not is_share_group)
        if not is_share_group:
            downgrade(store, connection, group_id, group.group, now)

    store.transact(remove, announce=True)
    # the next heartbeats of the members raise these errors
    with contextlib.suppress(AssignorFailedError, InconsistentGroupProtocolError):
        refresh_targets(store, group_id, known_assignors())


def _lock_existing(connection: sa.Connection, group_id: str) -> rows.GroupRow:
    group = rows.read_group(connection, group_id, lock=True)
    if group is None:
        raise GroupIdNotFoundError(f"group {group_id!r}: there is no such group")
    return group


def refuse_live(store: Store, connection: sa.Connection, group_id: str) -> None:
    """Raise NonEmptyGroupError if the group has live members. The caller's transaction holds the group's lock."""
    if live := count_live(connection, group_id, store.clock(connection)):
        raise NonEmptyGroupError(f"group {group_id!r} has {live} live members")
