"""Handles creation and deletion of topics, additional partitions, and deletion of records."""

import uuid
from collections import Counter
from collections.abc import Collection, Iterable
from functools import partial
from typing import Any

from kafka.admin import ConfigSourceType
from kafka.protocol.admin import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)

from spark_log.clients.admin.configs import entries_of
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.names import is_internal
from spark_log.cluster.security.acl_rules import Operation
from spark_log.cluster.topics import Topic, find_topics, topics_of_uuids
from spark_log.config import canonical
from spark_log.errors import (
    IllegalArgumentError,
    InvalidConfigurationError,
    InvalidReplicationAssignmentError,
    PolicyViolationError,
    SparkLogError,
    TopicAlreadyExistsError,
)
from spark_log.gateway.access.access import EVERYTHING
from spark_log.gateway.access.rights import each_topic
from spark_log.gateway.api import Api, Client, blocking
from spark_log.gateway.protocol.error_codes import NONE, Outcome, error_code, failed, outcome_of
from spark_log.gateway.protocol.request_limits import TRANSACTIONS
from spark_log.gateway.protocol.wire import Message
from spark_log.gateway.services import Services
from spark_log.gateway.topic_stores import CHANGE_S
from spark_log.ids import TopicPartition
from spark_log.maintenance.removal.retention import delete_records
from spark_log.replication.controller.topic_operations import (
    add_partitions,
    check_new_topic,
    create_topic,
    delete_topic,
)

_UNKNOWN_TOPIC_OR_PARTITION, _INVALID_TOPIC, _UNKNOWN_TOPIC_ID = 3, 17, 100
_NO_ID = uuid.UUID(int=0)
_DEFAULT = -1
"""The number in a request that stands for num.partitions or default.replication.factor."""
_DEFAULT_REPLICATION_FACTOR = 1
PARTITIONS_OF_REQUEST_MAX = 10_000
"""The limit of new partitions of all topics of a request together, as in KRaft. Each is a row that is written."""


def create_topics(services: Services, request: Message, client: Client) -> Message:
    """Create each topic on its own. spark-log places the replicas, so a topic with assignments is refused."""
    times = Counter(topic.name for topic in request.topics)
    topics = {topic.name: topic for topic in request.topics}.values()
    default = services.settings.partitions_of_new_topics
    partitions = {topic.name: default if topic.num_partitions == _DEFAULT else topic.num_partitions for topic in topics}
    too_many = _too_many(partitions.values())

    def created(new_topic: Message) -> Message:
        if too_many is not None:
            return _not_created(new_topic, too_many)
        return _created(
            services, client, new_topic, partitions[new_topic.name], times[new_topic.name], bool(request.validate_only)
        )

    return CreateTopicsResponse(throttle_time_ms=0, topics=[created(topic) for topic in topics])


def _too_many(new_partitions: Iterable[int]) -> Outcome[None] | None:
    """Return POLICY_VIOLATION if a request would add more partitions than allowed, otherwise None."""
    if sum(max(each, 0) for each in new_partitions) <= PARTITIONS_OF_REQUEST_MAX:
        return None
    return failed(
        PolicyViolationError(
            f"Excessively large number of partitions per request: more than {PARTITIONS_OF_REQUEST_MAX} together."
        )
    )


def _not_created(new_topic: Message, outcome: Outcome[Any]) -> Message:
    return CreateTopicsResponse.CreatableTopicResult(
        name=new_topic.name,
        topic_id=_NO_ID,
        error_code=outcome.code,
        error_message=outcome.message,
        num_partitions=-1,
        replication_factor=-1,
        configs=[],
    )


def _created(
    services: Services, client: Client, new_topic: Message, partitions: int, times: int, validate_only: bool
) -> Message:
    factor = new_topic.replication_factor
    factor = _DEFAULT_REPLICATION_FACTOR if factor == _DEFAULT else factor
    configs: dict[str, str] = {}

    def create() -> Topic | None:
        if times > 1:
            raise IllegalArgumentError(f"topic {new_topic.name!r} is in the request more than once")
        if new_topic.assignments:
            raise InvalidReplicationAssignmentError(
                f"topic {new_topic.name!r}: spark-log places replicas over brokers and racks;"
                " give the number of partitions and the replication factor instead of assignments"
            )
        for each in new_topic.configs:
            if each.value is None:
                raise InvalidConfigurationError(f"config {each.name!r}: the value is null")
            configs[each.name] = each.value
        try:
            operation = check_new_topic if validate_only else create_topic
            make = partial(operation, services.cluster, new_topic.name, partitions, factor, configs)
            return services.stores.change(services.stores.of_new_topics(), make)
        except TopicAlreadyExistsError:
            if client.access is EVERYTHING:
                raise
            # the name that collides may be of a topic that the client may not describe
            raise TopicAlreadyExistsError(
                f"Topic {new_topic.name!r} already exists, or a name that differs in '.' and '_' only."
            ) from None

    outcome = outcome_of(create)
    if outcome.code != NONE:
        return _not_created(new_topic, outcome)
    topic = outcome.result
    entry = CreateTopicsResponse.CreatableTopicResult.CreatableTopicConfigs
    return CreateTopicsResponse.CreatableTopicResult(
        name=new_topic.name,
        topic_id=_NO_ID if topic is None else uuid.UUID(hex=topic.uuid),
        error_code=NONE,
        error_message=None,
        num_partitions=partitions,
        replication_factor=factor,
        configs=[
            entry(
                name=name,
                value=facts["value"],
                read_only=False,
                config_source=ConfigSourceType[facts["config_source"]].value,
                is_sensitive=False,
            )
            for name, facts in entries_of(canonical(configs), everything=True).items()
        ],
    )


