"""Handles requests on client quotas, which kafka-configs.sh sends for users, clients and IP addresses (KIP-546)."""

from kafka.protocol.admin import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)

from spark_log.clients.admin.quotas import alter_quota, check_values
from spark_log.cluster.quotas.quota_rows import read_quotas
from spark_log.cluster.quotas.rules import IP, Entity, entity_of, matches
from spark_log.cluster.security.acl_rules import Operation
from spark_log.errors import IllegalArgumentError, SparkLogError
from spark_log.gateway.access.rights import on_cluster
from spark_log.gateway.api import Api, Client, blocking
from spark_log.gateway.protocol.error_codes import NONE, client_message, error_code, outcome_of
from spark_log.gateway.protocol.request_limits import TRANSACTIONS
from spark_log.gateway.protocol.wire import Message
from spark_log.gateway.services import Services

_EXACT, _DEFAULT, _ANY = 0, 1, 2
"""The match types of a filter."""


def describe_client_quotas(services: Services, request: Message, _client: Client) -> Message:
    """Return the quotas of the entities that match the filter."""
    entry = DescribeClientQuotasResponse.EntryData
    try:
        exact, present = _filter_of(request)
        quotas = read_quotas(services.cluster.store)
    except SparkLogError as error:
        return DescribeClientQuotasResponse(
            throttle_time_ms=0, error_code=error_code(error), error_message=client_message(error), entries=None
        )
    return DescribeClientQuotasResponse(
        throttle_time_ms=0,
        error_code=NONE,
        error_message=None,
        entries=[
            entry(
                entity=[entry.EntityData(entity_type=kind, entity_name=name) for kind, name in entity],
                values=[entry.ValueData(key=config, value=value) for config, value in sorted(values.items())],
            )
            for entity, values in quotas.items()
            if matches(entity, exact, present, bool(request.strict))
        ],
    )


def _filter_of(request: Message) -> tuple[dict[str, str | None], frozenset[str]]:
    exact: dict[str, str | None] = {}
    present: set[str] = set()
    for part in request.components:
        if part.entity_type in exact or part.entity_type in present:
            raise IllegalArgumentError(f"the filter names entity type {part.entity_type!r} twice")
        if part.match_type not in (_EXACT, _DEFAULT, _ANY):
            raise IllegalArgumentError(f"match type {part.match_type}: expected 0, 1 or 2")
        if part.match_type == _ANY:
            present.add(part.entity_type)
        else:
            exact[part.entity_type] = part.match if part.match_type == _EXACT else None
    if IP in (kinds := present | exact.keys()) and len(kinds) > 1:
        raise IllegalArgumentError("the filter asks for entities with an ip and another type, which do not exist")
    return exact, frozenset(present)


async def alter_client_quotas(services: Services, request: Message, client: Client) -> Message:
    """Change the quotas of each entity on its own. As in Kafka, an error of one entity does not stop the others."""
    response = await services.call(_alter, services, request, client)
    if not request.validate_only:
        await services.quotas.load()
    return response


def _alter(services: Services, request: Message, client: Client) -> Message:
    entry = AlterClientQuotasResponse.EntryData
    entries = []
    for alteration in request.entries:
        outcome = outcome_of(_alter_one, services, client, alteration, bool(request.validate_only))
        entries.append(
            entry(
                error_code=outcome.code,
                error_message=outcome.message,
                entity=[
                    entry.EntityData(entity_type=part.entity_type, entity_name=part.entity_name)
                    for part in alteration.entity
                ],
            )
        )
    return AlterClientQuotasResponse(throttle_time_ms=0, entries=entries)


def _alter_one(services: Services, client: Client, wanted: Message, validate_only: bool) -> None:
    entity: Entity = entity_of([(part.entity_type, part.entity_name) for part in wanted.entity])
    values = {operation.key: None if operation.remove else operation.value for operation in wanted.ops}
    if validate_only:
        check_values(entity, values)
    else:
        alter_quota(services.cluster, client.principal, "gateway", entity, values)


APIS = (
    Api(DescribeClientQuotasRequest, blocking(describe_client_quotas), advertised=(0, 1),
        rights=(on_cluster(Operation.DESCRIBE_CONFIGS),)),
    Api(AlterClientQuotasRequest, alter_client_quotas, advertised=(0, 1), limits=TRANSACTIONS,
        rights=(on_cluster(Operation.ALTER_CONFIGS),)),
)  # fmt: skip
