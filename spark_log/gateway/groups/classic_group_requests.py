"""Handles requests of members of classic groups: Kafka Connect, Kafka Streams, and consumers with their own assignor.

The store has the group's state, so each request may reach another gateway. JoinGroup waits for the other members, and
SyncGroup for the leader. A waiting request wakes when its group changes or a timeout of the group ends. Meanwhile its
gateway keeps the member's session alive, and holds neither the member's metadata nor the group in memory.
"""

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from kafka.protocol.consumer import JoinGroupResponse, SyncGroupResponse

from spark_log.errors import GroupAssignmentTooLargeError
from spark_log.failpoints import failpoint
from spark_log.gateway.api import Client
from spark_log.gateway.groups.classic_waits import WaitingMember
from spark_log.gateway.groups.member_requests import (
    BEATS_PER_SESSION,
    MEMBER_ID_REQUIRED,
    MEMBER_ID_REQUIRED_SINCE,
    join_refused,
    rebalance_timeout_ms,
)
from spark_log.gateway.limits.bulkheads import request_context
from spark_log.gateway.protocol.error_codes import NONE
from spark_log.gateway.protocol.wire import Message
from spark_log.gateway.services import Services
from spark_log.groups.classic import rules
from spark_log.groups.classic.group import ClassicGroup, JoinAnswer, Joining, State
from spark_log.groups.classic.limits import check_assignment
from spark_log.groups.classic.service import Seen, change, change_own, join_classic
from spark_log.groups.group_names import check_group_id, check_instance_id, check_session_timeout, new_member_id
from spark_log.groups.identity import Identity
from spark_log.metadata.store import Store

T = TypeVar("T")

_SKIPS_ASSIGNMENT_SINCE = 9
"""The first version of JoinGroup with skip_assignment (KIP-814)."""


class _Progress(NamedTuple, Generic[T]):
    """`answer` is None while the request has to wait. The other fields describe the group when it was last read. After
    `wait_ms` it changes without a request. `change` is the number of the store's last change before the read.
    """

    answer: T | None
    state: State
    generation: int
    protocol_type: str
    protocol: str
    wait_ms: int | None
    change: int


async def join_group(services: Services, request: Message, client: Client) -> Message:
    """Join a group, and wait for the other members up to the rebalance timeout. The leader gets the metadata of all
    members. Raises GroupMaxSizeReachedError if the group has no room for the member.
    """
    joining = _joining(request, client)
    store, changes, group_id = services.cluster.store, services.changes, request.group_id
    member_id = joining.member_id or joining.new_id
    instance_id, session_timeout_ms = joining.instance_id, joining.session_timeout_ms
    id_required = joining.id_required

    def answer(group: ClassicGroup) -> JoinAnswer | None:
        return rules.join_answer(group, member_id, instance_id)

    def wait(group: ClassicGroup, now_ms: int) -> ClassicGroup:
        return rules.with_session_renewed(group, member_id, instance_id, now_ms)

    def again() -> _Progress[JoinAnswer]:
        before = changes.current()
        seen = change_own(store, group_id, member_id, wait)
        if rules.leads(seen.group, member_id):
            seen = change(store, group_id, wait)  # the leader gets all members
        return _progress(before, seen, answer)

    progress = await services.call(_begin_join, services, group_id, joining, None if id_required else answer)
    if id_required:
        return join_refused(member_id, MEMBER_ID_REQUIRED)
    # the store has the metadata: a request that waits, for minutes perhaps, holds no copy of them
    del joining
    request.protocols = []
    _give_frame_back()
    facts, answered = await _wait_for(services, group_id, member_id, progress, again, session_timeout_ms)
    skipped = answered.skip_assignment and request.version < _SKIPS_ASSIGNMENT_SINCE
    kind = JoinGroupResponse.JoinGroupResponseMember
    return JoinGroupResponse(
        throttle_time_ms=0,
        error_code=NONE,
        generation_id=answered.generation,
        protocol_type=facts.protocol_type,
        protocol_name=answered.protocol,
        leader="" if skipped else answered.leader,
        skip_assignment=answered.skip_assignment,
        member_id=member_id,
        members=[] if skipped else [
            kind(member_id=each, group_instance_id=instance, metadata=metadata)
            for each, instance, metadata in answered.members
        ],
    )  # fmt: skip


def _begin_join(
    services: Services, group_id: str, joining: Joining, answer: Callable[[ClassicGroup], JoinAnswer | None] | None
) -> _Progress[JoinAnswer]:
    store = services.cluster.store
    check_group_id(group_id)
    check_instance_id(joining.instance_id)
    check_session_timeout(joining.session_timeout_ms, store.settings)
    before = services.changes.current()
    return _progress(before, join_classic(store, group_id, joining), answer or (lambda _: None))


