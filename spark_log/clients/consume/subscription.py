"""Keeps the state of a consumer: its subscription, its partitions and its position in each. Uses no clock and no store.

A partition's position is in one of three states:

    missing    unknown: the committed offset decides it, or the reset policy if there is none
    awaiting   a reset to the beginning or the end has been requested
    valid      the next offset to read is known

Only partitions with a valid position that are neither paused nor being revoked are read.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from kafka.consumer.subscription_state import AsyncConsumerRebalanceListener, ConsumerRebalanceListener
from kafka.structs import OffsetAndMetadata, TopicPartition
from kafka.util import ensure_valid_topic_name

from spark_log import ids
from spark_log.cluster.names import is_internal
from spark_log.errors import (
    IllegalArgumentError,
    IllegalStateError,
    LogTruncationError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
)
from spark_log.groups.committed_offsets import Commit, checked_epoch
from spark_log.log.partitions.lineage import UNKNOWN_EPOCH, diverging_offset
from spark_log.log.partitions.replication_rules import Truncation
from spark_log.log.segments.plan import PartitionSnapshot

Reset = Literal["earliest", "latest"]
Policy = Literal["earliest", "latest", "none"]

_ONE_WAY = (
    "choose one way to use a consumer: subscribe to topics by name, subscribe to a pattern, or assign partitions"
    " (unsubscribe() first to change)"
)


@dataclass
class PartitionState:
    """A consumer's position in one partition: an offset with a leader epoch, in the topic with `topic_id`."""

    offset: int | None = None
    """Next offset to read, or None if it is unknown."""
    leader_epoch: int = UNKNOWN_EPOCH
    """Epoch of the last record read, or of the partition when the position was found."""
    reset: Reset | None = None
    """Requested reset, which the next read of the partition's offsets resolves."""
    paused: bool = False
    leaving: bool = False
    """Whether the partition is being revoked, while the listener is called."""
    high_watermark: int | None = None
    """High watermark at the last read of the store."""
    topic_id: int | None = None
    """Topic that the position belongs to: a recreated topic has other records. None means the current topic."""

    @property
    def fetchable(self) -> bool:
        return self.offset is not None and not self.paused and not self.leaving

    def seek(self, offset: int, leader_epoch: int = UNKNOWN_EPOCH) -> None:
        """Move within the topic of the position."""
        self.offset, self.leader_epoch, self.reset = offset, leader_epoch, None

    def replace_by(self, position: Commit) -> None:
        """Take a position that may be of another topic than the present one."""
        self.seek(position.offset, position.leader_epoch)
        self.topic_id = position.topic_id

    def ask_reset(self, to: Reset | None) -> None:
        """Replace the position by a requested reset. None resets to the committed offset, if there is one."""
        self.offset, self.leader_epoch, self.reset = None, UNKNOWN_EPOCH, to


@dataclass(frozen=True)
class Move:
    """The difference between two assignments. Partitions in both stay unchanged."""

    revoked: frozenset[TopicPartition]
    added: frozenset[TopicPartition]


def move_of(owned: Collection[TopicPartition], assigned: Collection[ids.TopicPartition]) -> Move:
    """Return the move from the owned to the assigned partitions, in kafka-python's type."""
    theirs = {TopicPartition(*partition) for partition in assigned}
    return Move(frozenset(set(owned) - theirs), frozenset(theirs - set(owned)))


