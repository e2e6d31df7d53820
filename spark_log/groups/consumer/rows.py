"""Reads, locks and writes the rows of a group.

A transaction that changes a group or one of its members holds the group's row lock; readers use a snapshot.
"""

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa

from spark_log.cluster.names import is_legal
from spark_log.cluster.topics import IS_LIVE
from spark_log.groups.consumer.rules import EpochState, Group, Member, Partitions, TopicFacts, depart
from spark_log.groups.consumer.stored_values import (
    Subscription,
    TopicSet,
    epochs_json,
    epochs_of,
    facts_of,
    partitions_json,
    partitions_of,
    protocols_json,
    protocols_of,
    subscription_json,
    subscription_of,
)
from spark_log.ids import TopicPartition, numbers_by_topic
from spark_log.metadata import tables as t
from spark_log.metadata.insert import insert_if_missing
from spark_log.metadata.prepared import Prepared, in_list
from spark_log.metadata.sql_columns import CONSUMER_GROUP, GROUP_MEMBER, GROUP_PARTITION, TOPIC
from spark_log.metadata.store_clock import StoreClock

logger = logging.getLogger(__name__)

_NAMES_MAX = 1_000
"""The maximum number of names to search for. For more, all topics are read: clients choose how many they use."""

CLASSIC, CONSUMER, SHARE = "classic", "consumer", "share"
"""The types of groups, and the protocols of their members."""


@dataclass(frozen=True)
class GroupRow:
    group: Group
    assignor: str
    topics: Mapping[str, TopicFacts]
    """The facts of the subscribed topics that the targets assume."""
    empty_since_ms: int | None
    type: str = CONSUMER
    """A classic group has a row in `classic_group`, and no members here."""


@dataclass(frozen=True)
class MemberRow:
    """A member without its assigned partitions: `member.assigned` is empty."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    subscription: Subscription
    member: Member
    session_timeout_ms: int
    until_ms: int
    clock_epoch: str
    epochs: EpochState
    protocol: str = CONSUMER
    protocols: tuple[tuple[str, bytes], ...] = ()
    """Names and metadata of a classic member, in its order of preference. They are used when its group becomes
    classic.
    """

    def live(self, now: StoreClock) -> bool:
        return not now.expired(self.until_ms, self.clock_epoch)


_GROUP = sa.select(
    CONSUMER_GROUP.generation,
    CONSUMER_GROUP.target_generation,
    CONSUMER_GROUP.assignor,
    CONSUMER_GROUP.topics,
    CONSUMER_GROUP.empty_since_ms,
    CONSUMER_GROUP.type,
).where(CONSUMER_GROUP.group_id == sa.bindparam("g"))
_READ_GROUP, _LOCK_GROUP = Prepared(_GROUP), Prepared(_GROUP.with_for_update())
_ALL_MEMBERS = sa.select(
    GROUP_MEMBER.member_id, GROUP_MEMBER.instance_id, GROUP_MEMBER.client, GROUP_MEMBER.subscription,
    GROUP_MEMBER.target, GROUP_MEMBER.generation, GROUP_MEMBER.session_timeout_ms, GROUP_MEMBER.until_ms,
    GROUP_MEMBER.clock_epoch, GROUP_MEMBER.protocol, GROUP_MEMBER.epoch_state, GROUP_MEMBER.classic_protocols,
)  # fmt: skip
_MEMBERS = _ALL_MEMBERS.where(GROUP_MEMBER.group_id == sa.bindparam("g"))
_MEMBER = Prepared(_MEMBERS.where(GROUP_MEMBER.member_id == sa.bindparam("m")))
_MEMBERS_SORTED = _MEMBERS.order_by(GROUP_MEMBER.member_id)
_GIVEN = sa.select(GROUP_PARTITION.topic, GROUP_PARTITION.partition).where(
    GROUP_PARTITION.group_id == sa.bindparam("g"), GROUP_PARTITION.member_id == sa.bindparam("m")
)
_GIVEN_TO_OTHERS = Prepared(
    sa.select(GROUP_PARTITION.partition, GROUP_PARTITION.member_id).where(
        GROUP_PARTITION.group_id == sa.bindparam("g"),
        GROUP_PARTITION.member_id != sa.bindparam("m"),
        GROUP_PARTITION.topic == sa.bindparam("topic"),
        GROUP_PARTITION.partition >= sa.bindparam("first"),
        GROUP_PARTITION.partition <= sa.bindparam("last"),
    )
)
_TOPIC_SET = Prepared(sa.select(sa.func.count(), sa.func.max(TOPIC.topic_id)).select_from(t.topic).where(IS_LIVE))


def read_group(connection: sa.Connection, group_id: str, *, lock: bool = False) -> GroupRow | None:
    found = (_LOCK_GROUP if lock else _READ_GROUP).rows(connection, {"g": group_id})
    if not found:
        return None
    [(generation, target_generation, assignor, topics, empty_since_ms, group_type)] = found
    return GroupRow(Group(generation, target_generation), assignor, facts_of(topics), empty_since_ms, group_type)


def lock_or_make_group(connection: sa.Connection, group_id: str, now: StoreClock) -> GroupRow:
    """Return the group's row, locked. It is created without members if there is none."""
    row = read_group(connection, group_id, lock=True)
    if row is None:
        new = {"group_id": group_id, "generation": 0, "assignor": "", "empty_since_ms": now.wall_ms}
        insert_if_missing(connection, t.consumer_group, new)
        row = read_group(connection, group_id, lock=True)
        assert row is not None
    return row


