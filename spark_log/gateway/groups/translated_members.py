"""Translates requests of classic members (JoinGroup, SyncGroup) for groups of the consumer protocol.

No classic client is the leader of such a group or computes an assignment. SyncGroup returns the assignment of the
store, and the generation is the member's epoch. So classic clients share a group with other members, and any gateway
serves any member.

    eager          a member joins without partitions; JoinGroup waits until the others have revoked its new partitions;
                   a change of the store costs one read for all members that wait
    cooperative    a member joins with its partitions, and gets free ones at once; while some are missing, or have to
                   be revoked, the answers to its heartbeats make it join again

The functions raise the errors of `groups.consumer.service`.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import sqlalchemy as sa
from kafka.protocol.consumer import JoinGroupResponse, SyncGroupResponse
from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription

from spark_log import clock
from spark_log.cluster.names import is_legal
from spark_log.cluster.security.acl_rules import Operation, ResourceType
from spark_log.errors import (
    FencedInstanceIdError,
    InconsistentGroupProtocolError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from spark_log.gateway.api import Client
from spark_log.gateway.groups.member_requests import (
    BEATS_PER_SESSION,
    MEMBER_ID_REQUIRED,
    MEMBER_ID_REQUIRED_SINCE,
    identity,
    join_refused,
    rebalance_timeout_ms,
)
from spark_log.gateway.protocol.error_codes import NONE
from spark_log.gateway.protocol.request_limits import ELEMENTS_MAX, CostlyRequestError, check_cost
from spark_log.gateway.protocol.wire import Message
from spark_log.gateway.services import Services
from spark_log.groups.assignors import known_assignors
from spark_log.groups.committers import check_live
from spark_log.groups.consumer import rows
from spark_log.groups.consumer.heartbeat import ConsumerHeartbeat
from spark_log.groups.consumer.rules import JOINING, LEAVING, Partitions
from spark_log.groups.consumer.service import consumer_heartbeat, leave_consumer
from spark_log.groups.consumer_messages import PROTOCOL_TYPE, decode_subscription, encode_assignment
from spark_log.groups.group_names import check_group_id, check_instance_id, check_session_timeout, new_member_id
from spark_log.groups.heartbeat_batches import Heartbeat
from spark_log.groups.identity import Identity
from spark_log.metadata.store import Store

COOPERATIVE = "cooperative-sticky"
_MEMBER_ID_CHARACTERS_MAX = 249
_PAUSE_S_MIN, _PAUSE_S_MAX = 0.02, 0.25
"""The limits of the pause before a waiting member looks again. The pause grows while nothing changes for the member."""


async def join_group(services: Services, request: Message, client: Client) -> Message:
    """Join a group. An eager member waits for others to revoke its new partitions, up to the rebalance timeout."""
    timeout_ms = rebalance_timeout_ms(request)
    me = identity(request, client, request.session_timeout_ms)
    store = services.cluster.store
    await services.call(_check_request, store, me, request.protocol_type, request.protocols)
    new_id = new_member_id(me.client_id)
    if not me.member_id and request.version >= MEMBER_ID_REQUIRED_SINCE and me.instance_id is None:
        return join_refused(new_id, MEMBER_ID_REQUIRED)
    protocols = tuple((each.name, bytes(each.metadata)) for each in request.protocols)
    joining = await services.call(_joining_of, me, protocols, timeout_ms, _may_describe(client))
    if not me.member_id:  # a static member replaces the previous member with its instance id
        joining = replace(joining, me=replace(me, member_id=new_id), replaces=True)
    deadline_s = clock.monotonic_s() + timeout_ms / 1000
    seen = await services.call(services.changes.current)
    joined = await services.call(join, store, joining)
    pause_s = _PAUSE_S_MIN
    while not (joined.complete or joining.cooperative) and clock.monotonic_s() < deadline_s:
        left_s = min(deadline_s - clock.monotonic_s(), me.session_timeout_ms / 1000 / BEATS_PER_SESSION)
        pause_s = min(pause_s, left_s)
        await asyncio.sleep(pause_s)
        await services.changes.wait(seen, left_s - pause_s)
        seen = await services.call(services.changes.current)
        changed = (await services.heartbeats.answer(_waiting(joining.me, joined.generation))).alone
        if changed:
            joined = await services.call(_join_again, store, joining)
        pause_s = _PAUSE_S_MIN if changed else min(2 * pause_s, _PAUSE_S_MAX)
    return JoinGroupResponse(
        throttle_time_ms=0, error_code=NONE, generation_id=joined.generation, protocol_type=PROTOCOL_TYPE,
        protocol_name=joined.protocol, leader="", member_id=joining.me.member_id, members=[],
    )  # fmt: skip


def _waiting(me: Identity, generation: int) -> Heartbeat:
    return Heartbeat(me.group_id, me.member_id, me.instance_id, generation, me.member_id, rows.CLASSIC, waits=True)


async def sync_group(services: Services, request: Message, client: Client) -> Message:
    """Return the member's assignment. Raises RebalanceInProgressError if the member has to join again."""
    me = identity(request, client)
    synced = await services.call(_sync, services.cluster.store, me, request.generation_id, _may_describe(client))
    return SyncGroupResponse(
        throttle_time_ms=0,
        error_code=NONE,
        protocol_type=PROTOCOL_TYPE,
        protocol_name=synced.protocol,
        assignment=encode_assignment(synced.partitions),
    )


