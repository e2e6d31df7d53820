"""Defines the rules of the consumer protocol (KIP-848): effects of a heartbeat, a join, a departure. No I/O, no clock.

    a change (join, departure, subscription, partitions of a topic)     generation := generation + 1
    the assignor's result for a generation                              target_generation := that generation

`current` is the last assignment that was sent to a member. `assigned` are the partitions that the member may still
read: those of `current`, and those that it has not reported as revoked since. So  current <= assigned.  The store keeps
one owner per partition, so two members never read the same one.

    assigned shrinks by  assigned - current - owned  when a heartbeat says what the member owns, or it is removed
    assigned grows  by   target - assigned(any)      when there is nothing that the member must give up, and
                                                     target_generation = generation
    member epoch := target_generation                under the same two conditions

So a member loses a partition when the assignment that was sent does not contain it, and the member then reports its
partitions without it. A heartbeat has no number, and may reach a gateway late, when its client already uses another
connection. Therefore the partitions in a heartbeat count as a report only if the member's previous heartbeat came from
the same connection (`connection_id`), and was answered there. The first heartbeat on another connection releases
nothing, and its answer contains the assignment.

A client reports its partitions only after a change. After a change of the connection it may therefore have to be asked:
with the error COORDINATOR_NOT_AVAILABLE, after which clients send a heartbeat with all fields (after
COORDINATOR_LOAD_IN_PROGRESS librdkafka repeats the same heartbeat). The subscription in a heartbeat always counts,
because a client sends a new subscription only once. So a late heartbeat may bring back an old subscription, until the
client's next heartbeat with all fields.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from spark_log.errors import (
    FencedInstanceIdError,
    FencedMemberEpochError,
    GroupMaxSizeReachedError,
    IllegalArgumentError,
    IllegalGenerationError,
    UnknownMemberIdError,
    UnreleasedInstanceIdError,
)
from spark_log.ids import TopicPartition

Partitions = frozenset[TopicPartition]
NO_PARTITIONS: Partitions = frozenset()

TOPICS_MAX = 5_000
"""The maximum number of topic names of one member. They are looked up for its heartbeats, together with those of other
members.
"""

FIRST_GENERATION = 1
"""The generation of a new group, whose target is empty. As in Kafka since 4.3, its first member gets epoch 2."""

JOINING, LEAVING, LEAVING_FOR_A_WHILE = 0, -1, -2
"""Member epochs in requests. A static member that will come back leaves with LEAVING_FOR_A_WHILE."""


@dataclass(frozen=True)
class TopicFacts:
    """The facts of a topic that an assignment assumes: its id, and partitions 0 to partition_count - 1."""

    topic_id: int
    partition_count: int


@dataclass(frozen=True)
class Group:
    """The generations of a group: target_generation <= generation; equal if the targets are up to date."""

    generation: int = 0
    target_generation: int = 0

    @property
    def stale(self) -> bool:
        """Whether the targets must be computed anew."""
        return self.target_generation < self.generation

    def changed(self) -> "Group":
        return replace(self, generation=self.generation + 1)

    def emptied(self) -> "Group":
        """Return the next generation of a group without members: there is no target to compute."""
        return Group(self.generation + 1, self.generation + 1)


@dataclass(frozen=True)
class Member:
    """A member in the store."""

    topics: frozenset[str]
    target: Partitions = NO_PARTITIONS
    assigned: Partitions = NO_PARTITIONS
    generation: int = 0
    """The member epoch: the generation of the target that the member has reached. Its commits must carry this."""

    @property
    def settled(self) -> bool:
        """Whether it has all partitions of its target and no others."""
        return self.assigned == self.target


@dataclass(frozen=True)
class Assignment:
    """The answer to a heartbeat."""

    generation: int
    partitions: Partitions
    """The partitions that may be read now. Partitions that were reported as owned and are missing here must be revoked;
    the next heartbeat reports it.
    """
    complete: bool
    """If False, more partitions come when their owners (or this member) have revoked some; heartbeat again soon."""


def depart(group: Group, *, left: int) -> Group:
    """Return the group after members have left or lost their sessions; `left` members remain."""
    return group.changed() if left else group.emptied()


def notice_topics(
    group: Group, assumed: Mapping[str, TopicFacts], now: Mapping[str, TopicFacts], topics: Iterable[str]
) -> Group:
    """Return the group after reading its topics: a created, deleted or enlarged topic makes the target stale."""
    if group.stale or all(assumed.get(name) == now.get(name) for name in topics):
        return group
    return group.changed()


def check_member(group_id: str, member_id: str, *, live: bool, fenced: bool) -> None:
    """Raise FencedInstanceIdError if another member has the instance id, or UnknownMemberIdError if not `live`."""
    if fenced:
        raise FencedInstanceIdError(
            f"group {group_id!r}: another member has joined with the group.instance.id of {member_id}"
        )
    if not live:
        raise UnknownMemberIdError(f"group {group_id!r}: {member_id} is not a member, or its session has ended")


def check_commit(group_id: str, member_generation: int, generation: int, others: Mapping[TopicPartition, str]) -> None:
    """Raise IllegalGenerationError unless `generation` is `member_generation`, the generation of the member's last
    heartbeat response.

    It is also raised for `others`: partitions of the commit that are assigned to other members now, with their owners.
    """
    if generation != member_generation:
        raise IllegalGenerationError(
            f"group {group_id!r}: the commit is of generation {generation}, the member is in {member_generation}"
        )
    if others:
        partition, owner = min(others.items())
        raise IllegalGenerationError(f"group {group_id!r}: {partition} belongs to {owner} now")


@dataclass(frozen=True)
class EpochState:
    """The state of a member that only the consumer protocol has. Its epoch is `Member.generation`."""

    connection_id: str
    """The connection from which the last heartbeat came."""
    rebalance_timeout_ms: int
    reported: bool = True
    """Whether the member need not be asked which partitions it owns: it has reported them on this connection after an
    answer, or it will, because the last answer removed some.
    """
    rack: str | None = None
    previous: int = 0
    """The previous epoch."""
    current: Partitions = NO_PARTITIONS
    topic_ids: frozenset[int] = frozenset()
    """The ids of the topics in `current`: a topic that was created again has another id."""
    revoke_by_ms: int | None = None
    """Time of the store's lease clock at which the member must have revoked its partitions; None if it need not."""

    def until_ms(self, now_ms: int, session_timeout_ms: int) -> int:
        """Return the end of a session that is renewed now."""
        renewed_ms = now_ms + session_timeout_ms
        return renewed_ms if self.revoke_by_ms is None else min(renewed_ms, self.revoke_by_ms)

    def renewal_due_ms(self, until_ms: int, session_timeout_ms: int) -> int:
        """Return when a session that ends at `until_ms` is renewed: after a third of it, so two more attempts fit
        before its end. A session that cannot be extended is due at its end.
        """
        return until_ms if until_ms == self.revoke_by_ms else until_ms - session_timeout_ms * 2 // 3