def save_group(connection: sa.Connection, group_id: str, group: Group, **others: Any) -> None:
    values = {"generation": group.generation, "target_generation": group.target_generation, **others}
    connection.execute(t.consumer_group.update().where(CONSUMER_GROUP.group_id == group_id).values(values))


def _member_row(row: Any) -> MemberRow:
    member_id, instance_id, client, subscription, target, generation, timeout_ms, until_ms, *others = row
    clock_epoch, protocol, epoch_state, classic_protocols = others
    who = json.loads(client)
    decoded = subscription_of(subscription)
    member = Member(decoded.topics, partitions_of(target), generation=generation)
    return MemberRow(
        member_id, instance_id, who["id"], who["host"], decoded, member, timeout_ms, until_ms, clock_epoch,
        epochs_of(epoch_state), protocol, () if classic_protocols is None else protocols_of(classic_protocols),
    )  # fmt: skip


def read_member(connection: sa.Connection, group_id: str, member_id: str) -> MemberRow | None:
    rows = _MEMBER.rows(connection, {"g": group_id, "m": member_id})
    return _member_row(rows[0]) if rows else None


def read_members(connection: sa.Connection, group_id: str) -> list[MemberRow]:
    """Return all members in the order of their ids."""
    return [_member_row(row) for row in connection.execute(_MEMBERS_SORTED, {"g": group_id})]


def read_all_groups(connection: sa.Connection) -> dict[str, tuple[Group, str]]:
    """Return every group with its last type, by id and in the order of the ids."""
    query = sa.select(
        CONSUMER_GROUP.group_id, CONSUMER_GROUP.generation, CONSUMER_GROUP.target_generation, CONSUMER_GROUP.type
    )
    found = connection.execute(query.order_by(CONSUMER_GROUP.group_id))
    return {row[0]: (Group(row[1], row[2]), row[3]) for row in found}


def read_all_members(connection: sa.Connection, *, with_subscriptions: bool) -> dict[str, list[MemberRow]]:
    """Return the members of all groups that have some, with their assigned partitions, in two statements.
    Subscriptions, which may be large, are empty unless requested; the metadata of classic members is left out.
    """
    member_rows: dict[tuple[str, str], MemberRow] = {}
    left_out: dict[str, sa.ColumnElement[Any]] = {"classic_protocols": sa.null()}
    if not with_subscriptions:
        left_out["subscription"] = sa.literal(subscription_json(Subscription(frozenset(), ())))
    columns = [left_out.get(each.name, each) for each in _ALL_MEMBERS.selected_columns]
    query = sa.select(*columns, GROUP_MEMBER.group_id).order_by(GROUP_MEMBER.group_id, GROUP_MEMBER.member_id)
    for *columns, group_id in connection.execute(query):
        member_row = _member_row(columns)
        member_rows[group_id, member_row.member_id] = member_row
    assigned: dict[tuple[str, str], set[TopicPartition]] = {}
    if member_rows:
        for row in connection.execute(sa.select(t.group_partition)):
            partition = TopicPartition(row.topic, row.partition)
            assigned.setdefault((row.group_id, row.member_id), set()).add(partition)
    by_group: dict[str, list[MemberRow]] = {}
    for key, member_row in member_rows.items():
        member = replace(member_row.member, assigned=frozenset(assigned.get(key, ())))
        by_group.setdefault(key[0], []).append(replace(member_row, member=member))
    return by_group


def read_subscriptions(connection: sa.Connection, group_id: str) -> list[Subscription]:
    """Return the distinct subscriptions of the members."""
    query = sa.select(GROUP_MEMBER.subscription).where(GROUP_MEMBER.group_id == group_id).distinct()
    return [subscription_of(text) for text in connection.execute(query).scalars()]


