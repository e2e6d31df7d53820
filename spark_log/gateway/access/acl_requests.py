"""Handles requests on access control lists (kafka-acls.sh). Only a gateway that checks ACLs shows and changes them."""

from kafka.protocol.admin import (
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
)

from spark_log.clients.admin import acls as on_acls
from spark_log.cluster.security.acl_rules import Acl, AclFilter, Operation
from spark_log.errors import SecurityDisabledError
from spark_log.gateway.access.rights import on_cluster
from spark_log.gateway.api import Api, Client, blocking
from spark_log.gateway.protocol.error_codes import NONE, Outcome, outcome_of
from spark_log.gateway.protocol.request_limits import TRANSACTIONS
from spark_log.gateway.protocol.wire import Message
from spark_log.gateway.services import Services

_SOURCE = "gateway"


def _check_enabled(services: Services) -> None:
    if services.authorizer is None:
        raise SecurityDisabledError("this gateway does not check ACLs: start it with --acls")


def _filter(wanted: Message) -> AclFilter:
    return on_acls.filter_of_numbers(
        wanted.resource_type_filter, wanted.resource_name_filter, wanted.pattern_type_filter, wanted.principal_filter,
        wanted.host_filter, wanted.operation, wanted.permission_type,
    )  # fmt: skip


def describe_acls(services: Services, request: Message, _client: Client) -> Message:
    def found() -> list[Acl]:
        _check_enabled(services)
        return on_acls.find_acls(services.cluster, _filter(request))

    outcome = outcome_of(found)
    kind = DescribeAclsResponse.DescribeAclsResource
    resources: dict[tuple[int, str, int], list[Message]] = {}
    for acl in outcome.result or ():
        described = kind.AclDescription(
            principal=acl.principal, host=acl.host, operation=int(acl.operation), permission_type=int(acl.permission)
        )
        resources.setdefault((int(acl.resource_type), acl.resource_name, int(acl.pattern_type)), []).append(described)
    return DescribeAclsResponse(
        throttle_time_ms=0,
        error_code=outcome.code,
        error_message=outcome.message,
        resources=[
            kind(resource_type=number, resource_name=name, pattern_type=pattern, acls=acls)
            for (number, name, pattern), acls in resources.items()
        ],
    )


async def create_acls(services: Services, request: Message, client: Client) -> Message:
    """Create ACLs, each with its own outcome. This gateway applies them at once, other gateways within a second."""
    response = await services.call(_create, services, request, client)
    if services.authorizer is not None:
        services.authorizer.forget()
    return response


def _create(services: Services, request: Message, client: Client) -> Message:
    def create(creation: Message) -> None:
        _check_enabled(services)
        acl = on_acls.acl_of_numbers(
            creation.resource_type, creation.resource_name, creation.resource_pattern_type, creation.principal,
            creation.host, creation.operation, creation.permission_type,
        )  # fmt: skip
        [error] = on_acls.create_acls(services.cluster, client.principal, _SOURCE, [acl])
        if error is not None:
            raise error

    outcomes = [outcome_of(create, creation) for creation in request.creations]
    kind = CreateAclsResponse.AclCreationResult
    return CreateAclsResponse(
        throttle_time_ms=0, results=[kind(error_code=each.code, error_message=each.message) for each in outcomes]
    )


async def delete_acls(services: Services, request: Message, client: Client) -> Message:
    response = await services.call(_delete, services, request, client)
    if services.authorizer is not None:
        services.authorizer.forget()
    return response


def _delete(services: Services, request: Message, client: Client) -> Message:
    def delete(wanted: Message) -> list[Acl]:
        _check_enabled(services)
        return on_acls.delete_acls(services.cluster, client.principal, _SOURCE, [_filter(wanted)])[0]

    outcomes = [outcome_of(delete, wanted) for wanted in request.filters]
    return DeleteAclsResponse(throttle_time_ms=0, filter_results=[_deleted(each) for each in outcomes])


def _deleted(outcome: Outcome[list[Acl]]) -> Message:
    kind = DeleteAclsResponse.DeleteAclsFilterResult
    return kind(
        error_code=outcome.code,
        error_message=outcome.message,
        matching_acls=[
            kind.DeleteAclsMatchingAcl(
                error_code=NONE, error_message=None, resource_type=int(acl.resource_type),
                resource_name=acl.resource_name, pattern_type=int(acl.pattern_type), principal=acl.principal,
                host=acl.host, operation=int(acl.operation), permission_type=int(acl.permission),
            )
            for acl in outcome.result or ()
        ],
    )  # fmt: skip


APIS = (
    Api(DescribeAclsRequest, blocking(describe_acls), advertised=(1, 3), rights=(on_cluster(Operation.DESCRIBE),)),
    Api(CreateAclsRequest, create_acls, advertised=(1, 3), limits=TRANSACTIONS, rights=(on_cluster(Operation.ALTER),)),
    Api(DeleteAclsRequest, delete_acls, advertised=(1, 3), limits=TRANSACTIONS, rights=(on_cluster(Operation.ALTER),)),
)  # fmt: skip
