"""Implements the state machine of a classic group, whose members compute the assignment; only they can decode it.

Kafka Connect, Kafka Streams and consumers with an assignor of their own form such groups. The states are those of a
classic group in Kafka's GroupCoordinator. A group that does not exist is Dead.

    Empty                 the group has no members
    PreparingRebalance    members join, until all of them have joined, or the rebalance timeout is over
    CompletingRebalance   a generation has begun; its leader computes the assignment from the members' metadata
    Stable                the leader's SyncGroup has given each member its assignment

The functions are pure, and their values are frozen. `now_ms` is a time of the store's lease clock. No timer changes a
group: callers apply `advance` before any other function. Sources: GroupCoordinator and ClassicGroup of Kafka 4.1,
KIP-345 (static members), KIP-394 (MEMBER_ID_REQUIRED).

Invariants: the generation only grows; a generation has one leader; all its members get the assignment of that leader.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from spark_log.errors import (
    FencedInstanceIdError,
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from spark_log.groups.classic.group import ClassicGroup, ClassicMember, JoinAnswer, Joining, Phase, State


def advance(group: ClassicGroup, now_ms: int) -> ClassicGroup:
    """Return the group at `now_ms`: without members whose sessions have ended, or that did not join or ask for their
    assignment in time. A rebalance is completed if its time to join is over.
    """
    group = _without(
        group, {member.member_id for member in group.members.values() if member.until_ms <= now_ms}, now_ms
    )
    if group.state is State.PREPARING:
        return _complete_join(group, now_ms)
    if group.deadline_ms is not None and group.deadline_ms <= now_ms:
        late = {member.member_id for member in group.joined if member.phase is Phase.SYNCING}
        return _without(group, late, now_ms)
    return group


def next_change_ms(group: ClassicGroup) -> int | None:
    """Return the time at which the group changes without a request; None means never."""
    times = [member.until_ms for member in group.members.values()]
    return min(times if group.deadline_ms is None else [*times, group.deadline_ms], default=None)


def join(group: ClassicGroup, request: Joining, now_ms: int) -> ClassicGroup:
    """Return the group after a JoinGroup request; `join_answer` returns the answer.

    Raises InconsistentGroupProtocolError if the member shares no protocol with the others, UnknownMemberIdError, or
    FencedInstanceIdError.
    """
    _check_protocols(group, request)
    if not request.member_id:
        return _join_without_id(group, request, now_ms)
    member = group.members.get(request.member_id)
    if member is None or member.phase is not Phase.PENDING:
        member = member_of(group, request.member_id, request.instance_id)
    new = replace(_new_member(request, now_ms), phase=member.phase, assignment=member.assignment)
    same = new.protocols == member.protocols
    if member.phase is not Phase.PENDING and same:
        follower = group.state is State.STABLE and group.leader != member.member_id
        if follower or group.state is State.COMPLETING:  # the answer to the member's last JoinGroup was lost
            return replace_member(group, touched(member, now_ms))
    return _joining(group, new, request.protocol_type, now_ms)


def join_answer(group: ClassicGroup, member_id: str, instance_id: str | None) -> JoinAnswer | None:
    """Return the answer to a member's JoinGroup, or None while it waits for the next generation. Raises
    UnknownMemberIdError or FencedInstanceIdError.
    """
    member = member_of(group, member_id, instance_id)
    if member.phase is Phase.JOINING:
        return None
    if group.state is State.PREPARING:  # the generation is over already: SyncGroup tells the member
        return JoinAnswer(group.generation, group.protocol, "", ())
    members: tuple[tuple[str, str | None, bytes], ...] = ()
    if group.leader == member_id:
        members = tuple((each.member_id, each.instance_id, each.metadata(group.protocol)) for each in group.joined)
    skip_assignment = group.leader == member_id and group.state is State.STABLE
    return JoinAnswer(group.generation, group.protocol, group.leader, members, skip_assignment)


def leads(group: ClassicGroup, member_id: str) -> bool:
    """Return whether the answer to the member's JoinGroup has the metadata of all members."""
    return group.leader == member_id and group.state is not State.PREPARING


