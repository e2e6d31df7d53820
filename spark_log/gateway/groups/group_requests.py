"""Consumer groups by the classic protocol: joining, assignments, heartbeats, leaving."""

from collections.abc import Callable
from functools import partial

from kafka.protocol.consumer import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

from spark_log import clock
from spark_log.cluster.security.acl_rules import Operation, ResourceType
from spark_log.config.values import can_be_stored
from spark_log.errors import IllegalGenerationError, InconsistentGroupProtocolError, SparkLogError, UnknownMemberIdError
from spark_log.gateway.access.rights import on_group
from spark_log.gateway.api import Api, Client
from spark_log.gateway.groups import classic_group_requests, translated_members
from spark_log.gateway.groups.translated_members import Membership
from spark_log.gateway.limits.bulkheads import Lane
from spark_log.gateway.protocol.error_codes import NONE, error_code
from spark_log.gateway.protocol.request_limits import TINY, TRANSACTIONS
from spark_log.gateway.protocol.stored_names import with_storable_names
from spark_log.gateway.protocol.wire import Message
from spark_log.gateway.services import Services
from spark_log.groups.consumer.rows import CLASSIC
from spark_log.groups.consumer_messages import PROTOCOL_TYPE, encode_assignment
from spark_log.groups.conversion import read_type, type_to_join
from spark_log.groups.heartbeat_batches import Beat
from spark_log.groups.identity import Identity
from spark_log.metadata.store import Store

_REBALANCE_IN_PROGRESS = 27
_MEMBER_ID_REQUIRED = 79
_BEATS_PER_SESSION = 3
_NOT_OF_THIS_TYPE = frozenset({error_code(UnknownMemberIdError()), error_code(InconsistentGroupProtocolError())})
"""Errors of a request that found no member, or other members, because the group has changed its type meanwhile."""


def identity(request: Message, client: Client, session_timeout_ms: int = 0) -> Identity:
    """The member that a request names."""
    instance_id = getattr(request, "group_instance_id", None)
    return Identity(request.group_id, request.member_id, instance_id, client.client_id, client.host, session_timeout_ms)


async def join_group(services: Services, request: Message, client: Client) -> Message:
    """A group with members of the consumer protocol gets a translated one; any other is a classic group."""
    try:
        kind = await services.call(type_to_join, services.cluster.store, request.group_id)
    except SparkLogError as error:
        return _joined(request.member_id, error_code(error))
    if kind == CLASSIC:
        joined = await classic_group_requests.join_group(services, request, client)
    else:
        joined = await _join_translated(services, request, client)
    if joined.error_code in _NOT_OF_THIS_TYPE and await _has_changed(services, type_to_join, request.group_id, kind):
        return _joined(request.member_id, _REBALANCE_IN_PROGRESS)
    return joined


async def _has_changed(
    services: Services, read: Callable[[Store, str], str | None], group_id: str, kind: str | None
) -> bool:
    """Whether `read` gives another type than the one that a request was answered for: its client comes again."""
    try:
        return bool(await services.call(read, services.cluster.store, group_id) != kind)
    except SparkLogError:
        return False


async def _join_translated(services: Services, request: Message, client: Client) -> Message:
    """Waits up to the rebalance timeout until the other members have given up the partitions of this one."""
    timeout_ms = request.rebalance_timeout_ms if request.version >= 1 else request.session_timeout_ms
    me = identity(request, client, request.session_timeout_ms)
    store = services.cluster.store
    protocols = tuple((each.name, bytes(each.metadata)) for each in request.protocols)
    try:
        joining = await services.call(
            translated_members.joining_of, store, me, request.protocol_type, protocols, max(0, timeout_ms),
            _may_describe(client),
        )  # fmt: skip
        if not me.member_id:
            joining = translated_members.with_new_id(joining)
            if request.version >= 4 and me.instance_id is None:
                return _joined(joining.me.member_id, _MEMBER_ID_REQUIRED)
        deadline_s = clock.monotonic_s() + timeout_ms / 1000
        seen = await services.call(services.changes.current)
        joined = await services.call(translated_members.join, store, joining)
        while not (joined.complete or joining.cooperative) and clock.monotonic_s() < deadline_s:
            left_s = min(deadline_s - clock.monotonic_s(), me.session_timeout_ms / 1000 / _BEATS_PER_SESSION)
            await services.changes.wait(seen, left_s)
            seen = await services.call(services.changes.current)
            joined = await services.call(translated_members.join_again, store, joining)
    except SparkLogError as error:
        return _joined(me.member_id, error_code(error))
    return _joined(joining.me.member_id, NONE, joined)


def _may_describe(client: Client) -> Callable[[str], bool]:
    return partial(client.access.allows, Operation.DESCRIBE, ResourceType.TOPIC)


