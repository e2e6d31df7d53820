"""Applies kafka-python's assignors, and custom ones of that interface, to members and partitions.

`assign` computes the target of a group of the consumer protocol: `groups.consumer.rules` ensures that the old owner
revokes a partition before the new owner gets it. Prior ownership is read from the store, never from members. `assign`
computes `sticky` and `cooperative-sticky` with `groups.sticky_assignor`.
`assign_as_leader` computes the assignment that the leader of a classic group sends. It calls the assignor itself.
"""

import importlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from kafka.coordinator.assignors.abstract import AbstractPartitionAssignor
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment, ConsumerProtocolSubscription

from spark_log.errors import AssignorFailedError, InconsistentGroupProtocolError, InvalidConfigurationError
from spark_log.groups.consumer.rules import NO_PARTITIONS, Partitions
from spark_log.groups.sticky_assignor import assign_sticky
from spark_log.ids import TopicPartition

Assignor: TypeAlias = AbstractPartitionAssignor
AssignorSpec: TypeAlias = type[AbstractPartitionAssignor] | AbstractPartitionAssignor | str
"""An assignor as a class, an instance, a name in `ASSIGNORS`, or a class path `package.module.Class`."""
_Subscriber: TypeAlias = tuple[str, str | None, ConsumerProtocolSubscription]
"""Member id, instance id, and the message with the member's subscription."""

ASSIGNORS: dict[str, type[Assignor]] = {
    kind.name: kind
    for kind in (
        RangePartitionAssignor,
        RoundRobinPartitionAssignor,
        StickyPartitionAssignor,
        CooperativeStickyAssignor,
    )
}
"""kafka-python's assignors by name."""

CLIENT_ASSIGNORS = frozenset({*ASSIGNORS, "RoundRobinAssigner"})
"""Names of the client assignors that a server assignor may replace when a group is upgraded. Custom assignors are not
among them. RoundRobinAssigner is KafkaJS's."""

_STICKY = (StickyPartitionAssignor, CooperativeStickyAssignor)
"""The assignors that `assign` does not call: it computes their assignments with `sticky_assignor`."""

UNIFORM = "uniform"
"""Kafka's name of its default assignor on the server. Here it names cooperative-sticky."""

NO_PREFERENCE = ""
"""A member whose list of assignors begins with this does not vote."""

SERVER_PREFERENCE = (NO_PREFERENCE, UNIFORM, "cooperative-sticky", "sticky", "range", "roundrobin")
"""The assignors of a member that leaves the choice to the other members, or to the server."""


@dataclass(frozen=True)
class Candidate:
    """A member to which `assign` assigns partitions."""

    member_id: str
    topics: frozenset[str]
    instance_id: str | None = None
    owned: Partitions = NO_PARTITIONS
    """The partitions of its last assignment."""


def known_assignors() -> dict[str, Assignor]:
    """Return the assignors that every process can run, by name: those of kafka-python, and UNIFORM."""
    return {**{name: kind() for name, kind in ASSIGNORS.items()}, UNIFORM: CooperativeStickyAssignor()}


def resolve_assignors(specs: Sequence[AssignorSpec]) -> dict[str, Assignor]:
    """Return the assignors by name, in order of preference.

    Raises InvalidConfigurationError if a spec does not name an assignor, two have the same name, or there are none.
    """
    assignors: dict[str, Assignor] = {}
    for spec in specs:
        kind = _import(spec) if isinstance(spec, str) else spec
        try:
            assignor = kind() if isinstance(kind, type) else kind
            name = assignor.name
        except Exception as error:
            raise InvalidConfigurationError(f"assignors: {spec!r} cannot be used: {error!r}") from error
        if not callable(getattr(assignor, "assign", None)) or not isinstance(name, str) or not name:
            raise InvalidConfigurationError(f"assignors: {spec!r} is not an assignor with a name and assign()")
        if name in assignors:
            raise InvalidConfigurationError(f"assignors: two have the name {name!r}")
        assignors[name] = assignor
    if not assignors:
        raise InvalidConfigurationError("assignors: at least one is needed")
    return assignors


def _import(path: str) -> Any:
    if path in ASSIGNORS:
        return ASSIGNORS[path]
    module, _, name = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidConfigurationError(
            f"assignors: {path!r} is neither one of {', '.join(ASSIGNORS)} nor a class path that can be imported:"
            f" {error}"
        ) from error


def choose_assignor(preferences: Iterable[Sequence[str]]) -> str:
    """Return the name of the assignor with the most votes among those that all members support.

    As in Kafka, each member votes for the first assignor of its list that all members support, unless the list begins
    with NO_PREFERENCE. The order of the first member's list breaks ties. `preferences` must not be empty. Raises
    InconsistentGroupProtocolError if no assignor is supported by all members.
    """
    lists = list(preferences)
    common = [name for name in lists[0] if name != NO_PREFERENCE and all(name in other for other in lists)]
    if not common:
        shown = " / ".join(sorted({", ".join(names) for names in lists}))
        raise InconsistentGroupProtocolError(f"no assignor is supported by all members of the group: {shown}")
    votes = [next(name for name in names if name in common or name == NO_PREFERENCE) for names in lists]
    return max(common, key=votes.count)