async def heartbeat(services: Services, request: Message) -> bool:
    """Record that the member must join again, and return True: a heartbeat comes here only after a change."""
    await services.call(_expect_rejoin, services.cluster.store, request.group_id, request.member_id)
    return True


def leave_group(store: Store, me: Identity) -> None:
    """Leave the group, by instance id if the member id is empty (KIP-345). Blocks. Raises UnknownMemberIdError."""
    row = store.read(lambda connection: _find(connection, me))
    if row is None or row.protocol != rows.CLASSIC:
        raise UnknownMemberIdError(f"group {me.group_id!r}: {me.member_id or me.instance_id} is not a classic member")
    me = replace(me, member_id=row.member_id)
    leave_consumer(store, ConsumerHeartbeat(me, me.member_id, LEAVING, protocol=rows.CLASSIC), known_assignors())


def _may_describe(client: Client) -> Callable[[str], bool]:
    return partial(client.access.allows, Operation.DESCRIBE, ResourceType.TOPIC)


@dataclass(frozen=True)
class Joining:
    """The facts of a JoinGroup request. `owned` are the partitions that the member has and keeps."""

    me: Identity
    topics: frozenset[str]
    protocols: tuple[tuple[str, bytes], ...]
    owned: Partitions
    rebalance_timeout_ms: int
    replaces: bool = False

    @property
    def cooperative(self) -> bool:
        """Whether the client joins with the partitions that it owns."""
        return self.protocols[0][0] == COOPERATIVE


@dataclass(frozen=True)
class Membership:
    """A member's state. `protocol` is its first choice. `complete` means that it has exactly its target assignment."""

    generation: int
    protocol: str
    partitions: Partitions
    complete: bool


def _check_request(store: Store, me: Identity, protocol_type: str, protocols: Sequence[Message]) -> None:
    """Check a JoinGroup request, but not its metadata. Raises InconsistentGroupProtocolError if the member is no
    consumer.
    """
    check_group_id(me.group_id)
    check_instance_id(me.instance_id)
    check_session_timeout(me.session_timeout_ms, store.settings)
    if len(me.member_id) > _MEMBER_ID_CHARACTERS_MAX:
        raise UnknownMemberIdError("a member id that no gateway has made")
    if protocol_type != PROTOCOL_TYPE or not protocols:
        raise _cannot_join(me.group_id, protocol_type, [each.name for each in protocols])


def _cannot_join(group_id: str, protocol_type: str, names: Sequence[str]) -> InconsistentGroupProtocolError:
    return InconsistentGroupProtocolError(
        f"group {group_id!r} is of consumers; a member of type {protocol_type!r} with {', '.join(names)} cannot join"
    )