def find_instance(connection: sa.Connection, group_id: str, instance_id: str | None) -> MemberRow | None:
    """Return the member that has this instance id, if any."""
    if instance_id is None:
        return None
    row = connection.execute(_MEMBERS.where(GROUP_MEMBER.instance_id == instance_id), {"g": group_id}).one_or_none()
    return None if row is None else _member_row(row)


def assigned_to(connection: sa.Connection, group_id: str, member_id: str) -> Partitions:
    rows = connection.execute(_GIVEN, {"g": group_id, "m": member_id})
    return frozenset(TopicPartition(topic, number) for topic, number in rows)


def owners(connection: sa.Connection, group_id: str) -> dict[TopicPartition, str]:
    """Return the assigned partitions of the whole group, with their owners."""
    query = sa.select(GROUP_PARTITION.topic, GROUP_PARTITION.partition, GROUP_PARTITION.member_id).where(
        GROUP_PARTITION.group_id == group_id
    )
    return {TopicPartition(topic, number): member_id for topic, number, member_id in connection.execute(query)}


def assigned_to_others(
    connection: sa.Connection, group_id: str, member_id: str, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, str]:
    """Return which of the partitions are assigned to other members, with their owners."""
    owners: dict[TopicPartition, str] = {}
    for topic, numbers in numbers_by_topic(partitions).items():
        where = {"g": group_id, "m": member_id, "topic": topic, "first": numbers[0], "last": numbers[-1]}
        wanted = set(numbers)
        for number, owner in _GIVEN_TO_OTHERS.rows(connection, where):
            if number in wanted:
                owners[TopicPartition(topic, number)] = owner
    return owners


def dead_members(connection: sa.Connection, group_id: str, now: StoreClock) -> list[str]:
    """Return the members whose sessions have ended, by the store's clock."""
    members = sa.select(GROUP_MEMBER.member_id).where(GROUP_MEMBER.group_id == group_id)
    return list(connection.execute(members.where(now.has_expired(GROUP_MEMBER))).scalars())


def count_members(connection: sa.Connection, group_id: str) -> int:
    return connection.execute(
        sa.select(sa.func.count()).select_from(t.group_member).where(GROUP_MEMBER.group_id == group_id)
    ).scalar_one()


def subscription_characters(connection: sa.Connection, group_id: str, except_member_id: str) -> int:
    """Return the number of characters of the stored subscriptions (JSON) of the group's other members. Equal ones count
    once.
    """
    others = (GROUP_MEMBER.group_id == group_id) & (GROUP_MEMBER.member_id != except_member_id)
    texts = sa.select(GROUP_MEMBER.subscription).where(others).distinct().subquery()
    size = sa.func.coalesce(sa.func.sum(sa.func.length(texts.c.subscription)), 0)
    return int(connection.execute(sa.select(size)).scalar_one())


def classic_bytes(connection: sa.Connection, group_id: str, except_member_id: str) -> int:
    """Return about how many bytes the `protocols` of the group's other members have. They are stored as base64."""
    others = (GROUP_MEMBER.group_id == group_id) & (GROUP_MEMBER.member_id != except_member_id)
    size = sa.func.coalesce(sa.func.sum(sa.func.length(GROUP_MEMBER.classic_protocols)), 0)
    return int(connection.execute(sa.select(size).where(others)).scalar_one()) * 3 // 4


def insert_member(connection: sa.Connection, group_id: str, row: MemberRow) -> None:
    client = json.dumps({"id": row.client_id, "host": row.host})
    values = {"group_id": group_id, "member_id": row.member_id, "instance_id": row.instance_id, "client": client}
    connection.execute(t.group_member.insert(), {**values, **_changing(row)})


def save_member(connection: sa.Connection, group_id: str, row: MemberRow) -> None:
    here = (GROUP_MEMBER.group_id == group_id) & (GROUP_MEMBER.member_id == row.member_id)
    connection.execute(t.group_member.update().where(here).values(_changing(row)))


def _changing(row: MemberRow) -> dict[str, Any]:
    return {
        "subscription": subscription_json(row.subscription),
        "target": partitions_json(row.member.target),
        "generation": row.member.generation,
        "session_timeout_ms": row.session_timeout_ms,
        "until_ms": row.until_ms,
        "clock_epoch": row.clock_epoch,
        "protocol": row.protocol,
        "epoch_state": epochs_json(row.epochs),
        "classic_protocols": protocols_json(row.protocols) if row.protocols else None,
    }


