"""Finds the operations that a client may perform, as numbers of Kafka's AclOperation (KIP-430)."""

from collections.abc import Collection

from spark_log.cluster.security.acl_rules import CLUSTER_NAME, OPERATIONS, ResourceType
from spark_log.gateway.access.access import Access


def operations_on(access: Access, resource_type: ResourceType, name: str = CLUSTER_NAME) -> frozenset[int]:
    """Return the operations that the client may perform on the resource."""
    return frozenset(int(each) for each in OPERATIONS[resource_type] if access.allows(each, resource_type, name))


def bits_of(operations: Collection[int]) -> int:
    """Return the bit field of operations, for responses for which kafka-python does not encode the set itself."""
    return sum(1 << operation for operation in operations)
