"""Handles the first requests of a client: for versions, brokers, topics with leaders, and coordinators."""

import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import sqlalchemy as sa
from kafka.protocol.metadata import (
    ApiVersionsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
)

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.names import is_internal, is_legal
from spark_log.cluster.security.acl_rules import Operation, ResourceType
from spark_log.cluster.topics import Topic, find_topics, topics_of_uuids
from spark_log.errors import SparkLogError, TopicAlreadyExistsError
from spark_log.gateway.access.access import Access
from spark_log.gateway.access.rights import SHOWN_TOPICS, TOPIC_REFUSED, Each, Resource, Whole, each_topic
from spark_log.gateway.api import Api, Client, blocking
from spark_log.gateway.limits.bulkheads import Lane
from spark_log.gateway.live_gateways import LiveGateway, choose_gateway, partition_fields, read_live_gateways
from spark_log.gateway.protocol.error_codes import NONE, error_code
from spark_log.gateway.protocol.request_limits import TINY
from spark_log.gateway.protocol.schemas import ApiVersionsRequest
from spark_log.gateway.protocol.wire import Message
from spark_log.gateway.services import PARTITION_BYTES, TOPIC_BYTES, Needed, Services
from spark_log.ids import HOME, StoreId
from spark_log.metadata.sql_columns import PARTITION
from spark_log.replication.controller.topic_operations import create_topic

_UNKNOWN_TOPIC_OR_PARTITION = 3
_LEADER_NOT_AVAILABLE = 5
_COORDINATOR_NOT_AVAILABLE = 15
_INVALID_TOPIC = 17
_UNKNOWN_TOPIC_ID = 100
UNSUPPORTED_VERSION = 35
_NAMES_SOFTWARE = 3
"""The first version of ApiVersions that names the client's library."""
_SOFTWARE_CHARACTERS_MAX = 200
_NAMES_CLUSTER = 5
"""The first version of ApiVersions that names the cluster and the broker that the client believes to reach."""
_INVALID_REQUEST, _REBOOTSTRAP_REQUIRED = 42, 129
_NO_ID = uuid.UUID(int=0)
_CREATED_TOGETHER_MAX = 100
"""The number of topics that one request creates. The client asks again for the others."""


async def api_versions(services: Services, request: Message, _client: Client) -> Message:
    """Return the served APIs. A client that names another cluster gets REBOOTSTRAP_REQUIRED (KIP-1242).

    A client that names another gateway of this cluster is served, because it may use a load balancer.
    """
    if request.version >= _NAMES_CLUSTER:
        if (request.cluster_id is None) is not (request.node_id == -1):
            return versions_response({}, _INVALID_REQUEST)
        if request.cluster_id not in (None, services.cluster.cluster_id):
            return versions_response({}, _REBOOTSTRAP_REQUIRED)
    return versions_response(services.versions)


def versions_response(versions: Mapping[int, tuple[int, int]], code: int = NONE) -> Message:
    """Return the response with the APIs and versions that this gateway serves."""
    kind = ApiVersionsResponse.ApiVersion
    keys = [kind(api_key=key, min_version=low, max_version=high) for key, (low, high) in sorted(versions.items())]
    return ApiVersionsResponse(error_code=code, api_keys=keys, throttle_time_ms=0)


def software_of(request: Message, version: int) -> str:
    """Return the name and version of the client's library from an ApiVersions request (KIP-511), or an empty text. A
    connection keeps it, so a long text is cut off.
    """
    if version < _NAMES_SOFTWARE:
        return ""
    return f"{request.client_software_name} {request.client_software_version}"[:_SOFTWARE_CHARACTERS_MAX]


async def metadata(services: Services, request: Message, client: Client) -> Message:
    """Return brokers and topics, and create missing topics if allowed. The brokers are the live gateways. The leader of
    a partition is the gateway that its producers should use.
    """
    response, missing = await services.call_in_memory(partial(_metadata, services, request, client, {}))
    if missing and request.allow_auto_topic_creation is not False and services.settings.auto_create_topics:
        create = partial(_create, services, missing[:_CREATED_TOGETHER_MAX], client.access)
        codes = await services.bulkheads.run(Lane.ADMIN, client.key, create)
        codes |= dict.fromkeys(missing[_CREATED_TOGETHER_MAX:], _LEADER_NOT_AVAILABLE)
        response, _ = await services.call_in_memory(partial(_metadata, services, request, client, codes))
    return response