def sync(
    group: ClassicGroup,
    member_id: str,
    instance_id: str | None,
    generation: int,
    assignments: Mapping[str, bytes],
    now_ms: int,
) -> ClassicGroup:
    """Return the group after a SyncGroup request. `assignments` counts only if the leader sends it. A member that is
    not in it gets an empty assignment.

    `sync_answer` returns the answer. Raises UnknownMemberIdError, FencedInstanceIdError, IllegalGenerationError, or
    RebalanceInProgressError.
    """
    member = _in_generation(group, member_id, instance_id, generation)
    if group.state is State.PREPARING:
        raise _rebalancing(group)
    group = replace_member(group, replace(touched(member, now_ms), phase=Phase.SYNCED))
    if group.state is State.COMPLETING and group.leader == member_id:
        given = {
            each.member_id: replace(each, assignment=assignments.get(each.member_id, b"")) for each in group.joined
        }
        group = replace(group, state=State.STABLE, members={**group.members, **given})
    if all(each.phase is Phase.SYNCED for each in group.joined) and group.state is State.STABLE:
        group = replace(group, deadline_ms=None)
    return group


def sync_answer(group: ClassicGroup, member_id: str) -> bytes | None:
    """Return the assignment of a member, or None while it waits for the leader."""
    return group.members[member_id].assignment if group.state is State.STABLE else None


def wait_for_assignment(
    group: ClassicGroup, member_id: str, instance_id: str | None, generation: int, now_ms: int
) -> ClassicGroup:
    """Renew the session of a member that has asked for its assignment. Raises the errors of `sync`."""
    member = _in_generation(group, member_id, instance_id, generation)
    if group.state is State.PREPARING:
        raise _rebalancing(group)
    return replace_member(group, touched(member, now_ms))


def begin_again(group: ClassicGroup, generation: int, now_ms: int) -> ClassicGroup:
    """Begin another rebalance, because the leader's assignment of this generation cannot be stored. Return the group
    unchanged if it does not wait for that assignment any more.
    """
    if group.state is not State.COMPLETING or group.generation != generation:
        return group
    return begin_rebalance(group, now_ms)


def check_protocol(group: ClassicGroup, protocol_type: str | None, protocol: str | None) -> None:
    """Raise InconsistentGroupProtocolError if a SyncGroup request (v5) has another protocol; None matches any."""
    if protocol_type not in (None, group.protocol_type) or protocol not in (None, group.protocol):
        raise InconsistentGroupProtocolError(
            f"group {group.group_id!r} has the protocol {group.protocol!r} of type {group.protocol_type!r}"
        )


def heartbeat(
    group: ClassicGroup, member_id: str, instance_id: str | None, generation: int, now_ms: int
) -> ClassicGroup:
    """Return the group with the member's session renewed. In PreparingRebalance, the member must join again.

    Raises UnknownMemberIdError, FencedInstanceIdError, or IllegalGenerationError.
    """
    return replace_member(group, touched(_in_generation(group, member_id, instance_id, generation), now_ms))


def leave(group: ClassicGroup, member_id: str, instance_id: str | None, now_ms: int) -> ClassicGroup:
    """Return the group without a member. If the member id is empty, the instance id alone identifies the member.

    Raises UnknownMemberIdError or FencedInstanceIdError.
    """
    if not member_id and instance_id is not None:
        member_id = next((each.member_id for each in group.joined if each.instance_id == instance_id), "")
    if member_id not in group.members or group.members[member_id].phase is not Phase.PENDING:
        member_of(group, member_id, instance_id)
    return _without(group, {member_id}, now_ms)


def check_commit(
    group: ClassicGroup, member_id: str, instance_id: str | None, generation: int, *, transactional: bool
) -> None:
    """Check that a member may commit offsets. Raises UnknownMemberIdError, FencedInstanceIdError, or
    IllegalGenerationError.

    Unless `transactional`, it raises RebalanceInProgressError in CompletingRebalance, as in Kafka.
    """
    _in_generation(group, member_id, instance_id, generation)
    if group.state is State.COMPLETING and not transactional:
        raise _rebalancing(group)


