"""Requests of members of opaque groups: Kafka Connect, Kafka Streams, consumers with an assignor of their own.

The store has the group's state, so each request may reach another gateway. A request that waits (JoinGroup for the
other members, SyncGroup for the leader) wakes when the store changes or a time of the group is over; meanwhile its
gateway keeps the member's session alive.
"""

from collections.abc import Callable
from typing import TypeVar

from kafka.protocol.consumer import JoinGroupResponse, SyncGroupResponse

from spark_log.errors import SparkLogError
from spark_log.failpoints import failpoint
from spark_log.gateway import classic_groups
from spark_log.gateway.api import Client
from spark_log.gateway.error_codes import NONE, error_code
from spark_log.gateway.services import Services
from spark_log.gateway.wire import Message
from spark_log.groups.group_names import check_group_id, check_instance_id, check_session_timeout, new_member_id
from spark_log.groups.opaque import rules
from spark_log.groups.opaque.opaque_operations import Seen, change, has_opaque_members, join_opaque
from spark_log.groups.opaque.rules import Joining, OpaqueGroup, State

T = TypeVar("T")

_MEMBER_ID_REQUIRED = 79
_MEMBER_ID_REQUIRED_SINCE, _SKIPS_ASSIGNMENT_SINCE = 4, 9
"""Versions of JoinGroup: KIP-394, KIP-814."""
_BEATS_PER_SESSION = 3
_WAIT_S_MIN = 0.01


async def is_opaque(services: Services, request: Message) -> bool:
    """Whether a member that joins belongs to an opaque group: no assignor is the server's, or the others are opaque."""
    known = classic_groups.assignors()
    if request.protocol_type != classic_groups.PROTOCOL_TYPE or not any(p.name in known for p in request.protocols):
        return True
    return await services.call(has_opaque_members, services.cluster.store, request.group_id)


async def join_group(services: Services, request: Message, client: Client) -> Message:
    """Waits for the other members, up to the rebalance timeout. The leader gets the metadata of all members."""
    joining = _joining(request, client)
    store, group_id = services.cluster.store, request.group_id
    member_id = joining.member_id or joining.new_id
    instance_id = joining.instance_id

    def begin() -> Seen:
        check_group_id(group_id)
        check_instance_id(instance_id)
        check_session_timeout(joining.session_timeout_ms, store.settings)
        return join_opaque(store, group_id, joining)

    def wait(group: OpaqueGroup, now_ms: int) -> OpaqueGroup:
        return _touched(group, member_id, instance_id, now_ms)

    try:
        if joining.id_required:
            await services.call(begin)
            return _refused(member_id, _MEMBER_ID_REQUIRED)
        found, answer = await _wait_for(
            services, begin, lambda: change(store, group_id, wait),
            lambda group: rules.join_answer(group, member_id, instance_id), joining.session_timeout_ms,
        )  # fmt: skip
    except SparkLogError as error:
        return _refused(request.member_id, error_code(error))
    skipped = answer.skip_assignment and request.version < _SKIPS_ASSIGNMENT_SINCE
    kind = JoinGroupResponse.JoinGroupResponseMember
    return JoinGroupResponse(
        throttle_time_ms=0,
        error_code=NONE,
        generation_id=answer.generation,
        protocol_type=found.protocol_type,
        protocol_name=answer.protocol,
        leader="" if skipped else answer.leader,
        skip_assignment=answer.skip_assignment,
        member_id=member_id,
        members=[] if skipped else [
            kind(member_id=each, group_instance_id=instance, metadata=metadata)
            for each, instance, metadata in answer.members
        ],
    )  # fmt: skip


