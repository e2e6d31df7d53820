"""Changes the type of a group that has members: Kafka's online upgrade and downgrade (KIP-848).

A classic group is upgraded when the first member of the consumer protocol joins it. Its members continue with the
classic protocol, which the gateway translates for them from then on. Until a member joins again, it keeps the
partitions that it may still read. A group is downgraded when its last member of the consumer protocol has left. The
other members then begin a rebalance of a classic group. `group.consumer.migration.policy` allows both, one or none.
"""

import logging

import sqlalchemy as sa

from spark_log.cluster.names import is_legal
from spark_log.errors import InconsistentGroupProtocolError
from spark_log.groups.assignors import CLIENT_ASSIGNORS, SERVER_PREFERENCE
from spark_log.groups.classic.group import ClassicGroup, ClassicMember, Phase, State
from spark_log.groups.classic.limits import may_be_decoded
from spark_log.groups.classic.rows import delete_classic, read_classic, save_classic
from spark_log.groups.classic.rules import advance, begin_rebalance, select_protocol
from spark_log.groups.consumer import rows
from spark_log.groups.consumer.rules import NO_PARTITIONS, TOPICS_MAX, EpochState, Group, Member, Partitions, depart
from spark_log.groups.consumer.stored_values import Subscription, facts_json
from spark_log.groups.consumer_messages import PROTOCOL_TYPE, decode_assignment, encode_assignment, subscription_of
from spark_log.ids import TopicPartition
from spark_log.metadata.store import Store
from spark_log.metadata.store_clock import StoreClock

logger = logging.getLogger(__name__)

UPGRADE, DOWNGRADE, BIDIRECTIONAL = "upgrade", "downgrade", "bidirectional"


def upgrade(
    store: Store, connection: sa.Connection, group_id: str, before: rows.GroupRow, now: StoreClock
) -> rows.GroupRow:
    """Upgrade the group so that a member of the consumer protocol can join, and return it. Return `before` unless the
    group is classic. The caller's transaction holds the group's lock.

    Raises InconsistentGroupProtocolError if members are not consumers, have a custom assignor, or have too much
    metadata, or if the policy does not allow the upgrade.
    """
    stored = read_classic(connection, group_id, now)
    if stored is None:
        return before
    classic = advance(stored, now.lease_ms)
    members = [] if not classic.joined else _translated(store, connection, classic, now)
    delete_classic(connection, [group_id])
    for member in members:
        rows.insert_member(connection, group_id, member)
        rows.assign_partitions(connection, group_id, member.member_id, member.member.target)
    facts = rows.topic_facts(connection, {topic for member in members for topic in member.subscription.topics})
    group = Group(classic.generation, classic.generation)
    rows.save_group(
        connection, group_id, group, assignor=classic.protocol, topics=facts_json(facts), type=rows.CONSUMER
    )
    if members:
        logger.info("group %r: upgraded with %d members", group_id, len(members))
    return rows.GroupRow(group, classic.protocol, facts, before.empty_since_ms, rows.CONSUMER)


def check_upgrade(store: Store, group_id: str) -> None:
    """Raise the errors of `upgrade` in a read, so that a client that repeats a refused request takes no lock."""

    def read(connection: sa.Connection) -> None:
        row = rows.read_group(connection, group_id)
        if row is None or row.type != rows.CLASSIC:
            return
        now = store.clock(connection)
        stored = read_classic(connection, group_id, now)
        classic = None if stored is None else advance(stored, now.lease_ms)
        if classic is not None and classic.joined:
            _translated(store, connection, classic, now)

    store.read(read)


def _translated(store: Store, connection: sa.Connection, group: ClassicGroup, now: StoreClock) -> list[rows.MemberRow]:
    """Return the members of a classic group as members with epochs, each with the partitions that it may still read.
    Raises the errors of `upgrade`.
    """
    refusal = f"group {group.group_id!r} has {len(group.joined)} member(s) of type {group.protocol_type!r}"
    if group.protocol_type != PROTOCOL_TYPE:
        raise InconsistentGroupProtocolError(f"{refusal}, which assign by their own protocol")
    protocol = group.protocol or select_protocol(group.joined)
    if protocol not in CLIENT_ASSIGNORS:
        raise InconsistentGroupProtocolError(f"{refusal}, whose assignor {protocol!r} is a custom one")
    if store.settings.group_consumer_migration_policy not in (UPGRADE, BIDIRECTIONAL):
        raise InconsistentGroupProtocolError(f"{refusal}, and group.consumer.migration.policy allows no upgrade")
    if not may_be_decoded(group):
        raise InconsistentGroupProtocolError(f"{refusal}, which have too much metadata for an upgrade")
    messages = {}
    for member in group.joined:
        message = subscription_of(group, member)
        if message is None or not CLIENT_ASSIGNORS.issuperset(name for name, _ in member.protocols):
            raise InconsistentGroupProtocolError(
                f"{refusal}, of which {member.member_id} has unknown metadata, or a custom assignor"
            )
        if len(message.topics) > TOPICS_MAX:
            raise InconsistentGroupProtocolError(f"{refusal}, of which one subscribes to more than {TOPICS_MAX} topics")
        messages[member.member_id] = message
    facts = rows.topic_facts(connection, {topic for message in messages.values() for topic in message.topics})
    owners: dict[TopicPartition, str] = {}
    # assignments come first: they are of this generation, and the owned partitions in the metadata may be older
    assigned = {each.member_id: decode_assignment(each.assignment) or NO_PARTITIONS for each in group.joined}
    for reports in (assigned, {member_id: message.owned for member_id, message in messages.items()}):
        for member_id, partitions in reports.items():
            for p in partitions:
                exists = p.topic in facts and 0 <= p.partition < facts[p.topic].partition_count
                if exists and p.topic in messages[member_id].topics:
                    owners.setdefault(p, member_id)
    owned: dict[str, set[TopicPartition]] = {}
    for p, member_id in owners.items():
        owned.setdefault(member_id, set()).add(p)
    translated = []
    for member in group.joined:
        mine = frozenset(owned.get(member.member_id, ()))
        topics = frozenset(filter(is_legal, messages[member.member_id].topics))
        epochs = EpochState(
            member.member_id, member.rebalance_timeout_ms, current=mine,
            topic_ids=frozenset(facts[p.topic].topic_id for p in mine),
        )  # fmt: skip
        translated.append(
            rows.MemberRow(
                member.member_id, member.instance_id, member.client_id, member.host,
                Subscription(topics, SERVER_PREFERENCE), Member(topics, target=mine, generation=group.generation),
                member.session_timeout_ms, member.until_ms, now.clock_epoch, epochs, rows.CLASSIC, member.protocols,
            )
        )  # fmt: skip
    return translated


