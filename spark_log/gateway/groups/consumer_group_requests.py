"""Handles requests of the consumer protocol (KIP-848): heartbeats with member epochs."""

import uuid
from collections.abc import Collection, Iterable, Mapping
from functools import partial

from spark_log.cluster.security.acl_rules import Operation, ResourceType
from spark_log.cluster.topics import Topic, find_topics, topics_of_uuids
from spark_log.errors import (
    CoordinatorNotAvailableError,
    GroupIdNotFoundError,
    InconsistentGroupProtocolError,
    MetadataStoreUnavailableError,
    SparkLogError,
)
from spark_log.gateway.access.rights import Every, on_group
from spark_log.gateway.api import Api, Client
from spark_log.gateway.limits.bulkheads import Lane
from spark_log.gateway.protocol.error_codes import NONE, Outcome, coordinator_code, failed, outcome_of
from spark_log.gateway.protocol.schemas import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse
from spark_log.gateway.protocol.wire import Message
from spark_log.gateway.services import Services
from spark_log.groups.assignors import known_assignors
from spark_log.groups.consumer.heartbeat import ConsumerAnswer, ConsumerHeartbeat, check_heartbeat
from spark_log.groups.consumer.rules import JOINING, NO_PARTITIONS, Partitions
from spark_log.groups.consumer.service import consumer_heartbeat, leave_consumer
from spark_log.groups.group_names import check_group_id, check_instance_id
from spark_log.groups.heartbeat_batches import Heartbeat
from spark_log.groups.identity import Identity
from spark_log.ids import TopicPartition

_MEMBER_ID_BY_CLIENT_SINCE = 1


async def consumer_group_heartbeat(services: Services, request: Message, client: Client) -> Message:
    """Join (epoch 0), stay in, or leave (epochs -1, -2) a group. Heartbeats without news are answered together."""
    if request.member_epoch > JOINING and _says_nothing(request):
        me = request.group_id, request.member_id, request.instance_id
        heartbeat = Heartbeat(*me, request.member_epoch, client.fencing_tokens.connection_id)
        try:
            if not (await services.heartbeats.answer(heartbeat)).alone:
                return _response(services, Outcome(result=ConsumerAnswer(request.member_id, request.member_epoch)))
        except MetadataStoreUnavailableError as error:
            return _response(services, failed(error, coordinator_code))
        except SparkLogError:
            pass  # handled alone, the heartbeat gets its own error
    return await services.call(_heartbeat, services, request, client)


def _says_nothing(request: Message) -> bool:
    """Whether a heartbeat has no news. The instance id is not news: Java's static members send it in each heartbeat."""
    return request.rebalance_timeout_ms == -1 and not any(
        value is not None
        for value in (
            request.rack_id, request.subscribed_topic_names, request.server_assignor, request.topic_partitions,
            _regex(request),
        )
    )  # fmt: skip


def _regex(request: Message) -> str | None:
    regex: str | None = request.subscribed_topic_regex if request.version >= 1 else None
    return regex


def _heartbeat(services: Services, request: Message, client: Client) -> Message:
    def answer() -> ConsumerAnswer:
        store, assignors = services.cluster.store, known_assignors()
        member_id = request.member_id
        if not member_id and request.version < _MEMBER_ID_BY_CLIENT_SINCE and request.member_epoch == JOINING:
            member_id = str(uuid.uuid4())
        me = Identity(request.group_id, member_id, request.instance_id, client.client_id, client.host)
        heartbeat = ConsumerHeartbeat(
            me,
            client.fencing_tokens.connection_id,
            request.member_epoch,
            request.rack_id,
            None if request.rebalance_timeout_ms == -1 else request.rebalance_timeout_ms,
            None if request.subscribed_topic_names is None else frozenset(request.subscribed_topic_names),
            _regex(request),
            request.server_assignor,
            _owned(services, request.topic_partitions),
            partial(client.access.allows, Operation.DESCRIBE, ResourceType.TOPIC),
        )
        check_heartbeat(heartbeat)
        check_group_id(me.group_id)
        check_instance_id(me.instance_id)
        if request.member_epoch < JOINING:
            return leave_consumer(store, heartbeat, assignors)
        try:
            answer = consumer_heartbeat(store, heartbeat, assignors)
        except InconsistentGroupProtocolError as error:
            raise GroupIdNotFoundError(f"Group {me.group_id} is not a consumer group: {error}") from None
        if answer.repeat:
            raise CoordinatorNotAvailableError(f"group {me.group_id!r}: {member_id} must repeat its heartbeat")
        return answer

    return _response(services, outcome_of(answer, code_of=coordinator_code))


def _owned(services: Services, parts: Collection[Message] | None) -> Partitions | None:
    """Return the partitions that a member reports as owned, except those of deleted topics, or None for null."""
    if not parts:
        return None if parts is None else NO_PARTITIONS
    named = [(part.topic_id.hex, part.partitions) for part in parts if part.topic_id is not None]
    ids = {topic_id for topic_id, _ in named}
    topics = services.cluster.store.read(lambda connection: topics_of_uuids(connection, ids))
    return frozenset(
        TopicPartition(topics[topic_id].name, number)
        for topic_id, numbers in named
        if topic_id in topics
        for number in numbers
    )


def _response(services: Services, outcome: Outcome[ConsumerAnswer]) -> Message:
    answer = outcome.result
    if answer is None:
        return ConsumerGroupHeartbeatResponse(
            throttle_time_ms=0, error_code=outcome.code, error_message=outcome.message, member_id=None, member_epoch=0,
            heartbeat_interval_ms=0, assignment=None,
        )  # fmt: skip
    interval_ms = services.cluster.store.settings.group_consumer_heartbeat_interval_ms if answer.epoch > 0 else 0
    return ConsumerGroupHeartbeatResponse(
        throttle_time_ms=0, error_code=NONE, error_message=None, member_id=answer.member_id, member_epoch=answer.epoch,
        heartbeat_interval_ms=interval_ms,
        assignment=None if answer.partitions is None else _assignment(services, answer.partitions),
    )  # fmt: skip


def _assignment(services: Services, partitions: Partitions) -> Message:
    kind = ConsumerGroupHeartbeatResponse.Assignment
    found = by_topic(topics_of(services, partitions), partitions)
    parts = [kind.TopicPartitions(topic_id=topic_id, partitions=numbers) for _, topic_id, numbers in found]
    return kind(topic_partitions=parts)


def topics_of(services: Services, partitions: Iterable[TopicPartition]) -> Mapping[str, Topic]:
    """Return the existing topics of the partitions, by name."""
    names = {partition.topic for partition in partitions}
    return services.cluster.store.read(lambda connection: find_topics(connection, names)) if names else {}


def by_topic(topics: Mapping[str, Topic], partitions: Partitions) -> list[tuple[str, uuid.UUID, list[int]]]:
    """Return the name, id and partitions of each topic in `topics`."""
    found: dict[str, list[int]] = {}
    for name, number in sorted(partitions):
        if name in topics:
            found.setdefault(name, []).append(number)
    return [(name, uuid.UUID(hex=topics[name].uuid), numbers) for name, numbers in found.items()]


APIS = (
    Api(ConsumerGroupHeartbeatRequest, consumer_group_heartbeat, advertised=(0, 1), lane=Lane.GROUP,
        rights=(on_group(Operation.READ), Every(Operation.DESCRIBE, ResourceType.TOPIC, "subscribed_topic_names"))),
)  # fmt: skip
