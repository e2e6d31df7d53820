"""Describes groups: their list, their members, and their lag. Reads only, each answer from one snapshot."""

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Literal

import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.each_store import ask_stores, by_store
from spark_log.cluster.topics import Topic, find_topics
from spark_log.facts.share_partitions import share_partitions
from spark_log.groups.classic import group as classic_group
from spark_log.groups.classic.group import ClassicGroup, ClassicMember
from spark_log.groups.classic.rows import read_all_classic, read_classic
from spark_log.groups.classic.rules import advance
from spark_log.groups.committed_offsets import Commit, read_commits
from spark_log.groups.consumer import rows
from spark_log.groups.consumer.rules import NO_PARTITIONS, Group, Member, Partitions
from spark_log.ids import TopicPartition
from spark_log.log.segments.plan import positions
from spark_log.log.segments.slices import Positions
from spark_log.metadata.store import Store
from spark_log.metadata.store_clock import StoreClock

State = Literal["Empty", "Assigning", "Reconciling", "PreparingRebalance", "CompletingRebalance", "Stable", "Dead"]
"""Kafka's names (KIP-848). Empty: no live members. Assigning: targets are to be computed. Reconciling: members are
still revoking or getting partitions. Dead: the group does not exist. PreparingRebalance and CompletingRebalance are
states of classic groups (`groups.classic.rules`).
"""

GROUP_TYPE = "consumer"
"""Kafka's name for groups whose assignment the server computes."""
CLASSIC_TYPE = "classic"
"""Kafka's name for groups whose leader assigns, and for groups all of whose members speak the classic protocol."""
SHARE_TYPE = "share"
"""Kafka's name for share groups, and the protocol type of these (`facts.share_groups`)."""
PROTOCOL_TYPE = "consumer"
_SHARE_ASSIGNOR = "simple"
"""Kafka's name for the assignor of share groups."""


_STATES: dict[classic_group.State, State] = {
    classic_group.State.EMPTY: "Empty",
    classic_group.State.PREPARING: "PreparingRebalance",
    classic_group.State.COMPLETING: "CompletingRebalance",
    classic_group.State.STABLE: "Stable",
}


@dataclass(frozen=True)
class GroupListing:
    group_id: str
    state: State
    members: int
    """Number of live members."""
    topics: frozenset[str] = frozenset()
    """Topics to which live members have subscribed."""
    type: str = GROUP_TYPE
    protocol_type: str = PROTOCOL_TYPE
    """The protocol type: consumer, share, or that of a classic group, such as connect."""


@dataclass(frozen=True)
class Encoded:
    """The data that members of a classic group exchange."""

    metadata: bytes
    assignment: bytes


@dataclass(frozen=True)
class MemberDescription:
    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    topics: frozenset[str]
    assignment: Partitions
    """The partitions that were assigned to the member and that it has not revoked. Members of a share group have all
    partitions of their topics.
    """
    target: Partitions
    """The partitions of the member's target assignment."""
    generation: int
    """The generation of its last heartbeat response."""
    session_left_ms: int
    encoded: Encoded | None = None
    """The encoded data of a member of a classic group. For a consumer, `topics` and `assignment` have them decoded."""
    protocol: str = rows.CONSUMER
    """The protocol of the member: classic, consumer or share."""
    names: frozenset[str] = frozenset()
    """The topics that it has subscribed to by name; the others of `topics` match its regular expression."""
    regex: str | None = None
    rack: str | None = None


@dataclass(frozen=True)
class GroupDescription:
    group_id: str
    state: State
    assignor: str
    """The name of the assignor; empty before the first assignment."""
    generation: int
    members: tuple[MemberDescription, ...]
    type: str = GROUP_TYPE
    protocol_type: str = PROTOCOL_TYPE
    """The protocol type: consumer, share, or that of a classic group, such as connect."""
    target_generation: int = 0
    """The generation of the targets: Kafka's assignment epoch."""

    @property
    def topics(self) -> frozenset[str]:
        """The topics of the subscriptions, assignments and target assignments of the members."""
        return frozenset(
            topic
            for member in self.members
            for topic in (*member.topics, *(each.topic for each in member.assignment | member.target))
        )


@dataclass(frozen=True)
class PartitionLag:
    """A group's lag in a partition. `lag` is None without a commit; it includes deleted records below `log_start`.

    For a share group, `committed` is its start offset, and `lag` is that of `SharePartition`.
    """

    topic: str
    partition: int
    committed: int | None
    log_start: int
    log_end: int
    """The high watermark: the end of the readable records."""
    lag: int | None
    metadata: str
    member: MemberDescription | None
    """The member to which the partition is assigned. None for a share group, whose members share all partitions."""


