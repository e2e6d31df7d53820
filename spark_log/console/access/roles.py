"""Defines users and their roles. Pure."""

import fnmatch
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property


class Allow(StrEnum):
    """A kind of change. A change is refused unless both option --allow and the user's role have its kind."""

    PRODUCE = "produce"
    OFFSETS = "offsets"
    CONFIGS = "configs"
    TOPICS = "topics"


EVERY_CHANGE = frozenset(Allow)


@dataclass(frozen=True)
class Role:
    """The data that a user may see, and the changes that the user may make.

    `topics` has patterns such as `orders-*`. A topic that matches none of them does not exist for the user. `messages`
    is whether keys, values and headers are shown. `masked` has the fields of messages that are hidden, such as
    `record.email` or `value.ssn`.
    """

    allows: frozenset[Allow] = frozenset()
    topics: tuple[str, ...] = ("*",)
    messages: bool = True
    masked: frozenset[str] = frozenset()

    @cached_property
    def sees_all(self) -> bool:
        return "*" in self.topics

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile("|".join(fnmatch.translate(pattern) for pattern in self.topics) or r"(?!)")

    def sees(self, topic: str) -> bool:
        return self.sees_all or self._pattern.match(topic) is not None


@dataclass(frozen=True)
class User:
    name: str
    role: Role
    groups: tuple[str, ...] = field(default=())


EVERYONE = "*"
"""The group that every user belongs to."""


def role_of(groups: Sequence[str], roles: Mapping[str, Role]) -> Role | None:
    """Return the role of the first group in `roles` to which the user belongs, or None if the user has no access.

    Roles are not combined: else a user could make the changes of one role in the topics of another.
    """
    return next((role for group, role in roles.items() if group == EVERYONE or group in groups), None)
