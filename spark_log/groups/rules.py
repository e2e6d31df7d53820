"""The rules of group membership, as in KIP-848: the effect of a heartbeat, a join or a departure. No I/O, no clock.

    a change (join, departure, subscription, partitions of a topic)     generation := generation + 1
    the assignor's result for a generation                              target_generation := that generation
    assigned(m) grows only by  target(m) - assigned(any member)         while target_generation = generation
    assigned(m) shrinks only when m reports that it has revoked, or is removed

`assigned` are the partitions that a member was told it may read and has not reported as revoked. The store keeps one
owner per partition, so a member that was told and a member that still reads are never two. A member may read
assigned & target; it must revoke assigned - target.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from spark_log.errors import FencedInstanceIdError, IllegalGenerationError, UnknownMemberIdError
from spark_log.ids import TopicPartition

Partitions = frozenset[TopicPartition]
NO_PARTITIONS: Partitions = frozenset()


@dataclass(frozen=True)
class TopicFacts:
    """The facts of a topic that an assignment assumes: its id, and partitions 0 to partition_count - 1."""

    topic_id: int
    partition_count: int


@dataclass(frozen=True)
class Group:
    """target_generation <= generation; equal when the members' targets are those of this generation."""

    generation: int = 0
    target_generation: int = 0

    @property
    def stale(self) -> bool:
        """Whether the targets must be computed anew."""
        return self.target_generation < self.generation

    def changed(self) -> "Group":
        return replace(self, generation=self.generation + 1)

    def emptied(self) -> "Group":
        """As `changed`, for a group without members: there is no target to compute."""
        return Group(self.generation + 1, self.generation + 1)


@dataclass(frozen=True)
class Member:
    """A member in the store."""

    topics: frozenset[str]
    target: Partitions = NO_PARTITIONS
    assigned: Partitions = NO_PARTITIONS
    generation: int = 0
    """Of the target in its last heartbeat response. Its commits must carry this."""
    beat: int = 0
    """Number of its last heartbeat that was written."""

    @property
    def readable(self) -> Partitions:
        return frozenset(p for p in self.assigned & self.target if p.topic in self.topics)

    @property
    def settled(self) -> bool:
        """Whether it has all partitions of its target and no others."""
        return self.assigned == self.target


@dataclass(frozen=True)
class HeartbeatRequest:
    """The content of a heartbeat."""

    number: int
    """Counts the member's heartbeats."""
    topics: frozenset[str]
    owned: Partitions
    """The partitions that it has at this moment."""


@dataclass(frozen=True)
class Assignment:
    """The answer to a heartbeat."""

    generation: int
    partitions: Partitions
    """May be read now. Partitions that were reported as owned and are missing here must be revoked; the next heartbeat
    reports it."""
    complete: bool
    """False: more partitions come when their owners have revoked them (or this member has); heartbeat again soon."""


@dataclass(frozen=True)
class HeartbeatDecision:
    """The group and the member after a heartbeat, and the answer."""

    group: Group
    member: Member
    assignment: Assignment

    def revoked(self, before: Member) -> Partitions:
        return before.assigned - self.member.assigned

    def newly_assigned(self, before: Member) -> Partitions:
        return self.member.assigned - before.assigned


def decide_heartbeat(
    group: Group, member: Member, request: HeartbeatRequest, taken: Collection[TopicPartition]
) -> HeartbeatDecision:
    """Decide a live member's heartbeat. `taken` are the partitions of its target that are assigned to other members.

    Partitions that it no longer owns are revoked; free partitions of its target are assigned, unless the target is
    stale. A partition that it reports without having been assigned is not in the answer.
    Raises IllegalGenerationError for a heartbeat that arrives after a later one.
    """
    if request.number <= member.beat:
        raise IllegalGenerationError(
            f"heartbeat {request.number} comes too late: number {member.beat} of this member has been answered"
        )
    if request.topics != member.topics:
        group = group.changed()
    assigned = member.assigned & request.owned
    if not group.stale:
        assigned |= member.target - frozenset(taken)
    member = replace(
        member, topics=request.topics, assigned=assigned, generation=group.target_generation, beat=request.number
    )
    complete = not group.stale and member.settled
    return HeartbeatDecision(group, member, Assignment(group.target_generation, member.readable, complete))