def _create(services: Services, names: Sequence[str], access: Access) -> dict[str, int]:
    """Create topics with num.partitions, like a broker with auto.create.topics.enable. Return error codes by name."""
    codes: dict[str, int] = {}
    for name in names:
        allowed = access.allows(Operation.CREATE, ResourceType.TOPIC, name)
        if not (allowed or access.allows_on_cluster(Operation.CREATE)):
            codes[name] = TOPIC_REFUSED
            continue
        try:
            with suppress(TopicAlreadyExistsError):
                services.stores.change(
                    services.stores.of_new_topics(),
                    partial(create_topic, services.cluster, name, services.settings.partitions_of_new_topics),
                )
        except SparkLogError as error:
            codes[name] = error_code(error)
    return codes


def _metadata(
    services: Services, request: Message, client: Client, codes: Mapping[str, int], held: int
) -> tuple[Message, Sequence[str]] | Needed:
    """Return the response, and the names without a topic. `codes` are the errors of names that could not be created.

    `held` is the memory in bytes that the response may use. If it needs more, return Needed.
    """
    everything = request.topics is None or (request.version == 0 and not request.topics)
    names = [] if everything else list(dict.fromkeys(each.name for each in request.topics if each.name is not None))
    ids = (
        []
        if everything
        else list(dict.fromkeys(each.topic_id or _NO_ID for each in request.topics if each.name is None))
    )
    store = services.cluster.store

    def read(connection: sa.Connection) -> _Facts | Needed:
        by_name = find_topics(connection, None if everything else names)
        by_id = topics_of_uuids(connection, [topic_id.hex for topic_id in ids]) if ids else {}
        topics = (*by_name.values(), *by_id.values())
        partitions = sum(topic.partition_count for topic in topics)
        size = partitions * PARTITION_BYTES + (len(topics) + len(names) + len(ids)) * TOPIC_BYTES
        if size > held:
            return Needed(size)
        topic_ids = None if everything else [topic.topic_id for topic in topics]
        return _Facts(read_live_gateways(store, connection), by_name, by_id, leader_epochs(connection, topic_ids))

    facts = store.read(read)
    if isinstance(facts, Needed):
        return facts
    add_epochs_of_data_stores(services, (*facts.by_name.values(), *facts.by_id.values()), facts.epochs)
    answers: list[Message] = []
    for name in facts.by_name if everything else names:
        if name in facts.by_name:
            answers.append(_topic(services, facts.by_name[name], facts, client))
        else:
            missing = _UNKNOWN_TOPIC_OR_PARTITION if is_legal(name) else _INVALID_TOPIC
            answers.append(_missing(name, codes.get(name, missing)))
    for topic_id in ids:
        if topic_id.hex in facts.by_id:
            answers.append(_topic(services, facts.by_id[topic_id.hex], facts, client))
        else:
            answers.append(_missing(None, _UNKNOWN_TOPIC_ID, topic_id))
    if request.include_topic_authorized_operations:
        for answer in answers:
            answer.authorized_operations = (
                client.access.operations_on(ResourceType.TOPIC, answer.name)
                if answer.error_code == NONE
                else frozenset()
            )
    brokers = [
        MetadataResponse.MetadataResponseBroker(
            node_id=gateway.gateway_id, host=gateway.host, port=gateway.port, rack=gateway.zone
        )
        for gateway in facts.gateways
    ]
    response = MetadataResponse(
        throttle_time_ms=0,
        brokers=brokers,
        cluster_id=services.cluster.cluster_id,
        controller_id=min((gateway.gateway_id for gateway in facts.gateways), default=-1),
        topics=answers,
        authorized_operations=(
            client.access.operations_on(ResourceType.CLUSTER) if request.include_cluster_authorized_operations else None
        ),
    )
    return response, [name for name in names if name not in facts.by_name]


class _Facts(NamedTuple):
    """Facts of one moment. `by_id` has topics by uuid, and `epochs` leader epochs by topic id and partition, None where
    the store of the partition does not answer.
    """

    gateways: Sequence[LiveGateway]
    by_name: Mapping[str, Topic]
    by_id: Mapping[str, Topic]
    epochs: dict[int, dict[int, int | None]]