def delete_topics(services: Services, request: Message, _client: Client) -> Message:
    """Delete topics by name, or by topic id since version 6."""
    if request.version < 6:
        return DeleteTopicsResponse(
            throttle_time_ms=0, responses=[_deleted(services, name, _NO_ID) for name in request.topic_names]
        )
    ids = [_id_of(each).hex for each in request.topics]
    by_id = services.cluster.store.read(lambda connection: topics_of_uuids(connection, ids))
    responses = []
    for wanted in request.topics:
        topic = by_id.get(_id_of(wanted).hex)
        name = wanted.name if wanted.name is not None else topic.name if topic is not None else None
        responses.append(_deleted(services, name, _id_of(wanted), None if topic is None else topic.topic_id))
    return DeleteTopicsResponse(throttle_time_ms=0, responses=responses)


def _id_of(wanted: Message) -> uuid.UUID:
    """Return the topic id. kafka-python decodes the nil UUID as None."""
    return _NO_ID if wanted.topic_id is None else wanted.topic_id


def _deleted(services: Services, name: str | None, asked_id: uuid.UUID, topic_id: int | None = None) -> Message:
    unknown: Outcome[None] = Outcome(_UNKNOWN_TOPIC_ID, f"there is no topic with the id {asked_id}")
    outcome = unknown
    if name is not None:
        delete = partial(delete_topic, services.cluster, name, topic_id=topic_id)
        outcome = outcome_of(lambda: services.stores.change(services.stores.of(name), delete))
        services.topics.forget(name)
        if topic_id is not None and outcome.code == _UNKNOWN_TOPIC_OR_PARTITION:
            outcome = unknown
    return DeleteTopicsResponse.DeletableTopicResult(
        name=name, topic_id=asked_id, error_code=outcome.code, error_message=outcome.message
    )


def create_partitions(services: Services, request: Message, _client: Client) -> Message:
    names = [each.name for each in request.topics]
    there = services.cluster.store.read(lambda connection: find_topics(connection, names))
    too_many = _too_many(each.count - there[each.name].partition_count for each in request.topics if each.name in there)

    def add_to(topic: Message) -> None:
        if topic.assignments:
            raise InvalidReplicationAssignmentError(
                f"topic {topic.name!r}: spark-log places replicas over brokers and racks, without assignments"
            )
        add = partial(add_partitions, services.cluster, topic.name, topic.count, validate_only=request.validate_only)
        services.stores.change(services.stores.of(topic.name), add)
        services.topics.forget(topic.name)

    results = []
    for topic in request.topics:
        outcome = too_many or outcome_of(add_to, topic)
        results.append(
            CreatePartitionsResponse.CreatePartitionsTopicResult(
                name=topic.name, error_code=outcome.code, error_message=outcome.message
            )
        )
    return CreatePartitionsResponse(throttle_time_ms=0, results=results)


def delete_records_before(services: Services, request: Message, _client: Client) -> Message:
    """Move the log start offsets of each store together. If a store refuses one of them, move each on its own.
    Partitions of internal topics are refused with INVALID_TOPIC_EXCEPTION, as by a broker.
    """
    before = {
        TopicPartition(topic.name, partition.partition_index): partition.offset
        for topic in request.topics
        for partition in topic.partitions
    }

    def delete(cluster: Cluster, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        return delete_records(cluster, {tp: before[tp] for tp in partitions})

    of_users = [tp for tp in before if not is_internal(tp.topic)]
    together = services.stores.of_partitions(of_users, delete, CHANGE_S)

    def deleted(tp: TopicPartition) -> tuple[int, int]:
        if is_internal(tp.topic):
            return -1, _INVALID_TOPIC
        low = together[tp]
        if isinstance(low, SparkLogError):
            low = services.stores.of_partitions([tp], delete, CHANGE_S)[tp]
        return (-1, error_code(low)) if isinstance(low, SparkLogError) else (low, NONE)

    def result(tp: TopicPartition) -> Message:
        low, code = deleted(tp)
        kind = DeleteRecordsResponse.DeleteRecordsTopicResult.DeleteRecordsPartitionResult
        return kind(partition_index=tp.partition, low_watermark=low, error_code=code)

    topics = [
        DeleteRecordsResponse.DeleteRecordsTopicResult(
            name=topic.name,
            partitions=[
                result(TopicPartition(topic.name, partition.partition_index)) for partition in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return DeleteRecordsResponse(throttle_time_ms=0, topics=topics)


APIS = (
    Api(CreateTopicsRequest, blocking(create_topics), advertised=(2, 7), limits=TRANSACTIONS,
        rights=(each_topic(Operation.CREATE, or_cluster=True),)),
    Api(DeleteTopicsRequest, blocking(delete_topics), advertised=(1, 6), limits=TRANSACTIONS,
        rights=(
            each_topic(Operation.DELETE, "responses", "topic_names", None), each_topic(Operation.DELETE, "responses"),
        )),
    Api(CreatePartitionsRequest, blocking(create_partitions), advertised=(0, 3), limits=TRANSACTIONS,
        rights=(each_topic(Operation.ALTER, "results"),)),
    Api(DeleteRecordsRequest, blocking(delete_records_before), advertised=(0, 2), limits=TRANSACTIONS,
        rights=(each_topic(Operation.DELETE),)),
)  # fmt: skip
