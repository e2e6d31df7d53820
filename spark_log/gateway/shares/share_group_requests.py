"""Handles the heartbeats of members of share groups (KIP-932)."""

import uuid

from spark_log.cluster.security.acl_rules import Operation, ResourceType
from spark_log.config.values import can_be_stored
from spark_log.errors import IllegalArgumentError
from spark_log.gateway.access.rights import Every, on_group
from spark_log.gateway.api import Api, Client, blocking
from spark_log.gateway.limits.bulkheads import Lane
from spark_log.gateway.protocol.error_codes import NONE, Outcome, coordinator_code, outcome_of
from spark_log.gateway.protocol.schemas import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse
from spark_log.gateway.protocol.wire import Message
from spark_log.gateway.services import Services
from spark_log.gateway.shares.share_sessions import CHARACTERS_MAX
from spark_log.groups.consumer.rules import JOINING, LEAVING
from spark_log.groups.group_names import check_group_id
from spark_log.groups.share.members import ShareAnswer, ShareHeartbeat, leave_share_group, share_heartbeat


def share_group_heartbeat(services: Services, request: Message, client: Client) -> Message:
    """Join (epoch 0), stay in, or leave (epoch -1) a share group."""

    def answer() -> ShareAnswer:
        _check(request)
        if request.member_epoch == LEAVING:
            leave_share_group(services.cluster.store, request.group_id, request.member_id)
            return ShareAnswer(LEAVING, 0)
        topics = None if request.subscribed_topic_names is None else frozenset(request.subscribed_topic_names)
        heartbeat = ShareHeartbeat(
            request.group_id, request.member_id, request.member_epoch, topics, request.rack_id, client.client_id,
            client.host,
        )  # fmt: skip
        answer = share_heartbeat(services.cluster, heartbeat)
        services.shares.start_lookups.submit(request.group_id, answer.by_time)
        return answer

    return _response(services, request, outcome_of(answer, code_of=coordinator_code))


def _check(request: Message) -> None:
    """Refuse what a broker refuses. Raises IllegalArgumentError (INVALID_REQUEST) or InvalidGroupIdError."""
    if not request.member_id:
        raise IllegalArgumentError("MemberId can't be empty.")
    if not request.group_id:
        raise IllegalArgumentError("GroupId can't be empty.")
    for name, text in (("MemberId", request.member_id), ("RackId", request.rack_id)):
        if text is not None and (len(text) > CHARACTERS_MAX or not can_be_stored(text)):
            raise IllegalArgumentError(f"{name} is longer than {CHARACTERS_MAX} characters, or cannot be stored.")
    if request.member_epoch < LEAVING:
        raise IllegalArgumentError("MemberEpoch is invalid.")
    if request.rack_id == "":
        raise IllegalArgumentError("RackId can't be empty.")
    if request.member_epoch == JOINING and not request.subscribed_topic_names:
        raise IllegalArgumentError("SubscribedTopicNames must be set in first request.")
    check_group_id(request.group_id)


def _response(services: Services, request: Message, outcome: Outcome[ShareAnswer]) -> Message:
    kind = ShareGroupHeartbeatResponse.Assignment
    answer, assignment = outcome.result, None
    if answer is not None and answer.assignment is not None:
        topics = services.topics.find(answer.assignment)
        assignment = kind(
            topic_partitions=[
                kind.TopicPartitions(
                    topic_id=uuid.UUID(hex=topics[name].uuid), partitions=list(range(facts.partition_count))
                )
                for name, facts in sorted(answer.assignment.items())
                if name in topics
            ]
        )
    return ShareGroupHeartbeatResponse(
        throttle_time_ms=0,
        error_code=NONE if answer is not None else outcome.code,
        error_message=outcome.message,
        member_id=None if answer is None else request.member_id,
        member_epoch=0 if answer is None else answer.epoch,
        heartbeat_interval_ms=0 if answer is None else answer.heartbeat_interval_ms,
        assignment=assignment,
    )


APIS = (
    Api(ShareGroupHeartbeatRequest, blocking(share_group_heartbeat), advertised=(1, 1), lane=Lane.GROUP,
        rights=(on_group(Operation.READ), Every(Operation.DESCRIBE, ResourceType.TOPIC, "subscribed_topic_names"))),
)  # fmt: skip
