"""Handles requests of administrators on the offsets from which share groups read (KIP-932, KIP-1226)."""

import uuid
from typing import TypeVar

from spark_log.cluster.names import is_legal
from spark_log.cluster.security.acl_rules import Operation, ResourceType
from spark_log.errors import GroupIdNotFoundError, NonEmptyGroupError, SparkLogError
from spark_log.facts.share_groups import describe_share_group
from spark_log.facts.share_partitions import SharePartition
from spark_log.gateway.access.rights import Shown, each_named, each_topic, on_group
from spark_log.gateway.api import Api, Client, blocking
from spark_log.gateway.limits.bulkheads import Lane
from spark_log.gateway.protocol.error_codes import NONE, Outcome, client_message, error_code, outcome_of
from spark_log.gateway.protocol.request_limits import TRANSACTIONS
from spark_log.gateway.protocol.schemas import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsResponse,
)
from spark_log.gateway.protocol.wire import Message
from spark_log.gateway.services import Services
from spark_log.groups.group_names import check_group_id
from spark_log.groups.group_operations import Exactly
from spark_log.groups.share.administration import delete_share_offsets, reset_each_share_offset
from spark_log.ids import TopicPartition

_NO_ID = uuid.UUID(int=0)
_NOT_HOSTED = "This server does not host this topic-partition."
_NOT_EMPTY = "The group is not empty."
_T = TypeVar("_T")


async def describe_share_group_offsets(services: Services, request: Message, _client: Client) -> Message:
    """Return start offsets and lags. Partitions that a group does not read have the offset -1, as in Kafka."""
    groups = [await services.call(_offsets_of, services, group, request.version) for group in request.groups]
    return DescribeShareGroupOffsetsResponse(throttle_time_ms=0, groups=groups)


def _offsets_of(services: Services, asked: Message, version: int) -> Message:
    group_kind = DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponseGroup
    kind = group_kind.DescribeShareGroupOffsetsResponseTopic
    part = kind.DescribeShareGroupOffsetsResponsePartition
    here: dict[TopicPartition, SharePartition] = {}
    try:
        described = describe_share_group(services.cluster.store, check_group_id(asked.group_id))
        here = {TopicPartition(each.topic, each.partition): each for each in described.partitions}
    except GroupIdNotFoundError:
        pass  # as a group that reads nothing
    except SparkLogError as error:
        return group_kind(group_id=asked.group_id, topics=[], error_code=error_code(error),
                          error_message=client_message(error))  # fmt: skip

    numbers_by_topic: dict[str, list[int]] = {}
    if asked.topics is None:
        for place in sorted(here):
            numbers_by_topic.setdefault(place.topic, []).append(place.partition)
    else:
        numbers_by_topic = {topic.topic_name: topic.partitions for topic in asked.topics}
    existing = services.topics.find(filter(is_legal, numbers_by_topic))

    def partition(topic: str, number: int) -> Message:
        state = here.get(TopicPartition(topic, number))
        facts = {"start_offset": -1, "leader_epoch": 0}
        lag = -1
        if state is not None:
            facts, lag = {"start_offset": state.start, "leader_epoch": state.leader_epoch}, state.lag
        if version >= 1:
            facts["lag"] = lag
        return part(partition_index=number, error_code=NONE, error_message=None, **facts)

    topics = [
        kind(
            topic_name=name,
            topic_id=uuid.UUID(hex=existing[name].uuid) if name in existing else _NO_ID,
            partitions=[partition(name, number) for number in numbers],
        )
        for name, numbers in numbers_by_topic.items()
    ]
    return group_kind(group_id=asked.group_id, topics=topics, error_code=NONE, error_message=None)


