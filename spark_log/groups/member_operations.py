"""Joins, heartbeats and departures of members: read, decide (`groups.rules`), write, in one transaction each."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import sqlalchemy as sa

from spark_log.groups import rows
from spark_log.groups.assignment import choose_assignor
from spark_log.groups.opaque.opaque_operations import end_opaque
from spark_log.groups.rules import (
    NO_PARTITIONS,
    Assignment,
    Group,
    HeartbeatDecision,
    HeartbeatRequest,
    Member,
    check_member,
    decide_heartbeat,
    is_unchanged,
    join,
    notice_topics,
    rejoin_by,
    session_end,
    take_over,
)
from spark_log.groups.stored_values import Subscription
from spark_log.groups.target_assignment import remove_members
from spark_log.ids import TopicPartition
from spark_log.metadata.store import Attempt, Store, StoreClock


@dataclass(frozen=True)
class Identity:
    """The identity of a member; the same in all its heartbeats."""

    group_id: str
    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int = 0
    """Of a classic member; 0: no limit."""


@dataclass(frozen=True)
class HeartbeatResponse:
    """The result of a heartbeat."""

    group: Group
    assignor: str
    """The assignor that computed the target."""
    assignment: Assignment
    due: bool
    """This heartbeat has changed the group, so its sender computes the target of the new generation."""
    announce: bool = False
    """Other members wait for the change."""


def join_group(store: Store, me: Identity, said: Subscription, protocol: str = rows.LIBRARY) -> HeartbeatResponse:
    """Become a member, or replace the member with the same instance id. InconsistentGroupProtocolError."""

    def body(connection: sa.Connection, _attempt: Attempt) -> HeartbeatResponse:
        before = rows.lock_or_make_group(connection, me.group_id, store.clock(connection))
        now = store.clock(connection)
        end_opaque(connection, me.group_id, now)
        group, _ = _without_dead_members(connection, now, me.group_id, before.group)
        old = rows.find_instance(connection, me.group_id, me.instance_id)
        others = [other.names() for other in rows.read_subscriptions(connection, me.group_id)]
        choose_assignor([said.names(), *others])
        if old is None:
            group, member = join(group, said.topics)
        else:
            same = said.assignors == old.subscription.assignors
            group, member = take_over(group, old.member, said.topics, same_assignors=same)
        row = rows.MemberRow(
            me.member_id, me.instance_id, me.client_id, me.host, said, member, me.session_timeout_ms,
            now.lease_ms + me.session_timeout_ms, now.clock_epoch, protocol,
            rebalance_timeout_ms=me.rebalance_timeout_ms,
        )  # fmt: skip
        if old is None:
            rows.insert_member(connection, me.group_id, row)
        else:
            rows.replace_member(connection, me.group_id, old.member_id, row)
        kind = rows.group_type(rows.read_protocols(connection, me.group_id), rows.CONSUMER)
        rows.save_group(connection, me.group_id, group, empty_since_ms=None, type=kind)
        assignment = Assignment(group.target_generation, NO_PARTITIONS, complete=False)
        return HeartbeatResponse(group, before.assignor, assignment, due=group.generation != before.group.generation)

    return store.transact(body, announce=True)


def heartbeat_group(store: Store, me: Identity, said: Subscription, request: HeartbeatRequest) -> HeartbeatResponse:
    """One heartbeat: a read, and a transaction if it changes something or the session must be renewed.

    Raises UnknownMemberIdError, FencedInstanceIdError, IllegalGenerationError.
    """
    response = store.read(lambda connection: _answer_without_write(store, connection, me, request))
    if response is None:
        response = store.transact(lambda connection, _: _write(store, connection, me, said, request))
        if response is None:
            check_member(me.group_id, me.member_id, live=False, fenced=False)
            raise AssertionError("unreachable: check_member raises")
        if response.announce:
            store.changes.announce()
    return response


def renew(store: Store, me: Identity, generation: int) -> bool:
    """Renew the session. Returns whether a full heartbeat is due, because the group has changed since `generation`."""

    def read(connection: sa.Connection) -> tuple[bool, bool]:
        now = store.clock(connection)
        group = rows.read_group(connection, me.group_id)
        row = rows.read_member(connection, me.group_id, me.member_id)
        if group is None or row is None or not row.live(now):
            return True, False
        facts = rows.topic_facts(connection, row.subscription.topics)
        changed = (
            group.group.generation != generation
            or notice_topics(group.group, group.topics, facts, row.subscription.topics) != group.group
            or bool(rows.dead_members(connection, me.group_id, now))
        )
        return changed, _renewal_due(row, now)

    def write(connection: sa.Connection, _attempt: Attempt) -> bool:
        rows.read_group(connection, me.group_id, lock=True)
        now = store.clock(connection)
        row = rows.read_member(connection, me.group_id, me.member_id)
        if row is None or not row.live(now):
            return False
        rows.renew_session(connection, me.group_id, row, now)
        return True

    changed, due = store.read(read)
    return not store.transact(write) or changed if due else changed


def leave_group(store: Store, me: Identity) -> bool:
    """Leave. Returns whether the remaining members need a new target."""

    def body(connection: sa.Connection, _attempt: Attempt) -> bool:
        group = rows.read_group(connection, me.group_id, lock=True)
        if group is None or rows.read_member(connection, me.group_id, me.member_id) is None:
            return False
        now = store.clock(connection)
        return remove_members(connection, now, me.group_id, group.group, [me.member_id]).stale

    return store.transact(body, announce=True)


def check_live(
    store: Store, connection: sa.Connection, me: Identity, *, lock: bool = True
) -> tuple[rows.MemberRow, StoreClock]:
    """The live member, its group locked until the end of the transaction. UnknownMemberIdError,
    FencedInstanceIdError.
    """
    rows.read_group(connection, me.group_id, lock=lock)
    now = store.clock(connection)
    row = rows.read_member(connection, me.group_id, me.member_id)
    live = row is not None and row.live(now)
    fenced = row is None and rows.find_instance(connection, me.group_id, me.instance_id) is not None
    check_member(me.group_id, me.member_id, live=live, fenced=fenced)
    assert row is not None
    return row, now


def _answer_without_write(
    store: Store, connection: sa.Connection, me: Identity, request: HeartbeatRequest
) -> HeartbeatResponse | None:
    """The answer, if there is nothing to write."""
    now = store.clock(connection)
    group = rows.read_group(connection, me.group_id)
    row = rows.read_member(connection, me.group_id, me.member_id)
    if group is None or row is None or not row.live(now) or _renewal_due(row, now) or row.rejoin_by_ms is not None:
        return None
    facts = rows.topic_facts(connection, request.topics)
    if notice_topics(group.group, group.topics, facts, request.topics) != group.group:
        return None
    if rows.dead_members(connection, me.group_id, now):
        return None
    member, response = _decide(connection, me, group.group, row, request)
    if not is_unchanged(group.group, member, request, response):
        return None
    return HeartbeatResponse(group.group, group.assignor, response.assignment, due=False)


def _write(
    store: Store, connection: sa.Connection, me: Identity, said: Subscription, request: HeartbeatRequest
) -> HeartbeatResponse | None:
    """Write the heartbeat in its transaction; None if the session had ended and the member is removed."""
    before = rows.read_group(connection, me.group_id, lock=True)
    now = store.clock(connection)
    row = rows.read_member(connection, me.group_id, me.member_id)
    if row is None or before is None:
        fenced = rows.find_instance(connection, me.group_id, me.instance_id) is not None
        check_member(me.group_id, me.member_id, live=False, fenced=fenced)
        raise AssertionError("unreachable: check_member raises")
    group, dead = _without_dead_members(connection, now, me.group_id, before.group)
    if row.member_id in dead:
        return None
    kept = request.topics & row.member.topics  # another subscription is a change by itself
    group = notice_topics(group, before.topics, rows.topic_facts(connection, kept), kept)
    member, response = _decide(connection, me, group, row, request)
    revoked, newly_assigned = response.revoked(member), response.newly_assigned(member)
    rows.revoke_partitions(connection, me.group_id, row.member_id, revoked)
    rows.assign_partitions(connection, me.group_id, row.member_id, newly_assigned)
    behind = not response.member.assigned <= response.member.target
    by_ms = rejoin_by(now.lease_ms, row.rejoin_by_ms, row.rebalance_timeout_ms, behind=behind, joined=True)
    after = replace(
        row, subscription=said, member=response.member, clock_epoch=now.clock_epoch,
        until_ms=session_end(now.lease_ms, row.session_timeout_ms, by_ms), rejoin_by_ms=by_ms,
    )  # fmt: skip
    rows.save_member(connection, me.group_id, after)
    due = response.group.generation != before.group.generation
    if due:
        rows.save_group(connection, me.group_id, response.group)
    return HeartbeatResponse(
        response.group, before.assignor, response.assignment, due, announce=due or bool(revoked or newly_assigned)
    )


def _decide(
    connection: sa.Connection, me: Identity, group: Group, row: rows.MemberRow, request: HeartbeatRequest
) -> tuple[Member, HeartbeatDecision]:
    """The member with its assigned partitions, and the decision on the heartbeat."""
    member = replace(row.member, assigned=rows.assigned_to(connection, me.group_id, row.member_id))
    missing = member.target - (member.assigned & request.owned)
    taken: Mapping[TopicPartition, str] = {}
    if missing and not group.stale:
        taken = rows.assigned_to_others(connection, me.group_id, row.member_id, missing)
    return member, decide_heartbeat(group, member, request, taken)


def _without_dead_members(
    connection: sa.Connection, now: StoreClock, group_id: str, group: Group
) -> tuple[Group, list[str]]:
    dead = rows.dead_members(connection, group_id, now)
    return remove_members(connection, now, group_id, group, dead), dead


def renewal_due_ms(until_ms: int, session_timeout_ms: int, rejoin_by_ms: int | None) -> int:
    """An unchanged member writes once in a third of its session timeout, so two more attempts fit before it ends. Not
    if its session can go on no longer.
    """
    return until_ms if until_ms == rejoin_by_ms else until_ms - session_timeout_ms * 2 // 3


def _renewal_due(row: rows.MemberRow, now: StoreClock) -> bool:
    return renewal_due_ms(row.until_ms, row.session_timeout_ms, row.rejoin_by_ms) <= now.lease_ms
