"""Handles requests that list, describe and delete groups, or delete their offsets."""

from collections.abc import Callable, Collection
from functools import partial

from kafka.protocol.admin import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)
from kafka.protocol.consumer import OffsetDeleteRequest, OffsetDeleteResponse
from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription

from spark_log.cluster.security.acl_rules import Operation, ResourceType
from spark_log.errors import GroupIdNotFoundError
from spark_log.facts import groups as group_inspection
from spark_log.facts.groups import GroupDescription, MemberDescription
from spark_log.gateway.access.rights import Shown, each_named, each_topic, on_group
from spark_log.gateway.api import Api, Client, blocking
from spark_log.gateway.groups.committed_offset_requests import commit_outcomes
from spark_log.gateway.protocol.error_codes import NONE, Outcome, error_code, outcome_of
from spark_log.gateway.protocol.request_limits import TINY, TRANSACTIONS
from spark_log.gateway.protocol.wire import Message
from spark_log.gateway.services import ELEMENT_BYTES, Needed, Services
from spark_log.groups.consumer_messages import encode_assignment
from spark_log.groups.group_names import check_group_id
from spark_log.groups.group_operations import delete_group, delete_offsets_of_each
from spark_log.ids import TopicPartition

_CLASSIC_STATES = {"Assigning": "PreparingRebalance", "Reconciling": "CompletingRebalance"}
"""States of the classic protocol, for clients that know no others, by the states of groups."""
_GROUP_ID_NOT_FOUND = error_code(GroupIdNotFoundError())
_UNKNOWN_IS_AN_ERROR_SINCE = 6
"""The first version of DescribeGroups that answers a missing group with an error."""


def classic_state(state: str) -> str:
    """Return the name of a group's state in DescribeGroups."""
    return _CLASSIC_STATES.get(state, state)


async def list_groups(services: Services, request: Message, _client: Client) -> Message:
    """List groups of the types classic, consumer and share. A filter by state accepts the names of both protocols."""
    return await services.call_in_memory(partial(_list_groups, services, request))


def _list_groups(services: Services, request: Message, held: int) -> Message | Needed:
    outcome = outcome_of(group_inspection.list_groups, services.cluster.store)
    size = sum(ELEMENT_BYTES + len(group.group_id) for group in outcome.result or ())
    if size > held:
        return Needed(size)
    states = {each.lower() for each in request.states_filter or ()}
    types = {each.lower() for each in request.types_filter or ()}
    groups = [
        ListGroupsResponse.ListedGroup(
            group_id=group.group_id,
            protocol_type=group.protocol_type,
            group_state=group.state if request.version >= 5 else classic_state(group.state),
            group_type=group.type,
        )
        for group in outcome.result or ()
        if (not types or group.type in types)
        and (not states or states & {group.state.lower(), classic_state(group.state).lower()})
    ]
    return ListGroupsResponse(throttle_time_ms=0, error_code=outcome.code, groups=groups)


async def describe_groups(services: Services, request: Message, client: Client) -> Message:
    """Describe groups. A group that does not exist has the state Dead, and from v6 on also an error (KIP-1043). Topics
    that the client may not describe are left out.
    """

    def operations(group_id: str) -> Collection[int] | None:
        wanted = request.include_authorized_operations
        return client.access.operations_on(ResourceType.GROUP, group_id) if wanted else None

    def describe(group_id: str) -> GroupDescription:
        check_group_id(group_id)
        return group_inspection.describe_groups(services.cluster.store, [group_id])[0]

    may_describe = partial(client.access.allows, Operation.DESCRIBE, ResourceType.TOPIC)

    def described(group_id: str) -> Message:
        outcome = outcome_of(describe, group_id)
        return _described(group_id, outcome, operations(group_id), request.version, may_describe)

    groups = await services.in_portions(described, request.groups)
    return DescribeGroupsResponse(throttle_time_ms=0, groups=groups)


