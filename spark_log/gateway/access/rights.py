"""Defines rules for the rights that a client needs for a request, as in a Kafka broker. Each `Api` has a list of rules.

- `Whole`: without the right, the whole request is refused.
- `Every`: without the right on every name in an array of the request, the whole request is refused.
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
"""The error codes of refusals, such as TOPIC_AUTHORIZATION_FAILED."""

Resource: TypeAlias = tuple[ResourceType, str]
CLUSTER: Resource = (ResourceType.CLUSTER, CLUSTER_NAME)


@dataclass(frozen=True)
class Whole:
    """Refuses a request if the client lacks a right on `resource(request)`. A None resource needs no right.

    With `or_any_topic`, WRITE on any topic is enough, as for producers without transactions (KIP-679).
    """

    operation: Operation
    resource: Callable[[Message], Resource | None]
    or_any_topic: bool = False


@dataclass(frozen=True)
class Every:
    """Refuses a request if the client lacks a right on a name in its array `field`, which may be null or empty."""

    operation: Operation
    resource_type: ResourceType
    field: str


@dataclass(frozen=True)
class Each:
    """Refuses elements of the array `field` of a request. `answers` is the array of their outcomes in the response.

    If `within` names an array of structs, each of its elements has both arrays. `resource(request, element)` has a None
    name if the element has a topic id instead. With `or_cluster`, the right on the cluster is enough. With `together`,
    one refused element prevents all others. With `empty_means_all`, an empty array requests everything. With
    `unknown_if_by_id`, the refusal of a topic id is the error of an unknown topic id.
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
    """Leaves elements out of the array `field` of the response. Their field `name` names the resource. If `within`
    names an array of structs, each of its elements has such an array.
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
    """Return the resource, or None if the field is null or not in this version of the request."""
    return None if name is None else (resource_type, name)


def each_named(
    operation: Operation, resource_type: ResourceType, field: str, answers: str, name: str | None = None, **options: Any
) -> Each:
    """Return a rule for elements whose field `name` has the resource's name. Without `name`, elements are names."""
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