def alter_share_group_offsets(services: Services, request: Message, _client: Client) -> Message:
    """Reset a share group without members. A group that does not exist is created, as in Kafka."""
    kind = AlterShareGroupOffsetsResponse.AlterShareGroupOffsetsResponseTopic
    part = kind.AlterShareGroupOffsetsResponsePartition
    targets = {
        TopicPartition(topic.topic_name, reset.partition_index): Exactly(max(0, reset.start_offset))
        for topic in request.topics
        for reset in topic.partitions
    }
    outcome = _named(outcome_of(reset_each_share_offset, services.cluster, request.group_id, targets))
    if outcome.result is None:
        return AlterShareGroupOffsetsResponse(
            throttle_time_ms=0, error_code=outcome.code, error_message=outcome.message, responses=[]
        )
    errors = outcome.result
    existing = services.topics.find({place.topic for place in targets if is_legal(place.topic)})

    def partition(place: TopicPartition) -> Message:
        error = errors[place]
        code, message = (NONE, None) if error is None else (error_code(error), _NOT_HOSTED)
        return part(partition_index=place.partition, error_code=code, error_message=message)

    responses = [
        kind(
            topic_name=topic.topic_name,
            topic_id=uuid.UUID(hex=existing[topic.topic_name].uuid) if topic.topic_name in existing else _NO_ID,
            partitions=[partition(TopicPartition(topic.topic_name, each.partition_index)) for each in topic.partitions],
        )
        for topic in request.topics
    ]
    return AlterShareGroupOffsetsResponse(throttle_time_ms=0, error_code=NONE, error_message=None, responses=responses)


def _named(outcome: Outcome[_T]) -> Outcome[_T]:
    """Return the outcome with Kafka's text for a group that has members."""
    not_empty = outcome.code == error_code(NonEmptyGroupError())
    return Outcome(outcome.code, _NOT_EMPTY) if not_empty else outcome


def delete_share_group_offsets(services: Services, request: Message, _client: Client) -> Message:
    """Delete the state of topics in a share group without members."""
    kind = DeleteShareGroupOffsetsResponse.DeleteShareGroupOffsetsResponseTopic
    names = [topic.topic_name for topic in request.topics]
    existing = services.topics.find(filter(is_legal, names))
    store, group_id = services.cluster.store, request.group_id
    outcome = _named(outcome_of(lambda: delete_share_offsets(store, check_group_id(group_id), names)))
    if outcome.result is None:
        return DeleteShareGroupOffsetsResponse(
            throttle_time_ms=0, error_code=outcome.code, error_message=outcome.message, responses=[]
        )
    responses = []
    for name in names:
        error = outcome.result[name]
        text = (
            None
            if error is None
            else _NOT_HOSTED
            if name not in existing
            else "There is no offset information to delete."
        )
        responses.append(
            kind(
                topic_name=name,
                topic_id=uuid.UUID(hex=existing[name].uuid) if error is None and name in existing else _NO_ID,
                error_code=NONE if error is None else error_code(error),
                error_message=text,
            )
        )
    return DeleteShareGroupOffsetsResponse(throttle_time_ms=0, error_code=NONE, error_message=None, responses=responses)


APIS = (
    Api(DescribeShareGroupOffsetsRequest, describe_share_group_offsets, advertised=(0, 1), limits=TRANSACTIONS,
        lane=Lane.GROUP,
        rights=(each_named(Operation.DESCRIBE, ResourceType.GROUP, "groups", "groups", "group_id"),
                each_topic(Operation.DESCRIBE, name="topic_name", within="groups"),
                Shown(Operation.DESCRIBE, ResourceType.TOPIC, "topics", "topic_name", within="groups"))),
    Api(AlterShareGroupOffsetsRequest, blocking(alter_share_group_offsets), advertised=(0, 0), limits=TRANSACTIONS,
        rights=(on_group(Operation.READ), each_topic(Operation.READ, "responses", name="topic_name"))),
    Api(DeleteShareGroupOffsetsRequest, blocking(delete_share_group_offsets), advertised=(0, 0), limits=TRANSACTIONS,
        lane=Lane.GROUP,
        rights=(on_group(Operation.DELETE), each_topic(Operation.READ, "responses", name="topic_name"))),
)  # fmt: skip
