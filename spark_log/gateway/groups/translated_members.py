"""Members that speak the classic group protocol (JoinGroup, SyncGroup), in groups of the consumer protocol.

To every classic client the group's leader is another member: it never computes an assignment. The store's target is
what SyncGroup returns; the generation is the member's epoch. So classic clients share a group with other members, and
any gateway serves any member.

    eager          a member joins owning nothing; JoinGroup waits until the others have given its partitions up
    cooperative    a member joins with what it owns, and gets at once what is free; while something is missing, or is
                   to be given up, its heartbeats tell it to join again

All functions block; they raise the errors of `groups.consumer.service`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import sqlalchemy as sa
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment, ConsumerProtocolSubscription

from spark_log.cluster.names import is_legal
from spark_log.errors import (
    FencedInstanceIdError,
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from spark_log.groups.assignment import Assignor, known_assignors
from spark_log.groups.committers import check_live
from spark_log.groups.consumer import rows
from spark_log.groups.consumer.rules import JOINING, LEAVING, Partitions
from spark_log.groups.consumer.service import ConsumerBeat, consumer_heartbeat, leave_consumer
from spark_log.groups.group_names import check_group_id, check_instance_id, check_session_timeout, new_member_id
from spark_log.groups.identity import Identity
from spark_log.ids import TopicPartition
from spark_log.metadata.store import Attempt, Store

PROTOCOL_TYPE = "consumer"
COOPERATIVE = "cooperative-sticky"
_MEMBER_ID_CHARACTERS_MAX = 249


def assignors() -> dict[str, Assignor]:
    """The assignors that any client may ask for, by name."""
    known = known_assignors()
    return {**known, "RoundRobinAssigner": known["roundrobin"]}  # KafkaJS's name of it


@dataclass(frozen=True)
class Joining:
    """The facts of a JoinGroup request. `owned`: the partitions that the member has and keeps."""

    me: Identity
    topics: frozenset[str]
    assignors: tuple[str, ...]
    """Those that gateways know, in order of preference."""
    owned: Partitions
    rebalance_timeout_ms: int
    replaces: bool = False


@dataclass(frozen=True)
class Membership:
    """A member's state. `complete`: it has all of its target, and nothing else."""

    generation: int
    assignor: str
    partitions: Partitions
    complete: bool


def with_new_id(joining: Joining) -> Joining:
    """For a member without an id: a new one. A static member replaces the one that had its instance id."""
    return replace(joining, me=replace(joining.me, member_id=new_member_id(joining.me.client_id)), replaces=True)


def joining_of(
    store: Store,
    identity: Identity,
    protocol_type: str,
    protocols: Mapping[str, bytes],
    rebalance_timeout_ms: int,
    may_describe: Callable[[str], bool],
) -> Joining:
    """Check a JoinGroup request and decode it; `protocols` are the metadata by assignor, in order of preference. Topics
    that the client may not describe are left out: to it, they do not exist.

    InconsistentGroupProtocolError for a group that is not of consumers, or without an assignor that gateways know.
    """
    check_group_id(identity.group_id)
    check_instance_id(identity.instance_id)
    check_session_timeout(identity.session_timeout_ms, store.settings)
    if len(identity.member_id) > _MEMBER_ID_CHARACTERS_MAX:
        raise UnknownMemberIdError("a member id that no gateway has made")
    known = [name for name in protocols if name in assignors()]
    if protocol_type != PROTOCOL_TYPE or not known:
        raise InconsistentGroupProtocolError(
            f"group {identity.group_id!r}: members of type {protocol_type!r} with assignors"
            f" {', '.join(protocols)} are not supported; there are {', '.join(assignors())}"
        )
    topics: set[str] = set()
    owned: set[TopicPartition] = set()
    for name in known:
        try:
            said = ConsumerProtocolSubscription.decode(protocols[name])
        except (ValueError, IndexError, TypeError, OverflowError) as error:
            raise InconsistentGroupProtocolError(f"group {identity.group_id!r}: {name}: {error}") from None
        topics |= set(said.topics)
        pairs = said.owned_partitions or ()
        owned |= {TopicPartition(each.topic, number) for each in pairs for number in each.partitions}
    legal = frozenset(name for name in topics if is_legal(name) and may_describe(name))
    return Joining(identity, legal, tuple(known), frozenset(owned), rebalance_timeout_ms)


def join(store: Store, joining: Joining) -> Membership:
    """Become a member, or join again, and report what is owned. RebalanceInProgressError: it must join again."""
    me = joining.me
    row = store.read(lambda connection: rows.read_member(connection, me.group_id, me.member_id))
    if row is None:
        consumer_heartbeat(store, _beat(joining, JOINING), assignors())
    return join_again(store, joining)


