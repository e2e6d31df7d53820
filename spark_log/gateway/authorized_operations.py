"""The operations that a client may do, as numbers of Kafka's AclOperation. There are no ACLs: all of them."""

from collections.abc import Collection

_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE = 3, 4, 5, 6, 7, 8
_CLUSTER_ACTION, _DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT_WRITE = 9, 10, 11, 12

ON_TOPICS = frozenset({_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE, _DESCRIBE_CONFIGS, _ALTER_CONFIGS})
ON_GROUPS = frozenset({_READ, _DELETE, _DESCRIBE})
ON_CLUSTER = frozenset(
    {_CREATE, _ALTER, _DESCRIBE, _CLUSTER_ACTION, _DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT_WRITE}
)


def bits_of(operations: Collection[int]) -> int:
    """As a response carries them, where kafka-python does not encode the set itself."""
    return sum(1 << operation for operation in operations)
