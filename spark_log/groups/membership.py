"""A consumer's membership in a group: joining, heartbeats, fenced commits, leaving."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_log.cluster.cluster import Cluster
from spark_log.ids import TopicPartition

if TYPE_CHECKING:
    from kafka.coordinator.assignors.abstract import AbstractPartitionAssignor
    from kafka.structs import OffsetAndMetadata


@dataclass(frozen=True)
class MemberSettings:
    """What a member says of itself when it joins."""

    client_id: str
    host: str
    instance_id: str | None
    """group.instance.id of a static member."""
    session_timeout_ms: int
    """Silence, by the store's clock, that ends its membership."""
    assignors: tuple[type[AbstractPartitionAssignor] | AbstractPartitionAssignor | str, ...]
    """In order of preference: kafka-python's, custom ones of that interface, or class paths `pkg.module.Class`."""


@dataclass(frozen=True)
class Assignment:
    """What a heartbeat answers."""

    generation: int
    partitions: frozenset[TopicPartition]
    """May be read now. What was reported as owned and is missing here must be given up, and said so by the next
    heartbeat."""
    complete: bool
    """False: more is coming once other members have let go (or we have), heartbeat again soon."""


class GroupMember:
    """One consumer's place in a group. Safe to share between threads."""

    def __init__(self, cluster: Cluster, group_id: str, settings: MemberSettings) -> None:
        self.member_id = ""
        self.generation = -1

    def heartbeat(self, topics: Collection[str], owned: Collection[TopicPartition]) -> Assignment:
        """Join if need be, say what is subscribed and owned, learn what may be read.

        Raises UnknownMemberIdError: the session is lost, and with it everything owned; the next call joins anew.
        FencedInstanceIdError: another member has taken over this instance id. InvalidSessionTimeoutError,
        InvalidGroupIdError, InconsistentGroupProtocolError: nothing was joined.
        """
        raise NotImplementedError

    def keep_alive(self) -> bool:
        """Renew the session, from a background thread. True: something changed, call `heartbeat` soon."""
        raise NotImplementedError

    def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Commit next offsets to read, only while this is a member of the current generation.

        Raises IllegalGenerationError, UnknownMemberIdError, FencedInstanceIdError; then nothing is committed.
        """
        raise NotImplementedError

    def leave(self) -> None:
        """Leave the group, so that others take over at once. A static member stays until its session ends."""
        raise NotImplementedError
