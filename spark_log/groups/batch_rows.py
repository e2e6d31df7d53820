"""Reads and renews many members of any groups with one statement for each table.

The number of values in a statement is rounded up to a power of two by repeating the last value, so that few statements
are compiled. No collection of group ids or keys may be empty.
"""

from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import NamedTuple

import sqlalchemy as sa

from spark_log.cluster.names import is_legal
from spark_log.groups.consumer.rows import NAMES_MAX
from spark_log.groups.consumer.rows import topic_facts as all_topic_facts
from spark_log.groups.consumer.rules import TopicFacts
from spark_log.metadata import tables as t
from spark_log.metadata.prepared import Answer, Prepared
from spark_log.metadata.sql_columns import (
    CLASSIC_GROUP,
    CLASSIC_MEMBER,
    CONSUMER_GROUP,
    GROUP_MEMBER,
    GROUP_PARTITION,
    TOPIC,
)
from spark_log.metadata.store import StoreClock

MEMBERS_MAX = 128

Key = tuple[str, str]
"""Group id and member id."""

_TOPICS_MAX = 128


class MemberColumns(NamedTuple):
    """A row of the answer to `ask_members`: columns of a member and of its group."""

    group_id: str
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
    member_id: str


class ClassicColumns(NamedTuple):
    """A row of the answer to `ask_classic`: columns of a member of a classic group and of its group."""

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


def lock_groups(connection: sa.Connection, group_ids: Collection[str]) -> None:
    """Lock the groups that exist, in the order of their ids, until the end of the transaction."""
    wanted = sorted(group_ids)
    _lock_groups(_size(wanted)).rows(connection, _parameters(wanted))


def ask_members(connection: sa.Connection, keys: Sequence[Key]) -> Answer:
    """Ask for the members; the answer has the columns of `MemberColumns`."""
    return _members(_size(keys)).ask(connection, _pairs(keys))


def ask_classic(connection: sa.Connection, keys: Sequence[Key]) -> Answer:
    """Ask for the members of classic groups; the answer has the columns of `ClassicColumns`."""
    return _classic(_size(keys)).ask(connection, _pairs(keys))


def ask_owned(connection: sa.Connection, keys: Sequence[Key]) -> Answer:
    """Ask for the partitions that are assigned to the members; the answer has group_id, member_id, topic, partition."""
    return _owned(_size(keys)).ask(connection, _pairs(keys))


def ask_session_ends(connection: sa.Connection, group_ids: Collection[str]) -> Answer:
    """Ask when the first session of each group ends. The answer has group_id, clock_epoch, and the least until_ms of
    the group and clock epoch.
    """
    wanted = sorted(group_ids)
    return _session_ends(_size(wanted)).ask(connection, _parameters(wanted))


def ask_classic_groups(connection: sa.Connection, group_ids: Collection[str]) -> Answer:
    """Ask for the classic groups; the answer has group_id, generation, state, deadline_ms, clock_epoch."""
    wanted = sorted(group_ids)
    return _classic_groups(_size(wanted)).ask(connection, _parameters(wanted))


def ask_classic_ends(connection: sa.Connection, group_ids: Collection[str]) -> Answer:
    """Ask when the first session of each classic group ends. The columns are those of `ask_session_ends`."""
    wanted = sorted(group_ids)
    return _classic_ends(_size(wanted)).ask(connection, _parameters(wanted))


def ask_classic_members(connection: sa.Connection, keys: Sequence[Key]) -> Answer:
    """Ask which of the members exist; the answer has their group_id and member_id."""
    return _classic_members(_size(keys)).ask(connection, _pairs(keys))


def topic_facts(connection: sa.Connection, names: Collection[str]) -> dict[str, TopicFacts]:
    """Return the existing topics among `names`, by name."""
    if len(names) > NAMES_MAX:
        return all_topic_facts(connection, names)
    wanted, found = sorted(filter(is_legal, names)), {}
    for first in range(0, len(wanted), _TOPICS_MAX):
        some = wanted[first : first + _TOPICS_MAX]
        for name, topic_id, count in _topics(_size(some)).rows(connection, _parameters(some)):
            found[name] = TopicFacts(topic_id, count)
    return found


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


@lru_cache
def _lock_groups(size: int) -> Prepared:
    query = sa.select(CONSUMER_GROUP.group_id).where(_is_one(CONSUMER_GROUP.group_id, size))
    return Prepared(query.order_by(CONSUMER_GROUP.group_id).with_for_update())


@lru_cache
def _members(size: int) -> Prepared:
    query = sa.select(
        GROUP_MEMBER.group_id, CONSUMER_GROUP.generation, CONSUMER_GROUP.target_generation, CONSUMER_GROUP.topics,
        GROUP_MEMBER.subscription, GROUP_MEMBER.target, GROUP_MEMBER.session_timeout_ms, GROUP_MEMBER.until_ms,
        GROUP_MEMBER.clock_epoch, GROUP_MEMBER.generation, GROUP_MEMBER.protocol, GROUP_MEMBER.instance_id,
        GROUP_MEMBER.epoch_state, GROUP_MEMBER.member_id,
    ).join_from(t.group_member, t.consumer_group, CONSUMER_GROUP.group_id == GROUP_MEMBER.group_id)  # fmt: skip
    return Prepared(query.where(_is_member(GROUP_MEMBER.group_id, GROUP_MEMBER.member_id, size)))