def may_not_know_its_epoch(member: Member, state: EpochState, epoch: int) -> bool:
    """Return whether a commit has the epoch before the member's.

    The client may have sent the commit before it received the answer to its last heartbeat. As in KIP-1251, such a
    commit counts for partitions that the member still has: if it were refused while the client closes, the next owner
    would read the same records again.
    """
    return 0 < epoch == state.previous < member.generation


@dataclass(frozen=True)
class EpochRequest:
    """The content of a heartbeat. `owned` is None if the client leaves it out. With `trusted`, the member's
    heartbeat before it came from the same connection.
    """

    epoch: int
    owned: Partitions | None
    connection_id: str
    trusted: bool


@dataclass(frozen=True)
class EpochDecision:
    """The member after a heartbeat. With `repeat`, the client must send the heartbeat again."""

    member: Member
    state: EpochState
    repeat: bool = False


def check_epoch(member: Member, state: EpochState, epoch: int, owned: Partitions | None) -> None:
    """Raise FencedMemberEpochError unless `epoch` is the member's epoch.

    As in Kafka, the previous epoch is accepted too if the member reports what it owns, and all of that is assigned to
    it: the answer with its new epoch may have been lost.
    """
    if epoch == member.generation:
        return
    if epoch == state.previous < member.generation and owned is not None and owned <= member.assigned:
        return
    size = "greater" if epoch > member.generation else "smaller"
    raise FencedMemberEpochError(
        f"The consumer group member has a {size} member epoch ({epoch}) than the one known by the group coordinator"
        f" ({member.generation}). The member must abandon all its partitions and rejoin."
    )


