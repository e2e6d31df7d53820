"""Manages access control lists, with kafka-python's types. Changes are recorded in `__audit`."""

from collections.abc import Sequence
from typing import Any

from kafka.admin import (
    ACL,
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ResourcePattern,
)
from kafka.admin import ResourceType as KafkaResourceType

from spark_log.clients.admin.audit import recorded
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.security import acls as stored
from spark_log.cluster.security.acl_rules import Acl, AclFilter, Operation, PatternType, Permission, ResourceType
from spark_log.errors import IllegalArgumentError, SparkLogError


def create_acls(cluster: Cluster, who: str, source: str, acls: Sequence[Acl]) -> list[SparkLogError | None]:
    """Add ACLs; return the error of each, or None for success. `who` and `source` are for the audit."""
    outcomes: list[SparkLogError | None] = []
    for acl in acls:
        try:
            with recorded(cluster, who, "CreateAcls", target_of(acl), facts_of(acl), source):
                stored.add_acls(cluster.store, [acl])
            outcomes.append(None)
        except SparkLogError as error:
            outcomes.append(error)
    return outcomes


def find_acls(cluster: Cluster, filter_: AclFilter) -> list[Acl]:
    return [acl for acl in stored.read_acls(cluster.store) if filter_.matches(acl)]


def delete_acls(cluster: Cluster, who: str, source: str, filters: Sequence[AclFilter]) -> list[list[Acl]]:
    """Delete the ACLs that the filters match; return these ACLs by filter. `who` and `source` are for the audit."""
    found = stored.remove_acls(cluster.store, filters)
    for acl in dict.fromkeys(acl for acls in found for acl in acls):
        with recorded(cluster, who, "DeleteAcls", target_of(acl), facts_of(acl), source):
            pass
    return found


def target_of(acl: Acl) -> str:
    """Return the resource in the form that the audit and the command line use."""
    prefixed = "prefix " if acl.pattern_type is PatternType.PREFIXED else ""
    return f"{acl.resource_type.name.lower()} {prefixed}{acl.resource_name}"


def facts_of(acl: Acl) -> dict[str, str]:
    return {
        "principal": acl.principal,
        "host": acl.host,
        "operation": acl.operation.name,
        "permission": acl.permission.name,
    }


def acl_of(given: Any) -> Acl:
    """Convert kafka-python's ACL. Raises IllegalArgumentError for another type, or an unknown number."""
    if not isinstance(given, ACL):
        raise IllegalArgumentError(f"acls: expected ACL objects, got {type(given).__name__}")
    return acl_of_numbers(*_fields(given))


def filter_of(given: Any) -> AclFilter:
    """Convert kafka-python's ACLFilter. Raises IllegalArgumentError for another type, or an unknown number."""
    if not isinstance(given, ACLFilter):
        raise IllegalArgumentError(f"ACL filter: expected an ACLFilter object, got {type(given).__name__}")
    return filter_of_numbers(*_fields(given))


def _fields(given: ACLFilter) -> tuple[int, str, int, str, str, int, int]:
    pattern = given.resource_pattern
    return (
        pattern.resource_type, pattern.resource_name, pattern.pattern_type, given.principal, given.host,
        given.operation, given.permission_type,
    )  # fmt: skip


def acl_of_numbers(
    resource_type: int, name: str, pattern: int, principal: str, host: str, operation: int, permission: int
) -> Acl:
    """Return the ACL with Kafka's numbers. Raises IllegalArgumentError for an unknown number."""
    kinds = _kinds("ACL", resource_type, pattern, operation, permission)
    return Acl(kinds[0], name, kinds[1], principal, host, *kinds[2:])


def filter_of_numbers(
    resource_type: int, name: str | None, pattern: int, principal: str | None, host: str | None, operation: int,
    permission: int,
) -> AclFilter:  # fmt: skip
    """Return the filter with Kafka's numbers. Raises IllegalArgumentError for an unknown number."""
    kinds = _kinds("ACL filter", resource_type, pattern, operation, permission)
    return AclFilter(kinds[0], name, kinds[1], principal, host, *kinds[2:])


def _kinds(
    what: str, resource_type: int, pattern: int, operation: int, permission: int
) -> tuple[ResourceType, PatternType, Operation, Permission]:
    try:
        return ResourceType(resource_type), PatternType(pattern), Operation(operation), Permission(permission)
    except ValueError as error:
        raise IllegalArgumentError(f"{what}: {error}") from None


def kafka_acl(acl: Acl) -> ACL:
    """Convert an ACL to kafka-python's class."""
    return ACL(
        acl.principal,
        acl.host,
        ACLOperation(acl.operation),
        ACLPermissionType(acl.permission),
        ResourcePattern(
            KafkaResourceType(acl.resource_type), acl.resource_name, ACLResourcePatternType(acl.pattern_type)
        ),
    )
