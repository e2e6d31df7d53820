"""Decides which operation of which principal is allowed on which resource, by Kafka's ACLs. Pure.

A deny takes precedence over every allow. A resource without an ACL is allowed to super users only, unless
allow.everyone.if.no.acl.found is true. Numbers are those of Kafka's protocol (KIP-11, KIP-290).
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

WILDCARD = "*"
CLUSTER_NAME = "kafka-cluster"
"""The name of the one resource of type CLUSTER."""
WILDCARD_PRINCIPAL = "User:*"


class ResourceType(IntEnum):
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5


class PatternType(IntEnum):
    """ANY and MATCH are for filters: MATCH finds the patterns that apply to a name."""

    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Operation(IntEnum):
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


class Permission(IntEnum):
    ANY = 1
    DENY = 2
    ALLOW = 3


_IMPLY_DESCRIBE = (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER)
IMPLIED_BY: Mapping[Operation, Collection[Operation]] = {
    Operation.DESCRIBE: _IMPLY_DESCRIBE,
    Operation.DESCRIBE_CONFIGS: (Operation.ALTER_CONFIGS,),
}
"""An allow of one of these allows the operation too. A deny implies nothing."""

OPERATIONS: Mapping[ResourceType, Collection[Operation]] = {
    ResourceType.TOPIC: frozenset({
        Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE, Operation.ALTER, Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS,
    }),
    ResourceType.GROUP: frozenset({
        Operation.READ, Operation.DELETE, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS,
    }),
    ResourceType.CLUSTER: frozenset({
        Operation.CREATE, Operation.ALTER, Operation.DESCRIBE, Operation.CLUSTER_ACTION, Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS, Operation.IDEMPOTENT_WRITE,
    }),
    ResourceType.TRANSACTIONAL_ID: frozenset({Operation.WRITE, Operation.DESCRIBE}),
}  # fmt: skip
"""The operations that apply to each type of resource, as in Kafka's AclEntry.supportedOperations."""


@dataclass(frozen=True)
class Acl:
    """An allow or a deny. `host` is the address of a client, or *. `principal` is for example User:anna, or User:*."""

    resource_type: ResourceType
    resource_name: str
    pattern_type: PatternType
    principal: str
    host: str
    operation: Operation
    permission: Permission


@dataclass(frozen=True)
class AclFilter:
    """A filter of ACLs. None and ANY match everything."""

    resource_type: ResourceType = ResourceType.ANY
    resource_name: str | None = None
    pattern_type: PatternType = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: Operation = Operation.ANY
    permission: Permission = Permission.ANY

    def matches(self, acl: Acl) -> bool:
        """Whether the ACL matches, as in Kafka's AclBindingFilter. With MATCH, patterns are applied to the name."""
        return (
            self.resource_type in (ResourceType.ANY, acl.resource_type)
            and self._matches_name(acl)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (Operation.ANY, acl.operation)
            and self.permission in (Permission.ANY, acl.permission)
        )

    def _matches_name(self, acl: Acl) -> bool:
        if self.pattern_type not in (PatternType.ANY, PatternType.MATCH, acl.pattern_type):
            return False
        if self.resource_name is None or self.resource_name == acl.resource_name:
            return True
        return self.pattern_type is PatternType.MATCH and applies_to(acl, self.resource_name)


def applies_to(acl: Acl, name: str) -> bool:
    """Whether the ACL's pattern covers the resource `name` of the ACL's resource type."""
    if acl.pattern_type is PatternType.PREFIXED:
        return name.startswith(acl.resource_name)
    return acl.resource_name in (WILDCARD, name)


