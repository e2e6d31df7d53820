"""Defines the identity of a member."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Identity:
    """The identity of a member, which is the same in all its requests."""

    group_id: str
    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    session_timeout_ms: int = 0
    """With 0, the group's timeout applies (group.consumer.session.timeout.ms)."""