@dataclass
class Subscription:
    """The subscription and the partitions of one consumer. A method that raises an error changes nothing."""

    kind: Literal["", "topics", "pattern", "assigned"] = ""
    topics: set[str] | None = None
    """The subscribed topics; for a pattern, the topics that it matches."""
    pattern: re.Pattern[str] | None = None
    listener: ConsumerRebalanceListener | AsyncConsumerRebalanceListener | None = None
    partitions: dict[TopicPartition, PartitionState] = field(default_factory=dict)

    @property
    def automatic(self) -> bool:
        """Whether partitions come from a subscription."""
        return self.kind in ("topics", "pattern")

    def subscribe(self, topics: Sequence[str], pattern: str | None, listener: Any) -> None:
        if not topics and not pattern:
            raise ValueError("topics, pattern: one of them is needed")
        if topics and pattern:
            raise IllegalStateError(_ONE_WAY)
        kind: Literal["topics", "pattern"] = "pattern" if pattern else "topics"
        if self.kind not in ("", kind):
            raise IllegalStateError(_ONE_WAY)
        if listener is not None and not isinstance(
            listener, ConsumerRebalanceListener | AsyncConsumerRebalanceListener
        ):
            raise TypeError("listener must be a ConsumerRebalanceListener or AsyncConsumerRebalanceListener")
        if pattern:
            compiled = re.compile(pattern)
            if self.pattern is None or compiled != self.pattern:
                self.topics = set()
            self.pattern = compiled
        else:
            if isinstance(topics, str) or not isinstance(topics, Sequence):
                raise TypeError("topics must be a list of names")
            for topic in topics:
                ensure_valid_topic_name(topic)
            self.topics = set(topics)
        self.kind, self.listener = kind, listener

    def assign_from_user(self, partitions: Iterable[TopicPartition]) -> None:
        assigned = [checked_partition(partition) for partition in partitions]
        for topic, number in assigned:
            ensure_valid_topic_name(topic)
            if isinstance(number, bool) or not isinstance(number, int) or number < 0:
                raise ValueError(f"partition: {number!r} of topic {topic!r} is not a number from 0")
        if self.kind not in ("", "assigned"):
            raise IllegalStateError(_ONE_WAY)
        self.kind = "assigned"
        self.apply(move_of(self.partitions, assigned))

    def unsubscribe(self) -> None:
        self.kind, self.topics, self.pattern = "", None, None
        self.partitions.clear()

    def apply(self, move: Move) -> None:
        for partition in move.revoked:
            self.partitions.pop(partition, None)
        for partition in sorted(move.added):
            self.partitions[partition] = PartitionState()

    def matching(self, names: Iterable[str], exclude_internal: bool) -> set[str]:
        """Return the topics in `names` that are subscribed to."""
        if self.pattern is not None:
            named = {name for name in names if self.pattern.match(name)}
            return {name for name in named if not is_internal(name)} if exclude_internal else named
        return set(names) & (self.topics or set())

    def state(self, partition: object) -> PartitionState:
        """Return the state of an assigned partition. Raises IllegalStateError if it is not assigned."""
        found = self.partitions.get(checked_partition(partition))
        if found is None:
            raise IllegalStateError(f"partition {partition} is not assigned")
        return found

    def assigned(self, partitions: Sequence[object]) -> list[TopicPartition]:
        """Return the given partitions, by default all. Raises ValueError if one is not assigned, or if none are."""
        checked = [checked_partition(partition) for partition in partitions]
        for partition in checked:
            if partition not in self.partitions:
                raise ValueError(f"Unassigned partition: {partition}")
        if not checked and not self.partitions:
            raise ValueError("No partitions are currently assigned")
        return checked or list(self.partitions)

    def fetchable(self) -> dict[TopicPartition, PartitionState]:
        return {partition: state for partition, state in self.partitions.items() if state.fetchable}

    def consumed(self) -> dict[TopicPartition, Commit]:
        """Return the positions to commit."""
        return {
            partition: Commit(state.offset, "", state.leader_epoch, state.topic_id)
            for partition, state in list(self.partitions.items())
            if state.offset is not None
        }

    def topic_ids(self) -> dict[TopicPartition, int]:
        """Return the known ids of the topics that are read, by partition."""
        states = list(self.partitions.items())
        return {partition: state.topic_id for partition, state in states if state.topic_id is not None}

    def of_their_topics(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> dict[TopicPartition, Commit]:
        """Return the user's offsets with the topic ids of the assigned partitions."""
        ids = self.topic_ids()
        return {
            partition: Commit(given.offset, given.metadata, given.leader_epoch, ids.get(partition))
            for partition, given in offsets.items()
        }


def settle(
    partition: TopicPartition,
    state: PartitionState,
    current: PartitionSnapshot,
    truncations: Iterable[Truncation],
    policy: Policy,
) -> None:
    """Update a position to the current partition: apply a requested reset, a truncation, or the policy if the position
    is missing or out of range. `truncations` are those of the partition with a leader epoch above the position's.

    Afterwards log start offset <= offset <= high watermark, and no truncation has removed records below the offset. A
    truncated position goes back to the first diverging offset, as in Kafka's clients (KIP-320). The policy "none"
    raises LogTruncationError, OffsetOutOfRangeError with the partition and its offset, or NoOffsetForPartitionError if
    there is no position; the state is then unchanged.
    """
    topic_id, (start, end), leader_epoch = current.topic_id, current.positions, current.leader_epoch
    offset, epoch, reset = state.offset, state.leader_epoch, state.reset
    recreated = state.topic_id not in (None, topic_id)
    if offset is not None and not recreated:
        diverging = diverging_offset(offset, epoch, truncations)
        if diverging is not None:
            if policy == "none":
                raise LogTruncationError({partition: OffsetAndMetadata(diverging, "", epoch)}, {partition: offset})
            offset = diverging
    if reset is None and (offset is None or recreated or not start <= offset <= end):
        if policy == "none":
            if offset is None:
                raise NoOffsetForPartitionError({partition})
            raise OffsetOutOfRangeError({partition: offset})
        reset = policy
    if reset is not None:
        offset, epoch = start if reset == "earliest" else end, leader_epoch
    assert offset is not None
    state.seek(offset, leader_epoch if epoch == UNKNOWN_EPOCH else epoch)
    state.topic_id, state.high_watermark = topic_id, end


def checked_partition(partition: object) -> TopicPartition:
    """Return kafka-python's TopicPartition. Raises TypeError unless it is kafka-python's or spark-log's."""
    if isinstance(partition, TopicPartition):
        return partition
    if isinstance(partition, ids.TopicPartition):
        return TopicPartition(*partition)
    raise TypeError(f"partition must be a TopicPartition namedtuple, got {partition!r}")


def checked_position(place: TopicPartition, given: object) -> Commit:
    """Return the position to seek to. It is in the current topic, unless `given` is a Commit with another topic's id.
    Raises ValueError for an invalid offset, and IllegalArgumentError for an invalid leader epoch.
    """
    offset, _, epoch = given[:3] if isinstance(given, OffsetAndMetadata | Commit) else (given, "", UNKNOWN_EPOCH)
    topic_id = given.topic_id if isinstance(given, Commit) else None
    if isinstance(offset, bool) or not isinstance(offset, int) or offset < 0:
        raise ValueError(f"Offset must be int >= 0, got {offset!r}")
    return Commit(offset, "", checked_epoch(place, epoch), topic_id)


def checked_offsets(offsets: Mapping[Any, Any]) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the valid offsets to commit. TypeError or IllegalArgumentError names an invalid one."""
    if not isinstance(offsets, Mapping):
        raise TypeError("offsets must be dict[TopicPartition, OffsetAndMetadata]")
    checked = {}
    for key, value in offsets.items():
        partition = checked_partition(key)
        if not isinstance(value, OffsetAndMetadata):
            raise TypeError(f"offsets must be dict[TopicPartition, OffsetAndMetadata], got {value!r} for {partition}")
        offset, metadata, epoch = value
        if isinstance(offset, bool) or not isinstance(offset, int) or not 0 <= offset < 2**63 - 1:
            raise IllegalArgumentError(f"offset: {offset!r} for {partition} is not an integer >= 0")
        if metadata is not None and not isinstance(metadata, str):
            raise IllegalArgumentError(f"metadata: {metadata!r} for {partition} is not text")
        checked[partition] = OffsetAndMetadata(offset, metadata or "", checked_epoch(partition, epoch))
    return checked
