"""Handles requests on configs of topics, groups and the cluster, whose settings clients see as those of brokers."""

from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from kafka.admin import AlterConfigOp, ConfigResource, ConfigResourceType, ConfigSourceType, ConfigType
from kafka.protocol.admin import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

from spark_log.clients.admin.configs import alter_resource, describe_resource
from spark_log.cluster.names import AUDIT_TOPIC
from spark_log.cluster.security.acl_rules import Operation, ResourceType
from spark_log.cluster.topics import list_topics
from spark_log.config import ClusterSettings, canonical, definitions, group_definitions
from spark_log.errors import IllegalArgumentError, PolicyViolationError
from spark_log.gateway.access.rights import CLUSTER, Each, on_cluster
from spark_log.gateway.api import Api, Client, blocking
from spark_log.gateway.gateway_settings import LIMITS
from spark_log.gateway.protocol.error_codes import NONE, outcome_of
from spark_log.gateway.protocol.request_limits import TINY, TRANSACTIONS
from spark_log.gateway.protocol.wire import Message
from spark_log.gateway.services import Services
from spark_log.groups.share.rows import groups_with_configs

if TYPE_CHECKING:
    from spark_log.gateway.gateway_settings import GatewaySettings

Facts = Mapping[str, Any]
"""Facts of a config, as `spark_log.clients.admin.configs` describes them."""

_TOPIC, _BROKER, _GROUP = map(int, (ConfigResourceType.TOPIC, ConfigResourceType.BROKER, ConfigResourceType.GROUP))
_CLIENT_METRICS = frozenset({int(ConfigResourceType.CLIENT_METRICS)})
_UNSUPPORTED_VERSION = 35
_RESOURCE_TYPES = frozenset(map(int, ConfigResourceType)) - {int(ConfigResourceType.UNKNOWN)}
"""Kafka's resource types. Only topics, groups and brokers have configs here."""
_HAS_LONG_VALUES, _OLD_TEXT_BYTES_MAX = 4, 2**15 - 1
"""The first version of DescribeConfigs with strings of any length, and the limit of a string in older ones."""


def describe_configs(services: Services, request: Message, _client: Client) -> Message:
    """Return all or the named configs of resources. The configs of a BROKER are the cluster's settings and the
    gateway's options.
    """
    results = []
    resources = {(each.resource_type, each.resource_name): each for each in request.resources}
    for requested in resources.values():
        outcome = outcome_of(_entries, services, requested)
        results.append(
            DescribeConfigsResponse.DescribeConfigsResult(
                error_code=outcome.code,
                error_message=outcome.message,
                resource_type=requested.resource_type,
                resource_name=requested.resource_name,
                configs=[
                    _described(
                        name, facts, bool(request.include_synonyms), bool(request.include_documentation),
                        None if request.version >= _HAS_LONG_VALUES else _OLD_TEXT_BYTES_MAX,
                    )
                    for name, facts in (outcome.result or {}).items()
                ],
            )
        )  # fmt: skip
    return DescribeConfigsResponse(throttle_time_ms=0, results=results)


def _entries(services: Services, requested: Message) -> dict[str, Facts]:
    resource = _resource(requested.resource_type, requested.resource_name)
    entries: dict[str, Facts] = dict(describe_resource(services.cluster, resource))
    if requested.resource_type == _BROKER:
        entries |= _options(services.settings)
    if requested.configuration_keys is None:
        return entries
    names = canonical(dict.fromkeys(requested.configuration_keys))
    return {name: facts for name, facts in entries.items() if name in names}


_OPTION_TYPES = {bool: "BOOLEAN", int: "INT", str: "STRING"}


