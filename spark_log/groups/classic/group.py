"""Defines a classic group, its members, and their requests and answers, as frozen values.

Times (`until_ms`, `deadline_ms`) are milliseconds of the store's lease clock.
"""

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
        """Return whether the members must join again. Then their heartbeats get REBALANCE_IN_PROGRESS."""
        return self is State.PREPARING


class Phase(enum.StrEnum):
    """The state of a member. In PreparingRebalance, members in SYNCING and SYNCED have not joined again yet."""

    PENDING = "pending"
    """The client has a member id, but has not joined with it. It is not a member yet, but a rebalance waits for it."""
    JOINING = "joining"
    """The member's JoinGroup waits for the next generation."""
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
    """The end of the session."""
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
    """The protocol of the generation, which all members support; empty if the group has no generation with members."""
    leader: str = ""
    """The member id of the leader, or "" if the group has none."""
    deadline_ms: int | None = None
    """In PreparingRebalance, the end of the time to join. Later, the end of the time to ask for the assignment; None if
    no member has to ask.
    """
    members: Mapping[str, ClassicMember] = field(default_factory=dict)
    """The members by id, including PENDING ones."""

    @property
    def joined(self) -> list[ClassicMember]:
        """Return the members that are not PENDING, in the order of their ids."""
        return [member for _, member in sorted(self.members.items()) if member.phase is not Phase.PENDING]


@dataclass(frozen=True)
class Joining:
    """A JoinGroup request. If `member_id` is empty, the member gets `new_id`. With `id_required`, a dynamic member must
    then join again with this id.
    """

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
    """The answer to a JoinGroup. Only the leader gets `members`: the id, instance id and metadata of each.

    With `skip_assignment`, the leader is a static member that has restarted, and the generation has its assignment
    already (KIP-814).
    """

    generation: int
    protocol: str
    leader: str
    members: tuple[tuple[str, str | None, bytes], ...]
    skip_assignment: bool = False