def save_targets(connection: sa.Connection, group_id: str, targets: Mapping[str, Partitions]) -> None:
    update = (
        t.group_member.update()
        .where(GROUP_MEMBER.group_id == sa.bindparam("g"), GROUP_MEMBER.member_id == sa.bindparam("m"))
        .values(target=sa.bindparam("to"))
    )
    rows = [{"g": group_id, "m": member_id, "to": partitions_json(to)} for member_id, to in targets.items()]
    if rows:
        connection.execute(update, rows)


def replace_member(connection: sa.Connection, group_id: str, old_id: str, new: MemberRow) -> None:
    """Replace a member with `new`, which gets all its assigned partitions."""
    connection.execute(
        t.group_member.delete().where(GROUP_MEMBER.group_id == group_id, GROUP_MEMBER.member_id == old_id)
    )
    insert_member(connection, group_id, new)
    mine = (GROUP_PARTITION.group_id == group_id) & (GROUP_PARTITION.member_id == old_id)
    connection.execute(t.group_partition.update().where(mine).values(member_id=new.member_id))


def delete_members(connection: sa.Connection, group_id: str, member_ids: Sequence[str]) -> None:
    """Delete the members and their assigned partitions."""
    if not member_ids:
        return
    for table in (t.group_partition, t.group_member):
        members = (table.c.group_id == group_id, in_list(table.c.member_id, member_ids))
        connection.execute(table.delete().where(*members))


def remove_members(
    connection: sa.Connection,
    now: StoreClock,
    group_id: str,
    group: Group,
    member_ids: Sequence[str],
    *,
    have_targets: bool = True,
) -> Group:
    """Remove members in the caller's transaction, which holds the group's lock. Returns the group after the removal.
    Its targets become stale only if its members `have_targets`, unlike those of a share group.
    """
    if not member_ids:
        return group
    delete_members(connection, group_id, member_ids)
    left = count_members(connection, group_id)
    group = depart(group, left=left if have_targets else 0)
    save_group(connection, group_id, group, empty_since_ms=None if left else now.wall_ms)
    logger.info("group %r: %s gone, %d left, generation %d", group_id, member_ids, left, group.generation)
    return group


def revoke_partitions(connection: sa.Connection, group_id: str, member_id: str, partitions: Partitions) -> None:
    for topic, numbers in numbers_by_topic(partitions).items():
        here = (
            (GROUP_PARTITION.group_id == group_id)
            & (GROUP_PARTITION.topic == topic)
            & in_list(GROUP_PARTITION.partition, numbers)
        )
        connection.execute(t.group_partition.delete().where(here, GROUP_PARTITION.member_id == member_id))


def assign_partitions(connection: sa.Connection, group_id: str, member_id: str, partitions: Partitions) -> None:
    rows = [
        {"group_id": group_id, "topic": topic, "partition": number, "member_id": member_id}
        for topic, number in sorted(partitions)
    ]
    if rows:
        connection.execute(t.group_partition.insert(), rows)


def all_topics(connection: sa.Connection) -> TopicSet:
    return TopicSet(*_TOPIC_SET.rows(connection, {})[0])


def topic_names(connection: sa.Connection) -> list[str]:
    return list(connection.execute(sa.select(TOPIC.name).where(IS_LIVE)).scalars())


def read_protocols(connection: sa.Connection, group_id: str) -> set[str]:
    """Return the protocols that the group's members use, CLASSIC or CONSUMER."""
    query = sa.select(GROUP_MEMBER.protocol).where(GROUP_MEMBER.group_id == group_id).distinct()
    return set(connection.execute(query).scalars())


_ALL_TOPIC_FACTS = sa.select(TOPIC.name, TOPIC.topic_id, TOPIC.partition_count).where(IS_LIVE)
_TOPIC_FACTS = Prepared(_ALL_TOPIC_FACTS.where(in_list(TOPIC.name, "names")))


def topic_facts(connection: sa.Connection, names: Iterable[str]) -> dict[str, TopicFacts]:
    """Return the topics of these names that exist."""
    legal = set(filter(is_legal, names))
    rows: Iterable[Any] = ()
    if len(legal) > _NAMES_MAX:
        rows = connection.execute(_ALL_TOPIC_FACTS)
    elif legal:
        rows = _TOPIC_FACTS.rows(connection, {"names": list(legal)})
    return {name: TopicFacts(topic_id, count) for name, topic_id, count in rows if name in legal}


def all_topic_facts(connection: sa.Connection) -> dict[str, TopicFacts]:
    return {name: TopicFacts(topic_id, count) for name, topic_id, count in connection.execute(_ALL_TOPIC_FACTS)}
