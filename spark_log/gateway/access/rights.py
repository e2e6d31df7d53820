"""Rules of rights: what a client must be allowed to do for a request, as in a broker of Kafka. Each `Api` has a list.

- `Whole`: without the right, all of the request is refused.
- `Every`: the same, for every name in an array of the request.
- `Each`: elements of an array of the request for which the client lacks the right are refused; the others are served.
- `Shown`: elements of the response for which the client lacks the right are left out.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from spark_log.cluster.security.acl_rules import CLUSTER_NAME, Operation, ResourceType
from spark_log.gateway.protocol.wire import Message

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


def on_cluster(operation: Operation) -> Whole:
    return Whole(operation, lambda _: CLUSTER)


def on_group(operation: Operation) -> Whole:
    return Whole(operation, lambda request: _named(ResourceType.GROUP, request.group_id))


def on_transaction(field: str = "transactional_id") -> Whole:
    return Whole(Operation.WRITE, lambda request: _named(ResourceType.TRANSACTIONAL_ID, getattr(request, field)))


def _named(resource_type: ResourceType, name: str | None) -> Resource | None:
    """None: the field is null, or none of this version."""
    return None if name is None else (resource_type, name)


def each_named(
    operation: Operation, resource_type: ResourceType, field: str, answers: str, name: str | None = None, **options: Any
) -> Each:
    """`name`: the field of an element that has the resource's name; None: the element is the name."""
    return Each(
        operation,
        lambda _, element: (resource_type, element if name is None else getattr(element, name)),
        field,
        answers,
        **options,
    )


def each_topic(
    operation: Operation, answers: str = "topics", field: str = "topics", name: str | None = "name", **options: Any
) -> Each:
    return each_named(operation, ResourceType.TOPIC, field, answers, name, **options)


SHOWN_TOPICS = Shown(Operation.DESCRIBE, ResourceType.TOPIC, "topics", "name")
