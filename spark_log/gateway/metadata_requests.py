"""The first requests of a client: versions, brokers, topics and their leaders, coordinators."""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import sqlalchemy as sa
from kafka.protocol.metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
)

from spark_log.cluster.names import is_internal, is_legal
from spark_log.cluster.topics import Topic, find_topics, topics_of_uuids
from spark_log.controller.topic_operations import create_topic
from spark_log.errors import SparkLogError, TopicAlreadyExistsError
from spark_log.gateway.access.authorization import Access
from spark_log.gateway.access.rights import TOPIC_REFUSED
from spark_log.gateway.api import Api, Client
from spark_log.gateway.authorized_operations import operations_on
from spark_log.gateway.error_codes import NONE, error_code
from spark_log.gateway.live_gateways import LiveGateway, choose_gateway, partition_fields, read_live_gateways
from spark_log.gateway.wire import Message
from spark_log.metadata.columns import PARTITION
from spark_log.security.acl_rules import Operation, ResourceType

if TYPE_CHECKING:
    from spark_log.gateway.gateway import Gateway

_UNKNOWN_TOPIC_OR_PARTITION = 3
_COORDINATOR_NOT_AVAILABLE = 15
_INVALID_TOPIC = 17
_UNKNOWN_TOPIC_ID = 100
UNSUPPORTED_VERSION = 35
_NAMES_SOFTWARE = 3
"""The first version of ApiVersions that names the client's library."""
_NO_ID = uuid.UUID(int=0)
GROUP, TRANSACTION = 0, 1


async def api_versions(gateway: "Gateway", _request: Message, _client: Client) -> Message:
    return versions_response(gateway.apis.values())


def versions_response(apis: Iterable[Api], code: int = NONE) -> Message:
    """The APIs and versions that this gateway serves."""
    kind = ApiVersionsResponse.ApiVersion
    keys = [
        kind(api_key=api.key, min_version=api.advertised[0], max_version=api.advertised[1])
        for api in sorted(apis, key=lambda api: api.key)
    ]
    return ApiVersionsResponse(error_code=code, api_keys=keys, throttle_time_ms=0)


def software_of(request: Message, version: int) -> str:
    """Name and version of the client's library that a request of ApiVersions tells (KIP-511)."""
    return f"{request.client_software_name} {request.client_software_version}" if version >= _NAMES_SOFTWARE else ""


async def metadata(gateway: "Gateway", request: Message, client: Client) -> Message:
    """Brokers are the live gateways; the leader of a partition is the gateway that its producers should use."""
    return await gateway.call(_metadata, gateway, request, client)


def _metadata(gateway: "Gateway", request: Message, client: Client) -> Message:
    wanted = None if request.topics is None else list(request.topics)
    if request.version == 0 and not wanted:
        wanted = None
    names = None if wanted is None else [each.name for each in wanted if each.name is not None]
    ids = [] if wanted is None else [each.topic_id or _NO_ID for each in wanted if each.name is None]
    store = gateway.cluster.store

    def read(connection: sa.Connection) -> tuple[list[LiveGateway], dict[str, Topic], dict[str, Topic]]:
        by_id = topics_of_uuids(connection, [each.hex for each in ids]) if ids else {}
        return read_live_gateways(store, connection), find_topics(connection, names), by_id

    gateways, topics, by_id = store.read(read)
    answers: list[Message] = []
    if names is None:
        answers = [_topic(gateway, topic, gateways, client) for topic in topics.values()]
    for name in names or ():
        topic = topics.get(name)
        code = NONE
        if topic is None and request.allow_auto_topic_creation is not False and gateway.settings.auto_create_topics:
            topic, code = _create(gateway, name, client.access)
        if topic is not None:
            answers.append(_topic(gateway, topic, gateways, client))
        else:
            answers.append(_missing(name, code or (_UNKNOWN_TOPIC_OR_PARTITION if is_legal(name) else _INVALID_TOPIC)))
    for topic_id in ids:
        topic = by_id.get(topic_id.hex)
        if topic is not None:
            answers.append(_topic(gateway, topic, gateways, client))
        else:
            answers.append(_missing(None, _UNKNOWN_TOPIC_ID, topic_id))
    if request.include_topic_authorized_operations:
        for answer in answers:
            answer.authorized_operations = (
                operations_on(client.access, ResourceType.TOPIC, answer.name)
                if answer.error_code == NONE
                else frozenset()
            )
    brokers = [
        MetadataResponse.MetadataResponseBroker(node_id=each.gateway_id, host=each.host, port=each.port, rack=each.zone)
        for each in gateways
    ]
    return MetadataResponse(
        throttle_time_ms=0,
        brokers=brokers,
        cluster_id=gateway.cluster.cluster_id,
        controller_id=min((each.gateway_id for each in gateways), default=-1),
        topics=answers,
        authorized_operations=(
            operations_on(client.access, ResourceType.CLUSTER)
            if request.include_cluster_authorized_operations
            else None
        ),
    )