def _joined(member_id: str, code: int, joined: Membership | None = None) -> Message:
    return JoinGroupResponse(
        throttle_time_ms=0,
        error_code=code,
        generation_id=-1 if joined is None else joined.generation,
        protocol_type=None if joined is None else PROTOCOL_TYPE,
        protocol_name="" if joined is None else joined.protocol,
        leader="",
        member_id=member_id,
        members=[],
    )


async def sync_group(services: Services, request: Message, client: Client) -> Message:
    """The member's assignment."""
    me = identity(request, client)
    store = services.cluster.store
    try:
        kind = await services.call(read_type, store, me.group_id)
        if kind == CLASSIC:
            answer = await classic_group_requests.sync_group(services, request)
            if answer.error_code in _NOT_OF_THIS_TYPE and await _has_changed(services, read_type, me.group_id, kind):
                answer.error_code = _REBALANCE_IN_PROGRESS
            return answer
        synced = await services.call(translated_members.sync, store, me, request.generation_id, _may_describe(client))
    except IllegalGenerationError:
        return SyncGroupResponse(throttle_time_ms=0, error_code=_REBALANCE_IN_PROGRESS, assignment=b"")
    except SparkLogError as error:
        return SyncGroupResponse(throttle_time_ms=0, error_code=error_code(error), assignment=b"")
    return SyncGroupResponse(
        throttle_time_ms=0,
        error_code=NONE,
        protocol_type=PROTOCOL_TYPE,
        protocol_name=synced.protocol,
        assignment=encode_assignment(synced.partitions),
    )


async def heartbeat(services: Services, request: Message, client: Client) -> Message:
    """Keeps the session alive; REBALANCE_IN_PROGRESS tells the member to join again."""
    group_id, member_id, instance_id = request.group_id, request.member_id, getattr(request, "group_instance_id", None)
    beat = Beat(group_id, member_id, instance_id, request.generation_id, member_id, CLASSIC)
    store = services.cluster.store
    try:
        answer = await services.heartbeats.answer(beat)
        rejoin = answer.rejoin
        if answer.alone and await services.call(read_type, store, group_id) == CLASSIC:
            rejoin = await classic_group_requests.heartbeat(services, request)
        elif answer.alone:
            rejoin = True
            await services.call(translated_members.expect_rejoin, store, group_id, member_id)
    except SparkLogError as error:
        return HeartbeatResponse(throttle_time_ms=0, error_code=error_code(error))
    return HeartbeatResponse(throttle_time_ms=0, error_code=_REBALANCE_IN_PROGRESS if rejoin else NONE)


async def leave_group(services: Services, request: Message, client: Client) -> Message:
    """One member leaves, or from v3 on several."""
    kind = LeaveGroupResponse.MemberResponse
    if request.version < 3:
        code = await services.call(_leave, services, identity(request, client))
        return LeaveGroupResponse(throttle_time_ms=0, error_code=code)
    members = []
    for each in request.members:
        me = Identity(request.group_id, each.member_id, each.group_instance_id, client.client_id, client.host)
        code = await services.call(_leave, services, me)
        members.append(kind(member_id=each.member_id, group_instance_id=each.group_instance_id, error_code=code))
    return LeaveGroupResponse(throttle_time_ms=0, error_code=NONE, members=members)


def _leave(services: Services, me: Identity) -> int:
    try:
        if not all(map(can_be_stored, (me.member_id, me.instance_id or ""))):
            raise UnknownMemberIdError("names with characters that cannot be stored")
        if read_type(services.cluster.store, me.group_id) == CLASSIC:
            classic_group_requests.leave_group(services, me.group_id, me.member_id, me.instance_id)
        else:
            translated_members.leave(services.cluster.store, me)
    except SparkLogError as error:
        return error_code(error)
    return NONE


APIS = (
    Api(
        JoinGroupRequest,
        with_storable_names(JoinGroupRequest, join_group),
        advertised=(0, 9),
        rights=(on_group(Operation.READ),),
        lane=Lane.GROUP,
    ),
    Api(
        SyncGroupRequest,
        with_storable_names(SyncGroupRequest, sync_group),
        advertised=(0, 5),
        rights=(on_group(Operation.READ),),
        lane=Lane.GROUP,
    ),
    Api(
        HeartbeatRequest,
        with_storable_names(HeartbeatRequest, heartbeat),
        advertised=(0, 4),
        rights=(on_group(Operation.READ),),
        limits=TINY,
        lane=Lane.GROUP,
    ),
    Api(
        LeaveGroupRequest,
        with_storable_names(LeaveGroupRequest, leave_group),
        advertised=(0, 5),
        rights=(on_group(Operation.READ),),
        limits=TRANSACTIONS,
        lane=Lane.GROUP,
    ),
)