def decide_epoch_heartbeat(
    group: Group, member: Member, state: EpochState, request: EpochRequest, taken: Collection[TopicPartition],
    now_ms: int,
) -> EpochDecision:  # fmt: skip
    """Decide a live member's heartbeat; `member` already has its new subscription. `taken` are the partitions of its
    target that are assigned to other members. Raises FencedMemberEpochError.
    """
    check_epoch(member, state, request.epoch, request.owned)
    is_current = request.epoch == member.generation
    released = NO_PARTITIONS
    if is_current and request.owned is not None:
        released = member.assigned - state.current - request.owned
    trusted = request.trusted and request.connection_id == state.connection_id
    if not trusted:
        released = NO_PARTITIONS
    reported = trusted and (state.reported or request.owned is not None)
    assigned = member.assigned - released
    target = frozenset(p for p in member.target if p.topic in member.topics)
    to_revoke = assigned - target
    epoch = member.generation
    if not group.stale and not to_revoke:
        assigned |= target - frozenset(taken)
        epoch = group.target_generation
    current = assigned & target
    shrinks = bool((state.current & assigned) - current)
    if to_revoke and trusted and not reported and not shrinks:
        return EpochDecision(member, state, repeat=True)
    reported = reported or (trusted and shrinks)  # the client reports after every change
    revoke_by_ms = state.revoke_by_ms
    if shrinks:
        revoke_by_ms = now_ms + state.rebalance_timeout_ms
    elif not to_revoke:
        revoke_by_ms = None
    previous = state.previous if epoch == member.generation else member.generation
    return EpochDecision(
        replace(member, assigned=assigned, generation=epoch),
        replace(
            state,
            connection_id=request.connection_id,
            reported=reported,
            previous=previous,
            current=current,
            revoke_by_ms=revoke_by_ms,
        ),
    )


def join_epoch(
    group: Group, topics: frozenset[str], old: Member | None, *, same_assignors: bool = True, idle: bool = False
) -> tuple[Group, Member]:
    """Return the group and a new member. `old` is a static member that it replaces, with its target (KIP-345).

    The generation stays the same if the subscription does, unless the target is stale: a target that is being computed
    would be for the old member. It also stays the same for an `idle` member: one without subscriptions and vote.
    """
    if old is None:
        begun = group if group.generation else Group(FIRST_GENERATION, FIRST_GENERATION)
        return begun if idle else begun.changed(), Member(topics, generation=JOINING)
    same = topics == old.topics and same_assignors and not group.stale
    return group if same else group.changed(), replace(old, topics=topics, generation=JOINING)


def leave_for_a_while(member: Member, state: EpochState) -> tuple[Member, EpochState]:
    """Mark a static member as one that comes back: it keeps its target and its partitions until its session ends."""
    return replace(member, generation=LEAVING_FOR_A_WHILE), replace(state, revoke_by_ms=None)


def check_instance(group_id: str, member_id: str, instance_id: str | None, holder: str | None) -> None:
    """Raise UnknownMemberIdError if the instance id has no `holder`, FencedInstanceIdError if another member has it."""
    if instance_id is None or holder == member_id:
        return
    if holder is None:
        raise UnknownMemberIdError(f"Instance id {instance_id} is unknown in group {group_id}.")
    raise FencedInstanceIdError(
        f"Static member {member_id} with instance id {instance_id} was fenced by member {holder}."
    )


def check_released(member_id: str, instance_id: str, holder: str, holder_epoch: int) -> None:
    """Raise UnreleasedInstanceIdError unless the member with the instance id has left for a while."""
    if holder_epoch != LEAVING_FOR_A_WHILE:
        raise UnreleasedInstanceIdError(
            f"Static member {member_id} with instance id {instance_id} cannot join the group because the instance id is"
            f" owned by {holder} member."
        )


def check_names(names: Collection[str]) -> None:
    """Raise IllegalArgumentError if a member subscribes to more than TOPICS_MAX names."""
    if len(names) > TOPICS_MAX:
        raise IllegalArgumentError(f"a member subscribes to {len(names)} names of topics, more than {TOPICS_MAX}")


def check_size(members: int, size_max: int) -> None:
    """Raise GroupMaxSizeReachedError if there is no room for another member."""
    if members >= size_max:
        raise GroupMaxSizeReachedError(f"The consumer group has reached its maximum capacity of {size_max} members.")