def downgrade(store: Store, connection: sa.Connection, group_id: str, group: Group, now: StoreClock) -> bool:
    """Make the group classic if all its live members are classic and the policy allows it. Return whether it became so.

    The caller's transaction holds the group's lock. `group` has the generations from before the last member of the
    consumer protocol left, because the clients know that epoch.
    """
    if store.settings.group_consumer_migration_policy not in (DOWNGRADE, BIDIRECTIONAL):
        return False
    members = [member for member in rows.read_members(connection, group_id) if member.live(now)]
    if not members or any(member.protocol != rows.CLASSIC for member in members):
        return False
    assigned: dict[str, Partitions] = {}
    for partition, member_id in rows.owners(connection, group_id).items():
        assigned[member_id] = assigned.get(member_id, NO_PARTITIONS) | {partition}
    classic = {
        member.member_id: ClassicMember(
            member.member_id, member.instance_id, member.client_id, member.host, member.protocols,
            member.session_timeout_ms, member.epochs.rebalance_timeout_ms, member.until_ms, Phase.SYNCED,
            encode_assignment(assigned.get(member.member_id, NO_PARTITIONS)),
        )
        for member in members
    }  # fmt: skip
    protocol = select_protocol(classic.values())
    if not protocol:
        return False
    rows.delete_members(connection, group_id, [each.member_id for each in rows.read_members(connection, group_id)])
    before = ClassicGroup(
        group_id, group.generation, State.STABLE, PROTOCOL_TYPE, protocol, min(classic), None, classic
    )
    save_classic(connection, None, begin_rebalance(before, now.lease_ms), now)
    logger.info("group %r: downgraded with %d members", group_id, len(members))
    return True


def read_type(store: Store, group_id: str) -> str | None:
    """Return `classic` or `consumer`: the type of the group for a classic client that is in it, or None if there is no
    such group. It is `consumer` for a share group, which then does not know the member.
    """
    row = store.read(lambda connection: rows.read_group(connection, group_id))
    return None if row is None else rows.CLASSIC if row.type == rows.CLASSIC else rows.CONSUMER


def type_to_join(store: Store, group_id: str) -> str:
    """Return the type of the group that a classic client joins.

    It is `consumer` if the group has live members of the consumer protocol. A group of type consumer whose live members
    are all classic is downgraded, and stays `consumer` if that is not possible. Every other group is `classic`, also a
    share group, which refuses to become classic.
    """

    def read(connection: sa.Connection) -> str | None:
        """Return the type, or None if the group may be downgraded."""
        row = rows.read_group(connection, group_id)
        if row is None or row.type in (rows.CLASSIC, rows.SHARE):
            return rows.CLASSIC
        now = store.clock(connection)
        live = {member.protocol for member in rows.read_members(connection, group_id) if member.live(now)}
        return rows.CONSUMER if rows.CONSUMER in live else rows.CLASSIC if not live else None

    def change(connection: sa.Connection) -> str:
        row = rows.read_group(connection, group_id, lock=True)
        now = store.clock(connection)
        if row is not None and row.type == rows.CONSUMER:
            dead = rows.dead_members(connection, group_id, now)
            rows.delete_members(connection, group_id, dead)
            left = rows.count_members(connection, group_id)
            if not downgrade(store, connection, group_id, row.group, now):
                if dead:
                    group = depart(row.group, left=left)
                    rows.save_group(connection, group_id, group, empty_since_ms=None if left else now.wall_ms)
                return rows.CONSUMER if left else rows.CLASSIC
        return rows.CLASSIC

    return store.read(read) or store.transact(change, announce=True)