def is_unchanged(group: Group, before: Member, request: HeartbeatRequest, after: HeartbeatDecision) -> bool:
    """Whether the heartbeat need not be written: it changes only its number and the session.

    A member that does not own all its assigned partitions has missed an answer. It gets another, and its number is
    written, so that its earlier heartbeats are refused from now on.
    """
    same = after.group == group and replace(after.member, beat=before.beat) == before
    return same and before.assigned <= request.owned


def rejoin_by(now_ms: int, before_ms: int | None, timeout_ms: int, *, behind: bool, joined: bool = False) -> int | None:
    """The time by which a classic member must have joined again; None: it need not. Its session ends then, whatever its
    heartbeats say, as a broker removes members that have not joined again at the end of a rebalance.

    `behind`: it has not been told the newest target, or has partitions that are not in it. A member that has joined,
    and has still partitions to give up, gets the whole `timeout_ms` again. 0: no limit.
    """
    if not behind or not timeout_ms:
        return None
    return now_ms + timeout_ms if joined or before_ms is None else before_ms


def session_end(now_ms: int, session_timeout_ms: int, rejoin_by_ms: int | None) -> int:
    """The end of a session that is renewed now."""
    renewed_ms = now_ms + session_timeout_ms
    return renewed_ms if rejoin_by_ms is None else min(renewed_ms, rejoin_by_ms)


def join(group: Group, topics: frozenset[str]) -> tuple[Group, Member]:
    """A new member: it has no partitions until the target of a new generation assigns some."""
    return group.changed(), Member(topics, generation=group.target_generation)


def take_over(group: Group, old: Member, topics: frozenset[str], *, same_assignors: bool) -> tuple[Group, Member]:
    """A new member with the instance id of an old one (static membership, KIP-345) gets its target and partitions. The
    generation stays the same if the subscription does.

    It does not if the target is stale: a target that is being computed would be for the old member.
    """
    same = topics == old.topics and same_assignors and not group.stale
    return group if same else group.changed(), replace(old, topics=topics, beat=0)


def depart(group: Group, *, left: int) -> Group:
    """The group after members have left or lost their sessions; `left` members remain."""
    return group.changed() if left else group.emptied()


def notice_topics(
    group: Group, assumed: Mapping[str, TopicFacts], now: Mapping[str, TopicFacts], topics: Iterable[str]
) -> Group:
    """The group after reading its topics: a created, deleted or enlarged topic makes the target stale."""
    if group.stale or all(assumed.get(name) == now.get(name) for name in topics):
        return group
    return group.changed()


def check_member(group_id: str, member_id: str, *, live: bool, fenced: bool) -> None:
    """FencedInstanceIdError if another member has taken over the instance id; UnknownMemberIdError if not `live`."""
    if fenced:
        raise FencedInstanceIdError(
            f"group {group_id!r}: another member has joined with the group.instance.id of {member_id}"
        )
    if not live:
        raise UnknownMemberIdError(f"group {group_id!r}: {member_id} is not a member, or its session has ended")


def check_commit(group_id: str, known: int, generation: int, others: Mapping[TopicPartition, str]) -> None:
    """IllegalGenerationError unless `generation` is `known`, the generation of the member's last heartbeat response.

    `others` are those of the commit's partitions that are assigned to other members now, with their owners.
    """
    if generation != known:
        raise IllegalGenerationError(
            f"group {group_id!r}: the commit is of generation {generation}, the member is in {known}"
        )
    if others:
        partition, owner = min(others.items())
        raise IllegalGenerationError(f"group {group_id!r}: {partition} belongs to {owner} now")
