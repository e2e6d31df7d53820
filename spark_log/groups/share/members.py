"""Handles the members of share groups (KIP-932): join, heartbeat, leave.

Any process handles any request. All functions block. There is no target: the assignment of a member is every partition
of the topics that it subscribes to. The group's generation grows with its members, their subscriptions and the
partitions of their topics. A heartbeat brings the member to this generation, and its answer then has the assignment. A
heartbeat that changes nothing writes nothing.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.names import is_legal
from spark_log.config import GroupConfig
from spark_log.config.group_configs import duration_ms
from spark_log.errors import (
    FencedMemberEpochError,
    GroupIdNotFoundError,
    GroupMaxSizeReachedError,
    IllegalArgumentError,
    UnknownMemberIdError,
)
from spark_log.groups.committed_offsets import has_commits, has_pending_commits
from spark_log.groups.consumer import rows as group_rows
from spark_log.groups.consumer.rules import JOINING, EpochState, Group, Member, TopicFacts
from spark_log.groups.consumer.stored_values import Subscription, facts_json
from spark_log.groups.share import rows
from spark_log.groups.share.starts import Start, find_starts, insert_starts
from spark_log.ids import HOME
from spark_log.log.partitions.partition_rows import Key
from spark_log.metadata import tables as t
from spark_log.metadata.prepared import in_list
from spark_log.metadata.sql_columns import TOPIC
from spark_log.metadata.store import Store
from spark_log.metadata.store_clock import StoreClock

SHARE = group_rows.SHARE
"""The type of the groups, and the protocol of their members."""
_TIMEOUT_MS = 5_000
_RENEWAL = 3
"""A session is written again when a third of it is over."""


@dataclass(frozen=True)
class ShareHeartbeat:
    """A heartbeat as it was received. `topics` and `rack` are None if they have not changed."""

    group_id: str
    member_id: str
    epoch: int
    """The member epoch; JOINING (0) or LEAVING (-1)."""
    topics: frozenset[str] | None = None
    rack: str | None = None
    client_id: str = ""
    host: str = ""


@dataclass(frozen=True)
class ShareAnswer:
    """The answer to a heartbeat. `assignment` has the partition numbers of each topic; None if it has not changed.

    `by_time` has topics of the group's members that are assigned only after `begin_by_time`.
    """

    epoch: int
    heartbeat_interval_ms: int
    assignment: Mapping[str, TopicFacts] | None = None
    by_time: Mapping[str, TopicFacts] = field(default_factory=dict)


@dataclass(frozen=True)
class _State:
    """The state of a group and its topics, as of one read, before a heartbeat."""

    group: group_rows.GroupRow | None
    member: group_rows.MemberRow | None
    facts: dict[str, TopicFacts]
    """The facts of the topics that members subscribe to and that the group reads, or may begin to read now."""
    by_time: dict[str, TopicFacts]
    """The facts of the other topics of the home store that members subscribe to: the group begins by time."""
    missing: set[Key]
    """The partitions of `facts` without a row."""
    now: StoreClock
    config: GroupConfig
    dead: list[str]


def share_heartbeat(cluster: Cluster, heartbeat: ShareHeartbeat) -> ShareAnswer:
    """Handle a heartbeat of a member that does not leave.

    Raises IllegalArgumentError for a topic of a data store, or that is being moved there, GroupIdNotFoundError if the
    group is of another type, UnknownMemberIdError, FencedMemberEpochError, or GroupMaxSizeReachedError.
    """
    store = cluster.store
    state = store.read(lambda connection: _read(store, connection, heartbeat, lock=False))
    answer = _unchanged(heartbeat, state)
    if answer is not None:
        return answer
    starts = _starts(cluster, heartbeat, state)
    return store.transact(
        lambda connection: _change(store, connection, heartbeat, starts),
        timeout_ms=_TIMEOUT_MS,
        announce=True,
    )


def leave_share_group(store: Store, group_id: str, member_id: str) -> None:
    """Remove a member. Its locks end when it closes its session, or by time. Raises UnknownMemberIdError or
    GroupIdNotFoundError.
    """

    def body(connection: sa.Connection) -> None:
        group = group_rows.read_group(connection, group_id, lock=True)
        if group is None or group.type != SHARE:
            raise not_a_share_group(group_id)
        if group_rows.read_member(connection, group_id, member_id) is None:
            raise _unknown(group_id, member_id)
        now = store.clock(connection)
        group_rows.remove_members(connection, now, group_id, group.group, [member_id], have_targets=False)

    store.transact(body, timeout_ms=_TIMEOUT_MS, announce=True)


_STAYS_AT_HOME = (TOPIC.store_id == HOME) & TOPIC.move.is_(None)


def refuse_data_stores(connection: sa.Connection, topics: Collection[str]) -> None:
    """Raise IllegalArgumentError for a topic of a data store, or one that is being moved there: a poll is one
    transaction of the home store.
    """
    names = list(filter(is_legal, topics))  # a database refuses some others
    query = sa.select(TOPIC.name, TOPIC.store_id).where(in_list(TOPIC.name, names), ~_STAYS_AT_HOME).limit(1)
    for name, store_id in connection.execute(query):
        moves = ", and it is being moved to another store" if store_id == HOME else ""
        raise IllegalArgumentError(f"topic {name!r}: share groups read topics of the home store only{moves}")


def lock_topics_to_read(connection: sa.Connection, topic_ids: Collection[int]) -> set[int]:
    """Lock and return the topics of which a group may get rows: those that exist, and stay in the home store. Until the
    transaction ends, they are not deleted, and no move of them begins. The lock of the group comes after these.
    """
    if not topic_ids:
        return set()
    query = sa.select(TOPIC.topic_id).where(in_list(TOPIC.topic_id, topic_ids), _STAYS_AT_HOME)
    return set(connection.execute(query.order_by(TOPIC.topic_id).with_for_update(read=True, key_share=True)).scalars())


def _read(store: Store, connection: sa.Connection, heartbeat: ShareHeartbeat, *, lock: bool) -> _State:
    if heartbeat.topics:
        refuse_data_stores(connection, heartbeat.topics)
    group = group_rows.read_group(connection, heartbeat.group_id, lock=lock)
    now = store.clock(connection)
    member = group_rows.read_member(connection, heartbeat.group_id, heartbeat.member_id)
    subscribed = set(heartbeat.topics or ())
    for subscription in group_rows.read_subscriptions(connection, heartbeat.group_id):
        subscribed |= subscription.topics
    facts = group_rows.topic_facts(connection, subscribed)
    config = rows.configs_of(rows.ask_configs(connection, heartbeat.group_id), store.settings)
    with_rows = rows.partitions_of(connection, heartbeat.group_id, {fact.topic_id for fact in facts.values()})
    missing = {(fact.topic_id, number) for fact in facts.values() for number in range(fact.partition_count)} - with_rows
    by_time: dict[str, TopicFacts] = {}
    if missing:
        topic_ids = {key[0] for key in missing}
        new = topic_ids - {key[0] for key in with_rows} if duration_ms(config.share_auto_offset_reset) else set()
        at_home = _at_home(connection, topic_ids)
        by_time = {name: fact for name, fact in facts.items() if fact.topic_id in new & at_home}
        unread = new | (topic_ids - at_home)
        facts = {name: fact for name, fact in facts.items() if fact.topic_id not in unread}
        missing = {key for key in missing if key[0] not in unread}
    dead = group_rows.dead_members(connection, heartbeat.group_id, now)
    return _State(group, member, facts, by_time, missing, now, config, dead)


def _at_home(connection: sa.Connection, topic_ids: Collection[int]) -> set[int]:
    query = sa.select(TOPIC.topic_id).where(in_list(TOPIC.topic_id, topic_ids), _STAYS_AT_HOME)
    return set(connection.execute(query).scalars())


def _unchanged(heartbeat: ShareHeartbeat, state: _State) -> ShareAnswer | None:
    """Return the answer to a heartbeat that changes nothing, or None if a transaction must handle it. Raises the errors
    of `share_heartbeat`.
    """
    group, member = _checked(heartbeat, state)
    if group is None or member is None or state.missing or state.dead:
        return None
    topics = member.subscription.topics
    if heartbeat.epoch == JOINING or heartbeat.topics not in (None, topics) or heartbeat.rack is not None:
        return None
    if member.member.generation != group.group.generation or heartbeat.epoch != member.member.generation:
        return None
    if group.topics != state.facts:
        return None
    left_ms = member.until_ms - state.now.lease_ms
    if left_ms * _RENEWAL < member.session_timeout_ms * (_RENEWAL - 1):
        return None
    told = None if heartbeat.topics is None else _assignment(topics, state.facts)
    return ShareAnswer(member.member.generation, state.config.share_heartbeat_interval_ms, told, state.by_time)


def _assignment(topics: Collection[str], facts: Mapping[str, TopicFacts]) -> dict[str, TopicFacts]:
    """Return the topics that the group reads: a member has all their partitions."""
    return {name: facts[name] for name in sorted(topics) if name in facts}


def _checked(
    heartbeat: ShareHeartbeat, state: _State
) -> tuple[group_rows.GroupRow | None, group_rows.MemberRow | None]:
    """Return the group, and the member unless its session has ended. Raises the errors of `share_heartbeat`."""
    group = state.group
    member = state.member if state.member is not None and state.member.live(state.now) else None
    if group is not None and group.type != SHARE and (heartbeat.epoch != JOINING or not _is_free(group)):
        raise not_a_share_group(heartbeat.group_id)
    if heartbeat.epoch == JOINING:
        return group, member
    if group is None:
        raise GroupIdNotFoundError(f"Share group {heartbeat.group_id} not found.")
    if member is None:
        raise _unknown(heartbeat.group_id, heartbeat.member_id)
    if heartbeat.epoch not in (member.member.generation, member.epochs.previous):
        which = "greater" if heartbeat.epoch > member.member.generation else "smaller"
        raise FencedMemberEpochError(
            f"The share group member has a {which} member epoch ({heartbeat.epoch}) than the one known by the group"
            f" coordinator ({member.member.generation}). The member must abandon all its partitions and rejoin."
        )
    return group, member


def _is_free(group: group_rows.GroupRow) -> bool:
    """Return whether a group of another type may have become free for a share group: it has no members."""
    return group.empty_since_ms is not None


def not_a_share_group(group_id: str) -> GroupIdNotFoundError:
    """Return the error for a group of another type."""
    return GroupIdNotFoundError(f"Group {group_id} is not a share group.")


def _unknown(group_id: str, member_id: str) -> UnknownMemberIdError:
    return UnknownMemberIdError(f"Member {member_id} is not a member of group {group_id}.")


def _starts(cluster: Cluster, heartbeat: ShareHeartbeat, state: _State) -> dict[Key, Start]:
    """Find the start offsets of partitions that the group reads for the first time."""
    names = {fact.topic_id: name for name, fact in state.facts.items()}
    return find_starts(cluster, heartbeat.group_id, names, state.missing, state.config, state.now)


def _change(
    store: Store, connection: sa.Connection, heartbeat: ShareHeartbeat, starts: Mapping[Key, Start]
) -> ShareAnswer:
    group_id, member_id = heartbeat.group_id, heartbeat.member_id
    readable = lock_topics_to_read(connection, {key[0] for key in starts})
    if heartbeat.epoch == JOINING:
        group_rows.lock_or_make_group(connection, group_id, store.clock(connection))
    state = _read(store, connection, heartbeat, lock=True)
    group, member = _checked(heartbeat, state)
    assert group is not None
    if group.type != SHARE:
        take_over(connection, group_id, group)
    gone = [name for name in state.dead if name != member_id or member is None]
    before = group_rows.remove_members(connection, state.now, group_id, group.group, gone, have_targets=False)
    session_ms = state.config.share_session_timeout_ms
    topics = heartbeat.topics
    if member is None:
        size = store.settings.group_share_max_size
        if group_rows.count_members(connection, group_id) >= size:
            raise GroupMaxSizeReachedError(
                f"The share group has reached its maximum capacity of {size} members (group.share.max.size)."
            )
        subscription = Subscription(topics or frozenset(), ())
        row = group_rows.MemberRow(
            member_id, None, heartbeat.client_id, heartbeat.host, subscription, Member(subscription.topics), session_ms,
            0, "", EpochState(member_id, 0, rack=heartbeat.rack), SHARE,
        )  # fmt: skip
        changed, joined = True, True
    else:
        subscription = member.subscription if topics is None else Subscription(topics, ())
        row = replace(member, subscription=subscription, session_timeout_ms=session_ms)
        changed, joined = subscription.topics != member.subscription.topics, False
    facts, after = state.facts, before
    if changed or group.topics != facts or after.generation == 0:
        epoch = max(1, after.generation) + 1  # as in Kafka, a group without members has epoch 1
        after = Group(epoch, epoch)
    if after != before or group.type != SHARE or group.empty_since_ms is not None or group.topics != facts:
        group_rows.save_group(connection, group_id, after, topics=facts_json(facts), type=SHARE, empty_since_ms=None)
    news = heartbeat.epoch == JOINING or row.member.generation != after.generation or topics is not None
    member_epoch = row.member.generation
    epochs = replace(row.epochs, previous=member_epoch if member_epoch != after.generation else row.epochs.previous)
    row = replace(
        row,
        member=replace(row.member, generation=after.generation),
        epochs=epochs,
        until_ms=state.now.lease_ms + session_ms,
        clock_epoch=state.now.clock_epoch,
    )
    if joined:
        group_rows.insert_member(connection, group_id, row)
    else:
        group_rows.save_member(connection, group_id, row)
    new = {key: start for key, start in starts.items() if key in state.missing and key[0] in readable}
    insert_starts(connection, group_id, new, state.now)
    mine = _assignment(row.subscription.topics, facts)
    interval_ms = state.config.share_heartbeat_interval_ms
    return ShareAnswer(after.generation, interval_ms, mine if news or state.missing else None, state.by_time)


def take_over(connection: sa.Connection, group_id: str, group: group_rows.GroupRow) -> None:
    """Check that a group of another type has nothing left: then its id may be that of a share group. Raises
    GroupIdNotFoundError.
    """
    is_classic = sa.exists().where(t.classic_group.c.group_id == group_id)
    is_in_use = is_classic | has_commits(group_id) | has_pending_commits(group_id)
    if group_rows.count_members(connection, group_id) or connection.execute(sa.select(is_in_use)).scalar_one():
        raise not_a_share_group(group_id)
