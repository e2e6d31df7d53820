"""Reads many members of any groups, and renews their sessions, with one statement for each table."""

import json
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

import sqlalchemy as sa

from spark_log.metadata import tables as t
from spark_log.metadata.prepared import Prepared, in_list, in_pairs
from spark_log.metadata.sql_columns import CLASSIC_GROUP, CLASSIC_MEMBER, CONSUMER_GROUP, GROUP_MEMBER, GROUP_PARTITION
from spark_log.metadata.store_clock import StoreClock

MEMBERS_MAX = 128

Key = tuple[str, str]
"""Group id and member id."""


class MemberColumns(NamedTuple):
    """A row of MEMBERS: columns of a member and of its group."""

    group_id: str
    member_id: str
    group_generation: int
    target_generation: int
    topics: str
    subscription: str
    target: str
    session_timeout_ms: int
    until_ms: int
    clock_epoch: str
    epoch: int
    protocol: str
    instance_id: str | None
    epoch_state: str


class ClassicColumns(NamedTuple):
    """A row of CLASSIC: columns of a member of a classic group and of its group."""

    group_id: str
    member_id: str
    instance_id: str | None
    generation: int
    state: str
    deadline_ms: int | None
    group_clock_epoch: str
    phase: str
    session_timeout_ms: int
    until_ms: int
    clock_epoch: str


def of_members(keys: Collection[Key]) -> dict[str, str]:
    """Return the parameters of the statements below that concern members."""
    return {"pairs": json.dumps(list(keys))}


def of_groups(group_ids: Collection[str]) -> dict[str, list[str]]:
    """Return the parameters of the statements below that concern groups."""
    return {"groups": list(group_ids)}


LOCK_GROUPS = Prepared(
    sa.select(CONSUMER_GROUP.group_id)
    .where(in_list(CONSUMER_GROUP.group_id, "groups"))
    .order_by(CONSUMER_GROUP.group_id)
    .with_for_update()
)
"""Lock the groups that exist, in the order of their ids, until the end of the transaction. Columns: group_id."""
MEMBERS = Prepared(
    sa.select(
        GROUP_MEMBER.group_id, GROUP_MEMBER.member_id, CONSUMER_GROUP.generation, CONSUMER_GROUP.target_generation,
        CONSUMER_GROUP.topics, GROUP_MEMBER.subscription, GROUP_MEMBER.target, GROUP_MEMBER.session_timeout_ms,
        GROUP_MEMBER.until_ms, GROUP_MEMBER.clock_epoch, GROUP_MEMBER.generation, GROUP_MEMBER.protocol,
        GROUP_MEMBER.instance_id, GROUP_MEMBER.epoch_state,
    )
    .join_from(t.group_member, t.consumer_group, CONSUMER_GROUP.group_id == GROUP_MEMBER.group_id)
    .where(in_pairs(GROUP_MEMBER.group_id, GROUP_MEMBER.member_id))
)  # fmt: skip
"""Members, with the columns of `MemberColumns`."""
CLASSIC = Prepared(
    sa.select(
        CLASSIC_MEMBER.group_id, CLASSIC_MEMBER.member_id, CLASSIC_MEMBER.instance_id, CONSUMER_GROUP.generation,
        CLASSIC_GROUP.state, CLASSIC_GROUP.deadline_ms, CLASSIC_GROUP.clock_epoch.label("group_clock_epoch"),
        CLASSIC_MEMBER.phase, CLASSIC_MEMBER.session_timeout_ms, CLASSIC_MEMBER.until_ms, CLASSIC_MEMBER.clock_epoch,
    )
    .join_from(t.classic_member, t.classic_group, CLASSIC_GROUP.group_id == CLASSIC_MEMBER.group_id)
    .join(t.consumer_group, CONSUMER_GROUP.group_id == CLASSIC_MEMBER.group_id)
    .where(in_pairs(CLASSIC_MEMBER.group_id, CLASSIC_MEMBER.member_id))
)  # fmt: skip
"""Members of classic groups, with the columns of `ClassicColumns`."""
OWNED = Prepared(
    sa.select(
        GROUP_PARTITION.group_id, GROUP_PARTITION.member_id, GROUP_PARTITION.topic, GROUP_PARTITION.partition
    ).where(in_pairs(GROUP_PARTITION.group_id, GROUP_PARTITION.member_id))
)
"""The partitions that are assigned to members. Columns: group_id, member_id, topic, partition."""
ASSIGNED = Prepared(
    sa.select(GROUP_PARTITION.group_id, GROUP_PARTITION.topic, GROUP_PARTITION.partition).where(
        in_list(GROUP_PARTITION.group_id, "groups")
    )
)
"""The assigned partitions of groups. Columns: group_id, topic, partition."""
SESSION_ENDS = Prepared(
    sa.select(GROUP_MEMBER.group_id, GROUP_MEMBER.clock_epoch, sa.func.min(GROUP_MEMBER.until_ms))
    .where(in_list(GROUP_MEMBER.group_id, "groups"))
    .group_by(GROUP_MEMBER.group_id, GROUP_MEMBER.clock_epoch)
)
"""The least until_ms of the members of each group and clock epoch. Columns: group_id, clock_epoch, until_ms."""
CLASSIC_GROUPS = Prepared(
    sa.select(
        CLASSIC_GROUP.group_id, CONSUMER_GROUP.generation, CLASSIC_GROUP.state, CLASSIC_GROUP.deadline_ms,
        CLASSIC_GROUP.clock_epoch,
    )
    .join_from(t.classic_group, t.consumer_group, CONSUMER_GROUP.group_id == CLASSIC_GROUP.group_id)
    .where(in_list(CLASSIC_GROUP.group_id, "groups"))
)  # fmt: skip
"""Classic groups. Columns: group_id, generation, state, deadline_ms, clock_epoch."""
CLASSIC_ENDS = Prepared(
    sa.select(CLASSIC_MEMBER.group_id, CLASSIC_MEMBER.clock_epoch, sa.func.min(CLASSIC_MEMBER.until_ms))
    .where(in_list(CLASSIC_MEMBER.group_id, "groups"))
    .group_by(CLASSIC_MEMBER.group_id, CLASSIC_MEMBER.clock_epoch)
)
"""As SESSION_ENDS, for classic groups."""
CLASSIC_MEMBERS = Prepared(
    sa.select(CLASSIC_MEMBER.group_id, CLASSIC_MEMBER.member_id).where(
        in_pairs(CLASSIC_MEMBER.group_id, CLASSIC_MEMBER.member_id)
    )
)
"""The given members that are in classic groups. Columns: group_id, member_id."""


