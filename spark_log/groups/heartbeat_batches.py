"""Answers many heartbeats that report no change: they share one read, and one transaction that renews sessions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import sqlalchemy as sa

from spark_log.errors import SparkLogError
from spark_log.groups import batch_rows
from spark_log.groups.batch_rows import ClassicColumns, Key, MemberColumns, of_groups, of_members
from spark_log.groups.classic.group import Phase, State
from spark_log.groups.consumer import rows
from spark_log.groups.consumer.rules import LEAVING_FOR_A_WHILE, Group, check_member, notice_topics
from spark_log.groups.consumer.stored_values import epochs_of, facts_of, partitions_of, subscription_of
from spark_log.ids import TopicPartition
from spark_log.metadata.prepared import one_message
from spark_log.metadata.store import Store


class Heartbeat(NamedTuple):
    """A heartbeat that reports no change of the member's subscription or partitions."""

    group_id: str
    member_id: str
    instance_id: str | None
    epoch: int
    """The member epoch, or the generation of a classic member."""
    connection_id: str
    protocol: str = rows.CONSUMER
    waits: bool = False
    """Whether the member waits in JoinGroup until others have revoked the partitions that it lacks. Then it must be
    handled alone only if it can get some of them, or something else has changed.
    """

    @property
    def key(self) -> Key:
        return self.group_id, self.member_id


@dataclass(frozen=True)
class HeartbeatAnswer:
    """The answer to a heartbeat. With `rejoin`, the member of a classic group must join again. With `alone`, the
    heartbeat must be handled outside of a batch. `error` is UnknownMemberIdError or FencedInstanceIdError.

    With `later`, the caller must pass the heartbeat to `answer_heartbeats` again, because one read does not decode all
    members' data. With `renewal_due`, the session must be renewed before the heartbeat is answered. Unless something is
    committed, the answer stays the same until `valid_until_ms` of the store's lease clock.
    """

    rejoin: bool = False
    alone: bool = False
    later: bool = False
    error: SparkLogError | None = None
    renewal_due: bool = False
    valid_until_ms: int = 0


UNCHANGED = HeartbeatAnswer()
_CHARACTERS_MAX = 2 * 1024 * 1024
"""The maximum length of the members' texts that one read decodes, because other heartbeats wait for it. Equal texts
count once, and the texts of one member are always decoded."""


def answer_heartbeats(store: Store, heartbeats: Sequence[Heartbeat]) -> list[HeartbeatAnswer]:
    """Return the answer to each of 1 to MEMBERS_MAX heartbeats, in their order. This is one read of the store."""
    return store.read(lambda connection: _answers(store, connection, heartbeats))


def renew_sessions(store: Store, heartbeats: Sequence[Heartbeat]) -> list[bool]:
    """Renew the sessions of 1 to MEMBERS_MAX members, and return for each heartbeat whether its member is live."""
    keys = _keys(heartbeats)

    def body(connection: sa.Connection) -> set[Key]:
        batch_rows.LOCK_GROUPS.rows(connection, of_groups({group_id for group_id, _ in keys}))
        now = store.clock(connection)
        until_ms, classic_until_ms = {}, {}
        for row in map(MemberColumns._make, batch_rows.MEMBERS.rows(connection, of_members(keys))):
            has_left = row.epoch == LEAVING_FOR_A_WHILE  # a static member, after the read that found the renewal due
            if not has_left and not now.expired(row.until_ms, row.clock_epoch):
                renewed_ms = epochs_of(row.epoch_state).until_ms(now.lease_ms, row.session_timeout_ms)
                until_ms[row.group_id, row.member_id] = renewed_ms
        if len(until_ms) < len(keys):
            for classic in map(ClassicColumns._make, batch_rows.CLASSIC.rows(connection, of_members(keys))):
                if not now.expired(classic.until_ms, classic.clock_epoch):
                    renewed_ms = now.lease_ms + classic.session_timeout_ms
                    classic_until_ms[classic.group_id, classic.member_id] = renewed_ms
        batch_rows.renew_sessions(connection, until_ms, classic_until_ms, now)
        return until_ms.keys() | classic_until_ms.keys()

    renewed = store.transact(body)
    return [heartbeat.key in renewed for heartbeat in heartbeats]


def _answers(store: Store, connection: sa.Connection, heartbeats: Sequence[Heartbeat]) -> list[HeartbeatAnswer]:
    classic = [heartbeat for heartbeat in heartbeats if heartbeat.protocol == rows.CLASSIC and not heartbeat.waits]
    answers = _of_classic_groups(store, connection, classic) if classic else {}
    rest = [heartbeat for heartbeat in heartbeats if heartbeat not in answers]
    if rest:
        answers |= _of_consumer_groups(store, connection, rest)
    return [answers[heartbeat] for heartbeat in heartbeats]


