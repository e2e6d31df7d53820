"""Reconciles a group: removes members, and computes the target assignment of the others."""

from collections.abc import Mapping, Sequence

import sqlalchemy as sa

from spark_log.cluster.lease import Fence, unfenced
from spark_log.failpoints import failpoint
from spark_log.groups.assignors import Assignor, Candidate, assign, choose_assignor
from spark_log.groups.classic.rows import expired_groups
from spark_log.groups.classic.service import advance_classic
from spark_log.groups.consumer import rows
from spark_log.groups.consumer.rows import MemberRow
from spark_log.groups.consumer.rules import Group, TopicFacts, notice_topics
from spark_log.groups.consumer.stored_values import facts_json, facts_of, subscription_of
from spark_log.groups.conversion import downgrade
from spark_log.ids import TopicPartition
from spark_log.metadata import tables as t
from spark_log.metadata.sql_columns import CONSUMER_GROUP, GROUP_MEMBER
from spark_log.metadata.store import Store


def reconcile_group(store: Store, group_id: str, assignors: Mapping[str, Assignor], fence: Fence = unfenced) -> None:
    """Remove dead members, notice changed topics, and compute a stale target. It serves callers that are not members.

    Raises InconsistentGroupProtocolError, and the errors of `fence`.
    """
    advance_classic(store, group_id, fence)

    def read(connection: sa.Connection) -> bool:
        row = rows.read_group(connection, group_id)
        if row is None or row.type == rows.CLASSIC:
            return False
        facts = rows.topic_facts(connection, _subscribed(connection, group_id))
        dead = rows.dead_members(connection, group_id, store.clock(connection))
        if row.type == rows.SHARE:  # its members notice changed topics, and have no targets
            return bool(dead)
        return bool(dead) or notice_topics(row.group, row.topics, facts, facts.keys() | row.topics) != row.group

    def change(connection: sa.Connection) -> None:
        row = rows.read_group(connection, group_id, lock=True)
        if row is None or row.type == rows.CLASSIC:
            return
        now = store.clock(connection)
        dead = rows.dead_members(connection, group_id, now)
        if row.type == rows.SHARE:
            rows.remove_members(connection, now, group_id, row.group, dead, have_targets=False)
            return
        group = rows.remove_members(connection, now, group_id, row.group, dead)
        if dead and downgrade(store, connection, group_id, row.group, now):
            return
        facts = rows.topic_facts(connection, _subscribed(connection, group_id))
        noticed = notice_topics(group, row.topics, facts, facts.keys() | row.topics)
        if noticed != group:
            rows.save_group(connection, group_id, noticed)

    if store.read(read):
        store.transact(change, fence=fence, announce=True)
        failpoint("group.changed")
    refresh_targets(store, group_id, assignors, fence)


def stale_groups(store: Store) -> list[str]:
    """Return the ids of the groups of all types that have stale targets or dead members, in order."""

    def read(connection: sa.Connection) -> list[str]:
        now = store.clock(connection)
        stale = sa.select(CONSUMER_GROUP.group_id).where(CONSUMER_GROUP.target_generation < CONSUMER_GROUP.generation)
        dead = sa.select(GROUP_MEMBER.group_id).where(now.has_expired(GROUP_MEMBER))
        return sorted({*connection.execute(stale.union(dead)).scalars(), *expired_groups(connection, now)})

    return store.read(read)


def groups_of_changed_topics(store: Store) -> list[str]:
    """Return the ids of the groups whose targets assume other facts of their topics than are true now, in order.

    Groups whose targets are stale already are left out. A group whose rows are damaged is included: its reconciliation
    raises the error.
    """
    fresh = (CONSUMER_GROUP.type == rows.CONSUMER) & (CONSUMER_GROUP.target_generation == CONSUMER_GROUP.generation)
    members = (
        sa.select(GROUP_MEMBER.group_id, CONSUMER_GROUP.topics, GROUP_MEMBER.subscription)
        .join(t.consumer_group, CONSUMER_GROUP.group_id == GROUP_MEMBER.group_id)
        .where(fresh)
        .distinct()
    )

    def read(connection: sa.Connection) -> tuple[dict[tuple[str, str], list[str]], dict[str, TopicFacts]]:
        subscriptions: dict[tuple[str, str], list[str]] = {}
        for group_id, topics, subscription in connection.execute(members):
            subscriptions.setdefault((group_id, topics), []).append(subscription)
        return subscriptions, rows.all_topic_facts(connection) if subscriptions else {}

    subscriptions, facts = store.read(read)
    return sorted(
        group_id for (group_id, assumed), texts in subscriptions.items() if _assumes_others(assumed, texts, facts)
    )


