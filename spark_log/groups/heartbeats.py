"""Shell: a member's joins, heartbeats and departure, each read, decided by `groups.rules` and written at once."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import sqlalchemy as sa

from spark_log.groups import rows
from spark_log.groups.assignment import choose_assignor
from spark_log.groups.rules import (
    NONE,
    Answer,
    Beat,
    Group,
    Member,
    Report,
    check_member,
    hear,
    is_unchanged,
    join,
    notice_topics,
    take_over,
)
from spark_log.groups.target_assignment import remove_members
from spark_log.ids import TopicPartition
from spark_log.metadata.store import Attempt, Store, StoreClock


@dataclass(frozen=True)
class Identity:
    """Who a member is; the same in all its heartbeats."""

    group_id: str
    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    session_timeout_ms: int


@dataclass(frozen=True)
class Heard:
    """What became of a heartbeat."""

    group: Group
    assignor: str
    """That computed the targets."""
    answer: Answer
    due: bool
    """This heartbeat has changed the group: the target of the new generation is for its sender to compute."""
    announce: bool = False
    """Others wait for what was written."""


def join_group(store: Store, me: Identity, said: rows.Subscription) -> Heard:
    """Become a member, or take the place of the one with the same instance id. InconsistentGroupProtocolError."""

    def body(connection: sa.Connection, _attempt: Attempt) -> Heard:
        before = rows.lock_or_make_group(connection, me.group_id, store.clock(connection))
        now = store.clock(connection)
        group, _ = _without_the_dead(connection, now, me.group_id, before.group)
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
            now.lease_ms + me.session_timeout_ms, now.clock_epoch,
        )  # fmt: skip
        if old is None:
            rows.insert_member(connection, me.group_id, row)
        else:
            rows.replace_member(connection, me.group_id, old.member_id, row)
        rows.save_group(connection, me.group_id, group, empty_since_ms=None)
        answer = Answer(group.target_generation, NONE, complete=False)
        return Heard(group, before.assignor, answer, due=group.generation != before.group.generation)

    return store.transact(body, announce=True)


def beat(store: Store, me: Identity, said: rows.Subscription, report: Report) -> Heard:
    """One heartbeat: a look, and a transaction if it changes something or the session must be renewed.

    Raises UnknownMemberIdError, FencedInstanceIdError, IllegalGenerationError.
    """
    heard = store.read(lambda connection: _look(store, connection, me, report))
    if heard is None:
        heard = store.transact(lambda connection, _: _write(store, connection, me, said, report))
        if heard is None:
            check_member(me.group_id, me.member_id, live=False, fenced=False)
            raise AssertionError("unreachable: check_member raises")
        if heard.announce:
            store.changes.announce()
    return heard


def renew(store: Store, me: Identity, told: Answer) -> bool:
    """Keep the session. Whether there is something that a heartbeat should look into."""

    def look(connection: sa.Connection) -> tuple[bool, bool]:
        now = store.clock(connection)
        group = rows.read_group(connection, me.group_id)
        row = rows.read_member(connection, me.group_id, me.member_id)
        if group is None or row is None or not row.live(now):
            return True, False
        facts = rows.topic_facts(connection, row.subscription.topics)
        changed = (
            group.group.generation != told.generation
            or notice_topics(group.group, group.topics, facts, row.subscription.topics) != group.group
            or bool(rows.dead_members(connection, me.group_id, now))
        )
        return changed or not told.complete, _renewal_due(row, now)

    def write(connection: sa.Connection, _attempt: Attempt) -> bool:
        rows.read_group(connection, me.group_id, lock=True)
        now = store.clock(connection)
        row = rows.read_member(connection, me.group_id, me.member_id)
        if row is None or not row.live(now):
            return False
        rows.renew_session(connection, me.group_id, row, now)
        return True

    changed, due = store.read(look)
    return not store.transact(write) or changed if due else changed


def leave_group(store: Store, me: Identity) -> bool:
    """Go. Whether those who stay need new targets."""

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


def _look(store: Store, connection: sa.Connection, me: Identity, report: Report) -> Heard | None:
    """The answer, if there is nothing to write."""
    now = store.clock(connection)
    group = rows.read_group(connection, me.group_id)
    row = rows.read_member(connection, me.group_id, me.member_id)
    if group is None or row is None or not row.live(now) or _renewal_due(row, now):
        return None
    facts = rows.topic_facts(connection, report.topics)
    if notice_topics(group.group, group.topics, facts, report.topics) != group.group:
        return None
    if rows.dead_members(connection, me.group_id, now):
        return None
    member, heard = _hear(connection, me, group.group, row, report)
    if not is_unchanged(group.group, member, report, heard):
        return None
    return Heard(group.group, group.assignor, heard.answer, due=False)


def _write(
    store: Store, connection: sa.Connection, me: Identity, said: rows.Subscription, report: Report
) -> Heard | None:
    """The heartbeat in its transaction; None: the session had ended, and the member is removed."""
    before = rows.read_group(connection, me.group_id, lock=True)
    now = store.clock(connection)
    row = rows.read_member(connection, me.group_id, me.member_id)
    if row is None or before is None:
        fenced = rows.find_instance(connection, me.group_id, me.instance_id) is not None
        check_member(me.group_id, me.member_id, live=False, fenced=fenced)
        raise AssertionError("unreachable: check_member raises")
    group, dead = _without_the_dead(connection, now, me.group_id, before.group)
    if row.member_id in dead:
        return None
    kept = report.topics & row.member.topics  # another subscription is a change by itself
    group = notice_topics(group, before.topics, rows.topic_facts(connection, kept), kept)
    member, heard = _hear(connection, me, group, row, report)
    released, granted = heard.released(member), heard.granted(member)
    rows.release(connection, me.group_id, row.member_id, released)
    rows.grant(connection, me.group_id, row.member_id, granted)
    until_ms = now.lease_ms + row.session_timeout_ms
    after = replace(row, subscription=said, member=heard.member, until_ms=until_ms, clock_epoch=now.clock_epoch)
    rows.save_member(connection, me.group_id, after)
    due = heard.group.generation != before.group.generation
    if due:
        rows.save_group(connection, me.group_id, heard.group)
    return Heard(heard.group, before.assignor, heard.answer, due, announce=due or bool(released or granted))


def _hear(
    connection: sa.Connection, me: Identity, group: Group, row: rows.MemberRow, report: Report
) -> tuple[Member, Beat]:
    """The member with what it has been given, and what the heartbeat makes of it."""
    member = replace(row.member, given=rows.given_to(connection, me.group_id, row.member_id))
    missing = member.target - (member.given & report.owned)
    taken: Mapping[TopicPartition, str] = {}
    if missing and not group.stale:
        taken = rows.given_to_others(connection, me.group_id, row.member_id, missing)
    return member, hear(group, member, report, taken)


def _without_the_dead(
    connection: sa.Connection, now: StoreClock, group_id: str, group: Group
) -> tuple[Group, list[str]]:
    dead = rows.dead_members(connection, group_id, now)
    return remove_members(connection, now, group_id, group, dead), dead


def _renewal_due(row: rows.MemberRow, now: StoreClock) -> bool:
    """An unchanged member writes once in a third of its session timeout, and has two more tries."""
    return row.until_ms - now.lease_ms <= row.session_timeout_ms * 2 // 3