@lru_cache
def _classic(size: int) -> Prepared:
    query = (
        sa.select(
            CLASSIC_MEMBER.group_id, CLASSIC_MEMBER.member_id, CLASSIC_MEMBER.instance_id, CONSUMER_GROUP.generation,
            CLASSIC_GROUP.state, CLASSIC_GROUP.deadline_ms, CLASSIC_GROUP.clock_epoch.label("group_clock_epoch"),
            CLASSIC_MEMBER.phase, CLASSIC_MEMBER.session_timeout_ms, CLASSIC_MEMBER.until_ms,
            CLASSIC_MEMBER.clock_epoch,
        )
        .join_from(t.classic_member, t.classic_group, CLASSIC_GROUP.group_id == CLASSIC_MEMBER.group_id)
        .join(t.consumer_group, CONSUMER_GROUP.group_id == CLASSIC_MEMBER.group_id)
    )  # fmt: skip
    return Prepared(query.where(_is_member(CLASSIC_MEMBER.group_id, CLASSIC_MEMBER.member_id, size)))


@lru_cache
def _owned(size: int) -> Prepared:
    query = sa.select(
        GROUP_PARTITION.group_id, GROUP_PARTITION.member_id, GROUP_PARTITION.topic, GROUP_PARTITION.partition
    )
    return Prepared(query.where(_is_member(GROUP_PARTITION.group_id, GROUP_PARTITION.member_id, size)))


@lru_cache
def _session_ends(size: int) -> Prepared:
    query = sa.select(GROUP_MEMBER.group_id, GROUP_MEMBER.clock_epoch, sa.func.min(GROUP_MEMBER.until_ms))
    query = query.where(_is_one(GROUP_MEMBER.group_id, size))
    return Prepared(query.group_by(GROUP_MEMBER.group_id, GROUP_MEMBER.clock_epoch))


@lru_cache
def _classic_groups(size: int) -> Prepared:
    query = sa.select(
        CLASSIC_GROUP.group_id, CONSUMER_GROUP.generation, CLASSIC_GROUP.state, CLASSIC_GROUP.deadline_ms,
        CLASSIC_GROUP.clock_epoch,
    ).join_from(t.classic_group, t.consumer_group, CONSUMER_GROUP.group_id == CLASSIC_GROUP.group_id)  # fmt: skip
    return Prepared(query.where(_is_one(CLASSIC_GROUP.group_id, size)))


@lru_cache
def _classic_ends(size: int) -> Prepared:
    query = sa.select(CLASSIC_MEMBER.group_id, CLASSIC_MEMBER.clock_epoch, sa.func.min(CLASSIC_MEMBER.until_ms))
    query = query.where(_is_one(CLASSIC_MEMBER.group_id, size))
    return Prepared(query.group_by(CLASSIC_MEMBER.group_id, CLASSIC_MEMBER.clock_epoch))


@lru_cache
def _classic_members(size: int) -> Prepared:
    query = sa.select(CLASSIC_MEMBER.group_id, CLASSIC_MEMBER.member_id)
    return Prepared(query.where(_is_member(CLASSIC_MEMBER.group_id, CLASSIC_MEMBER.member_id, size)))


@lru_cache
def _topics(size: int) -> Prepared:
    return Prepared(sa.select(TOPIC.name, TOPIC.topic_id, TOPIC.partition_count).where(_is_one(TOPIC.name, size)))


def _size(wanted: Collection[object]) -> int:
    return 1 << (len(wanted) - 1).bit_length()


def _parameters(wanted: Sequence[str]) -> dict[str, str]:
    last = len(wanted) - 1
    return {f"a{number}": wanted[min(number, last)] for number in range(_size(wanted))}


def _pairs(keys: Sequence[Key]) -> dict[str, str]:
    last = len(keys) - 1
    found = {}
    for number in range(_size(keys)):
        found[f"a{number}"], found[f"b{number}"] = keys[min(number, last)]
    return found


def _is_one(column: sa.ColumnElement[str], size: int) -> sa.ColumnElement[bool]:
    return column.in_([sa.bindparam(f"a{number}") for number in range(size)])


def _is_member(group_id: sa.ColumnElement[str], member_id: sa.ColumnElement[str], size: int) -> sa.ColumnElement[bool]:
    """Return equalities joined by OR: a condition for which both databases use the index of the two columns."""
    return sa.or_(
        *(
            (group_id == sa.bindparam(f"a{number}")) & (member_id == sa.bindparam(f"b{number}"))
            for number in range(size)
        )
    )