def _of_classic_groups(
    store: Store, connection: sa.Connection, heartbeats: Sequence[Heartbeat]
) -> dict[Heartbeat, HeartbeatAnswer]:
    """Return the answers to members of classic groups; heartbeats of other groups are left out."""
    keys = _keys(heartbeats)
    with one_message(connection):
        clock = store.ask_clock(connection)
        members = batch_rows.CLASSIC.ask(connection, of_members(keys))
        ends = batch_rows.CLASSIC_ENDS.ask(connection, of_groups({group_id for group_id, _ in keys}))
    now = clock()
    by_key = {(row.group_id, row.member_id): row for row in map(ClassicColumns._make, members.rows())}
    ends_ms = batch_rows.first_ends_ms(ends.rows(), now)
    answers = {}
    for heartbeat in heartbeats:
        row = by_key.get(heartbeat.key)
        if row is None:
            if heartbeat.group_id in ends_ms:  # the group is classic, and this is not a member
                answers[heartbeat] = HeartbeatAnswer(alone=True)
            continue
        change_ms = ends_ms[heartbeat.group_id]
        if row.deadline_ms is not None:
            change_ms = min(change_ms, now.in_this_epoch_ms(row.deadline_ms, row.group_clock_epoch))
        if (
            change_ms <= now.lease_ms
            or row.phase == Phase.PENDING
            or row.generation != heartbeat.epoch
            or heartbeat.instance_id not in (None, row.instance_id)
        ):
            answers[heartbeat] = HeartbeatAnswer(alone=True)
            continue
        due_ms = row.until_ms - row.session_timeout_ms * 2 // 3
        answers[heartbeat] = HeartbeatAnswer(
            rejoin=State(row.state).must_rejoin,
            renewal_due=due_ms <= now.lease_ms,
            valid_until_ms=min(due_ms, change_ms),
        )
    return answers


def _of_consumer_groups(
    store: Store, connection: sa.Connection, heartbeats: Sequence[Heartbeat]
) -> dict[Heartbeat, HeartbeatAnswer]:
    keys, waiting = _keys(heartbeats), {heartbeat.group_id for heartbeat in heartbeats if heartbeat.waits}
    with one_message(connection):
        clock = store.ask_clock(connection)
        members = batch_rows.MEMBERS.ask(connection, of_members(keys))
        owned = batch_rows.OWNED.ask(connection, of_members(keys))
        ends = batch_rows.SESSION_ENDS.ask(connection, of_groups({group_id for group_id, _ in keys}))
        all_owned = batch_rows.ASSIGNED.ask(connection, of_groups(waiting)) if waiting else None
    now = clock()
    taken: dict[str, set[TopicPartition]] = {}
    for group_id, topic, number in () if all_owned is None else all_owned.rows():
        taken.setdefault(group_id, set()).add(TopicPartition(topic, number))
    by_key = {(row.group_id, row.member_id): row for row in map(MemberColumns._make, members.rows())}
    assigned: dict[Key, set[TopicPartition]] = {}
    for group_id, member_id, topic, number in owned.rows():
        assigned.setdefault((group_id, member_id), set()).add(TopicPartition(topic, number))
    ends_ms = batch_rows.first_ends_ms(ends.rows(), now)
    later = _too_much(by_key)
    by_key = {key: row for key, row in by_key.items() if key not in later}
    subscriptions = [subscription_of(row.subscription) for row in by_key.values()]
    topics = {name for subscription in subscriptions for name in subscription.topics}
    topic_set = rows.all_topics(connection) if any(subscription.pattern for subscription in subscriptions) else None
    facts = rows.topic_facts(connection, topics)
    answers = {}
    for heartbeat in heartbeats:
        if heartbeat.key in later:
            answers[heartbeat] = HeartbeatAnswer(later=True)
            continue
        row = by_key.get(heartbeat.key)
        if row is None or now.expired(row.until_ms, row.clock_epoch) or row.protocol != heartbeat.protocol:
            answers[heartbeat] = HeartbeatAnswer(error=_refusal(connection, heartbeat, gone=row is None))
            continue
        group, subscription = Group(row.group_generation, row.target_generation), subscription_of(row.subscription)
        epochs, owned_now = epochs_of(row.epoch_state), assigned.get(heartbeat.key, set())
        target = partitions_of(row.target)
        if heartbeat.waits:  # the partitions that it lacks are assigned to other members
            target -= taken.get(heartbeat.group_id, set()) - owned_now
        accepted = (row.epoch, epochs.connection_id) == (
            heartbeat.epoch,
            heartbeat.connection_id,
        ) and heartbeat.instance_id in (None, row.instance_id)
        alone = (
            not accepted
            or row.group_generation != heartbeat.epoch
            or notice_topics(group, facts_of(row.topics), facts, subscription.topics) != group
            or ends_ms[heartbeat.group_id] <= now.lease_ms
            or owned_now != target
            or owned_now != epochs.current
            or (subscription.pattern is not None and subscription.pattern.matched != topic_set)
        )
        due_ms = epochs.renewal_due_ms(row.until_ms, row.session_timeout_ms)
        valid_until_ms = min(due_ms, ends_ms[heartbeat.group_id])
        renewal_due = accepted and due_ms <= now.lease_ms
        answers[heartbeat] = HeartbeatAnswer(alone=alone, renewal_due=renewal_due, valid_until_ms=valid_until_ms)
    return answers


def _too_much(by_key: Mapping[Key, MemberColumns]) -> set[Key]:
    """Return the members whose texts this read does not decode. It decodes those of at least one member."""
    later: set[Key] = set()
    seen: set[str] = set()
    characters = 0
    for key, row in by_key.items():
        new = {row.subscription, row.topics, row.target, row.epoch_state} - seen
        size = sum(map(len, new))
        if characters and characters + size > _CHARACTERS_MAX:
            later.add(key)
        else:
            seen |= new
            characters += size
    return later


def _keys(heartbeats: Sequence[Heartbeat]) -> list[Key]:
    return sorted({heartbeat.key for heartbeat in heartbeats})


def _refusal(connection: sa.Connection, heartbeat: Heartbeat, *, gone: bool) -> SparkLogError:
    """Return the error of a member that is not live."""
    fenced = gone and rows.find_instance(connection, heartbeat.group_id, heartbeat.instance_id) is not None
    try:
        check_member(heartbeat.group_id, heartbeat.member_id, live=False, fenced=fenced)
    except SparkLogError as error:
        return error
    raise AssertionError("unreachable: check_member raises")
