"""Members that speak the classic group protocol (JoinGroup, SyncGroup), on the rows that all groups have.

To every classic client the group's leader is another member: it never computes an assignment. The store's target is
what SyncGroup returns. So classic clients share a group with spark-log's consumers, and any gateway serves any member.

    eager          a member joins owning nothing; JoinGroup waits until the others have given its partitions up
    cooperative    a member joins with what it owns, and gets at once what is free; while something is missing, or is
                   to be given up, its heartbeats tell it to join again

All functions block; they raise the errors of `groups.member_operations`.
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
    UnknownMemberIdError,
)
from spark_log.groups import rows
from spark_log.groups.assignment import Assignor, known_assignors
from spark_log.groups.group_names import check_group_id, check_instance_id, check_session_timeout, new_member_id
from spark_log.groups.member_operations import (
    HeartbeatResponse,
    Identity,
    check_live,
    heartbeat_group,
    join_group,
    leave_group,
)
from spark_log.groups.rules import NO_PARTITIONS, HeartbeatRequest, Partitions
from spark_log.groups.stored_values import Subscription
from spark_log.groups.target_assignment import refresh_targets
from spark_log.ids import TopicPartition
from spark_log.metadata.store import Store

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
    subscription: Subscription
    owned: Partitions


@dataclass(frozen=True)
class Membership:
    """A member's state. `complete`: it has all of its target, and nothing else."""

    generation: int
    assignor: str
    partitions: Partitions
    complete: bool


def with_new_id(joining: Joining) -> Joining:
    """For a member without an id: a new one. A static member replaces the one that had its instance id."""
    return replace(joining, me=replace(joining.me, member_id=new_member_id(joining.me.client_id)))


def joining_of(
    store: Store,
    identity: Identity,
    protocol_type: str,
    protocols: Mapping[str, bytes],
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
    return Joining(identity, Subscription(legal, tuple((name, b"") for name in known)), frozenset(owned))


def join(store: Store, joining: Joining) -> Membership:
    """Become a member, or join again, and report what is owned."""
    me = joining.me
    row = store.read(lambda connection: rows.read_member(connection, me.group_id, me.member_id))
    if row is None:
        join_group(store, me, joining.subscription, rows.CLASSIC)
        return beat(store, replace(joining, owned=NO_PARTITIONS))
    return beat(store, joining)


def beat(store: Store, joining: Joining) -> Membership:
    """Report subscription and owned partitions. Computes the group's target if it is stale."""
    response = _heartbeat(store, joining)
    if response.due or response.group.stale:
        refresh_targets(store, joining.me.group_id, assignors())
        response = _heartbeat(store, joining)
    assignment = response.assignment
    return Membership(assignment.generation, response.assignor, assignment.partitions, assignment.complete)


def sync(store: Store, me: Identity, generation: int, may_describe: Callable[[str], bool]) -> Membership:
    """The member's assigned partitions. IllegalGenerationError if it has to join again, such as after it has lost the
    right to describe a topic.
    """

    def read(connection: sa.Connection) -> tuple[rows.MemberRow, Partitions]:
        row, _ = check_live(store, connection, me, lock=False)
        return row, rows.assigned_to(connection, me.group_id, me.member_id)

    row, assigned = store.read(read)
    known = replace(me, client_id=row.client_id, host=row.host, session_timeout_ms=row.session_timeout_ms)
    topics = frozenset(filter(may_describe, row.subscription.topics))
    found = beat(store, Joining(known, replace(row.subscription, topics=topics), assigned))
    if found.generation != generation:
        raise IllegalGenerationError(
            f"group {me.group_id!r}: generation {generation} is over, the group is in {found.generation}"
        )
    return found


def leave(store: Store, me: Identity) -> None:
    """Leave the group; by its instance id alone, if the member id is empty (KIP-345). UnknownMemberIdError."""
    row = store.read(lambda connection: _find(connection, me))
    if row is None or (me.member_id and row.epochs is not None):
        raise UnknownMemberIdError(f"group {me.group_id!r}: {me.member_id or me.instance_id} is not a classic member")
    if leave_group(store, replace(me, member_id=row.member_id)):
        refresh_targets(store, me.group_id, assignors())


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


def _heartbeat(store: Store, joining: Joining) -> HeartbeatResponse:
    me = joining.me
    row = store.read(lambda connection: rows.read_member(connection, me.group_id, me.member_id))
    if row is None or row.epochs is not None:
        raise UnknownMemberIdError(f"group {me.group_id!r}: {me.member_id} is not a member of the classic protocol")
    request = HeartbeatRequest(row.member.beat + 1, joining.subscription.topics, joining.owned)
    return heartbeat_group(store, me, joining.subscription, request)
