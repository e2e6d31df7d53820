"""Clients that send damaged requests, that never send one, and that do not read: others are served."""

import random
import resource
import socket
import struct
from collections import deque
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from kafka.protocol.metadata import MetadataRequest

from spark_log.cluster.cluster import Cluster
from spark_log.gateway.server import APIS
from tests.support.gateway_process import GatewayProcess
from tests.support.gateway_wire import WireConnection, request_about
from tests.support.topics import make

MUTATIONS = [10, pytest.param(100, marks=pytest.mark.long)]
"""Of each API, in its lowest and in its highest version."""
IDLE = 900
MEMORY_MB_MAX = 400
HEADER_BYTES = 12
"""Length, API key, version and correlation id."""


@contextmanager
def gateway_on(address, folder):
    with GatewayProcess(folder, address, "--no-auto-create-topics") as gateway:
        yield gateway


@pytest.fixture
def gateway(cluster, cluster_address, tmp_path):
    make(cluster, "flights", 2)
    with gateway_on(cluster_address, tmp_path) as gateway:
        yield gateway


@pytest.fixture
def gateway_on_sqlite(tmp_path):
    """For what the store takes no part in."""
    address = str(tmp_path / "cluster")
    with Cluster.init(address) as cluster:
        make(cluster, "flights", 2)
    with gateway_on(address, tmp_path) as gateway:
        yield gateway


def memory_mb(gateway):
    status = Path(f"/proc/{gateway.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def topics(gateway):
    with WireConnection(gateway.port) as connection:
        return [topic.name for topic in connection.exchange(MetadataRequest(topics=None), 1).topics]


def frame(api, version):
    request = request_about("flights", api.request, version)
    request.API_VERSION = version
    request.with_header(1, "test")
    return request.encode(header=True, framed=True)


def mutated(data, chosen):
    """Some bytes after the header changed, cut out or doubled; the length is right."""
    body = bytearray(data[HEADER_BYTES:])
    for _ in range(chosen.randint(1, 4)):
        at = chosen.randrange(len(body))
        match chosen.randrange(4):
            case 0:
                body[at] = chosen.choice([0, 1, 0x7F, 0x80, 0xFF])
            case 1:
                body[at] ^= 1 << chosen.randrange(8)
            case 2 if len(body) > 1:
                del body[at]
            case _:
                body[at:at] = body[at : at + 8]
    return struct.pack(">i", HEADER_BYTES - 4 + len(body)) + data[4:HEADER_BYTES] + body


@pytest.mark.parametrize("cluster_address", ["postgres"], indirect=True)
@pytest.mark.parametrize("mutations", MUTATIONS)
def test_damaged_requests_of_each_api_do_not_end_a_gateway(cluster, gateway, mutations):
    """On the store that refuses more: NUL, and numbers beyond a column."""
    chosen = random.Random(17)
    open_connections = deque()
    for api in APIS:
        for version in api.advertised:
            data = frame(api, version)
            for _ in range(mutations):
                connection = socket.create_connection(("127.0.0.1", gateway.port), timeout=30)
                with suppress(ConnectionError):
                    connection.sendall(mutated(data, chosen))
                open_connections.append(connection)
                if len(open_connections) > 100:
                    open_connections.popleft().close()
    topics(gateway)
    for connection in open_connections:
        connection.close()
    topics(gateway)
    assert memory_mb(gateway) < MEMORY_MB_MAX
    assert "Traceback" not in gateway.output, gateway.output[-4000:]


def test_idle_clients_and_one_that_does_not_read_leave_others_served(gateway_on_sqlite):
    gateway = gateway_on_sqlite
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4 * IDLE)), hard))
    connections = []
    try:
        before_mb = memory_mb(gateway)
        for _ in range(IDLE):
            connections.append(socket.create_connection(("127.0.0.1", gateway.port), timeout=30))
        greedy = connections[0]
        greedy.settimeout(1)
        request = MetadataRequest(topics=None)
        request.API_VERSION = 1
        request.with_header(1, "test")
        with suppress(TimeoutError):  # the gateway reads no more when its answers have no room
            for _ in range(1_000):
                greedy.sendall(request.encode(header=True, framed=True) * 1_000)
        assert topics(gateway) == ["flights"]
        assert memory_mb(gateway) - before_mb < 150
    finally:
        for connection in connections:
            connection.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert gateway.end() == 0


def test_the_header_of_a_request_has_few_tagged_fields(gateway_on_sqlite):
    """It is read on the event loop, from a frame that may have 100 MiB."""
    [versions] = (api for api in APIS if api.name == "ApiVersions")
    body = frame(versions, 3)[HEADER_BYTES + 7 :]  # after the client id, and no tagged fields
    for tags in (1, 1_000):
        count = bytes([0x80 | tags & 0x7F, tags >> 7])
        header = struct.pack(">hhih", versions.key, 3, 1, 0) + count + b"\x05\0" * tags
        with socket.create_connection(("127.0.0.1", gateway_on_sqlite.port), timeout=30) as connection:
            connection.sendall(struct.pack(">i", len(header + body)) + header + body)
            assert (connection.recv(1) != b"") == (tags == 1)
    assert "1000 tagged fields" in gateway_on_sqlite.output