def _create(gateway: "Gateway", name: str, access: Access) -> tuple[Topic | None, int]:
    """A topic with num.partitions, as a broker with auto.create.topics.enable makes it."""
    if not (access.allows(Operation.CREATE, ResourceType.TOPIC, name) or access.allows_on_cluster(Operation.CREATE)):
        return None, TOPIC_REFUSED
    try:
        with suppress(TopicAlreadyExistsError):
            create_topic(gateway.cluster, name, gateway.settings.partitions_of_new_topics)
        return gateway.topics.find([name]).get(name), NONE
    except SparkLogError as error:
        return None, error_code(error)


def _topic(gateway: "Gateway", topic: Topic, gateways: Sequence[LiveGateway], client: Client) -> Message:
    kind = MetadataResponse.MetadataResponseTopic
    query = sa.select(PARTITION.partition, PARTITION.leader_epoch).where(PARTITION.topic_id == topic.topic_id)
    epochs = gateway.cluster.store.read(
        lambda connection: connection.execute(query.order_by(PARTITION.partition)).all()
    )
    zone = client.zone or gateway.settings.zone
    partitions = [
        kind.MetadataResponsePartition(
            **partition_fields(choose_gateway(gateways, zone, topic.topic_id, number), number, epoch)
        )
        for number, epoch in epochs
    ]
    return kind(
        error_code=NONE,
        name=topic.name,
        topic_id=uuid.UUID(hex=topic.uuid),
        is_internal=is_internal(topic.name),
        partitions=partitions,
    )


def _missing(name: str | None, code: int, topic_id: uuid.UUID = _NO_ID) -> Message:
    return MetadataResponse.MetadataResponseTopic(
        error_code=code, name=name, topic_id=topic_id, is_internal=False, partitions=[]
    )


async def find_coordinator(gateway: "Gateway", request: Message, client: Client) -> Message:
    """The gateway of a group or transactional id. Any gateway would do; all members of a zone get the same."""
    keys = [request.key] if request.version < 4 else list(request.coordinator_keys)
    gateways = await gateway.call(gateway.live_gateways)
    zone = client.zone or gateway.settings.zone
    found = {key: choose_gateway(gateways, zone, request.key_type, key) for key in keys}
    if request.version < 4:
        return FindCoordinatorResponse(throttle_time_ms=0, **_coordinator(found[request.key]))
    kind = FindCoordinatorResponse.Coordinator
    coordinators = [kind(key=key, **_coordinator(one)) for key, one in found.items()]
    return FindCoordinatorResponse(throttle_time_ms=0, coordinators=coordinators)


def _coordinator(one: LiveGateway | None) -> Mapping[str, object]:
    if one is None:
        return {"node_id": -1, "host": "", "port": -1, "error_code": _COORDINATOR_NOT_AVAILABLE}
    return {"node_id": one.gateway_id, "host": one.host, "port": one.port, "error_code": NONE}


APIS = (
    Api(ApiVersionsRequest, api_versions, advertised=(0, 4)),
    Api(MetadataRequest, metadata, advertised=(0, 12)),
    Api(FindCoordinatorRequest, find_coordinator, advertised=(0, 6)),
)