def member_of(group: ClassicGroup, member_id: str, instance_id: str | None) -> ClassicMember:
    """Return the member. Raises FencedInstanceIdError if another one has the instance id, or UnknownMemberIdError."""
    if instance_id is not None:
        static = next((each for each in group.joined if each.instance_id == instance_id), None)
        if static is not None and static.member_id != member_id:
            raise FencedInstanceIdError(
                f"group {group.group_id!r}: another member has joined with the group.instance.id {instance_id!r}"
            )
    found = group.members.get(member_id)
    if found is None or found.phase is Phase.PENDING or (instance_id is not None and found.instance_id != instance_id):
        raise UnknownMemberIdError(f"group {group.group_id!r}: {member_id!r} is not a member")
    return found


def touched(member: ClassicMember, now_ms: int) -> ClassicMember:
    """Return the member with its session renewed if a third of it is over, so that few heartbeats are written."""
    if member.until_ms - now_ms > member.session_timeout_ms * 2 // 3:
        return member
    return replace(member, until_ms=now_ms + member.session_timeout_ms)


def with_session_renewed(group: ClassicGroup, member_id: str, instance_id: str | None, now_ms: int) -> ClassicGroup:
    """Return the group with this member `touched`. Raises UnknownMemberIdError or FencedInstanceIdError."""
    return replace_member(group, touched(member_of(group, member_id, instance_id), now_ms))


def select_protocol(members: Collection[ClassicMember]) -> str:
    """Return the protocol that all members support and most prefer, or "" if there is none. Among equals it is the
    first by name. `members` must not be empty.
    """
    common = set.intersection(*({name for name, _ in member.protocols} for member in members))
    votes = Counter(next(name for name, _ in member.protocols if name in common) for member in members if common)
    return min(votes, key=lambda name: (-votes[name], name), default="")


def _join_without_id(group: ClassicGroup, request: Joining, now_ms: int) -> ClassicGroup:
    new = _new_member(request, now_ms)
    old = next((each for each in group.joined if request.instance_id and each.instance_id == request.instance_id), None)
    if old is None:
        if request.id_required and request.instance_id is None:
            return replace_member(group, replace(new, phase=Phase.PENDING, protocols=()))
        return _joining(group, new, request.protocol_type, now_ms)
    # a static member has restarted with a new member id, and replaces the old member
    members = {member_id: member for member_id, member in group.members.items() if member_id != old.member_id}
    leader = new.member_id if group.leader == old.member_id else group.leader
    group = replace(group, members=members, leader=leader)
    taken = replace(new, phase=old.phase, assignment=old.assignment)
    if group.state is State.STABLE and select_protocol([*group.joined, taken]) == group.protocol:
        return replace_member(group, taken)  # no rebalance
    return _joining(group, taken, request.protocol_type, now_ms)


def _new_member(request: Joining, now_ms: int) -> ClassicMember:
    return ClassicMember(
        request.member_id or request.new_id, request.instance_id, request.client_id, request.host, request.protocols,
        request.session_timeout_ms, request.rebalance_timeout_ms, now_ms + request.session_timeout_ms,
    )  # fmt: skip


def _check_protocols(group: ClassicGroup, request: Joining) -> None:
    replaced = None if request.member_id else request.instance_id
    others = [
        each
        for each in group.joined
        if each.member_id != request.member_id and (replaced is None or each.instance_id != replaced)
    ]
    offered = {name for name, _ in request.protocols}
    common = offered.intersection(*({name for name, _ in other.protocols} for other in others))
    wrong_type = bool(group.joined) and request.protocol_type != group.protocol_type
    if not request.protocol_type or not common or wrong_type:
        raise InconsistentGroupProtocolError(
            f"group {group.group_id!r} of type {group.protocol_type!r}: a member of type {request.protocol_type!r} with"
            f" {', '.join(sorted(offered)) or 'no protocols'} has no protocol in common with the others"
        )