def fault_of(acl: Acl) -> str | None:
    """Return why the ACL cannot be created, or None if it can."""
    if acl.resource_type not in OPERATIONS or acl.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        return "expected one type of resource, and a literal or prefixed pattern"
    if acl.permission is Permission.ANY or acl.operation is Operation.ANY:
        return "ANY is for filters"
    if acl.operation is not Operation.ALL and acl.operation not in OPERATIONS[acl.resource_type]:
        return f"{acl.operation.name} has no meaning on {acl.resource_type.name}"
    if acl.resource_type is ResourceType.CLUSTER and acl.resource_name != CLUSTER_NAME:
        return f"the only resource of type CLUSTER is {CLUSTER_NAME!r}"
    kind, _, name = acl.principal.partition(":")
    if not kind or not name:
        return f"principal {acl.principal[:50]!r}: expected User:NAME"
    if not acl.resource_name or not acl.host:
        return "the name of the resource and the host must not be empty"
    return None


@dataclass(frozen=True)
class Rights:
    """All ACLs of a cluster, indexed. `super_users` may do everything."""

    acls: Collection[Acl]
    super_users: frozenset[str] = frozenset()
    allow_everyone_if_no_acl_found: bool = False

    @cached_property
    def _by_pattern(self) -> Mapping[tuple[PatternType, ResourceType, str], list[Acl]]:
        found: dict[tuple[PatternType, ResourceType, str], list[Acl]] = {}
        for acl in self.acls:
            found.setdefault((acl.pattern_type, acl.resource_type, acl.resource_name), []).append(acl)
        return found

    @cached_property
    def _prefix_lengths(self) -> Collection[int]:
        return sorted({len(name) for pattern, _, name in self._by_pattern if pattern is PatternType.PREFIXED})

    def _covering(self, resource_type: ResourceType, name: str) -> Iterable[Acl]:
        yield from self._by_pattern.get((PatternType.LITERAL, resource_type, name), ())
        if name != WILDCARD:
            yield from self._by_pattern.get((PatternType.LITERAL, resource_type, WILDCARD), ())
        for length in self._prefix_lengths:
            if length > len(name):
                break
            yield from self._by_pattern.get((PatternType.PREFIXED, resource_type, name[:length]), ())

    def allows(self, principal: str, host: str, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        """Whether the principal may do the operation on the resource from this host."""
        if principal in self.super_users:
            return True
        covering = list(self._covering(resource_type, name))
        if not covering:
            return self.allow_everyone_if_no_acl_found
        mine = [acl for acl in covering if _is_for(acl, principal, host)]
        if any(acl.permission is Permission.DENY and acl.operation in (operation, Operation.ALL) for acl in mine):
            return False
        enough = (operation, Operation.ALL, *IMPLIED_BY.get(operation, ()))
        return any(acl.permission is Permission.ALLOW and acl.operation in enough for acl in mine)

    def allows_any(self, principal: str, host: str, operation: Operation, resource_type: ResourceType) -> bool:
        """Whether the principal may do the operation on any resource of the type (authorizeByResourceType, KIP-679)."""
        if principal in self.super_users:
            return True
        mine = [
            acl
            for acl in self.acls
            if acl.resource_type is resource_type
            and _is_for(acl, principal, host)
            and acl.operation in (operation, Operation.ALL)
        ]
        denied = [acl for acl in mine if acl.permission is Permission.DENY]
        if any(_is_wildcard(acl) for acl in denied):
            return False
        if self.allow_everyone_if_no_acl_found:
            return True
        return any(
            acl.permission is Permission.ALLOW
            and (_is_wildcard(acl) or not any(_contains(each, acl) for each in denied))
            for acl in mine
        )


def _is_for(acl: Acl, principal: str, host: str) -> bool:
    return acl.principal in (principal, WILDCARD_PRINCIPAL) and acl.host in (host, WILDCARD)


def _is_wildcard(acl: Acl) -> bool:
    return acl.pattern_type is PatternType.LITERAL and acl.resource_name == WILDCARD


def _contains(outer: Acl, inner: Acl) -> bool:
    """Whether `outer`, which is not the wildcard, covers every name that `inner` covers."""
    if outer.pattern_type is PatternType.PREFIXED:
        return inner.resource_name.startswith(outer.resource_name)
    return inner.pattern_type is PatternType.LITERAL and inner.resource_name == outer.resource_name
