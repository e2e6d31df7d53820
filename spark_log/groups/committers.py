"""Whether a member may commit offsets."""

from collections.abc import Collection

import sqlalchemy as sa

from spark_log.groups.classic.service import check_classic_committer
from spark_log.groups.consumer import rows
from spark_log.groups.consumer.rules import check_commit, check_member
from spark_log.groups.consumer.service import stale_epoch
from spark_log.groups.identity import Identity
from spark_log.ids import TopicPartition
from spark_log.metadata.store import Store, StoreClock


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
    """Check that the member may commit these partitions in this transaction, which then holds the group's lock.

    Raises UnknownMemberIdError, FencedInstanceIdError, IllegalGenerationError; outside of transactions also
    RebalanceInProgressError for a member of a classic group, StaleMemberEpochError for one of the consumer protocol.
    """
    group = rows.read_group(connection, me.group_id, lock=lock)
    if group is not None and group.type == rows.CLASSIC:
        now = store.clock(connection)
        check_classic_committer(
            connection, now, me.group_id, me.member_id, me.instance_id, generation, transactional=transactional
        )
        return now
    row, now = check_live(store, connection, me)
    others = rows.assigned_to_others(connection, me.group_id, me.member_id, partitions)
    if row.protocol == rows.CONSUMER and not transactional and (others or generation != row.member.generation):
        raise stale_epoch(row, generation, others)
    check_commit(me.group_id, row.member.generation, generation, others)
    return now


def check_live(store: Store, connection: sa.Connection, me: Identity) -> tuple[rows.MemberRow, StoreClock]:
    """The live member of a group of type consumer. UnknownMemberIdError, FencedInstanceIdError."""
    now = store.clock(connection)
    row = rows.read_member(connection, me.group_id, me.member_id)
    live = row is not None and row.live(now)
    fenced = row is None and rows.find_instance(connection, me.group_id, me.instance_id) is not None
    check_member(me.group_id, me.member_id, live=live, fenced=fenced)
    assert row is not None
    return row, now
