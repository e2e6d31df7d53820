"""Handles descriptions of groups whose members have epochs: consumer groups (KIP-848) and share groups (KIP-932)."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from spark_log.cluster.security.acl_rules import Operation, ResourceType
from spark_log.cluster.topics import Topic
from spark_log.errors import GroupIdNotFoundError
from spark_log.facts.groups import GROUP_TYPE, SHARE_TYPE, GroupDescription, MemberDescription, describe_groups
from spark_log.gateway.access.rights import TOPIC_REFUSED, each_named
from spark_log.gateway.api import Api, Client
from spark_log.gateway.groups.consumer_group_requests import by_topic, topics_of
from spark_log.gateway.limits.bulkheads import Lane
from spark_log.gateway.protocol.error_codes import Outcome, outcome_of
from spark_log.gateway.protocol.request_limits import TRANSACTIONS
from spark_log.gateway.protocol.schemas import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
)
from spark_log.gateway.protocol.wire import Message
from spark_log.gateway.services import Services
from spark_log.groups.consumer.rows import CLASSIC
from spark_log.groups.consumer.rules import Partitions
from spark_log.groups.group_names import check_group_id

_UNKNOWN_OPERATIONS = -(2**31)
_CLASSIC_MEMBER, _CONSUMER_MEMBER = 0, 1


async def _describe(type_: str, response: Any, services: Services, request: Message, client: Client) -> Message:
    """Describe groups of this type. A group of another type has the error GROUP_ID_NOT_FOUND; DescribeGroups describes
    it. A group that reads a topic that the client may not describe has TOPIC_AUTHORIZATION_FAILED.
    """
    described = partial(_described, type_, response.DescribedGroup, services, request, client)
    return response(throttle_time_ms=0, groups=await services.in_portions(described, request.group_ids))


def _described(type_: str, kind: Any, services: Services, request: Message, client: Client, group_id: str) -> Message:
    may_describe = partial(client.access.allows, Operation.DESCRIBE, ResourceType.TOPIC)

    def describe() -> GroupDescription:
        [description] = describe_groups(services.cluster.store, [check_group_id(group_id)])
        if description.state == "Dead":
            raise GroupIdNotFoundError(f"Group {group_id} not found.")
        if description.type != type_:
            raise GroupIdNotFoundError(f"Group {group_id} is not a {type_} group.")
        return description

    outcome = outcome_of(describe)
    if outcome.result is not None and not all(map(may_describe, outcome.result.topics)):
        outcome = Outcome(TOPIC_REFUSED, "The group reads topics that the client may not describe.")
    description, operations = outcome.result, _UNKNOWN_OPERATIONS
    members = [] if description is None else description.members
    topics_here = topics_of(services, (p for each in members for p in each.assignment | each.target))
    if description is not None and request.include_authorized_operations:
        operations = client.access.operation_bits(ResourceType.GROUP, group_id)
    return kind(
        error_code=outcome.code,
        error_message=outcome.message,
        group_id=group_id,
        group_state="" if description is None else description.state,
        group_epoch=0 if description is None else description.generation,
        assignment_epoch=0 if description is None else description.target_generation,
        assignor_name="" if description is None else description.assignor,
        members=[_member(type_, kind.Member, topics_here, member) for member in members],
        authorized_operations=operations,
    )


def _member(type_: str, kind: Any, topics_here: Mapping[str, Topic], member: MemberDescription) -> Message:
    def assignment(partitions: Partitions) -> Message:
        part = kind.Assignment.TopicPartitions
        found = by_topic(topics_here, partitions)
        parts = [part(topic_id=topic_id, topic_name=name, partitions=numbers) for name, topic_id, numbers in found]
        return kind.Assignment(topic_partitions=parts)

    of_consumers = {}
    if type_ == GROUP_TYPE:
        of_consumers = {
            "instance_id": member.instance_id,
            "subscribed_topic_regex": member.regex,
            "target_assignment": assignment(member.target),
            "member_type": _CLASSIC_MEMBER if member.protocol == CLASSIC else _CONSUMER_MEMBER,
        }
    return kind(
        member_id=member.member_id,
        rack_id=member.rack,
        member_epoch=member.generation,
        client_id=member.client_id,
        client_host=f"/{member.host}",  # as Java prints addresses
        subscribed_topic_names=sorted(member.names),
        assignment=assignment(member.assignment),
        **of_consumers,
    )


_RIGHTS = (each_named(Operation.DESCRIBE, ResourceType.GROUP, "group_ids", "groups"),)
APIS = (
    Api(ConsumerGroupDescribeRequest, partial(_describe, GROUP_TYPE, ConsumerGroupDescribeResponse), advertised=(0, 1),
        limits=TRANSACTIONS, lane=Lane.GROUP, rights=_RIGHTS),
    Api(ShareGroupDescribeRequest, partial(_describe, SHARE_TYPE, ShareGroupDescribeResponse), advertised=(1, 1),
        limits=TRANSACTIONS, lane=Lane.GROUP, rights=_RIGHTS),
)  # fmt: skip
