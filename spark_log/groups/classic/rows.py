"""Reads and writes the rows of classic groups. A group's row of `consumer_group` is its lock and has its generation."""

import json
from collections.abc import Collection
from dataclasses import replace
from typing import Any, NamedTuple

import sqlalchemy as sa

from spark_log.groups.classic.group import ClassicGroup, ClassicMember, Phase, State
from spark_log.groups.consumer import rows
from spark_log.groups.consumer.rules import Group
from spark_log.groups.consumer.stored_values import facts_json, protocols_json, protocols_of
from spark_log.metadata import tables as t
from spark_log.metadata.prepared import Prepared, in_list
from spark_log.metadata.sql_columns import CLASSIC_GROUP, CLASSIC_MEMBER, CONSUMER_GROUP
from spark_log.metadata.store_clock import StoreClock

_ALL_GROUPS = sa.select(
    CLASSIC_GROUP.group_id, CONSUMER_GROUP.generation, CLASSIC_GROUP.state, CLASSIC_GROUP.protocol_type,
    CLASSIC_GROUP.protocol, CLASSIC_GROUP.leader, CLASSIC_GROUP.deadline_ms, CLASSIC_GROUP.clock_epoch,
).join_from(t.classic_group, t.consumer_group, CONSUMER_GROUP.group_id == CLASSIC_GROUP.group_id)  # fmt: skip
_GROUP = Prepared(_ALL_GROUPS.where(CLASSIC_GROUP.group_id == sa.bindparam("g")))
_ALL_MEMBERS = sa.select(
    CLASSIC_MEMBER.group_id, CLASSIC_MEMBER.member_id, CLASSIC_MEMBER.instance_id, CLASSIC_MEMBER.client,
    CLASSIC_MEMBER.protocols, CLASSIC_MEMBER.session_timeout_ms, CLASSIC_MEMBER.rebalance_timeout_ms,
    CLASSIC_MEMBER.until_ms, CLASSIC_MEMBER.clock_epoch, CLASSIC_MEMBER.phase, CLASSIC_MEMBER.assignment,
)  # fmt: skip
_LEFT_OUT: dict[str, Any] = {"protocols": sa.literal("[]"), "assignment": sa.literal(b"")}
_ALL_MEMBERS_ALONE = sa.select(*(_LEFT_OUT.get(each.name, each) for each in _ALL_MEMBERS.selected_columns))
_MEMBERS = Prepared(_ALL_MEMBERS.where(CLASSIC_MEMBER.group_id == sa.bindparam("g")))
_MEMBER = Prepared(
    _ALL_MEMBERS.where(CLASSIC_MEMBER.group_id == sa.bindparam("g"), CLASSIC_MEMBER.member_id == sa.bindparam("m"))
)
_FIRST_END = Prepared(
    sa.select(
        sa.func.min(
            sa.case(
                (CLASSIC_MEMBER.clock_epoch == sa.bindparam("epoch"), CLASSIC_MEMBER.until_ms),
                else_=sa.literal_column("0"),
            )
        )
    ).where(CLASSIC_MEMBER.group_id == sa.bindparam("g"))
)


class Part(NamedTuple):
    """A stored group with one of its members, or none. At `until_ms` the passing of time changes the group; None means
    never.
    """

    group: ClassicGroup
    until_ms: int | None


def read_classic(connection: sa.Connection, group_id: str, now: StoreClock) -> ClassicGroup | None:
    """Return the classic group as it is stored, or None if there is none. Callers apply `rules.advance`."""
    found = _GROUP.rows(connection, {"g": group_id})
    if not found:
        return None
    return replace(_group(found[0], now), members=_by_id(_MEMBERS.rows(connection, {"g": group_id}), now))


def read_part(connection: sa.Connection, group_id: str, member_id: str, now: StoreClock) -> Part | None:
    """Return the classic group, or None if there is none. Of its members it has only this one, if that is a member: the
    metadata and assignments of others are not read.
    """
    found = _GROUP.rows(connection, {"g": group_id})
    if not found:
        return None
    members = _by_id(_MEMBER.rows(connection, {"g": group_id, "m": member_id}), now)
    group = replace(_group(found[0], now), members=members)
    [(first_end_ms,)] = _FIRST_END.rows(connection, {"g": group_id, "epoch": now.clock_epoch})
    times = [each for each in (first_end_ms, group.deadline_ms) if each is not None]
    return Part(group, min(times, default=None))


def read_all_classic(connection: sa.Connection, now: StoreClock) -> dict[str, ClassicGroup]:
    """Return all classic groups by id, without the metadata and the assignments of members, which may be large."""
    members: dict[str, list[Any]] = {}
    for row in connection.execute(_ALL_MEMBERS_ALONE):
        members.setdefault(row[0], []).append(row)
    groups = [_group(row, now) for row in connection.execute(_ALL_GROUPS)]
    return {each.group_id: replace(each, members=_by_id(members.get(each.group_id, ()), now)) for each in groups}