def _options(settings: "GatewaySettings") -> dict[str, Facts]:
    """Return the options of this gateway under Kafka's names. They are set when the gateway starts."""
    host = f"[{settings.advertised_host}]" if ":" in settings.advertised_host else settings.advertised_host
    values = {
        "advertised.listeners": f"{settings.security_protocol}://{host}:{settings.advertised_port}",
        "auto.create.topics.enable": settings.auto_create_topics,
        "num.partitions": settings.partitions_of_new_topics,
        "sasl.enabled.mechanisms": ",".join(settings.sasl_mechanisms),
        "connections.max.reauth.ms": settings.connections_max_reauth_ms,
        **{name: getattr(settings, field) for name, field in LIMITS.items()},
    }
    return {
        name: {
            "value": str(value).lower() if isinstance(value, bool) else str(value),
            "read_only": True,
            "is_sensitive": False,
            "config_source": ConfigSourceType.STATIC_BROKER_CONFIG.name,
            "config_type": _OPTION_TYPES[type(value)],
            "documentation": "",
        }
        for name, value in values.items()
    }


def _described(name: str, facts: Facts, synonyms: bool, documentation: bool, bytes_max: int | None) -> Message:
    """Describe a config. A value of more than `bytes_max` bytes, such as a long schema, is null, because a part of it
    could be taken for the whole.
    """
    kind = DescribeConfigsResponse.DescribeConfigsResult.DescribeConfigsResourceResult
    source = ConfigSourceType[facts["config_source"]]
    fits = bytes_max is None or len(facts["value"].encode()) <= bytes_max
    values = [(source, facts["value"] if fits else None)]
    if source is not ConfigSourceType.DEFAULT_CONFIG and name in _DEFAULTS:
        values.append((ConfigSourceType.DEFAULT_CONFIG, _DEFAULTS[name]))
    return kind(
        name=name,
        value=values[0][1],
        read_only=facts["read_only"],
        config_source=source.value,
        is_sensitive=facts["is_sensitive"],
        synonyms=[
            kind.DescribeConfigsSynonym(name=name, value=value, source=where.value)
            for where, value in (values if synonyms else ())
        ],
        config_type=ConfigType[facts["config_type"]].value,
        documentation=facts["documentation"] if documentation else None,
    )


_DEFAULTS = {
    **{each.name: each.default for each in (*definitions(), *group_definitions().values())},
    **ClusterSettings().as_text(),
}


def incremental_alter_configs(services: Services, request: Message, client: Client) -> Message:
    return _alter(services, request, client, IncrementalAlterConfigsResponse)


def alter_configs(services: Services, request: Message, client: Client) -> Message:
    """Set the named configs, and reset all others to their defaults."""
    return _alter(services, request, client, AlterConfigsResponse)


def _alter(services: Services, request: Message, client: Client, response: type[Message]) -> Message:
    incremental = response is IncrementalAlterConfigsResponse
    times = Counter((each.resource_type, each.resource_name) for each in request.resources)

    def alter(requested: Message) -> None:
        if times[requested.resource_type, requested.resource_name] > 1:
            raise IllegalArgumentError(f"resource {requested.resource_name!r} is in the request more than once")
        if (requested.resource_type, requested.resource_name) == (_TOPIC, AUDIT_TOPIC):
            # By a shorter retention a client could delete the records of its own changes. As in Kafka, clients may
            # alter the configs of the other internal topics.
            raise PolicyViolationError(f"Topic {AUDIT_TOPIC}: its configs are changed on the command line only.")
        changes = _changes(requested, incremental)
        resource = _resource(requested.resource_type, requested.resource_name, changes)
        change = partial(
            alter_resource, services.cluster, client.principal, "gateway", resource,
            validate_only=bool(request.validate_only), incremental=incremental,
        )  # fmt: skip
        if requested.resource_type == _TOPIC:
            services.stores.change(services.stores.of(requested.resource_name), change)
            services.topics.forget(requested.resource_name)
        else:
            change()

    responses = []
    for requested in request.resources:
        outcome = outcome_of(alter, requested)
        responses.append(
            response.AlterConfigsResourceResponse(
                error_code=outcome.code,
                error_message=outcome.message,
                resource_type=requested.resource_type,
                resource_name=requested.resource_name,
            )
        )
    return response(throttle_time_ms=0, responses=responses)