def state_of(group: Group, members: Sequence[Member]) -> State:
    """Return the state of a group with these live members."""
    if not members:
        return "Empty"
    if group.stale:
        return "Assigning"
    settled = all(m.settled and m.generation == group.target_generation for m in members)
    return "Stable" if settled else "Reconciling"


def list_groups(store: Store, *, with_topics: bool = False) -> list[GroupListing]:
    """Return every group with members or offsets, by id. The groups' topics are read only with `with_topics`, because
    subscriptions and the metadata of classic members may be large.
    """
    return store.read(lambda connection: read_groups(connection, store.clock(connection), with_topics=with_topics))


def read_groups(connection: sa.Connection, now: StoreClock, *, with_topics: bool = False) -> list[GroupListing]:
    """Return every group with members or offsets, by id, in the snapshot of `connection`."""
    members = rows.read_all_members(connection, with_subscriptions=with_topics)
    classic = read_all_classic(connection, now)
    return [
        _list_classic(connection, classic[group_id], now, with_topics=with_topics)
        if group_id in classic
        else _listing(group_id, group, kind, [row for row in members.get(group_id, ()) if row.live(now)])
        for group_id, (group, kind) in rows.read_all_groups(connection).items()
    ]


def _listing(group_id: str, group: Group, kind: str, live: Sequence[rows.MemberRow]) -> GroupListing:
    topics = frozenset(topic for row in live for topic in row.subscription.topics)
    if kind == SHARE_TYPE:
        return GroupListing(group_id, _share_state(live), len(live), topics, kind, SHARE_TYPE)
    return GroupListing(group_id, state_of(group, [row.member for row in live]), len(live), topics, kind)


def _share_state(live: Sequence[rows.MemberRow]) -> State:
    """Return the state of a share group with these live members: nothing is assigned, so it is at once stable."""
    return "Stable" if live else "Empty"


def _list_classic(
    connection: sa.Connection, group: ClassicGroup, now: StoreClock, *, with_topics: bool
) -> GroupListing:  # fmt: skip
    """Return the listing of a classic group. `group` lacks the metadata, which is read for `with_topics`."""
    whole = read_classic(connection, group.group_id, now) if with_topics else None
    group = advance(group if whole is None else whole, now.lease_ms)
    topics = frozenset(topic for member in group.joined for topic in _topics_of(group, member))
    state, kind = _STATES[group.state], group.protocol_type
    return GroupListing(group.group_id, state, len(group.joined), topics, CLASSIC_TYPE, kind)


def describe_groups(store: Store, group_ids: Collection[str]) -> list[GroupDescription]:
    """Return the groups in the requested order; a group that does not exist has state Dead, as in Kafka."""

    def read(connection: sa.Connection) -> list[GroupDescription]:
        now = store.clock(connection)
        return [describe_group(connection, now, group_id) for group_id in group_ids]

    return store.read(read)


def records_behind(committed: int, end: int) -> int:
    """Return the lag of a group in a partition whose high watermark is `end`; 0 after a reset beyond it."""
    return max(0, end - committed)


def group_lag(cluster: Cluster, group_id: str) -> list[PartitionLag]:
    """Return the lags, in order, of the partitions that have a commit, are assigned to a member, or are in a target
    assignment. Partitions whose store does not answer are left out.
    """
    store = cluster.store

    def read(connection: sa.Connection) -> list[PartitionLag] | _GroupPositions:
        described = describe_group(connection, store.clock(connection), group_id)
        if described.type == SHARE_TYPE:
            return [
                PartitionLag(
                    each.topic, each.partition, each.start, each.log_start, each.high_watermark, each.lag, "", None
                )
                for each in share_partitions(connection, group_id)
            ]
        commits = read_commits(connection, group_id)
        owners = {partition: member for member in described.members for partition in member.assignment}
        wanted = commits.keys() | owners.keys() | {p for member in described.members for p in member.target}
        topics = find_topics(connection, {p.topic for p in wanted})
        return _GroupPositions(commits, owners, wanted, topics, positions(connection, topics.values()))

    group_facts = store.read(read)
    if not isinstance(group_facts, _GroupPositions):
        return group_facts
    limits = {**group_facts.limits, **_limits_elsewhere(cluster, group_facts.topics.values())}
    lags = []
    for partition in sorted(group_facts.partitions & limits.keys()):
        start, end = limits[partition]
        commit = group_facts.commits.get(partition)
        lags.append(
            PartitionLag(
                partition.topic, partition.partition, commit.offset if commit else None, start, end,
                records_behind(commit.offset, end) if commit else None, commit.metadata if commit else "",
                group_facts.owners.get(partition),
            )
        )  # fmt: skip
    return lags