def _assumes_others(assumed: str, subscriptions: Sequence[str], facts: Mapping[str, TopicFacts]) -> bool:
    """Whether a group with these rows, whose targets are up to date, notices a changed topic."""
    try:
        before = facts_of(assumed)
        names = before.keys() | {topic for text in subscriptions for topic in subscription_of(text).topics}
    except (ValueError, KeyError, TypeError, AttributeError):
        return True
    return notice_topics(Group(), before, facts, names).stale


def _read_stale(
    connection: sa.Connection, group_id: str
) -> tuple[rows.GroupRow | None, list[rows.MemberRow], dict[str, TopicFacts], dict[TopicPartition, str]]:
    """Return the group, its members, the facts of their topics, and the owners of partitions. The group is None, and
    the rest is empty, unless its targets are stale.
    """
    row = rows.read_group(connection, group_id)
    if row is None or not row.group.stale:
        return None, [], {}, {}
    members = rows.read_members(connection, group_id)
    facts = rows.topic_facts(connection, {topic for member in members for topic in member.subscription.topics})
    return row, members, facts, rows.owners(connection, group_id)


def refresh_targets(store: Store, group_id: str, assignors: Mapping[str, Assignor], fence: Fence = unfenced) -> bool:
    """Compute the target if it is stale, and write it unless the generation has changed meanwhile.

    Returns whether it is up to date now. If not, a process that has the group's assignor, or that made the later
    change, computes it. Raises InconsistentGroupProtocolError if the members have no assignor in common; then they keep
    their partitions.
    """
    row, members, facts, owners = store.read(lambda connection: _read_stale(connection, group_id))
    if row is None:
        return True
    generation = row.group.generation
    if not members:
        return False
    name = choose_assignor([member.subscription.assignors for member in members])
    if name not in assignors:
        return False
    counts = {topic: fact.partition_count for topic, fact in facts.items()}
    targets = assign(assignors[name], _candidates(members, owners), counts)
    changed = {m.member_id: targets[m.member_id] for m in members if targets[m.member_id] != m.member.target}

    def write(connection: sa.Connection) -> bool:
        current = rows.read_group(connection, group_id, lock=True)
        if current is None or current.group.generation != generation:
            return False
        if current.group.stale:
            rows.save_targets(connection, group_id, changed)
            fresh = Group(generation, generation)
            rows.save_group(connection, group_id, fresh, assignor=name, topics=facts_json(facts))
        failpoint("group.target-decided")
        return True

    written = store.transact(write, fence=fence, announce=True)
    failpoint("group.target-written")
    return written


def _subscribed(connection: sa.Connection, group_id: str) -> set[str]:
    return {topic for subscription in rows.read_subscriptions(connection, group_id) for topic in subscription.topics}


def _candidates(members: Sequence[MemberRow], owners: Mapping[TopicPartition, str]) -> list[Candidate]:
    """Return the input of the assignor. A member owns its last target, and its partitions that are in no target."""
    targeted: set[TopicPartition] = {p for m in members for p in m.member.target}
    held: dict[str, set[TopicPartition]] = {}
    for partition, member_id in owners.items():
        if partition not in targeted:
            held.setdefault(member_id, set()).add(partition)
    return [
        Candidate(
            m.member_id,
            m.subscription.topics,
            m.instance_id,
            m.member.target | frozenset(held.get(m.member_id, ())),
        )
        for m in members
    ]
