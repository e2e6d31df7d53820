"""The table of rights: what a client must be allowed to do for each API, as in a broker of Kafka.

An API without an entry is not served. An entry is a list of rules:

- `Whole`: without the right, all of the request is refused.
- `Every`: the same, for every name in an array of the request.
- `Each`: elements of an array of the request for which the client lacks the right are refused; the others are served.
- `Shown`: elements of the response for which the client lacks the right are left out.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from spark_log.gateway.wire import Message
from spark_log.security.acl_rules import CLUSTER_NAME, Operation, ResourceType

TOPIC_REFUSED, GROUP_REFUSED, CLUSTER_REFUSED, TRANSACTIONAL_ID_REFUSED = 29, 30, 31, 53
CODES: Mapping[ResourceType, int] = {
    ResourceType.TOPIC: TOPIC_REFUSED,
    ResourceType.GROUP: GROUP_REFUSED,
    ResourceType.CLUSTER: CLUSTER_REFUSED,
    ResourceType.TRANSACTIONAL_ID: TRANSACTIONAL_ID_REFUSED,
}
"""TOPIC_AUTHORIZATION_FAILED and so on."""

Resource: TypeAlias = tuple[ResourceType, str]
CLUSTER: Resource = (ResourceType.CLUSTER, CLUSTER_NAME)
_COORDINATED = {0: ResourceType.GROUP, 1: ResourceType.TRANSACTIONAL_ID}
_OF_TOPICS = 2
"""Number of ConfigResource.Type."""


@dataclass(frozen=True)
class Whole:
    """`resource`: of the request; None if this request needs no such right. `or_any_topic`: WRITE on any topic is as
    good, as for producers without transactions (KIP-679).
    """

    operation: Operation
    resource: Callable[[Message], Resource | None]
    or_any_topic: bool = False


@dataclass(frozen=True)
class Every:
    """`field`: an array of names of the request; null or empty if it names none."""

    operation: Operation
    resource_type: ResourceType
    field: str


@dataclass(frozen=True)
class Each:
    """`field`: an array of the request, `answers` the array of its outcomes in the response; both are arrays of structs
    in each element of the array `within`, if there is one.

    `resource`: of an element, with a None name if the element has a topic id instead. `or_cluster`: the same operation
    on the cluster is as good. `together`: if one element is refused, no other is attempted. `empty_means_all`: an empty
    array asks for everything. `unknown_if_by_id`: a topic that is refused is one that does not exist.
    """

    operation: Operation
    resource: Callable[[Message, Message], tuple[ResourceType, str | None]]
    field: str
    answers: str
    within: str | None = None
    or_cluster: bool = False
    together: bool = False
    empty_means_all: bool = False
    unknown_if_by_id: bool = False


@dataclass(frozen=True)
class Shown:
    """`field`: an array of the response, in each element of the array `within`, if there is one. `name`: a field of its
    elements.
    """

    operation: Operation
    resource_type: ResourceType
    field: str
    name: str
    within: str | None = None
    or_cluster: bool = False


Rule = Whole | Every | Each | Shown


def _cluster(_request: Message) -> Resource:
    return CLUSTER


def _named(resource_type: ResourceType, field: str) -> Callable[[Message], Resource | None]:
    """The resource whose name is in this field; none if it is null, or not a field of this version."""

    def resource(request: Message) -> Resource | None:
        name = getattr(request, field)
        return None if name is None else (resource_type, name)

    return resource


def _element(
    resource_type: ResourceType, field: str | None
) -> Callable[[Message, Message], tuple[ResourceType, str | None]]:
    """The name is in this field of an element; None: the element is the name."""
    return lambda _, element: (resource_type, element if field is None else getattr(element, field))


def _coordinated(request: Message) -> Resource | None:
    kind = _COORDINATED.get(request.key_type)
    return (kind, request.key) if kind is not None and request.version < 4 else None


def _configured(_request: Message, element: Message) -> tuple[ResourceType, str | None]:
    return (ResourceType.TOPIC, element.resource_name) if element.resource_type == _OF_TOPICS else CLUSTER


def _idempotent(request: Message) -> Resource | None:
    return CLUSTER if request.transactional_id is None else None


def _group(operation: Operation) -> Whole:
    return Whole(operation, _named(ResourceType.GROUP, "group_id"))


def _transaction(field: str = "transactional_id") -> Whole:
    return Whole(Operation.WRITE, _named(ResourceType.TRANSACTIONAL_ID, field))


def _topics(operation: Operation, answers: str = "topics", field: str = "topics", name: str | None = "name") -> Each:
    return Each(operation, _element(ResourceType.TOPIC, name), field, answers)


_SHOWN_TOPICS = Shown(Operation.DESCRIBE, ResourceType.TOPIC, "topics", "name")
_READS_GROUP, _DESCRIBES_CLUSTER, _ALTERS_CLUSTER = (
    (_group(Operation.READ),),
    (Whole(Operation.DESCRIBE, _cluster),),
    (Whole(Operation.ALTER, _cluster),),
)

RIGHTS: Mapping[str, Sequence[Rule]] = {
    "Produce": (_transaction(), _topics(Operation.WRITE, "responses", "topic_data")),
    "Fetch": (_topics(Operation.READ, "responses", name="topic"),),
    "ListOffsets": (_topics(Operation.DESCRIBE),),
    "Metadata": (
        Each(Operation.DESCRIBE, _element(ResourceType.TOPIC, "name"), "topics", "topics", unknown_if_by_id=True),
        _SHOWN_TOPICS,
    ),
    "OffsetCommit": (_group(Operation.READ), _topics(Operation.READ)),
    "OffsetFetch": (
        Whole(Operation.DESCRIBE, lambda request: _if_older(request, 8, ResourceType.GROUP, "group_id")),
        Each(Operation.DESCRIBE, _element(ResourceType.GROUP, "group_id"), "groups", "groups"),
        _topics(Operation.DESCRIBE),
        Each(Operation.DESCRIBE, _element(ResourceType.TOPIC, "name"), "topics", "topics", within="groups"),
        _SHOWN_TOPICS,
        Shown(Operation.DESCRIBE, ResourceType.TOPIC, "topics", "name", within="groups"),
    ),
    "FindCoordinator": (
        Whole(Operation.DESCRIBE, _coordinated),
        Each(
            Operation.DESCRIBE,
            lambda request, key: (_COORDINATED.get(request.key_type, ResourceType.GROUP), key),
            "coordinator_keys",
            "coordinators",
        ),
    ),
    "JoinGroup": _READS_GROUP,
    "Heartbeat": _READS_GROUP,
    "LeaveGroup": _READS_GROUP,
    "SyncGroup": _READS_GROUP,
    "ConsumerGroupHeartbeat": (
        _group(Operation.READ),
        Every(Operation.DESCRIBE, ResourceType.TOPIC, "subscribed_topic_names"),
    ),
    "ConsumerGroupDescribe": (Each(Operation.DESCRIBE, _element(ResourceType.GROUP, None), "group_ids", "groups"),),
    "DescribeGroups": (Each(Operation.DESCRIBE, _element(ResourceType.GROUP, None), "groups", "groups"),),
    "ListGroups": (Shown(Operation.DESCRIBE, ResourceType.GROUP, "groups", "group_id", or_cluster=True),),
    "ApiVersions": (),
    "CreateTopics": (
        Each(Operation.CREATE, _element(ResourceType.TOPIC, "name"), "topics", "topics", or_cluster=True),
    ),
    "DeleteTopics": (
        _topics(Operation.DELETE, "responses", "topic_names", None),
        _topics(Operation.DELETE, "responses"),
    ),
    "DeleteRecords": (_topics(Operation.DELETE),),
    "InitProducerId": (_transaction(), Whole(Operation.IDEMPOTENT_WRITE, _idempotent, or_any_topic=True)),
    "OffsetForLeaderEpoch": (_topics(Operation.DESCRIBE, name="topic"),),
    "AddPartitionsToTxn": (
        _transaction("v3_and_below_transactional_id"),
        Each(
            Operation.WRITE, _element(ResourceType.TOPIC, "name"), "v3_and_below_topics",
            "results_by_topic_v3_and_below", together=True,
        ),
    ),
    "AddOffsetsToTxn": (_transaction(), _group(Operation.READ)),
    "EndTxn": (_transaction(),),
    "TxnOffsetCommit": (_transaction(), _group(Operation.READ), _topics(Operation.READ)),
    "DescribeAcls": _DESCRIBES_CLUSTER,
    "CreateAcls": _ALTERS_CLUSTER,
    "DeleteAcls": _ALTERS_CLUSTER,
    "DescribeConfigs": (Each(Operation.DESCRIBE_CONFIGS, _configured, "resources", "results"),),
    "AlterConfigs": (Each(Operation.ALTER_CONFIGS, _configured, "resources", "responses"),),
    "DescribeLogDirs": _DESCRIBES_CLUSTER,
    "CreatePartitions": (_topics(Operation.ALTER, "results"),),
    "DeleteGroups": (Each(Operation.DELETE, _element(ResourceType.GROUP, None), "groups_names", "results"),),
    "ElectLeaders": _ALTERS_CLUSTER,
    "IncrementalAlterConfigs": (Each(Operation.ALTER_CONFIGS, _configured, "resources", "responses"),),
    "AlterPartitionReassignments": _ALTERS_CLUSTER,
    "ListPartitionReassignments": _DESCRIBES_CLUSTER,
    "OffsetDelete": (_group(Operation.DELETE), _topics(Operation.READ)),
    "DescribeUserScramCredentials": _DESCRIBES_CLUSTER,
    "AlterUserScramCredentials": _ALTERS_CLUSTER,
    "DescribeClientQuotas": (Whole(Operation.DESCRIBE_CONFIGS, _cluster),),
    "AlterClientQuotas": (Whole(Operation.ALTER_CONFIGS, _cluster),),
    "DescribeCluster": (),
    "DescribeProducers": (_topics(Operation.READ),),
    "DescribeTransactions": (
        Each(
            Operation.DESCRIBE, _element(ResourceType.TRANSACTIONAL_ID, None), "transactional_ids",
            "transaction_states",
        ),
        Shown(Operation.DESCRIBE, ResourceType.TOPIC, "topics", "topic", within="transaction_states"),
    ),
    "ListTransactions": (
        Shown(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, "transaction_states", "transactional_id"),
    ),
    "ListConfigResources": (Whole(Operation.DESCRIBE_CONFIGS, _cluster),),
    "DescribeTopicPartitions": (
        Each(Operation.DESCRIBE, _element(ResourceType.TOPIC, "name"), "topics", "topics", empty_means_all=True),
        _SHOWN_TOPICS,
    ),
}  # fmt: skip
"""By the API's name. () needs no right: every client that has authenticated may send it."""


def _if_older(request: Message, version: int, resource_type: ResourceType, field: str) -> Resource | None:
    return (resource_type, getattr(request, field)) if request.version < version else None
