"""The rules of group membership, as in KIP-848: what a heartbeat, a join or a departure changes. No I/O, no clock.

    a change (join, departure, subscription, partitions of a topic)     generation := generation + 1
    the assignor's answer for a generation                              target_generation := that generation
    given(m) grows only by  target(m) - given(anybody)                  while target_generation = generation
    given(m) shrinks only when m says that it has let go, or is removed

`given` is what a member has been told it may read and has not said to have let go of; the store keeps one owner per
partition, so that a member that was told and a member that still reads are never two. What a member may read is
given & target; what it must let go of is given - target.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from spark_log.errors import FencedInstanceIdError, IllegalGenerationError, UnknownMemberIdError
from spark_log.ids import TopicPartition

Partitions = frozenset[TopicPartition]
NONE: Partitions = frozenset()


@dataclass(frozen=True)
class TopicFacts:
    """What an assignment assumes of a topic: which one it is, and partitions 0 to partition_count - 1."""

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
        """As `changed`, but nobody is left to compute a target for."""
        return Group(self.generation + 1, self.generation + 1)


@dataclass(frozen=True)
class Member:
    """What the store knows of a member."""

    topics: frozenset[str]
    target: Partitions = NONE
    given: Partitions = NONE
    generation: int = 0
    """Of the target that it was told last. Its commits must carry this."""
    beat: int = 0
    """Number of its last heartbeat that was written."""

    @property
    def readable(self) -> Partitions:
        return frozenset(p for p in self.given & self.target if p.topic in self.topics)

    @property
    def settled(self) -> bool:
        """Whether it has all of its target and nothing else."""
        return self.given == self.target


@dataclass(frozen=True)
class Report:
    """What a member says in a heartbeat."""

    number: int
    """Counts the member's heartbeats."""
    topics: frozenset[str]
    owned: Partitions
    """What it holds at this moment."""


@dataclass(frozen=True)
class Answer:
    """What the member is told; see `membership.Assignment`."""

    generation: int
    partitions: Partitions
    complete: bool


@dataclass(frozen=True)
class Beat:
    """What a heartbeat changes, and its answer."""

    group: Group
    member: Member
    answer: Answer

    def released(self, before: Member) -> Partitions:
        return before.given - self.member.given

    def granted(self, before: Member) -> Partitions:
        return self.member.given - before.given


def hear(group: Group, member: Member, report: Report, taken: Collection[TopicPartition]) -> Beat:
    """A live member's heartbeat. `taken` are the partitions of its target that others have been given.

    What it no longer holds is released; what is free of its target is given, unless targets are stale. A report of
    something that it was not given changes nothing: the answer does not name it.
    Raises IllegalGenerationError for a heartbeat that comes after a later one.
    """
    if report.number <= member.beat:
        raise IllegalGenerationError(
            f"heartbeat {report.number} comes too late: number {member.beat} of this member has been answered"
        )
    if report.topics != member.topics:
        group = group.changed()
    given = member.given & report.owned
    if not group.stale:
        given |= member.target - frozenset(taken)
    member = replace(member, topics=report.topics, given=given, generation=group.target_generation, beat=report.number)
    complete = not group.stale and member.settled
    return Beat(group, member, Answer(group.target_generation, member.readable, complete))


def is_unchanged(group: Group, before: Member, report: Report, after: Beat) -> bool:
    """Whether the heartbeat need not be written: the store says the same already, but for its number and the session.

    One that does not hold all it was given has missed an answer. It gets another, whose number is kept: what it sent
    before comes too late from now on.
    """
    same = after.group == group and replace(after.member, beat=before.beat) == before
    return same and before.given <= report.owned


def join(group: Group, topics: frozenset[str]) -> tuple[Group, Member]:
    """A new member: it owns nothing until the target of a new generation gives it something."""
    return group.changed(), Member(topics, generation=group.target_generation)


def take_over(group: Group, old: Member, topics: frozenset[str], *, same_assignors: bool) -> tuple[Group, Member]:
    """A new member with the instance id of another (static membership, KIP-345): target and partitions pass to it,
    and the generation stays as it is where it subscribes to the same.

    Unless targets are stale: one that is being computed would be for the member that is gone.
    """
    same = topics == old.topics and same_assignors and not group.stale
    return group if same else group.changed(), replace(old, topics=topics, beat=0)


def depart(group: Group, *, left: int) -> Group:
    """The group after members have left or lost their sessions; `left` members remain."""
    return group.changed() if left else group.emptied()


def notice_topics(
    group: Group, assumed: Mapping[str, TopicFacts], now: Mapping[str, TopicFacts], topics: Iterable[str]
) -> Group:
    """The group after a look at subscribed topics: one that came, went or grew makes the targets stale."""
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
    """IllegalGenerationError unless a commit of `generation` may be done by a member that was told `known` last.

    `others` are those of the commit's partitions that have gone to other members, with their owners.
    """
    if generation != known:
        raise IllegalGenerationError(
            f"group {group_id!r}: the commit is of generation {generation}, the member is in {known}"
        )
    if others:
        partition, owner = min(others.items())
        raise IllegalGenerationError(f"group {group_id!r}: {partition} belongs to {owner} now")