def first_ends_ms(ends: Iterable[Any], now: StoreClock) -> dict[str, int]:
    """Return when the first session of each group ends, on the lease clock, from the rows of SESSION_ENDS or
    CLASSIC_ENDS. It is 0 if a session of an earlier clock epoch has ended.
    """
    first_ms: dict[str, int] = {}
    for group_id, clock_epoch, until_ms in ends:
        end_ms = now.in_this_epoch_ms(until_ms, clock_epoch)
        first_ms[group_id] = min(end_ms, first_ms.get(group_id, end_ms))
    return first_ms


_RENEW = Prepared(
    t.group_member.update()
    .where(GROUP_MEMBER.group_id == sa.bindparam("g"), GROUP_MEMBER.member_id == sa.bindparam("m"))
    .values(until_ms=sa.bindparam("until"), clock_epoch=sa.bindparam("epoch"))
)
_RENEW_CLASSIC = Prepared(
    t.classic_member.update()
    .where(CLASSIC_MEMBER.group_id == sa.bindparam("g"), CLASSIC_MEMBER.member_id == sa.bindparam("m"))
    .values(until_ms=sa.bindparam("until"), clock_epoch=sa.bindparam("epoch"))
)


def renew_sessions(
    connection: sa.Connection, until_ms: dict[Key, int], classic_until_ms: dict[Key, int], now: StoreClock
) -> None:
    """Write the given ends of sessions: `until_ms` of members, and `classic_until_ms` of members of classic groups."""
    for statement, ends in ((_RENEW, until_ms), (_RENEW_CLASSIC, classic_until_ms)):
        changes = [
            {"g": group_id, "m": member_id, "until": end_ms, "epoch": now.clock_epoch}
            for (group_id, member_id), end_ms in sorted(ends.items())
        ]
        if changes:
            statement.run(connection, changes)