def is_custom(assignor: Assignor) -> bool:
    """Return whether the assignor is not one of kafka-python's, so that only the members of its group can run it."""
    return type(assignor) not in ASSIGNORS.values()


def assign(assignor: Assignor, candidates: Sequence[Candidate], counts: Mapping[str, int]) -> dict[str, Partitions]:
    """Return the assignment of every candidate, by member id. `assignor` is one of `known_assignors`.

    `counts` has the partition counts of the topics that exist. The assignor receives only these topics.
    """
    existing = [
        replace(
            c,
            topics=c.topics & counts.keys(),
            owned=frozenset(p for p in c.owned if p.topic in c.topics and p.partition < counts.get(p.topic, 0)),
        )
        for c in candidates
    ]
    ordered = sorted(existing, key=lambda c: (c.instance_id is None, c.instance_id or "", c.member_id))
    if type(assignor) is RoundRobinPartitionAssignor:
        return _round_robin(ordered, counts)
    if type(assignor) in _STICKY:
        return assign_sticky({c.member_id: c.topics for c in ordered}, {c.member_id: c.owned for c in ordered}, counts)
    members = [
        (c.member_id, c.instance_id, ConsumerProtocolSubscription(version=0, topics=sorted(c.topics), user_data=b""))
        for c in ordered
    ]
    given = {
        member_id: frozenset(TopicPartition(*p) for p in assignment.partitions())
        for member_id, assignment in _ask(assignor, members, counts).items()
    }
    return {c.member_id: given.get(c.member_id, NO_PARTITIONS) for c in ordered}


def assign_as_leader(
    assignor: Assignor, members: Sequence[tuple[str, str | None, bytes]], counts: Mapping[str, int]
) -> dict[str, bytes]:
    """Return encoded assignments by member id. `members` has the id, instance id and encoded subscription of each
    member.

    Raises AssignorFailedError if a subscription cannot be decoded, if the assignor raises, or if it assigns a partition
    twice, one that does not exist, one that its member does not subscribe to, or partitions to an unknown member.
    """
    try:
        subscribers = [
            (member_id, instance_id, ConsumerProtocolSubscription.decode(metadata))
            for member_id, instance_id, metadata in members
        ]
        encoded = {member_id: bytes(each.encode()) for member_id, each in _ask(assignor, subscribers, counts).items()}
        assignments = {
            member_id: [TopicPartition(*p) for p in ConsumerProtocolAssignment.decode(data).partitions()]
            for member_id, data in encoded.items()
        }
    except Exception as error:
        raise AssignorFailedError(f"assignor {assignor.name!r} failed: {error!r}") from error
    _check(
        assignor.name,
        {member_id: set(subscription.topics) for member_id, _, subscription in subscribers},
        counts,
        assignments,
    )
    return encoded


def _ask(assignor: Assignor, members: Sequence[_Subscriber], counts: Mapping[str, int]) -> Mapping[str, Any]:
    answer: Mapping[str, Any] = assignor.assign(_Topics(counts), [_Member(*each) for each in members])
    return answer


def _check(
    name: str, subscribed: Mapping[str, Collection[str]], counts: Mapping[str, int],
    given: Mapping[str, Sequence[TopicPartition]],
) -> None:  # fmt: skip
    owners: dict[TopicPartition, str] = {}
    for member_id, partitions in given.items():
        wrong = f"assignor {name!r}: its answer gives {member_id}"
        if member_id not in subscribed:
            raise AssignorFailedError(f"{wrong} partitions, but it is not a member of the group")
        for p in partitions:
            if not isinstance(p.partition, int) or not 0 <= p.partition < counts.get(p.topic, 0):
                raise AssignorFailedError(f"{wrong} {p}, which does not exist")
            if p.topic not in subscribed[member_id]:
                raise AssignorFailedError(f"{wrong} {p}, which it is not subscribed to")
            if p in owners:
                raise AssignorFailedError(f"{wrong} {p}, and {owners[p]} too")
            owners[p] = member_id


def _round_robin(ordered: Sequence[Candidate], counts: Mapping[str, int]) -> dict[str, Partitions]:
    """Assign like kafka-python's roundrobin, but skip members without the topic, for which it raises KeyError."""
    assigned: dict[str, set[TopicPartition]] = {c.member_id: set() for c in ordered}
    turn = 0
    for topic in sorted(counts):
        if not any(topic in c.topics for c in ordered):
            continue
        for number in range(counts[topic]):
            while topic not in ordered[turn % len(ordered)].topics:
                turn += 1
            assigned[ordered[turn % len(ordered)].member_id].add(TopicPartition(topic, number))
            turn += 1
    return {member_id: frozenset(partitions) for member_id, partitions in assigned.items()}


@dataclass(frozen=True)
class _Member:
    """The part of kafka-python's JoinGroupResponseMember that assignors read."""

    member_id: str
    group_instance_id: str | None
    metadata: ConsumerProtocolSubscription


class _Topics:
    """The part of kafka-python's ClusterMetadata that assignors read."""

    def __init__(self, counts: Mapping[str, int]) -> None:
        self._counts = counts

    def topics(self, exclude_internal_topics: bool = True) -> set[str]:
        return set(self._counts)

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        return set(range(self._counts[topic])) if topic in self._counts else None

    available_partitions_for_topic = partitions_for_topic