def join_again(store: Store, joining: Joining) -> Membership:
    """As `join`, of a member. UnknownMemberIdError, FencedInstanceIdError."""
    me, beat = joining.me, _beat(joining, None)
    answer = consumer_heartbeat(store, beat, assignors())
    if not answer.complete:  # it has been told what to give up, and if it has joined without that, others may have it
        answer = consumer_heartbeat(store, beat, assignors())
    if answer.repeat or answer.partitions is None:
        raise RebalanceInProgressError(f"group {me.group_id!r}: the assignment is being computed")
    return Membership(answer.epoch, answer.assignor, answer.partitions, answer.complete)


def _beat(joining: Joining, epoch: int | None) -> ConsumerBeat:
    me = joining.me
    return ConsumerBeat(
        me, me.member_id, epoch, rebalance_timeout_ms=joining.rebalance_timeout_ms, names=joining.topics,
        owned=joining.owned, assignors=joining.assignors, replaces=joining.replaces, protocol=rows.CLASSIC,
    )  # fmt: skip


def sync(store: Store, me: Identity, generation: int, may_describe: Callable[[str], bool]) -> Membership:
    """The member's assignment. IllegalGenerationError if it has to join again, such as after it has lost the right to
    describe a topic.
    """

    def read(connection: sa.Connection) -> tuple[rows.MemberRow, rows.GroupRow]:
        row, _ = check_live(store, connection, me, lock=False)
        group = rows.read_group(connection, me.group_id)
        if row.protocol != rows.CLASSIC or group is None:
            raise UnknownMemberIdError(f"group {me.group_id!r}: {me.member_id} is not a classic member")
        return row, group

    row, group = store.read(read)
    told = row.epochs.told
    if row.member.generation != generation or not all(may_describe(each.topic) for each in told):
        raise IllegalGenerationError(
            f"group {me.group_id!r}: generation {generation} is over, the member is in {row.member.generation}"
        )
    return Membership(generation, group.assignor, told, complete=told == row.member.target)


def expect_rejoin(store: Store, group_id: str, member_id: str) -> None:
    """A heartbeat has told the member to join again: its session ends after its rebalance timeout, whatever its
    heartbeats say, as a broker removes members that have not joined again.
    """

    def is_expected(connection: sa.Connection) -> bool:
        row = rows.read_member(connection, group_id, member_id)
        return row is None or row.epochs.revoke_by_ms is not None

    def write(connection: sa.Connection, _attempt: Attempt) -> None:
        rows.read_group(connection, group_id, lock=True)
        now = store.clock(connection)
        row = rows.read_member(connection, group_id, member_id)
        if row is not None and row.live(now) and row.epochs.revoke_by_ms is None:
            epochs = replace(row.epochs, revoke_by_ms=now.lease_ms + row.epochs.rebalance_timeout_ms)
            until_ms = epochs.until_ms(now.lease_ms, row.session_timeout_ms)
            rows.save_member(
                connection, group_id, replace(row, epochs=epochs, until_ms=until_ms, clock_epoch=now.clock_epoch)
            )

    if not store.read(is_expected):
        store.transact(write)


def leave(store: Store, me: Identity) -> None:
    """Leave the group; by its instance id alone, if the member id is empty (KIP-345). UnknownMemberIdError."""
    row = store.read(lambda connection: _find(connection, me))
    if row is None or row.protocol != rows.CLASSIC:
        raise UnknownMemberIdError(f"group {me.group_id!r}: {me.member_id or me.instance_id} is not a classic member")
    me = replace(me, member_id=row.member_id)
    leave_consumer(store, ConsumerBeat(me, me.member_id, LEAVING, protocol=rows.CLASSIC), assignors())


def encode_assignment(partitions: Partitions) -> bytes:
    """The assignment as classic consumers decode it."""
    by_topic: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        by_topic.setdefault(topic, []).append(number)
    kind = ConsumerProtocolAssignment.TopicPartition
    assigned = [kind(topic=topic, partitions=numbers) for topic, numbers in by_topic.items()]
    found = ConsumerProtocolAssignment(version=0, assigned_partitions=assigned, user_data=b"")
    return found.encode()  # type: ignore[no-any-return]


def _find(connection: sa.Connection, me: Identity) -> rows.MemberRow | None:
    """The member's row; that of its instance id if the member id is empty. FencedInstanceIdError if another member
    has the instance id.
    """
    row = rows.read_member(connection, me.group_id, me.member_id) if me.member_id else None
    if me.instance_id is None:
        return row
    static = rows.find_instance(connection, me.group_id, me.instance_id)
    if me.member_id and static is not None and static.member_id != me.member_id:
        raise FencedInstanceIdError(
            f"group {me.group_id!r}: another member has joined with the group.instance.id {me.instance_id!r}"
        )
    return static if not me.member_id else row