def _described(
    group_id: str,
    outcome: Outcome[GroupDescription],
    operations: Collection[int] | None,
    version: int,
    may_describe: Callable[[str], bool],
) -> Message:
    group = outcome.result
    classic_shown = group is not None and all(map(may_describe, group.topics))
    code, message = outcome.code, outcome.message
    if version >= _UNKNOWN_IS_AN_ERROR_SINCE and group is not None and group.state == "Dead":
        code, message = _GROUP_ID_NOT_FOUND, f"Group {group_id} not found."
    return DescribeGroupsResponse.DescribedGroup(
        error_code=code,
        error_message=message,
        group_id=group_id,
        group_state="" if group is None else classic_state(group.state),
        protocol_type="" if group is None or group.state == "Dead" else group.protocol_type,
        protocol_data=group.assignor if group is not None and group.state == "Stable" else "",
        members=[] if group is None else [_member(member, may_describe, classic_shown) for member in group.members],
        authorized_operations=operations,
    )


def _member(member: MemberDescription, may_describe: Callable[[str], bool], classic_shown: bool) -> Message:
    """Describe a member. `classic_shown` is whether the client may see the bytes that members of a classic group
    exchange, which may name any topic of the group.
    """
    if member.encoded is None:
        topics = sorted(filter(may_describe, member.topics))
        subscription = ConsumerProtocolSubscription(version=0, topics=topics, user_data=b"")
        assigned = frozenset(each for each in member.assignment if may_describe(each.topic))
        metadata, assignment = subscription.encode(), encode_assignment(assigned)
    elif classic_shown:
        metadata, assignment = member.encoded.metadata, member.encoded.assignment
    else:
        metadata = assignment = b""
    return DescribeGroupsResponse.DescribedGroup.DescribedGroupMember(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=f"/{member.host}",  # as Java prints addresses
        member_metadata=metadata,
        member_assignment=assignment,
    )


def delete_groups(services: Services, request: Message, _client: Client) -> Message:
    def delete(group_id: str) -> None:
        delete_group(services.cluster.store, check_group_id(group_id))

    results = []
    for group_id in request.groups_names:
        outcome = outcome_of(delete, group_id)
        results.append(DeleteGroupsResponse.DeletableGroupResult(group_id=group_id, error_code=outcome.code))
    return DeleteGroupsResponse(throttle_time_ms=0, results=results)


def delete_committed_offsets(services: Services, request: Message, _client: Client) -> Message:
    """Delete committed offsets, except those of topics that live members read. The group remains."""
    wanted = [TopicPartition(topic.name, each.partition_index) for topic in request.topics for each in topic.partitions]
    outcome = outcome_of(
        lambda: delete_offsets_of_each(services.cluster.store, check_group_id(request.group_id), wanted)
    )
    if outcome.result is None:
        return OffsetDeleteResponse(error_code=outcome.code, throttle_time_ms=0, topics=[])
    codes = {partition: NONE if error is None else error_code(error) for partition, error in outcome.result.items()}
    kind = OffsetDeleteResponse.OffsetDeleteResponseTopic
    topics = commit_outcomes(request, kind, kind.OffsetDeleteResponsePartition, NONE, codes)
    return OffsetDeleteResponse(error_code=NONE, throttle_time_ms=0, topics=topics)


APIS = (
    Api(DescribeGroupsRequest, describe_groups, advertised=(0, 6), limits=TRANSACTIONS,
        rights=(each_named(Operation.DESCRIBE, ResourceType.GROUP, "groups", "groups"),)),
    Api(ListGroupsRequest, list_groups, advertised=(0, 5), limits=TINY,
        rights=(Shown(Operation.DESCRIBE, ResourceType.GROUP, "groups", "group_id", or_cluster=True),)),
    Api(DeleteGroupsRequest, blocking(delete_groups), advertised=(0, 2), limits=TRANSACTIONS,
        rights=(each_named(Operation.DELETE, ResourceType.GROUP, "groups_names", "results"),)),
    Api(OffsetDeleteRequest, blocking(delete_committed_offsets), advertised=(0, 0), limits=TRANSACTIONS,
        rights=(on_group(Operation.DELETE), each_topic(Operation.READ))),
)  # fmt: skip