@dataclass(frozen=True)
class _GroupPositions:
    """The partitions of a group, their commits and owners, and the limits of those that the home store has."""

    commits: Mapping[TopicPartition, Commit]
    owners: Mapping[TopicPartition, MemberDescription]
    partitions: Set[TopicPartition]
    topics: Mapping[str, Topic]
    limits: Mapping[TopicPartition, Positions]


def _limits_elsewhere(cluster: Cluster, topics: Iterable[Topic]) -> dict[TopicPartition, Positions]:
    """Return log start offsets and high watermarks in topics of data stores that answer."""
    elsewhere = by_store(topic for topic in topics if topic.store_id != cluster.store_id)
    if not elsewhere:
        return {}
    answers = ask_stores(
        cluster, lambda each: each.store.read(lambda c: positions(c, elsewhere[each.store_id])), elsewhere
    )
    return {partition: limit for found in answers.results.values() for partition, limit in found.items()}


def live_members(connection: sa.Connection, now: StoreClock, group_id: str) -> list[rows.MemberRow]:
    """Return the members whose session has not ended, with their assigned partitions."""
    assigned: dict[str, set[TopicPartition]] = {}
    for partition, member_id in rows.owners(connection, group_id).items():
        assigned.setdefault(member_id, set()).add(partition)
    return [
        replace(row, member=replace(row.member, assigned=frozenset(assigned.get(row.member_id, ()))))
        for row in rows.read_members(connection, group_id)
        if row.live(now)
    ]


def describe_group(connection: sa.Connection, now: StoreClock, group_id: str) -> GroupDescription:
    """Return a group in the snapshot of `connection`; one that does not exist has state Dead, as in Kafka."""
    row = rows.read_group(connection, group_id)
    if row is None:
        return GroupDescription(group_id, "Dead", "", 0, ())
    classic = read_classic(connection, group_id, now)
    if classic is not None:
        return _describe_classic(advance(classic, now.lease_ms), now.lease_ms)
    members = live_members(connection, now, group_id)
    if row.type == SHARE_TYPE:
        members = [_with_all_partitions(row, member) for member in members]
    shown = tuple(
        MemberDescription(
            m.member_id, m.instance_id, m.client_id, m.host, m.subscription.topics, m.member.assigned, m.member.target,
            m.member.generation, m.until_ms - now.lease_ms, None, m.protocol,
            m.subscription.topics if m.subscription.pattern is None else m.subscription.pattern.names,
            None if m.subscription.pattern is None else m.subscription.pattern.regex,
            m.epochs.rack,
        )
        for m in members
    )  # fmt: skip
    if row.type == SHARE_TYPE:
        return GroupDescription(
            group_id, _share_state(members), _SHARE_ASSIGNOR, row.group.generation, shown, row.type, SHARE_TYPE,
            row.group.generation,
        )  # fmt: skip
    state = state_of(row.group, [m.member for m in members])
    return GroupDescription(
        group_id, state, row.assignor, row.group.generation, shown, row.type,
        target_generation=row.group.target_generation,
    )  # fmt: skip


def _with_all_partitions(group: rows.GroupRow, row: rows.MemberRow) -> rows.MemberRow:
    topics = {name: fact for name, fact in group.topics.items() if name in row.subscription.topics}
    partitions = frozenset(
        TopicPartition(name, n) for name, fact in topics.items() for n in range(fact.partition_count)
    )
    return replace(row, member=replace(row.member, assigned=partitions, target=partitions))


def _describe_classic(group: ClassicGroup, now_ms: int) -> GroupDescription:
    members = []
    for member in group.joined:
        partitions = _partitions_of(group, member)
        encoded = Encoded(member.metadata(group.protocol), member.assignment)
        members.append(
            MemberDescription(
                member.member_id, member.instance_id, member.client_id, member.host, _topics_of(group, member),
                partitions, partitions, group.generation, member.until_ms - now_ms, encoded, CLASSIC_TYPE,
            )
        )  # fmt: skip
    return GroupDescription(
        group.group_id, _STATES[group.state], group.protocol, group.generation, tuple(members), CLASSIC_TYPE,
        group.protocol_type, group.generation,
    )  # fmt: skip


def _topics_of(group: ClassicGroup, member: ClassicMember) -> frozenset[str]:
    """Return the topics of a consumer's subscription. There are none for other member types, and for invalid bytes."""
    from spark_log.groups.consumer_messages import subscription_of  # it imports kafka-python, which is slow

    message = subscription_of(group, member)
    return frozenset() if message is None else message.topics


def _partitions_of(group: ClassicGroup, member: ClassicMember) -> Partitions:
    """Return the partitions of a consumer's assignment. There are none for other types, and for invalid bytes."""
    if group.protocol_type != PROTOCOL_TYPE or not member.assignment:
        return NO_PARTITIONS
    from spark_log.groups.consumer_messages import decode_assignment

    return decode_assignment(member.assignment) or NO_PARTITIONS
