"""Handles requests of the classic group protocol: JoinGroup, SyncGroup, Heartbeat and LeaveGroup."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol, TypeVar

from kafka.protocol.consumer import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

from spark_log.cluster.security.acl_rules import Operation
from spark_log.config.values import can_be_stored
from spark_log.errors import (
    InconsistentGroupProtocolError,
    RebalanceInProgressError,
    SparkLogError,
    UnknownMemberIdError,
)
from spark_log.gateway.access.rights import on_group
from spark_log.gateway.api import Api, Client
from spark_log.gateway.groups import classic_group_requests, translated_members
from spark_log.gateway.groups.member_requests import identity, join_refused
from spark_log.gateway.limits.bulkheads import Lane
from spark_log.gateway.protocol.error_codes import NONE, coordinator_code, error_code
from spark_log.gateway.protocol.request_limits import TINY, TRANSACTIONS
from spark_log.gateway.protocol.stored_names import with_storable_names
from spark_log.gateway.protocol.wire import Message
from spark_log.gateway.services import Services
from spark_log.groups.consumer.rows import CLASSIC, CONSUMER
from spark_log.groups.conversion import read_type, type_to_join
from spark_log.groups.heartbeat_batches import Heartbeat
from spark_log.groups.identity import Identity
from spark_log.metadata.store import Store

T = TypeVar("T")

_REBALANCE_IN_PROGRESS = 27


class GroupEngine(Protocol):
    """Answers classic clients for the groups of one type. Each function raises the errors of its implementation."""

    async def join_group(self, services: Services, request: Message, client: Client) -> Message: ...

    async def sync_group(self, services: Services, request: Message, client: Client) -> Message: ...

    async def heartbeat(self, services: Services, request: Message) -> bool:
        """Handle a heartbeat that `Heartbeats` does not answer. Return whether the member must join again."""

    def leave_group(self, store: Store, me: Identity) -> None:
        """Leave the group. The call blocks."""


_ENGINES: Mapping[str, GroupEngine] = {CLASSIC: classic_group_requests, CONSUMER: translated_members}


async def _ask(
    services: Services,
    group_id: str,
    read: Callable[[Store, str], str | None],
    ask: Callable[[GroupEngine], Awaitable[T]],
) -> T:
    """Call `ask` with the engine of the group's type, which `read` returns.

    Raises RebalanceInProgressError if the engine did not find the member, or found a group of another protocol, because
    the type has changed meanwhile. Then the client joins again.
    """
    store = services.cluster.store
    kind = await services.call(read, store, group_id)
    try:
        return await ask(_ENGINES[kind or CONSUMER])
    except (UnknownMemberIdError, InconsistentGroupProtocolError):
        if await services.call(read, store, group_id) == kind:
            raise
        raise RebalanceInProgressError(f"group {group_id!r} has changed its type") from None


async def join_group(services: Services, request: Message, client: Client) -> Message:
    """Join a group. If it has members of the consumer protocol, this member is translated; otherwise it is classic."""
    try:
        return await _ask(
            services, request.group_id, type_to_join, lambda engine: engine.join_group(services, request, client)
        )
    except SparkLogError as error:
        return join_refused(request.member_id, coordinator_code(error))


async def sync_group(services: Services, request: Message, client: Client) -> Message:
    """Return the member's assignment."""
    try:
        return await _ask(
            services, request.group_id, read_type, lambda engine: engine.sync_group(services, request, client)
        )
    except SparkLogError as error:
        return SyncGroupResponse(throttle_time_ms=0, error_code=coordinator_code(error), assignment=b"")


async def heartbeat(services: Services, request: Message, client: Client) -> Message:
    """Keep the session alive. The error REBALANCE_IN_PROGRESS makes the member join again."""
    group_id, member_id, instance_id = request.group_id, request.member_id, getattr(request, "group_instance_id", None)
    keep_alive = Heartbeat(group_id, member_id, instance_id, request.generation_id, member_id, CLASSIC)
    try:
        answer = await services.heartbeats.answer(keep_alive)
        rejoin = answer.rejoin
        if answer.alone:
            rejoin = await _ask(services, group_id, read_type, lambda engine: engine.heartbeat(services, request))
    except SparkLogError as error:
        return HeartbeatResponse(throttle_time_ms=0, error_code=coordinator_code(error))
    return HeartbeatResponse(throttle_time_ms=0, error_code=_REBALANCE_IN_PROGRESS if rejoin else NONE)


async def leave_group(services: Services, request: Message, client: Client) -> Message:
    """Remove one member from the group; LeaveGroup from version 3 on may name several."""
    kind = LeaveGroupResponse.MemberResponse
    if request.version < 3:
        return LeaveGroupResponse(throttle_time_ms=0, error_code=await _leave(services, identity(request, client)))
    members = []
    for each in request.members:
        me = Identity(request.group_id, each.member_id, each.group_instance_id, client.client_id, client.host)
        code = await _leave(services, me)
        members.append(kind(member_id=each.member_id, group_instance_id=each.group_instance_id, error_code=code))
    return LeaveGroupResponse(throttle_time_ms=0, error_code=NONE, members=members)


async def _leave(services: Services, me: Identity) -> int:
    if not all(map(can_be_stored, (me.member_id, me.instance_id or ""))):
        return error_code(UnknownMemberIdError())
    try:
        await _ask(
            services, me.group_id, read_type,
            lambda engine: services.call(engine.leave_group, services.cluster.store, me),
        )  # fmt: skip
    except SparkLogError as error:
        return coordinator_code(error)
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
