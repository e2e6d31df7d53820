"""The rules of group membership, as in KIP-848: the effect of a heartbeat, a join or a departure. No I/O, no clock.

    a change (join, departure, subscription, partitions of a topic)     generation := generation + 1
    the assignor's result for a generation                              target_generation := that generation
    assigned(m) grows only by  target(m) - assigned(any member)         while target_generation = generation
    assigned(m) shrinks only when m reports that it has revoked, or is removed

`assigned` are the partitions that a member was told it may read and has not reported as revoked. The store keeps one
owner per partition, so a member that was told and a member that still reads are never two. A member may read
assigned & target; it must revoke assigned - target.
"""

from collections.abc import Iterable, Mapping
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
    """Its member epoch: the generation of the target that it has come to. Its commits must carry this."""

    @property
    def settled(self) -> bool:
        """Whether it has all partitions of its target and no others."""
        return self.assigned == self.target


@dataclass(frozen=True)
class Assignment:
    """The answer to a heartbeat."""

    generation: int
    partitions: Partitions
    """May be read now. Partitions that were reported as owned and are missing here must be revoked; the next heartbeat
    reports it."""
    complete: bool
    """False: more partitions come when their owners have revoked them (or this member has); heartbeat again soon."""


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
