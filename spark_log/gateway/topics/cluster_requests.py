"""Handles requests that describe the gateways as brokers, and the log dirs of the cluster."""

from itertools import chain
from typing import Any

from kafka.protocol.admin import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)

from spark_log.clients.admin.partitions import describe_log_dirs as describe_log_dirs_of_brokers
from spark_log.cluster.brokers import list_brokers
from spark_log.cluster.security.acl_rules import Operation, ResourceType
from spark_log.gateway.access.rights import on_cluster
from spark_log.gateway.api import Api, Client, blocking
from spark_log.gateway.limits.bulkheads import Lane
from spark_log.gateway.live_gateways import choose_gateway
from spark_log.gateway.protocol.error_codes import NONE, outcome_of
from spark_log.gateway.protocol.request_limits import TINY
from spark_log.gateway.protocol.wire import Message
from spark_log.gateway.services import Services
from spark_log.ids import TopicPartition
from spark_log.replication.controller.balance import load_replicas

_MISMATCHED_ENDPOINT_TYPE = 114
_BROKERS = 1
"""The endpoint type of brokers. Type 2 is that of controllers, to which clients do not connect."""
_LOG_DIRS_HAVE_ERROR = 3
"""The first version of DescribeLogDirs whose response has an error code. Before, each log dir has one."""


async def describe_cluster(services: Services, request: Message, client: Client) -> Message:
    """Return the cluster. As in Metadata, brokers and controller are gateways, because clients connect to them.
    Gateways that have ended are left out, so none is fenced.
    """
    if request.version > 0 and request.endpoint_type != _BROKERS:
        return DescribeClusterResponse(
            throttle_time_ms=0,
            error_code=_MISMATCHED_ENDPOINT_TYPE,
            error_message="this endpoint is a broker",
            endpoint_type=_BROKERS,
            cluster_id="",
            controller_id=-1,
            brokers=[],
            authorized_operations=None,
        )
    gateways = await services.call(services.live_gateways)
    kind = DescribeClusterResponse.DescribeClusterBroker
    return DescribeClusterResponse(
        throttle_time_ms=0,
        error_code=NONE,
        error_message=None,
        endpoint_type=_BROKERS,
        cluster_id=services.cluster.cluster_id,
        controller_id=min((each.gateway_id for each in gateways), default=-1),
        brokers=[kind(broker_id=each.gateway_id, host=each.host, port=each.port, rack=each.zone) for each in gateways],
        authorized_operations=(
            client.access.operations_on(ResourceType.CLUSTER) if request.include_cluster_authorized_operations else None
        ),
    )


def describe_log_dirs(services: Services, request: Message, _client: Client) -> Message:
    """Return log dirs of brokers, with the replicas of all stores that answer."""
    outcome = outcome_of(_described_log_dirs, services, request)
    kind = DescribeLogDirsResponse.DescribeLogDirsResult
    results = [
        kind(
            error_code=log_dir["error_code"],
            log_dir=log_dir["log_dir"],
            topics=[
                kind.DescribeLogDirsTopic(
                    name=topic["name"],
                    partitions=[
                        kind.DescribeLogDirsTopic.DescribeLogDirsPartition(**partition)
                        for partition in topic["partitions"]
                    ],
                )
                for topic in log_dir["topics"]
            ],
            total_bytes=log_dir["total_bytes"],
            usable_bytes=log_dir["usable_bytes"],
        )
        for broker in outcome.result or ()
        for log_dir in broker["log_dirs"]
    ]
    if outcome.code and request.version < _LOG_DIRS_HAVE_ERROR:
        results = [kind(error_code=outcome.code, log_dir="", topics=[])]
    return DescribeLogDirsResponse(throttle_time_ms=0, error_code=outcome.code, results=results)


def _described_log_dirs(services: Services, request: Message) -> list[dict[str, Any]]:
    """Describe the brokers that this gateway shows. One gateway shows each broker, so that sums over all are right."""
    gateways = services.live_gateways()
    mine = []
    for broker in list_brokers(services.cluster):
        shown_by = choose_gateway(gateways, None, "log dirs", broker.broker_id)
        if shown_by is None or services.is_at(shown_by):
            mine.append(broker.broker_id)
    chosen = None
    if request.topics is not None:
        chosen = {TopicPartition(each.topic, number) for each in request.topics for number in each.partitions}
    replicas = services.stores.in_all(lambda cluster: cluster.store.read(load_replicas))
    return describe_log_dirs_of_brokers(services.cluster, chain.from_iterable(replicas), chosen, mine)


APIS = (
    Api(DescribeClusterRequest, describe_cluster, advertised=(0, 2), limits=TINY, lane=Lane.METADATA, rights=()),
    Api(DescribeLogDirsRequest, blocking(describe_log_dirs), advertised=(1, 5),
        rights=(on_cluster(Operation.DESCRIBE),)),
)  # fmt: skip
