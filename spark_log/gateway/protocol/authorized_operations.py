"""Finds the operations that a client may perform, as numbers of Kafka's AclOperation (KIP-430)."""

from collections.abc import Collection

from spark_log.cluster.security.acl_rules import CLUSTER_NAME, OPERATIONS, Operation, ResourceType
from spark_log.gateway.access.access import Access

_OF_GROUPS_HERE = frozenset({Operation.READ, Operation.DELETE, Operation.DESCRIBE})
"""The operations on groups. Those on configs are missing, because groups have no configs here."""


def operations_on(access: Access, resource_type: ResourceType, name: str = CLUSTER_NAME) -> frozenset[int]:
    """Return the operations that the client may perform on the resource."""
    known = OPERATIONS[resource_type]
    return frozenset(
        int(each)
        for each in known
        if (resource_type is not ResourceType.GROUP or each in _OF_GROUPS_HERE)
        and access.allows(each, resource_type, name)
    )


def bits_of(operations: Collection[int]) -> int:
    """Return the bit field of operations, for responses for which kafka-python does not encode the set itself."""
    return sum(1 << operation for operation in operations)