def expired_groups(connection: sa.Connection, now: StoreClock) -> list[str]:
    """Return the ids of the classic groups that have members whose sessions have ended."""
    ended = now.has_expired(CLASSIC_MEMBER)
    query = sa.select(CLASSIC_MEMBER.group_id).where(ended).distinct().order_by(CLASSIC_MEMBER.group_id)
    return list(connection.execute(query).scalars())


def save_classic(connection: sa.Connection, before: ClassicGroup | None, after: ClassicGroup, now: StoreClock) -> None:
    """Write the differences between `before` and `after`, in a transaction that holds the group's lock. If `before` is
    None, the group becomes classic.
    """
    old = {} if before is None else before.members
    here = {"group_id": after.group_id}
    if before is None:
        connection.execute(t.classic_group.insert(), {**here, **_of_group(after, now)})
    elif _of_group(before, now) != _of_group(after, now):
        update = t.classic_group.update().where(CLASSIC_GROUP.group_id == after.group_id)
        connection.execute(update.values(_of_group(after, now)))
    if gone := old.keys() - after.members.keys():
        mine = (CLASSIC_MEMBER.group_id == after.group_id) & in_list(CLASSIC_MEMBER.member_id, gone)
        connection.execute(t.classic_member.delete().where(mine))
    for member_id, member in after.members.items():
        if member_id not in old:
            values = {**_of_state(member, now), **_of_metadata(member), "assignment": member.assignment}
            connection.execute(t.classic_member.insert(), {**here, "member_id": member_id, **values})
        elif member != old[member_id]:
            mine = (CLASSIC_MEMBER.group_id == after.group_id) & (CLASSIC_MEMBER.member_id == member_id)
            connection.execute(t.classic_member.update().where(mine).values(_changed(old[member_id], member, now)))
    was_empty = before is None or not before.joined
    if before is None or before.generation != after.generation or was_empty is bool(after.joined):
        empty_since_ms = None if after.joined else now.wall_ms
        group = Group(after.generation, after.generation)
        values = {"empty_since_ms": empty_since_ms, "type": rows.CLASSIC, "topics": facts_json({})}
        rows.save_group(connection, after.group_id, group, **values)


def delete_classic(connection: sa.Connection, group_ids: Collection[str]) -> None:
    """Delete the rows that make groups classic. Their rows of `consumer_group` stay. The caller holds their locks."""
    for table in (t.classic_member, t.classic_group):
        connection.execute(table.delete().where(in_list(table.c.group_id, group_ids)))


def _group(row: Any, now: StoreClock) -> ClassicGroup:
    group_id, generation, state, protocol_type, protocol, leader, deadline_ms, clock_epoch = row
    if deadline_ms is not None:
        deadline_ms = now.in_this_epoch_ms(deadline_ms, clock_epoch)
    return ClassicGroup(group_id, generation, State(state), protocol_type, protocol, leader, deadline_ms)


def _by_id(found: Collection[Any], now: StoreClock) -> dict[str, ClassicMember]:
    members = [_member(row, now) for row in found]
    return {member.member_id: member for member in members}


def _member(row: Any, now: StoreClock) -> ClassicMember:
    _, member_id, instance_id, client, protocols, session_ms, rebalance_ms, until_ms, clock_epoch, phase, given = row
    who = json.loads(client)
    return ClassicMember(
        member_id, instance_id, who["id"], who["host"], protocols_of(protocols), session_ms, rebalance_ms,
        now.in_this_epoch_ms(until_ms, clock_epoch), Phase(phase), bytes(given),
    )  # fmt: skip


def _of_group(group: ClassicGroup, now: StoreClock) -> dict[str, Any]:
    return {
        "state": group.state.value,
        "protocol_type": group.protocol_type,
        "protocol": group.protocol,
        "leader": group.leader,
        "deadline_ms": group.deadline_ms,
        "clock_epoch": now.clock_epoch,
    }


def _changed(before: ClassicMember, after: ClassicMember, now: StoreClock) -> dict[str, Any]:
    """Return the columns to write. The large ones, metadata and assignment, are among them only if they changed."""
    values = _of_state(after, now)
    if after.protocols != before.protocols:
        values |= _of_metadata(after)
    if after.assignment != before.assignment:
        values["assignment"] = after.assignment
    return values


def _of_metadata(member: ClassicMember) -> dict[str, Any]:
    return {"protocols": protocols_json(member.protocols)}


def _of_state(member: ClassicMember, now: StoreClock) -> dict[str, Any]:
    return {
        "instance_id": member.instance_id,
        "client": json.dumps({"id": member.client_id, "host": member.host}),
        "session_timeout_ms": member.session_timeout_ms,
        "rebalance_timeout_ms": member.rebalance_timeout_ms,
        "until_ms": member.until_ms,
        "clock_epoch": now.clock_epoch,
        "phase": member.phase.value,
    }