def _changes(requested: Message, incremental: bool) -> dict[str, tuple[AlterConfigOp, str | None]]:
    changes: dict[str, tuple[AlterConfigOp, str | None]] = {}
    for config in requested.configs:
        if config.name in changes:
            raise IllegalArgumentError(f"config {config.name!r} is in the request more than once")
        number = config.config_operation if incremental else AlterConfigOp.SET
        if number not in list(AlterConfigOp):
            raise IllegalArgumentError(f"config {config.name!r}: there is no operation {number}")
        if config.value is None and number != AlterConfigOp.DELETE:
            raise IllegalArgumentError(f"config {config.name!r}: the value is null")
        changes[config.name] = AlterConfigOp(number), config.value
    return changes


def _resource(number: int, name: str, configs: Mapping[str, Any] | None = None) -> ConfigResource:
    """Return the resource. Raises IllegalArgumentError unless it is a topic, a group or a broker.

    The name of a broker is its id, or empty for all brokers.
    """
    if number == _BROKER and name and not name.isdecimal():
        raise IllegalArgumentError(f"broker {name!r}: expected an id, or an empty name for all brokers")
    if number not in (_TOPIC, _BROKER, _GROUP):
        raise IllegalArgumentError(f"resource type {number}: only topics, groups and brokers have configs")
    return ConfigResource(ConfigResourceType(number), name, configs)


async def list_config_resources(services: Services, request: Message, _client: Client) -> Message:
    """List the topics, gateways and groups with configs, or the resources of the requested types. Version 0 requests
    client metrics; a gateway has none.
    """
    types = frozenset(request.resource_types or _RESOURCE_TYPES) if request.version else _CLIENT_METRICS
    names: dict[int, list[str]] = {}
    if _TOPIC in types:
        names[_TOPIC] = [topic.name for topic in await services.call(list_topics, services.cluster)]
    if _BROKER in types:
        names[_BROKER] = [str(each.gateway_id) for each in await services.call(services.live_gateways)]
    if _GROUP in types:
        names[_GROUP] = await services.call(services.cluster.store.read, groups_with_configs)
    return ListConfigResourcesResponse(
        throttle_time_ms=0,
        error_code=NONE if types <= _RESOURCE_TYPES else _UNSUPPORTED_VERSION,
        config_resources=[
            ListConfigResourcesResponse.ConfigResource(resource_name=name, resource_type=number)
            for number, found in names.items()
            for name in (found if types <= _RESOURCE_TYPES else ())
        ],
    )


def _configured(_request: Message, element: Message) -> tuple[ResourceType, str | None]:
    kinds = {_TOPIC: ResourceType.TOPIC, _GROUP: ResourceType.GROUP}
    kind = kinds.get(element.resource_type)
    return CLUSTER if kind is None else (kind, element.resource_name)


APIS = (
    Api(DescribeConfigsRequest, blocking(describe_configs), advertised=(1, 4), limits=TRANSACTIONS,
        rights=(Each(Operation.DESCRIBE_CONFIGS, _configured, "resources", "results"),)),
    Api(AlterConfigsRequest, blocking(alter_configs), advertised=(0, 2), limits=TRANSACTIONS,
        rights=(Each(Operation.ALTER_CONFIGS, _configured, "resources", "responses"),)),
    Api(IncrementalAlterConfigsRequest, blocking(incremental_alter_configs), advertised=(0, 1), limits=TRANSACTIONS,
        rights=(Each(Operation.ALTER_CONFIGS, _configured, "resources", "responses"),)),
    Api(ListConfigResourcesRequest, list_config_resources, advertised=(0, 1), limits=TINY,
        rights=(on_cluster(Operation.DESCRIBE_CONFIGS),)),
)  # fmt: skip