async def sync_group(services: Services, request: Message) -> Message:
    """The member's assignment, as soon as the leader has sent it."""
    store, group_id, member_id = services.cluster.store, request.group_id, request.member_id
    instance_id = getattr(request, "group_instance_id", None)
    given = {each.member_id: bytes(each.assignment) for each in request.assignments}

    def sync(group: OpaqueGroup, now_ms: int) -> OpaqueGroup:
        after = rules.sync(group, member_id, instance_id, request.generation_id, given, now_ms)
        rules.check_protocol(group, getattr(request, "protocol_type", None), getattr(request, "protocol_name", None))
        return after

    def step() -> Seen:
        found = change(store, group_id, sync)
        failpoint("gateway.group-synced")
        return found

    def answer(group: OpaqueGroup) -> bytes | None:
        return rules.sync_answer(group, member_id)

    try:
        found, assignment = await _wait_for(services, step, step, answer, store.settings.group_min_session_timeout_ms)
    except SparkLogError as error:
        return SyncGroupResponse(throttle_time_ms=0, error_code=error_code(error), assignment=b"")
    return SyncGroupResponse(
        throttle_time_ms=0,
        error_code=NONE,
        protocol_type=found.protocol_type,
        protocol_name=found.protocol,
        assignment=assignment,
    )


async def heartbeat(services: Services, request: Message) -> bool:
    """Keep the session alive. True: the member must join again. The errors of `rules.heartbeat`."""
    instance_id = getattr(request, "group_instance_id", None)

    def beat(group: OpaqueGroup, now_ms: int) -> OpaqueGroup:
        return rules.heartbeat(group, request.member_id, instance_id, request.generation_id, now_ms)

    found = await services.call(change, services.cluster.store, request.group_id, beat)
    return found.group.state is State.PREPARING


def leave_group(services: Services, group_id: str, member_id: str, instance_id: str | None) -> None:
    """The errors of `rules.leave`. Blocks."""

    def leave(group: OpaqueGroup, now_ms: int) -> OpaqueGroup:
        return rules.leave(group, member_id, instance_id, now_ms)

    change(services.cluster.store, group_id, leave)


def _joining(request: Message, client: Client) -> Joining:
    instance_id = getattr(request, "group_instance_id", None)
    has_rebalance_timeout = request.version >= 1
    return Joining(
        member_id=request.member_id,
        new_id=new_member_id(instance_id or client.client_id),
        instance_id=instance_id,
        client_id=client.client_id,
        host=client.host,
        protocol_type=request.protocol_type,
        protocols=tuple((each.name, bytes(each.metadata)) for each in request.protocols),
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=max(
            request.rebalance_timeout_ms if has_rebalance_timeout else request.session_timeout_ms, 0
        ),
        id_required=request.version >= _MEMBER_ID_REQUIRED_SINCE and instance_id is None and not request.member_id,
    )


def _touched(group: OpaqueGroup, member_id: str, instance_id: str | None, now_ms: int) -> OpaqueGroup:
    member = rules.member_of(group, member_id, instance_id)
    return rules.replace_member(group, rules.touched(member, now_ms))


def _refused(member_id: str, code: int) -> Message:
    return JoinGroupResponse(
        throttle_time_ms=0, error_code=code, generation_id=-1, protocol_type=None, protocol_name="", leader="",
        member_id=member_id, members=[],
    )  # fmt: skip


async def _wait_for(
    services: Services, begin: Callable[[], Seen], again: Callable[[], Seen],
    answer: Callable[[OpaqueGroup], T | None], session_timeout_ms: int,
) -> tuple[OpaqueGroup, T]:  # fmt: skip
    """The group and the answer, as soon as there is one."""
    seen = await services.call(services.changes.current)
    found = await services.call(begin)
    beat_s = session_timeout_ms / 1000 / _BEATS_PER_SESSION
    while (said := answer(found.group)) is None:
        left_s = beat_s if found.wait_ms is None else min(found.wait_ms / 1000, beat_s)
        await services.changes.wait(seen, max(left_s, _WAIT_S_MIN))
        seen = await services.call(services.changes.current)
        found = await services.call(again)
    return found.group, said