async def sync_group(services: Services, request: Message, _client: Client) -> Message:
    """Return the member's assignment as soon as the leader has sent it. If the assignments are too large, begin another
    rebalance and raise GroupAssignmentTooLargeError.
    """
    store, group_id, member_id = services.cluster.store, request.group_id, request.member_id
    instance_id, generation = getattr(request, "group_instance_id", None), request.generation_id

    def answer(group: ClassicGroup) -> bytes | None:
        return rules.sync_answer(group, member_id)

    def wait(group: ClassicGroup, now_ms: int) -> ClassicGroup:
        return rules.wait_for_assignment(group, member_id, instance_id, generation, now_ms)

    def again() -> _Progress[bytes]:
        before = services.changes.current()
        return _progress(before, change_own(store, group_id, member_id, wait), answer)

    def begin_again(group: ClassicGroup, now_ms: int) -> ClassicGroup:
        return rules.begin_again(group, generation, now_ms)

    try:
        progress = await services.call(_begin_sync, services, request, answer)
        request.assignments = []
        _give_frame_back()
        session_ms = store.settings.group_min_session_timeout_ms
        facts, assignment = await _wait_for(services, group_id, member_id, progress, again, session_ms)
    except GroupAssignmentTooLargeError:
        await services.call(change, store, group_id, begin_again)
        raise
    return SyncGroupResponse(
        throttle_time_ms=0,
        error_code=NONE,
        protocol_type=facts.protocol_type,
        protocol_name=facts.protocol,
        assignment=assignment,
    )


def _begin_sync(
    services: Services, request: Message, answer: Callable[[ClassicGroup], bytes | None]
) -> _Progress[bytes]:  # fmt: skip
    instance_id = getattr(request, "group_instance_id", None)
    given = {each.member_id: bytes(each.assignment) for each in request.assignments}

    def sync(group: ClassicGroup, now_ms: int) -> ClassicGroup:
        after = rules.sync(group, request.member_id, instance_id, request.generation_id, given, now_ms)
        rules.check_protocol(group, getattr(request, "protocol_type", None), getattr(request, "protocol_name", None))
        check_assignment(group, after)
        return after

    before = services.changes.current()
    seen = change(services.cluster.store, request.group_id, sync)
    failpoint("gateway.group-synced")
    return _progress(before, seen, answer)


async def heartbeat(services: Services, request: Message) -> bool:
    """Keep the session alive. Return whether the member must join again. Raises the errors of `rules.heartbeat`."""
    instance_id = getattr(request, "group_instance_id", None)

    def renew(group: ClassicGroup, now_ms: int) -> ClassicGroup:
        return rules.heartbeat(group, request.member_id, instance_id, request.generation_id, now_ms)

    found = await services.call(change_own, services.cluster.store, request.group_id, request.member_id, renew)
    return found.group.state.must_rejoin


def leave_group(store: Store, me: Identity) -> None:
    """Leave the group. The call blocks. Raises the errors of `rules.leave`."""
    change(store, me.group_id, lambda group, now_ms: rules.leave(group, me.member_id, me.instance_id, now_ms))


def _joining(request: Message, client: Client) -> Joining:
    instance_id = getattr(request, "group_instance_id", None)
    return Joining(
        member_id=request.member_id,
        new_id=new_member_id(instance_id or client.client_id),
        instance_id=instance_id,
        client_id=client.client_id,
        host=client.host,
        protocol_type=request.protocol_type,
        protocols=tuple((each.name, bytes(each.metadata)) for each in request.protocols),
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=rebalance_timeout_ms(request),
        id_required=request.version >= MEMBER_ID_REQUIRED_SINCE and instance_id is None and not request.member_id,
    )


def _progress(change: int, seen: Seen, answer: Callable[[ClassicGroup], T | None]) -> _Progress[T]:
    group, wait_ms = seen
    return _Progress(answer(group), group.state, group.generation, group.protocol_type, group.protocol, wait_ms, change)


def _give_frame_back() -> None:
    """Give back the memory of the request's frame, which is not needed while the request waits."""
    memory = request_context.get().memory
    if memory is not None:
        memory.frame.set(0)


async def _wait_for(
    services: Services, group_id: str, member_id: str, progress: _Progress[T], again: Callable[[], _Progress[T]],
    session_timeout_ms: int,
) -> tuple[_Progress[T], T]:  # fmt: skip
    """Wait until there is an answer, beginning with `progress`. Return the progress with the answer, and the answer."""
    beat_s = session_timeout_ms / 1000 / BEATS_PER_SESSION
    while (answer := progress.answer) is None:
        waiting = WaitingMember(group_id, member_id, progress.state, progress.generation)
        await services.classic_waits.wait(waiting, progress.change, progress.wait_ms, beat_s)
        progress = await services.call(again)
    return progress, answer
