"""Commits group offsets in the same transaction as records (KIP-447)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from kafka.structs import ConsumerGroupMetadata

from spark_log.errors import CommitFailedError, IllegalGenerationError, UnknownMemberIdError
from spark_log.groups.committed_offsets import (
    Commit,
    log_partition_of,
    of_their_topics,
    refuse_unknown,
    refuse_with_members,
    write_commits,
)
from spark_log.groups.committers import check_committer
from spark_log.groups.consumer import rows
from spark_log.groups.group_names import check_group_id
from spark_log.groups.identity import Identity
from spark_log.groups.share.group_ids import make_consumer_group, refuse_share_group
from spark_log.ids import TopicPartition
from spark_log.log.append.append_transaction import CommitHook
from spark_log.metadata.store import Store
from spark_log.metadata.store_clock import StoreClock

Commits = Mapping[TopicPartition, Commit]


class GroupMetadata(ConsumerGroupMetadata):  # type: ignore[misc]  # kafka-python has no types
    """A consumer in its group, with the id of the topic that it has read from in each partition."""

    topic_ids: Mapping[TopicPartition, int]

    def of_topics(self, topic_ids: Mapping[TopicPartition, int]) -> "GroupMetadata":
        self.topic_ids = topic_ids
        return self


@dataclass(frozen=True, order=True)
class Committer:
    """The author of a commit: a member in a generation of its group, or an empty member id for a group without members.

    An `unfenced` author is not checked. It is a Kafka client that names no member, as before KIP-447, or an open
    transaction of a client, whose member was checked when it added the offsets. Raises InvalidGroupIdError, or
    ValueError if there is a generation without a member id.
    """

    group_id: str
    member_id: str = ""
    generation: int = -1
    instance_id: str | None = None
    unfenced: bool = False

    def __post_init__(self) -> None:
        check_group_id(self.group_id)
        if self.generation >= 0 and not self.member_id:
            raise ValueError(f"group_metadata: generation_id={self.generation} is a member's, and member_id is empty")


def committer(group_metadata: Any) -> Committer:
    """Return the committer of kafka-python's ConsumerGroupMetadata, or of a group id."""
    if isinstance(group_metadata, str):
        return Committer(group_metadata)
    if not isinstance(group_metadata, tuple) or len(group_metadata) < 4:  # a Consumer can be iterated too
        raise TypeError(
            f"group_metadata: expected what Consumer.group_metadata() returns, or a group id, got {group_metadata!r}"
        )
    group_id, generation, member_id, instance_id, *_ = group_metadata
    if group_id is None:
        raise ValueError("group_metadata: the consumer has no group_id")
    return Committer(group_id, member_id or "", generation, instance_id)


def of_topics_read(commits: Commits, group_metadata: Any) -> Commits:
    """Return the commits with the topic ids that the consumer reads, if the metadata has them."""
    known = getattr(group_metadata, "topic_ids", {})
    return {
        partition: commit if commit.topic_id is not None else commit._replace(topic_id=known.get(partition))
        for partition, commit in commits.items()
    }


def check_offsets(store: Store, connection: sa.Connection, who: Committer, commits: Commits) -> Commits:
    """Return the commits with their topic ids, or raise the error that `commit_offsets_hook`'s hook would raise."""
    _check(store, connection, who, commits, lock=False)
    found = of_their_topics(connection, commits)
    refuse_unknown(commits.keys() - found.keys())
    return found


def commit_offsets_hook(store: Store, offsets: Mapping[Committer, Commits]) -> CommitHook:
    """Return an append hook that commits the offsets of groups.

    The hook raises CommitFailedError if a committer is not a live member in its current generation, or names no member
    although the group has live ones, or if a partition is assigned to another member. It also raises
    FencedInstanceIdError and UnknownTopicOrPartitionError. Then nothing of the append is committed.
    """

    def commit(connection: sa.Connection, _now: StoreClock) -> bool:
        now = {who: _check(store, connection, who, offsets[who], lock=True) for who in sorted(offsets, key=_by_group)}
        # every transaction locks first all groups by id, and then the partitions of __consumer_offsets by number
        for who, commits in sorted(offsets.items(), key=lambda each: log_partition_of(each[0].group_id)):
            refuse_unknown(write_commits(connection, now[who], who.group_id, commits))
        return True

    return commit


def _by_group(who: Committer) -> str:
    return who.group_id


def _check(store: Store, connection: sa.Connection, who: Committer, commits: Commits, *, lock: bool) -> StoreClock:
    try:
        return check_committing(store, connection, who, commits, lock=lock)
    except (IllegalGenerationError, UnknownMemberIdError) as error:
        hint = "" if who.member_id else "; members pass what Consumer.group_metadata() returns, not a group id alone"
        raise CommitFailedError(f"offsets of group {who.group_id!r} in a transaction: {error}{hint}") from error


def check_committing(
    store: Store, connection: sa.Connection, who: Committer, commits: Commits, *, lock: bool
) -> StoreClock:
    """Check that `who` may commit these partitions now, and return the time. With `lock`, the result of the check stays
    true until the end of the store's transaction.

    Raises UnknownMemberIdError, IllegalGenerationError, FencedInstanceIdError, or GroupIdNotFoundError for a share
    group.
    """
    if not who.member_id or who.unfenced:
        now = store.clock(connection)
        if lock:
            make_consumer_group(connection, who.group_id, rows.lock_or_make_group(connection, who.group_id, now))
        else:
            refuse_share_group(connection, who.group_id, rows.read_group(connection, who.group_id))
        return now if who.unfenced else refuse_with_members(store, connection, who.group_id)
    me = Identity(who.group_id, who.member_id, who.instance_id, "", "")
    return check_committer(store, connection, me, who.generation, commits, lock=lock, transactional=True)
