"""Every API in every version that gateways advertise: clients can read the responses.

Requests and responses are checked with kafka-python's classes, which are made from Kafka's own schemas.
"""

from contextlib import suppress

import pytest

from spark_log.cluster.cluster import Cluster
from spark_log.errors import TopicAlreadyExistsError
from spark_log.gateway.server import APIS
from spark_log.replication.controller.topic_operations import create_topic
from tests.support.gateway_wire import WireConnection, forbidden_nulls, request_about
from tests.support.server_processes import GatewayProcess


@pytest.fixture(scope="module")
def cluster(postgres_server, tmp_path_factory):
    """On PostgreSQL, which refuses more texts than SQLite."""
    log_dir = str(tmp_path_factory.mktemp("log-dir"))
    with Cluster.init(postgres_server.create_prepared_database(), log_dir=log_dir) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def gateway(cluster, tmp_path_factory):
    with GatewayProcess(
        tmp_path_factory.mktemp("gateway"), str(cluster.store.address), "--no-auto-create-topics"
    ) as gateway:
        yield gateway
        assert "Traceback" not in gateway.output


@pytest.mark.parametrize("name", ["unknown", "flights", "\0"])
@pytest.mark.parametrize("api", APIS, ids=lambda api: api.request.name)
def test_response_of_every_advertised_version_can_be_read(cluster, gateway, api, name):
    low, high = api.advertised
    with WireConnection(gateway.port) as connection:
        for version in range(low, high + 1):
            if name == "flights" and (version == low or api.request.name == "DeleteTopicsRequest"):
                with suppress(TopicAlreadyExistsError):
                    create_topic(cluster, name, 2)
            if api.serves(version):
                request = request_about(name, api.request, version)
                assert forbidden_nulls(connection.exchange(request, version), version) == [], version