def _joining_of(
    me: Identity,
    protocols: tuple[tuple[str, bytes], ...],
    rebalance_timeout_ms: int,
    may_describe: Callable[[str], bool],
) -> Joining:
    """Decode the metadata of a JoinGroup request. `protocols` are names and metadata in order of preference. Topics
    that the client may not describe are left out, as if they did not exist.

    Raises InconsistentGroupProtocolError for metadata that is not of a consumer, or has too many elements.
    """
    left = ELEMENTS_MAX
    try:
        for _, metadata in protocols:
            version = min(int.from_bytes(metadata[:2], "big", signed=True), ConsumerProtocolSubscription.max_version)
            left -= check_cost(ConsumerProtocolSubscription, version, memoryview(metadata)[2:], left)
        messages = [decode_subscription(metadata) for _, metadata in protocols]
    except CostlyRequestError:
        messages = [None]
    if None in messages:
        raise _cannot_join(me.group_id, PROTOCOL_TYPE, [name for name, _ in protocols])
    topics = {topic for message in messages if message is not None for topic in message.topics}
    owned = {partition for message in messages if message is not None for partition in message.owned}
    legal = frozenset(name for name in topics if is_legal(name) and may_describe(name))
    return Joining(me, legal, protocols, frozenset(owned), rebalance_timeout_ms)


def join(store: Store, joining: Joining) -> Membership:
    """Join the group (again), and report owned partitions. Raises RebalanceInProgressError if that must be repeated."""
    me = joining.me
    row = store.read(lambda connection: rows.read_member(connection, me.group_id, me.member_id))
    if row is None:
        consumer_heartbeat(store, _heartbeat_of(joining, JOINING), known_assignors())
    return _join_again(store, joining)


def _join_again(store: Store, joining: Joining) -> Membership:
    """Join again as a member. Raises RebalanceInProgressError, UnknownMemberIdError and FencedInstanceIdError."""
    me, request = joining.me, _heartbeat_of(joining, None)
    answer = consumer_heartbeat(store, request, known_assignors())
    if not answer.complete:  # the first call decides what to give up, the second one releases what is not owned
        answer = consumer_heartbeat(store, request, known_assignors())
    if answer.repeat or answer.partitions is None:
        raise RebalanceInProgressError(f"group {me.group_id!r}: the assignment is being computed")
    return Membership(answer.epoch, joining.protocols[0][0], answer.partitions, answer.complete)


def _heartbeat_of(joining: Joining, epoch: int | None) -> ConsumerHeartbeat:
    me = joining.me
    return ConsumerHeartbeat(
        me, me.member_id, epoch, rebalance_timeout_ms=joining.rebalance_timeout_ms, names=joining.topics,
        owned=joining.owned, replaces=joining.replaces, protocol=rows.CLASSIC, protocols=joining.protocols,
    )  # fmt: skip


def _sync(store: Store, me: Identity, generation: int, may_describe: Callable[[str], bool]) -> Membership:
    """Return the member's assignment. Raises RebalanceInProgressError if it has to join again, for example after it has
    lost the right to describe a topic.
    """
    row, _ = store.read(lambda connection: check_live(store, connection, me))
    if row.protocol != rows.CLASSIC:
        raise UnknownMemberIdError(f"group {me.group_id!r}: {me.member_id} is not a classic member")
    current = row.epochs.current
    if row.member.generation != generation or not all(may_describe(each.topic) for each in current):
        raise RebalanceInProgressError(
            f"group {me.group_id!r}: generation {generation} is over, the member is in {row.member.generation}"
        )
    return Membership(generation, row.protocols[0][0], current, complete=current == row.member.target)


def _expect_rejoin(store: Store, group_id: str, member_id: str) -> None:
    """Record that the member has to join again. As in a broker, its session ends after its rebalance timeout if it has
    not joined again, even if it sends heartbeats.
    """

    def is_expected(connection: sa.Connection) -> bool:
        row = rows.read_member(connection, group_id, member_id)
        return row is None or row.epochs.revoke_by_ms is not None

    def write(connection: sa.Connection) -> None:
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


def _find(connection: sa.Connection, me: Identity) -> rows.MemberRow | None:
    """Return the member's row, by its instance id if the member id is empty, or None. Raises FencedInstanceIdError if
    another member has the instance id.
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
