"""Defines a classic group, its members, and their requests and answers, as frozen values."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field


class State(enum.StrEnum):
    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"

    @property
    def must_rejoin(self) -> bool:
        """Whether the members must join again: their heartbeats are answered with REBALANCE_IN_PROGRESS."""
        return self is State.PREPARING


class Phase(enum.StrEnum):
    """The state of a member. In PreparingRebalance, SYNCING and SYNCED are members that have not joined again."""

    PENDING = "pending"
    """It has a member id, but has not joined with it. It is not a member yet, but a rebalance waits for it."""
    JOINING = "joining"
    """Its JoinGroup waits for the next generation."""
    SYNCING = "syncing"
    """The member is in the generation, and has not asked for its assignment."""
    SYNCED = "synced"


@dataclass(frozen=True)
class ClassicMember:
    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    protocols: tuple[tuple[str, bytes], ...]
    """Names and metadata, in the member's order of preference."""
    session_timeout_ms: int
    rebalance_timeout_ms: int
    until_ms: int
    """End of its session."""
    phase: Phase = Phase.JOINING
    assignment: bytes = b""

    def metadata(self, protocol: str) -> bytes:
        return dict(self.protocols).get(protocol, b"")


@dataclass(frozen=True)
class ClassicGroup:
    group_id: str
    generation: int
    state: State = State.EMPTY
    protocol_type: str = ""
    protocol: str = ""
    """The protocol of the generation, which all members support."""
    leader: str = ""
    """The member id of the leader, or "" if the group has none."""
    deadline_ms: int | None = None
    """In PreparingRebalance the end of the time to join; later the end of the time to ask for the assignment."""
    members: Mapping[str, ClassicMember] = field(default_factory=dict)
    """The members by id, including PENDING ones."""

    @property
    def joined(self) -> list[ClassicMember]:
        """The members without those that are PENDING, by member id."""
        return [member for _, member in sorted(self.members.items()) if member.phase is not Phase.PENDING]


@dataclass(frozen=True)
class Joining:
    """A JoinGroup request. A member without an id gets `new_id`; with `id_required` it must join again with it."""

    member_id: str
    new_id: str
    instance_id: str | None
    client_id: str
    host: str
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    session_timeout_ms: int
    rebalance_timeout_ms: int
    id_required: bool = False


@dataclass(frozen=True)
class JoinAnswer:
    """The answer to a JoinGroup. Only the leader gets `members`: each with its instance id and metadata.

    With `skip_assignment`, the leader has restarted as a static member, and the generation has its assignment
    (KIP-814).
    """

    generation: int
    protocol: str
    leader: str
    members: tuple[tuple[str, str | None, bytes], ...]
    skip_assignment: bool = False
