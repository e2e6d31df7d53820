"""Messages of errors on the wire: they name nothing of the server."""

import re

import sqlalchemy as sa
from kafka.protocol.admin import (
    CreateTopicsRequest,
    DescribeClientQuotasRequest,
    DescribeUserScramCredentialsRequest,
)

from tests.contract.gateway.test_gateway_quotas import batch_of, produce
from tests.support.gateway_wire import WireConnection
from tests.support.server_processes import GatewayProcess
from tests.support.topics import make

OF_THE_SERVER = re.compile(rb"/|SELECT|INSERT|UPDATE|sqlite|psycopg|postgres|127\.0\.0\.1|localhost", re.IGNORECASE)
TABLES = ("client_quota", "partition", "scram_credential")


def test_an_error_of_the_store_is_told_without_paths_addresses_and_sql(cluster, cluster_address, tmp_path):
    make(cluster, "flights", 1)
    topic = CreateTopicsRequest.CreatableTopic(
        name="new", num_partitions=1, replication_factor=1, assignments=[], configs=[]
    )
    requests = {
        "Produce": (produce(batch_of(b"v")), 9),
        "CreateTopics": (CreateTopicsRequest(topics=[topic], timeout_ms=1_000, validate_only=False), 5),
        "DescribeClientQuotas": (DescribeClientQuotasRequest(components=[], strict=False), 1),
        "DescribeUserScramCredentials": (DescribeUserScramCredentialsRequest(users=None), 0),
    }  # fmt: skip
    with GatewayProcess(tmp_path, cluster_address) as gateway, WireConnection(gateway.port) as connection:
        connection.exchange(*requests["Produce"])  # the topic is known from now on
        cluster.store.transact(lambda connection: [rename(connection, table, f"{table}_gone") for table in TABLES])
        try:
            for name, (request, version) in requests.items():
                connection.send(request, version)
                answer = connection.receive_bytes()
                assert b"the metadata store" in answer or b"the server has failed" in answer, (name, answer)
                assert not OF_THE_SERVER.search(answer[4:]), (name, answer)
        finally:
            back = [(f"{table}_gone", table) for table in TABLES]
            cluster.store.transact(lambda connection: [rename(connection, *names) for names in back])
        for table in TABLES:
            assert table in gateway.output, "the log has the details"


def rename(connection, old, new):
    connection.execute(sa.text(f'ALTER TABLE "{old}" RENAME TO "{new}"'))