def leader_epochs(connection: sa.Connection, topic_ids: Collection[int] | None) -> dict[int, dict[int, int | None]]:
    """Return leader epochs by topic id and partition, in this order, of the given topics, or of all topics for None."""
    query = sa.select(PARTITION.topic_id, PARTITION.partition, PARTITION.leader_epoch)
    if topic_ids is not None:
        query = query.where(PARTITION.topic_id.in_(topic_ids))
    epochs: dict[int, dict[int, int | None]] = {}
    for topic_id, number, epoch in connection.execute(query.order_by(PARTITION.topic_id, PARTITION.partition)):
        epochs.setdefault(topic_id, {})[number] = epoch
    return epochs


def add_epochs_of_data_stores(
    services: Services, topics: Iterable[Topic], epochs: dict[int, dict[int, int | None]]
) -> None:
    """Add the leader epochs of the topics that are in data stores; None where the store does not answer."""
    groups: dict[StoreId, list[Topic]] = {}
    for topic in topics:
        if topic.store_id != HOME:
            groups.setdefault(topic.store_id, []).append(topic)
    for store_id, answer in services.stores.in_each(groups, _epochs_of).items():
        for topic in groups[store_id]:
            known = {} if isinstance(answer, SparkLogError) else answer.get(topic.topic_id, {})
            epochs[topic.topic_id] = {number: known.get(number) for number in range(topic.partition_count)}


def _epochs_of(view: Cluster, topics: Sequence[Topic]) -> dict[int, dict[int, int | None]]:
    topic_ids = [topic.topic_id for topic in topics]
    return view.store.read(lambda connection: leader_epochs(connection, topic_ids))


def _topic(services: Services, topic: Topic, facts: _Facts, client: Client) -> Message:
    kind = MetadataResponse.MetadataResponseTopic
    zone = client.zone or services.settings.zone
    partitions = [
        kind.MetadataResponsePartition(
            **partition_fields(
                None if epoch is None else choose_gateway(facts.gateways, zone, topic.topic_id, number), number, epoch
            )
        )
        for number, epoch in facts.epochs.get(topic.topic_id, {}).items()
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


def find_coordinator(services: Services, request: Message, client: Client) -> Message:
    """Return the gateway for each group or transactional id. Any one would work; all clients of a zone get the same."""
    keys = [request.key] if request.version < 4 else list(dict.fromkeys(request.coordinator_keys))
    gateways, zone = services.live_gateways(), client.zone or services.settings.zone
    chosen = {key: choose_gateway(gateways, zone, request.key_type, key) for key in keys}
    if request.version < 4:
        return FindCoordinatorResponse(throttle_time_ms=0, **_coordinator(chosen[request.key]))
    kind = FindCoordinatorResponse.Coordinator
    coordinators = [kind(key=key, **_coordinator(one)) for key, one in chosen.items()]
    return FindCoordinatorResponse(throttle_time_ms=0, coordinators=coordinators)


def _coordinator(one: LiveGateway | None) -> Mapping[str, object]:
    if one is None:
        return {"node_id": -1, "host": "", "port": -1, "error_code": _COORDINATOR_NOT_AVAILABLE}
    return {"node_id": one.gateway_id, "host": one.host, "port": one.port, "error_code": NONE}


_COORDINATED = {0: ResourceType.GROUP, 1: ResourceType.TRANSACTIONAL_ID}


def _coordinated_before_v4(request: Message) -> Resource | None:
    kind = _COORDINATED.get(request.key_type)
    return (kind, request.key) if kind is not None and request.version < 4 else None


def _coordinated(request: Message, key: Message) -> tuple[ResourceType, str | None]:
    return _COORDINATED.get(request.key_type, ResourceType.GROUP), key


APIS = (
    Api(ApiVersionsRequest, api_versions, advertised=(0, 5), limits=TINY, lane=Lane.METADATA, rights=()),
    Api(MetadataRequest, metadata, advertised=(0, 13), lane=Lane.METADATA,
        rights=(each_topic(Operation.DESCRIBE, unknown_if_by_id=True), SHOWN_TOPICS)),
    Api(FindCoordinatorRequest, blocking(find_coordinator), advertised=(0, 6), lane=Lane.METADATA,
        rights=(
            Whole(Operation.DESCRIBE, _coordinated_before_v4),
            Each(Operation.DESCRIBE, _coordinated, "coordinator_keys", "coordinators"),
        )),
)  # fmt: skip
