"""Checks whether a member may commit offsets, and whether it may fetch committed offsets."""

from collections.abc import Collection, Mapping

import sqlalchemy as sa

from spark_log.config.values import can_be_stored
from spark_log.errors import StaleMemberEpochError, UnknownMemberIdError
from spark_log.groups.classic.service import check_classic_committer
from spark_log.groups.consumer import rows
from spark_log.groups.consumer.rules import check_commit, check_member, may_not_know_its_epoch
from spark_log.groups.identity import Identity
from spark_log.groups.share.group_ids import refuse_share_group
from spark_log.ids import TopicPartition
from spark_log.metadata.store import Store
from spark_log.metadata.store_clock import StoreClock


def check_committer(
    store: Store,
    connection: sa.Connection,
    me: Identity,
    generation: int,
    partitions: Collection[TopicPartition],
    *,
    lock: bool = True,
    transactional: bool = False,
) -> StoreClock:
    """Check that the member may commit these partitions, and return the time. With `lock`, the store's transaction then
    holds the group's lock.

    Raises UnknownMemberIdError, FencedInstanceIdError, IllegalGenerationError, or GroupIdNotFoundError for a share
    group. Unless `transactional`, a member of a classic group may also get RebalanceInProgressError, and a member of
    the consumer protocol gets StaleMemberEpochError instead of IllegalGenerationError.
    """
    group = rows.read_group(connection, me.group_id, lock=lock)
    refuse_share_group(connection, me.group_id, group)
    if group is not None and group.type == rows.CLASSIC:
        now = store.clock(connection)
        check_classic_committer(
            connection, now, me.group_id, me.member_id, me.instance_id, generation, transactional=transactional
        )
        return now
    row, now = check_live(store, connection, me)
    others = rows.assigned_to_others(connection, me.group_id, me.member_id, partitions)
    late = may_not_know_its_epoch(row.member, row.epochs, generation)
    if late and rows.assigned_to(connection, me.group_id, me.member_id).issuperset(partitions):
        return now
    if row.protocol == rows.CONSUMER and not transactional and (others or generation != row.member.generation):
        raise _stale_epoch(row, generation, others)
    check_commit(me.group_id, row.member.generation, generation, others)
    return now


def check_live(store: Store, connection: sa.Connection, me: Identity) -> tuple[rows.MemberRow, StoreClock]:
    """Return the live member and the time. Raises UnknownMemberIdError or FencedInstanceIdError."""
    now = store.clock(connection)
    row = rows.read_member(connection, me.group_id, me.member_id)
    live = row is not None and row.live(now)
    fenced = row is None and rows.find_instance(connection, me.group_id, me.instance_id) is not None
    check_member(me.group_id, me.member_id, live=live, fenced=fenced)
    assert row is not None
    return row, now


def check_offsets_epoch(connection: sa.Connection, group_id: str, member_id: str, epoch: int, now: StoreClock) -> None:
    """Raise an error if a member may not fetch committed offsets, as in Kafka.

    Raises StaleMemberEpochError if a member of the consumer protocol has another epoch, and UnknownMemberIdError if
    there is no such live member and the group has members of the consumer protocol. Other members are not checked.
    """
    row = rows.read_member(connection, group_id, member_id) if can_be_stored(member_id) else None
    if row is None or not row.live(now):
        if rows.CONSUMER in rows.read_protocols(connection, group_id):
            raise UnknownMemberIdError(f"Member {member_id} is not a member of group {group_id}.")
    elif row.protocol == rows.CONSUMER and row.member.generation != epoch:
        raise _stale_epoch(row, epoch)


def _stale_epoch(
    row: rows.MemberRow, epoch: int, others: Mapping[TopicPartition, str] | None = None
) -> StaleMemberEpochError:
    """Return the error. `others` are the partitions of the request that other members own, with their owners."""
    if others:
        partition, owner = min(others.items())
        return StaleMemberEpochError(f"{partition} belongs to {owner} now")
    return StaleMemberEpochError(
        f"The received member epoch {epoch} does not match the expected member epoch {row.member.generation}."
    )