def _in_generation(group: ClassicGroup, member_id: str, instance_id: str | None, generation: int) -> ClassicMember:
    member = member_of(group, member_id, instance_id)
    if generation != group.generation:
        raise IllegalGenerationError(
            f"group {group.group_id!r}: generation {generation} is over, the group is in {group.generation}"
        )
    return member


def _rebalancing(group: ClassicGroup) -> RebalanceInProgressError:
    return RebalanceInProgressError(f"group {group.group_id!r} is in state {group.state}")


def replace_member(group: ClassicGroup, member: ClassicMember) -> ClassicGroup:
    """Return the group with a new member, or with another state of a member."""
    return replace(group, members={**group.members, member.member_id: member})


def _joining(group: ClassicGroup, member: ClassicMember, protocol_type: str, now_ms: int) -> ClassicGroup:
    """Return the group with a member that joins. A rebalance begins if none has begun."""
    group = replace_member(replace(group, protocol_type=protocol_type), replace(member, phase=Phase.JOINING))
    return _complete_join(group, now_ms) if group.state is State.PREPARING else begin_rebalance(group, now_ms)


def _without(group: ClassicGroup, member_ids: Collection[str], now_ms: int) -> ClassicGroup:
    if not member_ids:
        return group
    members_left = any(member.member_id in member_ids for member in group.joined)
    group = replace(group, members={key: each for key, each in group.members.items() if key not in member_ids})
    if group.leader not in group.members:
        group = replace(group, leader="")
    if group.state is State.PREPARING:
        return _complete_join(group, now_ms)
    return begin_rebalance(group, now_ms) if members_left else group


def begin_rebalance(group: ClassicGroup, now_ms: int) -> ClassicGroup:
    """Return the group in PreparingRebalance, in which all members must join again."""
    group = replace(group, state=State.PREPARING, deadline_ms=now_ms + _rebalance_timeout_ms(group.joined))
    return _complete_join(group, now_ms)


def _rebalance_timeout_ms(members: Iterable[ClassicMember]) -> int:
    return max((member.rebalance_timeout_ms for member in members), default=0)


def _complete_join(group: ClassicGroup, now_ms: int) -> ClassicGroup:
    """Begin the next generation if all members have joined. If the time to join is over, begin it without the dynamic
    members that are late.
    """
    assert group.deadline_ms is not None
    waited_for = [member for member in group.members.values() if member.phase is not Phase.JOINING]
    if waited_for and now_ms < group.deadline_ms:
        return group
    kept = [member for member in group.joined if member.phase is Phase.JOINING or member.instance_id is not None]
    pending = {member.member_id: member for member in group.members.values() if member.phase is Phase.PENDING}
    rejoined = [member.member_id for member in kept if member.phase is Phase.JOINING]
    deadline_ms = now_ms + _rebalance_timeout_ms(kept)
    if kept and not rejoined:  # wait again: only static members are left, and they may return until their sessions end
        return replace(
            group, deadline_ms=deadline_ms, members={**pending, **{member.member_id: member for member in kept}}
        )
    group = replace(group, generation=group.generation + 1)
    if not kept:
        return replace(group, state=State.EMPTY, protocol="", leader="", deadline_ms=None, members=pending)
    began = {member.member_id: _in_new_generation(member, now_ms) for member in kept}
    leader = group.leader if group.leader in rejoined else rejoined[0]
    return replace(
        group, state=State.COMPLETING, protocol=select_protocol(kept), leader=leader, deadline_ms=deadline_ms,
        members={**pending, **began},
    )  # fmt: skip


def _in_new_generation(member: ClassicMember, now_ms: int) -> ClassicMember:
    until_ms = now_ms + member.session_timeout_ms if member.phase is Phase.JOINING else member.until_ms
    return replace(member, phase=Phase.SYNCING, assignment=b"", until_ms=until_ms)
